package tensor

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// one decodes a request of one input and returns it.
func one(t *testing.T, body string) Tensor {
	t.Helper()
	r, err := DecodeRequest([]byte(body))
	if err != nil {
		t.Fatalf("DecodeRequest(%s): %v", body, err)
	}
	if len(r.Inputs) != 1 {
		t.Fatalf("DecodeRequest(%s): %d inputs, want 1", body, len(r.Inputs))
	}
	return r.Inputs[0]
}

func input(shape, datatype, data string) string {
	return fmt.Sprintf(`{"inputs":[{"name":"x","shape":%s,"datatype":%q,"data":%s}]}`, shape, datatype, data)
}

func TestDecodeData(t *testing.T) {
	nan := math.NaN()
	nan32 := float32(nan)
	tests := []struct {
		name, shape, datatype, data string
		want                        Values
		wantShape                   []int64
	}{
		{"flat", "[3]", "FP32", "[1, 2.5,-3e-1]", Values{Float32: []float32{1, 2.5, -0.3}}, []int64{3}},
		{"nested", "[2,2]", "FP64", "[[1,2],[3,4]]", Values{Float64: []float64{1, 2, 3, 4}}, []int64{2, 2}},
		{"nested otherwise than its shape", "[4]", "FP64", "[[1,2],[3,4]]", Values{Float64: []float64{1, 2, 3, 4}}, []int64{4}},
		{"scalar", "[1]", "INT8", "-128", Values{Int8: []int8{-128}}, []int64{1}},
		{"scalar without sizes", "[]", "UINT8", "255", Values{Uint8: []uint8{255}}, []int64{}},
		{"null in FP32", "[3]", "FP32", "[1,null,3]", Values{Float32: []float32{1, nan32, 3}}, []int64{3}},
		{"null in FP16", "[3]", "FP16", "[1,2,null]", Values{Float32: []float32{1, 2, nan32}}, []int64{3}},
		{"null for nothing", "[0]", "FP64", "null", Values{}, []int64{0}},
		{"empty", "[0,3]", "INT64", "[]", Values{Int64: []int64{}}, []int64{0, 3}},
		{"null in BYTES", "[2]", "BYTES", `[null,"bär"]`, Values{Bytes: [][]byte{nil, []byte("bär")}}, []int64{2}},
		{"empty string in BYTES", "[1]", "BYTES", `[""]`, Values{Bytes: [][]byte{{}}}, []int64{1}},
		{"one string", "[1]", "BYTES", `"a\u00e9\ud83d\ude00\n"`, Values{Bytes: [][]byte{[]byte("aé😀\n")}}, []int64{1}},
		{"BOOL", "[4]", "BOOL", "[true,false,1,0]", Values{Bool: []bool{true, false, true, false}}, []int64{4}},
		{"whole floats as integers", "[4]", "INT32", "[1.0, 1e3, -20e-1, -0]", Values{Int32: []int32{1, 1000, -2, 0}}, []int64{4}},
		{"INT64 ends", "[2]", "INT64", "[-9223372036854775808,9223372036854775807]", Values{Int64: []int64{math.MinInt64, math.MaxInt64}}, []int64{2}},
		{"INT64 beyond float64", "[1]", "INT64", "[9007199254740993.0]", Values{Int64: []int64{9007199254740993}}, []int64{1}},
		{"UINT64 end", "[2]", "UINT64", "[18446744073709551615, 1.8446744073709551615e19]", Values{Uint64: []uint64{math.MaxUint64, math.MaxUint64}}, []int64{2}},
		{"lenient shape", `[1.0, "2"]`, "INT16", "[7,8]", Values{Int16: []int16{7, 8}}, []int64{1, 2}},
		{"open size", "[-1,2]", "UINT16", "[1,2,3,4,5,6]", Values{Uint16: []uint16{1, 2, 3, 4, 5, 6}}, []int64{3, 2}},
		{"FP16 rounds", "[1]", "FP16", "[0.1]", Values{Float32: []float32{0.099975586}}, []int64{1}},
		{"BF16 rounds", "[1]", "BF16", "[0.1]", Values{Float32: []float32{0.100097656}}, []int64{1}},
		{"UINT32", "[1]", "UINT32", "[4294967295]", Values{Uint32: []uint32{math.MaxUint32}}, []int64{1}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := one(t, input(test.shape, test.datatype, test.data))
			// NaN is unequal to itself, its printed form is not.
			if fmt.Sprintf("%#v", got.Data) != fmt.Sprintf("%#v", test.want) {
				t.Errorf("data = %+v, want %+v", got.Data, test.want)
			}
			if !reflect.DeepEqual(got.Shape, test.wantShape) {
				t.Errorf("shape = %v, want %v", got.Shape, test.wantShape)
			}
		})
	}
}

