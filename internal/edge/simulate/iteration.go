package simulate

import (
	"slices"
	"time"
)

// iteration is the work of one engine iteration while it is being planned.
type iteration struct {
	budget  int // tokens that may still be added
	prefill int // tokens of prompts, or computed again after a preemption
	decodes int // sequences that compute the token they yielded last
	loads   int // adapters to load first
}

// add puts the next tokens of a sequence into the iteration, as the budget
// allows. Its blocks must have been taken.
func (it *iteration) add(q *sequence) {
	left := q.tokens() - q.computed
	q.chunk = min(left, it.budget)
	it.budget -= q.chunk
	if q.generated > 0 && left == 1 {
		it.decodes++
	} else {
		it.prefill += q.chunk
	}
}

func (it *iteration) duration(p Physics) time.Duration {
	seconds := float64(it.prefill) / p.PrefillTokensPerSecond
	if it.decodes > 0 {
		seconds += p.LoadFactor(it.decodes) / p.DecodeTokensPerSecond
	}
	return simulated(seconds) + time.Duration(it.loads)*p.AdapterLoadTime
}

// simulated converts seconds, rounding up to whole nanoseconds so that work
// never takes no time at all, and bounding a year.
func simulated(seconds float64) time.Duration {
	const year = 365 * 24 * 3600
	return time.Duration(min(seconds, year)*1e9) + 1
}

// begin plans an iteration and starts it, if there is anything to compute. No
// iteration may be in flight.
//
// Running sequences come first, in the order of admission; then the queue is
// admitted from, unless memory was so short that a sequence was preempted.
func (s *Scheduler) begin(now time.Duration) {
	it := iteration{budget: s.physics.MaxBatchedTokens}
	preempted := false
	for i := 0; i < len(s.running) && it.budget > 0; i++ {
		q := s.running[i]
		if q.readyAt > now {
			continue
		}
		for !s.grow(q) {
			last := s.running[len(s.running)-1]
			s.running = s.running[:len(s.running)-1]
			s.preempt(last, now)
			preempted = true
		}
		if q.running {
			it.add(q)
		}
	}
	if !preempted {
		s.admit(&it, now)
	}
	s.stats.MostRunning = max(s.stats.MostRunning, len(s.running))
	s.stats.MostBlocksUsed = max(s.stats.MostBlocksUsed, s.pool.used())
	if it.prefill+it.decodes > 0 {
		s.inFlight, s.endsAt = true, now+it.duration(s.physics)
	}
}

// grow gives a sequence the block that its next token needs; false if none is
// left. A sequence that has been preempted needs none.
func (s *Scheduler) grow(q *sequence) bool {
	if !q.running || q.tokens() <= len(q.blocks)*BlockTokens {
		return true
	}
	id, ok := s.pool.take()
	if ok {
		q.blocks = append(q.blocks, id)
	}
	return ok
}

// preempt returns a sequence to the head of the queue. Its output so far is
// kept; its KV is computed again, here even if it had been pulled.
func (s *Scheduler) preempt(q *sequence, now time.Duration) {
	s.stop(q, now)
	q.RemotePrefill = false
	s.waiting = slices.Insert(s.waiting, 0, q)
	s.stats.Totals.Preemptions++
	s.emit(Preempted, q, now)
}

// admit moves sequences from the queue into the iteration, first come first
// served. One whose adapter has no slot lets the others pass; one that memory
// has no room for does not.
func (s *Scheduler) admit(it *iteration, now time.Duration) {
	kept := s.waiting[:0]
	for i, q := range s.waiting {
		if len(s.running) >= s.physics.MaxSequences || it.budget == 0 {
			kept = append(kept, s.waiting[i:]...)
			break
		}
		if !s.adapters.fits(q.Adapter) {
			kept = append(kept, q)
			continue
		}
		cached, ok := s.claim(q)
		if !ok {
			kept = append(kept, s.waiting[i:]...)
			break
		}
		s.enter(q, it, cached, now)
	}
	clear(s.waiting[len(kept):])
	s.waiting = kept
}

// claim takes the blocks of a sequence's whole prompt, sharing those in the
// prefix cache, and returns the tokens found there. At least one token is left
// to compute, since it yields the next.
func (s *Scheduler) claim(q *sequence) (cached int, ok bool) {
	keys := q.Keys[:min(len(q.Keys), (q.tokens()-1)/BlockTokens)]
	hits, unheld := s.pool.match(keys)
	fresh := blocksFor(q.tokens()) - hits
	if fresh > s.pool.available()-unheld {
		return 0, false
	}
	q.blocks = make([]int32, 0, blocksFor(q.PromptTokens+q.OutputTokens))
	for _, key := range keys[:hits] {
		q.blocks = append(q.blocks, s.pool.share(key))
	}
	for range fresh {
		id, _ := s.pool.take()
		q.blocks = append(q.blocks, id)
	}
	q.named, q.computed = hits, hits*BlockTokens
	return q.computed, true
}

// enter makes a sequence run that has its blocks.
func (s *Scheduler) enter(q *sequence, it *iteration, cached int, now time.Duration) {
	q.running = true
	s.running = append(s.running, q)
	if s.adapters.acquire(q.Adapter, now) {
		it.loads++
		s.stats.Totals.AdapterLoads++
	}
	if !q.counted {
		q.counted = true
		s.stats.Totals.PrefixQueries += uint64(q.tokens())
		s.stats.Totals.PrefixHits += uint64(cached)
	}
	s.effects = append(s.effects, Effect{Kind: Admitted, ID: q.ID, At: now, Tokens: q.generated, Cached: min(cached, q.PromptTokens)})
	if pull := q.PromptTokens - 1 - q.computed; q.RemotePrefill && pull > 0 {
		q.readyAt = now + simulated(float64(pull)/s.physics.TransferTokensPerSecond)
		q.computed = q.PromptTokens - 1
		return
	}
	it.add(q)
}
