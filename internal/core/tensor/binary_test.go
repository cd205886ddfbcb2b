package tensor

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestDecodeBinaryRequest(t *testing.T) {
	tail := binary.LittleEndian.AppendUint32(nil, math.Float32bits(1.5))
	tail = binary.LittleEndian.AppendUint32(tail, math.Float32bits(-2))
	tail = append(tail, 2, 0, 0, 0, 'h', 0xff)
	const floats = `{"name":"x","shape":[2],"datatype":"FP32","parameters":{"binary_data_size":8,"keep":1}}`
	const text = `{"name":"s","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":6.0}}`
	plain := `{"name":"p","shape":[1],"datatype":"INT8","data":[7]}`
	r, err := DecodeBinaryRequest([]byte(`{"inputs":[`+floats+","+plain+","+text+`]}`), slices.Clone(tail))
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Inputs[0]; !slices.Equal(got.Data.Float32, []float32{1.5, -2}) || len(got.Parameters) != 1 {
		t.Errorf("floats: %+v", got)
	}
	if got := r.Inputs[1]; !slices.Equal(got.Data.Int8, []int8{7}) {
		t.Errorf("plain: %+v", got)
	}
	if got := r.Inputs[2]; len(got.Data.Bytes) != 1 || string(got.Data.Bytes[0]) != "h\xff" {
		t.Errorf("bytes: %+v", got)
	}
	for _, test := range []struct{ name, inputs, says string }{
		{"left over", floats, "6 bytes of binary data are left over"},
		{"short", floats + "," + text + "," + floats, `input "x": binary_data_size is 8, but 0 bytes`},
		{"both", strings.Replace(floats, `"parameters"`, `"data":[1,2],"parameters"`, 1), "both data and binary_data_size"},
		{"negative", strings.Replace(floats, "8", "-8", 1), "must be a whole number of bytes"},
		{"fraction", strings.Replace(floats, "8", "7.5", 1), "must be a whole number of bytes"},
		{"text", strings.Replace(floats, "8", `"8"`, 1), "must be a whole number of bytes"},
		{"huge", strings.Replace(floats, "8", "1e300", 1), "must be a whole number of bytes"},
		{"shape", strings.Replace(floats, "[2]", "[3]", 1), "shape [3] of FP32 takes 3 × 4 bytes"},
		{"neither", `{"name":"x","shape":[2],"datatype":"FP32"}`, "Field required: data"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := DecodeBinaryRequest([]byte(`{"inputs":[`+test.inputs+`]}`), slices.Clone(tail)); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("error %v does not say %q", err, test.says)
			}
		})
	}
	if _, err := DecodeRequest([]byte(`{"inputs":[` + floats + `]}`)); err == nil || !strings.Contains(err.Error(), "Field required: data") {
		t.Errorf("binary size without the extension: %v", err)
	}
}

func TestWantsBinary(t *testing.T) {
	on, off := Parameters{"binary_data": true}, Parameters{"binary_data": false}
	for _, test := range []struct {
		all  any
		own  Parameters
		want bool
	}{{nil, nil, false}, {true, nil, true}, {true, off, false}, {false, on, true}, {nil, on, true}, {"true", nil, false}} {
		r := Request{Outputs: []RequestedOutput{{Name: "other", Parameters: Parameters{"binary_data": !test.want}}, {Name: "y", Parameters: test.own}}}
		if test.all != nil {
			r.Parameters = Parameters{"binary_data_output": test.all}
		}
		if got := r.WantsBinary("y"); got != test.want {
			t.Errorf("%v, %v: %v", test.all, test.own, got)
		}
	}
}

func TestSplitBinary(t *testing.T) {
	for _, test := range []struct {
		header string
		total  int64
		says   string
	}{{"10", 10, ""}, {"0", 10, ""}, {"10", -1, ""}, {"11", 10, "the body has 10 bytes"}, {"-1", 10, "whole number"}, {"x", 10, "whole number"}, {strings.Repeat("9", 500), 1, "…"}} {
		n, err := SplitBinary(test.header, test.total)
		if test.says == "" && (err != nil || fmt.Sprint(n) != test.header) || test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) {
			t.Errorf("%q of %d: %d, %v", test.header, test.total, n, err)
		}
	}
}

