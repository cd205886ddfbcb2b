package e2e

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// serving starts a command of roundhouse that serves, and waits until its
// output matches re; the test's end stops it.
func serving(t *testing.T, re string, args ...string) (matched string, cmd *exec.Cmd, out *capture) {
	t.Helper()
	return servingWith(t, nil, re, args...)
}

// servingWith is serving with more in its environment.
func servingWith(t *testing.T, env []string, re string, args ...string) (matched string, cmd *exec.Cmd, out *capture) {
	t.Helper()
	out = &capture{}
	cmd = exec.Command(binary, args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = out, out, append(os.Environ(), env...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(patience):
			t.Errorf("%v has not ended %s after SIGTERM", args, patience)
			_ = cmd.Process.Kill()
			<-ended
		}
		if t.Failed() {
			t.Logf("%v printed:\n%s", args, out)
		}
	})
	pattern := regexp.MustCompile(re)
	eventually(t, args[0]+" says where it listens", func() (bool, string) {
		m := pattern.FindStringSubmatch(out.String())
		if m == nil {
			return false, out.String()
		}
		matched = m[1]
		return true, ""
	})
	return matched, cmd, out
}

// TestGatewayAlone: `roundhouse gateway` over two engines that run already: a
// route's names, both engines used, an engine that dies, manifests that change,
// and no service of its own.
func TestGatewayAlone(t *testing.T) {
	t.Parallel()
	engine := func() (string, *exec.Cmd) {
		address, cmd, _ := serving(t, `url=http://(\S+)`, "simulate", "engine", "--port", "0", "--model", "sim", "--speed", "1000")
		return address, cmd
	}
	first, dies := engine()
	second, _ := engine()
	dir := t.TempDir()
	manifest := func(models string) {
		write(t, dir, "pools.yaml", `apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: engines}
spec:
  addresses: ["`+first+`", "`+second+`"]
  picker: {preset: round-robin}
---
apiVersion: roundhouse.dev/v1alpha1
kind: Route
metadata: {name: chat}
spec:
  models: [`+models+`]
  targets: [{pool: engines, model: sim}]
`)
	}
	manifest("chat")
	n := newNode(t)
	var out *capture
	n.gateway, _, out = serving(t, `Roundhouse answers at +(\S+)`, "gateway", "-f", dir, "--watch",
		"--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--access-log", "-")
	eventually(t, "the metrics have an address", func() (bool, string) {
		n.admin = after(out.String(), "Metrics                ")
		return n.admin != "", out.String()
	})
	const ask = `{"model":"chat","max_tokens":4,"messages":[{"role":"user","content":"Hello"}]}`
	for range 4 {
		if a := n.post("/v1/chat/completions", ask); a.status != 200 || !strings.Contains(a.body, `"model":"sim"`) {
			t.Fatalf("chat: %s", a)
		}
	}
	if a := n.get(n.gateway + "/v1/models"); !strings.Contains(a.body, `"models":["chat"]`) {
		t.Errorf("models: %s", a)
	}
	eventually(t, "the log names both engines", func() (bool, string) {
		log := out.String()
		return strings.Contains(log, `"replica":"address-`+first) && strings.Contains(log, `"replica":"address-`+second), log
	})
	got := n.get(n.admin).body
	for _, want := range []string{
		`gen_ai_client_token_usage_count{gen_ai_operation_name="chat",gen_ai_provider_name="openai",gen_ai_request_model="chat",gen_ai_token_type="output"} 4`,
		`roundhouse_gateway_admission_total{outcome="admitted",service="pool default/engines"} 4`,
		`roundhouse_gateway_endpoint_in_flight{endpoint="address-` + first + `",service="pool default/engines"} 0`,
		`roundhouse_gateway_saturation{service="pool default/engines"} `,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("metrics lack %s:\n%s", want, got)
		}
	}
	// The engines' own metrics are read while there are requests.
	eventually(t, "both engines' load is read", func() (bool, string) {
		n.post("/v1/chat/completions", ask)
		m := n.get(n.admin).body
		return regexp.MustCompile(`(?m)^roundhouse_scrape_servers\{pool="[^"]*",state="active"\} 2`).MatchString(m), m
	})
	if err := dies.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for range 6 {
		if a := n.post("/v1/chat/completions", ask); a.status != 200 {
			t.Errorf("with one engine dead: %s", a)
		}
	}
	manifest("chat, talk")
	eventually(t, "the new name is known", func() (bool, string) {
		a := n.post("/v1/chat/completions", strings.Replace(ask, `"chat"`, `"talk"`, 1))
		return a.status == 200, a.String()
	})
	r := n.run("gateway", "-f", "examples/quickstart/iris.yaml", "--listen", "127.0.0.1:0", "--grpc-listen", "", "--metrics-listen", "")
	if r.code != 1 || !strings.Contains(r.err, "iris.yaml:") || !strings.Contains(r.err, "this process starts no services") {
		t.Errorf("a service: %s", r)
	}
	if r := n.run("gateway"); r.code != 2 || !strings.Contains(r.err, "-f") {
		t.Errorf("without manifests: %s", r)
	}
}

