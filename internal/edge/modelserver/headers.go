package modelserver

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// headersParameter is the parameter that holds a request's or response's
// headers. What a client writes there itself is overwritten.
const headersParameter = "headers"

// SetHeaders puts the headers a request came with, by lower-case name, into
// its parameters.
func SetHeaders(r *tensor.Request, headers map[string]any) {
	if r.Parameters == nil {
		r.Parameters = tensor.Parameters{}
	}
	r.Parameters[headersParameter] = headers
}

// TakeHeaders gives the headers that a response asks for, as the model wrote
// their names, and removes them from its parameters, which it leaves not nil,
// as MLServer does. A model may share parameters between answers, so they are
// copied where they change.
func TakeHeaders(r *tensor.Response) map[string]string {
	value, ok := r.Parameters[headersParameter]
	if !ok {
		if r.Parameters == nil {
			r.Parameters = tensor.Parameters{}
		}
		return nil
	}
	r.Parameters = maps.Clone(r.Parameters)
	delete(r.Parameters, headersParameter)
	headers := map[string]string{}
	switch list := value.(type) {
	case map[string]any:
		for name, v := range list {
			headers[name] = fmt.Sprint(v)
		}
	case map[string]string:
		maps.Copy(headers, list)
	}
	return headers
}

// lowerNames holds the lower-case form of usual headers, which need not be
// made for every request.
var lowerNames = func() map[string]string {
	names := map[string]string{}
	for _, name := range []string{"Accept", "Accept-Encoding", "Accept-Language", "Authorization", "Connection", "Content-Encoding", "Content-Length",
		"Content-Type", "Cookie", jsonLength, "Origin", "Referer", "Traceparent", "Tracestate", "User-Agent", "X-Forwarded-For",
		"X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip", "X-Request-Id"} {
		names[name] = strings.ToLower(name)
	}
	return names
}()

// requestHeaders are the headers of an HTTP request, by lower-case name.
func requestHeaders(r *http.Request) map[string]any {
	headers := make(map[string]any, len(r.Header)+1)
	headers["host"] = r.Host
	for name, values := range r.Header {
		lower, ok := lowerNames[name]
		if !ok {
			lower = strings.ToLower(name)
		}
		if len(values) == 1 {
			headers[lower] = values[0]
		} else {
			headers[lower] = strings.Join(values, ", ")
		}
	}
	return headers
}

// framing are the headers of the transport. A model must not set them: that would
// break the connection.
var framing = map[string]bool{"Connection": true, "Content-Encoding": true, "Content-Length": true, jsonLength: true, "Keep-Alive": true,
	"Proxy-Connection": true, "Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true}

// maxHeaderValue bounds the value of a header that a client or a model chose, in
// bytes: proxies refuse answers with longer ones.
const maxHeaderValue = 8 << 10

// HeaderValue is text as the value of a header, with control characters written as
// percent signs and their codes; ok is false for text that is too long for one.
func HeaderValue(text string) (value string, ok bool) {
	if len(text) > maxHeaderValue {
		return "", false
	}
	control := func(c byte) bool { return c < ' ' || c == 0x7f }
	i := 0
	for i < len(text) && !control(text[i]) {
		i++
	}
	if i == len(text) {
		return text, true
	}
	out := []byte(text[:i])
	for ; i < len(text); i++ {
		if c := text[i]; control(c) {
			out = fmt.Appendf(out, "%%%02X", c)
		} else {
			out = append(out, c)
		}
	}
	return string(out), true
}

// setHeaders writes the headers a model asked for, and the server's own.
func (e *cloudEvents) setHeaders(h http.Header, r *tensor.Response, asked map[string]string) {
	for name, value := range asked {
		value, ok := HeaderValue(value)
		if name = http.CanonicalHeaderKey(name); ok && !framing[name] {
			h[name] = []string{value}
		}
	}
	e.set(h, r.ModelName, r.ID)
}

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
