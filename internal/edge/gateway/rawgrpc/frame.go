package rawgrpc

import (
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
)

// frame is one message as it arrived, in pieces. Its holder frees it once.
type frame struct {
	parts mem.BufferSlice
	held  *share // of the budget; nil for a message that does not count
}

func (f *frame) size() int { return f.parts.Len() }

// free returns the pieces to their pool. A second call does nothing.
func (f *frame) free() {
	f.parts.Free()
	f.held.give()
	f.parts, f.held = nil, nil
}

// share is what a message takes of the budget, and of its client's share there. One
// goroutine at a time uses it.
type share struct {
	budget *ingress.Budget
	client string
	size   int64 // taken
	shared int64 // of it, counted as client's
}

var (
	errNoMemory = errorf(codes.ResourceExhausted, "the gateway's buffer for messages is full: send the call again later")
	errNoShare  = errorf(codes.ResourceExhausted, "the messages of this client's calls fill its share of the gateway's buffer: send fewer at a time")
)

// take counts n bytes more; those of a long message count as its client's. After an error
// the caller must give all of them back.
func (s *share) take(n int) error {
	if s == nil || n <= 0 {
		return nil
	}
	if !s.budget.Take(int64(n)) {
		return errNoMemory
	}
	if s.size += int64(n); s.size <= shortMessage {
		return nil
	}
	more := s.size - s.shared
	if !s.budget.Share(s.client, more) {
		return errNoShare
	}
	s.shared += more
	return nil
}

// back gives n of the bytes back.
func (s *share) back(n int) {
	if s == nil {
		return
	}
	s.budget.Give(int64(n))
	s.size -= int64(n)
	over := min(s.shared, int64(n))
	s.budget.Unshare(s.client, over)
	s.shared -= over
}

// give gives everything back.
func (s *share) give() {
	if s != nil {
		s.back(int(s.size))
	}
}

// shortMessage is the size in bytes up to which a message does not count as its client's:
// the number of calls bounds those.
const shortMessage = 64 << 10

// renamed returns the message with name in place of the field at, which may be
// absent. The result shares f's pieces, takes what f holds of the budget, and must be
// freed as well.
func (f *frame) renamed(at field, name string) *frame {
	value := protowire.AppendTag(make([]byte, 0, len(name)+8), nameField, protowire.BytesType)
	value = protowire.AppendString(value, name)
	out := make(mem.BufferSlice, 0, len(f.parts)+2)
	out = appendSlice(out, f.parts, 0, at.start)
	out = append(out, mem.SliceBuffer(value))
	renamed := &frame{parts: appendSlice(out, f.parts, at.end, f.size()), held: f.held}
	f.held = nil
	return renamed
}

// appendSlice appends the bytes [from, to) of parts, sharing them.
func appendSlice(out, parts mem.BufferSlice, from, to int) mem.BufferSlice {
	for _, p := range parts {
		n := p.Len()
		if from < n && to > 0 {
			if s := p.Slice(max(from, 0), min(to, n)); s.Len() > 0 {
				out = append(out, s)
			}
		}
		from, to = from-n, to-n
	}
	return out
}

// codec passes frames and answers on unchanged, and uses grpc's own codec for other
// messages.
type codec struct{ encoding.CodecV2 }

// Unmarshal keeps a frame's bytes.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	data.Ref()
	f.parts = data
	return nil
}

// Marshal returns the bytes of a frame, which the frame keeps too, or of an
// answer, which gives them up.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case *frame:
		m.parts.Ref()
		return m.parts, nil
	case *answer:
		return m.take(), nil
	default:
		return c.CodecV2.Marshal(v)
	}
}

// answer is a message that is being sent to a client. gRPC's server accepts a
// message at once and keeps it until the client reads it. So the pieces are counted
// until each has been sent, and a client that reads none for the given time is
// disconnected.
type answer struct {
	parts mem.BufferSlice

	budget *ingress.Budget
	size   int
	left   atomic.Int32 // pieces
	over   atomic.Bool  // left, or given up
	limit  time.Duration
	timer  *time.Timer
}

// piece is a piece of an answer. It poses as the pool of its buffer: gRPC returns
// the buffer to it when the bytes have been sent.
type piece struct {
	of   *answer
	data []byte
	from mem.Buffer
}

// Get is never called: gRPC gets buffers only to read into.
func (p *piece) Get(n int) *[]byte { return mem.DefaultBufferPool().Get(n) }

// Put is called when the piece has been sent.
func (p *piece) Put(*[]byte) {
	p.from.Free()
	p.of.moved()
}

// smallAnswer is the size in bytes up to which an answer is not watched. A
// connection has at most Config.MaxCalls of these.
const smallAnswer = 4 << 10

// newAnswer makes an answer of f's pieces and counts them in b; c disconnects the
// client. It returns nil if b has no room.
func newAnswer(f *frame, b *ingress.Budget, limit time.Duration, c interface{ Close() error }) *answer {
	a := &answer{parts: f.parts, budget: b, size: f.parts.Len(), limit: limit}
	if a.size <= smallAnswer {
		f.parts = nil
		return a
	}
	if !b.Take(int64(a.size)) {
		f.free()
		return nil
	}
	a.parts = make(mem.BufferSlice, len(f.parts))
	pieces := make([]piece, len(f.parts))
	for i, from := range f.parts {
		p := &pieces[i]
		*p = piece{of: a, data: from.ReadOnlyData(), from: from}
		if mem.IsBelowBufferPoolingThreshold(cap(p.data)) {
			a.parts[i] = from // would not come back
			continue
		}
		a.parts[i] = mem.NewBuffer(&p.data, p)
		a.left.Add(1)
	}
	f.parts = nil
	if a.left.Load() == 0 {
		b.Give(int64(a.size))
		return a
	}
	a.timer = time.AfterFunc(limit, func() {
		if a.over.CompareAndSwap(false, true) {
			_ = c.Close() // of a client that is to go anyway
			b.Give(int64(a.size))
		}
	})
	return a
}

// take returns the pieces, which the caller must free.
func (a *answer) take() mem.BufferSlice {
	parts := a.parts
	a.parts = nil
	return parts
}

// moved records that a piece has been sent.
func (a *answer) moved() {
	if a.left.Add(-1) > 0 {
		if !a.over.Load() {
			a.timer.Reset(a.limit)
		}
		return
	}
	a.timer.Stop()
	if a.over.CompareAndSwap(false, true) {
		a.budget.Give(int64(a.size))
	}
}
