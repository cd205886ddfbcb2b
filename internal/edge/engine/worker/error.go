package worker

import (
	"errors"
	"net/http"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// The kinds of Error: the protocol's and this package's.
const (
	kindInvalid       = "invalid"
	kindNotFound      = "not_found"
	KindUnprocessable = "unprocessable"
	kindUnavailable   = "unavailable"
	kindTooLarge      = "too_large"
	KindMissing       = "missing_package"
	kindCancelled     = "cancelled"
	kindFailed        = "failed"
	kindUnsupported   = "unsupported"
	kindDied          = "worker_died"
	kindTimeout       = "timeout"
)

// statuses maps kinds to HTTP statuses.
var statuses = map[string]int{
	kindInvalid:       http.StatusBadRequest,
	kindNotFound:      http.StatusNotFound,
	KindUnprocessable: http.StatusUnprocessableEntity,
	kindUnavailable:   http.StatusServiceUnavailable,
	kindTooLarge:      http.StatusInternalServerError,
	KindMissing:       http.StatusInternalServerError,
	kindCancelled:     http.StatusServiceUnavailable,
	kindFailed:        http.StatusInternalServerError,
	kindUnsupported:   http.StatusNotImplemented,
	kindDied:          http.StatusInternalServerError,
	kindTimeout:       http.StatusGatewayTimeout,
}

// Error is a failure in a worker or of a worker.
type Error struct {
	Kind      string // failed, unavailable, missing_package, worker_died …
	Status    int    // of HTTP
	Message   string // for the client
	Type      string // class of the exception, where there was one
	Install   string // the command that installs what is missing
	Traceback string // for logs, never for clients
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// HTTPStatus returns the status of an answer with this error.
func (e *Error) HTTPStatus() int { return e.Status }

// Unwrap returns faults of the request as the *tensor.Error that every protocol
// can answer.
func (e *Error) Unwrap() error {
	switch e.Status {
	case http.StatusBadRequest:
		return tensor.Errorf(tensor.KindInvalid, "%s", e.Message)
	case http.StatusNotFound:
		return tensor.Errorf(tensor.KindNotFound, "%s", e.Message)
	case http.StatusRequestEntityTooLarge:
		return tensor.Errorf(tensor.KindTooLarge, "%s", e.Message)
	}
	return nil
}

// NewError makes an error of a kind, with its status.
func NewError(kind, message string) *Error {
	return &Error{Kind: kind, Status: statuses[kind], Message: message}
}

// Failures after which another worker may be tried.
var (
	errGone    = errors.New("the worker has ended")
	errNotSent = errors.New("the worker ended before the request was sent")
	errFull    = errors.New("the worker has as many requests in flight as it takes")
)

// Bounds of a worker's texts in the protocol; longer ones are cut.
const (
	maxMessage   = 16 << 10
	maxTraceback = 32 << 10
)

// err returns the error that a worker reported.
func (w *wireError) err() error {
	if w == nil {
		return NewError(kindFailed, "the worker reported an error without saying which")
	}
	e := &Error{Kind: excerpt.Of(w.Kind, 64), Status: statuses[w.Kind], Message: excerpt.Of(w.Message, maxMessage), Type: excerpt.Of(w.Type, 256),
		Install: excerpt.Of(w.Install, maxMessage), Traceback: excerpt.Of(w.Traceback, maxTraceback)}
	if e.Status == 0 {
		e.Status = http.StatusInternalServerError
	}
	if w.Status >= 400 && w.Status <= 599 {
		e.Status = w.Status
	}
	if e.Message == "" {
		e.Message = strings.TrimSpace("the model failed: " + e.Type)
	}
	return e
}
