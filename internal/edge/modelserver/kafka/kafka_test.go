package kafka

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/edge/modelserver"
	"roundhouse.dev/roundhouse/internal/edge/modelserver/metrics"
)

// model answers with its inputs and headers. An input named "wait" waits to be
// let go; one named "away" is not there the first time.
type model struct {
	entered chan string
	leave   chan struct{}
	mu      sync.Mutex
	seen    map[string]int
	busy    int
	most    int // of busy
}

func (m *model) Metadata() tensor.ModelMetadata { return tensor.ModelMetadata{} }
func (m *model) Close(context.Context) error    { return nil }

func (m *model) Infer(ctx context.Context, r *tensor.Request) (*tensor.Response, error) {
	m.mu.Lock()
	m.seen[r.ID]++
	first := m.seen[r.ID] == 1
	m.busy++
	m.most = max(m.most, m.busy)
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		m.busy--
		m.mu.Unlock()
	}()
	switch r.Inputs[0].Name {
	case "wait":
		m.entered <- r.ID
		select {
		case <-m.leave:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	case "away":
		if first {
			return nil, away{}
		}
	case "panic":
		panic("oh")
	case "long":
		r.Inputs[0].Name = strings.Repeat("x", 3<<20)
	}
	headers, _ := r.Parameters["headers"].(map[string]any)
	return &tensor.Response{Outputs: r.Inputs, Parameters: tensor.Parameters{"headers": map[string]any{"x-own": fmt.Sprint(headers["Trace-Id"])}}}, nil
}

// away is an engine's error of the moment.
type away struct{}

func (away) Error() string   { return "the worker is being replaced" }
func (away) HTTPStatus() int { return http.StatusServiceUnavailable }

// rig is a broker, a model server and its bridge.
type rig struct {
	t        *testing.T
	cluster  *kfake.Cluster
	client   *kgo.Client
	model    *model
	config   Config
	server   *modelserver.Server
	registry *metrics.Registry
	log      *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newRig(t *testing.T, options ...kfake.Opt) *rig {
	t.Helper()
	t.Parallel()
	cluster, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.SeedTopics(1, "in", "out")}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	r := &rig{t: t, cluster: cluster, model: &model{entered: make(chan string, 100), leave: make(chan struct{}), seen: map[string]int{}},
		registry: &metrics.Registry{}, log: &lockedBuffer{}}
	if r.client, err = kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics("out"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.ProducerBatchMaxBytes(8<<20), kgo.FetchMaxBytes(64<<20)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.client.Close)
	r.config = DefaultConfig()
	r.config.Servers, r.config.Input, r.config.Output, r.config.Reset = cluster.ListenAddrs(), "in", "out", ResetEarliest
	file := filepath.Join(t.TempDir(), "model.fake")
	if err := os.WriteFile(file, []byte("fake"), 0o600); err != nil {
		t.Fatal(err)
	}
	engine := modelserver.Engine{Name: "fake", Match: func(head []byte) bool { return bytes.HasPrefix(head, []byte("fake")) },
		Loader: modelserver.LoaderFunc(func(context.Context, modelserver.Settings) (modelserver.Model, error) { return r.model, nil })}
	c := modelserver.DefaultConfig()
	c.Metrics.Registry = r.registry
	single := modelserver.Single{Name: "m"}
	single.Parameters.URI, single.Parameters.Version = file, "v1"
	if r.server, err = modelserver.New(c, single, []modelserver.Engine{engine}, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if err := r.server.LoadAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

// serve runs a bridge and returns how to stop it, which gives Shutdown's error.
func (r *rig) serve() (b *Bridge, stop func(time.Duration) error) {
	r.t.Helper()
	b, err := New(r.config, r.server, r.registry, slog.New(slog.NewTextHandler(r.log, nil)))
	if err != nil {
		r.t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- b.Serve() }()
	done := false
	stop = func(within time.Duration) error {
		if done {
			return nil
		}
		done = true
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		b.mu.Lock() // Serve has begun
		for !b.mu.serving {
			b.mu.Unlock()
			b.mu.Lock()
		}
		b.mu.Unlock()
		err := b.Shutdown(ctx)
		return errors.Join(err, <-served)
	}
	r.t.Cleanup(func() { _ = stop(5 * time.Second) })
	return b, stop
}

// send writes a record; headers are name, value ….
func (r *rig) send(key, value string, headers ...string) {
	r.t.Helper()
	record := &kgo.Record{Topic: "in", Value: []byte(value)}
	if key != "" {
		record.Key = []byte(key)
	}
	for i := 0; i < len(headers); i += 2 {
		record.Headers = append(record.Headers, kgo.RecordHeader{Key: headers[i], Value: []byte(headers[i+1])})
	}
	if err := r.client.ProduceSync(r.t.Context(), record).FirstErr(); err != nil {
		r.t.Fatal(err)
	}
}

func request(input string) string {
	return `{"id":"body","inputs":[{"name":"` + input + `","shape":[1],"datatype":"INT64","data":[7]}]}`
}

// answer reads the next answer.
func (r *rig) answer() *kgo.Record {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 30*time.Second)
	defer cancel()
	for {
		f := r.client.PollRecords(ctx, 1) // errors but ctx's pass, as when a broker comes back
		if len(f.Records()) == 1 {
			return f.Records()[0]
		}
		if ctx.Err() != nil {
			r.t.Fatalf("no answer: %v\n%s", f.Errors(), r.log)
		}
	}
}

func headersOf(r *kgo.Record) map[string]string {
	all := map[string]string{}
	for _, h := range r.Headers {
		all[h.Key] = string(h.Value)
	}
	return all
}

// committed waits until the group's offset is at least n.
func (r *rig) committed(n int64) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	if _, err := r.cluster.WaitGroupInfo(ctx, "mlserver", func(g *kfake.GroupInfo) bool { return g != nil && offset(g) >= n }); err != nil {
		r.t.Fatalf("offset %d was not committed: %v\n%s", n, err, r.log)
	}
}

