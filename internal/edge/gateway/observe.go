package gateway

import (
	"cmp"
	"net"
	"time"

	"roundhouse.dev/roundhouse/internal/core/orca"
	"roundhouse.dev/roundhouse/internal/edge/gateway/http1"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// sending prepares a try: the granted replica is told who computes the prompt
// and of its own trace context.
func (x *exchange) sending() {
	x.namePrefill()
	if parent := x.seen.Trying(x.r.Method, x.grant.Address(), x.grant.Replica()); parent != "" {
		x.fields = x.fields[:0]
		x.r.Header[observe.HeaderTraceparent] = []string{parent}
	}
}

// failed notes that the try failed before its answer began, for the replica or
// because the client left.
func (x *exchange) failed(err error) {
	if x.r.Context().Err() == nil && x.body.clientError() == nil {
		x.seen.Retried = err.Error()
	}
	x.seen.Failed(err)
}

// hear passes on what a replica says of its load in its answer's header, which
// clients get as well.
func hear(heard func(string, orca.Report), replica string, fields []http1.Field) {
	if heard == nil || !named(fields, orca.Header) && !named(fields, orca.BinaryHeader) {
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
		heard(replica, report)
	}
}

// outcome is the request's for the dispatcher.
func outcome(r *observe.Record) dispatch.Outcome {
	u, _ := r.Usage()
	return dispatch.Outcome{Usage: dispatch.Usage{Prompt: u.PromptTokens, Completion: u.CompletionTokens, Cached: u.CachedTokens}}
}

// settle writes what was observed of the request. It is the exchange's last
// step.
func (x *exchange) settle() {
	defer x.gw.running.Add(-1)
	x.seen.Ending = observe.Ending{ID: x.id, Model: x.model, Service: x.service, Provider: x.call.Surface.Provider(), Status: x.code}
	if x.parsed != nil {
		x.seen.MaxTokens = x.parsed.MaxTokens
	}
	x.pass.Leave(x.seen.Cost(length(x.prompt)))
	var e observe.Entry
	if x.gw.cfg.AccessLog != nil {
		e = x.entry()
	}
	observe.Write(&x.seen, x.gw.metrics, x.gw.cfg.AccessLog, e, time.Now())
}

// entry is what the access log tells of the request beside what was observed.
func (x *exchange) entry() observe.Entry {
	e := observe.Entry{Key: cmp.Or(x.pass.Key(), x.refusedKey), Method: x.r.Method, Path: x.r.URL.EscapedPath(),
		Received: max(x.body.length, int64(len(x.body.head))), Trace: x.seen.TraceID(x.r.Header)}
	e.Client, _, _ = net.SplitHostPort(x.r.RemoteAddr)
	if x.grant != nil {
		e.Replica, e.Queued = x.grant.Replica(), x.grant.Waited()
	}
	return e
}

// length is the parts' together, in bytes.
func length(parts [][]byte) int {
	n := 0
	for _, part := range parts {
		n += len(part)
	}
	return n
}
