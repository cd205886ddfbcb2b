package gateway

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/apikey"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// echoing answers with its name, its path and what it got, as an object.
func echoing(t *testing.T, name string, status int) string {
	return replicaServer(t, func(w http.ResponseWriter, q *http.Request) {
		b, _ := io.ReadAll(q.Body)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `{"by":%q,"path":%q,"tenant":%q,"predictions":[%s]}`, name, q.URL.Path, q.Header.Get("X-Tenant"), b)
	})
}

// graphed is a rig with services a and b, a service bad that fails, and graphs.
func graphed(t *testing.T, graphs ...*routing.Graph) *rig {
	r := newRig(t, nil)
	r.d.SetPool(pool("a", echoing(t, "a", 200)))
	b := pool("b", echoing(t, "b", 200))
	b.Protocol = service.ProtocolV2
	r.d.SetPool(b)
	r.d.SetPool(pool("bad", echoing(t, "bad", 418)))
	var objects []routing.Object
	for _, g := range graphs {
		if g.Key.Name == "" {
			g.Key = service.ParseKey("g")
		}
		objects = append(objects, g)
	}
	r.d.SetObjects(objects)
	return r
}

func node(kind routing.NodeKind, steps ...routing.GraphStep) routing.GraphNode {
	return routing.GraphNode{Kind: kind, Steps: steps}
}

func root(n routing.GraphNode) map[string]routing.GraphNode {
	return map[string]routing.GraphNode{routing.GraphRoot: n}
}

const atGraph = "g.default.localhost"

func TestGraphNodes(t *testing.T) {
	outside := "http://" + echoing(t, "outside", 200) + "/any"
	for name, tt := range map[string]struct {
		nodes map[string]routing.GraphNode
		body  string
		code  int
		want  string
	}{
		"a sequence gives each step the request": {root(node(routing.NodeSequence, routing.GraphStep{Service: "a"}, routing.GraphStep{Service: "b"})), `1`, 200,
			`{"by":"b","path":"/v2/models/b/infer","tenant":"","predictions":[1]}`},
		"or the answer before": {root(node(routing.NodeSequence, routing.GraphStep{Service: "a"}, routing.GraphStep{Service: "b", Response: true})), `1`, 200,
			`{"by":"b","path":"/v2/models/b/infer","tenant":"","predictions":[{"by":"a","path":"/v1/models/a:predict","tenant":"","predictions":[1]}]}`},
		"or its predictions as instances": {root(node(routing.NodeSequence, routing.GraphStep{Service: "a"}, routing.GraphStep{Service: "b", Response: true, MapPredictions: true})), `1`, 200,
			`{"by":"b","path":"/v2/models/b/infer","tenant":"","predictions":[{"instances":[1]}]}`},
		"a sequence ends where a condition is not met": {root(node(routing.NodeSequence, routing.GraphStep{Service: "a"}, routing.GraphStep{Service: "b", Condition: "nothing"})), `1`, 200,
			`{"by":"a","path":"/v1/models/a:predict","tenant":"","predictions":[1]}`},
		"and where a hard step fails": {root(node(routing.NodeSequence, routing.GraphStep{Service: "bad", Hard: true}, routing.GraphStep{Service: "b"})), `1`, 418,
			`{"by":"bad","path":"/v1/models/bad:predict","tenant":"","predictions":[1]}`},
		"a soft one changes nothing": {root(node(routing.NodeSequence, routing.GraphStep{Service: "bad"}, routing.GraphStep{Service: "a"})), `1`, 200,
			`{"by":"a","path":"/v1/models/a:predict","tenant":"","predictions":[1]}`},
		"a switch takes the first condition that is met": {root(node(routing.NodeSwitch, routing.GraphStep{Service: "a", Condition: `instances.#(n>10)`},
			routing.GraphStep{Service: "b", Condition: `[@this].#(source=="client")`})), `{"source":"client","instances":[{"n":3}]}`, 200,
			`{"by":"b","path":"/v2/models/b/infer","tenant":"","predictions":[{"source":"client","instances":[{"n":3}]}]}`},
		"or none": {root(node(routing.NodeSwitch, routing.GraphStep{Service: "a", Condition: "x"})), `{}`, 404, `meets no condition of the switch root`},
		"an ensemble joins the answers": {root(node(routing.NodeEnsemble, routing.GraphStep{Service: "a", Name: "one"}, routing.GraphStep{Service: "bad"})), `1`, 200,
			`{"1":{"by":"bad","path":"/v1/models/bad:predict","tenant":"","predictions":[1]},"one":{"by":"a","path":"/v1/models/a:predict","tenant":"","predictions":[1]}}`},
		"unless a hard step fails": {root(node(routing.NodeEnsemble, routing.GraphStep{Service: "a"}, routing.GraphStep{Service: "bad", Hard: true})), `1`, 418,
			`{"by":"bad","path":"/v1/models/bad:predict","tenant":"","predictions":[1]}`},
		"a splitter draws": {root(node(routing.NodeSplitter, routing.GraphStep{Service: "bad"}, routing.GraphStep{Service: "a", Weight: 100})), `1`, 200,
			`{"by":"a","path":"/v1/models/a:predict","tenant":"","predictions":[1]}`},
		"nodes lead to nodes, and to servers outside": {map[string]routing.GraphNode{routing.GraphRoot: node(routing.NodeSequence, routing.GraphStep{Node: "next"}), "next": node(routing.NodeSequence, routing.GraphStep{URL: outside})}, `1`, 200,
			`{"by":"outside","path":"/any","tenant":"","predictions":[1]}`},
		"a URL of a cluster is the service here": {root(node(routing.NodeSequence, routing.GraphStep{URL: "http://a-predictor.default.svc.cluster.local/v1/models/a:predict"})), `1`, 200,
			`{"by":"a","path":"/v1/models/a:predict","tenant":"","predictions":[1]}`},
		"a service that is not there": {root(node(routing.NodeSequence, routing.GraphStep{Service: "zzz"})), `1`, 503, `there is no service default/zzz, which the graph asks`},
		"a server that is not there":  {root(node(routing.NodeSequence, routing.GraphStep{URL: "http://127.0.0.1:1/x"})), `1`, 500, `the graph default/g could not answer: step http://127.0.0.1:1/x`},
	} {
		r := graphed(t, &routing.Graph{Nodes: tt.nodes})
		for _, path := range []string{"/", "/v1/models/g:predict"} {
			host := atGraph
			if path != "/" {
				host = "other.example" // its name decides
			}
			a := r.send(http.MethodPost, path, tt.body, "Host", host, "X-Tenant", "kept")
			if a.code != tt.code || (tt.code == 200 && a.body != tt.want) || !strings.Contains(a.body, tt.want) {
				t.Errorf("%s, %s: got %d %s, want %d %s", name, path, a.code, a.body, tt.code, tt.want)
			}
		}
	}
}

