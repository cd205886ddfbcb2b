package app

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"roundhouse.dev/roundhouse/cmd/internal/picking"
	"roundhouse.dev/roundhouse/internal/edge/simulate"
)

// TestEndpointPicker runs the command over simulated engines, one of them
// overloaded, and asks it as Envoy does.
func TestEndpointPicker(t *testing.T) {
	var addresses []string
	for i := range 3 {
		cfg := simulate.DefaultConfig()
		cfg.Models = []string{"llama-v2"}
		e, err := simulate.New(cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(e.Handler())
		defer server.Close()
		addresses = append(addresses, strings.TrimPrefix(server.URL, "http://"))
		if i == 0 {
			res, err := http.Post(server.URL+"/simulate/pin", "application/json", strings.NewReader(`{"waiting":200,"running":50,"kv_usage":0.99}`))
			if err != nil || res.StatusCode/100 != 2 {
				t.Fatal(res, err)
			}
			_ = res.Body.Close()
		}
	}
	file := filepath.Join(t.TempDir(), "pool.yaml")
	manifest := fmt.Sprintf(`apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: llama}
spec:
  addresses: ["%s"]
---
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModel
metadata: {name: llama}
spec:
  modelName: llama
  criticality: Critical
  poolRef: {name: llama}
  targetModels: [{name: llama-v2}]
---
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata: {name: first, annotations: {roundhouse.dev/ttft-target: 1ns}}
spec: {priority: -1, poolRef: {name: llama}}
---
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata: {name: each, annotations: {roundhouse.dev/tpot-target: 1ns}}
spec: {priority: -1, poolRef: {name: llama}}
---
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata: {name: relaxed, annotations: {roundhouse.dev/ttft-target: 1h, roundhouse.dev/tpot-target: 1h}}
spec: {priority: -1, poolRef: {name: llama}}
`, strings.Join(addresses, `", "`))
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}

	main, health, metrics, stop := startEndpointPicker(t, EndpointPicker{Files: []string{file}, Options: picking.Options{Fallbacks: 2}})
	until(t, func() bool {
		text := getText(t, metrics+"/metrics")
		return strings.Contains(text, "\nroundhouse_scrape_duration_seconds_count 3\n") && strings.Contains(text, "roundhouse_scrape_servers{pool=\"pool default/llama\",state=\"failing\"} 0\n")
	})
	r, err := grpc_health_v1.NewHealthClient(health).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "readiness"})
	if err != nil || r.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("%v, %v", r, err)
	}

	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-gateway-inference-pool", "default/llama")
	seen, asked := map[string]int{}, 0
	for i := 0; i < 6 || len(seen) < 2 && i < 64; i++ { // ties fall at random: that all 64 go one way cannot be
		asked++
		to, body := ask(t, ctx, main, fmt.Sprintf(`{"model":"llama","seed":9007199254740993,"prompt":"%d once upon a time"}`, i))
		if want := fmt.Sprintf(`{"model":"llama-v2","seed":9007199254740993,"prompt":"%d once upon a time"}`, i); body != want {
			t.Errorf("the body is %s, want %s", body, want)
		}
		list := strings.Split(to, ",")
		seen[list[0]]++
		if len(list) != 3 {
			t.Errorf("%q: want two more endpoints to fall back to", to)
		}
	}
	if seen[addresses[0]] > 0 || len(seen) != 2 {
		t.Errorf("requests went to %v; %s has 200 waiting", seen, addresses[0])
	}
	// Without a pool the model decides; an unknown one is a 404.
	if to, _ := ask(t, t.Context(), main, `{"model":"llama"}`); to == "" {
		t.Error("a stream that names no pool is not routed by its model")
	}
	if to, body := ask(t, ctx, main, `{"model":"lama"}`); to != "404" || !strings.Contains(body, "llama") {
		t.Errorf("%s %s", to, body)
	}
	elsewhere := metadata.AppendToOutgoingContext(t.Context(), "x-gateway-inference-pool", "default/other")
	if to, body := ask(t, elsewhere, main, `{"model":"llama"}`); to != "503" && to != "404" {
		t.Errorf("a pool that is not there: %s %s", to, body)
	}
	if text := getText(t, metrics+"/metrics"); !strings.Contains(text, fmt.Sprintf("roundhouse_endpoint_picker_requests_total{code=\"200\"} %d\n", asked+1)) {
		t.Errorf("metrics:\n%s", text)
	}
	for range 20 { // nothing is predicted before a pool has streamed 16 answers
		ask(t, ctx, main, `{"model":"llama","prompt":"once more"}`)
	}
	until(t, func() bool {
		return strings.Contains(getText(t, metrics+"/metrics"), "roundhouse_endpoint_picker_latency_predictions_total{quantity=\"tpot\",service=\"pool default/llama\"}")
	})
	for _, name := range []string{"prediction_error_ratio", "calibration_error_ratio"} {
		if text := getText(t, metrics+"/metrics"); !strings.Contains(text, "roundhouse_endpoint_picker_latency_"+name+"{quantity=\"ttft\",service=\"pool default/llama\"}") {
			t.Errorf("no %s among the metrics:\n%s", name, text)
		}
	}
	// Targets that no endpoint can meet, of objectives and of requests.
	for _, c := range []struct {
		header []string
		late   bool
	}{
		{[]string{"x-llm-d-inference-objective", "first"}, true},
		{[]string{"x-llm-d-inference-objective", "each"}, true},
		{[]string{"x-gateway-inference-objective", "first"}, true},
		{[]string{"x-llm-d-inference-objective", "relaxed"}, false},
		{[]string{"x-llm-d-inference-objective", "first", "x-llm-d-slo-ttft-ms", "3600000"}, false},
		{[]string{"x-llm-d-inference-objective", "relaxed", "x-llm-d-slo-ttft-ms", "0.000001"}, true},
		{[]string{"x-llm-d-inference-objective", "relaxed", "x-slo-ttft-ms", "0.000001"}, true},
		{[]string{"x-llm-d-inference-objective", "relaxed", "x-llm-d-slo-tpot-ms", "0.000001"}, true},
		{[]string{"x-llm-d-inference-objective", "relaxed", "x-slo-tpot-ms", "0.000001"}, true},
	} {
		to, body := ask(t, ctx, main, `{"model":"llama","prompt":"once more"}`, c.header...)
		if late := to == "429" && strings.Contains(body, "latency target"); late != c.late {
			t.Errorf("%v: sent to %s %s; want it refused for its target: %t", c.header, to, body, c.late)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// startEndpointPicker runs the command and returns connections to its ports.
func startEndpointPicker(t *testing.T, o EndpointPicker) (main, health *grpc.ClientConn, metrics string, stop func() error) {
	t.Helper()
	o.Listen, o.Health, o.Metrics = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	ctx, cancel := context.WithCancel(context.Background())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := o.Run(ctx, in, io.Discard)
		_ = in.CloseWithError(io.EOF)
		ended <- err
	}()
	lines := bufio.NewScanner(out)
	next := func() string {
		if !lines.Scan() {
			cancel()
			t.Fatal("it did not start: ", <-ended)
		}
		words := strings.Fields(lines.Text())
		return words[len(words)-1]
	}
	dial := func(at string) *grpc.ClientConn {
		conn, err := grpc.NewClient(at, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	main, health = dial(next()), dial(next())
	metrics = strings.TrimSuffix(next(), "/metrics")
	return main, health, metrics, func() error { cancel(); return <-ended }
}

// ask leads one conversation and returns where the request goes and its body,
// or the status and the body it is refused with.
func ask(t *testing.T, ctx context.Context, conn *grpc.ClientConn, body string, header ...string) (to, sent string) {
	t.Helper()
	stream, err := extprocv3.NewExternalProcessorClient(conn).Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	headers := func(pairs ...string) *extprocv3.HttpHeaders {
		m := &corev3.HeaderMap{}
		for i := 0; i < len(pairs); i += 2 {
			m.Headers = append(m.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
		}
		return &extprocv3.HttpHeaders{Headers: m}
	}
	step := func(r *extprocv3.ProcessingRequest, answers int) (last *extprocv3.ProcessingResponse) {
		if err := stream.Send(r); err != nil {
			t.Fatal(err)
		}
		for range answers {
			if last, err = stream.Recv(); err != nil {
				t.Fatal(err)
			}
			for _, h := range last.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
				if h.Header.Key == "x-gateway-destination-endpoint" {
					to = string(h.Header.RawValue)
				}
			}
			if i := last.GetImmediateResponse(); i != nil {
				to, sent = fmt.Sprint(int(i.Status.Code)), string(i.Body)
				break
			}
		}
		return last
	}
	step(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: headers(append([]string{":method", "POST", ":path", "/v1/completions", ":authority", "gw"}, header...)...)}}, 0)
	last := step(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: []byte(body), EndOfStream: true}}}, 2)
	if sent != "" {
		return to, sent
	}
	sent = string(last.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody())
	step(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: headers(":status", "200", "content-type", "text/event-stream")}}, 1)
	for i, event := range []string{`data: {"choices":[{"text":"Once"}]}`, `data: {"choices":[{"text":" more"}]}`, "data: [DONE]"} {
		step(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
			ResponseBody: &extprocv3.HttpBody{Body: []byte(event + "\n\n"), EndOfStream: i == 2}}}, 1)
	}
	_ = stream.CloseSend()
	return to, sent
}

