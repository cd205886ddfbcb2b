//go:build peers

package modelserver

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"roundhouse.dev/roundhouse/api/oip"
)

// call is one gRPC call, made to several servers. Each may change what it is
// given.
type call struct {
	kind     string
	method   string
	messages []proto.Message
	make     func(context.Context, oip.GRPCInferenceServiceClient, ...grpc.CallOption) ([]proto.Message, error)
}

// line is a call as a line for a shell, to a server that has the repository and
// tells of its services.
func (c call) line(address string) string {
	var messages []string
	for _, m := range c.messages {
		text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
		if err != nil {
			return err.Error()
		}
		messages = append(messages, string(text))
	}
	return "grpcurl -plaintext -H 'x-mine: 1' -d " + quoted(strings.Join(messages, " ")) + " " + address + " inference.GRPCInferenceService/" + c.method
}

// one makes a call without streams.
func one[Q, A proto.Message](kind string, q Q, method func(oip.GRPCInferenceServiceClient, context.Context, Q, ...grpc.CallOption) (A, error)) call {
	// A request is named after its method.
	name := strings.TrimSuffix(string(q.ProtoReflect().Descriptor().Name()), "Request")
	return call{"grpc/" + kind, name, []proto.Message{q},
		func(ctx context.Context, c oip.GRPCInferenceServiceClient, o ...grpc.CallOption) ([]proto.Message, error) {
			a, err := method(c, ctx, q, o...)
			return []proto.Message{a}, err
		}}
}

// streamed sends several requests before it reads.
func streamed(kind string, requests ...*oip.ModelInferRequest) call {
	var messages []proto.Message
	for _, r := range requests {
		messages = append(messages, r)
	}
	return call{"grpc/" + kind, "ModelStreamInfer", messages,
		func(ctx context.Context, c oip.GRPCInferenceServiceClient, o ...grpc.CallOption) (answers []proto.Message, err error) {
			s, err := c.ModelStreamInfer(ctx, o...)
			if err != nil {
				return nil, err
			}
			for _, r := range requests {
				if err := s.Send(r); err != nil && !errors.Is(err, io.EOF) { // then Recv says why
					return nil, err
				}
			}
			if err := s.CloseSend(); err != nil {
				return nil, err
			}
			for {
				a, err := s.Recv()
				if errors.Is(err, io.EOF) {
					return answers, nil
				}
				if err != nil {
					return answers, err
				}
				answers = append(answers, a)
			}
		}}
}

// perform makes a call and puts what came of it in the form of an answer: the
// code, trailing metadata, and the messages or the error.
func (s *server) perform(t *testing.T, connection *grpc.ClientConn, c call) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answerTimeout)
	defer cancel()
	var trailer metadata.MD
	messages, err := c.make(metadata.AppendToOutgoingContext(ctx, "x-mine", "1"), oip.NewGRPCInferenceServiceClient(connection), grpc.Trailer(&trailer))
	a := answer{status: int(status.Code(err)), header: map[string]string{}}
	for name, values := range trailer {
		if compared(name) && name != "content-type" {
			a.header[name] = strings.Join(values, ", ")
		}
	}
	if err != nil {
		a.body = object{"error": status.Convert(err).Message()}
		return a
	}
	var list []any
	for _, m := range messages {
		list = append(list, messageJSON(t, m))
	}
	a.body = list
	return a
}

