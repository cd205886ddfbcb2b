package gateway

import (
	"context"
	"encoding/hex"
	"math/rand/v2"
	"net/http"
	"time"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// exchange is one request and its answer. One goroutine owns it.
type exchange struct {
	gw *Gateway
	w  http.ResponseWriter
	r  *http.Request
	rc *http.ResponseController

	surface surface
	id      string // of the request, passed on and answered
	model   string // as the request names it
	// path builds the replica's path from the name it serves the model by.
	path func(p *dispatch.Pool) string
	body body
	// parsed is set when the model was found in the body.
	parsed *openai.Request
	form   bool // the body is a form, not JSON
	grant  *dispatch.Grant

	service string // for metrics: a known service or ""
	code    int    // answered; 0 when nothing was

	seen observation
}

func newExchange(g *Gateway, w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{gw: g, w: w, r: r, rc: http.NewResponseController(w), seen: observation{begun: time.Now()}}
	x.id = r.Header.Get(headerRequestID)
	if !validID(x.id) {
		x.id = randomHex(16)
	}
	w.Header().Set(headerRequestID, x.id)
	return x
}

// finish gives back what the request held. It also runs when the handler
// aborts the connection.
func (x *exchange) finish() {
	if x.grant != nil {
		x.grant.Done(dispatch.Outcome{})
		x.gw.metrics.waited(x.service, x.grant.Waited())
	}
	x.gw.buffered.give(x.body.held)
	x.gw.metrics.answered(x.service, x.code)
	// The server still has to send what it holds, and discards what is left of
	// a body; it lifts the deadlines afterwards. Not every ResponseWriter has
	// them (HTTP servers' do).
	limit := time.Now().Add(x.gw.cfg.ClientTimeout)
	_ = x.rc.SetWriteDeadline(limit)
	if x.body.unread(x.r) {
		_ = x.rc.SetReadDeadline(limit)
	}
}

// validID accepts up to 128 printable ASCII characters.
func validID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return true
}

// randomHex is n random bytes in hex: an identifier, not a secret.
func randomHex(n int) string {
	b := make([]byte, 0, 32)
	for len(b) < n {
		v := rand.Uint64()
		for range 8 {
			b = append(b, byte(v))
			v >>= 8
		}
	}
	return hex.EncodeToString(b[:n])
}

// serveModel admits the request for x.model and forwards it. The body has been
// read.
func (x *exchange) serveModel() {
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
	g, err := x.gw.dispatch.Admit(ctx, q)
	if err == nil {
		x.service = g.Service()
	} else if k, unknown := x.gw.dispatch.Key(q); unknown == nil {
		x.service = k.String()
	}
	return g, err
}

func (x *exchange) query() dispatch.Request {
	return dispatch.Request{Host: x.r.Host, Model: x.model}
}
