package batch

import (
	"encoding/binary"
	"encoding/json"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// Key tells which requests may share a batch: those of equal keys.
type Key string

// KeyOf is a request's key and its number of rows. The key holds the model
// and its version, each input's name, datatype (text apart from bytes), shape
// without the rows, content type and how its data nests, in the request's order,
// the request's content type and the requested outputs with their parameters. Custom parameters and headers are
// not in it.
//
// A request that cannot share a batch is not ok: one without inputs, of zero
// rows, with rows of no elements, or whose inputs do not agree on how many
// rows there are.
func KeyOf(r *tensor.Request) (key Key, rows int, ok bool) {
	rows, ok = rowsOf(r)
	if !ok {
		return "", rows, false
	}
	b := make([]byte, 0, 128)
	b = appendText(b, r.ModelName)
	b = appendText(b, r.ModelVersion)
	b = appendValue(b, r.Parameters[contentType])
	b = binary.AppendUvarint(b, uint64(len(r.Inputs)))
	for i := range r.Inputs {
		t := &r.Inputs[i]
		b = appendText(b, t.Name)
		b = append(b, byte(t.Datatype))
		if t.Text {
			b = append(b, 't')
		}
		b = binary.AppendUvarint(b, uint64(len(t.Shape)))
		for _, size := range t.Shape[1:] {
			b = binary.AppendUvarint(b, uint64(size))
		}
		b = appendValue(b, t.Parameters[contentType])
		if t.Written != nil && t.Written.Dims != nil {
			for _, size := range t.Written.Dims[1:] {
				b = binary.AppendUvarint(append(b, 'n'), uint64(size))
			}
		}
	}
	for _, o := range r.Outputs {
		b = appendText(b, o.Name)
		if len(o.Parameters) == 0 {
			b = appendText(b, "")
		} else {
			b = appendValue(b, map[string]any(o.Parameters))
		}
	}
	return Key(b), rows, true
}

// rowsOf is the number of rows all inputs have; not ok if there is none.
func rowsOf(r *tensor.Request) (rows int, ok bool) {
	for i := range r.Inputs {
		t := &r.Inputs[i]
		shape := t.Shape
		if len(shape) == 0 || shape[0] < 1 || i > 0 && shape[0] != int64(rows) {
			return max(rows, 1), false
		}
		// Rows that hold something are bounded by the data. Whose elements are
		// whose, nobody knows where they do not fill the shape.
		if int64(t.Len()) < shape[0] || !t.Filled() {
			return max(rows, 1), false
		}
		rows = int(shape[0])
	}
	return max(rows, 1), len(r.Inputs) > 0
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// appendValue appends a parameter's JSON; nothing is shorter than "null" and
// different from it.
func appendValue(b []byte, v any) []byte {
	if v == nil {
		return appendText(b, "")
	}
	text, err := json.Marshal(v)
	if err != nil {
		// Parameters are JSON already; what is none shares with its like.
		text = []byte("!" + err.Error())
	}
	return appendText(b, string(text))
}

// headerSize is what a BYTES element takes beside its text, in bytes.
const headerSize = 24

// sizeOf is the memory a request's tensors take, in bytes.
func sizeOf(r *tensor.Request) int64 {
	var n int64
	for i := range r.Inputs {
		t := &r.Inputs[i]
		switch t.Datatype {
		case tensor.Bytes:
			for _, text := range t.Data.Bytes {
				n += headerSize + int64(len(text))
			}
		case tensor.FP16, tensor.BF16: // held as float32
			n += 4 * int64(t.Len())
		default:
			n += int64(t.Datatype.Size()) * int64(t.Len())
		}
	}
	return n
}
