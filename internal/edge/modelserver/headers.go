package modelserver

import (
	"fmt"
	"maps"
	"net/http"
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

// framing are the headers that say how an answer is sent, which a model must
// not: it would break the connection.
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
func (s *Server) setHeaders(h http.Header, r *tensor.Response, asked map[string]string) {
	for name, value := range asked {
		value, ok := HeaderValue(value)
		if name = http.CanonicalHeaderKey(name); ok && !framing[name] {
			h[name] = []string{value}
		}
	}
	s.events.set(h, r.ModelName, r.ID)
}
