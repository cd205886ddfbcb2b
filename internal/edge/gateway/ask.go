package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
	"roundhouse.dev/roundhouse/internal/edge/gateway/surface"
)

// whole is an answer that is held in memory: that to a request of the gateway's own.
type whole struct {
	status int
	header http.Header
	body   []byte
	budget *ingress.Budget
	limit  int64
	client string // whose share of the budget the answer takes, and the request; "" for nobody's
	shared int64  // of the body, counted as client's
	tokens int64  // what the request cost
	err    error  // why it is not whole
}

// Header implements http.ResponseWriter.
func (w *whole) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *whole) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

// Flush implements http.Flusher: there is nothing to flush.
func (w *whole) Flush() {}

// Write implements http.ResponseWriter. The error ends the exchange.
func (w *whole) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	switch {
	case w.err != nil:
	case int64(len(w.body)+len(b)) > w.limit:
		w.err = fmt.Errorf("the answer is longer than %d bytes", w.limit)
	case !w.budget.Take(int64(len(b))):
		w.err = errNoMemory
	case w.client != "" && !w.budget.Share(w.client, int64(len(b))):
		w.budget.Give(int64(len(b)))
		w.err = errNoShare
	default:
		if w.client != "" {
			w.shared += int64(len(b))
		}
		w.body = append(w.body, b...)
		return len(b), nil
	}
	return 0, w.err
}

// release gives back the memory of the answer.
func (w *whole) release() {
	w.budget.Give(int64(len(w.body)))
	w.budget.Unshare(w.client, w.shared)
	w.body, w.shared = nil, 0
}

// whole is an answer that begins, for a client; "" for nobody's.
func (g *Gateway) whole(client string) *whole {
	return &whole{header: http.Header{}, budget: &g.buffered, limit: g.cfg.MaxBodyBytes, client: client}
}

// ask answers a request of the gateway's own as if it had come from a client that may
// ask for everything. to is where it goes; zero has its host and model decide. What is
// held of it counts as client's. The caller releases the answer.
func (g *Gateway) ask(r *http.Request, to routing.Ref, client string) (w *whole) {
	w = g.whole(client)
	defer func() {
		if e := recover(); e != nil {
			if err, ok := e.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
				panic(e)
			}
			w.err = errors.New("the answer was cut off")
		}
	}()
	x := newExchange(g, w, r)
	defer x.end()
	x.req.to = to
	path := r.URL.EscapedPath()
	x.begin(surface.Find(path, r.URL.Path, false), path)
	if err := x.serveFound(); err != nil {
		x.refuse(err)
	}
	if w.err == nil && (w.status == 0 || r.Context().Err() != nil) { // an answer ends early where nobody waits for it
		w.err = unanswered(r.Context())
	}
	return w
}

// unanswered is why a request has no answer at all.
func unanswered(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return errors.New("there is no answer")
}
