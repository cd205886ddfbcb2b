package oipgrpc

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/api/oip/modelrepository"
)

var everything = models{"echo@v2": "echo", "echo@v10": "echo", "headers": "headers", "fault": "fault", "schema": "schema", "large fault": "large fault",
	"panic": "panic", "wait": "wait", "half": "half", "large": "large", "broken": "broken"}

// floats is a request for a model with one input.
func floats(model string, values ...float32) *oip.ModelInferRequest {
	r := inputOf("FP32", []int64{int64(len(values))}, &oip.InferTensorContents{Fp32Contents: values})
	r.ModelName = model
	return r
}

func wantCode(t *testing.T, what string, err error, code codes.Code, says string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), says) {
		t.Errorf("%s: %v, want %v with %q", what, err, code, says)
	}
}

func TestControl(t *testing.T) {
	s := start(t, everything)
	ctx := t.Context()
	if r, err := s.ServerLive(ctx, &oip.ServerLiveRequest{}); err != nil || !r.GetLive() {
		t.Errorf("live: %v %v", r, err)
	}
	if r, err := s.ServerReady(ctx, &oip.ServerReadyRequest{}); err != nil || r.GetReady() {
		t.Errorf("ready with a model that failed: %v %v", r, err)
	}
	if r, err := s.ServerMetadata(ctx, &oip.ServerMetadataRequest{}); err != nil || r.GetName() != "mlserver" || len(r.GetExtensions()) == 0 {
		t.Errorf("server: %v %v", r, err)
	}
	if r, err := s.ModelReady(ctx, &oip.ModelReadyRequest{Name: "echo", Version: "v2"}); err != nil || !r.GetReady() {
		t.Errorf("model ready: %v %v", r, err)
	}
	if r, err := s.ModelReady(ctx, &oip.ModelReadyRequest{Name: "broken"}); err != nil || r.GetReady() {
		t.Errorf("broken ready: %v %v", r, err)
	}
	_, err := s.ModelReady(ctx, &oip.ModelReadyRequest{Name: "none"})
	wantCode(t, "unknown ready", err, codes.NotFound, "Model none not found")
	m, err := s.ModelMetadata(ctx, &oip.ModelMetadataRequest{Name: "echo"})
	want := &oip.ModelMetadataResponse{Name: "echo", Versions: []string{"v10", "v2"}, Platform: "fake",
		Parameters: map[string]*oip.InferParameter{"content_type": text("np"), "list": text("[1]")},
		Inputs:     []*oip.ModelMetadataResponse_TensorMetadata{{Name: "x", Datatype: "FP32", Shape: []int64{-1}, Parameters: map[string]*oip.InferParameter{"unit": text("cm")}}},
		Outputs:    []*oip.ModelMetadataResponse_TensorMetadata{{Name: "y", Datatype: "BF16", Shape: []int64{-1, 2}}}}
	if err != nil || !proto.Equal(m, want) {
		t.Errorf("metadata: %v %v\nwant %v", m, err, want)
	}
	_, err = s.ModelMetadata(ctx, &oip.ModelMetadataRequest{Name: "echo", Version: "v3"})
	wantCode(t, "unknown version", err, codes.NotFound, "v3 not found")
	_, err = s.ModelMetadata(ctx, &oip.ModelMetadataRequest{Name: "broken"})
	wantCode(t, "metadata of a broken model", err, codes.InvalidArgument, "the file is broken")
}

func text(s string) *oip.InferParameter {
	return &oip.InferParameter{ParameterChoice: &oip.InferParameter_StringParam{StringParam: s}}
}

