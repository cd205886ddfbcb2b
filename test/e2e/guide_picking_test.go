package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

// pod is an engine as a gateway sees one: vLLM's metrics, and answers.
type pod struct {
	address string
	metrics atomic.Value // string
	asked   atomic.Int64
}

// pods are engines of those names.
func pods(t *testing.T, n int) (all []*pod) {
	t.Helper()
	for range n {
		p := &pod{}
		p.says(0, 0, "", 0)
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/metrics":
				_, _ = fmt.Fprint(w, p.metrics.Load())
			case "/v1/completions":
				p.asked.Add(1)
				w.Header().Set("Content-Type", "application/json")
				_, _ = fmt.Fprint(w, `{"choices":[]}`)
			}
		}))
		t.Cleanup(s.Close)
		p.address = strings.TrimPrefix(s.URL, "http://")
		all = append(all, p)
	}
	return all
}

// says sets what the engine's metrics say.
func (p *pod) says(waiting int, kv float64, adapters string, most int) {
	p.metrics.Store(fmt.Sprintf(`vllm:num_requests_waiting{model_name="m"} %d
vllm:num_requests_running{model_name="m"} 4
vllm:kv_cache_usage_perc{model_name="m"} %g
vllm:lora_requests_info{max_lora="%d",running_lora_adapters="%s",waiting_lora_adapters=""} %d.0
`, waiting, kv, most, adapters, time.Now().Unix()))
}

func guideManifest(preset string, all []*pod) string {
	var addresses []string
	for _, p := range all {
		addresses = append(addresses, p.address)
	}
	text := `apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: llm}
spec:
  addresses: ["` + strings.Join(addresses, `", "`) + `"]
  picker: {preset: ` + preset + `}
`
	for name, criticality := range map[string]string{"lora-x": "Critical", "lora-y": "Critical", "batch": "Sheddable"} {
		text += `---
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModel
metadata: {name: ` + name + `}
spec:
  modelName: ` + name + `
  criticality: ` + criticality + `
  poolRef: {name: llm}
`
	}
	return text
}

// TestGuidesExamplesOfPicking: the examples of the guide that introduced the
// Gateway API Inference Extension come out as it says, in the gateway and in
// the endpoint picker, and what can be shed is served while any engine has
// capacity.
func TestGuidesExamplesOfPicking(t *testing.T) {
	t.Parallel()
	for _, preset := range []string{"seed-50", "v0.3-128", "default"} {
		for name, start := range map[string]func(*testing.T, string, []*pod) func(model string) string{"gateway": throughGateway, "endpoint-picker": throughPicker} {
			t.Run(preset+"/"+name, func(t *testing.T) {
				t.Parallel()
				all := pods(t, 3)
				a, b, c := all[0], all[1], all[2]
				ask := start(t, write(t, t.TempDir(), "pool.yaml", guideManifest(preset, all)), all)
				// nearly: v0.3-128 spreads an adapter once in 1,000 times, so 2 of 20 may go
				// elsewhere: 3 would once in a million times.
				goes := func(what, model, want string) {
					t.Helper()
					row := 0 // in which it went there: by chance, until what the engines say is known
					eventually(t, what+" goes to "+want, func() (bool, string) {
						got := ask(model)
						if row++; got != want {
							row = 0
						}
						return row == 10, got
					})
					had := map[string]int{}
					for range 20 {
						had[ask(model)]++
					}
					if had[want] < 18 {
						t.Errorf("%s: %v, want %s", what, had, want)
					}
				}
				if preset != "default" { // which holds critical requests as well while nobody has capacity
					a.says(10, 0.30, "lora-x", 4)
					b.says(5, 0.70, "", 4)
					c.says(60, 0.20, "lora-x", 4)
					goes("example 1, critical, with an adapter", "lora-x", a.address)
				}
				a.says(6, 0.85, "", 4)
				b.says(4, 0.75, "", 4)
				c.says(7, 0.60, "", 4)
				goes("example 2, not critical", "batch", b.address)
				if preset != "default" {
					a.says(70, 0.40, "lora-y", 2)
					b.says(80, 0.60, "lora-y", 2)
					c.says(65, 0.70, "lora-v,lora-w", 2)
					goes("example 3, critical, long queues everywhere", "lora-y", a.address)
				}
				a.says(100, 1, "", 4)
				b.says(100, 1, "", 4)
				c.says(0, 0.1, "", 4)
				goes("what can be shed, beside two that are overwhelmed", "batch", c.address)
				c.says(6, 0.9, "", 4)
				goes("what can be shed, with no capacity anywhere", "batch", "429")
			})
		}
	}
}