func TestDecodeRequest(t *testing.T) {
	r, err := DecodeRequest([]byte(`{
		"data_comes_first": {"deep": [1, {"x": null}]},
		"id": "42",
		"parameters": {"content_type": "np", "big": 12345678901234567890, "headers": {"a": "b"}},
		"inputs": [
			{"data": [1, 2], "name": "a", "shape": [2], "datatype": "FP32", "parameters": {"content_type": "np"}},
			{"name": "b", "shape": [1], "datatype": "BYTES", "data": ["x"], "parameters": null}
		],
		"outputs": [{"name": "predict", "parameters": {"binary_data": false}}]
	}`))
	if err != nil {
		t.Fatal(err)
	}
	if r.ID != "42" || fmt.Sprint(r.Parameters["big"]) != "12345678901234567890" {
		t.Errorf("id %q, parameters %v", r.ID, r.Parameters)
	}
	if got := r.Inputs[0].Data.Float32; !reflect.DeepEqual(got, []float32{1, 2}) {
		t.Errorf("data before its datatype = %v, want [1 2]", got)
	}
	if r.Inputs[0].Parameters["content_type"] != "np" || r.Inputs[1].Parameters != nil {
		t.Errorf("input parameters %v, %v", r.Inputs[0].Parameters, r.Inputs[1].Parameters)
	}
	if len(r.Outputs) != 1 || r.Outputs[0].Name != "predict" || r.Outputs[0].Parameters["binary_data"] != false {
		t.Errorf("outputs %+v", r.Outputs)
	}
}

// TestTextsAreTakenAsTheyAre decodes BYTES as published clients send them: with a
// shape that is the length of the one text, with one size for many texts, and with
// elements that are no strings.
func TestTextsAreTakenAsTheyAre(t *testing.T) {
	for _, c := range []struct {
		shape, data string
		filled      bool
		elements    []string
		marked      []bool
	}{
		{"[59]", `["{\"a\": 1}"]`, false, []string{`{"a": 1}`}, []bool{false}},
		{"[1]", `["a","b","c"]`, false, []string{"a", "b", "c"}, []bool{false, false, false}},
		{"[2,11]", `["hello","world"]`, false, []string{"hello", "world"}, []bool{false, false}},
		{"[2]", `["5",5]`, true, []string{"5", "5"}, []bool{false, true}},
		{"[3]", `[{"a":[1, "x"]},true,null]`, true, []string{`{"a":[1, "x"]}`, "true", ""}, []bool{true, true, false}},
	} {
		for name, body := range map[string]string{"in order": input(c.shape, "BYTES", c.data),
			"data first": `{"inputs":[{"data":` + c.data + `,"name":"x","shape":` + c.shape + `,"datatype":"BYTES"}]}`} {
			r, err := DecodeRequest([]byte(body))
			if err != nil {
				t.Errorf("%s %s: %v", name, body, err)
				continue
			}
			in := &r.Inputs[0]
			if in.Filled() != c.filled || in.Len() != len(c.elements) {
				t.Errorf("%s %s: %d elements, filled %v", name, body, in.Len(), in.Filled())
				continue
			}
			for i, want := range c.elements {
				if string(in.Data.Bytes[i]) != want || in.Written.Marked(i) != c.marked[i] {
					t.Errorf("%s %s: element %d is %q, marked %v", name, body, i, in.Data.Bytes[i], in.Written.Marked(i))
				}
			}
			again, err := AppendRequest(nil, r)
			if err != nil || !strings.Contains(string(again), `"data":`+c.data) {
				t.Errorf("%s %s: written again as %s (%v)", name, body, again, err)
			}
		}
	}
}

