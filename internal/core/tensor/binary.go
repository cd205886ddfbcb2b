package tensor

import (
	"encoding/json"
	"maps"
	"math"
	"strconv"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
)

// The parameters of the binary tensor data extension.
const (
	binarySizeParameter    = "binary_data_size"   // of a tensor whose data is binary: its bytes
	binaryDataParameter    = "binary_data"        // of a requested output
	binaryDefaultParameter = "binary_data_output" // of a request: for outputs that do not say
)

// binaryTail is what follows the JSON of a binary request or response: the
// data of its binary tensors, in their order.
type binaryTail struct{ data []byte }

// DecodeBinaryRequest reads a request of the binary tensor data extension: its
// JSON, and the tail with the data of the inputs that have a binary_data_size,
// which is removed from their parameters. The tensors may alias the tail,
// which the caller gives up; numbers at addresses that are a multiple of their
// size need no copy.
func DecodeBinaryRequest(head, tail []byte) (*Request, error) {
	return decodeRequest(&scanner{data: head, tail: &binaryTail{tail}})
}

// endOfTail checks that all binary data was used.
func (s *scanner) endOfTail() *Error {
	if s.tail != nil && len(s.tail.data) > 0 {
		return Errorf(KindInvalid, "%d bytes of binary data are left over: the sum of %s is too small", len(s.tail.data), binarySizeParameter)
	}
	return nil
}

// binaryValues reads t's data from the tail; ok is false if it is not there.
func (s *scanner) binaryValues(role string, t *Tensor) (ok bool, err *Error) {
	value, given := t.Parameters[binarySizeParameter]
	if s.tail == nil || !given {
		return false, nil
	}
	size, ok := byteCount(value)
	if !ok {
		return false, Errorf(KindInvalid, "%s %q: %s is %v, must be a whole number of bytes", role, t.Name, binarySizeParameter, value)
	}
	if size > int64(len(s.tail.data)) {
		return false, Errorf(KindInvalid, "%s %q: %s is %d, but %d bytes of binary data are left", role, t.Name, binarySizeParameter, size, len(s.tail.data))
	}
	raw := s.tail.data[:size:size]
	s.tail.data = s.tail.data[size:]
	delete(t.Parameters, binarySizeParameter)
	if err := t.AdoptRaw(raw); err != nil {
		return false, Errorf(KindInvalid, "%v", err)
	}
	return true, nil
}

// byteCount reads a JSON number of bytes.
func byteCount(value any) (int64, bool) {
	number, ok := value.(json.Number)
	if !ok {
		return 0, false
	}
	if n, err := number.Int64(); err == nil {
		return n, n >= 0
	}
	f, err := number.Float64() // 16.0
	return int64(f), err == nil && f >= 0 && f == math.Trunc(f) && f < 1<<53
}

// WantsBinary reports whether r asks for an output of its response in binary
// form: the requested output's own binary_data, else the request's
// binary_data_output.
func (r *Request) WantsBinary(output string) bool {
	for i := range r.Outputs {
		if r.Outputs[i].Name == output {
			if own, ok := r.Outputs[i].Parameters[binaryDataParameter].(bool); ok {
				return own
			}
			break
		}
	}
	all, _ := r.Parameters[binaryDefaultParameter].(bool)
	return all
}

// AppendBinaryResponse appends the JSON of r, as AppendResponse does, but for
// the outputs that binary picks has their binary_data_size in place of data.
// The caller sends their binary forms behind it, in order. BYTES that are not
// UTF-8 are then no error.
func AppendBinaryResponse(dst []byte, r *Response, binary func(output string) bool) ([]byte, error) {
	return appendResponse(dst, r, binary)
}

// withSize is p with the size of a tensor's binary data.
func withSize(p Parameters, size int) Parameters {
	out := make(Parameters, len(p)+1)
	maps.Copy(out, p)
	out[binarySizeParameter] = size
	return out
}

// SplitBinary reads the length of the JSON at the start of a body of total
// bytes, as the extension's header gives it.
func SplitBinary(header string, total int64) (int64, error) {
	n, err := strconv.ParseInt(header, 10, 64)
	if err != nil || n < 0 {
		return 0, Errorf(KindInvalid, "Inference-Header-Content-Length is %q, must be a whole number of bytes", excerpt.Of(header, maxInput))
	}
	if total >= 0 && n > total {
		return 0, Errorf(KindInvalid, "Inference-Header-Content-Length is %d, but the body has %d bytes", n, total)
	}
	return n, nil
}
