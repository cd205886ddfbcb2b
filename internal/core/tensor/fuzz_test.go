package tensor

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strconv"
	"testing"
	"unicode/utf8"
)

// naive decodes a request with encoding/json alone. It knows nothing of
// errors' wording, only whether there is one.
type naive struct {
	ID     string `json:"id"`
	Inputs []struct {
		Name     string          `json:"name"`
		Shape    json.RawMessage `json:"shape"`
		Datatype string          `json:"datatype"`
		Data     json.RawMessage `json:"data"`
	} `json:"inputs"`
}

// flatten reads nested data with encoding/json; numbers stay as written.
func flatten(raw json.RawMessage) []any {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var v any
	if decoder.Decode(&v) != nil {
		return nil
	}
	var flat []any
	var walk func(any)
	walk = func(v any) {
		list, ok := v.([]any)
		if !ok {
			flat = append(flat, v)
			return
		}
		for _, e := range list {
			walk(e)
		}
	}
	walk(v)
	return flat
}

func FuzzDecodeRequest(f *testing.F) {
	f.Add([]byte(input("[2,2]", "FP32", "[[1,2.5],[null,-3e-7]]")))
	f.Add([]byte(input("[12]", "FP32", "[1.5,-0.25,12.125,3.14159265,1.5e3,2.5, 0.5 ,7,null,9.75,0.1234567890123456,1.25]")))
	f.Add([]byte(input("[3]", "FP64", "[0.1,1e308,123456789012345678901234567890]")))
	f.Add([]byte(input("[3]", "INT64", "[1,-9007199254740993,1.5e1]")))
	f.Add([]byte(input(`["2"]`, "BYTES", `["a\u00e9\ud83d\ude00",null]`)))
	f.Add([]byte(input("[-1]", "BOOL", "[true,false]")))
	f.Add([]byte(input("[1]", "UINT8", "256")))
	f.Add([]byte(`{"id":null,"parameters":{"a":[{}]},"inputs":[{"data":[1],"name":"","datatype":"FP16","shape":[1]}],"outputs":[{"name":"y"}]} `))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := DecodeRequest(body)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Message == "" {
				t.Fatalf("error %v is no *Error with a message", err)
			}
			if e.Type == "json_invalid" && json.Valid(body) && !surrogates(body) && !deep(body) {
				t.Fatalf("%q: called invalid JSON: %v", body, err)
			}
			return
		}
		accepted(t, body, r)
	})
}

// accepted checks a request that was decoded against encoding/json's.
func accepted(t *testing.T, body []byte, r *Request) {
	t.Helper()
	if !json.Valid(body) || !utf8.Valid(body) {
		t.Fatalf("%q: accepted, encoding/json refuses it", body)
	}
	var n naive
	if err := json.Unmarshal(body, &n); err != nil {
		t.Fatalf("%q: accepted, encoding/json says %v", body, err)
	}
	if foldedKeys(body) {
		return
	}
	if n.ID != r.ID || len(n.Inputs) != len(r.Inputs) {
		t.Fatalf("%q: id %q and %d inputs, encoding/json has %q and %d", body, r.ID, len(r.Inputs), n.ID, len(n.Inputs))
	}
	for i := range r.Inputs {
		got, want := &r.Inputs[i], n.Inputs[i]
		if got.Name != want.Name || got.Datatype.String() != want.Datatype {
			t.Fatalf("%q: input %s, want %q %s", body, got, want.Name, want.Datatype)
		}
		if got.Datatype != Bytes && !got.Filled() {
			t.Fatalf("%q: shape %v, %d elements", body, got.Shape, got.Len())
		}
		compare(t, got, flatten(want.Data))
	}
}

// surrogates reports whether body has an escaped surrogate, which
// encoding/json replaces when alone and this package refuses.
func surrogates(body []byte) bool {
	lower := bytes.ToLower(body)
	return bytes.Contains(lower, []byte(`\ud`))
}

// deep reports whether body could nest deeper than MaxDepth.
func deep(body []byte) bool {
	return bytes.Count(body, []byte("["))+bytes.Count(body, []byte("{")) > MaxDepth
}

// foldedKeys reports whether body has names that encoding/json takes for
// fields because it ignores case, or that are written with escapes.
func foldedKeys(body []byte) bool {
	lower := bytes.ToLower(body)
	for _, name := range []string{"id", "inputs", "name", "shape", "datatype", "data"} {
		if bytes.Count(lower, []byte(name)) != bytes.Count(body, []byte(name)) {
			return true
		}
	}
	return bytes.ContainsFunc(body, func(r rune) bool { return r == 'ſ' || r == 'K' || r == '\\' })
}

