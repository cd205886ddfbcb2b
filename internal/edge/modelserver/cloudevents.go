package modelserver

import (
	"maps"
	"net/http"
	"os"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// namespaceFile holds the namespace of a pod.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// cloudEvents writes the CloudEvents headers of responses, as Seldon's
// request loggers read them. Their values are shared by all responses.
type cloudEvents struct {
	specVersion, source, kind, service, namespace []string
}

func newCloudEvents(server string) cloudEvents {
	source := "io.seldon.serving.deployment." + server
	e := cloudEvents{specVersion: []string{"0.3"}, kind: []string{"io.seldon.serving.inference.response"}, service: []string{server}}
	if text, err := os.ReadFile(namespaceFile); err == nil && len(text) > 0 { // elsewhere than in a pod there is none
		namespace := strings.TrimSpace(string(text))
		e.namespace = []string{namespace}
		source += "." + namespace
	}
	e.source = []string{source}
	return e
}

// HeaderReader is a Model whose code reads its requests' headers. It is given
// those of CloudEvents among them, as MLServer gives them.
type HeaderReader interface{ ReadsHeaders() bool }

// announce puts the headers that describe a request as an event into it, where
// the model reads them. The names are as MLServer writes them; those that a
// client sends are in lower case, and stay.
func (e *cloudEvents) announce(i *instance, r *tensor.Request) {
	if m, ok := i.model.(HeaderReader); !ok || !m.ReadsHeaders() {
		return
	}
	given, _ := r.Parameters[headersParameter].(map[string]any)
	headers := make(map[string]any, len(given)+9)
	maps.Copy(headers, given)
	for name, value := range map[string]string{"Ce-Specversion": e.specVersion[0], "Ce-Source": e.source[0], "Ce-Type": "io.seldon.serving.inference.request",
		"Ce-Modelid": i.name, "Ce-Inferenceservicename": e.service[0], "Ce-Endpoint": i.name, "Ce-Id": r.ID, "Ce-Requestid": r.ID} {
		headers[name] = value
	}
	if e.namespace != nil {
		headers["Ce-Namespace"] = e.namespace[0]
	}
	r.Parameters = maps.Clone(r.Parameters)
	SetHeaders(r, headers)
}

// set writes the headers of a model's response under their canonical names.
func (e *cloudEvents) set(h http.Header, model, id string) {
	names := []string{model}
	h["Ce-Specversion"] = e.specVersion
	h["Ce-Source"] = e.source
	h["Ce-Type"] = e.kind
	h["Ce-Modelid"] = names
	h["Ce-Inferenceservicename"] = e.service
	h["Ce-Endpoint"] = names
	if id, ok := HeaderValue(id); ok {
		ids := []string{id}
		h["Ce-Id"], h["Ce-Requestid"] = ids, ids
	} else { // none is better than half of one
		delete(h, "Ce-Id")
		delete(h, "Ce-Requestid")
	}
	if e.namespace != nil {
		h["Ce-Namespace"] = e.namespace
	}
}
