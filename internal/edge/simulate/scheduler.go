package simulate

import (
	"slices"
	"time"
)

// Sequence is one completion to compute.
type Sequence struct {
	ID           uint64 // unique among the sequences that have not ended
	PromptTokens int    // at least 1
	OutputTokens int    // after which it ends by itself; 0 for an embedding
	// Keys are the chained hashes of the full blocks of the prompt and of the
	// output after it. Equal leading keys mean equal leading tokens. It may be
	// shorter than the sequence: what has no key is not cached. The scheduler
	// reads it until the sequence ends.
	Keys    []uint64
	Adapter string // LoRA adapter, or empty
	// RemotePrefill: the prompt's KV is pulled from another engine.
	RemotePrefill bool
}

// Event is something that happens to a Scheduler: [Arrive], [Cancel], [Forget]
// or [Tick].
type Event interface {
	apply(s *Scheduler, now time.Duration)
}

type (
	// Arrive brings a new sequence.
	Arrive struct{ Sequence Sequence }
	// Cancel ends a sequence early; an unknown id is no error.
	Cancel struct{ ID uint64 }
	// Forget drops an idle adapter from its slot.
	Forget struct{ Adapter string }
	// Tick is the passing of time alone.
	Tick struct{}
)

// EffectKind is what became of a sequence.
type EffectKind int

// The effects. Every sequence ends with exactly one of Rejected, Finished and
// Cancelled.
const (
	RejectedFull    EffectKind = iota // the queue was full
	RejectedTooLong                   // it would never fit KV memory
	Admitted                          // it left the queue
	Token                             // an output token was computed
	Preempted                         // it returned to the queue
	Finished
	Cancelled
)

// Effect is one consequence of a step.
type Effect struct {
	Kind   EffectKind
	ID     uint64
	At     time.Duration // when it happened, at most the step's now
	Tokens int           // output tokens so far
	Cached int           // Admitted: prompt tokens found in the prefix cache
}

// Totals count since the beginning.
type Totals struct {
	PromptTokens  uint64 // of sequences whose prefill is done
	OutputTokens  uint64
	PrefixQueries uint64 // tokens looked up in the prefix cache
	PrefixHits    uint64 // tokens found there
	Preemptions   uint64
	AdapterLoads  uint64
}

// Stats is a picture of a Scheduler.
type Stats struct {
	Waiting, Running            int
	BlocksUsed, BlocksCached    int
	BlocksTotal                 int
	RunningAdapters             []string
	WaitingAdapters             []string
	MostRunning, MostBlocksUsed int // the highest seen
	Totals                      Totals
}

// sequence is a Sequence on its way.
type sequence struct {
	Sequence
	blocks    []int32       // held while running
	named     int           // of blocks, those known to the prefix cache or shared from it
	computed  int           // tokens whose KV is in memory; computed <= tokens()
	generated int           // output tokens so far
	chunk     int           // tokens computed in the iteration in flight
	readyAt   time.Duration // when its KV has been pulled from the prefiller
	running   bool
	counted   bool // its prefix look-up is in the totals
}

// tokens is the length so far: what must be computed before the next token.
func (q *sequence) tokens() int { return q.PromptTokens + q.generated }

// Scheduler is the state of a simulated engine. It has no clock: time is the
// argument of Step and must not go backwards. Not for concurrent use.
//
// Invariants between steps: len(running) <= MaxSequences; held blocks <=
// KVBlocks; running is in the order of admission; when no iteration is in
// flight, every running sequence waits for a transfer.
type Scheduler struct {
	physics  Physics
	pool     blockPool
	adapters adapterSlots

	waiting []*sequence
	running []*sequence
	byID    map[uint64]*sequence

	inFlight bool          // an iteration is being computed
	endsAt   time.Duration // when it is done
	effects  []Effect      // of the current step
	stats    Stats         // only the highs and totals are kept up to date
}

// NewScheduler returns an idle engine. The physics must be valid.
func NewScheduler(p Physics) *Scheduler {
	return &Scheduler{
		physics:  p,
		pool:     newBlockPool(p.KVBlocks),
		adapters: adapterSlots{max: p.MaxAdapters},
		byID:     map[uint64]*sequence{},
	}
}

// Watch has f told, within Step, of every block's key that comes into the prefix
// cache or leaves it. Blocks come in the order of their text.
func (s *Scheduler) Watch(f func(key uint64, stored bool)) { s.pool.watch = f }