// TestWritten shows what is kept of how JSON wrote numbers.
func TestWritten(t *testing.T) {
	for _, c := range []struct {
		shape, datatype, data string
		dims                  []int
		marked                string // of each element
	}{
		{"[3]", "FP32", "[1.5,2.25,-3.0]", nil, "..."},
		{"[1,2,2]", "FP32", "[[[1,2],[3,4.5]]]", []int{1, 2, 2}, "###."},
		{"[4]", "FP64", "[[1.0,2e0],[3,null]]", []int{2, 2}, "..#."},
		{"[2,2]", "INT32", "[[1,2],[3,4]]", []int{2, 2}, "...."},
		{"[12]", "FP32", "[1.5,1.5,1.5,1.5,1.5,1.5,1.5,1.5,1.5,-7,1.5,0]", nil, ".........#.#"},
		{"[2]", "FP16", "[1,0.5]", nil, "#."},
		{"[1]", "FP64", "7", nil, "#"},
	} {
		r, err := DecodeRequest([]byte(input(c.shape, c.datatype, c.data)))
		if err != nil {
			t.Fatal(err)
		}
		w := r.Inputs[0].Written
		var dims []int
		if w != nil {
			dims = w.Dims
		}
		if !slices.Equal(dims, c.dims) {
			t.Errorf("%s: dims %v, want %v", c.data, dims, c.dims)
		}
		marked := ""
		for i := range r.Inputs[0].Len() {
			if w.Marked(i) {
				marked += "#"
			} else {
				marked += "."
			}
		}
		if marked != c.marked {
			t.Errorf("%s: marks %s, want %s", c.data, marked, c.marked)
		}
		if c.dims == nil && !strings.Contains(c.marked, "#") && w != nil {
			t.Errorf("%s: %+v where nothing is to be said", c.data, w)
		}
	}
}

