package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"roundhouse.dev/roundhouse/api/oip"
)

// spanReceiver is an OTLP collector that keeps what it gets.
type spanReceiver struct {
	collector.UnimplementedTraceServiceServer
	mu      sync.Mutex
	spans   []*otlp.Span
	service string
}

func (r *spanReceiver) Export(_ context.Context, q *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rs := range q.ResourceSpans {
		for _, kv := range rs.Resource.Attributes {
			if kv.Key == "service.name" {
				r.service = kv.Value.GetStringValue()
			}
		}
		for _, ss := range rs.ScopeSpans {
			r.spans = append(r.spans, ss.Spans...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func receiveSpans(t *testing.T) (*spanReceiver, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r, s := &spanReceiver{}, grpc.NewServer()
	collector.RegisterTraceServiceServer(s, r)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return r, l.Addr().String()
}

const callerSpan = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// TestServeTracing: every request is a span of its caller's trace, at the
// collector that settings.json names.
func TestServeTracing(t *testing.T) {
	receiver, address := receiveSpans(t)
	models, err := filepath.Abs(serveModels)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("settings.json", `{"server_name":"traced","tracing_server":"`+address+`"}`)
	write("model-settings.json", `{"name":"iris","implementation":"mlserver_xgboost.XGBoostModel","parameters":{"uri":"`+models+`/iris.ubj","version":"v1"},"max_batch_size":8,"max_batch_time":0.01}`)
	port := servePort(t)
	url, stop := startServe(t, root, "--grpc-port", port)
	askServe(t, url+"/v2/models/iris/infer", serveRow) // waits for the model, without a caller
	q, err := http.NewRequest("POST", url+"/v2/models/iris/infer", strings.NewReader(serveRow))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("traceparent", callerSpan)
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	conn, err := grpc.NewClient("127.0.0.1:"+port, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", callerSpan)
	if _, err := oip.NewGRPCInferenceServiceClient(conn).ModelMetadata(ctx, &oip.ModelMetadataRequest{Name: "iris"}); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	byName := map[string]*otlp.Span{}
	for _, s := range receiver.spans {
		if s.TraceId[0] == 0x0a && s.TraceId[15] == 0x9c {
			byName[s.Name] = s
		}
	}
	if receiver.service != "traced" || len(byName) != 4 {
		t.Fatalf("service %q, spans %v", receiver.service, byName)
	}
	server, model, batch, call := byName["POST /v2/models/{model_name}/infer"], byName["infer iris"], byName["batch iris"], byName["inference.GRPCInferenceService/ModelMetadata"]
	if server == nil || model == nil || batch == nil || call == nil {
		t.Fatalf("spans: %v", byName)
	}
	if server.ParentSpanId[0] != 0xb7 || call.ParentSpanId[0] != 0xb7 || server.Kind != otlp.Span_SPAN_KIND_SERVER || call.Kind != otlp.Span_SPAN_KIND_SERVER ||
		string(model.ParentSpanId) != string(server.SpanId) || string(batch.ParentSpanId) != string(model.SpanId) ||
		len(batch.Links) != 1 || string(batch.Links[0].SpanId) != string(model.SpanId) {
		t.Errorf("spans: %v", byName)
	}
}

// TestServeTracingWrong: what cannot be an endpoint is said at the start.
func TestServeTracingWrong(t *testing.T) {
	cmd := newServerCommand()
	cmd.SetArgs([]string{filepath.Join(serveModels, "iris.ubj"), "--http-port", "0", "--tracing-server", "ftp://x"})
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "ftp") {
		t.Errorf("%v", err)
	}
}
