// Package secrets reads Kubernetes' Secrets and ServiceAccounts, by which KServe's
// services name what their models are fetched with. One machine keeps them; on a
// cluster they are the API server's. No message has a part of a value.
package secrets

import (
	"encoding/base64"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/credentials"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// The kinds.
const (
	KindSecret  = "Secret"
	KindAccount = "ServiceAccount"
)

type secret struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Type            string            `json:"type"`
	Immutable       *bool             `json:"immutable"`
	Data            map[string]string `json:"data"`
	StringData      map[string]string `json:"stringData"`
}

type account struct {
	metav1.TypeMeta  `json:",inline"`
	Metadata         metav1.ObjectMeta             `json:"metadata"`
	Secrets          []corev1.ObjectReference      `json:"secrets"`
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets"`
	Automount        *bool                         `json:"automountServiceAccountToken"`
}

// maxBytes is how large Kubernetes lets the values of a Secret be together.
const maxBytes = 1 << 20

// readSecret reads a Secret. Values in stringData go before those in data.
func readSecret(r *manifest.Reader, m *secret, o *manifest.Object) {
	r.Conceal("data", "is not written as it must be: give every key a value in base64, in quotes")
	r.Conceal("stringData", "is not written as it must be: give every key a text, in quotes")
	r.Conceal("metadata.annotations", "is not written as it must be: give every annotation a text, in quotes")
	s := &service.Secret{Meta: r.Meta(m.Metadata, false, true), Type: m.Type, Data: map[string]service.Hidden{}}
	o.Kind, o.Key, o.Secret = manifest.KindSecret, s.Key, s
	total := 0
	put := func(path, key, value string) {
		if !manifest.KeyName(key) {
			r.Errorf(path, "has a key that is none: use up to 253 letters, digits, '-', '_' and '.'")
			return
		}
		total += len(value)
		s.Data[key] = service.Hide(value)
	}
	for _, key := range slices.Sorted(maps.Keys(m.Data)) {
		raw, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(m.Data[key]), ""))
		if err != nil {
			r.Errorf(strict.Key("data", key), "is not base64: encode the value, or write it as it is under stringData")
			continue
		}
		put("data", key, string(raw))
	}
	for _, key := range slices.Sorted(maps.Keys(m.StringData)) {
		put("stringData", key, m.StringData[key])
	}
	if total > maxBytes {
		r.Errorf("data", "has values of %d bytes: a Secret has up to %d", total, maxBytes)
	}
}

// Anchored finds an anchor or an alias among the values of a Secret, where it is rather
// a value without its quotes: &password names an anchor, and what is read is not it.
func Anchored(root *yaml.Node) (path string, at *yaml.Node) {
	for i := 0; i+1 < len(root.Content); i += 2 {
		if path = root.Content[i].Value; path == "data" || path == "stringData" {
			if at = anchored(root.Content[i+1]); at != nil {
				return path, at
			}
		}
	}
	return "", nil
}

func anchored(n *yaml.Node) *yaml.Node {
	if n.Anchor != "" || n.Kind == yaml.AliasNode {
		return n
	}
	for _, child := range n.Content {
		if at := anchored(child); at != nil {
			return at
		}
	}
	return nil
}

// readAccount reads a ServiceAccount.
func readAccount(r *manifest.Reader, m *account, o *manifest.Object) {
	a := &service.Account{Meta: r.Meta(m.Metadata, false, true)}
	o.Kind, o.Key, o.Account = manifest.KindAccount, a.Key, a
	for i, s := range m.Secrets {
		manifest.CheckName(r.Report, strict.Index("secrets", i)+".name", s.Name, true)
		a.Secrets = append(a.Secrets, s.Name)
	}
	if n := len(m.Secrets); n > credentials.MaxSecrets {
		r.Warnf("secrets", "has %d secrets: the first %d count", n, credentials.MaxSecrets)
	}
	if r.Has("imagePullSecrets") {
		r.OneMachine("imagePullSecrets", true, manifest.NoSecret)
	}
}

// Schemas are the kinds of this package.
var Schemas = []manifest.Schema{
	manifest.OneMachineSchema("v1", KindSecret, skipped, readSecret),
	manifest.OneMachineSchema("v1", KindAccount, skipped, readAccount),
}

const skipped = "is skipped on a cluster: apply it with kubectl"

// Redacted is a Secret as it may be seen: what is known of it, without the values, and
// without annotations that may hold them.
func Redacted(s *service.Secret) map[string]any {
	meta := map[string]any{"name": s.Name, "namespace": s.Namespace}
	if len(s.Labels) > 0 {
		meta["labels"] = s.Labels
	}
	shown := map[string]string{}
	for name, v := range s.Annotations {
		if credentials.Annotated[name] == "" { // kubectl's has the whole object
			v = service.HiddenText
		}
		shown[name] = v
	}
	if len(shown) > 0 {
		meta["annotations"] = shown
	}
	out := map[string]any{"apiVersion": "v1", "kind": KindSecret, "metadata": meta}
	if s.Type != "" {
		out["type"] = s.Type
	}
	data := map[string]string{}
	for key := range s.Data {
		data[key] = service.HiddenText
	}
	if len(data) > 0 {
		out["data"] = data
	}
	return out
}
