package oipgrpc

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/edge/modelserver"
)

// FuzzDecode reads any bytes as the generated code does.
func FuzzDecode(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 40 {
		text, err := proto.Marshal(messageOf(randomRequest(r), r.IntN(2) == 0))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("\xe0\x81\xb8\x9500")) // a field's number beyond the highest
	f.Fuzz(func(t *testing.T, text []byte) {
		m := &oip.ModelInferRequest{}
		readable := proto.Unmarshal(text, m) == nil
		var want tensor.Request
		ok := false
		if readable {
			want, ok = naive(m)
		}
		in := &inferRequest{}
		err := in.decode(text)
		if (err == nil) != ok {
			t.Fatalf("%v: error %v, generated code reads it: %v, fits: %v", m, err, readable, ok)
		}
		if ok && !same(&in.Request, &want) {
			t.Errorf("%v\ngot  %+v\nwant %+v", m, in.Request, want)
		}
		if ok && in.raw != (len(m.GetRawInputContents()) > 0) {
			t.Errorf("raw %v", in.raw)
		}
	})
}

// FuzzProtocols sends the same request as JSON and as a message, and the same
// response back.
func FuzzProtocols(f *testing.F) {
	for seed := range uint64(60) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 0))
		request := randomRequest(r)
		body, err := tensor.AppendRequest(nil, request)
		if err != nil {
			t.Fatal(err)
		}
		rest, err := tensor.DecodeRequest(body)
		if err != nil {
			t.Fatal(err)
		}
		raw := r.IntN(2) == 0
		in := decoded(t, messageOf(request, raw))
		if in.err != nil {
			t.Fatalf("%s: %v", body, in.err)
		}
		if !same(rest, &in.Request) {
			t.Errorf("%s\nJSON    %+v\nmessage %+v", body, rest, in.Request)
		}
		response := &tensor.Response{ModelName: "m", ModelVersion: "1", ID: "7", Parameters: request.Parameters, Outputs: request.Inputs}
		checkResponse(t, response, raw)
	})
}

// checkResponse encodes a response and reads it with the generated code.
func checkResponse(t *testing.T, r *tensor.Response, raw bool) {
	t.Helper()
	out, err := encode(r, raw)
	if err != nil {
		t.Fatal(err)
	}
	m := &oip.ModelInferResponse{}
	if err := proto.Unmarshal(out.parts.Materialize(), m); err != nil {
		t.Fatal(err)
	}
	for i := range r.Outputs {
		raw = raw || contentsOf(&r.Outputs[i]) == nil
	}
	var got []tensor.Tensor
	for i, o := range m.GetOutputs() {
		d, _ := tensor.ParseDatatype(o.GetDatatype())
		out := tensor.Tensor{Name: o.GetName(), Datatype: d, Shape: o.GetShape()}
		var ok bool
		if out.Parameters, ok = naiveParameters(o.GetParameters()); !ok {
			t.Fatal("parameters")
		}
		if raw {
			if o.Contents != nil {
				t.Error("contents beside raw ones")
			}
			if err := out.SetRaw(m.RawOutputContents[i]); err != nil {
				t.Fatal(err)
			}
		} else if out.Data, ok = valuesOf(d, o.GetContents()); !ok {
			t.Fatal("contents do not fit")
		}
		got = append(got, out)
	}
	if parameters, ok := naiveParameters(m.GetParameters()); !ok || len(parameters) != len(r.Parameters) {
		t.Errorf("parameters %v, want %v", m.GetParameters(), r.Parameters)
	}
	if m.GetModelName() != r.ModelName || m.GetModelVersion() != r.ModelVersion || m.GetId() != r.ID || show(got) != show(r.Outputs) {
		t.Errorf("got  %v\nwant %s", m, show(r.Outputs))
	}
	if raw != (len(m.GetRawOutputContents()) > 0) {
		t.Errorf("raw outputs: %d", len(m.GetRawOutputContents()))
	}
}

