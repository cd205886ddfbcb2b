package dispatch

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/admission"
)

// Request is what admission needs to know of a request. Everything but what
// routes it may be left out.
type Request struct {
	// To is where the request goes if somebody has settled that already; zero
	// has Host, the HTTPRoutes and Model decide.
	To   routing.Ref
	Host string // of the request; a port is ignored
	Path string // of its URL, unescaped; it, RawQuery and Method are for HTTPRoutes alone
	// RawQuery is the URL's without the question mark.
	RawQuery, Method string
	// GRPC: it is a call over gRPC, Path is "/service/method".
	GRPC bool
	// RawPath is the URL's, and Secure that it asks for TLS: for redirects.
	RawPath string
	Secure  bool
	// Header gives the first value of a header by its canonical name, "" when
	// there is none; nil means the request has no headers.
	Header func(name string) string
	Model  string // as the request names it; may be empty if Host decides
	// Namespaces are the only ones there are for the request: names and hosts of
	// others are not found. None means all.
	Namespaces []string
	// Protocol is whose call it is; "" for one that servers of any may answer.
	Protocol service.Protocol
	// Explain: it asks for an explanation, which the service's explainer answers where
	// there is one.
	Explain bool
	// Bytes is how much body the request holds in memory while it waits.
	Bytes int64
	// Prompt is the prompt as raw bytes of the body, in order (system, tools,
	// messages, prompt or input), to find the replica that has computed most
	// of it before. It is only read within Admit.
	Prompt [][]byte
	// Messages is the raw JSON of a chat's messages, to find the pictures, sounds and
	// videos that encoders may compute. It is only read within Admit.
	Messages []byte
	// CacheSalt keeps prompts apart that would otherwise share what replicas
	// remember of them.
	CacheSalt string
	// MaxTokens bounds the answer; 0 when the request states no bound.
	MaxTokens int64
	// Objective names the InferenceObjective that gives the priority
	// (x-llm-d-inference-objective), FairnessID whose turn the request is
	// among those of its priority (x-llm-d-inference-fairness-id).
	Objective  string
	FairnessID string
	// Latency is how long the answer may take; zero has Header and the routing objects
	// say so.
	Latency routing.LatencyTarget
	// Session is a key whose requests are to meet the same replica while that
	// can take them; "" for none.
	Session string
	// Subset are the addresses the request may go to; nil for any. They must
	// not change until Done.
	Subset []string
	// May reports whether the request may use the service or shared pool it is
	// routed to; its error is Admit's. nil allows every one.
	May func(service.Key) error
	// Asker asks the pool's External picker, where it has one. With nil the
	// dispatcher itself picks.
	Asker Asker
	// Idempotent reports that it makes no difference how often a replica does the
	// request. Of others a failure after they were sent is repeated once.
	Idempotent bool
	// Copy: nobody waits for the answer. The request goes where a place is free now, or
	// nowhere: it does not wait, and nobody is woken for it.
	Copy bool
	// Deadline is when the request has no use any more; zero for never. It
	// shortens the wait and nothing else.
	Deadline time.Time
	// Waiting is called by the goroutine that waits in Admit or Grant.Retry: when
	// the request begins to wait, and again after the time that it returns, while
	// the request waits; 0 is never. It may be nil.
	Waiting func(Wait) time.Duration
}

// Outcome is how a request ended.
type Outcome struct {
	// Failed is the replica's failure after its answer began; nil when it
	// answered, whatever the answer, and when the client left.
	Failed error
	// Usage is what the answer says it has cost; zero when it has none.
	Usage Usage
	// Tokens are the answer's, estimated, where Usage does not tell them.
	Tokens int64
}

// Usage counts the tokens of one request.
type Usage struct {
	Prompt     int64 `json:"prompt"`     // in the prompt
	Completion int64 `json:"completion"` // in the answer
	Cached     int64 `json:"cached"`     // of Prompt, found in the replica's prefix cache
}

// Why a request was not admitted, to be tested with errors.Is. Beside these
// Admit returns the errors of package route and of the request's context.
var (
	// ErrBusy: the queue is full, or the pool is saturated and the
	// request is one that can be shed (429).
	ErrBusy = errors.New("too many requests")
	// ErrUnavailable: no replica could take the request in time, or none will
	// (503).
	ErrUnavailable = errors.New("no replica is available")
)

// Error is why a request was not admitted or not moved to another replica.
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

func unavailable(pool, message string, cause error) *Error {
	return &Error{Kind: ErrUnavailable, Pool: pool, Message: message, Cause: cause}
}

// busy is the error of a request that may succeed after a while.
func busy(pool, message string, why admission.Reason, after time.Duration) *Error {
	return &Error{Kind: ErrBusy, Pool: pool, Message: fmt.Sprintf("%s; try again in %v", message, after), Reason: why, RetryAfter: after}
}

// shed is the error of a request that the queue did not take or gave up.
func shed(pool, message string, why admission.Reason, after time.Duration) *Error {
	if why != admission.Overdue {
		return busy(pool, message, why, after)
	}
	err := unavailable(pool, message, nil)
	err.Reason = why
	return err
}

// notAllowed reports that g may go to none of the pool's endpoints.
func notAllowed(g *Grant) *Error {
	return unavailable(g.pool.id, fmt.Sprintf("none of the %d addresses the request may go to is an endpoint of the pool", len(g.subset)), nil)
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

// ProtocolError reports that a service speaks other protocols than a request's.
type ProtocolError struct {
	Key    service.Key
	Speaks []service.Protocol
}

// Error names the calls that the service answers.
func (e *ProtocolError) Error() string { return e.Explain(e.Key.String()) }

// Explain is Error with the name that requests give the service.
func (e *ProtocolError) Explain(name string) string {
	speaks, calls := make([]string, len(e.Speaks)), make([]string, len(e.Speaks))
	for i, p := range e.Speaks {
		speaks[i], calls[i] = titles[p], example(p, name)
	}
	return fmt.Sprintf("%s does not answer this call: it speaks %s; ask it by %s", name, enumerate(speaks, "and"), enumerate(calls, "or"))
}

var titles = map[service.Protocol]string{
	service.ProtocolV1: "KServe v1", service.ProtocolV2: "the Open Inference Protocol",
	service.ProtocolGRPCV1: "TensorFlow Serving's gRPC", service.ProtocolGRPCV2: "the Open Inference Protocol over gRPC",
	service.ProtocolOpenAI: "OpenAI's API", service.ProtocolCohere: "Cohere's API",
}

// example is a call of p for a model.
func example(p service.Protocol, model string) string {
	switch p {
	case service.ProtocolV1:
		return "POST /v1/models/" + url.PathEscape(model) + ":predict"
	case service.ProtocolV2:
		return "POST /v2/models/" + url.PathEscape(model) + "/infer"
	case service.ProtocolGRPCV1:
		return "gRPC's Predict"
	case service.ProtocolGRPCV2:
		return "gRPC's ModelInfer"
	case service.ProtocolCohere:
		return "POST /v2/chat with the model in the body"
	case service.ProtocolOpenAI:
	}
	return "POST /v1/chat/completions, or another call that its engine has, with the model in the body"
}

// enumerate is "a, b and c".
func enumerate(words []string, last string) string {
	if n := len(words) - 1; n > 0 {
		return strings.Join(words[:n], ", ") + " " + last + " " + words[n]
	}
	return strings.Join(words, "")
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

// IsUnsent reports whether err is marked so.
func IsUnsent(err error) bool {
	var u unsentError
	return errors.As(err, &u)
}
