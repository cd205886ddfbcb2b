package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/gateway/http1"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/edge/gateway/surface"
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
	// Within says whether an address is an endpoint of the pool that is ready.
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
	// Close says that the request is over.
	Close()
}

// PickerRefusal is a picker's own answer to a request. It is an error.
type PickerRefusal struct {
	Status int
	Header http.Header
	Body   []byte
}

// Error says which status it is.
func (r *PickerRefusal) Error() string {
	return fmt.Sprintf("the endpoint picker answered %d itself", r.Status)
}

// bodyFailure is a body that could not be read while a picker was asked.
type bodyFailure struct{ error }

func (f bodyFailure) Unwrap() error { return f.error }

// withheld are fields of a request that a client has no say in: they are
// between gateways and pickers.
var withheld = []string{"X-Gateway-Destination-Endpoint", "X-Gateway-Destination-Endpoint-Subset", "X-Gateway-Model-Name-Rewrite", headerPrefill}

// Ask implements dispatch.Asker: it asks the pool's endpoint picker, which is to
// see the whole body, and may give it another.
func (x *exchange) Ask(ctx context.Context, pool service.Key, within func(string) bool) ([]string, error) {
	if err := x.body.readRest(x.gw.cfg.MaxBodyBytes); err != nil {
		return nil, bodyFailure{err}
	}
	h := x.r.Header
	for _, name := range withheld {
		delete(h, name)
	}
	h[observe.HeaderRequestID] = []string{x.id} // by which a picker keeps what it knows of the request
	picked, err := x.gw.cfg.Picker.Ask(ctx, pool, PickerRequest{Method: x.r.Method, Scheme: scheme(x.r), Host: x.r.Host, Target: x.r.URL.RequestURI(),
		Header: h, Body: x.body.head, Within: within, Hold: func(n int64) bool { return x.body.hold(n, true) == nil }})
	var own *PickerRefusal
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.As(err, &own):
		return nil, own
	default:
		x.gw.unanswered(x.id, pool, err)
		return nil, dispatch.Unanswered(err)
	}
	if err := x.rewrite(picked); err != nil {
		picked.Close()
		err = fmt.Errorf("endpoint picker of pool %s changed the body so that it cannot be read: %w", pool, err)
		x.gw.unanswered(x.id, pool, err)
		return nil, dispatch.Unanswered(err)
	}
	picked.Change(h)
	x.picked = picked // finish closes it
	return picked.Endpoints(), nil
}

// logAgain is how often the log tells of pickers that give no answer: one that
// is away fails every request.
const logAgain = time.Second

func (g *Gateway) unanswered(id string, pool service.Key, err error) {
	now := time.Now().UnixNano()
	if last := g.complained.Load(); now-last < int64(logAgain) || !g.complained.CompareAndSwap(last, now) {
		return
	}
	g.log.Warn("endpoint picker gave no answer", "request", id, "pool", pool.String(), "error", err)
}

// rewrite puts a picker's body in the place of the request's. A name that it
// has changed is the one that the replica is given. What the picker has only
// written otherwise, such as long integers, stays as the client wrote it.
func (x *exchange) rewrite(picked Picked) error {
	now, changed := picked.Body()
	if !changed {
		return nil
	}
	if !x.form {
		if merged, differs, ok := openai.Merge(x.body.head, now); ok && !differs {
			return nil
		} else if ok {
			now = merged
		}
	}
	before, length := x.body.head, x.body.length
	x.body.head, x.body.length = now, int64(len(now))
	x.body.grown = x.body.grown || x.body.length > http1.InlineBytes
	if x.parsed == nil {
		return nil
	}
	name := string(x.parsed.Model)
	again, form, err := surface.ParseBody(x.r.Header.Get("Content-Type"), now)
	if err != nil {
		x.body.head, x.body.length = before, length
		return err
	}
	x.request, x.form = again, form
	x.renamed = string(again.Model) != name
	return nil
}
