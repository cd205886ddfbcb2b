package safetensors

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestParse(t *testing.T) {
	const raw = `{"b":{"data_offsets":[8,12],"shape":[2],"dtype":"F16"}, "__metadata__":{"format":"pt","é":"\u00e9\ud83d\ude00\n"},
		"a\/x":{"dtype":"I32","shape":[1,2],"data_offsets":[0,8],"later":[{"x":-1.5e3},null,true]},
		"none":{"dtype":"F4","shape":[0,9],"data_offsets":[8,8]},"scalar":{"dtype":"U8","shape":[],"data_offsets":[12,13]}}   `
	h, err := Parse([]byte(raw), int64(8+len(raw)+13))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, x := range h.Tensors {
		got = append(got, fmt.Sprintf("%s %s %v %d+%d=%d", x.Name, x.Dtype, x.Shape, x.Begin, x.Bytes(), x.Elements()))
	}
	want := []string{"a/x I32 [1 2] 0+8=2", "none F4 [0 9] 8+0=0", "b F16 [2] 8+4=2", "scalar U8 [] 12+1=1"}
	if !slices.Equal(got, want) {
		t.Errorf("tensors %q", got)
	}
	if h.Start != int64(8+len(raw)) || h.Metadata["format"] != "pt" || h.Metadata["é"] != "é😀\n" {
		t.Errorf("start %d, metadata %q", h.Start, h.Metadata)
	}
}

