package gateway

import (
	"context"
	"net/http"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/gateway/http1"
	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/edge/gateway/surface"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/keys"
)

// exchange is one request and its answer. One goroutine owns it.
type exchange struct {
	response
	gw *Gateway
	r  *http.Request

	call  surface.Call
	model string      // as the request names it
	to    routing.Ref // settled by the door it came in by; zero: the request says
	body  body
	// parsed is set when the model was found in the body.
	parsed *openai.Request
	form   bool // the body is a form, not JSON
	grant  *dispatch.Grant
	// picked is what the pool's endpoint picker said; nil where none was asked,
	// or gave no answer. renamed: it has changed the model's name.
	picked  Picked
	renamed bool

	reader   patientReader
	request  openai.Request // what parsed points to
	outgoing http1.Request
	parts    [3][]byte // of the body
	replaced []byte    // sent in place of the body; nil: the body is
	pair     *pairing  // with a prefill replica that works at the same time; nil without
	fields   []byte    // of the request to the replica, encoded

	service string // for metrics: a known service or ""

	pass   *keys.Pass // of its API key; nil when none is needed
	prompt [][]byte   // raw parts of the body, in order
	seen   observe.Record
	// refusedKey is the id of a key that is over its limits.
	refusedKey string
}

// exchanges that have ended, cleared but for the memory of their lists.
var exchanges = sync.Pool{New: func() any { return &exchange{} }}

// recycle lets another request use the exchange. One whose body may still be
// read, by whoever sends it on, is left to the garbage collector.
func (x *exchange) recycle() {
	if x.body.long() || len(x.replaced) > http1.InlineBytes {
		return
	}
	clear(x.prompt)
	*x = exchange{fields: x.fields[:0], prompt: x.prompt[:0]}
	exchanges.Put(x)
}

func newExchange(g *Gateway, w http.ResponseWriter, r *http.Request) *exchange {
	// A chunked request may have had a Content-Length too, by which a proxy before
	// the gateway would have found another end (RFC 9112 6.1). net/http has dropped
	// it, so the connection ends after every one of them.
	if r.ProtoMajor == 1 && (g.leaving.Load() || len(r.TransferEncoding) > 0) {
		w.Header().Set("Connection", "close")
	}
	x := exchanges.Get().(*exchange)
	x.gw, x.r = g, r
	x.w, x.rc, x.timeout = w, *http.NewResponseController(w), g.cfg.ClientTimeout
	x.seen.Begun = time.Now()
	x.id = observe.RequestID(r.Header.Get(observe.HeaderRequestID))
	w.Header().Set(observe.HeaderRequestID, x.id)
	g.running.Add(1)
	return x
}

// end finishes the exchange, which must not be used afterwards.
func (x *exchange) end() {
	x.finish()
	x.recycle()
}

// finish gives back what the request held. It also runs when the handler
// aborts the connection.
func (x *exchange) finish() {
	if x.grant != nil {
		x.grant.Done(outcome(&x.seen))
		x.gw.metrics.Waited(x.service, x.grant.Waited())
	}
	if x.picked != nil {
		x.picked.Close()
	}
	x.body.release()
	x.unpair()
	x.settle()
	// The server still has to send what it holds, and discards what is left of
	// a body; it lifts the deadlines afterwards. Not every ResponseWriter has
	// them (HTTP servers' do).
	now := time.Now()
	x.writeDeadline(now)
	x.reader.stop()
	if x.body.unread(x.r) {
		_ = x.rc.SetReadDeadline(now.Add(x.gw.cfg.ClientTimeout))
	}
}

// serveModel admits the request for x.model and forwards it. The body has been
// read.
func (x *exchange) serveModel() {
	if x.explains() {
		return
	}
	x.expect()
	g, err := x.admit(x.r.Context())
	if err != nil {
		x.refuse(err)
		return
	}
	x.grant = g
	x.forward()
}

func (x *exchange) admit(ctx context.Context) (*dispatch.Grant, error) {
	q := x.query()
	q.Bytes = x.body.held
	if x.limited() {
		q.May = x.may
	}
	if x.gw.cfg.Picker != nil && x.call.Kind.Forwards() {
		q.Asker = x
	}
	ended := x.seen.StartQueue()
	g, err := x.gw.dispatch.Admit(ctx, q)
	ended()
	if err == nil {
		x.service = g.Service()
	} else if s, unknown := x.gw.dispatch.Resolve(q); unknown == nil {
		x.service = observe.ServiceName(s.Pool)
	}
	return g, err
}

// query is what the dispatcher is to know of the request.
func (x *exchange) query() dispatch.Request {
	h := x.r.Header
	q := dispatch.Request{To: x.to, Host: x.r.Host, Path: x.r.URL.Path, RawQuery: x.r.URL.RawQuery, Method: x.r.Method, Header: h.Get, Model: x.model, Protocol: x.call.Protocol, Prompt: x.prompt, Idempotent: x.idempotent(),
		Objective: h.Get(ingress.HeaderObjective), FairnessID: h.Get(ingress.HeaderFairness)}
	if x.parsed != nil {
		q.MaxTokens = x.parsed.MaxTokens
	}
	if name := x.gw.cfg.SessionHeader; name != "" {
		q.Session = h.Get(name)
	}
	if x.pass != nil {
		q.Namespaces = x.pass.Namespaces()
		q.FairnessID = x.pass.Key() // a client must not choose whose turn it takes
	}
	return q
}

// Headers of the Gateway API Inference Extension that requests may carry.
// X-Gateway-Model-Name-Rewrite is not among them: it is for a filter between a
// gateway and an endpoint picker, and would let a client choose a name past its
// key's models.
const (
	// headerPrefill tells a decode replica (the sidecar before it) who computes
	// the prompt. It is the gateway's to say: a client's would have the replica
	// call wherever the client likes.
	headerPrefill = "X-Prefiller-Host-Port"
)

// namePrefill says in the request's header who computes the prompt.
func (x *exchange) namePrefill() {
	if x.picked != nil || x.to.Name != "" {
		return // a picker says who computes the prompt, a client's word is gone; or a router did
	}
	h := x.r.Header
	to := ""
	if x.disaggregation() == service.DisaggregationHeader {
		to = x.grant.Prefill()
	}
	if before, ok := h[headerPrefill]; to == "" && !ok || len(before) == 1 && before[0] == to {
		return
	}
	x.fields = x.fields[:0] // they are encoded anew
	if delete(h, headerPrefill); to != "" {
		h[headerPrefill] = []string{to}
	}
}
