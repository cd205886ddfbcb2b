package service

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// Secret is a Kubernetes Secret, as one machine keeps it.
type Secret struct {
	Meta
	Type string
	Data map[string]Hidden
}

// Account is a Kubernetes ServiceAccount, of which one machine uses the names of
// its secrets, and the annotations that say where a store is.
type Account struct {
	Meta
	Secrets []string
}

// Hidden is a value that nothing prints: it is [HiddenText] in every format.
type Hidden struct{ value string }

// HiddenText stands in place of a hidden value. It is not base64, so that a Secret
// that was printed is not applied by mistake.
const HiddenText = "(hidden)"

// Hide hides a value.
func Hide(value string) Hidden { return Hidden{value} }

// Reveal returns the value.
func (h Hidden) Reveal() string { return h.value }

// Format implements fmt.Formatter for every verb.
func (Hidden) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, HiddenText) }

// MarshalJSON implements json.Marshaler.
func (Hidden) MarshalJSON() ([]byte, error) { return json.Marshal(HiddenText) }

// MarshalYAML implements yaml.Marshaler.
func (Hidden) MarshalYAML() (any, error) { return HiddenText, nil }

// Credentials name the objects of a namespace that hold what a model's files are
// fetched with, on one machine, and never what is in them. The zero value is the
// environment of this program.
type Credentials struct {
	Namespace string `json:"namespace,omitempty"`
	// Account is the service account that lists Secrets; "" where the service names
	// its secret itself. Of Secrets that have the same key the last counts.
	Account string   `json:"account,omitempty"`
	Secrets []string `json:"secrets,omitempty"`
	// Storage is KServe's, and StorageSecret the secret that has its key.
	Storage       *Storage `json:"storage,omitempty"`
	StorageSecret string   `json:"storageSecret,omitempty"`
	// Keys are the secrets' keys that the serving container takes variables from, by
	// variable.
	Keys map[string]SecretKey `json:"keys,omitempty"`
	// Authorities names the ConfigMap, of the service's or its account's annotation, that
	// has the authorities of an S3 store's certificate.
	Authorities string `json:"authorities,omitempty"`
	// Variables are those that the annotations of the service and its account set.
	Variables map[string]string `json:"variables,omitempty"`
	// Only is the one URI that these are for, where a model object brings them along;
	// files of any other are fetched with Others, the service's own. "" for any URI.
	Only   string       `json:"only,omitempty"`
	Others *Credentials `json:"others,omitempty"`
}

// SecretKey is one value of a secret; an optional one may be missing.
type SecretKey struct {
	Secret   string `json:"secret"`
	Key      string `json:"key"`
	Optional bool   `json:"optional,omitempty"`
}

// Files are what a URI names, and what they are fetched with.
type Files struct {
	URI string
	Credentials
}

// Key tells files from others: the same URI may be two things to two who ask.
func (f Files) Key() string {
	if f.Zero() {
		return f.URI
	}
	raw, _ := json.Marshal(f.Credentials) // strings, which always encode; maps are sorted
	return f.URI + " " + string(raw)
}

// Zero reports whether there are none but this program's environment.
func (c Credentials) Zero() bool {
	return len(c.Secrets) == 0 && c.Storage == nil && len(c.Keys) == 0 && len(c.Variables) == 0 && c.Authorities == ""
}

// Equal reports whether the same files are fetched with the same.
func (c Credentials) Equal(o Credentials) bool {
	x, _ := json.Marshal(c) // strings, which always encode; maps are sorted
	y, _ := json.Marshal(o)
	return bytes.Equal(x, y)
}

// Of are files of a URI, and what they are fetched with.
func (c Credentials) Of(uri string) Files {
	switch {
	case c.Only == "" || c.Only == uri:
		c.Only, c.Others = "", nil
		return Files{uri, c}
	case c.Others == nil:
		return Files{URI: uri}
	}
	return c.Others.Of(uri)
}
