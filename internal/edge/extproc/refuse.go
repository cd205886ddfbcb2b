package extproc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	pb "roundhouse.dev/roundhouse/api/extproc"
	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/decide/route"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// refusal is an answer in the endpoint's place. It is an error.
type refusal struct {
	status     int
	message    string
	kind       string // OpenAI's type
	param      string
	code       string
	retryAfter time.Duration // 0: none
}

// Error is the message.
func (r *refusal) Error() string { return r.message }

// errUnseen is a request whose model is to be read or replaced in a body that
// is not sent here.
var errUnseen = &refusal{http.StatusInternalServerError,
	"request_body_mode is NONE, and the pool goes by the models that bodies name: set FULL_DUPLEX_STREAMED or BUFFERED in the filter's processing_mode",
	openai.TypeServer, "", "", 0}

func tooLarge(limit int64) error {
	return &refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("body is longer than %d bytes", limit), openai.TypeInvalidRequest, "", "request_too_large", 0}
}

func tooMany(what string) error {
	return &refusal{http.StatusTooManyRequests, "too many " + what + "; try again", openai.TypeRateLimit, "", "overloaded", time.Second}
}

// refusalOf maps an error of a body, of routing or of admission.
func refusalOf(err error) *refusal {
	var own *refusal
	var body *openai.BodyError
	var notFound *route.NotFoundError
	var ambiguous *route.AmbiguousError
	var missing *route.MissingModelError
	var refused *dispatch.Error
	message := err.Error()
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &body):
		param, code := body.Code()
		return &refusal{http.StatusBadRequest, message, openai.TypeInvalidRequest, param, code, 0}
	case errors.As(err, &missing):
		return &refusal{http.StatusBadRequest, message, openai.TypeInvalidRequest, "model", "missing_required_parameter", 0}
	case errors.As(err, &notFound), errors.As(err, &ambiguous):
		return &refusal{http.StatusNotFound, message, openai.TypeNotFound, "model", "model_not_found", 0}
	case errors.As(err, &refused) && errors.Is(err, dispatch.ErrBusy):
		return &refusal{http.StatusTooManyRequests, message, openai.TypeRateLimit, "", "queue_full", refused.RetryAfter}
	case errors.As(err, &refused):
		return &refusal{http.StatusServiceUnavailable, message, openai.TypeServer, "", "model_unavailable", refused.RetryAfter}
	case errors.Is(err, context.DeadlineExceeded):
		return &refusal{http.StatusServiceUnavailable, "no endpoint was free in time", openai.TypeServer, "", "model_unavailable", time.Second}
	}
	return &refusal{http.StatusInternalServerError, message, openai.TypeServer, "", "", 0}
}

// response has Envoy answer.
func (r *refusal) response() *pb.ProcessingResponse {
	set := []*pb.HeaderValueOption{header("content-type", "application/json")}
	if r.retryAfter > 0 {
		set = append(set, header("retry-after", strconv.Itoa(int(math.Ceil(r.retryAfter.Seconds())))))
	}
	code := r.code
	if code == "" {
		code = "refused"
	}
	return &pb.ProcessingResponse{Response: &pb.ProcessingResponse_ImmediateResponse{ImmediateResponse: &pb.ImmediateResponse{
		Status:  &pb.HttpStatus{Code: int32(r.status)},
		Headers: &pb.HeaderMutation{SetHeaders: set},
		Body:    openai.ErrorJSON(r.message, r.kind, r.param, r.code),
		Details: "endpoint_picker_" + code,
	}}}
}