// messageJSON gives a message as decoded JSON, raw tensors as numbers.
func messageJSON(t *testing.T, m proto.Message) any {
	t.Helper()
	var raw [][]byte
	infer, ok := m.(*oip.ModelInferResponse)
	if ok {
		infer, ok = proto.Clone(m).(*oip.ModelInferResponse)
		raw, infer.RawOutputContents, m = infer.GetRawOutputContents(), nil, infer
		for _, o := range infer.GetOutputs() {
			if proto.Equal(o.GetContents(), &oip.InferTensorContents{}) {
				o.Contents = nil // the same to a reader
			}
		}
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	v, err := decodedJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	switch o, isObject := v.(object); {
	case ok && raw != nil:
		o["raw_output_contents"] = numbers(infer.GetOutputs(), raw)
	case isObject && o["models"] != nil:
		o["models"] = ordered(o["models"])
	}
	return v
}

// numbers reads raw tensors of the datatypes that the models answer in.
func numbers(outputs []*oip.ModelInferResponse_InferOutputTensor, raw [][]byte) any {
	var all []any
	for i, b := range raw {
		var values []any
		switch outputs[i].GetDatatype() {
		case "FP32":
			for ; len(b) >= 4; b = b[4:] {
				values = append(values, float64(math.Float32frombits(binary.LittleEndian.Uint32(b))))
			}
		case "FP64":
			for ; len(b) >= 8; b = b[8:] {
				values = append(values, math.Float64frombits(binary.LittleEndian.Uint64(b)))
			}
		case "INT64":
			for ; len(b) >= 8; b = b[8:] {
				values = append(values, float64(int64(binary.LittleEndian.Uint64(b))))
			}
		}
		all = append(all, append(values, string(b))) // with what is left
	}
	return all
}

// inputs makes a tensor in one of the protocol's forms.
func inputs(g *generator, m model, datatype string, raw bool) *oip.ModelInferRequest {
	rows := pick(g, 1, 2, 5)
	r := &oip.ModelInferRequest{ModelName: m.name, Inputs: []*oip.ModelInferRequest_InferInputTensor{
		{Name: "x", Datatype: datatype, Shape: []int64{int64(rows), int64(m.features)}}}}
	c := &oip.InferTensorContents{}
	var bytes []byte
	for range rows * m.features {
		n := g.random.IntN(8)
		switch datatype {
		case "FP32":
			c.Fp32Contents = append(c.Fp32Contents, float32(n))
			bytes = binary.LittleEndian.AppendUint32(bytes, math.Float32bits(float32(n)))
		case "FP64":
			c.Fp64Contents = append(c.Fp64Contents, float64(n))
			bytes = binary.LittleEndian.AppendUint64(bytes, math.Float64bits(float64(n)))
		case "INT64":
			c.Int64Contents = append(c.Int64Contents, int64(n))
			bytes = binary.LittleEndian.AppendUint64(bytes, uint64(n))
		case "INT32":
			c.IntContents = append(c.IntContents, int32(n))
			bytes = binary.LittleEndian.AppendUint32(bytes, uint32(n))
		case "UINT8":
			c.UintContents = append(c.UintContents, uint32(n))
			bytes = append(bytes, byte(n))
		}
	}
	if raw {
		r.RawInputContents = [][]byte{bytes}
	} else {
		r.Inputs[0].Contents = c
	}
	return r
}

// calls makes the calls to compare.
func calls(g *generator) (all []call) {
	type service = oip.GRPCInferenceServiceClient
	all = append(all, one("server", &oip.ServerLiveRequest{}, service.ServerLive), one("server", &oip.ServerReadyRequest{}, service.ServerReady),
		one("metadata", &oip.ServerMetadataRequest{}, service.ServerMetadata),
		one("unknown", &oip.ModelReadyRequest{Name: "nope"}, service.ModelReady), one("unknown", &oip.ModelMetadataRequest{Name: "nope"}, service.ModelMetadata),
		one("unknown", &oip.RepositoryModelLoadRequest{ModelName: "nope"}, service.RepositoryModelLoad), one("unknown", &oip.RepositoryModelUnloadRequest{ModelName: "nope"}, service.RepositoryModelUnload))
	index := one("index", &oip.RepositoryIndexRequest{}, service.RepositoryIndex)
	for _, m := range models {
		all = append(all, one("ready", &oip.ModelReadyRequest{Name: m.name}, service.ModelReady), one("metadata", &oip.ModelMetadataRequest{Name: m.name, Version: m.version}, service.ModelMetadata))
		for _, datatype := range []string{"FP32", "FP64", "INT64", "INT32", "UINT8"} {
			for _, raw := range []bool{false, true} {
				r := inputs(g, m, datatype, raw)
				r.Id = pick(g, "", "a", "42")
				r.ModelVersion = pick(g, "", m.version)
				if g.chance(2) {
					r.Outputs = []*oip.ModelInferRequest_InferRequestedOutputTensor{{Name: pick(g, m.outputs...)}}
				}
				if g.chance(2) {
					r.Parameters = map[string]*oip.InferParameter{"mine": {ParameterChoice: &oip.InferParameter_Int64Param{Int64Param: 1}}}
				}
				all = append(all, one("infer", r, service.ModelInfer))
			}
		}
		r := inputs(g, m, "FP32", false)
		r.Id = "first"
		second := inputs(g, m, "FP32", false)
		all = append(all, streamed("stream", r), streamed("stream", r, second))
		narrow := inputs(g, model{m.name, "", m.features - 1, nil}, "FP32", false)
		all = append(all, one("refused", narrow, service.ModelInfer), streamed("refused", narrow))
		all = append(all, one("load", &oip.RepositoryModelUnloadRequest{ModelName: m.name}, service.RepositoryModelUnload), index,
			one("unloaded", inputs(g, m, "FP32", false), service.ModelInfer),
			one("load", &oip.RepositoryModelLoadRequest{ModelName: m.name}, service.RepositoryModelLoad), index,
			one("ready", &oip.ModelReadyRequest{Name: m.name}, service.ModelReady))
	}
	return append(append(all, contentCalls(g)...), refusals(g, models[0])...)
}

// contentCalls are calls with content types, to models that say what they
// decoded or that have typed arguments.
func contentCalls(g *generator) (all []call) {
	add := func(kind, model string, contentType string, input *oip.ModelInferRequest_InferInputTensor) {
		if contentType != "" {
			input.Parameters = map[string]*oip.InferParameter{"content_type": {ParameterChoice: &oip.InferParameter_StringParam{StringParam: contentType}}}
		}
		r := &oip.ModelInferRequest{ModelName: model, Id: pick(g, "a", "42"), Inputs: []*oip.ModelInferRequest_InferInputTensor{input}}
		all = append(all, one(kind, r, oip.GRPCInferenceServiceClient.ModelInfer))
	}
	text := func(name string, pool []string) *oip.ModelInferRequest_InferInputTensor {
		c := &oip.InferTensorContents{}
		for range 2 {
			c.BytesContents = append(c.BytesContents, []byte(pick(g, pool...)))
		}
		return &oip.ModelInferRequest_InferInputTensor{Name: name, Datatype: "BYTES", Shape: []int64{2}, Contents: c}
	}
	number := func(name, datatype string) *oip.ModelInferRequest_InferInputTensor {
		return inputs(g, model{features: 2}, datatype, false).Inputs[0]
	}
	for _, contentType := range []string{"", "np", "pd", "nope"} {
		for _, datatype := range []string{"FP32", "FP64", "INT64", "INT32", "UINT8"} {
			add("content", "decoded", contentType, number("x", datatype))
		}
	}
	for range 3 {
		add("content", "decoded", "str", text("x", words))
		add("content", "decoded", "base64", text("x", base64Texts))
		add("content", "decoded", "datetime", text("x", dates))
		add("content", "typed", "", text("str", words))
		add("content", "typed", "", number("np", "FP32"))
		add("arguments", "array", "", number("x", "FP64"))
		add("arguments", "binary", "", text("x", base64Texts))
		add("arguments", "dates", "", text("x", dates))
		add("arguments", "frame", "", text("c0", words))
	}
	add("headers", "headers", "", text("x", words))
	for _, how := range []string{"inference", "value", "key"} {
		input := text("x", []string{how})
		input.Shape, input.Contents.BytesContents = []int64{1}, input.Contents.BytesContents[:1]
		add("failing", "failing", "", input)
	}
	stream := &oip.ModelInferRequest{ModelName: "stream", Id: "a", Inputs: []*oip.ModelInferRequest_InferInputTensor{text("x", []string{"one two", "three"})}}
	return append(all, streamed("words", stream), streamed("words", stream, stream))
}

// refusals are calls that no server should answer.
func refusals(g *generator, m model) (all []call) {
	add := func(kind string, change func(*oip.ModelInferRequest)) {
		r := inputs(g, m, "FP32", true)
		change(r)
		all = append(all, one(kind, r, oip.GRPCInferenceServiceClient.ModelInfer))
	}
	add("unknown", func(r *oip.ModelInferRequest) { r.ModelName = "nope" })
	add("unknown", func(r *oip.ModelInferRequest) { r.ModelVersion = "v9" })
	add("refused", func(r *oip.ModelInferRequest) { r.Inputs[0].Datatype = "FP8" })
	add("refused", func(r *oip.ModelInferRequest) { r.Inputs[0].Datatype = "" })
	add("refused", func(r *oip.ModelInferRequest) { r.Inputs[0].Shape = []int64{1000, 1000} })
	add("refused", func(r *oip.ModelInferRequest) { r.Inputs[0].Shape = []int64{-5, 4} })
	add("refused", func(r *oip.ModelInferRequest) { r.RawInputContents[0] = r.RawInputContents[0][1:] })
	add("refused", func(r *oip.ModelInferRequest) { r.RawInputContents = nil })
	add("refused", func(r *oip.ModelInferRequest) { r.Inputs = nil; r.RawInputContents = nil })
	add("refused", func(r *oip.ModelInferRequest) {
		r.Outputs = []*oip.ModelInferRequest_InferRequestedOutputTensor{{Name: "nope"}}
	})
	return append(all, streamed("refused"), streamed("unknown-stream", &oip.ModelInferRequest{ModelName: "nope"}))
}

// dial connects to a server's gRPC port.
func (s *server) dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	connection, err := grpc.NewClient("passthrough:///"+s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return connection
}

// compareCalls makes the same calls to both servers and counts how they
// compare.
func compareCalls(t *testing.T, g *generator, theirs, ours *server, counts *tally) (all int) {
	t.Helper()
	theirConnection, ourConnection := theirs.dial(t), ours.dial(t)
	made := calls(g)
	for _, c := range made {
		a, b := theirs.perform(t, theirConnection, c), ours.perform(t, ourConnection, c)
		for _, d := range counts.count(c.kind, compare(a, b)) {
			t.Errorf("%s\n  %s\n  %s", c.kind, c.line(ours.grpc), d)
		}
	}
	return len(made)
}
