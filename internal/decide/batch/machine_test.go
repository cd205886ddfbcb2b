package batch

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// check holds a machine to its invariants after a Step.
func check(t *testing.T, m *Machine, now time.Time) {
	t.Helper()
	queued, bytes, last := len(m.retries), int64(0), time.Time{}
	for _, p := range m.retries {
		bytes += p.bytes
	}
	for e := m.waiting.Front(); e != nil; e = e.Next() {
		g := e.Value.(*group)
		rows := 0
		for _, p := range g.members {
			bytes += p.bytes
			rows += p.rows
			if p.group != g || p.batch != 0 || m.members[p.ID] != p {
				t.Fatalf("request %d is not where it says", p.ID)
			}
		}
		queued += len(g.members)
		if len(g.members) == 0 || rows != g.rows || g.deadline.Before(last) {
			t.Fatalf("a group of %d requests and %d rows, counted %d, due %v after one due %v", len(g.members), rows, g.rows, g.deadline, last)
		}
		last = g.deadline
		if m.free() && !now.Before(g.deadline) {
			t.Fatalf("a group waits at %v, due at %v, with an executor free", now, g.deadline)
		}
		if m.free() && len(g.members) >= m.config.MaxSize {
			t.Fatal("a full group waits with an executor free")
		}
	}
	for k, g := range m.open {
		if g.key != k || len(g.members) >= m.config.MaxSize {
			t.Fatalf("an open group of %d requests", len(g.members))
		}
	}
	if queued != m.queued || bytes != m.queuedBytes {
		t.Fatalf("%d requests of %d bytes wait, counted %d of %d", queued, bytes, m.queued, m.queuedBytes)
	}
	if len(m.running) > m.config.Executors || len(m.running) == 0 && queued > 0 {
		t.Fatalf("%d batches run on %d executors, %d requests wait", len(m.running), m.config.Executors, queued)
	}
	if m.free() && len(m.retries) > 0 {
		t.Fatal("a retry waits with an executor free")
	}
}

// world drives a machine at random and keeps its own account of everything.
type world struct {
	t       *testing.T
	rng     *rand.Rand
	config  Config
	m       *Machine
	now     time.Time
	timer   time.Time
	last    uint64
	pending map[uint64]*account
	batches map[uint64]Run
	tries   map[uint64]int
	ended   map[uint64]string
}

// account is what is known of a request that has not ended.
type account struct {
	key     Key
	rows    int
	arrived time.Time
	blocked time.Duration // of its wait with no executor free
	began   bool
}

func TestProperties(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		c := DefaultConfig()
		c.MaxSize, c.Executors = 2+rng.IntN(5), 1+rng.IntN(3)
		c.MaxTime = time.Duration(1+rng.IntN(20)) * time.Millisecond
		c.MaxRows = []int{0, 0, 6}[rng.IntN(3)]
		c.MaxWaiting = 1 + rng.IntN(30)
		w := &world{t: t, rng: rng, config: c, m: New(c), now: t0, pending: map[uint64]*account{},
			batches: map[uint64]Run{}, tries: map[uint64]int{}, ended: map[uint64]string{}}
		for range 400 {
			w.move()
		}
		for len(w.batches) > 0 {
			w.finish(false)
		}
		if len(w.pending) > 0 || w.m.Waiting() > 0 || len(w.m.members) > 0 || len(w.m.open) > 0 {
			t.Fatalf("seed %d: %d requests never ended, %d wait", seed, len(w.pending), w.m.Waiting())
		}
		if len(w.ended) != int(w.last) {
			t.Fatalf("seed %d: %d of %d requests ended", seed, len(w.ended), w.last)
		}
	}
}

