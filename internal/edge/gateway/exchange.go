package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/orca"
	"roundhouse.dev/roundhouse/internal/decide/route"
	"roundhouse.dev/roundhouse/internal/edge/gateway/http1"
	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/edge/gateway/rawgrpc"
	"roundhouse.dev/roundhouse/internal/edge/gateway/surface"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/journal"
	"roundhouse.dev/roundhouse/internal/state/keys"
)

// exchange is one request and its answer. One goroutine owns it.
type exchange struct {
	response
	gw     *Gateway
	req    request
	pass   *keys.Pass // of its API key; nil when none is needed
	picker picking
	proxy  proxy // its grant is nil until the request is admitted
	asked  dispatch.Request
	logged logged

	service    string // for metrics: a known service or ""
	seen       observe.Record
	refusedKey string // the id of a key that is over its limits
	graph      bool   // a graph's steps answer it
	stepTokens int64  // what those cost
}

// exchanges are reused: those that have ended, cleared, with the memory of their
// lists.
var exchanges = sync.Pool{New: func() any { return &exchange{} }}

func newExchange(g *Gateway, w http.ResponseWriter, r *http.Request) *exchange {
	// A chunked request may have had a Content-Length too, by which a proxy before
	// the gateway would have found another end (RFC 9112 6.1). net/http has dropped
	// it, so the connection ends after every one of them.
	if r.ProtoMajor == 1 && (g.leaving.Load() || len(r.TransferEncoding) > 0) {
		w.Header().Set("Connection", "close")
	}
	x := exchanges.Get().(*exchange)
	x.gw, x.req.r = g, r
	x.w, x.rc, x.timeout, x.head = w, *http.NewResponseController(w), g.cfg.ClientTimeout, r.Method == http.MethodHead
	x.seen.Begun = time.Now()
	x.req.id = observe.RequestID(r.Header.Get(observe.HeaderRequestID))
	w.Header().Set(observe.HeaderRequestID, x.req.id)
	g.running.Add(1)
	return x
}

// begin notes what the request's path means.
func (x *exchange) begin(call surface.Call, path string) {
	x.req.call, x.surface = call, call.Surface
	x.seen.StartTrace(x.gw.cfg.Tracer, x.req.r, path)
}

// end finishes the exchange, which must not be used afterwards. An exchange whose
// body may still be read by the goroutine that sends it is left to the garbage
// collector.
func (x *exchange) end() {
	x.finish()
	if x.req.body.long() || len(x.req.replaced) > http1.InlineBytes {
		return
	}
	clear(x.req.prompt)
	*x = exchange{req: request{fields: x.req.fields[:0], prompt: x.req.prompt[:0]}}
	exchanges.Put(x)
}

// finish gives back what the request held. It also runs when the handler
// aborts the connection.
func (x *exchange) finish() {
	if g := x.proxy.grant; g != nil {
		u, _ := x.seen.Usage()
		g.Done(dispatch.Outcome{Usage: dispatch.Usage{Prompt: u.PromptTokens, Completion: u.CompletionTokens, Cached: u.CachedTokens}, Tokens: x.seen.Events()})
		x.gw.metrics.Waited(x.service, g.Waited())
	}
	if x.proxy.taken != nil {
		x.proxy.taken()
	}
	if x.picker.picked != nil {
		x.picker.picked.Close()
	}
	x.req.body.release()
	x.logged.answer.Drop()
	x.proxy.prefill.end(x.code/100 == 2)
	x.settle()
	// The server still has to send what it holds, and discards what is left of
	// a body; it lifts the deadlines afterwards. Not every ResponseWriter has
	// them (HTTP servers' do).
	now := time.Now()
	x.writeDeadline(now)
	x.req.reader.stop()
	if x.req.body.unread(x.req.r) {
		_ = x.rc.SetReadDeadline(now.Add(x.gw.cfg.ClientTimeout))
	}
}

// readBody reads the request's body: all of it, or, unless whole, what can be sent
// to several replicas.
func (x *exchange) readBody(whole bool) error {
	b, r := &x.req.body, x.req.r
	b.budget, b.client, b.stated = &x.gw.buffered, x.client(), r.ContentLength
	return bodyFailure(r.Context(), b.read(&x.response, r, &x.req.reader, &x.gw.cfg, whole, x.seen.Begun), &x.gw.cfg)
}

// query is what the dispatcher reads of the request.
func (x *exchange) query() dispatch.Request {
	q := x.req.query(x.gw.cfg.SessionHeader, x.pass)
	q.GRPC = x.explains() && strings.HasPrefix(x.req.r.Header.Get("Content-Type"), rawgrpc.ContentType)
	return q
}

