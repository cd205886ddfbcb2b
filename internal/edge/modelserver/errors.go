package modelserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// notReadyError is a model that is there and does not serve.
type notReadyError struct {
	name   string
	state  State
	reason string
}

func (e *notReadyError) Error() string {
	text := fmt.Sprintf("Model %s is not ready yet (%s)", e.name, e.state)
	if e.reason != "" {
		text += ": " + e.reason
	}
	return text
}

// uriError is a model whose settings or URI lead nowhere.
type uriError struct{ err error }

func (e *uriError) Error() string { return e.err.Error() }
func (e *uriError) Unwrap() error { return e.err }

// httpError is an error of HTTP itself.
type httpError struct {
	status  int
	message string
}

func (e *httpError) Error() string { return e.message }

// errBusy is the answer beyond the limit on concurrency.
var errBusy = &httpError{http.StatusTooManyRequests, "too many requests under way; try again"}

// statusOf is the HTTP status for an error.
func statusOf(err error) int {
	var request *tensor.Error
	var direct *httpError
	var notReady *notReadyError
	var uri *uriError
	var own interface{ HTTPStatus() int } // an engine's
	switch {
	case errors.As(err, &request):
		switch request.Kind {
		case tensor.KindSchema:
			return http.StatusUnprocessableEntity
		case tensor.KindNotFound:
			return http.StatusNotFound
		case tensor.KindTooLarge:
			return http.StatusRequestEntityTooLarge
		}
		return http.StatusBadRequest
	case errors.As(err, &direct):
		return direct.status
	case errors.As(err, &own):
		return own.HTTPStatus()
	case errors.As(err, &notReady):
		return http.StatusBadRequest
	case errors.As(err, &uri):
		return http.StatusUnprocessableEntity
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return http.StatusServiceUnavailable
	}
	return http.StatusBadRequest
}

// errorBody is the JSON of an error; detail is for schema faults, as MLServer
// words them.
type errorBody struct {
	Error  string        `json:"error"`
	Detail []errorDetail `json:"detail,omitempty"`
}

type errorDetail struct {
	Type    string          `json:"type"`
	Loc     []any           `json:"loc"`
	Message string          `json:"msg"`
	Input   json.RawMessage `json:"input,omitempty"`
	Context map[string]any  `json:"ctx,omitempty"`
}

// jsonFault is how the decoder's message for broken JSON begins.
const jsonFault = "JSON decode error: "

// where is the path to a schema fault, before its message: inputs.0.shape.
func where(e *tensor.Error) string {
	if len(e.Path) == 0 || e.Type == "json_invalid" {
		return ""
	}
	var b strings.Builder
	for i, step := range e.Path {
		if i > 0 {
			b.WriteByte('.')
		}
		_, _ = fmt.Fprint(&b, step)
	}
	return b.String() + ": "
}

// maxErrorBytes bounds a message, which may repeat what a client sent.
const maxErrorBytes = 2048

// writeError answers with err.
func writeError(w http.ResponseWriter, err error) {
	writeErrorStatus(w, statusOf(err), err)
}

func writeErrorStatus(w http.ResponseWriter, status int, err error) {
	if status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, status, errorOf(err))
}

// errorOf is the JSON of err.
func errorOf(err error) errorBody {
	body := errorBody{Error: excerpt.Of(err.Error(), maxErrorBytes)}
	if faulty, ok := errors.AsType[*schemaError](err); ok {
		return errorBody{Error: excerpt.Of(faulty.summary(), maxErrorBytes), Detail: faulty.all}
	}
	var request *tensor.Error
	if errors.As(err, &request) && request.Kind == tensor.KindSchema {
		detail := errorDetail{Type: request.Type, Loc: []any{"body"}, Message: body.Error, Input: request.Input}
		if request.Type == "missing" {
			detail.Message = "Field required" // the path names it
		}
		body.Error = excerpt.Of(where(request)+detail.Message, maxErrorBytes)
		detail.Loc = append(detail.Loc, request.Path...)
		if !json.Valid(detail.Input) {
			detail.Input = nil
		}
		if reason, ok := strings.CutPrefix(detail.Message, jsonFault); ok && request.Type == "json_invalid" {
			detail.Message, detail.Input, detail.Context = "JSON decode error", json.RawMessage("{}"), map[string]any{"error": reason}
		}
		body.Detail = []errorDetail{detail}
	}
	return body
}

// noJSON is the error for what has no JSON form.
const noJSON = `{"error":"the answer has no JSON form"}`

// writeJSON answers with v.
func writeJSON(w http.ResponseWriter, status int, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		status, text = http.StatusInternalServerError, []byte(noJSON)
	}
	writeBytes(w, status, text)
}

// jsonType is shared by all answers: a header map wants a slice.
var jsonType = []string{"application/json"}

func writeBytes(w http.ResponseWriter, status int, text []byte) {
	w.Header()["Content-Type"] = jsonType
	w.WriteHeader(status)
	_, _ = w.Write(text) // a client that left needs no answer
}

// StatusOf is the HTTP status of an error that a method of Server gave.
func StatusOf(err error) int { return statusOf(err) }