func offset(g *kfake.GroupInfo) int64 {
	for topic, partitions := range g.Commits {
		if topic == "in" {
			for _, c := range partitions {
				return c.Offset
			}
		}
	}
	return 0
}

// TestAnswers: what MLServer answers, and errors for what it only logs.
func TestAnswers(t *testing.T) {
	r := newRig(t)
	_, stop := r.serve()
	for _, c := range []struct {
		name, key, value string
		headers          []string
		wantKey, want    string
		wantHeaders      map[string]string
	}{
		{"with a key", "k1", request("x"), []string{"mlserver-model", "m", "Trace-Id", "t"}, "k1",
			`{"model_name":"m","model_version":"v1","id":"k1","parameters":{},"outputs":[{"name":"x","shape":[1],"datatype":"INT64","data":[7]}]}`,
			map[string]string{"x-own": "t", "Ce-Id": "k1", "Ce-Requestid": "k1", "Ce-Type": "io.seldon.serving.inference.response", "Ce-Modelid": "m", "Ce-Specversion": "0.3",
				"Ce-Source": "io.seldon.serving.deployment.mlserver", "Ce-Inferenceservicename": "mlserver", "Ce-Endpoint": "m"}},
		{"without", "", request("x"), []string{"mlserver-model", "m", "mlserver-version", "v1", "mlserver-method", "infer"}, "body", `"id":"body"`, nil},
		{"not JSON", "k2", `{"inputs":`, []string{"mlserver-model", "m"}, "k2", `{"error":`, map[string]string{"roundhouse-status": "422", "mlserver-model": "m"}},
		{"no inputs", "", `{"id":"b"}`, []string{"mlserver-model", "m"}, "b", `{"error":`, map[string]string{"roundhouse-status": "422", "mlserver-model": "m"}},
		{"no value", "k3", "", []string{"mlserver-model", "m"}, "k3", "no value", map[string]string{"roundhouse-status": "422", "mlserver-model": "m"}},
		{"no model", "k4", request("x"), nil, "k4", "Expected 'mlserver-model' header not found", map[string]string{"roundhouse-status": "422"}},
		{"unknown model", "k5", request("x"), []string{"mlserver-model", "n"}, "k5", "Model n not found", map[string]string{"roundhouse-status": "404", "mlserver-model": "n"}},
		{"unknown version", "k6", request("x"), []string{"mlserver-model", "m", "mlserver-version", "v2"}, "k6", "version v2 not found", map[string]string{"roundhouse-status": "404", "mlserver-model": "m", "mlserver-version": "v2"}},
		{"unknown method", "k7", request("x"), []string{"mlserver-model", "m", "mlserver-method", "explain"}, "k7", "Invalid request method", nil},
		{"a header of bytes", "k8", request("x"), []string{"mlserver-model", "m", "h", "\xff"}, "k8", "not UTF-8", map[string]string{"roundhouse-status": "400", "mlserver-model": "m"}},
		{"a panic", "k9", request("panic"), []string{"mlserver-model", "m"}, "k9", "internal error: oh", map[string]string{"roundhouse-status": "500", "mlserver-model": "m"}},
		{"not there at first", "k10", request("away"), []string{"mlserver-model", "m"}, "k10", `"name":"away"`, nil},
	} {
		r.send(c.key, c.value, c.headers...)
		got := r.answer()
		if string(got.Key) != c.wantKey || !strings.Contains(string(got.Value), c.want) || !json.Valid(got.Value) {
			t.Errorf("%s: %q: %s", c.name, got.Key, got.Value)
		}
		if headers := headersOf(got); c.wantHeaders != nil && fmt.Sprint(headers) != fmt.Sprint(c.wantHeaders) {
			t.Errorf("%s: headers %v, want %v", c.name, headers, c.wantHeaders)
		}
	}
	if err := stop(10 * time.Second); err != nil {
		t.Error(err)
	}
	r.committed(12)
	w := httptest.NewRecorder()
	r.registry.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, line := range []string{`kafka_server_requests_total{status_code="200"} 3`, `kafka_server_requests_total{status_code="422"} 5`, `kafka_server_requests_in_progress 0`} {
		if !strings.Contains(w.Body.String(), line) {
			t.Errorf("metrics lack %s", line)
		}
	}
}

