package oipgrpc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"google.golang.org/grpc"

	"roundhouse.dev/roundhouse/api/oip"
)

// TestTritonCalls: statistics, configuration and settings, in the messages of Triton's
// clients.
func TestTritonCalls(t *testing.T) {
	s := start(t, models{"echo": "echo", "fault": "fault"})
	ctx := t.Context()
	for range 3 {
		if _, err := s.ModelInfer(ctx, floats("echo", 1)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.ModelInfer(ctx, floats("fault", 1)); err == nil {
		t.Fatal("no fault")
	}
	all, err := s.ModelStatistics(ctx, &oip.ModelStatisticsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range all.GetModelStats() {
		in := m.GetInferenceStats()
		got = append(got, fmt.Sprint(m.GetName(), " ", m.GetInferenceCount(), m.GetExecutionCount(), in.GetSuccess().GetCount(), in.GetFail().GetCount(),
			in.GetQueue().GetCount(), in.GetComputeInfer().GetCount()))
		if m.GetLastInference() == 0 {
			t.Errorf("%s has no last inference", m.GetName())
		}
	}
	if want := []string{"echo 3 3 3 0 3 3", "fault 0 0 0 1 0 0"}; !slices.Equal(got, want) {
		t.Errorf("statistics %q, want %q", got, want)
	}
	if _, err := s.ModelStatistics(ctx, &oip.ModelStatisticsRequest{Name: "nope"}); status.Code(err) != codes.NotFound {
		t.Errorf("statistics of nothing: %v", err)
	}
	c, err := s.ModelConfig(ctx, &oip.ModelConfigRequest{Name: "echo"})
	if err != nil {
		t.Fatal(err)
	}
	if in, out := c.GetConfig().GetInput()[0], c.GetConfig().GetOutput()[0]; in.GetDataType() != oip.DataType_TYPE_FP32 || out.GetDataType() != oip.DataType_TYPE_BF16 ||
		!slices.Equal(out.GetDims(), []int64{-1, 2}) || c.GetConfig().GetPlatform() != "fake" {
		t.Errorf("configuration %v", c)
	}
	trace, err := s.TraceSetting(ctx, &oip.TraceSettingRequest{ModelName: "echo"})
	if err != nil || !slices.Equal(trace.GetSettings()["trace_level"].GetValue(), []string{"OFF"}) {
		t.Errorf("trace settings %v %v", trace, err)
	}
	logs, err := s.LogSettings(ctx, &oip.LogSettingsRequest{})
	if err != nil || !logs.GetSettings()["log_error"].GetBoolParam() {
		t.Errorf("log settings %v %v", logs, err)
	}
	_, err = s.TraceSetting(ctx, &oip.TraceSettingRequest{Settings: map[string]*oip.TraceSettingRequest_SettingValue{"trace_level": {}}})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("traces are set: %v", err)
	}
	_, err = s.LogSettings(ctx, &oip.LogSettingsRequest{Settings: map[string]*oip.LogSettingsRequest_SettingValue{"log_info": {}}})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("logs are set: %v", err)
	}
}

// TestTritonStream: with Triton's metadata each request of a stream is answered by
// itself, in Triton's message, and one that fails ends nothing.
func TestTritonStream(t *testing.T) {
	s := start(t, models{"plain": "plain", "fault": "fault", "many": "one to many"})
	ctx := metadata.AppendToOutgoingContext(t.Context(), keyTriton, "true")
	stream, err := s.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, oip.GRPCInferenceService_ModelStreamInfer_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	last := withID(floats("many", 1, 2), "4")
	last.Parameters = map[string]*oip.InferParameter{wantsFinal: {ParameterChoice: &oip.InferParameter_BoolParam{BoolParam: true}}}
	for _, r := range []*oip.ModelInferRequest{withID(floats("plain", 1), "1"), withID(floats("fault", 1), "2"), withID(floats("nope", 1), "3"), last} {
		if err := stream.SendMsg(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for {
		m := &oip.ModelStreamInferResponse{}
		if err := stream.RecvMsg(m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		r := m.GetInferResponse()
		one := r.GetId()
		if len(r.GetOutputs()) > 0 {
			one += " " + r.GetOutputs()[0].GetName()
		}
		if r.GetParameters()[isFinal].GetBoolParam() {
			one += " final"
		}
		if m.GetErrorMessage() != "" {
			one += " " + m.GetErrorMessage()
		}
		if len(m.ProtoReflect().GetUnknown())+len(r.ProtoReflect().GetUnknown()) > 0 || proto.Size(m) == 0 {
			t.Errorf("%v", m)
		}
		got = append(got, one)
	}
	want := []string{"1 x", "2 expected 4 features", "3 Model nope not found", "4 n", "4 n", "4 n", "4 final"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestSharedMemoryCalls: a tensor comes and goes in shared memory, beside others that do
// not, with Triton's messages and codes.
func TestSharedMemoryCalls(t *testing.T) {
	const dir = "/dev/shm"
	if _, err := os.Stat(dir); err != nil {
		t.Skip("this system has no folder of shared memory")
	}
	f, err := os.CreateTemp(dir, "roundhouse-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(f.Name()) })
	if _, err := f.Write([]byte{1, 2, 3, 4, 0, 0, 0, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	key := strings.TrimPrefix(f.Name(), dir)
	ctx := t.Context()
	off := start(t, models{"echo": "plain"})
	if _, err := off.SystemSharedMemoryStatus(ctx, &oip.SystemSharedMemoryStatusRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("without the flag: %v", err)
	}
	s := start(t, models{"echo": "plain"}, func(o *options) { o.config.SharedMemory = key })
	register := func(name string, offset, size uint64) error {
		_, err := s.SystemSharedMemoryRegister(ctx, &oip.SystemSharedMemoryRegisterRequest{Name: name, Key: key, Offset: offset, ByteSize: size})
		return err
	}
	if err := errors.Join(register("in", 0, 4), register("out", 6, 4)); err != nil {
		t.Fatal(err)
	}
	if err := register("in", 0, 4); status.Code(err) != codes.AlreadyExists {
		t.Errorf("twice: %v", err)
	}
	if err := register("more", 8, 4); status.Code(err) != codes.InvalidArgument {
		t.Errorf("too much: %v", err)
	}
	all, err := s.SystemSharedMemoryStatus(ctx, &oip.SystemSharedMemoryStatusRequest{})
	if err != nil || len(all.Regions) != 2 || all.Regions["out"].Key != key || all.Regions["out"].Offset != 6 || all.Regions["out"].ByteSize != 4 {
		t.Errorf("%v %v", all, err)
	}
	if _, err := s.SystemSharedMemoryStatus(ctx, &oip.SystemSharedMemoryStatusRequest{Name: "nope"}); status.Code(err) != codes.NotFound {
		t.Errorf("a region that is not there: %v", err)
	}
	text := func(v string) *oip.InferParameter {
		return &oip.InferParameter{ParameterChoice: &oip.InferParameter_StringParam{StringParam: v}}
	}
	number := func(v int64) *oip.InferParameter {
		return &oip.InferParameter{ParameterChoice: &oip.InferParameter_Int64Param{Int64Param: v}}
	}
	part := func(region string, size int64) map[string]*oip.InferParameter {
		return map[string]*oip.InferParameter{"shared_memory_region": text(region), "shared_memory_byte_size": number(size)}
	}
	request := &oip.ModelInferRequest{ModelName: "echo", Inputs: []*oip.ModelInferRequest_InferInputTensor{
		{Name: "x", Datatype: "UINT8", Shape: []int64{4}, Parameters: part("in", 4)},
		{Name: "y", Datatype: "FP32", Shape: []int64{1}}},
		Outputs:          []*oip.ModelInferRequest_InferRequestedOutputTensor{{Name: "x", Parameters: part("out", 4)}},
		RawInputContents: [][]byte{{0, 0, 128, 63}}}
	for range 2 {
		got, err := s.ModelInfer(ctx, request)
		if err != nil {
			t.Fatal(err)
		}
		if p := got.Outputs[0].Parameters; p["shared_memory_region"].GetStringParam() != "out" || p["shared_memory_byte_size"].GetInt64Param() != 4 ||
			len(got.RawOutputContents) != 2 || len(got.RawOutputContents[0]) != 0 || len(got.RawOutputContents[1]) != 4 {
			t.Errorf("%v", got)
		}
	}
	if now, err := os.ReadFile(f.Name()); err != nil || !slices.Equal(now, []byte{1, 2, 3, 4, 0, 0, 1, 2, 3, 4}) {
		t.Errorf("%v %v", now, err)
	}
	// All inputs in shared memory: the outputs are raw all the same.
	got, err := s.ModelInfer(ctx, &oip.ModelInferRequest{ModelName: "echo", Inputs: request.Inputs[:1]})
	if err != nil || len(got.GetRawOutputContents()) != 1 || !slices.Equal(got.RawOutputContents[0], []byte{1, 2, 3, 4}) {
		t.Errorf("%v %v", got, err)
	}
	stream, err := s.ModelStreamInfer(ctx)
	if err == nil {
		err = errors.Join(stream.Send(request), stream.CloseSend())
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("an output of a stream: %v", err)
	}
	if _, err := s.SystemSharedMemoryUnregister(ctx, &oip.SystemSharedMemoryUnregisterRequest{Name: "in"}); err != nil {
		t.Error(err)
	}
	if _, err := s.ModelInfer(ctx, request); status.Code(err) != codes.InvalidArgument {
		t.Errorf("after its end: %v", err)
	}
	if _, err := s.CudaSharedMemoryUnregister(ctx, &oip.CudaSharedMemoryUnregisterRequest{}); err != nil {
		t.Error(err)
	}
	if c, err := s.CudaSharedMemoryStatus(ctx, &oip.CudaSharedMemoryStatusRequest{}); err != nil || len(c.Regions) > 0 {
		t.Errorf("%v %v", c, err)
	}
}
