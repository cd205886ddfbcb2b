package dispatch

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Grant is one admitted request's place on a replica. Its methods are for the
// one goroutine that holds it.
type Grant struct {
	pool  *pool
	named bool
	bytes int64

	// Guarded by the pool's mutex while the request waits.
	facts    *Pool
	at       *endpoint // nil while no place is held
	replica  string    // ID of the last one
	address  string
	grpc     string
	deadline time.Time // of waiting
	waited   time.Duration
	tried    []*endpoint // replicas that failed it
	answered bool        // the first byte is here
	settled  bool        // counted as done
}

// Address is the replica's "host:port".
func (g *Grant) Address() string { return g.address }

// GRPCAddress is the "host:port" of the replica's gRPC surface; "" when it has
// none.
func (g *Grant) GRPCAddress() string { return g.grpc }

// Prefill is the "host:port" of the replica that computes the prompt for the
// one at Address (prefill and decode apart); "" when Address does both.
func (g *Grant) Prefill() string { return "" }

// Model is the name to give the replica; "" leaves the request's as it is.
func (g *Grant) Model() string {
	if !g.named {
		return ""
	}
	return g.facts.ServedName
}

// Replica is the replica's ID.
func (g *Grant) Replica() string { return g.replica }

// Service is the service's "namespace/name".
func (g *Grant) Service() string { return g.pool.id }

// Pool is the pool's facts at the time a place was found. Not to be changed.
func (g *Grant) Pool() *Pool { return g.facts }

// Named says that the request named the service, so that the replica is to be
// given Pool().ServedName instead of the request's name.
func (g *Grant) Named() bool { return g.named }

// Waited is how long the request has waited for a place, in all.
func (g *Grant) Waited() time.Duration { return g.waited }

// Retry gives the failed replica back, avoids it for a while, and moves the
// request to another. failed is what went wrong; if it is marked Unsent and no
// other replica is ready, the request waits for one as in Admit. The error is
// an *Error or the context's; the grant then holds no place, and Done is still
// to be called.
func (g *Grant) Retry(ctx context.Context, failed error) error {
	p := g.pool
	p.mu.Lock()
	if g.settled || g.answered || g.at == nil {
		p.mu.Unlock()
		return p.unavailable("the answer has begun, so the request cannot be sent again", failed)
	}
	now := p.d.clock.Now()
	last := g.at
	p.fail(last, now)
	p.release(g, now)
	g.tried = append(g.tried, last)

	err := p.mayRetry(ctx, g, last, failed)
	if err == nil && p.queue.Len() == 0 {
		if e := p.pick(now, g.tried); e != nil {
			p.reserve(g, e, now)
			p.changed(now, false)
			p.mu.Unlock()
			return nil
		}
	}
	if err == nil && !IsUnsent(failed) {
		err = p.unavailable(fmt.Sprintf("replica %s failed before it answered and no other is ready: %v", last.id, failed), failed)
	}
	if err != nil {
		p.settle(g, now)
		p.pump(now)
		p.mu.Unlock()
		return err
	}
	w := p.enqueue(g, now, true)
	p.mu.Unlock()
	return p.wait(ctx, w)
}

// mayRetry says why the request may not be sent once more.
func (p *pool) mayRetry(ctx context.Context, g *Grant, last *endpoint, failed error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case p.closed != "":
		return p.unavailable(p.closed, failed)
	case len(g.tried) >= p.d.cfg.MaxTries:
		return p.unavailable(fmt.Sprintf("%d tries failed, the last on replica %s: %v", len(g.tried), last.id, failed), failed)
	}
	return nil
}

// FirstByte says that the replica's answer has begun: from here on the request
// belongs to this replica.
func (g *Grant) FirstByte() {
	g.answered = true
	if g.at != nil && g.at.failures.Load() != 0 {
		g.at.failures.Store(0)
	}
}

// Done settles the request: its place goes to the next. Calls after the first
// do nothing.
func (g *Grant) Done(o Outcome) {
	p := g.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if g.settled {
		return
	}
	now := p.d.clock.Now()
	if g.at != nil {
		if o.Failed != nil {
			p.fail(g.at, now)
		}
		p.release(g, now)
	}
	p.settle(g, now)
	p.pump(now)
}

// hasTried says whether e already failed the request.
func hasTried(tried []*endpoint, e *endpoint) bool {
	return len(tried) > 0 && slices.Contains(tried, e)
}