// compare checks every element against what encoding/json and strconv make of
// it.
func compare(t *testing.T, got *Tensor, want []any) {
	t.Helper()
	if len(want) == 1 && want[0] == nil && got.Len() == 0 {
		return
	}
	if len(want) != got.Len() {
		t.Fatalf("%s: %d elements, want %d", got, got.Len(), len(want))
	}
	for i, w := range want {
		var same bool
		if got.Datatype == Bytes && got.Written.Marked(i) {
			var element any
			decoder := json.NewDecoder(bytes.NewReader(got.Data.Bytes[i]))
			decoder.UseNumber()
			if err := decoder.Decode(&element); err != nil || !reflect.DeepEqual(element, w) {
				t.Fatalf("%s: element %d is the JSON %s, want %v (%v)", got, i, got.Data.Bytes[i], w, err)
			}
			continue
		}
		switch w := w.(type) {
		case nil:
			same = isNull(got, i)
		case bool:
			same = got.Datatype == Bool && got.Data.Bool[i] == w
		case string:
			same = got.Datatype == Bytes && string(got.Data.Bytes[i]) == w
		case json.Number:
			same = sameNumber(got, i, string(w))
		}
		if !same {
			t.Fatalf("%s: element %d differs from %v", got, i, w)
		}
	}
}

func isNull(t *Tensor, i int) bool {
	switch t.Datatype {
	case FP16, BF16, FP32:
		return math.IsNaN(float64(t.Data.Float32[i]))
	case FP64:
		return math.IsNaN(t.Data.Float64[i])
	case Bytes:
		return t.Data.Bytes[i] == nil
	}
	return false
}

func sameNumber(t *Tensor, i int, text string) bool {
	switch t.Datatype {
	case FP32:
		f, err := strconv.ParseFloat(text, 32)
		return err == nil && math.Float32bits(float32(f)) == math.Float32bits(t.Data.Float32[i])
	case FP64:
		f, err := strconv.ParseFloat(text, 64)
		return err == nil && math.Float64bits(f) == math.Float64bits(t.Data.Float64[i])
	case FP16, BF16:
		f, err := strconv.ParseFloat(text, 32)
		return err == nil && math.Abs(f-float64(t.Data.Float32[i])) <= math.Abs(f)/128+1e-7
	case Int64:
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n == t.Data.Int64[i]
		}
	case Uint64:
		if n, err := strconv.ParseUint(text, 10, 64); err == nil {
			return n == t.Data.Uint64[i]
		}
	}
	values, err := t.AppendFloat64(nil)
	f, _ := strconv.ParseFloat(text, 64)
	return err == nil && values[i] == f
}

func FuzzFloat(f *testing.F) {
	for _, text := range []string{"0", "-0.0", "1.17549435e-38", "16777217", "0.1", "3.4028235677973366e38",
		"1.00000005960464477539", "9007199254740993", "8.41e-46", "1e-400", "123456789012345678e-22", "1.00000017881393432617"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s := &scanner{data: []byte(text)}
		if !s.numeric() {
			return
		}
		var d decimal
		err := s.decimal(&d)
		if err != nil || s.pos != len(text) {
			if json.Valid([]byte(text)) && err != nil {
				t.Fatalf("%q refused: %v", text, err)
			}
			return
		}
		number := string(d.text)
		want64, err64 := strconv.ParseFloat(number, 64)
		if got, ok := d.float64(); ok != (err64 == nil) || ok && math.Float64bits(got) != math.Float64bits(want64) {
			t.Errorf("%s as FP64 = %v %v, want %v %v", number, got, ok, want64, err64)
		}
		want32, err32 := strconv.ParseFloat(number, 32)
		if got, ok := d.float32(); ok != (err32 == nil) || ok && math.Float32bits(got) != math.Float32bits(float32(want32)) {
			t.Errorf("%s as FP32 = %v %v, want %v %v", number, got, ok, want32, err32)
		}
	})
}

// TestFloatMiddles checks numbers at and around the middle between two
// float32s, where rounding twice goes wrong.
func TestFloatMiddles(t *testing.T) {
	for bits := uint32(0x2f800000); bits < 0x4e000000; bits += 0x00031415 {
		low := float64(math.Float32frombits(bits))
		high := float64(math.Float32frombits(bits + 1))
		middle := low + (high-low)/2
		for _, f := range []float64{middle, math.Nextafter(middle, 0), math.Nextafter(middle, math.Inf(1)), low} {
			for _, format := range []byte{'f', 'e'} {
				text := strconv.AppendFloat(nil, f, format, -1, 64)
				var d decimal
				if err := (&scanner{data: text}).decimal(&d); err != nil {
					t.Fatal(err)
				}
				want, _ := strconv.ParseFloat(string(text), 32)
				if got, ok := d.float32(); !ok || got != float32(want) {
					t.Fatalf("%s = %v, want %v", text, got, want)
				}
			}
		}
	}
}

