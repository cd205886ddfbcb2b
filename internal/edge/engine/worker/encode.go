package worker

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"net"
	"strconv"
	"sync/atomic"
	"unsafe"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// frame is a message to a worker. The parts of its payload are the caller's
// memory, not copies.
type frame struct {
	head  []byte // 8 bytes for the sizes, then the header
	parts net.Buffers
	size  int64 // of the payload so far, a multiple of 8
	state atomic.Int32
}

// The states of a frame.
const (
	frameQueued    int32 = iota
	frameSent            // in whole or in part: it is not known
	frameWithdrawn       // by its sender, before it was sent
)

// claim moves a queued frame to another state. It returns false if the frame is no
// longer queued.
func (f *frame) claim(to int32) bool { return f.state.CompareAndSwap(frameQueued, to) }

// smallPart is how many bytes are cheaper to copy than to hand to the kernel
// one by one.
const smallPart = 512

func newFrame() *frame { return &frame{head: make([]byte, prefixBytes, 512)} }

// field begins a further member of the header's object.
func (f *frame) field(name string) {
	f.head = append(f.head, ',', '"')
	f.head = append(f.head, name...)
	f.head = append(f.head, '"', ':')
}

var zeros [8]byte

// add appends raw to the payload and writes its range to the header.
func (f *frame) add(raw []byte) {
	f.head = append(f.head, `"offset":`...)
	f.head = strconv.AppendInt(f.head, f.size, 10)
	f.head = append(f.head, `,"length":`...)
	f.head = strconv.AppendInt(f.head, int64(len(raw)), 10)
	if len(raw) == 0 {
		return
	}
	f.parts = append(f.parts, raw)
	f.size += int64(len(raw))
	if pad := -f.size & 7; pad > 0 {
		f.parts = append(f.parts, zeros[:pad])
		f.size += pad
	}
}

// seal fills in the sizes. Nothing may be added afterwards. A frame over the
// limit is a *tensor.Error.
func (f *frame) seal(limit int64) error {
	for len(f.head)%8 != 0 {
		f.head = append(f.head, ' ')
	}
	head := int64(len(f.head)) - prefixBytes
	size := 4 + head + f.size
	if size+4 > limit || head > maxHeaderBytes {
		return tensor.Errorf(tensor.KindTooLarge, "the request takes %d bytes, of them %d without tensor data; a worker takes %d and %d",
			size+4, head, limit, maxHeaderBytes)
	}
	binary.LittleEndian.PutUint32(f.head, uint32(size))
	binary.LittleEndian.PutUint32(f.head[4:], uint32(head))
	if f.size > 0 && f.size <= smallPart {
		for _, part := range f.parts {
			f.head = append(f.head, part...)
		}
		f.parts = nil
	}
	return nil
}

// request appends the "request" member.
func (f *frame) request(r *tensor.Request) error {
	if len(r.Inputs)+len(r.Outputs) > maxTensors {
		return tensor.Errorf(tensor.KindInvalid, "%d inputs and outputs; %d are allowed", len(r.Inputs)+len(r.Outputs), maxTensors)
	}
	f.field("request")
	f.head = append(f.head, `{"inputs":[`...)
	for i := range r.Inputs {
		if i > 0 {
			f.head = append(f.head, ',')
		}
		if err := f.tensor(&r.Inputs[i]); err != nil {
			return err
		}
	}
	f.head = append(f.head, ']')
	if r.ID != "" {
		f.field("id")
		f.head = openai.AppendQuoted(f.head, r.ID)
	}
	if err := f.parameters(r.Parameters); err != nil {
		return err
	}
	if len(r.Outputs) > 0 {
		f.field("outputs")
		for i, o := range r.Outputs {
			sep := byte(',')
			if i == 0 {
				sep = '['
			}
			f.head = append(f.head, sep)
			f.head = append(f.head, `{"name":`...)
			f.head = openai.AppendQuoted(f.head, o.Name)
			if err := f.parameters(o.Parameters); err != nil {
				return err
			}
			f.head = append(f.head, '}')
		}
		f.head = append(f.head, ']')
	}
	f.head = append(f.head, '}')
	return nil
}

