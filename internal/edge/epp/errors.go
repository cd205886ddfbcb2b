package epp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
)

// Reason is why a picker gave no answer that can be followed.
type Reason string

// The reasons.
const (
	Missing     Reason = "missing"          // there is no such Service, or nothing of it is ready
	Unreachable Reason = "unreachable"      // it cannot be connected to, or hung up
	Timeout     Reason = "timeout"          // it was silent
	Broken      Reason = "broken"           // it does not speak the protocol
	NoEndpoint  Reason = "no_endpoint"      // it named none
	Foreign     Reason = "foreign_endpoint" // what it named is not the pool's, or not ready
	TooLarge    Reason = "too_large"        // its answer passes a bound
	Overloaded  Reason = "overloaded"       // as many requests as may are under way with pickers
)

// Failure is a picker that gave no answer that can be followed: what becomes of
// the request is the pool's failure mode to say.
type Failure struct {
	Reason  Reason
	Message string // a line that names the picker
}

// Error is the message.
func (f *Failure) Error() string { return f.Message }

// Immediate is a picker's own answer to a request, in the endpoint's place. It
// is an error.
type Immediate struct {
	Status int
	Header http.Header
	Body   []byte
}

// Error returns which status it is.
func (m *Immediate) Error() string {
	return fmt.Sprintf("the endpoint picker answered %d itself", m.Status)
}

func (p *peer) failure(why Reason, format string, args ...any) *Failure {
	return &Failure{why, "endpoint picker " + p.name + " " + fmt.Sprintf(format, args...)}
}

// lost is what the end of a stream means, before the answer is whole.
func (p *peer) lost(ctx context.Context, err error) error {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errSilent):
		return p.failure(Timeout, "gave no answer in time")
	case cause != nil:
		return cause
	}
	st := status.Convert(err)
	switch st.Code() {
	case codes.OK, codes.Unknown: // io.EOF is Unknown: it ended the stream well, and too early
		if errors.Is(err, errEnded) || st.Code() == codes.OK {
			return p.failure(Broken, "ended the conversation before it named an endpoint")
		}
		return p.failure(Broken, "failed: %s", clip(st.Message()))
	case codes.Unavailable:
		hint := ""
		if strings.Contains(st.Message(), "first record does not look like a TLS handshake") {
			hint = ` (it does not speak TLS: give the port of its Service "appProtocol: kubernetes.io/h2c", or start it with --secure-serving)`
		}
		return p.failure(Unreachable, "cannot be reached: %s%s", clip(st.Message()), hint)
	case codes.ResourceExhausted:
		return p.failure(TooLarge, "sent too long a message, or takes no more requests: %s", clip(st.Message()))
	case codes.Unimplemented:
		return p.failure(Broken, "does not speak external processing: %s", clip(st.Message()))
	default:
		return p.failure(Broken, "failed: %s: %s", st.Code(), clip(st.Message()))
	}
}

var (
	// errSilent is the cause of a stream's end whose picker was too slow.
	errSilent = errors.New("epp: the time for an answer is over")
	// errEnded is a stream that its picker ended well.
	errEnded = errors.New("epp: the picker has ended the stream")
	// errClosed is the cause of the end of a stream that is not needed any more.
	errClosed = errors.New("epp: the request is over")
)

// clip keeps what others say short, and on one line.
func clip(s string) string {
	return excerpt.Of(strings.Join(strings.Fields(s), " "), 300)
}
