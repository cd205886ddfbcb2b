package admission

import (
	"container/heap"
	"slices"
	"strings"
)

// maxFairness is how much of a fairness id is looked at, in bytes.
const maxFairness = 128

// band is what waits of one priority.
type band struct {
	priority int32
	flows    []*flow // whose turn it is first: where tokens count, who was served least
	byID     map[string]*flow
	queued   int
	bytes    int64
}

// flow is what waits of one fairness id, oldest first.
type flow struct {
	band        *band
	id          string
	first, last *Waiter
	account     *account // where tokens count; else nil
}

// newest is, of the last of every flow, the one that came last.
func (b *band) newest() *Waiter {
	out := b.flows[0].last
	for _, f := range b.flows[1:] {
		if f.last.seq > out.seq {
			out = f.last
		}
	}
	return out
}

// put makes w wait, before all others of its priority if first.
func (m *Machine) put(w *Waiter, first bool) {
	b := m.band(w.Priority)
	f := m.flow(b, w.Fairness)
	w.flow = f
	switch {
	case f.first == nil:
		f.first, f.last = w, w
	case first:
		w.next, f.first.prev, f.first = f.first, w, w
	default:
		w.prev, f.last.next, f.last = f.last, w, w
	}
	if first {
		i := slices.Index(b.flows, f)
		copy(b.flows[1:], b.flows[:i])
		b.flows[0] = f
	}
	b.queued++
	b.bytes += w.Bytes
	m.queued++
	m.bytes += w.Bytes
	if !w.Deadline.IsZero() {
		heap.Push(&m.due, w)
	}
}

// take takes w out. Its flow's turn is over if turn.
func (m *Machine) take(w *Waiter, turn bool) {
	f := w.flow
	b := f.band
	if w.prev == nil {
		f.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		f.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.flow, w.prev, w.next = nil, nil, nil
	b.queued--
	b.bytes -= w.Bytes
	m.queued--
	m.bytes -= w.Bytes
	if !w.Deadline.IsZero() {
		heap.Remove(&m.due, w.at)
	}
	if f.first != nil && !turn {
		return
	}
	i := slices.Index(b.flows, f)
	b.flows = slices.Delete(b.flows, i, i+1)
	if f.first != nil {
		b.queueUp(f)
		return
	}
	if f.account != nil {
		f.account.flow = nil
	}
	delete(b.byID, f.id)
	m.flows--
	if len(b.flows) == 0 {
		i := slices.Index(m.bands, b)
		m.bands = slices.Delete(m.bands, i, i+1)
	}
}

// band finds or makes the band of a priority.
func (m *Machine) band(priority int32) *band {
	i, ok := slices.BinarySearchFunc(m.bands, priority, func(b *band, p int32) int {
		switch {
		case b.priority > p:
			return -1
		case b.priority < p:
			return 1
		}
		return 0
	})
	if !ok {
		m.bands = slices.Insert(m.bands, i, &band{priority: priority, byID: map[string]*flow{}})
	}
	return m.bands[i]
}

// shared is the flow of the ids that are too many to be told apart; no header
// holds its name.
const shared = "\n"

// clipped is what is looked at of a fairness id.
func clipped(id string) string {
	if len(id) > maxFairness {
		return strings.Clone(id[:maxFairness])
	}
	return id
}

// flow finds or makes the flow of a fairness id.
func (m *Machine) flow(b *band, id string) *flow {
	id = clipped(id)
	if f := b.byID[id]; f != nil {
		return f
	}
	if m.flows >= m.config.MaxFlows {
		id = shared
		if f := b.byID[id]; f != nil {
			return f
		}
	}
	f := &flow{band: b, id: id, account: m.account(b.priority, id)}
	if f.account != nil {
		f.account.flow = f
	}
	b.byID[id] = f
	b.queueUp(f)
	m.flows++
	return f
}
