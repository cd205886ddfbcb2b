package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/latency"
	"roundhouse.dev/roundhouse/internal/decide/picker"
)

// External is an endpoint picker that a pool names: a program that picks the
// endpoints of the pool's requests.
type External struct {
	Name string // what messages call it; "" for none
	// FailOpen has the dispatcher pick while it gives no answer; requests are
	// refused otherwise.
	FailOpen bool
}

// String names the picker and what happens without it; "" for none.
func (e External) String() string {
	switch {
	case e.Name == "":
		return ""
	case e.FailOpen:
		return e.Name + " (FailOpen)"
	}
	return e.Name + " (FailClose)"
}

// Asker asks the endpoint picker of a pool about one request. It is called
// without locks, by the goroutine that called Admit.
type Asker interface {
	// Ask returns where the request may go, best first, all of them addresses
	// for which within is true: endpoints of the pool that are ready. An error
	// marked Unanswered has the pool's failure mode decide; any other is
	// Admit's.
	Ask(ctx context.Context, pool service.Key, within func(address string) bool) ([]string, error)
}

// unansweredError marks a picker that gave no answer.
type unansweredError struct{ error }

func (e unansweredError) Unwrap() error { return e.error }

// Unanswered marks err as an endpoint picker that gave no answer that can be
// followed.
func Unanswered(err error) error { return unansweredError{err} }

// refusedRetry is when to ask a pool again whose picker gave no answer.
const refusedRetry = time.Second

// askExternal gives g a place where the pool's endpoint picker says. Until then it
// counts as waiting; while no endpoint is ready it waits for one first, since a
// picker can name none of a service that sleeps.
func (p *pool) askExternal(ctx context.Context, g *Grant, by Asker) (err error) {
	asking := false // still, where Ask panics, which ends the request alone
	defer func() {
		if (err != nil || asking) && g.tally.stage != uncounted { // it was counted
			p.mu.Lock()
			g.finish(p.d.clock.Now())
			p.mu.Unlock()
		}
	}()
	if err := p.waitUntilReady(ctx, g); err != nil {
		return err
	}
	asking = true
	to, err := by.Ask(ctx, p.ref.Key, func(address string) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		x := p.entry.lookup(address)
		return x != nil && x.serves()
	})
	asking = false
	var silent unansweredError
	p.mu.Lock()
	ext := p.config.Load().External
	switch {
	case err == nil:
		g.subset, g.ordered, g.open = to, true, ext.FailOpen
		g.hash.generation = 0
	case !errors.As(err, &silent):
		p.mu.Unlock()
		return err
	case ext.FailOpen || ext.Name == "": // or nobody is to be asked any more
		p.counts.PickedOpen++
	default:
		why := unavailable(p.id, fmt.Sprintf("%v; its failureMode is FailClose", silent.error), silent.error)
		why.RetryAfter = refusedRetry
		p.mu.Unlock()
		return why
	}
	p.mu.Unlock()
	return p.admit(ctx, g)
}

// waitUntilReady counts g as waiting, and waits until an endpoint is ready.
func (p *pool) waitUntilReady(ctx context.Context, g *Grant) error {
	p.mu.Lock()
	now := p.d.clock.Now()
	if err := p.checkAdmissible(g); err != nil {
		p.mu.Unlock()
		return err
	}
	if p.entry.ready > 0 { // nobody need be woken, so no service counts it yet
		g.tally.moveTo(queued, now)
		p.mu.Unlock()
		return nil
	}
	p.mu.Unlock()
	if err := p.admit(ctx, g); err != nil {
		return err
	}
	// The place it was given is the dispatcher's choice: it goes to the next.
	p.mu.Lock()
	now = p.d.clock.Now()
	freed := p.release(&g.reservation)
	g.tally.moveTo(queued, now)
	p.serveQueue(now)
	p.mu.Unlock()
	freed.notifyPools()
	return nil
}

// openToAll lets g go to any endpoint of the pool, where what its picker named is
// no use any more and the pool fails open; false where it stays bound.
func (g *Grant) openToAll() bool {
	if !g.ordered || !g.open {
		return false
	}
	g.subset, g.ordered = nil, false
	return true
}

// maxAlternatives bounds Grant.Alternatives.
const maxAlternatives = 8

// Alternatives are the addresses of at most n other endpoints the request could
// go to, best first, for a gateway that forwards by itself. No place is
// reserved there; Served tells if one was taken.
func (g *Grant) Alternatives(n int) []string {
	p := g.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if g.reservation.slot == nil {
		return nil
	}
	tried := append(g.failed.on[:len(g.failed.on):len(g.failed.on)], g.reservation.slot.endpoint)
	return p.entry.alternatives(g, tried, min(n, maxAlternatives), p.d.clock.Now())
}

// Served moves the reservation to the endpoint that served the request, where
// another gateway chose it. The endpoint's limit does not count here. An address
// that is no endpoint's changes nothing.
func (g *Grant) Served(address string) {
	p := g.pool
	p.mu.Lock()
	var x *slot
	if g.reservation.slot != nil && address != g.address {
		x = p.entry.lookupRank(address, g.rank)
	}
	if x == nil || !x.endpoint.reserve(0) {
		p.mu.Unlock()
		return
	}
	now := p.d.clock.Now()
	freed := p.release(&g.reservation)
	g.tally.moveTo(queued, now)
	p.entry.choice.Uncached, p.entry.cachedBlocks = 0, 0
	p.entry.choice.Forecast = picker.Forecast{Work: latency.Work{Uncached: g.tokens, Running: float64(x.endpoint.inFlight.Load())}}
	p.reserve(g, x, now)
	p.serveQueue(now)
	p.mu.Unlock()
	freed.notifyPools()
}
