package modelserver

import (
	"net/http"
	"os"
	"strings"
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

// set writes the headers of a model's response under their canonical names.
func (e *cloudEvents) set(h http.Header, model, id string) {
	names, ids := []string{model}, []string{id}
	h["Ce-Specversion"] = e.specVersion
	h["Ce-Source"] = e.source
	h["Ce-Type"] = e.kind
	h["Ce-Modelid"] = names
	h["Ce-Inferenceservicename"] = e.service
	h["Ce-Endpoint"] = names
	h["Ce-Id"] = ids
	h["Ce-Requestid"] = ids
	if e.namespace != nil {
		h["Ce-Namespace"] = e.namespace
	}
}