// TestGraphStaysInItsNamespace: where others write graphs than who may ask for
// everything, a step's URL leads to a service of the graph's namespace itself, and to
// nothing that the gateway answers of all.
func TestGraphStaysInItsNamespace(t *testing.T) {
	for path, want := range map[string]string{
		"/v1/models/a:predict":                `{"by":"a","path":"/v1/models/a:predict","tenant":"","predictions":[{}]}`,
		"/v1/models/secret:predict":           "secret",
		"/v2/repository/index":                "could not answer: step first: \\\"/v2/repository/index\\\" is no path by which a model is asked",
		"/v2/repository/models/secret/unload": "is no path by which a model is asked",
		"/v1/models":                          "is no path by which a model is asked",
		"/":                                   "is no path by which a model is asked",
		"/metrics":                            "nothing is served at /metrics",
	} {
		r := graphed(t, &routing.Graph{Nodes: root(node(routing.NodeSequence, routing.GraphStep{Name: "first", URL: "http://a" + path}))})
		r.gw.cfg.Reach = func(string, string) (string, error) { return "", errors.New("nothing is outside") }
		r.d.SetPool(pool("other/secret", echoing(t, "theirs", 200)))
		a := r.send(http.MethodPost, "/", `{}`, "Host", atGraph)
		if !strings.Contains(a.body, want) || strings.Contains(a.body, "theirs") || strings.Contains(a.body, "UNAVAILABLE") || strings.Contains(a.body, "READY") {
			t.Errorf("%s: got %d %s, want %s", path, a.code, a.body, want)
		}
	}
}