// TestRepository asks both services that have the calls.
func TestRepository(t *testing.T) {
	s := start(t, models{"a": "echo", "broken": "broken"})
	ctx := t.Context()
	old := modelrepository.NewModelRepositoryServiceClient(s.conn)
	states := func() (list []string) {
		r, err := s.RepositoryIndex(ctx, &oip.RepositoryIndexRequest{})
		if err != nil {
			t.Fatal(err)
		}
		o, err := old.RepositoryIndex(ctx, &modelrepository.RepositoryIndexRequest{})
		if err != nil || len(o.GetModels()) != len(r.GetModels()) {
			t.Fatalf("%v %v", o, err)
		}
		for i, m := range r.GetModels() {
			list = append(list, m.GetName()+" "+m.GetState()+" "+m.GetReason())
			if x := o.Models[i]; x.GetName() != m.GetName() || x.GetState() != m.GetState() || x.GetReason() != m.GetReason() || x.GetVersion() != m.GetVersion() {
				t.Errorf("the old service says %v, the new %v", x, m)
			}
		}
		return list
	}
	if got := strings.Join(states(), ","); got != "a READY ,broken UNAVAILABLE the file is broken" {
		t.Errorf("index: %s", got)
	}
	if r, err := s.RepositoryIndex(ctx, &oip.RepositoryIndexRequest{Ready: true}); err != nil || len(r.GetModels()) != 1 {
		t.Errorf("ready: %v %v", r, err)
	}
	if _, err := s.RepositoryModelUnload(ctx, &oip.RepositoryModelUnloadRequest{ModelName: "a"}); err != nil {
		t.Error(err)
	}
	if _, err := s.ModelInfer(ctx, floats("a", 1)); err == nil {
		t.Error("an unloaded model answers")
	}
	if _, err := old.RepositoryModelLoad(ctx, &modelrepository.RepositoryModelLoadRequest{ModelName: "a"}); err != nil {
		t.Error(err)
	}
	if _, err := s.ModelInfer(ctx, floats("a", 1)); err != nil {
		t.Error(err)
	}
	if _, err := old.RepositoryModelUnload(ctx, &modelrepository.RepositoryModelUnloadRequest{ModelName: "a"}); err != nil {
		t.Error(err)
	}
	if _, err := s.RepositoryModelLoad(ctx, &oip.RepositoryModelLoadRequest{ModelName: "a"}); err != nil {
		t.Error(err)
	}
	_, err := s.RepositoryModelLoad(ctx, &oip.RepositoryModelLoadRequest{ModelName: "none"})
	wantCode(t, "load", err, codes.NotFound, "none")
	_, err = old.RepositoryModelUnload(ctx, &modelrepository.RepositoryModelUnloadRequest{ModelName: "none"})
	wantCode(t, "unload", err, codes.NotFound, "none")
	_, err = s.RepositoryModelLoad(ctx, &oip.RepositoryModelLoadRequest{ModelName: "broken"})
	wantCode(t, "load", err, codes.InvalidArgument, "the file is broken")
}

