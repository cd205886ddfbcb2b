package batch

import (
	"fmt"
	"slices"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// Layout says whose the rows of a merged request are.
type Layout struct {
	ids  []string // of the requests, in order
	rows []int
	sum  int // of rows
	// listed reports that parameters of the requests themselves became lists.
	listed bool
}

// Requests is how many requests were merged.
func (l Layout) Requests() int { return len(l.ids) }

// Rows is how many rows they have together.
func (l Layout) Rows() int { return l.sum }

// Merge makes one request of several of equal keys (KeyOf), and says so if
// they are not. Each input's data is put one after the other, in order, and
// its first size is the sum. The new request has the first one's id.
//
// Of parameters, content types are alike by the key and the last headers
// win. Every other one becomes a list of one value per row, in which a request
// without it has nulls; the requests' own parameters, apart from their
// inputs', do so only where they differ. A lone request is returned itself, as
// it is.
//
// The requests are not changed. The merged one shares with them what does not
// differ.
func Merge(requests []*tensor.Request) (*tensor.Request, Layout, error) {
	var l Layout
	for _, r := range requests {
		rows, _ := rowsOf(r)
		l.ids, l.rows, l.sum = append(l.ids, r.ID), append(l.rows, rows), l.sum+rows
	}
	switch len(requests) {
	case 0:
		return nil, l, fmt.Errorf("no requests to merge")
	case 1:
		return requests[0], l, nil
	}
	first := requests[0]
	if err := alike(requests); err != nil {
		return nil, l, err
	}
	out := *first
	out.Parameters = l.lists(func(i int) tensor.Parameters { return requests[i].Parameters })
	l.listed = l.unlist(out.Parameters)
	out.Inputs = make([]tensor.Tensor, len(first.Inputs))
	for n := range first.Inputs {
		in := func(i int) *tensor.Tensor { return &requests[i].Inputs[n] }
		t := *in(0)
		t.Shape = slices.Clone(t.Shape)
		t.Shape[0] = int64(l.sum)
		t.Parameters = l.lists(func(i int) tensor.Parameters { return in(i).Parameters })
		t.Data = concatenate(t.Datatype, len(requests), in)
		t.Written = joinWritten(len(requests), in)
		out.Inputs[n] = t
	}
	return &out, l, nil
}

// alike checks that requests may share a batch and hold what they say.
func alike(requests []*tensor.Request) error {
	var first Key
	for i, r := range requests {
		key, _, ok := KeyOf(r)
		if i == 0 {
			first = key
		}
		if !ok || key != first {
			return fmt.Errorf("request %q cannot share a batch with %q: their inputs or outputs differ", r.ID, requests[0].ID)
		}
		for n := range r.Inputs {
			if err := whole(&r.Inputs[n]); err != nil {
				return fmt.Errorf("request %q: input %w", r.ID, err)
			}
		}
	}
	return nil
}

// whole checks that a tensor has as many elements as its shape says.
func whole(t *tensor.Tensor) error {
	if n, ok := tensor.Elements(t.Shape); !ok || n != int64(t.Len()) {
		return fmt.Errorf("%q: shape %v does not hold its %d elements", t.Name, t.Shape, t.Len())
	}
	return nil
}

// Split makes of a merged request's response one for each request, in order,
// with the request's own id. Outputs are split by rows. Of an output's
// parameters a list gives each request the value at its first row, and none if
// the list is shorter or has null there; every other value goes to all. The
// response's own parameters go to all, except that lists of one value per row
// are split like an output's if Merge made such lists of the requests' own. A
// lone request's response is returned itself, but for the id.
//
// It fails for all of them if an output has another number of rows than the
// requests, since nobody can tell whose they are. The responses share the
// data, each its own part.
func Split(r *tensor.Response, l Layout) ([]*tensor.Response, error) {
	if len(l.ids) == 1 {
		out := *r
		out.ID = l.ids[0]
		return []*tensor.Response{&out}, nil
	}
	for i := range r.Outputs {
		t := &r.Outputs[i]
		if len(t.Shape) == 0 || t.Shape[0] != int64(l.sum) {
			return nil, fmt.Errorf("the model answered a batch of %d rows with output %q of shape %v", l.sum, t.Name, t.Shape)
		}
		if err := whole(t); err != nil {
			return nil, fmt.Errorf("the model answered a batch with output %w", err)
		}
	}
	out := make([]*tensor.Response, len(l.ids))
	from := 0
	for i, id := range l.ids {
		part := *r
		part.ID = id
		part.Parameters = at(r.Parameters, from, func(list []any) bool { return l.listed && len(list) == l.sum })
		part.Outputs = make([]tensor.Tensor, len(r.Outputs))
		for n := range r.Outputs {
			part.Outputs[n] = rowsFrom(&r.Outputs[n], from, l.rows[i])
		}
		out[i] = &part
		from += l.rows[i]
	}
	return out, nil
}

// rowsFrom is count rows of a tensor, which has them and shares its data.
func rowsFrom(t *tensor.Tensor, from, count int) tensor.Tensor {
	out := *t
	out.Shape = slices.Clone(t.Shape)
	out.Shape[0] = int64(count)
	width := t.Len() / int(t.Shape[0])
	out.Data = cut(t, from*width, (from+count)*width)
	out.Written = cutWritten(t.Written, from*width, (from+count)*width)
	out.Parameters = at(t.Parameters, from, func([]any) bool { return true })
	return out
}