// TestGraphIsNotExplained: to explain a request sends nothing.
func TestGraphIsNotExplained(t *testing.T) {
	r := graphed(t, &routing.Graph{Nodes: root(node(routing.NodeSequence, routing.GraphStep{Service: "a"}))})
	for _, path := range []string{"http://" + atGraph + "/", "http://other.example/v1/models/g:predict"} {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(`1`))
		if err != nil {
			t.Fatal(err)
		}
		q.RequestURI = "/"
		if _, err = r.gw.Explain(q); err == nil || !strings.Contains(err.Error(), "is a graph") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestGraphPropagates: steps get the fields that the graph names, and no other.
func TestGraphPropagates(t *testing.T) {
	r := graphed(t, &routing.Graph{Nodes: root(node(routing.NodeSequence, routing.GraphStep{Service: "a"})), Propagate: []string{"x-ten*"}})
	if a := r.send(http.MethodPost, "/", `1`, "Host", atGraph, "X-Tenant", "blau"); !strings.Contains(a.body, `"tenant":"blau"`) {
		t.Error(a)
	}
}

// TestGraphEnds: what could go on for ever does not.
func TestGraphEnds(t *testing.T) {
	var stuck atomic.Int32
	release := make(chan struct{})
	defer close(release)
	slow := "http://" + replicaServer(t, func(_ http.ResponseWriter, q *http.Request) {
		stuck.Add(1)
		select {
		case <-release:
		case <-q.Context().Done():
		}
	})
	loop := root(node(routing.NodeSequence, routing.GraphStep{URL: "http://loop.default.localhost/"}))
	r := graphed(t, &routing.Graph{Nodes: root(node(routing.NodeSequence, routing.GraphStep{URL: slow})), Timeout: 50 * time.Millisecond},
		&routing.Graph{Meta: service.Meta{Key: service.ParseKey("loop")}, Nodes: loop, Propagate: []string{"*"}, Timeout: 5 * time.Second})
	if a := r.send(http.MethodPost, "/", `1`, "Host", atGraph); a.code != http.StatusGatewayTimeout || stuck.Load() != 1 {
		t.Error(a)
	}
	for _, depth := range []string{"", "1", "-1000000"} { // whatever a client says of it
		if a := r.send(http.MethodPost, "/", `1`, "Host", "loop.default.localhost", headerDepth, depth); a.code != http.StatusLoopDetected {
			t.Errorf("depth %q: %+v", depth, a)
		}
	}
	if a := r.send(http.MethodGet, "/", ``, "Host", atGraph); a.code != http.StatusMethodNotAllowed {
		t.Error(a)
	}
	until(t, func() bool { return r.gw.buffered.Used() == 0 })
}

// TestGraphOutlivesItsReplicas: a replica that dies within its answer fails the request,
// and nothing else.
func TestGraphOutlivesItsReplicas(t *testing.T) {
	r := graphed(t, &routing.Graph{Nodes: root(node(routing.NodeEnsemble, routing.GraphStep{Service: "a"}, routing.GraphStep{Service: "dies"}))})
	r.d.SetPool(pool("dies", replicaServer(t, hijack(cutOff))))
	r.send(http.MethodPost, "/", `1`, "Host", atGraph).want(t, http.StatusInternalServerError, "step dies: the answer was cut off")
	until(t, func() bool { return r.gw.buffered.Used() == 0 })
}

// TestGraphStepEnds: a step has its own time, also one whose answer has begun.
func TestGraphStepEnds(t *testing.T) {
	stalls := replicaServer(t, func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body)
		_, _ = io.WriteString(w, "1")
		_ = http.NewResponseController(w).Flush()
		<-q.Context().Done()
	})
	for _, step := range []routing.GraphStep{{Service: "stalls"}, {Name: "afar", URL: "http://" + stalls}} {
		r := graphed(t, &routing.Graph{Nodes: root(node(routing.NodeSequence, step)), StepTimeout: 50 * time.Millisecond})
		r.d.SetPool(pool("stalls", stalls))
		r.send(http.MethodPost, "/", `1`, "Host", atGraph).want(t, http.StatusGatewayTimeout, "the step "+label(&step)+" did not answer within 50ms")
	}
}

// late answers before it reads the request, as net/http's transport may. The bodies are
// to be read when the answers are there.
type late chan io.ReadCloser

func (l late) RoundTrip(r *http.Request) (*http.Response, error) {
	l <- r.Body
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("1")), Request: r}, nil
}

// TestGraphAsksOutsideWithItsOwnBody: what a server is sent late is no other client's.
func TestGraphAsksOutsideWithItsOwnBody(t *testing.T) {
	r := graphed(t, &routing.Graph{Nodes: root(node(routing.NodeSequence, routing.GraphStep{URL: "http://afar.test/"}))})
	bodies := make(late, 20)
	r.gw.servers = through{bodies}
	for i := range cap(bodies) {
		r.send(http.MethodPost, "/", fmt.Sprintf(`"request %2d"`, i), "Host", atGraph).want(t, http.StatusOK)
	}
	for i := range cap(bodies) {
		b, err := io.ReadAll(<-bodies)
		if want := fmt.Sprintf(`"request %2d"`, i); err != nil || string(b) != want {
			t.Errorf("the server gets %s, %v, want %s", b, err, want)
		}
	}
}

