// Package inference is the client of models: one request, a batch of lines, or a
// conversation, sent to a gateway.
package inference

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// MaxRequestBytes bounds a request read from a file or standard input.
const MaxRequestBytes = 64 << 20

// Surface returns the path that a request goes to, which the names of its fields
// tell. OpenAI's bodies carry the model's name; Surface adds it where it is
// missing.
func Surface(k service.Key, model string, body []byte) (string, []byte, error) {
	if len(bytes.TrimSpace(body)) == 0 {
		return "", nil, errors.New("the request is empty: give it with -d JSON, -d @FILE or on standard input")
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		var kind *json.UnmarshalTypeError
		if errors.As(err, &kind) {
			return "", nil, fmt.Errorf("the request is of kind %s and must be a JSON object: write {\"inputs\": …}, {\"instances\": …} or another request of the model's protocol", kind.Value)
		}
		return "", nil, fmt.Errorf("the request is not JSON: %w", err)
	}
	has := func(name string) bool { _, ok := fields[name]; return ok }
	openAI := func(path string) (string, []byte, error) {
		if !has("model") {
			name, _ := json.Marshal(model)
			rest := bytes.TrimSpace(body)[1:]
			body = append(append([]byte(`{"model":`), name...), append([]byte(","), rest...)...)
		}
		return path, body, nil
	}
	switch {
	case has("inputs"):
		return "/v2/models/" + url.PathEscape(model) + "/infer", body, nil
	case has("instances"):
		return "/v1/models/" + url.PathEscape(model) + ":predict", body, nil
	case has("messages"):
		return openAI("/v1/chat/completions")
	case has("prompt"):
		return openAI("/v1/completions")
	case has("input"):
		return openAI("/v1/embeddings")
	}
	return "", nil, fmt.Errorf("the request for %s has none of the fields inputs, instances, messages, prompt and input, which tell its protocol: add one", k)
}

// Gateway is where requests go.
type Gateway struct {
	Base   string // URL
	APIKey string // "" for none
	// Transport is the one of a cluster, whose API server passes requests on to the
	// gateway; nil asks the gateway itself.
	Transport http.RoundTripper
}

// authorize adds the API key, if there is one.
func (g Gateway) authorize(h http.Header) {
	if g.APIKey != "" {
		h.Set("Authorization", "Bearer "+g.APIKey)
	}
}

// Post sends one request. An answer that is not a success is an error in the
// server's words.
func (g Gateway) Post(ctx context.Context, path string, body []byte) (*http.Response, error) {
	return g.post(ctx, path, body, nil)
}

// post sends a request with more headers.
func (g Gateway) post(ctx context.Context, path string, body []byte, more http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.Base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, more)
	req.Header.Set("Content-Type", "application/json")
	g.authorize(req.Header)
	resp, err := (&http.Client{Transport: g.Transport}).Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		switch {
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			return nil, errors.New("no answer within --timeout: `roundhouse describe NAME` shows whether the model is ready")
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case g.Transport != nil:
			return nil, err
		}
		return nil, &admin.UnreachableError{Base: g.Base, Flag: "--gateway", Err: err}
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	text := errorText(raw)
	if g.Transport != nil && fromAPIServer(raw) {
		return nil, fmt.Errorf("the API server does not pass the request on to the gateway: %s", text)
	}
	if resp.StatusCode == http.StatusUnauthorized {
		text += "; set ROUNDHOUSE_API_KEY to the key to send"
	}
	return nil, fmt.Errorf("%s: %s", resp.Status, text)
}

// errorText is the message in an error body of any of the surfaces.
func errorText(raw []byte) string {
	var e struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
	}
	var nested struct {
		Message string `json:"message"`
	}
	var text string
	if json.Unmarshal(raw, &e) == nil {
		switch {
		case json.Unmarshal(e.Error, &text) == nil && text != "":
			return text
		case json.Unmarshal(e.Error, &nested) == nil && nested.Message != "":
			return nested.Message
		case e.Message != "":
			return e.Message
		}
	}
	return strings.TrimSpace(string(raw))
}

// fromAPIServer reports whether an error is the API server's own, and not the
// gateway's.
func fromAPIServer(raw []byte) bool {
	var status struct {
		Kind   string `json:"kind"`
		Status string `json:"status"`
	}
	return json.Unmarshal(raw, &status) == nil && status.Kind == "Status" && status.Status == "Failure"
}

// Example returns lines that show a request that a service answers. sample is a file
// with a body for it, "" for none.
func Example(base string, k service.Key, p service.Protocol, sample string) []string {
	name := strings.ReplaceAll(k.Short(), "/", "%2F")
	const asJSON = "-H 'Content-Type: application/json'"
	switch {
	case p == service.ProtocolOpenAI:
		return []string{fmt.Sprintf(`curl -N %s/v1/chat/completions %s -d '{"model":"%s","stream":true,"messages":[{"role":"user","content":"Hello"}]}'`, base, asJSON, k.Short())}
	case p != service.ProtocolV1 && p != service.ProtocolV2:
		return nil
	case sample != "":
		return []string{fmt.Sprintf("curl %s/v2/models/%s/infer %s -d @%s", base, name, asJSON, sample)}
	case p == service.ProtocolV1:
		return []string{"with the inputs of one instance in place of ROW, such as [5.1, 3.5]:",
			fmt.Sprintf(`curl %s/v1/models/%s:predict %s -d '{"instances": [ROW]}'`, base, name, asJSON)}
	}
	return []string{fmt.Sprintf("with one row of N numbers in place of ROW, such as 5.1, 3.5; %s/v2/models/%s tells what it takes:", base, name),
		fmt.Sprintf(`curl %s/v2/models/%s/infer %s -d '{"inputs": [{"name": "input-0", "shape": [1, N], "datatype": "FP32", "data": [ROW]}]}'`, base, name, asJSON)}
}
