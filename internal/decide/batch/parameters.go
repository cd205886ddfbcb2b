package batch

import (
	"reflect"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// The parameters that are not lists by row in a batch.
const (
	contentType = "content_type"
	headers     = "headers"
)

// lists makes one set of parameters of several: of gives the i-th request's.
func (l Layout) lists(of func(i int) tensor.Parameters) tensor.Parameters {
	var out tensor.Parameters
	row := 0
	for i, rows := range l.rows {
		for name, value := range of(i) {
			if out == nil {
				out = tensor.Parameters{}
			}
			if name == contentType || name == headers {
				out[name] = value
				continue
			}
			values, _ := out[name].([]any)
			if values == nil {
				values = make([]any, l.sum)
				out[name] = values
			}
			for n := range rows {
				values[row+n] = value
			}
		}
		row += rows
	}
	return out
}

// unlist puts a value in place of each list in which all are that value. It
// reports whether any list is left.
func (l Layout) unlist(p tensor.Parameters) (left bool) {
	for name, value := range p {
		if name == contentType || name == headers {
			continue
		}
		values := value.([]any)
		same, row := true, 0
		for _, rows := range l.rows {
			same = same && reflect.DeepEqual(values[row], values[0])
			row += rows
		}
		if same {
			p[name] = values[0]
		}
		left = left || !same
	}
	return left
}

// at is what a batch's parameters are to the request that begins at a row;
// byRow says which lists hold a value for each row. One that is left none has
// none, as a request without parameters.
func at(p tensor.Parameters, row int, byRow func([]any) bool) tensor.Parameters {
	if p == nil {
		return nil
	}
	out := make(tensor.Parameters, len(p))
	for name, value := range p {
		values, list := value.([]any)
		switch {
		case !list || !byRow(values):
			out[name] = value
		case row < len(values) && values[row] != nil:
			out[name] = values[row]
		}
	}
	if len(out) == 0 && len(p) > 0 {
		return nil
	}
	return out
}
