package rawgrpc

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
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
