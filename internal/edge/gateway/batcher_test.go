package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// doubler answers KServe v1 requests with twice each instance, and counts them.
func doubler(t *testing.T, calls *atomic.Int32, most *atomic.Int32) string {
	return replicaServer(t, func(w http.ResponseWriter, q *http.Request) {
		calls.Add(1)
		var in struct {
			Instances []int `json:"instances"`
		}
		if err := json.NewDecoder(q.Body).Decode(&in); err != nil {
			t.Error(err)
		}
		most.Store(max(most.Load(), int32(len(in.Instances))))
		for i := range in.Instances {
			in.Instances[i] *= 2
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"predictions": in.Instances})
	})
}

// TestBatcherJoinsRequests: requests that come together are one at the replica, and
// each client gets its own predictions.
func TestBatcherJoinsRequests(t *testing.T) {
	r := newRig(t, nil)
	var calls, most atomic.Int32
	p := pool("m", doubler(t, &calls, &most))
	p.Batcher = &service.Batcher{MaxSize: 20, MaxLatency: time.Minute}
	r.d.SetPool(p)
	var all sync.WaitGroup
	for i := range 10 { // of 2 instances each: the batch is full with the last
		all.Go(func() {
			a := r.send(http.MethodPost, "/v1/models/m:predict", fmt.Sprintf(`{"instances":[%d,%d]}`, i, 100+i))
			var out struct {
				Message     string `json:"message"`
				BatchID     string `json:"batchId"`
				Predictions []int  `json:"predictions"`
			}
			if err := json.Unmarshal([]byte(a.body), &out); err != nil || a.code != http.StatusOK || out.BatchID == "" || out.Message != "" {
				t.Error(err, a)
			}
			if want := []int{2 * i, 200 + 2*i}; len(out.Predictions) != 2 || out.Predictions[0] != want[0] || out.Predictions[1] != want[1] {
				t.Errorf("got %v, want %v", out.Predictions, want)
			}
		})
	}
	all.Wait()
	if calls.Load() != 1 || most.Load() != 20 {
		t.Errorf("%d requests reached the replica, the largest of %d instances", calls.Load(), most.Load())
	}
}

// TestBatcherLogsEachRequest: the logger of a service with a batcher gets each request as
// its client has sent it, and each client's answer, with the id and the fields of its own.
func TestBatcherLogsEachRequest(t *testing.T) {
	r := newRig(t, nil)
	to := newReceiver(t)
	var calls, most atomic.Int32
	p := logging(pool("m", doubler(t, &calls, &most)), service.Logger{URL: to.url, Mode: service.LogAll, Headers: []string{"X-Tenant"}})
	p.Batcher = &service.Batcher{MaxSize: 3, MaxLatency: time.Minute}
	r.d.SetPool(p)
	var all sync.WaitGroup
	for i := range 3 {
		all.Go(func() {
			id := strconv.Itoa(i)
			a := r.send(http.MethodPost, "/v1/models/m:predict", `{"instances":[`+id+`]}`, "Ce-Id", id, "X-Tenant", "t"+id)
			if a.code != http.StatusOK {
				t.Error(a)
			}
		})
	}
	all.Wait()
	seen := map[string]int{}
	for range 6 {
		h, body := <-to.events, <-to.bodies
		id := h.Get("Ce-Id")
		if h.Get("Ce-Metadata") != `{"X-Tenant":["t`+id+`"]}` {
			t.Errorf("%s: %s", id, h.Get("Ce-Metadata"))
		}
		n, _ := strconv.Atoi(id)
		switch want := fmt.Sprintf(`"predictions":[%d]}`, 2*n); h.Get("Ce-Type") {
		case eventRequest:
			if body != `{"instances":[`+id+`]}` {
				t.Errorf("request %s: %s", id, body)
			}
		case eventResponse:
			if !strings.HasSuffix(body, want) || !strings.Contains(body, "batchId") {
				t.Errorf("answer %s: %s", id, body)
			}
		}
		seen[h.Get("Ce-Type")+id]++
	}
	r.gw.payloads.Close(t.Context())
	if len(seen) != 6 || len(to.events) > 0 || calls.Load() != 1 {
		t.Errorf("%v, and %d more; %d calls", seen, len(to.events), calls.Load())
	}
}