func getText(t *testing.T, url string) string {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func until(t *testing.T, so func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it never came to be")
		}
	}
}

// TestConfigFile: a configuration with an error, or none, is refused with its place.
func TestConfigFile(t *testing.T) {
	dir := t.TempDir()
	pool := filepath.Join(dir, "pool.yaml")
	if err := os.WriteFile(pool, []byte("apiVersion: roundhouse.dev/v1alpha1\nkind: Pool\nmetadata: {name: llama}\nspec: {addresses: [\"127.0.0.1:9\"]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for config, want := range map[string]string{
		"apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: context-length-aware\nschedulingProfiles: [{name: a}]\n": "epp.yaml:4: plugins[0].type: context-length-aware has no counterpart",
		"# nothing\n": "has 0 documents of kind EndpointPickerConfig",
	} {
		file := filepath.Join(dir, "epp.yaml")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		o := EndpointPicker{Files: []string{pool}, Options: picking.Options{ConfigFile: file, Listen: "127.0.0.1:0", Health: "127.0.0.1:0"}}
		if err := o.Run(t.Context(), io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	file := filepath.Join(dir, "epp.yaml")
	o := EndpointPicker{Files: []string{file}, Options: picking.Options{Listen: "127.0.0.1:0", Health: "127.0.0.1:0"}}
	if err := os.WriteFile(file, []byte("apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: queue-scorer}]\nschedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer}]}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := o.Run(t.Context(), io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "no pool to pick for") || !strings.Contains(err.Error(), "--config-file") {
		t.Errorf("a configuration in place of pools: %v", err)
	}
	good := "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: kv-cache-utilization-scorer}]\nschedulingProfiles: [{name: a, plugins: [{pluginRef: kv-cache-utilization-scorer}]}]\n"
	if err := os.WriteFile(file, []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, _, stop := startEndpointPicker(t, EndpointPicker{Files: []string{pool}, Options: picking.Options{ConfigFile: file}})
	if err := stop(); err != nil {
		t.Error(err)
	}
}
