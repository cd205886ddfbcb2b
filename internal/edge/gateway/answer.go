package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"roundhouse.dev/roundhouse/internal/decide/route"
	"roundhouse.dev/roundhouse/internal/edge/gateway/surface"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// statusClientGone is what is counted for a request whose client left. It is
// never sent.
const statusClientGone = 499

func (x *exchange) plain(text string) {
	x.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	x.write(http.StatusOK, []byte(text))
}

// reply answers v as JSON.
func (x *exchange) reply(status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		x.fail(http.StatusInternalServerError, err.Error())
		return
	}
	x.w.Header().Set("Content-Type", "application/json")
	x.write(status, append(b, '\n'))
}

func (x *exchange) write(status int, body []byte) {
	x.code = status
	x.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	x.w.WriteHeader(status)
	_, _ = x.w.Write(body) // the client is gone; there is nobody to tell
}

// fail answers with an error in the surface's form.
func (x *exchange) fail(status int, message string) { x.failWith(status, message, "", "") }

func (x *exchange) failWith(status int, message, param, code string) {
	x.w.Header().Set("Content-Type", "application/json")
	x.write(status, surface.ErrorBody(x.call.Surface, status, message, param, code))
}

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