// TestBatcherWaits: a request alone is sent once its time has passed, and one that
// cannot be joined is passed on as it stands.
func TestBatcherWaits(t *testing.T) {
	r := newRig(t, nil)
	at := replicaServer(t, func(w http.ResponseWriter, q *http.Request) {
		b, _ := io.ReadAll(q.Body)
		_, _ = fmt.Fprintf(w, `{"predictions":[%q]}`, b)
	})
	p := pool("m", at)
	p.Batcher = &service.Batcher{MaxSize: 100, MaxLatency: time.Millisecond}
	r.d.SetPool(p)
	if a := r.send(http.MethodPost, "/v1/models/m:predict", `{"instances":[1]}`); a.code != 200 || !json.Valid([]byte(a.body)) || a.body[:12] != `{"message":"` {
		t.Error(a)
	}
	for _, body := range []string{`{"instances":[1],"signature_name":"x"}`, `{"inputs":[1]}`, `no JSON`, `{"instances":[0` + strings.Repeat(",0", 100) + `]}`} {
		if a, want := r.send(http.MethodPost, "/v1/models/m:predict", body), fmt.Sprintf(`{"predictions":[%q]}`, body); a.body != want {
			t.Errorf("got %s, want %s", a.body, want)
		}
	}
}

// cutOff begins an answer and does not end it.
const cutOff = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n0123456789"

// TestBatcherOutlivesItsReplica: a replica that dies within its answer fails its batch,
// and nothing else.
func TestBatcherOutlivesItsReplica(t *testing.T) {
	r := newRig(t, nil)
	p := pool("m", replicaServer(t, hijack(cutOff)))
	p.Batcher = &service.Batcher{MaxSize: 1, MaxLatency: time.Minute}
	r.d.SetPool(p)
	r.send(http.MethodPost, "/v1/models/m:predict", `{"instances":[1]}`).want(t, http.StatusBadGateway, "cut off")
	until(t, func() bool { return r.gw.buffered.Used() == 0 })
}

// TestBatcherForgetsThoseWhoLeave: a client does not join a batch whose clients are all
// gone.
func TestBatcherForgetsThoseWhoLeave(t *testing.T) {
	r := newRig(t, nil)
	var calls, most atomic.Int32
	p := pool("m", doubler(t, &calls, &most))
	p.Batcher = &service.Batcher{MaxSize: 2, MaxLatency: time.Minute}
	r.d.SetPool(p)
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"/v1/models/m:predict", strings.NewReader(`{"instances":[1]}`))
		if err == nil {
			_, err = r.client.Do(req)
		}
		gone <- err
	}()
	until(t, func() bool {
		r.gw.gatherings.mu.Lock()
		defer r.gw.gatherings.mu.Unlock()
		return len(r.gw.gatherings.open) == 1
	})
	leave()
	if err := <-gone; err == nil {
		t.Error("the client that left got an answer")
	}
	r.waitSettled()
	r.send(http.MethodPost, "/v1/models/m:predict", `{"instances":[2,3]}`).want(t, http.StatusOK, `"predictions":[4,6]`)
	if calls.Load() != 1 || most.Load() != 2 {
		t.Errorf("%d requests reached the replica, the largest of %d instances", calls.Load(), most.Load())
	}
}

// TestBatcherBehindARoute: a batch asks the replica for the service's own name, or the
// route's, whatever clients call it, and one batch is for all names of a model. A
// request that its route treats in its own way is sent alone.
func TestBatcherBehindARoute(t *testing.T) {
	r := newRig(t, nil)
	paths := make(chan string, 10)
	p := pool("m", replicaServer(t, func(w http.ResponseWriter, q *http.Request) {
		b, _ := io.ReadAll(q.Body)
		paths <- q.URL.Path + " " + string(b)
		_, _ = io.WriteString(w, `{"predictions":[1,2]}`)
	}))
	p.Batcher = &service.Batcher{MaxSize: 2, MaxLatency: 10 * time.Second}
	p.Adapters = []dispatch.Adapter{{Name: "french"}}
	r.d.SetPool(p)
	m := service.ParseKey("m")
	route := func(name string, change func(*routing.Route)) routing.Object {
		o := &routing.Route{Meta: service.Meta{Key: service.ParseKey(name)}, Models: []string{name}, Targets: []routing.Target{{Ref: routing.Service(m), Weight: 1}}}
		change(o)
		return o
	}
	r.d.SetObjects([]routing.Object{route("x", func(*routing.Route) {}),
		route("fr", func(o *routing.Route) { o.Targets[0].Model = "french" }),
		route("quick", func(o *routing.Route) { o.Handling.Timeout = time.Hour }),
		route("first", func(o *routing.Route) { o.Priority = 1 })})
	for _, tt := range []struct{ names, want string }{
		{"x m", `/v1/models/m:predict {"instances":[7,7]}`},
		{"fr french", `/v1/models/french:predict {"instances":[7,7]}`},
		{"quick", `/v1/models/m:predict {"instances":[7]}`},
		{"first", `/v1/models/m:predict {"instances":[7]}`},
	} {
		var all sync.WaitGroup
		for _, name := range strings.Fields(tt.names) {
			all.Go(func() {
				if a := r.send(http.MethodPost, "/v1/models/"+name+":predict", `{"instances":[7]}`); a.code != http.StatusOK {
					t.Error(name, a)
				}
			})
		}
		all.Wait()
		if got := <-paths; got != tt.want || len(paths) > 0 {
			t.Errorf("%s: the replica is asked %s, want %s; and %d more", tt.names, got, tt.want, len(paths))
		}
	}
}

