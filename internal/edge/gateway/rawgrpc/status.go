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
	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/keys"
)

// maxErrorBytes bounds a message, which may quote a client or a replica: clients
// accept 8 KiB of trailers, and there a byte may be encoded as three.
const maxErrorBytes = 2048

// errorf is a status with a bounded message.
func errorf(code codes.Code, format string, args ...any) error {
	message := fmt.Sprintf(format, args...)
	if len(message) > maxErrorBytes {
		message = message[:maxErrorBytes] + "…"
	}
	return status.Error(code, strings.ToValidUTF8(message, "\ufffd"))
}

// errSlow is the cause of a context that ended because the replica, or in a stream
// both sides, sent nothing for too long.
var errSlow = errors.New("the replica kept silent for too long")

// codesOf maps reasons of refusals to status codes.
var codesOf = map[ingress.Reason]codes.Code{ingress.Internal: codes.Internal, ingress.NoKey: codes.Unauthenticated, ingress.BadKey: codes.Unauthenticated,
	ingress.OverLimit: codes.ResourceExhausted, ingress.Forbidden: codes.PermissionDenied, ingress.Unnamed: codes.InvalidArgument, ingress.NotFound: codes.NotFound,
	ingress.OtherAPI: codes.Unimplemented, ingress.QueueFull: codes.ResourceExhausted, ingress.Unavailable: codes.Unavailable, ingress.NoBackend: codes.Unavailable}

// refuse returns the status of an error of routing or admission, and the trailers
// that tell when to ask again.
func (s *Server) refuse(ctx context.Context, pass *keys.Pass, model string, err error) (metadata.MD, error) {
	r := ingress.Refuse(ctx, s.dispatch, pass, model, err)
	if r == nil {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	var trailer metadata.MD
	if r.RetryAfter > 0 {
		trailer = metadata.Pairs(keyRetryAfter, ingress.Seconds(r.RetryAfter))
	}
	return trailer, errorf(codesOf[r.Reason], "%s", r.Message)
}

// httpStatus returns the HTTP status for a code, for the access log.
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

// resultOf returns what a replica's own status means for its circuit breaker.
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

// full returns the status of a call that exceeds the memory budget.
func full() (metadata.MD, error) { return later(), errNoMemory }

// later is the trailer of a call that may be sent again.
func later() metadata.MD { return metadata.Pairs(keyRetryAfter, "1") }

// upstreamError returns how a call to a replica ended: by the replica's own status,
// or because the replica failed; failed is then the error for dispatch. header,
// trailer and p come from the call.
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