// TestImportedPool: requests of a route to another cluster's pool go to the addresses
// that the import states; one that states none is refused with what it lacks.
func TestImportedPool(t *testing.T) {
	t.Parallel()
	other, _, _ := serving(t, `url=http://(\S+)`, "simulate", "engine", "--port", "0", "--model", "sim", "--speed", "1000")
	dir := t.TempDir()
	write(t, dir, "imports.yaml", `apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: InferencePoolImport
metadata: {name: east, annotations: {roundhouse.dev/addresses: "`+other+`"}}
---
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: InferencePoolImport
metadata: {name: west}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: both}
spec:
  rules:
  - matches: [{headers: [{name: X-Side, value: west}]}]
    backendRefs: [{group: inference.networking.x-k8s.io, kind: InferencePoolImport, name: west}]
  - backendRefs: [{group: inference.networking.x-k8s.io, kind: InferencePoolImport, name: east}]
`)
	n := newNode(t)
	n.gateway, _, _ = serving(t, `Roundhouse answers at +(\S+)`, "gateway", "-f", dir, "--listen", "127.0.0.1:0", "--grpc-listen", "", "--metrics-listen", "")
	const ask = `{"model":"sim","max_tokens":4,"messages":[{"role":"user","content":"Hello"}]}`
	if a := n.post("/v1/chat/completions", ask); a.status != 200 || !strings.Contains(a.body, `"model":"sim"`) {
		t.Errorf("the import with an address: %s", a)
	}
	if a := n.post("/v1/chat/completions", ask, "X-Side", "west"); a.status != 503 || !strings.Contains(a.body, "roundhouse.dev/addresses") {
		t.Errorf("the import without one: %s", a)
	}
	if r := n.run("validate", dir); r.code != 0 || !strings.Contains(r.err, "imports.yaml:7: warning") || !strings.Contains(r.err, "no address to connect to") ||
		!strings.Contains(r.out, "imports.yaml:1: inferencepoolimport default/east is valid") {
		t.Errorf("validate: %s", r)
	}
}

// TestImportIsNamed: commands name an InferencePoolImport as such, although it is kept
// among the pools.
func TestImportIsNamed(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	file := write(t, t.TempDir(), "import.yaml", `apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: InferencePoolImport
metadata: {name: east, annotations: {roundhouse.dev/addresses: "127.0.0.1:9"}}
---
apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: west}
spec: {addresses: ["127.0.0.1:9"]}
`)
	out := n.do("apply", "-f", file)
	contains(t, out, "inferencepoolimport default/east created")
	contains(t, out, "pool default/west created")
	contains(t, n.do("delete", "pool", "east"), "inferencepoolimport default/east deleted")
	n.do("apply", "-f", file)
	out = n.do("delete", "-f", file)
	contains(t, out, "inferencepoolimport default/east deleted")
	contains(t, out, "pool default/west deleted")
}

// TestGatewayTraces: spans reach a collector, the engine is told of its part of
// the trace, and a collector that is not there costs nothing.
func TestGatewayTraces(t *testing.T) {
	t.Parallel()
	exports := make(chan string, 16)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		select {
		case exports <- r.URL.Path + " " + string(raw):
		default: // nobody waits any more
		}
	}))
	defer collector.Close()
	told := make(chan string, 1)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet { // its metrics are looked for
			http.NotFound(w, r)
			return
		}
		told <- r.Header.Get("Traceparent")
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"usage":{"prompt_tokens":3,"completion_tokens":4}}`)
	}))
	defer engine.Close()
	dir := t.TempDir()
	write(t, dir, "pools.yaml", `apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: engines}
spec:
  addresses: ["`+strings.TrimPrefix(engine.URL, "http://")+`"]
---
apiVersion: roundhouse.dev/v1alpha1
kind: Route
metadata: {name: talk}
spec:
  targets: [{pool: engines}]
`)
	n := newNode(t)
	n.gateway, _, _ = servingWith(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "OTEL_BSP_SCHEDULE_DELAY=50"},
		`Roundhouse answers at +(\S+)`, "gateway", "-f", dir, "--listen", "127.0.0.1:0", "--grpc-listen", "", "--metrics-listen", "")
	const id = "0af7651916cd43dd8448eb211c80319c"
	if a := n.post("/v1/chat/completions", `{"model":"talk"}`, "Traceparent", "00-"+id+"-b7ad6b7169203331-01"); a.status != 200 {
		t.Fatalf("chat: %s", a)
	}
	if tp := <-told; !strings.HasPrefix(tp, "00-"+id+"-") || strings.Contains(tp, "b7ad6b7169203331") || !strings.HasSuffix(tp, "-01") {
		t.Errorf("the engine is told %q", tp)
	}
	var got string
	for limit := time.After(patience); !strings.Contains(got, "chat talk"); {
		select {
		case e := <-exports:
			got += e
		case <-limit:
			t.Fatalf("no span of the server was exported: %q", got)
		}
	}
	for _, want := range []string{"/v1/traces ", "queue", "gen_ai.request.model", "gen_ai.usage.output_tokens", "http.request.resend_count"} {
		if !strings.Contains(got, want) {
			t.Errorf("the export lacks %s: %q", want, got)
		}
	}
}
