package batch

import (
	"container/list"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// Machine batches one model's requests. It is not for concurrent use.
//
// After every Step:
//
//	0 <= len(running) <= Executors
//	len(running) == 0                 ⇒ nothing waits
//	len(running) < Executors          ⇒ what waits is neither full nor older than MaxTime
//	open[k] is a waiting, unclosed group of key k
//	waiting is ordered by deadline
//	queued, queuedBytes are sums over waiting and retries
type Machine struct {
	config  Config
	members map[uint64]*member
	waiting *list.List // of *group
	// retries are members of failed batches, each to run alone, first of all.
	retries []*member
	open    map[Key]*group
	running map[uint64]*run
	last    uint64 // batch id

	queued      int
	queuedBytes int64
}

// group is a batch that has not begun.
type group struct {
	key      Key
	members  []*member
	rows     int
	deadline time.Time // its first request's arrival + MaxTime
	element  *list.Element
}

// run is a batch that has.
type run struct {
	members []*member // nil in place of the cancelled
	live    int
}

// member is a request that has not ended: in a group, in a run, or, with
// neither, in retries.
type member struct {
	Arrive
	group *group
	batch uint64
}

// New is a Machine without requests. The Config must be valid.
func New(c Config) *Machine {
	return &Machine{config: c, members: map[uint64]*member{}, waiting: list.New(),
		open: map[Key]*group{}, running: map[uint64]*run{}}
}

// Waiting is how many requests have arrived and not begun.
func (m *Machine) Waiting() int { return m.queued }

// Step takes an event that happens now and decides what follows from it. Times
// must not go back. Events about requests and batches that are unknown, or
// have ended, change nothing.
func (m *Machine) Step(e Event, now time.Time) Effects {
	var out Effects
	freed := false
	switch e := e.(type) {
	case Arrive:
		m.arrive(e, now, &out)
	case Cancel:
		m.cancel(e.ID, &out)
	case Done:
		freed = m.done(e.Batch, &out)
	case Failed:
		freed = m.failed(e, &out)
	}
	m.start(now, freed, &out)
	if front := m.waiting.Front(); front != nil && m.free() {
		out.Timer = front.Value.(*group).deadline
	}
	return out
}

func (m *Machine) free() bool { return len(m.running) < m.config.Executors }

// arrive puts a request into the open group of its key, or a new one.
func (m *Machine) arrive(a Arrive, now time.Time, out *Effects) {
	if reason := m.full(&a); reason != "" {
		out.Rejects = append(out.Rejects, Reject{a.ID, reason})
		return
	}
	p := &member{Arrive: a}
	m.members[a.ID] = p
	m.queue(p, 1)
	g := m.open[a.key]
	if g != nil && m.config.MaxRows > 0 && g.rows+a.rows > m.config.MaxRows {
		m.close(g, out)
		g = nil
	}
	if g == nil || a.single {
		g = &group{key: a.key, deadline: now.Add(m.config.MaxTime)}
		g.element = m.waiting.PushBack(g)
		if !a.single {
			m.open[a.key] = g
		}
	}
	p.group = g
	g.members = append(g.members, p)
	g.rows += a.rows
	if len(g.members) >= m.config.MaxSize || m.config.MaxRows > 0 && g.rows >= m.config.MaxRows {
		m.close(g, out)
	}
}

// full is why there is no room for a request that has to wait. One that finds
// nobody in flight does not.
func (m *Machine) full(a *Arrive) Reason {
	switch {
	case m.members[a.ID] != nil:
		return Duplicate
	case len(m.running) == 0:
		return ""
	case m.queued >= m.config.MaxWaiting:
		return TooManyWaiting
	case m.queuedBytes+a.bytes > m.config.MaxWaitingBytes:
		return TooManyBytes
	}
	return ""
}

// queue counts a member that begins (+1) or ceases (-1) to wait.
func (m *Machine) queue(p *member, sign int) {
	m.queued += sign
	m.queuedBytes += int64(sign) * p.bytes
}

// close lets a group take no more, and starts it if an executor is free.
func (m *Machine) close(g *group, out *Effects) {
	if m.open[g.key] == g {
		delete(m.open, g.key)
	}
	if m.free() {
		m.begin(g, out)
	}
}

// start begins what may begin. An executor that has just come free takes the
// oldest group, whether it is due or not.
func (m *Machine) start(now time.Time, freed bool, out *Effects) {
	for m.free() {
		if len(m.retries) > 0 {
			p := m.retries[0]
			m.retries[0] = nil // not kept alive by the slice
			m.retries = m.retries[1:]
			m.run([]*member{p}, out)
			freed = false
			continue
		}
		front := m.waiting.Front()
		if front == nil {
			return
		}
		g := front.Value.(*group)
		if len(m.running) > 0 && !freed && now.Before(g.deadline) {
			return
		}
		m.begin(g, out)
		freed = false
	}
}

// begin runs a group.
func (m *Machine) begin(g *group, out *Effects) {
	m.remove(g)
	m.run(g.members, out)
}

// remove takes a group out of the waiting ones.
func (m *Machine) remove(g *group) {
	m.waiting.Remove(g.element)
	if m.open[g.key] == g {
		delete(m.open, g.key)
	}
}

// run makes a batch of members that waited. It keeps their slice.
func (m *Machine) run(members []*member, out *Effects) {
	m.last++
	requests := make([]*tensor.Request, len(members))
	for i, p := range members {
		requests[i] = p.Request
		p.group, p.batch = nil, m.last
		m.queue(p, -1)
	}
	m.running[m.last] = &run{members: members, live: len(members)}
	out.Runs = append(out.Runs, Run{Batch: m.last, Requests: requests})
}

// cancel ends a request: out of its group, or out of what its batch answers.
func (m *Machine) cancel(id uint64, out *Effects) {
	p := m.members[id]
	if p == nil {
		return
	}
	delete(m.members, id)
	same := func(q *member) bool { return q == p }
	if r := m.running[p.batch]; r != nil {
		r.members[slices.IndexFunc(r.members, same)] = nil
		if r.live--; r.live == 0 {
			out.Aborts = append(out.Aborts, p.batch)
		}
		return
	}
	m.queue(p, -1)
	g := p.group
	if g == nil {
		m.retries = slices.DeleteFunc(m.retries, same)
		return
	}
	g.members = slices.DeleteFunc(g.members, same)
	if g.rows -= p.rows; len(g.members) == 0 {
		m.remove(g)
	}
}

// end takes a batch out of the running ones; nil if it is not one.
func (m *Machine) end(batch uint64) *run {
	r := m.running[batch]
	delete(m.running, batch)
	return r
}

// done answers a batch's members. It reports whether an executor came free.
func (m *Machine) done(batch uint64, out *Effects) bool {
	r := m.end(batch)
	if r == nil {
		return false
	}
	out.Answers = m.finish(r)
	return true
}

// failed fails a batch's one member, or has several run alone.
func (m *Machine) failed(e Failed, out *Effects) bool {
	r := m.end(e.Batch)
	if r == nil {
		return false
	}
	if len(r.members) == 1 || e.Final {
		out.Failures = m.finish(r)
		return true
	}
	for _, p := range r.members {
		if p != nil {
			p.batch = 0
			m.queue(p, 1)
			m.retries = append(m.retries, p)
		}
	}
	return true
}

// finish ends the members of a run that are still there.
func (m *Machine) finish(r *run) []Member {
	out := make([]Member, 0, r.live)
	for i, p := range r.members {
		if p != nil {
			delete(m.members, p.ID)
			out = append(out, Member{p.ID, i})
		}
	}
	return out
}