// throughGateway asks a `roundhouse gateway`; ask returns the address that
// answered, or the status.
func throughGateway(t *testing.T, file string, all []*pod) (ask func(model string) string) {
	n := newNode(t)
	n.gateway, _, _ = serving(t, `Roundhouse answers at +(\S+)`, "gateway", "-f", file, "--listen", "127.0.0.1:0", "--grpc-listen", "", "--metrics-listen", "127.0.0.1:0")
	return func(model string) string {
		before := make([]int64, len(all))
		for i, p := range all {
			before[i] = p.asked.Load()
		}
		got := n.post("/v1/completions", `{"model":"`+model+`","prompt":"hello"}`)
		for i, p := range all {
			if p.asked.Load() > before[i] {
				return p.address
			}
		}
		return fmt.Sprint(got.status)
	}
}

// throughPicker asks a `roundhouse endpoint-picker` as Envoy does.
func throughPicker(t *testing.T, file string, _ []*pod) (ask func(model string) string) {
	at, _, _ := serving(t, `Roundhouse picks endpoints at +(\S+)`, "endpoint-picker", "-f", file, "--listen", "127.0.0.1:0", "--health-listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")
	conn, err := grpc.NewClient(at, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-gateway-inference-pool", "default/llm")
	return func(model string) string { return asEnvoy(t, ctx, conn, `{"model":"`+model+`","prompt":"hello"}`) }
}

// asEnvoy leads one conversation of Envoy's external processing and returns
// where the request goes, or the status it is refused with.
func asEnvoy(t *testing.T, ctx context.Context, conn *grpc.ClientConn, body string) (to string) {
	t.Helper()
	got, err := converse(ctx, conn, "/v1/completions", body, nil, func(r *http.Request) (*http.Response, error) {
		to = r.URL.Host
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	})
	switch {
	case err != nil:
		t.Fatal(err)
	case to == "":
		return fmt.Sprint(got.status)
	}
	return to
}

// TestSaturatedEnginesHoldRequests: with no setting at all, requests wait in the
// gateway while every engine is saturated, and an urgent one that comes last is
// answered first.
func TestSaturatedEnginesHoldRequests(t *testing.T) {
	t.Parallel()
	all := pods(t, 1)
	all[0].says(50, 0.99, "", 0)
	ask := throughGateway(t, write(t, t.TempDir(), "pool.yaml", guideManifest("default", all)), all)
	eventually(t, "the engine's word is read", func() (bool, string) {
		got := ask("batch")
		return got == "429", got
	})
	before := all[0].asked.Load()
	answered := make(chan string, 1)
	go func() { answered <- ask("lora-x") }()
	select {
	case got := <-answered:
		t.Fatalf("a request was answered by %s while the engine was saturated", got)
	case <-time.After(1500 * time.Millisecond): // several of its words
	}
	if n := all[0].asked.Load() - before; n > 0 {
		t.Errorf("the engine was sent %d requests", n)
	}
	all[0].says(0, 0.2, "", 0)
	select {
	case <-answered:
	case <-time.After(patience):
		t.Error("the request is held although the engine has capacity")
	}
}
