package tensor

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
)

func TestAppendResponse(t *testing.T) {
	response := &Response{ModelName: "iris", ModelVersion: "v1", ID: "7", Parameters: Parameters{"content_type": "np"}, Outputs: []Tensor{
		{Name: "predict", Datatype: FP32, Shape: []int64{2, 2}, Parameters: Parameters{"content_type": "np"}, Data: Values{Float32: []float32{1, 0.1, float32(math.NaN()), -1e-7}}},
		{Name: "label", Datatype: Bytes, Shape: []int64{2}, Data: Values{Bytes: [][]byte{nil, []byte(`a"b`)}}},
	}}
	want := `{"model_name":"iris","model_version":"v1","id":"7","parameters":{"content_type":"np"},"outputs":[` +
		`{"name":"predict","shape":[2,2],"datatype":"FP32","parameters":{"content_type":"np"},"data":[1.0,0.1,null,-1e-07]},` +
		`{"name":"label","shape":[2],"datatype":"BYTES","data":[null,"a\"b"]}]}`
	got, err := AppendResponse(nil, response)
	if err != nil || string(got) != want {
		t.Errorf("got  %s (%v)\nwant %s", got, err, want)
	}
	bare, err := AppendResponse(nil, &Response{})
	if want := `{"model_name":"","id":"","outputs":[]}`; err != nil || string(bare) != want {
		t.Errorf("got %s (%v), want %s", bare, err, want)
	}
}

func TestAppendRequest(t *testing.T) {
	request := &Request{ID: "7", Inputs: []Tensor{{Name: "x", Datatype: Int8, Shape: []int64{1}, Data: Values{Int8: []int8{-3}}}},
		Outputs: []RequestedOutput{{Name: "a"}, {Name: "b", Parameters: Parameters{"binary_data": true}}}}
	want := `{"id":"7","inputs":[{"name":"x","shape":[1],"datatype":"INT8","data":[-3]}],` +
		`"outputs":[{"name":"a"},{"name":"b","parameters":{"binary_data":true}}]}`
	got, err := AppendRequest(nil, request)
	if err != nil || string(got) != want {
		t.Errorf("got  %s (%v)\nwant %s", got, err, want)
	}
}

func TestAppendNotUTF8(t *testing.T) {
	response := &Response{Outputs: []Tensor{{Name: "y", Datatype: Bytes, Shape: []int64{1}, Data: Values{Bytes: [][]byte{{0xff}}}}}}
	if _, err := AppendResponse(nil, response); err == nil {
		t.Error("bytes that are not UTF-8 were encoded")
	}
}

func TestV1(t *testing.T) {
	tests := []struct{ body, inputs, predictions string }{
		{`{"instances":[[1,2],[3,null]]}`, `["input-0" FP64[2 2]]`, `{"predictions":[[1.0,2.0],[3.0,null]]}`},
		{`{"inputs":[1,2,3],"signature":0}`, `["input-0" FP64[3]]`, `{"predictions":[1.0,2.0,3.0]}`},
		{`{"instances":[[1],[2]]}`, `["input-0" FP64[2 1]]`, `{"predictions":[1.0,2.0]}`},
		{`{"instances":[[[1,2]],[[3,4]]]}`, `["input-0" FP64[2 1 2]]`, `{"predictions":[[[1.0,2.0]],[[3.0,4.0]]]}`},
		{`{"instances":["a",null]}`, `["input-0" BYTES[2]]`, `{"predictions":["a",null]}`},
		{`{"instances":[]}`, `["input-0" FP64[0]]`, `{"predictions":[]}`},
		{`{"instances":[{"a":1,"b":"x"},{"b":"y","a":[true]}]}`, `["a" FP64[2] "b" BYTES[2]]`, `{"predictions":[{"a":1.0,"b":"x"},{"a":1.0,"b":"y"}]}`},
	}
	for _, test := range tests {
		r, err := DecodeV1([]byte(test.body))
		if err != nil {
			t.Errorf("%s: %v", test.body, err)
			continue
		}
		names := "["
		for i := range r.Inputs {
			if i > 0 {
				names += " "
			}
			names += r.Inputs[i].String()
		}
		if names += "]"; names != test.inputs {
			t.Errorf("%s: inputs %s, want %s", test.body, names, test.inputs)
		}
		if got, err := AppendV1(nil, &Response{Outputs: r.Inputs}); err != nil || string(got) != test.predictions {
			t.Errorf("%s: %s (%v), want %s", test.body, got, err, test.predictions)
		}
	}
}

