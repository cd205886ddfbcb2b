package gateway

import (
	"mime"
	"net"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/core/orca"
	"roundhouse.dev/roundhouse/internal/edge/gateway/http1"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// What the forwarding tells of a request as it goes: sending and failed are
// called for every try, then answering, and passed for every part of the
// answer. They never block and never fail; they are the only way that usage,
// metrics, the access log and traces learn of an upstream.

// observation is what is known of an exchange besides what forwarding needs.
type observation struct {
	begun     time.Time
	firstByte time.Time // of the answer's body; zero while there is none
	sent      int64     // bytes of the answer's body
	tries     int
	retried   string // why the last try that failed did
	cut       string // why the replica broke off its answer
	operation string // a value of operations; "" when the path names the model
	key       string // id of a key that was refused
	spans     spans

	// What reads the answer's usage, if anything does.
	stream *openai.StreamReader
	whole  *openai.BodyReader
	ended  bool // the stream was told that it ended
}

// sending says that the request is about to be sent to the granted replica.
func (x *exchange) sending() {
	x.seen.tries++
	x.namePrefill()
	x.startUpstream()
}

// failed says that the try failed before its answer began, for the replica or
// because the client left.
func (x *exchange) failed(err error) {
	if x.r.Context().Err() == nil && x.body.clientError() == nil {
		x.seen.retried = err.Error()
	}
	x.seen.spans.endUpstream(0, err)
}

// answering says that a replica's answer begins. Its header is passed on
// afterwards.
func (x *exchange) answering(in *incoming) {
	x.seen.spans.endUpstream(in.status, nil)
	if x.gw.cfg.Heard != nil {
		x.hear(in.fields)
	}
	x.ownCORS(in)
	if x.seen.operation == "" || in.status/100 != 2 {
		return
	}
	var kind string
	for _, f := range in.fields {
		switch f.Name {
		case "Content-Encoding":
			return // not to be read
		case "Content-Type":
			kind = f.Value
		}
	}
	t, err := kind, error(nil)
	if kind != typeJSON {
		t, _, err = mime.ParseMediaType(kind)
	}
	switch {
	case err != nil:
	case t == "text/event-stream":
		x.seen.stream = &openai.StreamReader{}
	case t == "application/json" || strings.HasSuffix(t, "+json"):
		x.seen.whole = &openai.BodyReader{}
	}
}

// hear passes on what a replica says of its load in its answer's header, which
// clients get as well.
func (x *exchange) hear(fields []http1.Field) {
	if !named(fields, orca.Header) && !named(fields, orca.BinaryHeader) {
		return
	}
	report, ok := orca.Parse(func(name string) string {
		for _, f := range fields {
			if f.Name == name {
				return f.Value
			}
		}
		return ""
	})
	if ok {
		x.gw.cfg.Heard(x.grant.Replica(), report)
	}
}

// passed says that b, a part of a replica's answer, is about to be sent to the
// client. b is not kept.
func (x *exchange) passed(b []byte) {
	if x.seen.sent == 0 && len(b) > 0 {
		x.seen.firstByte = time.Now()
	}
	x.seen.sent += int64(len(b))
	switch {
	case x.seen.stream != nil:
		_, _ = x.seen.stream.Write(b) // never fails
	case x.seen.whole != nil:
		_, _ = x.seen.whole.Write(b)
	}
}

// usage is what the answer says that it cost; ok is false when it does not
// say.
func (x *exchange) usage() (u openai.Usage, ok bool) {
	switch {
	case x.seen.stream != nil:
		if !x.seen.ended {
			x.seen.stream.Finish()
			x.seen.ended = true
		}
		return x.seen.stream.Usage()
	case x.seen.whole != nil:
		return x.seen.whole.Usage()
	}
	return openai.Usage{}, false
}

// outcome is the request's for the dispatcher.
func (x *exchange) outcome() dispatch.Outcome {
	u, _ := x.usage()
	return dispatch.Outcome{Usage: dispatch.Usage{Prompt: u.PromptTokens, Completion: u.CompletionTokens, Cached: u.CachedTokens}}
}

// estimate is what a request without stated usage is taken to have cost: its
// prompt by its length, and of a stream one token an event.
func (x *exchange) estimate() int64 {
	if x.code/100 != 2 || x.seen.operation == "" {
		return 0
	}
	n := 0
	for _, part := range x.prompt {
		n += len(part)
	}
	tokens := int64(n / bytesPerToken)
	if x.seen.stream != nil {
		tokens += x.seen.stream.Events()
	}
	return tokens
}

// settle ends what watches the request. It is the exchange's last step.
func (x *exchange) settle() {
	defer x.gw.running.Add(-1)
	now := time.Now()
	u, known := x.usage()
	cost := u.TotalTokens
	if !known {
		cost = x.estimate()
	}
	x.pass.Leave(cost)
	x.gw.metrics.observe(x, u, known, now)
	x.endSpans(u, known)
	if x.gw.cfg.AccessLog != nil {
		x.gw.cfg.AccessLog.Write(x.logged(u, known, now))
	}
}

// logged is the request's entry in the access log.
func (x *exchange) logged(u openai.Usage, known bool, now time.Time) Entry {
	e := Entry{Time: x.seen.begun, Request: x.id, Key: x.pass.Key(), Method: x.r.Method, Path: x.r.URL.EscapedPath(),
		Model: x.model, Service: x.service, Status: x.code, Duration: now.Sub(x.seen.begun),
		Received: max(x.body.length, int64(len(x.body.head))), Sent: x.seen.sent, Tries: x.seen.tries, Retried: x.seen.retried, Cut: x.seen.cut}
	if e.Key == "" {
		e.Key = x.seen.key
	}
	e.Trace = x.traceID()
	e.Client, _, _ = net.SplitHostPort(x.r.RemoteAddr)
	if x.grant != nil {
		e.Replica, e.Queued = x.grant.Replica(), x.grant.Waited()
	}
	if !x.seen.firstByte.IsZero() {
		e.FirstByte = x.seen.firstByte.Sub(x.seen.begun)
	}
	if known {
		e.Usage = &u
	}
	return e
}