// parameters appends the "parameters" member if there are any.
func (f *frame) parameters(p tensor.Parameters) error {
	if p == nil {
		return nil
	}
	text, err := json.Marshal(p)
	if err != nil {
		return tensor.Errorf(tensor.KindInvalid, "parameters have no JSON form: %v", err)
	}
	f.field("parameters")
	f.head = append(f.head, text...)
	return nil
}

func (f *frame) tensor(t *tensor.Tensor) error {
	if len(t.Shape) > maxRank {
		return tensor.Errorf(tensor.KindInvalid, "input %q: shape %v has more than %d sizes", t.Name, t.Shape, maxRank)
	}
	f.head = append(f.head, `{"name":`...)
	f.head = openai.AppendQuoted(f.head, t.Name)
	f.head = append(f.head, `,"shape":[`...)
	for i, size := range t.Shape {
		if i > 0 {
			f.head = append(f.head, ',')
		}
		f.head = strconv.AppendInt(f.head, size, 10)
	}
	f.head = append(f.head, `],"datatype":"`...)
	f.head = append(f.head, t.Datatype.String()...)
	f.head = append(f.head, `",`...)
	f.add(rawOf(t))
	if t.Text && t.Datatype == tensor.Bytes {
		f.head = append(f.head, `,"text":true`...)
	}
	f.written(t.Written)
	if err := f.parameters(t.Parameters); err != nil {
		return err
	}
	f.head = append(f.head, '}')
	return nil
}

// written appends the form in which the client's JSON had a tensor's data.
func (f *frame) written(w *tensor.Written) {
	if w == nil {
		return
	}
	for i, n := range w.Dims {
		if i == 0 {
			f.head = append(f.head, `,"dims":[`...)
		} else {
			f.head = append(f.head, ',')
		}
		f.head = strconv.AppendInt(f.head, int64(n), 10)
	}
	if w.Dims != nil {
		f.head = append(f.head, ']')
	}
	if w.Marks != nil {
		f.head = append(f.head, `,"marks":{`...)
		f.add(w.Marks)
		f.head = append(f.head, '}')
	}
}

// littleEndian reports whether memory has the payload's byte order.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// rawOf returns t's elements in the payload's form. It returns t's own memory
// where that has the same form.
func rawOf(t *tensor.Tensor) []byte {
	v := &t.Data
	switch t.Datatype {
	case tensor.Bytes:
		return rawBytes(v.Bytes)
	case tensor.Bool: // false and true are the bytes 0 and 1
		return memory(v.Bool)
	case tensor.Uint8:
		return v.Uint8
	case tensor.Int8:
		return memory(v.Int8)
	}
	if !littleEndian {
		return t.AppendRaw(nil)
	}
	switch t.Datatype {
	case tensor.Uint16:
		return memory(v.Uint16)
	case tensor.Uint32:
		return memory(v.Uint32)
	case tensor.Uint64:
		return memory(v.Uint64)
	case tensor.Int16:
		return memory(v.Int16)
	case tensor.Int32:
		return memory(v.Int32)
	case tensor.Int64:
		return memory(v.Int64)
	case tensor.FP32:
		return memory(v.Float32)
	case tensor.FP64:
		return memory(v.Float64)
	}
	return t.AppendRaw(make([]byte, 0, t.Len()*t.Datatype.Size()))
}

// memory returns the bytes of values in memory.
func memory[T any](values []T) []byte {
	if len(values) == 0 {
		return nil
	}
	var one T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(values)*int(unsafe.Sizeof(one)))
}

// nullLength stands for null in place of an element's length.
const nullLength = math.MaxUint32

// rawBytes returns the payload of a BYTES tensor.
func rawBytes(values [][]byte) []byte {
	n := 4 * len(values)
	for _, v := range values {
		n += len(v)
	}
	raw := make([]byte, 0, n)
	for _, v := range values {
		if v == nil {
			raw = binary.LittleEndian.AppendUint32(raw, nullLength)
			continue
		}
		raw = binary.LittleEndian.AppendUint32(raw, uint32(len(v)))
		raw = append(raw, v...)
	}
	return raw
}