// serveModel admits the request and forwards it. The body has been read.
func (x *exchange) serveModel() error {
	if err := x.staysRewritten(); err != nil {
		return err
	}
	if g := x.asksGraph(); g != nil { // by the name of the model, which is known now
		return x.serveGraph(g)
	}
	if w, ok := x.w.(*explained); ok {
		w.explanation, w.err = x.gw.dispatch.Explain(x.query())
		w.found = w.err == nil
		return nil
	}
	if answered, err := x.gather(); answered || err != nil {
		return err
	}
	if x.pass != nil && x.req.parsed != nil && !x.req.form { // the prompt costs this at least
		x.pass.Expect(int64(x.req.promptLength() / observe.BytesPerToken))
	}
	if err := x.admit(); err != nil {
		return err
	}
	x.logRequest()
	return x.forward()
}

// admit waits until the dispatcher grants the request a replica.
func (x *exchange) admit() error {
	if !x.req.routed {
		for _, name := range ingress.PeerHeaders {
			delete(x.req.r.Header, name)
		}
	}
	d, q := x.gw.dispatch, &x.asked
	*q = x.query()
	q.Bytes = max(x.req.body.held, int64(x.req.promptLength())) // what stands for pictures and sound may be longer than their names
	q.May = ingress.Permission(d, x.pass, q)
	if x.gw.cfg.Picker != nil && x.req.call.Kind.Forwards() {
		x.picker = picking{gw: x.gw, req: &x.req}
		q.Asker = &x.picker
	}
	if x.tellsWaiting() {
		q.Waiting = x.tellWaiting
	}
	ended := x.seen.StartQueue()
	g, err := d.Admit(x.req.r.Context(), *q)
	ended()
	if err != nil {
		if s, unknown := d.Resolve(*q); unknown == nil {
			x.service = observe.ServiceName(s.Pool)
		}
		return err
	}
	x.service = g.Service()
	x.req.forgetPrompt()
	q.Prompt, q.Messages = nil, nil
	x.req.changeHeader(g.Handling().RequestHeader)
	if x.req.parsed != nil && x.req.body.tail == nil {
		var parts [3][]byte
		body, _ := x.req.appendBody(parts[:0], g.Model())
		g.Tokenize(x.req.r.URL.Path, body...)
	}
	x.mirror(g)
	t := &x.gw.transport
	x.proxy.transport, x.proxy.grant, x.proxy.req, x.proxy.seen = t, g, &x.req, &x.seen
	x.proxy.prefill = prefill{transport: t, grant: g, req: &x.req}
	return nil
}

// forward has a replica answer the request, and passes the answer on. A failure
// after its beginning cannot be hidden: an event stream ends with an error event,
// any other answer with a cut connection.
func (x *exchange) forward() error {
	in, out, err := x.proxy.send()
	if err != nil {
		return err
	}
	defer out.close()
	g := x.proxy.grant
	g.FirstByte()
	if out.events && in.status == http.StatusOK {
		g.FirstToken()
	}
	x.req.body.release() // it will not be sent again
	x.code = in.status
	x.seen.Answering(in.status, in.fields)
	reportLoad(x.gw.cfg.Heard, g.Replica(), in.fields)
	if !x.waiting {
		x.sendHeader(&in)
	} else if joined, err := x.joinStream(&in, &out); !joined {
		return err
	}
	out.copied = x.logged.answer
	err = out.run(&x.response, &x.seen, x.gw.cfg.StallTimeout, x.proxy.ends())
	if errors.Is(err, io.EOF) {
		x.copyTrailer(&in)
		x.gw.logAnswer(&x.logged, in.status)
		return nil
	}
	if err == nil || x.req.r.Context().Err() != nil {
		return nil // the client is gone
	}
	x.cutShort(&out, err)
	return nil
}

