// Package observe makes the gateway's requests visible: usage, metrics, the access
// log and traces. A Record is filled as a request goes on; Write publishes it at the
// request's end. Nothing here blocks or fails a request.
package observe

import (
	"mime"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/edge/gateway/http1"
	"roundhouse.dev/roundhouse/internal/state/journal"
)

// Record is what is observed of one request. One goroutine owns it.
type Record struct {
	Begun     time.Time
	FirstByte time.Time // of the answer's body; zero while there is none
	Sent      int64     // bytes of the answer's body
	Tries     int
	Retried   string // why the last try that failed did
	Cut       string // why the replica broke off its answer
	// Operation is a value of OpenTelemetry's gen_ai.operation.name; "" when the
	// path names the model.
	Operation string
	// Keep keeps the bodies; nil keeps none.
	Keep *Kept
	Ending

	usage
	spans spans
}

// Kept are the bodies of a request, up to Most bytes of each.
type Kept struct {
	journal.Bodies
	Most int
}

// Ending is what is known of a request when it ends.
type Ending struct {
	ID        string
	Model     string // as the request names it
	Service   string // a known service or ""
	Provider  string // OpenTelemetry's gen_ai.provider.name
	Status    int
	MaxTokens int64 // that the answer may have; 0 when the request has no bound
}

// Trying notes that the request is about to be sent to a replica. It returns
// the trace context to send with it, "" for the request's own.
func (r *Record) Trying(method, address, replica string) (traceparent string) {
	r.Tries++
	return r.spans.startUpstream(method, address, replica, r.Tries-1)
}

// Failed notes that a try failed before its answer began.
func (r *Record) Failed(err error) { r.spans.endUpstream(0, err) }

// Answering notes that a replica's answer begins.
func (r *Record) Answering(status int, header []http1.Field) {
	r.spans.endUpstream(status, nil)
	if r.Operation != "" && status/100 == 2 {
		r.usage = readerOf(header)
	}
}

// Passing notes that b, a part of a replica's answer, is about to be sent to the
// client. b is not kept.
func (r *Record) Passing(b []byte) {
	if r.Sent == 0 && len(b) > 0 {
		r.FirstByte = time.Now()
	}
	r.Sent += int64(len(b))
	if r.Keep != nil {
		r.Keep.Answer.Add(b, r.Keep.Most)
	}
	switch {
	case r.stream != nil:
		_, _ = r.stream.Write(b) // never fails
	case r.whole != nil:
		_, _ = r.whole.Write(b)
	}
}

// usage reads the tokens that an answer reports, if it can be read.
type usage struct {
	stream *openai.StreamReader
	whole  *openai.BodyReader
	ended  bool // Finish of the stream was called
}

// readerOf finds how an answer with the header is read.
func readerOf(header []http1.Field) usage {
	var kind string
	for _, f := range header {
		switch f.Name {
		case "Content-Encoding":
			return usage{} // not to be read
		case "Content-Type":
			kind = f.Value
		}
	}
	t, err := kind, error(nil)
	if kind != "application/json" { // the usual one, which need not be parsed
		t, _, err = mime.ParseMediaType(kind)
	}
	switch {
	case err != nil:
	case t == "text/event-stream":
		return usage{stream: &openai.StreamReader{}}
	case t == "application/json" || strings.HasSuffix(t, "+json"):
		return usage{whole: &openai.BodyReader{}}
	}
	return usage{}
}

// Usage is what the answer reports; ok is false when it reports nothing.
func (u *usage) Usage() (cost openai.Usage, ok bool) {
	switch {
	case u.stream != nil:
		if !u.ended {
			u.stream.Finish()
			u.ended = true
		}
		return u.stream.Usage()
	case u.whole != nil:
		return u.whole.Usage()
	}
	return openai.Usage{}, false
}

// Events is how many events with a part of the answer a stream had, of which there is about one a
// token; 0 for an answer that is no stream.
func (u *usage) Events() int64 {
	if u.stream == nil {
		return 0
	}
	return u.stream.Events()
}

// BytesPerToken estimates a prompt's tokens until its answer reports them.
const BytesPerToken = 4

// Cost is how many tokens the request has used. Where the answer does not report them, it
// is estimated: the prompt by its length, and of a stream one token an event.
func (r *Record) Cost(promptBytes int) int64 {
	if u, known := r.Usage(); known {
		return u.TotalTokens
	}
	if r.Status/100 != 2 || r.Operation == "" {
		return 0
	}
	tokens := int64(promptBytes / BytesPerToken)
	if r.stream != nil {
		tokens += r.stream.Events()
	}
	return tokens
}

// Write counts a request that has ended, ends its trace and tells the sinks of it: e
// is what the record does not know of it.
func Write(r *Record, m *Metrics, sinks Sinks, e journal.Request, now time.Time) {
	u, known := r.Usage()
	m.observe(r, u, known, now)
	r.endTrace(u, known)
	if !sinks.Any() {
		return
	}
	e.Time, e.ID, e.Model, e.Service, e.Status, e.Duration = r.Begun, r.ID, r.Model, r.Service, r.Status, now.Sub(r.Begun)
	e.Sent, e.Tries, e.Retried, e.Cut = r.Sent, r.Tries, r.Retried, r.Cut
	if r.Keep != nil {
		e.Bodies = &r.Keep.Bodies
	}
	if !r.FirstByte.IsZero() {
		e.FirstByte = r.FirstByte.Sub(r.Begun)
	}
	if known {
		cost := u // u stays on the stack where nothing is told
		e.Usage = &cost
	}
	sinks.Write(e)
}
