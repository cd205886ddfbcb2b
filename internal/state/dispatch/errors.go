package dispatch

import (
	"errors"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/admission"
)

// Why a request was not admitted, to be tested with errors.Is. Beside these
// Admit returns the errors of package route and of the request's context.
var (
	// ErrBusy: as many requests wait as may, or the pool is saturated and the
	// request is one that can be shed (429).
	ErrBusy = errors.New("too many requests")
	// ErrUnavailable: no replica could take the request in time, or none will
	// (503).
	ErrUnavailable = errors.New("no replica is available")
)

// Error says why a request was not admitted or not moved to another replica.
type Error struct {
	Kind    error // ErrBusy or ErrUnavailable
	Pool    string
	Message string // one line a person can act on
	// Reason is admission's; "" when the request never came that far.
	Reason admission.Reason
	// RetryAfter is when to ask again; 0 when asking again will not help.
	RetryAfter time.Duration
	// Cause is the failure behind it, if it was an error.
	Cause error
}

// Error is the pool and the message.
func (e *Error) Error() string { return e.Pool + ": " + e.Message }

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}

// unsentError marks a failure that happened before the request left.
type unsentError struct{ error }

func (e unsentError) Unwrap() error { return e.error }

// Unsent marks err as a failure before anything of the request reached the
// replica. Such a request may wait for a replica that works, and how often it is
// tried has no bound but its deadline; one that was sent moves only to a replica
// that is ready now, since it may be what broke the first.
func Unsent(err error) error { return unsentError{err} }

// lostError marks a failure that may be the end of the replica's process.
type lostError struct{ error }

func (e lostError) Unwrap() error { return e.error }

// Lost marks err as a connection that ended, after the request was sent, as it
// does when the replica's process ends. Where a replica can be started in its
// place, the request may wait for it, once: it may be what ended the first.
func Lost(err error) error { return lostError{err} }

func isLost(err error) bool {
	var l lostError
	return errors.As(err, &l)
}

// IsUnsent says whether err is marked so.
func IsUnsent(err error) bool {
	var u unsentError
	return errors.As(err, &u)
}