// move lets something happen. A timer that is due comes first, as it would.
func (w *world) move() {
	next := w.now.Add(time.Duration(w.rng.IntN(3000)) * time.Microsecond)
	if !w.timer.IsZero() && !w.timer.After(next) {
		w.pass(w.timer)
		w.step(Tick{})
		return
	}
	w.pass(next)
	switch n := w.rng.IntN(10); {
	case n < 6:
		w.arrive()
	case n < 9 && len(w.batches) > 0:
		w.finish(w.rng.IntN(4) == 0)
	case len(w.pending) > 0:
		w.cancel()
	}
}

// pass lets time go by.
func (w *world) pass(to time.Time) {
	for _, a := range w.pending {
		if !a.began && !w.m.free() {
			a.blocked += to.Sub(w.now)
		}
	}
	w.now = to
}

func (w *world) arrive() {
	w.last++
	r := randomRequest(w.rng, w.last)
	e := NewArrive(w.last, r)
	key, rows, ok := KeyOf(r)
	if !ok {
		key = Key(fmt.Sprint("alone ", w.last))
	}
	alone := len(w.pending) == 0 && len(w.batches) == 0
	w.pending[w.last] = &account{key: key, rows: rows, arrived: w.now}
	out := w.step(e)
	if alone && len(out.Runs) != 1 {
		w.t.Fatalf("a lone request was not run at once: %+v", out)
	}
}

func randomRequest(rng *rand.Rand, id uint64) *tensor.Request {
	shape := []int64{1 + int64(rng.IntN(3)), 1 + int64(rng.IntN(2))}
	in := tensor.Tensor{Name: "x", Datatype: tensor.FP32, Shape: shape}
	in.Data.Float32 = make([]float32, shape[0]*shape[1])
	if rng.IntN(10) == 0 {
		in.Shape, in.Data.Float32 = nil, []float32{0} // a scalar shares with nobody
	}
	return &tensor.Request{ID: fmt.Sprint(id), Inputs: []tensor.Tensor{in}}
}

func (w *world) cancel() {
	ids := slices.Sorted(maps.Keys(w.pending))
	id := ids[w.rng.IntN(len(ids))]
	delete(w.pending, id)
	w.end(id, "cancelled")
	w.step(Cancel{id})
}

func (w *world) finish(fail bool) {
	ids := slices.Sorted(maps.Keys(w.batches))
	id := ids[w.rng.IntN(len(ids))]
	run := w.batches[id]
	delete(w.batches, id)
	if !fail {
		w.settle(run, w.step(Done{id}).Answers, "answered")
		return
	}
	if final := w.rng.IntN(4) == 0; final || len(run.Requests) == 1 {
		w.settle(run, w.step(Failed{id, final}).Failures, "failed")
		return
	}
	for _, r := range run.Requests {
		if a := w.pending[number(r)]; a != nil {
			a.began, a.blocked, a.arrived = false, 0, w.now
		}
	}
	if out := w.step(Failed{Batch: id}); len(out.Failures) > 0 {
		w.t.Fatalf("a batch of %d failed at once", len(run.Requests))
	}
}

// settle ends what a batch answered: all its members but the cancelled.
func (w *world) settle(run Run, members []Member, how string) {
	for _, r := range run.Requests {
		id := number(r)
		i := slices.IndexFunc(members, func(m Member) bool { return m.ID == id })
		if (i >= 0) != (w.pending[id] != nil) {
			w.t.Fatalf("request %d, pending %v, is in the answers at %d", id, w.pending[id], i)
		}
		if i >= 0 {
			if number(run.Requests[members[i].Index]) != id {
				w.t.Fatalf("request %d is given the answer of another", id)
			}
			delete(w.pending, id)
			w.end(id, how)
		}
	}
}

func number(r *tensor.Request) (id uint64) {
	_, _ = fmt.Sscan(r.ID, &id)
	return id
}

func (w *world) end(id uint64, how string) {
	if before, twice := w.ended[id]; twice {
		w.t.Fatalf("request %d is %s after it was %s", id, how, before)
	}
	w.ended[id] = how
}