// TestGraphNeedsItsKey: the graph's root path, which is the gateway's own without a
// graph, needs a key as any inference does.
func TestGraphNeedsItsKey(t *testing.T) {
	r, create := newKeyRig(t, nil)
	_, secret := create(apikey.Limits{Models: []string{"g"}})
	r.d.SetPool(pool("a", echoing(t, "a", 200)))
	r.d.SetObjects([]routing.Object{&routing.Graph{Meta: service.Meta{Key: service.ParseKey("g")}, Nodes: root(node(routing.NodeSequence, routing.GraphStep{Service: "a"}))},
		&routing.Graph{Meta: service.Meta{Key: service.ParseKey("other")}, Nodes: root(node(routing.NodeSequence, routing.GraphStep{Service: "a"}))}})
	for _, tt := range []struct {
		host, key string
		code      int
	}{{atGraph, "", 401}, {atGraph, secret, 200}, {"other.default.localhost", secret, 403}} {
		header := []string{"Host", tt.host}
		if tt.key != "" {
			header = append(header, "Authorization", "Bearer "+tt.key)
		}
		if a := r.send(http.MethodPost, "/", `1`, header...); a.code != tt.code {
			t.Errorf("%s with key %q: %+v", tt.host, tt.key, a)
		}
	}
}

// TestGraphChargesItsKey: the tokens of every step are the key's, also where steps are
// asked at once, or are a graph's.
func TestGraphChargesItsKey(t *testing.T) {
	r, create := newKeyRig(t, nil)
	_, secret := create(apikey.Limits{TokensPerMinute: 100})
	_, other := create(apikey.Limits{TokensPerMinute: 61})
	p := pool("a", replicaServer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprint(w, `{"usage":{"prompt_tokens":10,"completion_tokens":10,"total_tokens":20}}`)
	}))
	p.Protocol = service.ProtocolOpenAI
	r.d.SetPool(p)
	a := routing.GraphStep{Service: "a"}
	inner := &routing.Graph{Meta: service.Meta{Key: service.ParseKey("inner")}, Nodes: root(node(routing.NodeEnsemble, a, routing.GraphStep{Service: "a", Name: "again"}))}
	outer := &routing.Graph{Meta: service.Meta{Key: service.ParseKey("g")}, Nodes: root(node(routing.NodeSequence, a, routing.GraphStep{URL: "http://inner.default.localhost/"}))}
	r.d.SetObjects([]routing.Object{inner, outer})
	const body = `{"model":"a","messages":[]}`
	for _, tt := range []struct {
		key   string
		codes []int
	}{{secret, []int{200, 200, 429}}, {other, []int{200, 200, 429}}} {
		for i, want := range tt.codes { // 60 tokens each
			if got := r.send(http.MethodPost, "/", body, "Host", atGraph, "Authorization", "Bearer "+tt.key); got.code != want {
				t.Errorf("request %d: %+v, want %d", i, got, want)
			}
		}
	}
}

// TestGraphAnswersCountAsTheClients: answers that a graph holds take its client's share
// of the memory, and give it back.
func TestGraphAnswersCountAsTheClients(t *testing.T) {
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.MaxBodyBytes, c.MaxBufferedBytes = 64<<10, 128<<10 })
	r.d.SetPool(pool("big", replicaServer(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, "%q", strings.Repeat("x", 40<<10))
	})))
	step := routing.GraphStep{Service: "big"}
	one := &routing.Graph{Meta: service.Meta{Key: service.ParseKey("one")}, Nodes: root(node(routing.NodeSequence, step))}
	two := &routing.Graph{Meta: service.Meta{Key: service.ParseKey("g")}, Nodes: root(node(routing.NodeEnsemble, step, routing.GraphStep{Service: "big", Name: "again"}))}
	r.d.SetObjects([]routing.Object{one, two})
	for range 3 {
		if a := r.send(http.MethodPost, "/", `1`, "Host", atGraph); a.code != 429 || !strings.Contains(a.body, "share of the gateway's buffer") {
			t.Errorf("two answers of 40 KiB with a share of 64 KiB: %d %.200s", a.code, a.body)
		}
		if a := r.send(http.MethodPost, "/", `1`, "Host", "one.default.localhost"); a.code != 200 {
			t.Errorf("one answer: %d %.200s", a.code, a.body)
		}
	}
	until(t, func() bool { return r.gw.buffered.Used() == 0 }) // all is given back, after the client has its answer
}

// through are servers that all are one transport's.
type through struct{ http.RoundTripper }

func (t through) Do(r *http.Request, _ string) (*http.Response, error) { return t.RoundTrip(r) }
