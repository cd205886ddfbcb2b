package gateway

import (
	"errors"
	"fmt"
	"net/http"

	"roundhouse.dev/roundhouse/internal/decide/route"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// statusClientGone is what is counted for a request whose client left. It is
// never sent.
const statusClientGone = 499

// refuse answers an error of routing or admission.
func (x *exchange) refuse(err error) {
	var notFound *route.NotFoundError
	var ambiguous *route.AmbiguousError
	var unnamed *route.MissingModelError
	var refused *dispatch.Error
	var unspoken *dispatch.ProtocolError
	var forbidden *forbiddenError
	var picker *PickerRefusal
	var body bodyFailure
	switch {
	case x.r.Context().Err() != nil:
		x.code = statusClientGone
	case errors.As(err, &body):
		x.refuseBody(body.error)
	case errors.As(err, &picker):
		x.refusedByPicker(picker)
	case errors.As(err, &notFound), errors.As(err, &ambiguous):
		message := err.Error()
		if x.limited() { // it may see neither what the error lists nor which other models there are
			if !x.pass.Allows(x.model) {
				x.refuse(&forbiddenError{x.pass.Key(), x.model})
				return
			}
			message = fmt.Sprintf("model %q is not served here by this name", x.model)
		}
		x.failWith(http.StatusNotFound, message, "model", "model_not_found")
	case errors.As(err, &unspoken):
		name := x.gw.dispatch.Name(unspoken.Key.Stable(), x.pass.Namespaces())
		x.failWith(http.StatusNotFound, unspoken.Explain(name), "", "protocol_not_spoken")
	case errors.As(err, &unnamed):
		x.failWith(http.StatusBadRequest, err.Error(), "model", "")
	case errors.As(err, &forbidden):
		x.gw.metrics.Refused("model")
		x.failWith(http.StatusForbidden, err.Error(), "model", "model_not_allowed")
	case errors.As(err, &refused):
		if refused.RetryAfter > 0 {
			x.retryAfter(refused.RetryAfter)
		}
		if errors.Is(err, dispatch.ErrBusy) {
			x.failWith(http.StatusTooManyRequests, err.Error(), "", "queue_full")
			return
		}
		x.failWith(http.StatusServiceUnavailable, err.Error(), "", "model_unavailable")
	default:
		x.fail(http.StatusInternalServerError, err.Error())
	}
}

// refuseBody answers a body that could not be read.
func (x *exchange) refuseBody(err error) {
	var large *http.MaxBytesError
	var timeout interface{ Timeout() bool }
	switch {
	case errors.As(err, &timeout) && timeout.Timeout(): // before the context, which the server ends too
		x.w.Header().Set("Connection", "close")
		x.fail(http.StatusRequestTimeout, fmt.Sprintf("the body came too slowly: nothing for %v, or less than %d bytes a second", x.gw.cfg.ClientTimeout, leastRate))
	case x.r.Context().Err() != nil:
		x.code = statusClientGone
	case errors.As(err, &large):
		x.w.Header().Set("Connection", "close")
		x.fail(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d bytes, the most this gateway takes", large.Limit))
	case errors.Is(err, errNoMemory), errors.Is(err, errNoShare):
		x.w.Header().Set("Retry-After", "1")
		x.fail(http.StatusTooManyRequests, err.Error())
	default:
		x.fail(http.StatusBadRequest, "the body could not be read: "+err.Error())
	}
}

// refusedByPicker gives the client the picker's own answer.
func (x *exchange) refusedByPicker(own *PickerRefusal) {
	to := x.w.Header()
	for name, values := range own.Header {
		to[name] = values
	}
	if len(own.Body) == 0 && to.Get("Content-Type") == "" && own.Status >= http.StatusBadRequest {
		x.failWith(own.Status, "the pool's endpoint picker refused the request", "", "endpoint_picker")
		return
	}
	x.write(own.Status, own.Body)
}
