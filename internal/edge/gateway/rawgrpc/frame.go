package rawgrpc

import (
	"sync/atomic"
	"time"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
)

// frame is one message as it arrived, in pieces. Its holder frees it once.
type frame struct{ parts mem.BufferSlice }

func (f *frame) size() int { return f.parts.Len() }

// free gives the pieces back; again it does nothing.
func (f *frame) free() {
	f.parts.Free()
	f.parts = nil
}

// renamed is the message with name in the place of the field at, which may be
// absent. It shares f's pieces and is freed by itself.
func (f *frame) renamed(at field, name string) *frame {
	value := protowire.AppendTag(make([]byte, 0, len(name)+8), nameField, protowire.BytesType)
	value = protowire.AppendString(value, name)
	out := make(mem.BufferSlice, 0, len(f.parts)+2)
	out = appendSlice(out, f.parts, 0, at.start)
	out = append(out, mem.SliceBuffer(value))
	return &frame{appendSlice(out, f.parts, at.end, f.size())}
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

// codec passes frames and answers as they are and leaves other messages to
// grpc's own.
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

// Marshal gives a frame's bytes, which stay the frame's too, or an answer's,
// which do not.
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

// answer is a message on its way to a client. gRPC's server takes a message as
// soon as it is handed over, and keeps it until the client lets it go; so the
// pieces are counted until each has left, and a client that lets none go for
// the time given is disconnected.
type answer struct {
	parts mem.BufferSlice

	budget *ingress.Budget
	size   int
	left   atomic.Int32 // pieces
	over   atomic.Bool  // left, or given up
	limit  time.Duration
	timer  *time.Timer
}

// piece is one of an answer's. It is the pool its buffer goes back to, which
// is how it learns that the bytes have left.
type piece struct {
	of   *answer
	data []byte
	from mem.Buffer
}

// Get is never called: a pool is asked for buffers to read into.
func (p *piece) Get(n int) *[]byte { return mem.DefaultBufferPool().Get(n) }

// Put is called once the piece has left.
func (p *piece) Put(*[]byte) {
	p.from.Free()
	p.of.moved()
}

// smallAnswer is up to how many bytes an answer is not watched: Config.MaxCalls
// of these is the most that a connection holds.
const smallAnswer = 4 << 10

// newAnswer takes f's pieces, counted in b, for a client that c disconnects.
// It is nil when b has no room.
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

// take hands the pieces over, to be freed by the taker.
func (a *answer) take() mem.BufferSlice {
	parts := a.parts
	a.parts = nil
	return parts
}

// moved notes that a piece has left.
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