// TestBatcherTellsFailures: each client gets the replica's own error, or why the answer
// cannot be divided.
func TestBatcherTellsFailures(t *testing.T) {
	for _, tt := range []struct {
		status int
		answer string
		want   int
	}{{400, `{"error":"no"}`, 400}, {200, `{"predictions":[]}`, 502}, {200, `what`, 502}} {
		r := newRig(t, nil)
		at := replicaServer(t, func(w http.ResponseWriter, q *http.Request) {
			w.WriteHeader(tt.status)
			_, _ = io.WriteString(w, tt.answer)
		})
		p := pool("m", at)
		p.Batcher = &service.Batcher{MaxSize: 1, MaxLatency: time.Minute}
		r.d.SetPool(p)
		if a := r.send(http.MethodPost, "/v1/models/m:predict", `{"instances":[1]}`); a.code != tt.want || a.body == "" {
			t.Error(tt, a)
		}
	}
}

// TestExplainerAnswersExplanations: calls for explanations reach the explainer's
// replicas, wake the service, and all others reach the predictor's.
func TestExplainerAnswersExplanations(t *testing.T) {
	r := newRig(t, nil)
	says := func(text string) string {
		return replicaServer(t, func(w http.ResponseWriter, q *http.Request) { _, _ = io.WriteString(w, text+q.URL.Path) })
	}
	predictor, explainer := says("predicted "), says("explained ")
	p := pool("m", predictor)
	e := p
	e.Entry = service.RoleExplainer
	put := func(awake bool) {
		p.Replicas = nil
		if awake {
			p.Replicas = []replica.Replica{{ID: "p", Service: p.Key, Role: service.RoleEngine, Phase: replica.Ready, HTTP: predictor},
				{ID: "e", Service: p.Key, Role: service.RoleExplainer, Phase: replica.Ready, HTTP: explainer}}
		}
		e.Replicas = p.Replicas
		r.d.SetPool(p)
		r.d.SetPool(dispatch.PoolConfig{Key: routing.RolePool(p.Key, service.RoleExplainer).Key, Shared: true, ServedName: "m", Members: []dispatch.PoolConfig{e}})
	}
	put(false)
	r.demand.onWake = func(name string) {
		if name != "default/m" {
			t.Errorf("%s was woken", name)
		}
		go put(true)
	}
	for path, want := range map[string]string{"/v1/models/m:explain": "explained /v1/models/m:explain", "/v2/models/m/explain": "explained /v2/models/m/explain",
		"/v1/models/default%2Fm:explain": "explained /v1/models/m:explain", "/v1/models/m:predict": "predicted /v1/models/m:predict"} {
		if a := r.send(http.MethodPost, path, `{}`); a.body != want {
			t.Errorf("%s: got %+v, want %s", path, a, want)
		}
	}
	if r.demand.wakes.Load() == 0 {
		t.Error("nothing was woken")
	}
}

// TestBatcherBehindATransformer: what a transformer asks of its predictor is gathered
// as well.
func TestBatcherBehindATransformer(t *testing.T) {
	r := newRig(t, nil)
	var calls, most atomic.Int32
	p := pool("m/engine", doubler(t, &calls, &most))
	p.Key = routing.RolePool(service.ParseKey("m"), service.RoleEngine).Key
	p.Shared, p.Restarted, p.Batcher = true, true, &service.Batcher{MaxSize: 2, MaxLatency: time.Minute}
	r.d.SetPool(p)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- r.gw.ServeTo(ctx, l, routing.PoolRef(p.Key)) }()
	r.url = "http://" + l.Addr().String()
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			if a := r.send(http.MethodPost, "/v1/models/m:predict", `{"instances":[4]}`); a.code != 200 || !strings.Contains(a.body, `"predictions":[8]`) {
				t.Error(a)
			}
		})
	}
	all.Wait()
	if calls.Load() != 1 {
		t.Errorf("%d requests reached the replica", calls.Load())
	}
	r.client.CloseIdleConnections()
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