// cutShort ends an answer that has begun and will not be whole, because its replica failed
// or its route's timeout is over.
func (x *exchange) cutShort(out *relay, err error) {
	g, end := x.proxy.grant, failure{status: http.StatusBadGateway, message: fmt.Sprintf("the replica failed within its answer: %v", err), code: codeReplicaFailed}
	x.seen.Cut = err.Error()
	if ends := x.proxy.ends(); !ends.IsZero() && !time.Now().Before(ends) { // no fault of the replica's
		end = failure{status: http.StatusGatewayTimeout, message: fmt.Sprintf("the answer did not end within the route's timeout of %v", g.Handling().Timeout), code: codeTimeout}
		x.seen.Cut = end.message
		x.proxy.warn("the route's timeout cut an answer off", "timeout", g.Handling().Timeout)
		g.Done(dispatch.Outcome{})
	} else {
		x.proxy.warn("replica failed within its answer", "error", err)
		x.gw.metrics.Cut(x.service)
		g.Done(dispatch.Outcome{Failed: err})
	}
	if !out.events {
		panic(http.ErrAbortHandler) // the only way to tell the client that the answer is not whole
	}
	out.errorEvent(&end)
}

// sendHeader sends the header of the replica's answer to the client.
func (x *exchange) sendHeader(in *incoming) {
	if !x.req.passes {
		in.fields = withoutCORS(in.fields, x.w.Header()["Vary"])
	}
	x.copyHeader(in, x.req.id)
	g := x.proxy.grant
	applyChanges(x.w.Header(), g.Handling().ResponseHeader)
	if waited := g.Waited(); waited > 0 {
		x.w.Header().Set(headerWaited, strconv.FormatInt(waited.Milliseconds(), 10))
	}
	if x.picker.picked != nil {
		x.picker.picked.Answered(in.status, x.w.Header(), g.Address())
	}
	x.w.WriteHeader(in.status)
}

// statusClientGone is what is counted for a request whose client left. It is
// never sent.
const statusClientGone = 499

// refuse answers with err.
func (x *exchange) refuse(err error) {
	var f *failure
	var picker *PickerRefusal
	var redirect *route.RedirectError
	ctx := x.req.r.Context()
	switch {
	case errors.As(err, &f):
		x.fail(f)
		return
	case errors.As(err, &redirect):
		x.redirect(redirect)
		return
	case ctx.Err() == nil && errors.As(err, &picker):
		x.refusedByPicker(picker)
		return
	}
	r := ingress.Refuse(ctx, x.gw.dispatch, x.pass, x.req.model, err)
	if r == nil {
		x.code, x.reason = statusClientGone, "the client left"
		return
	}
	if label := refusedBy(r.Reason); label != "" {
		x.gw.metrics.Refused(label)
	}
	x.refusedKey = r.Key
	x.fail(failureOf(r))
}

// settle writes what was observed of the request. It is the exchange's last
// step.
func (x *exchange) settle() {
	defer x.gw.running.Add(-1)
	x.seen.Ending = observe.Ending{ID: x.req.id, Model: x.req.model, Service: x.service, Provider: x.req.call.Surface.Provider(), Status: x.code}
	if x.req.parsed != nil {
		x.seen.MaxTokens = x.req.parsed.MaxTokens
	}
	x.seen.Sent += x.sent
	cost := x.stepTokens
	if !x.graph {
		cost = x.seen.Cost(x.req.promptLength())
	}
	x.pass.Leave(cost)
	if w, ok := x.w.(*whole); ok {
		w.tokens = cost
	}
	var e journal.Request
	if x.gw.cfg.Ended.Any() {
		r := x.req.r
		e = journal.Request{Key: cmp.Or(x.pass.Key(), x.refusedKey), Method: r.Method, Path: r.URL.EscapedPath(),
			Received: max(x.req.body.length, int64(len(x.req.body.head))), Trace: x.seen.TraceID(r.Header),
			Reason: x.reason, OverLimit: x.refusedKey != ""}
		e.Client, _, _ = net.SplitHostPort(r.RemoteAddr)
		if g := x.proxy.grant; g != nil {
			e.Replica, e.Queued, e.Latency = g.Replica(), g.Waited(), g.Latency()
		}
	}
	observe.Write(&x.seen, x.gw.metrics, x.gw.cfg.Ended, e, time.Now())
}

// reportLoad tells heard, if it is not nil, what a replica says of its load in its
// answer's header. Clients get those fields as well.
func reportLoad(heard func(string, orca.Report), replica string, fields []http1.Field) {
	if heard == nil || !named(fields, orca.Header) && !named(fields, orca.BinaryHeader) {
		return
	}
	report, ok := orca.Parse(func(name string) string {
		i := slices.IndexFunc(fields, func(f http1.Field) bool { return f.Name == name })
		if i < 0 {
			return ""
		}
		return fields[i].Value
	})
	if ok {
		heard(replica, report)
	}
}

// length is the parts' together, in bytes.
func length(parts [][]byte) int {
	n := 0
	for _, part := range parts {
		n += len(part)
	}
	return n
}
