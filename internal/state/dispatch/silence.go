package dispatch

import (
	"sync/atomic"

	"roundhouse.dev/roundhouse/internal/decide/breaker"
)

// silence is by what an endpoint that takes requests and answers none is told
// from one that has nothing to do.
type silence struct {
	awaiting atomic.Int64  // requests there whose answers have not begun
	answers  atomic.Uint64 // that have begun
	idle     atomic.Uint64 // times that awaiting fell to 0
	watched  atomic.Bool   // a look is due
}

// await notes that g waits for an answer of its endpoint. The pool's mutex is
// held.
func (p *pool) await(g *Grant) {
	g.awaits = true
	s := &g.slot.endpoint.silence
	s.awaiting.Add(1)
	if s.watched.CompareAndSwap(false, true) {
		p.listen(g.slot)
	}
}

// begun notes that the answer has begun, or that g waits no longer.
func (g *Grant) begun(answered bool) {
	s := &g.slot.endpoint.silence
	if answered {
		s.answers.Add(1)
	}
	if !g.awaits {
		return
	}
	g.awaits = false
	if s.awaiting.Add(-1) == 0 {
		s.idle.Add(1)
	}
}

// listen looks again and again, while an endpoint owes answers, at whether any
// has begun, and whether others of the pool have answered meanwhile: where none
// has, the requests are what takes long. The pool's mutex is held.
func (p *pool) listen(x *slot) {
	s := &x.endpoint.silence
	answers, idle, others := s.answers.Load(), s.idle.Load(), p.entry.answers(x)
	p.d.clock.AfterFunc(p.d.cfg.Breaker.Silence, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if s.awaiting.Load() == 0 {
			if s.watched.Store(false); s.awaiting.Load() == 0 || !s.watched.CompareAndSwap(false, true) {
				return
			}
		}
		if s.answers.Load() == answers && s.idle.Load() == idle && p.entry.answers(x) != others {
			p.observe(&p.entry, x, breaker.Silent, 0)
		}
		p.listen(x)
	})
}

// answers is how many answers of the side's endpoints but x's have begun.
func (s *endpointSet) answers(x *slot) (n uint64) {
	for _, y := range s.slots {
		if y != nil && y.endpoint != x.endpoint {
			n += y.endpoint.silence.answers.Load()
		}
	}
	return n
}
