package oipgrpc

import (
	"errors"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"context"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/edge/modelserver"
)

// reader steps through the fields of a message.
type reader struct {
	rest []byte
	err  error // why there is no next field, if not for the end

	number protowire.Number
	kind   protowire.Type
	value  []byte // of BytesType and the fixed types
	varint uint64 // of VarintType
}

// next reads the next field; false at the end and after an error.
func (r *reader) next() bool {
	if len(r.rest) == 0 || r.err != nil {
		return false
	}
	number, kind, n := protowire.ConsumeTag(r.rest)
	if number > protowire.MaxValidNumber {
		n = -1
	}
	if n >= 0 {
		r.rest, r.number, r.kind = r.rest[n:], number, kind
		switch kind {
		case protowire.BytesType:
			r.value, n = protowire.ConsumeBytes(r.rest)
		case protowire.VarintType:
			r.varint, n = protowire.ConsumeVarint(r.rest)
		default:
			if n = protowire.ConsumeFieldValue(number, kind, r.rest); n >= 0 {
				r.value = r.rest[:n]
			}
		}
	}
	if n < 0 {
		r.err = malformed(protowire.ParseError(n))
		return false
	}
	r.rest = r.rest[n:]
	return true
}

// text is the value as a string, which must be UTF-8.
func (r *reader) text() (string, error) {
	if !utf8.Valid(r.value) {
		return "", malformed(errors.New("a string is not UTF-8"))
	}
	return string(r.value), nil
}

// malformed is the error for a message that is none.
func malformed(err error) error {
	if _, ok := errors.AsType[*tensor.Error](err); ok {
		return err
	}
	return tensor.Errorf(tensor.KindInvalid, "the message is malformed: %v", err)
}

// codec reads and writes the messages of inference itself, and leaves the
// others to grpc's own.
type codec struct{ encoding.CodecV2 }

// Unmarshal reads data. An inferRequest keeps what is wrong with it, so that
// its handler can answer in the protocol's terms: an error here is INTERNAL.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*inferRequest)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	whole := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer whole.Free()
	in.err = in.decode(whole.ReadOnlyData())
	return nil
}

// Marshal gives v's bytes.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if out, ok := v.(*inferResponse); ok {
		return out.parts, nil
	}
	return c.CodecV2.Marshal(v)
}

// codeOf maps an HTTP status: the first four as MLServer does, the others as
// clients know to retry.
var codeOf = map[int]codes.Code{
	http.StatusBadRequest:            codes.InvalidArgument,
	http.StatusNotFound:              codes.NotFound,
	http.StatusForbidden:             codes.PermissionDenied,
	http.StatusConflict:              codes.AlreadyExists,
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