// TestAdoptRaw checks that aligned data is not copied and other data is right
// all the same.
func TestAdoptRaw(t *testing.T) {
	backing := memory(make([]float64, 5))
	for i, x := range []float64{1, 2, 3, math.Inf(-1)} {
		binary.LittleEndian.PutUint64(backing[8*i:], math.Float64bits(x))
	}
	want := []float64{1, 2, 3, math.Inf(-1)}
	x := Tensor{Name: "x", Datatype: FP64, Shape: []int64{4}}
	if err := x.AdoptRaw(backing[:32]); err != nil || !slices.Equal(x.Data.Float64, want) {
		t.Fatal(x, err)
	}
	if raw, ok := x.RawMemory(); littleEndian && (!ok || &raw[0] != &backing[0]) {
		t.Error("aligned data was copied")
	}
	copy(backing[1:], slices.Clone(backing[:32]))
	if err := x.AdoptRaw(backing[1:33]); err != nil || !slices.Equal(x.Data.Float64, want) {
		t.Error(x, err)
	}
}

// FuzzBinaryRequest checks the extension's reader against the JSON one: what
// it accepts is the same request as with its data in JSON, and its answer
// reads back.
func FuzzBinaryRequest(f *testing.F) {
	f.Add([]byte(`{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","parameters":{"binary_data_size":8}}]}`), []byte("abcdefgh"))
	f.Add([]byte(`{"inputs":[{"name":"x","shape":[1,1],"datatype":"BYTES","parameters":{"binary_data_size":6}},{"name":"y","shape":[1],"datatype":"BOOL","data":[true]}]}`), []byte("\x02\x00\x00\x00hi"))
	f.Add([]byte(`{"inputs":[{"name":"h","shape":[2],"datatype":"BF16","parameters":{"binary_data_size":4},"data":null}]}`), []byte("\x80\x3f\x00\x40"))
	f.Add([]byte(`{"parameters":{"binary_data_output":true},"outputs":[{"name":"x","parameters":{"binary_data":false}}],"inputs":[{"name":"x","shape":[0],"datatype":"INT64","parameters":{"binary_data_size":0}}]}`), []byte(""))
	f.Fuzz(func(t *testing.T, head, tail []byte) {
		kept := slices.Clone(tail)
		r, err := DecodeBinaryRequest(head, tail)
		if err != nil {
			return
		}
		var raw []byte
		for i := range r.Inputs {
			in := &r.Inputs[i]
			if n, ok := Elements(in.Shape); !ok || n != int64(in.Len()) {
				t.Fatalf("%v has %d elements", in, in.Len())
			}
			own := in.AppendRaw(nil)
			if len(own) != in.RawSize() {
				t.Fatalf("%v: %d bytes, size %d", in, len(own), in.RawSize())
			}
			if memory, ok := in.RawMemory(); ok && !bytes.Equal(memory, own) {
				t.Fatalf("%v: memory %x, raw %x", in, memory, own)
			}
			raw = append(raw, own...)
		}
		response := &Response{Outputs: r.Inputs}
		text, err := AppendBinaryResponse(nil, response, func(string) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		again, err := decodeResponse(&scanner{data: text, tail: &binaryTail{raw}})
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for i := range again.Outputs {
			a, b := &again.Outputs[i], &r.Inputs[i]
			if a.Name != b.Name || a.Datatype != b.Datatype || !reflect.DeepEqual(a.Shape, b.Shape) || !bytes.Equal(a.AppendRaw(nil), b.AppendRaw(nil)) {
				t.Fatalf("%v became %v", b, a)
			}
		}
		if !bytes.Equal(kept, tail) {
			t.Fatal("the tail was changed")
		}
	})
}