func TestV1Errors(t *testing.T) {
	for _, body := range []string{
		`{}`, `[]`, `{"instances":3}`, `{"instances":[],"inputs":[]}`, `{"instances":[[1],[2,3]]}`, `{"instances":[1,"a"]}`,
		`{"instances":[{"a":1},{"b":1}]}`, `{"instances":[{"a":1,"a":2}]}`, `{"instances":[{"a":1,"b":2},{"a":1}]}`,
		`{"instances":[{"a":1},3]}`, `{"instances":[{"a":[1,2]}]}`, `{"instances":[{"a":1},{"a":"x"}]}`, `{"instances":[[{"a":1}]]}`,
	} {
		if r, err := DecodeV1([]byte(body)); err == nil {
			t.Errorf("%s: accepted as %v", body, r.Inputs)
		}
	}
}

func TestRawRoundTrip(t *testing.T) {
	for d := Bool; d <= Bytes; d++ {
		in := Tensor{Name: "x", Datatype: d, Shape: []int64{3}}
		raw := bytes.Repeat([]byte{1}, 3*d.Size())
		if d == Bytes {
			raw = []byte("\x01\x00\x00\x00a\x00\x00\x00\x00\x02\x00\x00\x00bc")
		}
		if err := in.SetRaw(raw); err != nil {
			t.Fatalf("%s: %v", d, err)
		}
		if got := in.AppendRaw(nil); in.Len() != 3 || !bytes.Equal(got, raw) {
			t.Errorf("%s: % x, want % x", d, got, raw)
		}
		if in.SetRaw(raw[:len(raw)-1]) == nil {
			t.Errorf("%s: short binary data was accepted", d)
		}
		if in.SetRaw(append(raw, 0)) == nil {
			t.Errorf("%s: long binary data was accepted", d)
		}
	}
}

func TestDatatypeText(t *testing.T) {
	for d := Bool; d <= Bytes; d++ {
		text, _ := d.MarshalText()
		var got Datatype
		if err := got.UnmarshalText(text); err != nil || got != d {
			t.Errorf("%s read back as %s (%v)", d, got, err)
		}
	}
	var d Datatype
	if d.UnmarshalText([]byte("fp32")) == nil {
		t.Error("fp32 was accepted")
	}
}

// body150k is a request of 150,000 FP32 values around 0.
func body150k() []byte {
	source := rand.New(rand.NewPCG(1, 2))
	body := []byte(`{"inputs":[{"name":"x","shape":[150000],"datatype":"FP32","data":[`)
	for i := range 150_000 {
		if i > 0 {
			body = append(body, ',')
		}
		body = strconv.AppendFloat(body, float64(float32(source.NormFloat64())), 'f', -1, 32)
	}
	return append(body, "]}]}"...)
}

func BenchmarkDecodeFP32(b *testing.B) {
	body := body150k()
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeRequest(body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeFP32EncodingJSON(b *testing.B) {
	body := body150k()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		var r struct {
			Inputs []struct {
				Name     string
				Shape    []int64
				Datatype string
				Data     []float32
			}
		}
		if err := json.Unmarshal(body, &r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncodeFP32(b *testing.B) {
	r, err := DecodeRequest(body150k())
	if err != nil {
		b.Fatal(err)
	}
	response := &Response{Outputs: r.Inputs}
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		dst, _ = AppendResponse(dst[:0], response)
	}
	b.SetBytes(int64(len(dst)))
}