// Step completes the iterations that ended by now, applies the event, begins
// the next iteration if none is in flight, and returns what happened, in order.
// The slice is valid until the next Step.
func (s *Scheduler) Step(e Event, now time.Duration) []Effect {
	s.effects = s.effects[:0]
	s.advance(now)
	e.apply(s, now)
	if !s.inFlight {
		s.begin(now)
	}
	return s.effects
}

// Next is when the next Tick is due; false while nothing is under way.
func (s *Scheduler) Next() (at time.Duration, ok bool) {
	if s.inFlight {
		return s.endsAt, true
	}
	for _, q := range s.running {
		if !ok || q.readyAt < at {
			at, ok = q.readyAt, true
		}
	}
	return at, ok
}

// advance lives through every instant up to now at which something is due.
func (s *Scheduler) advance(now time.Duration) {
	for {
		at, ok := s.Next()
		if !ok || at > now {
			return
		}
		if s.inFlight {
			s.complete()
		}
		s.begin(at)
	}
}

func (Tick) apply(*Scheduler, time.Duration) {}

func (e Forget) apply(s *Scheduler, _ time.Duration) { s.adapters.forget(e.Adapter) }

func (e Arrive) apply(s *Scheduler, now time.Duration) {
	q := &sequence{Sequence: e.Sequence}
	switch {
	case blocksFor(q.PromptTokens+q.OutputTokens) > s.physics.KVBlocks:
		s.emit(RejectedTooLong, q, now)
	case len(s.waiting) >= s.physics.MaxWaiting:
		s.emit(RejectedFull, q, now)
	default:
		s.byID[q.ID] = q
		s.waiting = append(s.waiting, q)
	}
}

func (e Cancel) apply(s *Scheduler, now time.Duration) {
	q, ok := s.byID[e.ID]
	if !ok {
		return
	}
	delete(s.byID, q.ID)
	if q.running {
		s.stop(q, now)
		s.running = slices.DeleteFunc(s.running, func(o *sequence) bool { return o == q })
	} else {
		s.waiting = slices.DeleteFunc(s.waiting, func(o *sequence) bool { return o == q })
	}
	s.emit(Cancelled, q, now)
}

func (s *Scheduler) emit(kind EffectKind, q *sequence, at time.Duration) {
	s.effects = append(s.effects, Effect{Kind: kind, ID: q.ID, At: at, Tokens: q.generated})
}

// stop takes from a running sequence what it holds.
func (s *Scheduler) stop(q *sequence, now time.Duration) {
	s.pool.release(q.blocks)
	s.adapters.release(q.Adapter, now)
	q.blocks, q.named, q.computed, q.chunk, q.running, q.readyAt = nil, 0, 0, 0, false, 0
}

// complete ends the iteration in flight: every sequence in it has its chunk
// computed, and those with nothing left to compute yield a token.
func (s *Scheduler) complete() {
	at := s.endsAt
	s.inFlight = false
	s.running = slices.DeleteFunc(s.running, func(q *sequence) bool {
		if q.chunk == 0 {
			return false
		}
		q.computed, q.chunk = q.computed+q.chunk, 0
		s.nameBlocks(q)
		if q.computed < q.tokens() {
			return false
		}
		if q.generated == 0 {
			s.stats.Totals.PromptTokens += uint64(q.PromptTokens)
		}
		if q.generated < q.OutputTokens {
			q.generated++
			s.stats.Totals.OutputTokens++
			s.emit(Token, q, at)
		}
		if q.generated < q.OutputTokens {
			return false
		}
		s.stop(q, at)
		delete(s.byID, q.ID)
		s.emit(Finished, q, at)
		return true
	})
}

// nameBlocks makes the blocks that have become full known to the prefix cache.
func (s *Scheduler) nameBlocks(q *sequence) {
	for full := min(q.computed/BlockTokens, len(q.Keys)); q.named < full; q.named++ {
		s.pool.name(q.blocks[q.named], q.Keys[q.named])
	}
}

// Stats returns the current picture.
func (s *Scheduler) Stats() Stats {
	st := s.stats
	st.Waiting, st.Running = len(s.waiting), len(s.running)
	st.BlocksUsed, st.BlocksCached, st.BlocksTotal = s.pool.used(), s.pool.cached, s.pool.size
	st.RunningAdapters = s.adapters.running()
	for _, q := range s.waiting {
		if q.Adapter != "" && !slices.Contains(st.WaitingAdapters, q.Adapter) {
			st.WaitingAdapters = append(st.WaitingAdapters, q.Adapter)
		}
	}
	return st
}
