package oipgrpc

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/edge/modelserver"
)

// codeOf maps an HTTP status: the first four as MLServer does, the others as
// clients know to retry.
var codeOf = map[int]codes.Code{
	http.StatusBadRequest:            codes.InvalidArgument,
	http.StatusNotFound:              codes.NotFound,
	http.StatusUnprocessableEntity:   codes.FailedPrecondition,
	http.StatusInternalServerError:   codes.Internal,
	http.StatusRequestEntityTooLarge: codes.ResourceExhausted,
	http.StatusTooManyRequests:       codes.ResourceExhausted,
	http.StatusServiceUnavailable:    codes.Unavailable,
	http.StatusNotImplemented:        codes.Unimplemented,
	http.StatusGatewayTimeout:        codes.DeadlineExceeded,
}

// statusOf is the status of a call that ended with err. A fault of a deadline
// or a cancelled call is that, whatever the model made of it.
func statusOf(ctx context.Context, err error) *status.Status {
	if s, ok := status.FromError(err); ok { // grpc's own
		return s
	}
	code := codes.Unknown
	_, request := errors.AsType[*tensor.Error](err)
	switch {
	case request: // the request's fault, however long it took
		code = codeOf[modelserver.StatusOf(err)]
	case ctx.Err() != nil:
		code = status.FromContextError(ctx.Err()).Code()
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	default:
		if known, ok := codeOf[modelserver.StatusOf(err)]; ok {
			code = known
		}
	}
	return status.New(code, bounded(err.Error()))
}

// maxErrorBytes bounds a message, which may repeat what a client sent: clients
// take 8 KiB of trailers, where a byte may be written as three.
const maxErrorBytes = 2048

// bounded cuts a message to maxErrorBytes, between two characters.
func bounded(message string) string {
	return strings.ToValidUTF8(excerpt.Of(message, maxErrorBytes), "\ufffd")
}
