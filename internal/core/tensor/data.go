package tensor

import (
	"fmt"
	"math"
)

// values reads the data at pos into t, whose shape and datatype are known.
func (s *scanner) values(role string, t *Tensor) *Error {
	want, open, err := declared(t.Shape)
	if err != nil {
		return named(role, t, err)
	}
	// Code of models writes shapes as it likes, and texts are read by code alone.
	exact := open < 0 && t.Datatype != Bytes && role == "input"
	if s.space() == 'n' && want == 0 && s.literal("null") {
		return nil
	}
	t.Text = t.Datatype == Bytes
	start := *s
	s.noting = true
	dims, err := readValues(s, t.Datatype, &t.Data, want, exact)
	t.Written = s.noted(dims)
	if err != nil {
		if err.Type != tooMany {
			return named(role, t, err)
		}
		// Count what there is, without keeping it, to say so.
		*s = start
		n, err := s.count()
		if err != nil {
			return err
		}
		return mismatched(role, t, want, int64(n))
	}
	got := int64(t.Len())
	if open < 0 {
		if exact && got != want {
			return mismatched(role, t, want, got)
		}
		return nil
	}
	if want == 0 || got%want != 0 {
		return named(role, t, Errorf(KindInvalid, "shape %v cannot hold %d elements: no size for -1 fits", t.Shape, got))
	}
	t.Shape[open] = got / want
	return nil
}

// noted is how the data with these lengths of arrays was written, nil of plain
// data; the next data are noted anew.
func (s *scanner) noted(dims []int) *Written {
	w := s.written
	s.noting, s.written, s.marked = false, Written{}, false
	if len(dims) > 1 {
		w.Dims = dims
	}
	if w.Dims == nil && w.Marks == nil {
		return nil
	}
	return &w
}

// declared is the number of elements the shape asks for, not counting the
// size written -1, whose index is open (else -1).
func declared(shape []int64) (want int64, open int, err *Error) {
	open = -1
	known := make([]int64, 0, 8)
	for i, size := range shape {
		switch {
		case size == -1 && open < 0:
			open = i
		case size < 0:
			return 0, open, Errorf(KindInvalid, "shape %v has a negative size", shape)
		default:
			known = append(known, size)
		}
	}
	want, ok := Elements(known)
	if !ok {
		// More than any body holds; the data will fall short of it.
		want = math.MaxInt64
	}
	return want, open, nil
}

// count counts the scalars of the value at pos.
func (s *scanner) count() (n int, err *Error) {
	if s.space() != '[' {
		_, err = s.skip()
		return 1, err
	}
	err = s.array(func(int) *Error {
		m, err := s.count()
		n += m
		return err
	})
	return n, err
}

// mismatched is the error for data of another size than its shape's.
func mismatched(role string, t *Tensor, want, got int64) *Error {
	holds := fmt.Sprint(want)
	if want == math.MaxInt64 {
		holds = "more than 2^63"
	}
	return Errorf(KindInvalid, "%s %q: shape %v holds %s elements, data has %d", role, t.Name, t.Shape, holds, got)
}

// named puts the tensor, and the element where there is one, before an
// error's message.
func named(role string, t *Tensor, err *Error) *Error {
	if err.Kind != KindInvalid {
		return err
	}
	if len(err.Path) == 1 {
		err.Message = fmt.Sprintf("%s %q: element %d: %s", role, t.Name, err.Path[0], err.Message)
	} else {
		err.Message = fmt.Sprintf("%s %q: %s", role, t.Name, err.Message)
	}
	return err
}