func TestParseRefuses(t *testing.T) {
	one := func(inner string) string { return `{"w":{` + inner + `}}` }
	long := strings.Repeat("x", 5000)
	for _, c := range []struct {
		raw  string
		data int64
		want string
	}{
		{``, 0, "does not begin with {"},
		{` {}`, 0, "does not begin with {"},
		{`[]`, 0, "does not begin with {"},
		{`{}x`, 0, "something follows"},
		{"{}\x00", 0, "something follows"},
		{`{}`, 1, "the tensors end at byte 0 of 1"},
		{one(`"dtype":"U8","shape":[1],"data_offsets":[0,1]`), 2, "the tensors end at byte 1 of 2"},
		{one(`"dtype":"U8","shape":[2],"data_offsets":[0,2]`), 1, `"w": ends at byte 2 of 1`},
		{one(`"dtype":"U8","shape":[1],"data_offsets":[1,2]`), 2, "bytes 0 to 1 belong to no tensor"},
		{`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3, `"b": begins at byte 1, before byte 2`},
		{`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2, `"a": is there twice`},
		{`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\u0061":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2, `"a": is there twice`},
		{one(`"dtype":"U8","shape":[2],"data_offsets":[0,1]`), 1, "2 elements of U8 take 2 bytes, its data_offsets span 1"},
		{one(`"dtype":"F4","shape":[3],"data_offsets":[0,2]`), 2, "end within a byte"},
		{one(`"dtype":"F7","shape":[1],"data_offsets":[0,1]`), 1, `unknown dtype "F7"`},
		{one(`"dtype":"` + long + `","shape":[1],"data_offsets":[0,1]`), 1, "unknown dtype"},
		{one(`"dtype":"U8","shape":[1],"data_offsets":[1,0]`), 1, "begins at byte 1 and ends at 0"},
		{one(`"dtype":"U8","shape":[-1],"data_offsets":[0,1]`), 1, "expected a whole number"},
		{one(`"dtype":"U8","shape":[1.0],"data_offsets":[0,1]`), 1, "expected ,"},
		{one(`"dtype":"U8","shape":[1e0],"data_offsets":[0,1]`), 1, "expected ,"},
		{one(`"dtype":"U8","shape":[01],"data_offsets":[0,1]`), 1, "begins with 0"},
		{one(`"dtype":"U8","shape":[18446744073709551617],"data_offsets":[0,1]`), 1, "too large"},
		{one(`"dtype":"U8","shape":[92233720368547758080],"data_offsets":[0,1]`), 1, "too large"},
		{one(`"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]`), 0, "is too large"},
		{one(`"dtype":"U8","shape":[` + strings.Repeat("1,", MaxRank) + `1],"data_offsets":[0,1]`), 1, "more than 64 dimensions"},
		{one(`"dtype":"U8","shape":[1],"data_offsets":[0]`), 1, "data_offsets are not two"},
		{one(`"dtype":"U8","shape":[1],"data_offsets":[0,1,1]`), 1, "data_offsets are not two"},
		{one(`"dtype":"U8","shape":[1]`), 1, "must have dtype, shape and data_offsets once each"},
		{one(`"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]`), 1, "once each"},
		{one(`"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":` + strings.Repeat("[", 10000)), 1, "nests too deep"},
		{`{"__metadata__":{"a":1}}`, 0, "expected a string"},
		{`{"__metadata__":{"a":"1","a":"2"}}`, 0, "twice"},
		{`{"__metadata__":{},"__metadata__":{}}`, 0, "__metadata__ is there twice"},
		{`{"` + "\xff" + `":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0, "not UTF-8"},
		{`{"\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0, "a broken escape"},
		{`{"\x":{}}`, 0, "a broken escape"},
		{"{\"a\nb\":{}}", 0, "a control character"},
		{`{"a\`, 0, "does not end"},
		{`{"a":7}`, 0, `"a": byte 5: expected {`},
		{`{"` + long + `":7}`, 0, "xxx\"…"},
	} {
		_, err := Parse([]byte(c.raw), int64(8+len(c.raw))+c.data)
		if !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 600 {
			t.Errorf("%.120s: %v; want %q", c.raw, err, c.want)
		}
	}
	if _, err := Parse([]byte("{}"), 9); !errors.Is(err, ErrMalformed) {
		t.Error("a file shorter than its header:", err)
	}
}

func TestLength(t *testing.T) {
	prefix := func(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }
	for _, c := range []struct {
		prefix []byte
		size   int64
		want   int64 // -1: an error
	}{
		{prefix(2), 10, 2}, {prefix(2), 9, -1}, {prefix(0), 8, 0}, {prefix(1)[:7], 100, -1}, {prefix(2), 7, -1},
		{prefix(MaxHeader), MaxHeader + 8, MaxHeader}, {prefix(MaxHeader + 1), math.MaxInt64, -1}, {prefix(math.MaxUint64), math.MaxInt64, -1},
	} {
		got, err := Length(c.prefix, c.size)
		if (err != nil) != (c.want < 0) || err == nil && got != c.want {
			t.Errorf("Length(%x, %d) = %d, %v", c.prefix, c.size, got, err)
		}
	}
}

func TestParseIndex(t *testing.T) {
	x, err := ParseIndex([]byte(`{"metadata":{"total_size":12.0,"total_parameters":3,"more":[null]},"other":1,
		"weight_map":{"b":"m-2.safetensors","a":"m-1.safetensors","c":"m-2.safetensors"}}`))
	if err != nil || x.TotalSize != 12 || x.TotalParameters != 3 || len(x.WeightMap) != 3 ||
		!slices.Equal(x.Files, []string{"m-1.safetensors", "m-2.safetensors"}) {
		t.Fatal(x, err)
	}
	first, second := &Header{Tensors: []Tensor{{Name: "a"}}}, &Header{Tensors: []Tensor{{Name: "b"}, {Name: "c"}, {Name: "extra"}}}
	if err := x.Check(map[string]*Header{"m-1.safetensors": first, "m-2.safetensors": second}); err != nil {
		t.Error(err)
	}
	if err := x.Check(map[string]*Header{"m-1.safetensors": second, "m-2.safetensors": second}); err == nil || !strings.Contains(err.Error(), `"a" is in "m-1`) {
		t.Error(err)
	}
	if err := x.Check(map[string]*Header{"m-1.safetensors": first}); err == nil || !strings.Contains(err.Error(), "not there") {
		t.Error(err)
	}
	for raw, want := range map[string]string{
		`[]`: "expected {", `{"weight_map":{"a":"../x"}}`: "no name of a file", `{"weight_map":{"a":""}}`: "no name of a file",
		`{"weight_map":{"a":"/etc/passwd"}}`: "no name of a file", `{"weight_map":{"a":"x","a":"y"}}`: "twice",
		`{"weight_map":{},"weight_map":{}}`: "twice", `{"weight_map":{"a":1}}`: "expected a string", `{} {}`: "follows",
	} {
		if _, err := ParseIndex([]byte(raw)); !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", raw, err, want)
		}
	}
}

// naive is a second implementation on encoding/json. It is laxer about JSON
// itself, so that it says yes to a superset.
func naive(raw []byte, size int64) (map[string]Tensor, bool) {
	var members map[string]json.RawMessage
	if !utf8.Valid(raw) || json.Unmarshal(raw, &members) != nil {
		return nil, false
	}
	out := map[string]Tensor{}
	covered := make([]int, max(0, size-8-int64(len(raw))))
	for name, member := range members {
		if name == "__metadata__" {
			continue
		}
		var x struct {
			Dtype          Dtype
			Shape, Offsets []int64
		}
		var fields map[string]json.RawMessage // a struct's tags would match in any case of letters
		if json.Unmarshal(member, &fields) != nil || json.Unmarshal(fields["dtype"], &x.Dtype) != nil ||
			json.Unmarshal(fields["shape"], &x.Shape) != nil || json.Unmarshal(fields["data_offsets"], &x.Offsets) != nil || len(x.Offsets) != 2 || x.Dtype.Bits() == 0 {
			return nil, false
		}
		t := Tensor{Name: name, Dtype: x.Dtype, Shape: x.Shape, Begin: x.Offsets[0], End: x.Offsets[1]}
		if t.Begin < 0 || t.End < t.Begin || t.End > int64(len(covered)) {
			return nil, false
		}
		for i := t.Begin; i < t.End; i++ {
			covered[i]++
		}
		product := 1.0
		for _, d := range x.Shape {
			product *= float64(d)
		}
		if product*float64(x.Dtype.Bits()) != float64(t.Bytes()*8) {
			return nil, false
		}
		out[name] = t
	}
	for _, n := range covered {
		if n != 1 {
			return nil, false
		}
	}
	return out, true
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"format":"pt"}}`), uint16(8))
	f.Add([]byte(`{"a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},"b":{"dtype":"F4","shape":[2,2],"data_offsets":[2,4]}} `), uint16(4))
	f.Add([]byte(`{"\u00e9\ud83d\ude00":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":[1,{"y":-1e9}]}}`), uint16(0))
	f.Fuzz(func(t *testing.T, raw []byte, data uint16) {
		size := int64(8+len(raw)) + int64(data)
		h, err := Parse(raw, size)
		if err != nil {
			if !errors.Is(err, ErrMalformed) || !utf8.ValidString(err.Error()) || len(err.Error()) > 1000 {
				t.Fatalf("error %q", err)
			}
			return
		}
		want, ok := naive(raw, size)
		if !ok || len(want) != len(h.Tensors) {
			t.Fatalf("accepted %q with %d bytes: %+v; naively %v %v", raw, data, h, ok, want)
		}
		for _, x := range h.Tensors {
			if w := want[x.Name]; w.Dtype != x.Dtype || !slices.Equal(w.Shape, x.Shape) || w.Begin != x.Begin || w.End != x.End {
				t.Fatalf("%+v; naively %+v", x, w)
			}
		}
	})
}

func FuzzParseIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":1.5e3},"weight_map":{"a":"b"}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		x, err := ParseIndex(raw)
		if err != nil {
			return
		}
		var members map[string]json.RawMessage
		var want map[string]string
		if err := json.Unmarshal(raw, &members); err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		_ = json.Unmarshal(members["weight_map"], &want) // absent: no tensors
		for name, file := range x.WeightMap {
			if want[name] != file || strings.ContainsAny(file, "/\x00") {
				t.Fatalf("%q: %q in %q", raw, name, file)
			}
		}
	})
}

// bigHeader is one of n tensors, as large models have them.
func bigHeader(n int) (raw []byte, size int64) {
	var b strings.Builder
	b.WriteString(`{"__metadata__":{"format":"pt"}`)
	for i := range n {
		fmt.Fprintf(&b, `,"model.layers.%d.mlp.experts.%d.down_proj.weight":{"dtype":"BF16","shape":[64,128],"data_offsets":[%d,%d]}`, i/100, i%100, i*16384, (i+1)*16384)
	}
	b.WriteString("}")
	return []byte(b.String()), int64(8 + b.Len() + n*16384)
}

func BenchmarkParse10000(b *testing.B) {
	raw, size := bigHeader(10_000)
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(raw, size); err != nil {
			b.Fatal(err)
		}
	}
}