// step makes an event happen and holds its effects to what was promised.
func (w *world) step(e Event) Effects {
	out := w.m.Step(e, w.now)
	check(w.t, w.m, w.now)
	w.timer = out.Timer
	for _, r := range out.Rejects {
		if w.m.Waiting() < w.config.MaxWaiting {
			w.t.Fatalf("request %d rejected with %d of %d waiting", r.ID, w.m.Waiting(), w.config.MaxWaiting)
		}
		delete(w.pending, r.ID)
		w.end(r.ID, "rejected")
	}
	for _, run := range out.Runs {
		w.begin(run)
	}
	return out
}

func (w *world) begin(run Run) {
	if len(run.Requests) == 0 || len(run.Requests) > w.config.MaxSize {
		w.t.Fatalf("a batch of %d", len(run.Requests))
	}
	w.batches[run.Batch] = run
	if len(w.batches) > w.config.Executors {
		w.t.Fatalf("%d batches run", len(w.batches))
	}
	rows, first, before := 0, Key(""), uint64(0)
	for i, r := range run.Requests {
		id := number(r)
		a := w.pending[id]
		if a == nil || a.began {
			w.t.Fatalf("request %d runs and is %s", id, w.ended[id])
		}
		if i == 0 {
			first = a.key
		}
		if a.key != first || id < before {
			w.t.Fatalf("a batch of keys %q and %q, of %d after %d", first, a.key, id, before)
		}
		before = id
		rows += a.rows
		a.began = true
		if w.tries[id]++; w.tries[id] > 2 || w.tries[id] == 2 && len(run.Requests) > 1 {
			w.t.Fatalf("request %d runs for the %dth time, with %d others", id, w.tries[id], len(run.Requests)-1)
		}
		if waited := w.now.Sub(a.arrived) - a.blocked; waited > w.config.MaxTime {
			w.t.Fatalf("request %d waited %v with an executor free, over %v", id, waited, w.config.MaxTime)
		}
	}
	if w.config.MaxRows > 0 && rows > w.config.MaxRows && len(run.Requests) > 1 {
		w.t.Fatalf("a batch of %d rows", rows)
	}
}

// TestLoad has 64 clients ask again as soon as they are answered, of a model
// that takes 1 ms a run and 10 µs a row, by a clock of its own: batching must
// serve them at least ten times as fast, on one executor.
func TestLoad(t *testing.T) {
	c := DefaultConfig()
	c.MaxSize, c.MaxTime = 64, 300*time.Millisecond
	m := New(c)
	now := t0
	var served, id uint64
	var runs []Run
	arrive := func() {
		id++
		e := NewArrive(id, scriptRequest(t, id, "x/FP32/4", 1))
		runs = append(runs, m.Step(e, now).Runs...)
	}
	for range 64 {
		arrive()
	}
	for now.Sub(t0) < time.Second {
		r := runs[0]
		runs = runs[1:]
		now = now.Add(time.Millisecond + time.Duration(len(r.Requests))*10*time.Microsecond)
		out := m.Step(Done{r.Batch}, now)
		runs = append(runs, out.Runs...)
		served += uint64(len(out.Answers))
		for range out.Answers {
			arrive()
		}
	}
	if unbatched := uint64(time.Second / (1010 * time.Microsecond)); served < 10*unbatched {
		t.Errorf("%d answers in a second, %d without batching", served, unbatched)
	}
}

func TestConfig(t *testing.T) {
	if c := DefaultConfig(); c.Enabled() || c.Validate() != nil {
		t.Errorf("the default is on or not valid: %v", c.Validate())
	}
	for _, change := range []func(*Config){
		func(c *Config) { c.MaxSize = -1 }, func(c *Config) { c.MaxTime = -1 },
		func(c *Config) { c.MaxRows = -1 }, func(c *Config) { c.Executors = 0 },
		func(c *Config) { c.MaxWaiting = 0 }, func(c *Config) { c.MaxWaitingBytes = 0 },
	} {
		c := DefaultConfig()
		change(&c)
		if c.Validate() == nil {
			t.Errorf("%+v is valid", c)
		}
	}
}
