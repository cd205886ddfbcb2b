package rawgrpc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"roundhouse.dev/roundhouse/internal/decide/breaker"
	"roundhouse.dev/roundhouse/internal/decide/route"
	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/keys"
)

// maxErrorBytes bounds a message, which may repeat what a client or a replica
// sent: clients take 8 KiB of trailers, where a byte may be written as three.
const maxErrorBytes = 2048

// errorf is a status with a bounded message.
func errorf(code codes.Code, format string, args ...any) error {
	message := fmt.Sprintf(format, args...)
	if len(message) > maxErrorBytes {
		message = message[:maxErrorBytes] + "…"
	}
	return status.Error(code, strings.ToValidUTF8(message, "\ufffd"))
}

// errSlow is the cause of a context that ended because nothing came from the
// replica, or in a stream from either side, for too long.
var errSlow = errors.New("the replica kept silent for too long")

// refusal is the status of an error of routing or admission, with trailers
// that say when to ask again. Nothing is listed to a key that is not for all.
func refusal(ctx context.Context, pass *keys.Pass, err error) (metadata.MD, error) {
	var notFound *route.NotFoundError
	var ambiguous *route.AmbiguousError
	var unnamed *route.MissingModelError
	var refused *dispatch.Error
	switch {
	case ctx.Err() != nil:
		return nil, status.FromContextError(ctx.Err()).Err()
	case errors.As(err, &notFound) && len(pass.Models()) > 0 && !pass.Allows(notFound.Model):
		return nil, forbidden(pass, notFound.Model)
	case errors.As(err, &ambiguous) && len(pass.Models()) > 0 && !pass.Allows(ambiguous.Model):
		return nil, forbidden(pass, ambiguous.Model)
	case (errors.As(err, &notFound) || errors.As(err, &ambiguous)) && len(pass.Models()) > 0:
		return nil, errorf(codes.NotFound, "the model is not served here by this name")
	case errors.As(err, &notFound), errors.As(err, &ambiguous):
		return nil, errorf(codes.NotFound, "%v", err)
	case errors.As(err, &unnamed):
		return nil, errorf(codes.InvalidArgument, "%v", err)
	case errors.As(err, &refused):
		var later metadata.MD
		if refused.RetryAfter > 0 {
			later = metadata.Pairs(keyRetryAfter, ingress.Seconds(refused.RetryAfter))
		}
		if errors.Is(err, dispatch.ErrBusy) {
			return later, errorf(codes.ResourceExhausted, "%v", err)
		}
		return later, errorf(codes.Unavailable, "%v", err)
	case status.Code(err) == codes.PermissionDenied: // of Request.May
		return nil, err
	default:
		return nil, errorf(codes.Internal, "%v", err)
	}
}

// httpStatus is a code as HTTP's surface would have said it, for the log.
func httpStatus(code codes.Code) int {
	switch code {
	case codes.OK:
		return http.StatusOK
	case codes.Canceled:
		return 499 // a client that left, as for HTTP
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
		return http.StatusBadRequest
	case codes.DeadlineExceeded:
		return http.StatusGatewayTimeout
	case codes.NotFound:
		return http.StatusNotFound
	case codes.AlreadyExists, codes.Aborted:
		return http.StatusConflict
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Unimplemented:
		return http.StatusNotImplemented
	case codes.Unavailable:
		return http.StatusServiceUnavailable
	default:
		return http.StatusInternalServerError
	}
}

// resultOf is what a replica's own status says of it.
func resultOf(code codes.Code) breaker.Result {
	switch code {
	case codes.Unavailable, codes.ResourceExhausted:
		return breaker.Busy
	case codes.Unauthenticated, codes.PermissionDenied, codes.NotFound:
		return breaker.Refused
	case codes.Internal, codes.Unknown, codes.DataLoss:
		return breaker.Failed
	default:
		return breaker.Answered
	}
}

// full is the answer when the budget has no room.
func full() (metadata.MD, error) {
	return metadata.Pairs(keyRetryAfter, "1"), errorf(codes.ResourceExhausted, "the gateway holds as many bytes of messages as it may")
}

// upstreamError tells how a call to a replica ended: by the replica's own
// status, or because the replica failed, which failed then says in dispatch's
// terms. header, trailer and p are what the call left.
func upstreamError(err error, header, trailer metadata.MD, p *peer.Peer) (failed error) {
	code := status.Code(err)
	switch {
	case len(trailer["content-type"]) > 0: // the status alone, as servers refuse
		return nil
	case code == codes.ResourceExhausted: // a message over our bound
		return nil
	case len(header) > 0:
		// The answer had begun. Servers that say UNAVAILABLE themselves by then
		// look like those that died; either is worth another replica.
		if code != codes.Unavailable || len(trailer) > 0 {
			return nil
		}
	}
	failed = errors.New(status.Convert(err).Message())
	if p.Addr == nil { // no connection was found for it
		return dispatch.Unsent(failed)
	}
	if code == codes.Unavailable { // the connection has ended
		return dispatch.Lost(failed)
	}
	return failed
}
