// Package safetensors reads the headers of safetensors files, and the indexes
// of models whose weights are spread over several such files.
//
// A file is 8 bytes with the header's length (little-endian), the header (a
// JSON object of tensors by name, padded with white space), and the tensors'
// bytes. The format is described at
// https://huggingface.co/docs/safetensors. Every header is treated as hostile:
// what is accepted here describes each byte of the file exactly once.
package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	// PrefixBytes is the length of a file's first part, which holds the length
	// of the second.
	PrefixBytes = 8
	// MaxHeader bounds a header: the format's own limit.
	MaxHeader = 100_000_000
	// MaxRank bounds the dimensions of a tensor: as many as libraries take.
	MaxRank = 64
	// maxDepth bounds how deep values nest that a header need not have.
	maxDepth = 8
)

// ErrMalformed is the cause of every error about a header's content.
var ErrMalformed = errors.New("malformed header")

// Dtype is the type of a tensor's elements, by the format's name for it.
type Dtype string

// dtypeBits is the width of an element.
var dtypeBits = map[Dtype]int{
	"BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
	"I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64,
	"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
	"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}

// Bits is the width of one element in bits, 0 for a name the format lacks.
func (d Dtype) Bits() int { return dtypeBits[d] }

// Dtypes lists the names of all types, sorted.
func Dtypes() []Dtype {
	out := make([]Dtype, 0, len(dtypeBits))
	for d := range dtypeBits {
		out = append(out, d)
	}
	slices.Sort(out)
	return out
}

// Tensor is one entry of a header.
type Tensor struct {
	Name  string
	Dtype Dtype
	// Shape holds the dimensions, outermost first; empty for a scalar.
	Shape []int64
	// Begin and End are the offsets of the tensor's bytes from the end of the
	// header: 0 <= Begin <= End. Elements are row-major, little-endian.
	Begin, End int64
}

// Bytes is the size of the tensor.
func (t *Tensor) Bytes() int64 { return t.End - t.Begin }

// Elements is the number of elements, which [Parse] has found to fit.
func (t *Tensor) Elements() int64 {
	n := int64(1)
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Header is a file's header.
type Header struct {
	// Tensors are in the order of their bytes in the file, without gaps:
	// Tensors[0].Begin == 0, and each begins where the one before ends.
	Tensors []Tensor
	// Metadata is the file's own text, "__metadata__"; nil for none.
	Metadata map[string]string
	// Start is the offset in the file of the first tensor's first byte.
	Start int64
}

// Length reads the first 8 bytes of a file of size bytes: how many bytes of
// header follow.
func Length(prefix []byte, size int64) (int64, error) {
	if len(prefix) < PrefixBytes || size < PrefixBytes {
		return 0, malformed("shorter than %d bytes", PrefixBytes)
	}
	n := binary.LittleEndian.Uint64(prefix)
	if n > MaxHeader {
		return 0, malformed("says it is %d bytes long; at most %d are allowed", n, MaxHeader)
	}
	if int64(n) > size-PrefixBytes {
		return 0, malformed("says it is %d bytes long in a file of %d", n, size)
	}
	return int64(n), nil
}

// Parse reads a header, without the 8 bytes before it, of a file of size bytes.
// The result shares no memory with raw. Every error is an [ErrMalformed] and
// names the tensor at fault.
func Parse(raw []byte, size int64) (*Header, error) {
	if len(raw) > MaxHeader {
		return nil, malformed("is %d bytes long; at most %d are allowed", len(raw), MaxHeader)
	}
	h := &Header{Start: PrefixBytes + int64(len(raw))}
	if size < h.Start {
		return nil, malformed("is %d bytes long in a file of %d", len(raw), size)
	}
	if len(raw) == 0 || raw[0] != '{' {
		return nil, malformed("does not begin with {")
	}
	s := &scanner{b: raw}
	err := s.object(func(name string) error {
		if name == "__metadata__" {
			return s.metadata(h)
		}
		t, err := s.tensor(name)
		if err != nil {
			return err
		}
		h.Tensors = append(h.Tensors, t)
		return nil
	})
	if err == nil {
		err = s.end()
	}
	if err == nil {
		err = h.check(size)
	}
	if err != nil {
		return nil, err
	}
	return h, nil
}

// check puts the tensors in order and finds overlaps, gaps, wrong sizes and
// names given twice.
func (h *Header) check(size int64) error {
	slices.SortFunc(h.Tensors, func(a, b Tensor) int {
		switch {
		case a.Begin != b.Begin:
			return compare(a.Begin, b.Begin)
		case a.End != b.End:
			return compare(a.End, b.End)
		}
		return strings.Compare(a.Name, b.Name)
	})
	data, at := size-h.Start, int64(0)
	names := make(map[string]struct{}, len(h.Tensors))
	for i := range h.Tensors {
		t := &h.Tensors[i]
		if _, twice := names[t.Name]; twice {
			return malformed("%s: is there twice", quote(t.Name))
		}
		names[t.Name] = struct{}{}
		switch {
		case t.End > data:
			return malformed("%s: ends at byte %d of %d: the file is cut, or the offset wrong", quote(t.Name), t.End, data)
		case t.Begin < at:
			return malformed("%s: begins at byte %d, before byte %d where %s ends", quote(t.Name), t.Begin, at, quote(h.Tensors[i-1].Name))
		case t.Begin > at:
			return malformed("%s: begins at byte %d; bytes %d to %d belong to no tensor", quote(t.Name), t.Begin, at, t.Begin)
		}
		at = t.End
	}
	if at != data {
		return malformed("the tensors end at byte %d of %d", at, data)
	}
	return nil
}

// checkSize compares a tensor's shape with the bytes it takes.
func (t *Tensor) checkSize() error {
	width := t.Dtype.Bits()
	if width == 0 {
		return malformed("%s: unknown dtype %s", quote(t.Name), quote(string(t.Dtype)))
	}
	count := uint64(1)
	for _, dim := range t.Shape {
		hi, lo := bits.Mul64(count, uint64(dim))
		if hi != 0 || lo > math.MaxInt64/64 {
			return malformed("%s: shape %v is too large", quote(t.Name), t.Shape[:min(len(t.Shape), 8)])
		}
		count = lo
	}
	size := count * uint64(width)
	if size%8 != 0 {
		return malformed("%s: %d elements of %s end within a byte", quote(t.Name), count, t.Dtype)
	}
	if t.Begin > t.End {
		return malformed("%s: begins at byte %d and ends at %d", quote(t.Name), t.Begin, t.End)
	}
	if size/8 != uint64(t.End-t.Begin) {
		return malformed("%s: %d elements of %s take %d bytes, its data_offsets span %d", quote(t.Name), count, t.Dtype, size/8, t.End-t.Begin)
	}
	return nil
}

func compare(a, b int64) int {
	if a < b {
		return -1
	}
	return 1
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

// quote makes a hostile name fit for an error: one line, bounded.
func quote(s string) string {
	const most = 120
	if len(s) > most {
		cut := most
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		return fmt.Sprintf("%q…", s[:cut])
	}
	return fmt.Sprintf("%q", s)
}
