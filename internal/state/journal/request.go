package journal

import (
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/decide/latency"
)

// keptRequests is how many requests are kept, about 1 MB of them.
const keptRequests = 2000

// maxWord is how much of a client's word is kept, in bytes.
const maxWord = 256

// Request is one request to a model, when it has ended. It holds no secret.
type Request struct {
	Time      time.Time     // of its header
	ID, Trace string        // Trace is "" for none
	Key       string        // id of the API key
	Client    string        // address
	Method    string        // "gRPC" for calls
	Path      string        // without its query
	Model     string        // as the request names it
	Service   string        // a known service or ""
	Replica   string        // that answered
	Status    int           // of HTTP
	Queued    time.Duration // waited for a replica
	// FirstByte and Duration are since the request's header; FirstByte is 0 if none
	// came.
	FirstByte, Duration time.Duration
	Usage               *openai.Usage // nil when the answer does not report it
	Received, Sent      int64         // bytes of the bodies
	Tries               int
	Retried             string // why the last failed try did
	Cut                 string // why the replica broke off its answer
	// Reason is why the gateway answered with an error of its own, "" where it did not;
	// OverLimit: because the API key is over its limits.
	Reason    string
	OverLimit bool
	// Latency is what was predicted of the answer and what it took; nil where nothing was.
	Latency *latency.Outcome
	// Bodies are nil unless the service asks to keep them; [Requests.Bodies] reads them.
	Bodies *Bodies
}

// Failed reports whether the service did not answer a request that it should have: its
// status is that of a server's error, its answer was broken off, or there was no room for
// it, which is not its API key's fault.
func (r *Request) Failed() bool {
	return r.Status >= 500 || r.Cut != "" || r.Status == 429 && !r.OverLimit
}

// ClientError reports whether the request was refused for what its client did.
func (r *Request) ClientError() bool { return r.Status >= 400 && !r.Failed() }

// Rate is how many tokens a second the answer brought after its first byte; 0 where
// that is not known, as of an answer that came all at once.
func (r *Request) Rate() float64 {
	took := r.Duration - r.FirstByte
	if r.Usage == nil || r.FirstByte <= 0 || took <= r.Duration/100 || r.Usage.CompletionTokens < 2 {
		return 0
	}
	return float64(r.Usage.CompletionTokens-1) / took.Seconds()
}

// Requests keep the last requests, in memory.
type Requests struct {
	*Ring[Request]
	// Pace counts them by service.
	Pace   *Pace
	bodies bodyStore
}

// NewRequests makes an empty one.
func NewRequests() *Requests { return &Requests{Ring: NewRing[Request](keptRequests), Pace: NewPace()} }

// Bodies returns what is kept of a request's bodies; false where it has none.
func (r *Requests) Bodies(q *Request) (Bodies, bool) {
	if q.Bodies == nil {
		return Bodies{}, false
	}
	return r.bodies.get(q.Bodies), true
}

// Add adds a request, and owns its bodies then. Its words are copied and cut to 256
// bytes, so that neither a body nor a hostile header stays in memory.
func (r *Requests) Add(q Request) {
	for _, word := range []*string{&q.ID, &q.Trace, &q.Client, &q.Path, &q.Model, &q.Retried, &q.Cut, &q.Reason} {
		*word = strings.Clone((*word)[:min(len(*word), maxWord)])
	}
	if q.Bodies != nil {
		r.bodies.add(q.Bodies)
	}
	r.Pace.Count(&q)
	r.add(q)
}
