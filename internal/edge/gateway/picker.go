package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// Picker asks the endpoint pickers that pools name.
type Picker interface {
	// Ask asks a pool's. Errors are a *PickerRefusal, the context's, or why it
	// gave no answer.
	Ask(ctx context.Context, pool service.Key, r PickerRequest) (Picked, error)
}

// PickerRequest is what a picker is told. Nothing of it is kept after Ask.
type PickerRequest struct {
	Method, Scheme, Host string
	Target               string // path and query
	Header               http.Header
	Body                 []byte // all of it
	// Within reports whether an address is an endpoint of the pool that is
	// ready.
	Within func(address string) bool
	// Hold takes n bytes of memory for a changed body; false: there are none.
	Hold func(n int64) bool
}

// Picked is a picker's answer. It is for one goroutine.
type Picked interface {
	// Endpoints are where the request may go, best first.
	Endpoints() []string
	// Body is the body to send; changed is false where it is the request's.
	Body() (body []byte, changed bool)
	// Change makes the picker's changes to the request's header.
	Change(h http.Header)
	// Answered tells of an answer and who gave it, and makes the picker's
	// changes to its header.
	Answered(status int, h http.Header, by string)
	// Close ends the request's exchange with the picker.
	Close()
}

// PickerRefusal is a picker's own answer to a request. It is an error.
type PickerRefusal struct {
	Status int
	Header http.Header
	Body   []byte
}

// Error returns a message with the picker's status.
func (r *PickerRefusal) Error() string {
	return fmt.Sprintf("the endpoint picker answered %d itself", r.Status)
}

// reserved are fields of a request that clients must not set: gateways and pickers
// use them among themselves.
var reserved = append([]string{"X-Gateway-Destination-Endpoint", "X-Gateway-Destination-Endpoint-Subset", "X-Gateway-Model-Name-Rewrite"}, ingress.PeerHeaders...)

// picking asks an endpoint picker about one request. It implements dispatch.Asker.
type picking struct {
	gw     *Gateway
	req    *request
	picked Picked // nil where none was asked, or gave no answer
}

// Ask asks the pool's endpoint picker, which gets the whole body and may replace
// it.
func (p *picking) Ask(ctx context.Context, pool service.Key, within func(string) bool) ([]string, error) {
	q := p.req
	if err := q.body.readRest(p.gw.cfg.MaxBodyBytes); err != nil {
		return nil, bodyFailure(ctx, err, &p.gw.cfg)
	}
	h := q.r.Header
	for _, name := range reserved {
		delete(h, name)
	}
	h[observe.HeaderRequestID] = []string{q.id} // a picker keeps its state of the request by it
	picked, err := p.gw.cfg.Picker.Ask(ctx, pool, PickerRequest{Method: q.r.Method, Scheme: scheme(q.r), Host: q.r.Host, Target: q.r.URL.RequestURI(),
		Header: h, Body: q.body.head, Within: within, Hold: func(n int64) bool { return q.body.hold(n, true) == nil }})
	var own *PickerRefusal
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.As(err, &own):
		return nil, own
	default:
		p.gw.warnPicker(q.id, pool, err)
		return nil, dispatch.Unanswered(err)
	}
	if body, changed := picked.Body(); changed {
		if err := q.rewrite(body); err != nil {
			picked.Close()
			err = fmt.Errorf("endpoint picker of pool %s changed the body so that it cannot be read: %w", pool, err)
			p.gw.warnPicker(q.id, pool, err)
			return nil, dispatch.Unanswered(err)
		}
	}
	picked.Change(h)
	p.picked, q.picked = picked, true // the exchange closes it
	return picked.Endpoints(), nil
}

func (g *Gateway) warnPicker(id string, pool service.Key, err error) {
	name := pool.String()
	g.warnings.Warn(time.Now(), "endpoint picker gave no answer", name, "request", id, "pool", name, "error", err)
}