// TestEncodeNull: a null has no form, and is not made an empty string.
func TestEncodeNull(t *testing.T) {
	r := &tensor.Response{Outputs: []tensor.Tensor{{Name: "y", Datatype: tensor.Bytes, Shape: []int64{3}, Data: tensor.Values{Bytes: [][]byte{[]byte("a"), {}, nil}}}}}
	for _, raw := range []bool{false, true} {
		if _, err := encode(r, raw); err == nil || modelserver.StatusOf(err) != 400 || !strings.Contains(err.Error(), `output "y": element 2 is null`) {
			t.Errorf("raw %v: %v", raw, err)
		}
	}
	// Empty strings that came are not taken for nulls.
	for _, message := range []*oip.ModelInferRequest{
		{Inputs: []*oip.ModelInferRequest_InferInputTensor{{Datatype: "BYTES", Shape: []int64{2}, Contents: &oip.InferTensorContents{BytesContents: [][]byte{{}, {}}}}}},
		{Inputs: []*oip.ModelInferRequest_InferInputTensor{{Datatype: "BYTES", Shape: []int64{2}}}, RawInputContents: [][]byte{make([]byte, 8)}},
	} {
		bytes, err := proto.Marshal(message)
		if err != nil {
			t.Fatal(err)
		}
		in := &inferRequest{}
		if err := in.decode(bytes); err != nil {
			t.Fatal(err)
		}
		if _, err := encode(&tensor.Response{Outputs: in.Inputs}, in.raw); err != nil {
			t.Error(err)
		}
	}
}

// TestEncodeLarge sends tensors whose memory is shared.
func TestEncodeLarge(t *testing.T) {
	floats := make([]float32, 5000)
	ints := make([]int64, 5000)
	for i := range floats {
		floats[i], ints[i] = float32(i), int64(i-2500)
	}
	r := &tensor.Response{Outputs: []tensor.Tensor{
		{Name: "a", Datatype: tensor.FP32, Shape: []int64{5000}, Data: tensor.Values{Float32: floats}},
		{Name: "b", Datatype: tensor.Int64, Shape: []int64{2, 2500}, Data: tensor.Values{Int64: ints}},
		{Name: "c", Datatype: tensor.Bytes, Shape: []int64{2}, Data: tensor.Values{Bytes: [][]byte{make([]byte, 10_000), {}}}},
	}}
	checkResponse(t, r, false)
	checkResponse(t, r, true)
	out, err := encode(r, true)
	if err != nil {
		t.Fatal(err)
	}
	if got := out.parts[1].ReadOnlyData(); len(got) != 20_000 {
		t.Errorf("the first tensor is no part of its own: %d bytes", len(got))
	}
	floats[0] = 7 // shows in what is shared
	if got := out.parts[1].ReadOnlyData(); math.Float32frombits(uint32(got[0])|uint32(got[1])<<8|uint32(got[2])<<16|uint32(got[3])<<24) != 7 {
		t.Error("the first tensor was copied")
	}
}

func inputOf(datatype string, shape []int64, c *oip.InferTensorContents) *oip.ModelInferRequest {
	return &oip.ModelInferRequest{Inputs: []*oip.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: datatype, Shape: shape, Contents: c}}}
}

func withRaw(m *oip.ModelInferRequest, raw ...string) *oip.ModelInferRequest {
	for _, r := range raw {
		m.RawInputContents = append(m.RawInputContents, []byte(r))
	}
	return m
}