func TestInfer(t *testing.T) {
	s := start(t, everything)
	ctx := t.Context()
	request := floats("echo", 1, 2)
	request.Id, request.ModelVersion = "7", "v2"
	r, err := s.ModelInfer(ctx, request)
	if err != nil || r.GetId() != "7" || r.GetModelName() != "echo" || r.GetModelVersion() != "v2" || r.Outputs[0].Contents.Fp32Contents[1] != 2 {
		t.Errorf("%v %v", r, err)
	}
	r, err = s.ModelInfer(ctx, floats("echo", 3))
	if err != nil || !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f-]{21}$`).MatchString(r.GetId()) || r.GetModelVersion() != "v10" {
		t.Errorf("a generated id and the default version: %v %v", r, err)
	}
	// Any raw input makes all outputs raw.
	mixed := floats("echo", 1, 2)
	mixed.Inputs = append(mixed.Inputs, &oip.ModelInferRequest_InferInputTensor{Name: "r", Datatype: "BF16", Shape: []int64{1}})
	mixed.RawInputContents = [][]byte{{0x80, 0x3f}}
	r, err = s.ModelInfer(ctx, mixed)
	if err != nil || r.Outputs[0].Contents != nil || len(r.RawOutputContents) != 2 || len(r.RawOutputContents[0]) != 8 || string(r.RawOutputContents[1]) != "\x80\x3f" {
		t.Errorf("raw: %v %v", r, err)
	}
	// FP16 has no other form.
	r, err = s.ModelInfer(ctx, floats("half", 1))
	if err != nil || len(r.RawOutputContents) != 1 || string(r.RawOutputContents[0]) != "\x00\x3c\x00\xc0" {
		t.Errorf("FP16: %v %v", r, err)
	}
	for _, compressor := range []string{gzip.Name, "deflate", "deflate"} { // the second with what the first left
		if r, err = s.ModelInfer(ctx, floats("echo", 1, 2), grpc.UseCompressor(compressor)); err != nil || len(r.GetOutputs()) != 1 {
			t.Errorf("%s: %v %v", compressor, r, err)
		}
	}
	r, err = s.ModelInfer(ctx, floats("large", 1), grpc.MaxCallRecvMsgSize(32<<20))
	if err != nil || len(r.Outputs[0].Contents.Fp32Contents) != 1<<22 {
		t.Errorf("large: %v", err)
	}
}

func TestInferErrors(t *testing.T) {
	s := start(t, everything)
	tests := []struct {
		request *oip.ModelInferRequest
		code    codes.Code
		says    string
	}{
		{floats("none", 1), codes.NotFound, "Model none not found"},
		{floats("", 1), codes.NotFound, "not found"},
		{floats("broken", 1), codes.InvalidArgument, "Model broken is not ready yet (UNAVAILABLE): the file is broken"},
		{floats("fault", 1), codes.InvalidArgument, "expected 4 features"},
		{floats("schema", 1), codes.FailedPrecondition, "not so"},
		{floats("large fault", 1), codes.InvalidArgument, "ä…"},
		{floats("panic", 1), codes.Internal, "boom"},
		{withRaw(&oip.ModelInferRequest{ModelName: "echo"}, "x"), codes.InvalidArgument, "raw_input_contents has 1 entries"},
		{inputOf("FP32", []int64{3}, nil), codes.InvalidArgument, "shape [3] holds 3 elements, contents has 0"},
		{inputOf("FLOAT", []int64{3}, nil), codes.InvalidArgument, `unknown datatype "FLOAT"`},
		{withRaw(inputOf("FP32", []int64{3}, nil), "abc"), codes.InvalidArgument, "takes 3 × 4 bytes, the binary data has 3"},
	}
	for _, test := range tests {
		_, err := s.ModelInfer(t.Context(), test.request)
		wantCode(t, test.request.GetModelName(), err, test.code, test.says)
	}
	err := s.conn.Invoke(t.Context(), "/inference.GRPCInferenceService/ModelInfer", rawMessage("\x0a\xff"), &oip.ModelInferResponse{}, grpc.ForceCodecV2(rawCodec{}))
	wantCode(t, "no message", err, codes.InvalidArgument, "the message is malformed")
	err = s.conn.Invoke(t.Context(), "/inference.GRPCInferenceService/Nothing", &oip.ServerLiveRequest{}, &oip.ServerLiveResponse{})
	wantCode(t, "no method", err, codes.Unimplemented, "Nothing")
}

func TestCancelAndDeadline(t *testing.T) {
	s := start(t, everything)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		s.await(t)
		cancel()
	}()
	_, err := s.ModelInfer(ctx, floats("wait", 1))
	wantCode(t, "cancelled", err, codes.Canceled, "")
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = s.ModelInfer(ctx, floats("wait", 1))
	wantCode(t, "late", err, codes.DeadlineExceeded, "")
	if _, err := s.ModelInfer(t.Context(), floats("echo", 1)); err != nil {
		t.Error(err)
	}
}

func TestHeaders(t *testing.T) {
	s := start(t, everything)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "X-Asked", "one", "x-asked", "two", "x-data-bin", "\x00\xff")
	var trailer metadata.MD
	request := floats("headers", 1)
	request.Id = "7"
	r, err := s.ModelInfer(ctx, request, grpc.Trailer(&trailer))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"x-custom": "one, two", "x-data-bin": "\x00\xff", "ce-id": "7", "ce-requestid": "7", "ce-specversion": "0.3", "ce-modelid": "headers",
		"ce-endpoint": "headers", "ce-inferenceservicename": "mlserver", "ce-source": "io.seldon.serving.deployment.mlserver", "ce-type": "io.seldon.serving.inference.response"} {
		if got := trailer[name]; len(got) != 1 || got[0] != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if got := trailer["x-agent"]; len(got) != 1 || !strings.HasPrefix(got[0], "grpc-go") {
		t.Errorf("user agent %q", got)
	}
	for _, name := range []string{"bad name", "x-control", "content-type"} {
		if got := trailer[name]; got != nil {
			t.Errorf("%s: %q came through", name, got)
		}
	}
	if len(r.GetParameters()) != 1 || r.Parameters["mine"].GetStringParam() != "kept" {
		t.Errorf("parameters %v", r.GetParameters())
	}
	// The headers of a request are a parameter, but not of the response.
	if r, err = s.ModelInfer(ctx, floats("echo", 1)); err != nil || len(r.GetParameters()) != 0 {
		t.Errorf("%v %v", r, err)
	}
}

func TestLimits(t *testing.T) {
	large := floats("echo", make([]float32, 1<<20)...)
	s := start(t, everything)
	_, err := s.ModelInfer(t.Context(), large)
	wantCode(t, "above 4 MiB", err, codes.ResourceExhausted, "larger than max")
	for _, compressor := range []string{gzip.Name, "deflate"} {
		_, err = s.ModelInfer(t.Context(), large, grpc.UseCompressor(compressor))
		wantCode(t, "above 4 MiB once "+compressor+" is undone", err, codes.ResourceExhausted, "larger than")
	}
	if _, err := s.ModelInfer(t.Context(), floats("echo", make([]float32, 1<<20-100)...), grpc.MaxCallRecvMsgSize(8<<20)); err != nil {
		t.Error(err)
	}
	s = start(t, everything, func(o *options) { o.grpc.MaxMessageBytes, o.config.Limits.MaxConcurrency = 8<<20, 1 })
	if _, err := s.ModelInfer(t.Context(), large, grpc.MaxCallRecvMsgSize(8<<20)); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = s.ModelInfer(ctx, floats("wait", 1))
	}()
	s.await(t)
	_, err = s.ModelInfer(t.Context(), floats("echo", 1))
	wantCode(t, "one too many", err, codes.ResourceExhausted, "too many requests")
	cancel()
	<-done
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	roots := writeCertificate(t, cert, key)
	s := start(t, everything, func(o *options) {
		o.config.TLS.CertFile, o.config.TLS.KeyFile = cert, key
		o.tls = &tls.Config{RootCAs: roots, ServerName: "localhost", MinVersion: tls.VersionTLS12}
	})
	if _, err := s.ModelInfer(t.Context(), floats("echo", 1)); err != nil {
		t.Error(err)
	}
	// Plain text is not answered.
	c := reach(t, s.address)
	if _, err := c.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 100)
	if n, err := c.Read(answer); err == nil && answer[0] != 21 { // a TLS alert
		t.Errorf("plain text is answered %q", answer[:n])
	}
}

// writeCertificate makes a certificate for localhost and whom to trust for it.
func writeCertificate(t *testing.T, cert, key string) *x509.CertPool {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	roots := x509.NewCertPool()
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots.AddCert(parsed)
	return roots
}

func TestReflection(t *testing.T) {
	s := start(t, everything)
	stream, err := grpc_reflection_v1.NewServerReflectionClient(s.conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask := func(r *grpc_reflection_v1.ServerReflectionRequest) *grpc_reflection_v1.ServerReflectionResponse {
		t.Helper()
		if err := stream.Send(r); err != nil {
			t.Fatal(err)
		}
		answer, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	list := ask(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}})
	var names []string
	for _, service := range list.GetListServicesResponse().GetService() {
		names = append(names, service.GetName())
	}
	for _, want := range []string{"inference.GRPCInferenceService", "inference.model_repository.ModelRepositoryService", "grpc.health.v1.Health"} {
		if !strings.Contains(strings.Join(names, " "), want) {
			t.Errorf("%s is not among %v", want, names)
		}
	}
	file := ask(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "inference.ModelInferRequest"}})
	if got := file.GetFileDescriptorResponse().GetFileDescriptorProto(); len(got) != 1 {
		t.Errorf("%v", file)
	}
}

func TestHealth(t *testing.T) {
	s := start(t, models{"a": "echo"})
	health := grpc_health_v1.NewHealthClient(s.conn)
	for _, name := range healthServices {
		r, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: name})
		if err != nil || r.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Errorf("%q: %v %v", name, r, err)
		}
	}
	_, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "none"})
	wantCode(t, "unknown service", err, codes.NotFound, "none")
	if r, err := health.List(t.Context(), &grpc_health_v1.HealthListRequest{}); err != nil || len(r.GetStatuses()) != len(healthServices) {
		t.Errorf("%v %v", r, err)
	}
	watch, err := health.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := watch.Recv(); err != nil || r.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("%v %v", r, err)
	}
	unknown, err := health.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "none"})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := unknown.Recv(); err != nil || r.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN {
		t.Errorf("%v %v", r, err)
	}
	// Watching does not hold up the end of the server.
	s.stop()
	_, err = watch.Recv()
	wantCode(t, "watch at the end", err, codes.Unavailable, "shutting down")
}

func TestMetrics(t *testing.T) {
	s := start(t, everything)
	ctx := t.Context()
	for _, model := range []string{"echo", "echo", "none"} {
		_, _ = s.ModelInfer(ctx, floats(model, 1))
	}
	_, _ = grpc_health_v1.NewHealthClient(s.conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	labels := `{grpc_type="unary",grpc_service="inference.GRPCInferenceService",grpc_method="ModelInfer"`
	got := string(s.metrics.Append(nil))
	for _, want := range []string{
		"grpc_server_started_total" + labels + "} 3\n", "grpc_server_msg_received_total" + labels + "} 3\n", "grpc_server_msg_sent_total" + labels + "} 2\n",
		"grpc_server_handled_total" + labels + `,grpc_code="OK"} 2` + "\n", "grpc_server_handled_total" + labels + `,grpc_code="NOT_FOUND"} 1` + "\n",
		"grpc_server_handling_seconds_count" + labels + "} 3\n", "grpc_server_requests_in_progress" + labels + "} 0\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	if strings.Contains(got, "Health") || strings.Contains(got, "ModelStreamInfer") {
		t.Errorf("methods that were not called, or health:\n%s", got)
	}
}

func TestValidate(t *testing.T) {
	err := Config{Port: 70000}.Validate()
	if err == nil || !strings.Contains(err.Error(), "grpc_port 70000") || !strings.Contains(err.Error(), "grpc_max_message_length 0") {
		t.Error(err)
	}
	c := DefaultConfig()
	s := start(t, models{"a": "echo"})
	_, port, err := net.SplitHostPort(s.address)
	if err != nil {
		t.Fatal(err)
	}
	c.Port = int(must(new(big.Int).SetString(port, 10)).Int64())
	second, err := New(c, s.models, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := second.Listen(); err == nil || !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a port that is taken: %v", err)
	}
	if err := second.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

func must[T any](v T, _ bool) T { return v }
