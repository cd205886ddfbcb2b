package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/batch"
	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/edge/gateway/surface"
)

// gatherings are the batches of KServe v1 requests that are still open.
type gatherings struct {
	mu   sync.Mutex
	open map[gatheringKey]*gathering
}

// gatheringKey is what requests of one batch share.
type gatheringKey struct {
	to            routing.Ref
	target, query string // of the request's URL
}

// gathering is one batch: its members wait until it is full, or until the first has
// waited for the batcher's time.
type gathering struct {
	key     gatheringKey
	members []*member
	size    int // instances of all
	timer   *time.Timer
	cancel  context.CancelFunc
	ctx     context.Context
	waiting int // members whose client is there
}

type member struct {
	instances []json.RawMessage
	asked     http.Header // of the request, whose id and begin follow
	id        string
	begun     time.Time
	logged    logged
	answered  chan struct{}
	// The answer, once answered is closed.
	status int
	header http.Header
	body   []byte
}

// gather sends a request's instances with those of others where its service has a
// batcher. It reports whether the request is answered.
func (x *exchange) gather() (answered bool, err error) {
	c := &x.req.call
	if c.Surface != surface.V1 || c.After != ":predict" || gathered(x.req.r.Context()) != nil {
		return false, nil
	}
	q := x.query()
	to, model, b := x.gw.dispatch.Batcher(q)
	if b == nil || x.req.body.tail != nil {
		return false, nil
	}
	instances, ok := batch.Instances(x.req.body.head, b.MaxSize)
	if !ok {
		return false, nil
	}
	if err := ingress.CheckModel(x.gw.dispatch, x.pass, q); err != nil {
		return false, err
	}
	m := &member{instances: instances, asked: x.req.r.Header.Clone(), id: x.req.id, begun: x.seen.Begun, answered: make(chan struct{})}
	in := x.gw.join(gatheringKey{to, c.Target("", model), x.req.r.URL.RawQuery}, m, b)
	select {
	case <-m.answered:
	case <-x.req.r.Context().Done():
		x.gw.leave(in)
		return false, x.req.r.Context().Err()
	}
	for _, name := range []string{"Content-Type", ingress.HeaderRetryAfter} {
		if v := m.header.Get(name); v != "" {
			x.w.Header().Set(name, v)
		}
	}
	x.write(m.status, m.body)
	return true, nil
}

// join adds a member to the open batch of a key, which it opens or closes if need be.
func (g *Gateway) join(k gatheringKey, m *member, b *service.Batcher) *gathering {
	s := &g.gatherings
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.open[k]
	if in == nil {
		in = &gathering{key: k}
		in.ctx, in.cancel = context.WithCancel(context.Background())
		if s.open == nil {
			s.open = map[gatheringKey]*gathering{}
		}
		s.open[k] = in
		in.timer = time.AfterFunc(b.MaxLatency, func() { g.close(in) })
	}
	in.members, in.size, in.waiting = append(in.members, m), in.size+len(m.instances), in.waiting+1
	if in.size >= b.MaxSize {
		in.timer.Stop()
		delete(s.open, k)
		go g.answer(in)
	}
	return in
}

// close ends a batch whose time has come.
func (g *Gateway) close(in *gathering) {
	s := &g.gatherings
	s.mu.Lock()
	mine := s.open[in.key] == in
	if mine {
		delete(s.open, in.key)
	}
	s.mu.Unlock()
	if mine {
		g.answer(in)
	}
}

// leave counts a member whose client is gone. A batch that nobody waits for is not
// answered, and nobody joins it.
func (g *Gateway) leave(in *gathering) {
	s := &g.gatherings
	s.mu.Lock()
	defer s.mu.Unlock()
	if in.waiting--; in.waiting > 0 {
		return
	}
	if s.open[in.key] == in {
		in.timer.Stop()
		delete(s.open, in.key)
	}
	in.cancel()
}

// answer asks for a batch and answers its members.
func (g *Gateway) answer(in *gathering) {
	defer in.cancel()
	lists, counts := make([][]json.RawMessage, len(in.members)), make([]int, len(in.members))
	for i, m := range in.members {
		lists[i], counts[i] = m.instances, len(m.instances)
	}
	status, header, bodies := g.askBatch(in, lists, counts)
	for i, m := range in.members {
		m.status, m.header, m.body = status, header, bodies[min(i, len(bodies)-1)]
		m.logged.answer.Write(m.body)
		g.logAnswer(&m.logged, status)
		close(m.answered)
	}
}

// askBatch returns the answers to the members of a batch; a single one is for all.
func (g *Gateway) askBatch(in *gathering, lists [][]json.RawMessage, counts []int) (int, http.Header, [][]byte) {
	failed := func(err error) (int, http.Header, [][]byte) {
		return http.StatusBadGateway, http.Header{"Content-Type": {surface.TypeJSON}}, [][]byte{surface.ErrorBody(surface.V1, http.StatusBadGateway, err.Error(), "", "")}
	}
	body, err := batch.JoinInstances(lists)
	if err != nil {
		return failed(err)
	}
	target := in.key.target
	if in.key.query != "" {
		target += "?" + in.key.query
	}
	r, err := http.NewRequestWithContext(context.WithValue(in.ctx, gatheringContext{}, in), http.MethodPost, target, bytes.NewReader(body))
	if err != nil {
		return failed(err)
	}
	r.Header.Set("Content-Type", surface.TypeJSON)
	w := g.ask(r, in.key.to, "")
	defer w.release()
	switch {
	case w.err != nil:
		return failed(w.err)
	case w.status != http.StatusOK:
		return w.status, w.header, [][]byte{bytes.Clone(w.body)}
	}
	out, err := batch.SplitPredictions(w.body, observe.RequestID(""), counts)
	if err != nil {
		return failed(err)
	}
	return http.StatusOK, http.Header{"Content-Type": {surface.TypeJSON}}, out
}

// gatheringContext is the key of the context of a request that is a batch.
type gatheringContext struct{}

// gathered is the batch that a request is; nil for any other request.
func gathered(ctx context.Context) *gathering {
	in, _ := ctx.Value(gatheringContext{}).(*gathering)
	return in
}