// FuzzRoundTrip checks that what the encoder writes, the decoder and
// encoding/json read back.
func FuzzRoundTrip(f *testing.F) {
	f.Add("iris", "a\"\\\n\x01é", float32(0.1), 1e300, int64(-5), true)
	f.Add("", "", float32(math.Inf(1)), math.NaN(), int64(math.MinInt64), false)
	f.Add("m", "\u2028<&>", float32(16777216), 1e16, int64(1<<53+1), false)
	f.Fuzz(func(t *testing.T, name, text string, f32 float32, f64 float64, i64 int64, b bool) {
		response := &Response{ModelName: name, ID: text, Parameters: Parameters{"k": text}, Outputs: []Tensor{
			{Name: text, Datatype: FP32, Shape: []int64{1}, Data: Values{Float32: []float32{f32}}},
			{Name: "f", Datatype: FP64, Shape: []int64{1}, Data: Values{Float64: []float64{f64}}},
			{Name: "i", Datatype: Int64, Shape: []int64{1}, Data: Values{Int64: []int64{i64}}},
			{Name: "b", Datatype: Bool, Shape: []int64{1}, Data: Values{Bool: []bool{b}}},
			{Name: "s", Datatype: Bytes, Shape: []int64{2}, Data: Values{Bytes: [][]byte{[]byte(text), nil}}},
		}}
		body, err := AppendResponse(nil, response)
		if err != nil {
			if utf8.ValidString(name) && utf8.ValidString(text) {
				t.Fatal(err)
			}
			return
		}
		if !json.Valid(body) {
			t.Fatalf("not JSON: %s", body)
		}
		got, err := DecodeResponse(body)
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		for i := range response.Outputs {
			want := &response.Outputs[i]
			replaceInfinities(want)
			again := &got.Outputs[i]
			if !bytes.Equal(again.AppendRaw(nil), want.AppendRaw(nil)) && !isNull(want, 0) {
				t.Fatalf("%s: output %d differs", body, i)
			}
			if again.Name != want.Name || !reflect.DeepEqual(again.Shape, want.Shape) {
				t.Fatalf("%s: output %s, want %s", body, again, want)
			}
		}
		if got.ModelName != name || got.ID != text || (text != "" && got.Parameters["k"] != text) {
			t.Fatalf("%s: %+v", body, got)
		}
	})
}

// replaceInfinities does what JSON does to them.
func replaceInfinities(t *Tensor) {
	for i, x := range t.Data.Float32 {
		if math.IsInf(float64(x), 0) {
			t.Data.Float32[i] = float32(math.NaN())
		}
	}
	for i, x := range t.Data.Float64 {
		if math.IsInf(x, 0) {
			t.Data.Float64[i] = math.NaN()
		}
	}
}

func FuzzDecodeV1(f *testing.F) {
	f.Add([]byte(`{"instances":[[1,2],[3,null]]}`))
	f.Add([]byte(`{"inputs":[{"a":1,"b":["x"]},{"b":null,"a":[true]}]}`))
	f.Add([]byte(`{"instances":["a",null]}`))
	f.Add([]byte(`{"instances":[[[true]],[[false]]],"signature_name":"x"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := DecodeV1(body)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Message == "" {
				t.Fatalf("error %v is no *Error with a message", err)
			}
			return
		}
		var n struct{ Instances, Inputs []any }
		if err := json.Unmarshal(body, &n); err != nil {
			var numeric *json.UnmarshalTypeError
			if !errors.As(err, &numeric) {
				t.Fatalf("%q: accepted, encoding/json says %v", body, err)
			}
		}
		for i := range r.Inputs {
			in := &r.Inputs[i]
			if elements, ok := Elements(in.Shape); !ok || elements != int64(in.Len()) {
				t.Fatalf("%q: input %s has %d elements", body, in, in.Len())
			}
		}
		if _, err := AppendV1(nil, &Response{Outputs: r.Inputs}); err != nil {
			t.Fatalf("%q: %v", body, err)
		}
	})
}

func FuzzSetRaw(f *testing.F) {
	f.Add(uint8(FP32), int64(1), int64(1), []byte{0, 0, 0x80, 0x3f})
	f.Add(uint8(Bytes), int64(2), int64(1), []byte{1, 0, 0, 0, 'a', 0, 0, 0, 0})
	f.Add(uint8(BF16), int64(1), int64(2), []byte{1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, datatype uint8, a, b int64, raw []byte) {
		in := Tensor{Datatype: Datatype(datatype), Shape: []int64{a, b}}
		if in.SetRaw(raw) != nil {
			return
		}
		if in.Datatype != Bytes && !in.Filled() {
			t.Fatalf("%s has %d elements", &in, in.Len())
		}
		if in.Datatype == Bool || in.Datatype.Floating() {
			return // NaN payloads and booleans above 1 have several forms
		}
		if got := in.AppendRaw(nil); !bytes.Equal(got, raw) {
			t.Fatalf("%s: % x, want % x", &in, got, raw)
		}
	})
}