// TestSlow: a record that takes long holds up none behind it, and is not
// committed before its answer.
func TestSlow(t *testing.T) {
	r := newRig(t)
	_, stop := r.serve()
	r.send("slow", request("wait"), "mlserver-model", "m")
	<-r.model.entered
	for i := range 20 {
		r.send(fmt.Sprint(i), request("x"), "mlserver-model", "m")
	}
	for range 20 {
		if key := string(r.answer().Key); key == "slow" {
			t.Error("it was answered")
		}
	}
	if g := r.cluster.GroupInfo("mlserver"); g != nil && offset(g) > 0 {
		t.Errorf("committed %d before the first was answered", offset(g))
	}
	stopped := make(chan error)
	go func() { stopped <- stop(20 * time.Second) }()
	r.model.leave <- struct{}{}
	if key := string(r.answer().Key); key != "slow" {
		t.Errorf("answered %s", key)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	r.committed(21)
}

// TestCutOff: what was under way when the server was ended is answered by the
// next one.
func TestCutOff(t *testing.T) {
	r := newRig(t)
	_, stop := r.serve()
	r.send("first", request("x"), "mlserver-model", "m")
	r.answer()
	r.committed(1)
	r.send("slow", request("wait"), "mlserver-model", "m")
	<-r.model.entered
	if err := stop(time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("cut off: %v", err)
	}
	_, stop = r.serve()
	<-r.model.entered
	r.model.leave <- struct{}{}
	if key := string(r.answer().Key); key != "slow" {
		t.Errorf("answered %s", key)
	}
	if err := stop(20 * time.Second); err != nil {
		t.Error(err)
	}
	r.committed(2)
}

// TestTooLarge: an answer that the broker does not take is an error instead.
func TestTooLarge(t *testing.T) {
	r := newRig(t)
	r.serve()
	r.send("large", request("long"), "mlserver-model", "m")
	r.send("small", request("x"), "mlserver-model", "m")
	got := map[string]*kgo.Record{}
	for range 2 {
		a := r.answer()
		got[string(a.Key)] = a
	}
	if a := got["large"]; a == nil || headersOf(a)["roundhouse-status"] != "413" || !strings.Contains(string(a.Value), "does not take") {
		t.Errorf("large: %v", a)
	}
	if a := got["small"]; a == nil || !strings.Contains(string(a.Value), `"outputs"`) {
		t.Errorf("small: %v", a)
	}
}

// TestLimit: a request over the server's limit, and an answer over it, are errors.
func TestLimit(t *testing.T) {
	r := newRig(t)
	r.config.Limits.MaxMessageBytes = 1000
	r.serve()
	for key, value := range map[string]string{"request": request(strings.Repeat("x", 1000)), "response": request("long")} {
		r.send(key, value, "mlserver-model", "m")
		if a := r.answer(); string(a.Key) != key || headersOf(a)["roundhouse-status"] != "413" || !strings.Contains(string(a.Value), "the "+key+" is larger than 1000 bytes") {
			t.Errorf("%s: %v %s", key, headersOf(a), a.Value)
		}
	}
}

// TestBrokerAway: the bridge waits for a broker, and finds it again.
func TestBrokerAway(t *testing.T) {
	kept := kfake.DataDir(t.TempDir())
	r := newRig(t, kept)
	r.serve()
	r.send("before", request("x"), "mlserver-model", "m")
	r.answer()
	r.committed(1)
	r.cluster.Close()
	port := 0
	_, _ = fmt.Sscanf(r.config.Servers[0], "127.0.0.1:%d", &port)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(port), kept)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	r.cluster = cluster
	r.send("after", request("x"), "mlserver-model", "m")
	if key := string(r.answer().Key); key != "after" {
		t.Errorf("answered %s", key)
	}
	r.committed(2)
}

// TestBound: no more records are worked on at once than the limit.
func TestBound(t *testing.T) {
	r := newRig(t)
	r.config.Limits.MaxInFlight = 3
	r.serve()
	for i := range 10 {
		r.send(fmt.Sprint(i), request("wait"), "mlserver-model", "m")
	}
	for range 10 {
		<-r.model.entered
		r.model.leave <- struct{}{}
		r.answer()
	}
	if r.model.most > 3 {
		t.Errorf("%d were worked on at once", r.model.most)
	}
}

func TestValidate(t *testing.T) {
	c := DefaultConfig()
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	for says, change := range map[string]func(*Config){
		"kafka_servers":           func(c *Config) { c.Servers = []string{"a:1", ""} },
		"kafka_topic_input":       func(c *Config) { c.Input = "a b" },
		"kafka_topic_output":      func(c *Config) { c.Output = c.Input },
		"kafka_group":             func(c *Config) { c.Group = "" },
		"kafka_auto_offset_reset": func(c *Config) { c.Reset = "now" },
		"limits":                  func(c *Config) { c.Limits.MaxInFlight = 0 },
	} {
		bad := c
		change(&bad)
		if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v does not say %s", err, says)
		}
	}
}
