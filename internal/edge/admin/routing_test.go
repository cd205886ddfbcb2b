package admin

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/fleet"
	"roundhouse.dev/roundhouse/internal/state/journal"
)

// examples are the routing kinds' manifests.
func examples(t *testing.T) (files []File) {
	t.Helper()
	for _, name := range []string{"inference-gateway.yaml", "inference-gateway-v1.yaml", "routes.yaml"} {
		data, err := os.ReadFile(filepath.Join("..", "..", "..", "examples", "manifests", name))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, File{Name: name, Data: string(data)})
	}
	return files
}

func listRouting(t *testing.T, s *Server, query string) (out []RoutingObject) {
	t.Helper()
	w := ask(s, "GET", "/api/v1/routing"+query, "")
	if err := json.Unmarshal(w.Body.Bytes(), &out); w.Code != 200 || err != nil {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	return out
}

// TestRouting applies every routing kind, lists them with what they take and
// where that goes, and deletes them.
func TestRouting(t *testing.T) {
	s := newServer(t, outside{}, nil)
	if got := listRouting(t, s, ""); got == nil || len(got) != 0 {
		t.Errorf("an empty list is %v", got)
	}
	graph := File{Name: "graph.yaml", Data: "apiVersion: serving.kserve.io/v1alpha1\nkind: InferenceGraph\nmetadata: {name: pets}\nspec: {nodes: {root: {routerType: Sequence, steps: [{serviceName: one}, {serviceName: two}, {serviceName: one}]}}}\n"}
	body, err := json.Marshal(ApplyRequest{Files: append(examples(t), graph)})
	if err != nil {
		t.Fatal(err)
	}
	if w := ask(s, "POST", "/api/v1/apply", string(body)); w.Code != 200 || strings.Count(w.Body.String(), `"created"`) != 12 {
		t.Fatalf("apply: %d %s", w.Code, w.Body)
	}
	want := map[string]string{ // → takes, goes to
		"pool default/llama":                           "app=llama,addresses → 127.0.0.1:8000,llama.internal.example:8000",
		"pool default/vllm-llama2-7b-pool":             "app=vllm-llama2-7b → ",
		"pool chat/qwen":                               "app=vllm-qwen → ",
		"route default/llama2":                         "llama2 → llama/llama2-7b-2024-11-20=75,llama/llama2-7b-2025-03-24=25",
		"route default/adapters":                       "sql-lora,poems-lora → llama",
		"route default/chat-canary":                    "chat → chat=9,chat-next=1",
		"httproute default/llm-route":                  "any host / → vllm-llama2-7b-pool",
		"httproute chat/qwen":                          "qwen.example.com,*.chat.example.com /v1/chat/completions,/v[0-9]+/completions,/v1 → qwen=9,qwen-next=1,qwen=1,qwen-baseline=0",
		"inferencemodel default/inferencemodel-llama2": "llama2 in vllm-llama2-7b-pool → vllm-llama2-7b-2024-11-20=75,vllm-llama2-7b-2025-03-24=25",
		"inferenceobjective chat/batch":                "asked for in qwen → priority -10",
		"inferencegraph default/pets":                  "http://pets.default.localhost:8080 → one,two",
		"inferencemodelrewrite chat/qwen-canary":       "food-review,* in qwen → food-review-v1=90,food-review-v2=10,Qwen/Qwen2.5-7B-Instruct",
	}
	list := listRouting(t, s, "")
	for _, o := range list {
		id := o.Type + " " + o.Namespace + "/" + o.Name
		if got := o.From + " → " + o.To; got != want[id] {
			t.Errorf("%s: %s, want %s", id, got, want[id])
		}
		if len(o.Status.Conditions) == 0 || o.Created.IsZero() || !strings.Contains(o.Rendered, "\nstatus:") {
			t.Errorf("%s: %+v", id, o)
		}
	}
	if len(list) != len(want) || list[0].Type != "pool" {
		t.Errorf("%d objects", len(list))
	}
	if got := listRouting(t, s, "?namespace=chat"); len(got) != 4 {
		t.Errorf("one namespace has %d", len(got))
	}
	for path, code := range map[string]int{
		"/api/v1/routing/service/default/iris":       404, // not a routing kind
		"/api/v1/routing/pool/default/nobody":        404,
		"/api/v1/routing/pool/default/llama":         200,
		"/api/v1/routing/inferenceobjective/x/batch": 404,
	} {
		if w := ask(s, "DELETE", path, ""); w.Code != code {
			t.Errorf("DELETE %s: %d %s, want %d", path, w.Code, w.Body, code)
		}
	}
	if got := listRouting(t, s, ""); len(got) != len(want)-1 {
		t.Errorf("after one was deleted there are %d", len(got))
	}
}

// TestWatchRoutes: who watches is told of routes and pools, with what they lead to and
// the endpoints there, and of those that go; manifests are not told.
func TestWatchRoutes(t *testing.T) {
	var mu sync.Mutex
	flying := 1
	live, err := NewLive(LiveConfig{Pace: journal.NewPace(), Endpoints: func(r routing.Ref) []dispatch.Endpoint {
		mu.Lock()
		defer mu.Unlock()
		return []dispatch.Endpoint{{ID: r.String(), InFlight: flying, Load: &replica.Load{At: time.Now()}, Record: dispatch.Record{}}}
	}})
	if err != nil {
		t.Fatal(err)
	}
	s := serveConsole(t, func(c *Config) { c.Live = live })
	read := func(name string, o routing.Object) fleet.RoutingState {
		o.Common().Key = service.Key{Namespace: "default", Name: name}
		return fleet.RoutingState{Object: fleet.Object{Object: dialect.Object{Key: o.Common().Key, Routing: o, Original: []byte("secret: words")}}}
	}
	pool, route := read("llama", &routing.Pool{}), read("chat", &routing.Route{Targets: []routing.Target{{Ref: routing.PoolRef(service.Key{Namespace: "default", Name: "llama"})}, {Ref: routing.Service(service.Key{Namespace: "default", Name: "next"})}}})
	pool.Status.Members = []service.Key{{Namespace: "default", Name: "one"}}
	live.ObserveRoutes([]fleet.RoutingState{pool, route})
	live.lookAtPools()
	first := blocks(t, s, "/api/v1/watch?kinds=route", "id: ")
	for _, want := range []string{`"key":"route/pool/default/llama"`, `"leads":["service/default/one"]`, `"leads":["pool/default/llama","service/default/next"]`, `"id":"pool default/llama"`, `"inFlight":1`} {
		if !strings.Contains(first, want) {
			t.Errorf("not told %s:\n%s", want, first)
		}
	}
	if strings.Contains(first, "secret") || strings.Contains(first, `"load"`) {
		t.Errorf("told too much:\n%s", first)
	}
	place := first[strings.LastIndex(first, "id: ")+4 : len(first)-1]
	live.lookAtPools() // nothing has changed
	if _, now, _ := live.board.Since(0); !strings.HasPrefix(place, strconv.FormatUint(now, 10)+"-") {
		t.Errorf("at %d, told until %s", now, place)
	}
	mu.Lock()
	flying = 7
	mu.Unlock()
	live.ObserveRoutes([]fleet.RoutingState{pool})
	live.lookAtPools()
	second := blocks(t, s, "/api/v1/watch?kinds=route&after="+place, "id: ")
	if !strings.Contains(second, "event: gone\ndata: \"route/route/default/chat\"") || !strings.Contains(second, `"inFlight":7`) {
		t.Errorf("resumed:\n%s", second)
	}
}

func TestFew(t *testing.T) {
	if got := few([]string{"a", "b", "c", "d", "e"}); got != "a,b,c,d,… (5)" {
		t.Error(got)
	}
}
