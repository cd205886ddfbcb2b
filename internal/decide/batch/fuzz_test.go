package batch

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

var datatypes = []tensor.Datatype{tensor.Bool, tensor.Uint8, tensor.Uint16, tensor.Uint32, tensor.Uint64,
	tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64, tensor.FP16, tensor.BF16, tensor.FP32, tensor.FP64, tensor.Bytes}

// FuzzMergeSplit merges random requests that may share a batch, holds the
// result to a naive row-by-row account of it, and splits an answer that holds
// the same tensors: everyone must get their own back.
func FuzzMergeSplit(f *testing.F) {
	for seed := range uint64(40) {
		f.Add(seed, uint8(seed%6+1))
	}
	f.Fuzz(func(t *testing.T, seed uint64, count uint8) {
		rng := rand.New(rand.NewPCG(seed, 2))
		in := alikeRequests(t, rng, int(count%16)+1)
		merged, layout, err := Merge(in)
		if err != nil {
			t.Fatal(err)
		}
		for n := range merged.Inputs {
			var want []string
			for _, r := range in {
				want = append(want, naiveRows(t, &r.Inputs[n])...)
			}
			got := naiveRows(t, &merged.Inputs[n])
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("input %d: rows\n%v\nwant\n%v", n, got, want)
			}
			if len(in) > 1 {
				naiveParameters(t, in, n, merged.Inputs[n].Parameters)
			}
		}
		answer := &tensor.Response{ModelName: "m", ID: "other", Parameters: merged.Parameters, Outputs: merged.Inputs}
		out, err := Split(answer, layout)
		if err != nil || len(out) != len(in) {
			t.Fatalf("%d answers, %v", len(out), err)
		}
		for i, r := range in {
			want := text(t, &tensor.Response{ModelName: "m", ID: r.ID, Parameters: r.Parameters, Outputs: r.Inputs})
			if got := text(t, out[i]); got != want {
				t.Fatalf("request %d gets\n%s\nwant\n%s", i, got, want)
			}
		}
	})
}

// alikeRequests makes requests of one key.
func alikeRequests(t *testing.T, rng *rand.Rand, count int) []*tensor.Request {
	type form struct {
		d    tensor.Datatype
		tail []int64
		ct   string
	}
	forms := make([]form, 1+rng.IntN(3))
	for i := range forms {
		forms[i] = form{datatypes[rng.IntN(len(datatypes))], nil, []string{"", "np"}[rng.IntN(2)]}
		for range rng.IntN(3) {
			forms[i].tail = append(forms[i].tail, 1+int64(rng.IntN(3)))
		}
	}
	var out []*tensor.Request
	for i := range count {
		rows := 1 + int64(rng.IntN(4))
		r := &tensor.Request{ID: fmt.Sprint("id-", i), Parameters: randomParameters(rng, "")}
		for n, f := range forms {
			in := tensor.Tensor{Name: fmt.Sprint("in-", n), Datatype: f.d, Shape: append([]int64{rows}, f.tail...)}
			in.Parameters = randomParameters(rng, f.ct)
			fill(t, rng, &in)
			r.Inputs = append(r.Inputs, in)
		}
		out = append(out, r)
	}
	return out
}

// randomParameters are custom ones, none of which is null: a null comes back
// as nothing.
func randomParameters(rng *rand.Rand, ct string) tensor.Parameters {
	p := tensor.Parameters{}
	if ct != "" {
		p[contentType] = ct
	}
	for _, name := range []string{"a", "b", "c"} {
		switch rng.IntN(5) {
		case 0:
			p[name] = fmt.Sprint("text-", rng.IntN(3))
		case 1:
			p[name] = []any{float64(rng.IntN(3)), "x"}
		case 2:
			p[name] = map[string]any{"k": true}
		}
	}
	if len(p) == 0 {
		return nil
	}
	return p
}

// fill gives a tensor as many random elements as its shape says, through the
// binary form or, for BYTES, itself.
func fill(t *testing.T, rng *rand.Rand, in *tensor.Tensor) {
	t.Helper()
	n, _ := tensor.Elements(in.Shape)
	if in.Datatype == tensor.Bytes {
		for range n {
			element := []byte(fmt.Sprint("e", rng.IntN(100)))
			if rng.IntN(5) == 0 {
				element = nil
			}
			in.Data.Bytes = append(in.Data.Bytes, element)
		}
		return
	}
	raw := make([]byte, int(n)*in.Datatype.Size())
	for i := range raw {
		// Small bytes: no NaN, which differs from itself, in any datatype.
		raw[i] = byte(rng.IntN(60))
		if in.Datatype == tensor.Bool {
			raw[i] &= 1
		}
	}
	if err := in.SetRaw(raw); err != nil {
		t.Fatal(err)
	}
}

// naiveRows prints a tensor row by row, by way of its JSON.
func naiveRows(t *testing.T, in *tensor.Tensor) []string {
	t.Helper()
	n := int(in.Shape[0])
	width := in.Len() / n
	var out []string
	for row := range n {
		one := *in
		one.Shape = append([]int64{1}, in.Shape[1:]...)
		one.Parameters = nil
		one.Data = tensor.Values{}
		for i := row * width; i < (row+1)*width; i++ {
			pick(&one.Data, in, i)
		}
		out = append(out, text(t, &tensor.Response{Outputs: []tensor.Tensor{one}}))
	}
	return out
}

// pick appends element i of in.
func pick(v *tensor.Values, in *tensor.Tensor, i int) {
	d := &in.Data
	switch in.Datatype {
	case tensor.Bool:
		v.Bool = append(v.Bool, d.Bool[i])
	case tensor.Uint8:
		v.Uint8 = append(v.Uint8, d.Uint8[i])
	case tensor.Uint16:
		v.Uint16 = append(v.Uint16, d.Uint16[i])
	case tensor.Uint32:
		v.Uint32 = append(v.Uint32, d.Uint32[i])
	case tensor.Uint64:
		v.Uint64 = append(v.Uint64, d.Uint64[i])
	case tensor.Int8:
		v.Int8 = append(v.Int8, d.Int8[i])
	case tensor.Int16:
		v.Int16 = append(v.Int16, d.Int16[i])
	case tensor.Int32:
		v.Int32 = append(v.Int32, d.Int32[i])
	case tensor.Int64:
		v.Int64 = append(v.Int64, d.Int64[i])
	case tensor.FP64:
		v.Float64 = append(v.Float64, d.Float64[i])
	case tensor.Bytes:
		v.Bytes = append(v.Bytes, d.Bytes[i])
	default:
		v.Float32 = append(v.Float32, d.Float32[i])
	}
}

// naiveParameters holds input n's merged parameters to each row's own.
func naiveParameters(t *testing.T, in []*tensor.Request, n int, got tensor.Parameters) {
	t.Helper()
	row := 0
	for _, r := range in {
		own := r.Inputs[n].Parameters
		for range r.Inputs[n].Shape[0] {
			for _, name := range []string{"a", "b", "c"} {
				list, _ := got[name].([]any)
				var value any
				if list != nil {
					value = list[row]
				}
				if text(t, value) != text(t, own[name]) {
					t.Fatalf("row %d: %s is %v, want %v", row, name, value, own[name])
				}
			}
			row++
		}
	}
}