func TestDecodeErrors(t *testing.T) {
	three := &oip.InferTensorContents{Fp32Contents: []float32{1, 2, 3}}
	many := &oip.ModelInferRequest{}
	for range tensor.MaxTensors + 1 {
		many.Inputs = append(many.Inputs, &oip.ModelInferRequest_InferInputTensor{Datatype: "FP32"})
	}
	parameter := inputOf("FP32", []int64{3}, three)
	parameter.Parameters = map[string]*oip.InferParameter{"x": {ParameterChoice: &oip.InferParameter_DoubleParam{DoubleParam: math.NaN()}}}
	tests := []struct {
		m    *oip.ModelInferRequest
		says string
	}{
		{inputOf("FP33", []int64{3}, three), `input "x": unknown datatype "FP33"`},
		{inputOf("", []int64{3}, three), `unknown datatype ""`},
		{inputOf("FP32", []int64{2}, three), `input "x": shape [2] holds 2 elements, contents has 3`},
		{inputOf("FP32", []int64{}, three), `shape [] holds 1 elements, contents has 3`},
		{inputOf("FP32", []int64{-2}, three), `shape [-2] has a negative size`},
		{inputOf("FP32", []int64{-1, -1}, three), `has a negative size`},
		{inputOf("FP32", []int64{-1, 2}, three), `no size for -1 fits`},
		{inputOf("FP32", []int64{math.MaxInt64, 3}, three), `too large`},
		{inputOf("FP32", []int64{1 << 40}, nil), `holds 1099511627776 elements, contents has 0`},
		{inputOf("FP32", make([]int64, 65), three), `at most 64 sizes`},
		{inputOf("FP64", []int64{3}, three), `FP64 goes in fp64_contents, not in fp32_contents`},
		{inputOf("FP16", []int64{3}, three), `FP16 has no contents field; send it in raw_input_contents`},
		{inputOf("BF16", []int64{3}, nil), `BF16 has no contents field; send it in raw_input_contents`},
		{inputOf("INT8", []int64{1}, &oip.InferTensorContents{IntContents: []int32{300}}), `an element of int_contents does not fit INT8`},
		{inputOf("INT16", []int64{1}, &oip.InferTensorContents{IntContents: []int32{-40000}}), `does not fit INT16`},
		{inputOf("UINT8", []int64{1}, &oip.InferTensorContents{UintContents: []uint32{256}}), `does not fit UINT8`},
		{withRaw(inputOf("FP32", []int64{2}, nil), "1234567"), `shape [2] of FP32 takes 2 × 4 bytes, the binary data has 7`},
		{withRaw(inputOf("FP32", []int64{-1}, nil), "1234"), `has a negative size`},
		{withRaw(inputOf("BYTES", []int64{1}, nil), "\x05\x00\x00\x00abc"), `5 bytes announced, 3 left`},
		{withRaw(inputOf("FP32", []int64{3}, three), "1234"), `raw_input_contents has 1 entries, 0 of the 1 inputs take one`},
		{withRaw(&oip.ModelInferRequest{}, strings.Split(strings.Repeat(",", tensor.MaxTensors), ",")...), `raw_input_contents has more than 16384 entries`},
		{many, `more than 16384 inputs`},
		{parameter, `parameters are finite numbers`},
	}
	for _, test := range tests {
		in := decoded(t, test.m)
		if in.err == nil || !strings.Contains(in.err.Error(), test.says) {
			t.Errorf("error %v, want %s", in.err, test.says)
		}
	}
	for _, text := range []string{"\x0a\x05a", "\x0a\x01\xff", "\x07", "\x2a\x06\x12\x04FP3", "\x2a\x0b\x12\x04FP32\x2a\x03\x32\x01a"} {
		if err := (&inferRequest{}).decode([]byte(text)); err == nil || !strings.Contains(err.Error(), "malformed") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestDecodeMixed has inputs with contents among raw ones.
func TestDecodeMixed(t *testing.T) {
	m := inputOf("FP32", []int64{1}, nil)
	m.Inputs = append(m.Inputs,
		&oip.ModelInferRequest_InferInputTensor{Name: "y", Datatype: "INT64", Shape: []int64{-1, 1}, Contents: &oip.InferTensorContents{Int64Contents: []int64{-5, 6}}},
		&oip.ModelInferRequest_InferInputTensor{Name: "empty", Datatype: "INT64", Shape: []int64{0}, Contents: &oip.InferTensorContents{}},
		&oip.ModelInferRequest_InferInputTensor{Name: "z", Datatype: "FP16", Shape: []int64{2}})
	in := decoded(t, withRaw(m, "\x00\x00\x80\x3f", "\x00\x3c\x00\xc0"))
	if in.err != nil || !in.raw {
		t.Fatal(in.err)
	}
	if got := in.Inputs; got[0].Data.Float32[0] != 1 || got[1].Data.Int64[0] != -5 || got[1].Shape[0] != 2 || got[2].Len() != 0 || got[3].Data.Float32[1] != -2 {
		t.Errorf("%+v", got)
	}
}

// TestDecodeUnpacked reads numbers one by one and contents in pieces, behind
// their datatype or before it, as older encoders may write them.
func TestDecodeUnpacked(t *testing.T) {
	var c []byte
	for _, x := range []float32{1, 2} {
		c = protowire.AppendFixed32(protowire.AppendTag(c, 6, protowire.Fixed32Type), math.Float32bits(x))
	}
	var in []byte
	in = protowire.AppendBytes(protowire.AppendTag(in, tensorContents, protowire.BytesType), c)
	in = appendText(in, tensorDatatype, "FP32")
	in = protowire.AppendVarint(protowire.AppendTag(in, tensorShape, protowire.VarintType), 2)
	in = protowire.AppendVarint(protowire.AppendTag(in, tensorShape, protowire.VarintType), 2)
	in = protowire.AppendBytes(protowire.AppendTag(in, tensorContents, protowire.BytesType), c)
	message := protowire.AppendBytes(protowire.AppendTag(nil, requestInputs, protowire.BytesType), in)
	r := &inferRequest{}
	if err := r.decode(message); err != nil {
		t.Fatal(err)
	}
	if got := r.Inputs[0]; len(got.Shape) != 2 || len(got.Data.Float32) != 4 || got.Data.Float32[3] != 2 {
		t.Errorf("%+v", got)
	}
}
