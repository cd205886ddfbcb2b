package scaling

import "time"

type kind int8

const (
	finished kind = iota // a request has ended
	ready                // a replica can serve
)

// event is due at a time.
type event struct {
	at      time.Duration
	seq     uint64 // of equal times, the first pushed is due first
	kind    kind
	replica *Replica
}

func (e event) before(o event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

// events is a binary heap: heap[0] is due first.
type events struct {
	heap   []event
	pushed uint64
}

// next is when the first is due; false when there is none.
func (q *events) next() (time.Duration, bool) {
	if len(q.heap) == 0 {
		return 0, false
	}
	return q.heap[0].at, true
}

func (q *events) push(e event) {
	q.pushed++
	e.seq = q.pushed
	q.heap = append(q.heap, e)
	i := len(q.heap) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !q.heap[i].before(q.heap[parent]) {
			break
		}
		q.heap[i], q.heap[parent] = q.heap[parent], q.heap[i]
		i = parent
	}
}

// pop takes the first; there must be one.
func (q *events) pop() event {
	first, last := q.heap[0], len(q.heap)-1
	q.heap[0] = q.heap[last]
	q.heap = q.heap[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			return first
		}
		if child+1 < last && q.heap[child+1].before(q.heap[child]) {
			child++
		}
		if !q.heap[child].before(q.heap[i]) {
			return first
		}
		q.heap[i], q.heap[child] = q.heap[child], q.heap[i]
		i = child
	}
}