// TestAnswersNeedNotFillTheirShape: a model's code says shapes as it likes.
func TestAnswersNeedNotFillTheirShape(t *testing.T) {
	const body = `{"model_name":"m","id":"1","outputs":[{"name":"y","shape":[3],"datatype":"FP32","data":[1.5]}]}`
	r, err := DecodeResponse([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := AppendResponse(nil, r); err != nil || string(again) != body {
		t.Errorf("answered as %s (%v)", again, err)
	}
	if again, err := AppendV1(nil, r); err != nil || string(again) != `{"predictions":[1.5]}` {
		t.Errorf("answered over v1 as %s (%v)", again, err)
	}
}

func TestDecodeErrors(t *testing.T) {
	tests := []struct {
		name, body string
		kind       Kind
		typ        string
		path       string
		says       string
	}{
		{"empty", ``, KindSchema, "json_invalid", "[0]", "unexpected end"},
		{"no object", `[]`, KindSchema, "model_attributes_type", "[]", "object"},
		{"not JSON", `{"inputs": [}`, KindSchema, "json_invalid", "[12]", "byte 12"},
		{"trailing", `{"inputs":[]} x`, KindSchema, "json_invalid", "[14]", "end of the body"},
		{"no inputs", `{"id":"1"}`, KindSchema, "missing", "[inputs]", "inputs"},
		{"inputs is no list", `{"inputs":{}}`, KindSchema, "list_type", "[inputs]", "list"},
		{"input is no object", `{"inputs":[3]}`, KindSchema, "model_attributes_type", "[inputs 0]", "object"},
		{"id is no string", `{"id":3,"inputs":[]}`, KindSchema, "string_type", "[id]", "string"},
		{"no name", `{"inputs":[{"shape":[1],"datatype":"FP32","data":[1]}]}`, KindSchema, "missing", "[inputs 0 name]", "name"},
		{"no data", `{"inputs":[{"name":"x","shape":[1],"datatype":"FP32"}]}`, KindSchema, "missing", "[inputs 0 data]", "data"},
		{"given twice", `{"inputs":[],"inputs":[]}`, KindSchema, "value_error", "[inputs]", "twice"},
		{"datatype", input("[1]", "FLOAT", "[1]"), KindSchema, "enum", "[inputs 0 datatype]", "FP32"},
		{"fractional size", input("[1.5]", "FP32", "[1]"), KindSchema, "int_from_float", "[inputs 0 shape 0]", "fractional"},
		{"size in words", input(`["two"]`, "FP32", "[1]"), KindSchema, "int_parsing", "[inputs 0 shape 0]", "integer"},
		{"huge size", input(`[1e30]`, "FP32", "[1]"), KindSchema, "int_parsing_size", "[inputs 0 shape 0]", "size"},
		{"negative size", input("[-2]", "FP32", "[1]"), KindInvalid, "", "[inputs 0 data]", "negative"},
		{"two open sizes", input("[-1,-1]", "FP32", "[1]"), KindInvalid, "", "[inputs 0 data]", "negative"},
		{"open size that fits nothing", input("[-1,2]", "FP32", "[1,2,3]"), KindInvalid, "", "[inputs 0 data]", "3 elements"},
		{"too little", input("[3]", "FP32", "[1,2]"), KindInvalid, "", "[inputs 0 data]", `input "x": shape [3] holds 3 elements, data has 2`},
		{"too much", input("[2]", "FP32", "[1,2,3,4]"), KindInvalid, "", "[inputs 0 data]", `input "x": shape [2] holds 2 elements, data has 4`},
		{"gigantic", input("[9223372036854775807,9]", "FP64", "[1]"), KindSchema, "int_parsing_size", "[inputs 0 shape 0]", "size"},
		{"gigantic product", input("[4611686018427387904,9]", "FP64", "[1]"), KindInvalid, "", "[inputs 0 data]", "more than 2^63"},
		{"large", input("[1000000000000]", "FP64", `[1]`), KindInvalid, "", "[inputs 0 data]", "data has 1"},
		{"too many inputs", `{"inputs":[` + strings.Repeat(`{"name":"x","shape":[1],"datatype":"FP32","data":[1]},`, MaxTensors) + `{}]}`, KindInvalid, "", fmt.Sprintf("[inputs %d]", MaxTensors), "more than 16384 inputs"},
		{"too many outputs", `{"inputs":[],"outputs":[` + strings.Repeat(`{"name":"x"},`, MaxTensors) + `{}]}`, KindInvalid, "", fmt.Sprintf("[outputs %d]", MaxTensors), "more than 16384 requested outputs"},
		{"300 as INT8", input("[1]", "INT8", "[300]"), KindInvalid, "", "[inputs 0 data 0]", `input "x": element 0: 300 does not fit INT8`},
		{"1.7 as INT32", input("[2]", "INT32", "[1,1.7]"), KindInvalid, "", "[inputs 0 data 1]", "1.7 is no whole number"},
		{"-1 as UINT8", input("[1]", "UINT8", "[-1]"), KindInvalid, "", "[inputs 0 data 0]", "-1 does not fit UINT8"},
		{"INT64 overflow", input("[1]", "INT64", "[9223372036854775808]"), KindInvalid, "", "[inputs 0 data 0]", "does not fit"},
		{"1e39 as FP32", input("[1]", "FP32", "[1e39]"), KindInvalid, "", "[inputs 0 data 0]", "does not fit FP32"},
		{"70000 as FP16", input("[1]", "FP16", "[70000]"), KindInvalid, "", "[inputs 0 data 0]", "does not fit FP16"},
		{"null as INT8", input("[1]", "INT8", "[null]"), KindInvalid, "", "[inputs 0 data 0]", "null is no INT8"},
		{"string as FP32", input("[1]", "FP32", `["a"]`), KindInvalid, "", "[inputs 0 data 0]", `"a" is no FP32`},
		{"ragged", input("[3]", "FP32", `[[1,2],[3]]`), KindInvalid, "", "[inputs 0 data]", "ragged"},
		{"scalars beside arrays", input("[2]", "FP32", `[1,[2]]`), KindInvalid, "", "[inputs 0 data]", "ragged"},
		{"not UTF-8", input("[1]", "BYTES", "[\"\xff\"]"), KindInvalid, "", "[inputs 0 data 0]", "UTF-8"},
		{"lone surrogate", input("[1]", "BYTES", `["\ud800"]`), KindSchema, "json_invalid", "", "surrogate"},
		{"leading zero", input("[1]", "FP32", `[01]`), KindSchema, "json_invalid", "", "a number"},
		{"NaN", input("[1]", "FP32", `[NaN]`), KindSchema, "json_invalid", "", "a value"},
		{"deep", `{"x":` + strings.Repeat("[", 100_000), KindSchema, "json_invalid", "", "deeper than 64"},
		{"parameters is no object", `{"parameters":[],"inputs":[]}`, KindSchema, "dict_type", "[parameters]", "dictionary"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := DecodeRequest([]byte(test.body))
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("error = %v, want *Error", err)
			}
			if e.Kind != test.kind || e.Type != test.typ {
				t.Errorf("kind %d type %q, want %d %q (%v)", e.Kind, e.Type, test.kind, test.typ, e)
			}
			if test.path != "" && fmt.Sprint(e.Path) != test.path {
				t.Errorf("path %v, want %v (%v)", e.Path, test.path, e)
			}
			if !strings.Contains(e.Message, test.says) {
				t.Errorf("message %q does not say %q", e.Message, test.says)
			}
		})
	}
}

// TestGiganticShape checks that a declared shape reserves no more than the
// body could fill.
func TestGiganticShape(t *testing.T) {
	body := []byte(input("[1000000000000]", "FP64", "[1,2,3]"))
	if got := testing.AllocsPerRun(10, func() { _, _ = DecodeRequest(body) }); got > 100 {
		t.Errorf("%v allocations", got)
	}
	var v Values
	s := &scanner{data: []byte("[1,2,3]")}
	if _, err := readValues(s, FP64, &v, 1e12, true); err != nil || cap(v.Float64) > 16 {
		t.Errorf("capacity %d (%v), want at most 16", cap(v.Float64), err)
	}
}
