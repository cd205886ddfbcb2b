package gateway

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// receiver is a server that a logger names.
type receiver struct {
	url    string
	events chan http.Header
	bodies chan string
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{events: make(chan http.Header, 100), bodies: make(chan string, 100)}
	var one sync.Mutex // so that an event and its body come together
	r.url = "http://" + replicaServer(t, func(w http.ResponseWriter, q *http.Request) {
		b, err := io.ReadAll(q.Body)
		if err != nil {
			t.Error(err)
		}
		one.Lock()
		defer one.Unlock()
		r.events <- q.Header
		r.bodies <- string(b)
		w.WriteHeader(http.StatusAccepted)
	}) + "/sink"
	return r
}

func logging(p dispatch.PoolConfig, l service.Logger) dispatch.PoolConfig {
	p.Logger = &dispatch.Logger{Logger: l, Service: p.Key, Component: service.RoleEngine, Annotated: map[string]string{"team": "grün"}}
	return p
}

// TestLoggerSendsCloudEvents: a request and its answer arrive as events of one id, with
// the names that KServe gives their attributes.
func TestLoggerSendsCloudEvents(t *testing.T) {
	r := newRig(t, nil)
	to := newReceiver(t)
	at := replicaServer(t, func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"predictions":[1]}`)
	})
	r.d.SetPool(logging(pool("iris", at), service.Logger{URL: to.url, Mode: service.LogAll, Headers: []string{"X-Tenant", "X-Absent"}}))
	a := r.send(http.MethodPost, "/v1/models/iris:predict", `{"instances":[[1]]}`, "X-Tenant", "blau", "Ce-Id", "mine", "Authorization", "Bearer secret")
	if a.code != http.StatusOK {
		t.Fatal(a)
	}
	var types []string
	for range 2 {
		h, body := <-to.events, <-to.bodies
		types = append(types, h.Get("Ce-Type")+" "+body)
		for name, want := range map[string]string{"Ce-Id": "mine", "Ce-Specversion": "1.0", "Ce-Source": "/default/iris", "Ce-Inferenceservicename": "iris",
			"Ce-Namespace": "default", "Ce-Component": "predictor", "Ce-Endpoint": "default", "Ce-Metadata": `{"X-Tenant":["blau"]}`, "Ce-Annotations": `{"team":"gr\u00fcn"}`} {
			if got := h.Get(name); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
		if strings.Contains(fmt.Sprint(h), "secret") {
			t.Errorf("a secret was sent on: %v", h)
		}
	}
	slices.Sort(types)
	if want := []string{eventRequest + ` {"instances":[[1]]}`, eventResponse + ` {"predictions":[1]}`}; !slices.Equal(types, want) {
		t.Errorf("got %q, want %q", types, want)
	}
}

// TestLoggerModes: each mode sends its part, and an answer that is an error is not sent.
func TestLoggerModes(t *testing.T) {
	for _, tt := range []struct {
		mode   service.LogMode
		status int
		want   string
	}{{service.LogRequest, 200, eventRequest}, {service.LogResponse, 200, eventResponse}, {service.LogAll, 400, eventRequest}} {
		r := newRig(t, nil)
		to := newReceiver(t)
		at := replicaServer(t, func(w http.ResponseWriter, q *http.Request) { w.WriteHeader(tt.status) })
		r.d.SetPool(logging(pool("iris", at), service.Logger{URL: to.url, Mode: tt.mode}))
		r.send(http.MethodPost, "/v1/models/iris:predict", `{"instances":[[1]]}`)
		if got := (<-to.events).Get("Ce-Type"); got != tt.want {
			t.Errorf("%s: got %s", tt.mode, got)
		}
		r.gw.payloads.Close(t.Context())
		if len(to.events) > 0 {
			t.Errorf("%s: another event was sent: %v", tt.mode, <-to.events)
		}
	}
}

// TestLoggerSlowsNothing: while a logger's server takes nothing, requests are answered,
// and what is over the bounds is dropped.
func TestLoggerSlowsNothing(t *testing.T) {
	r := newRig(t, nil)
	release := make(chan struct{})
	stuck := replicaServer(t, func(http.ResponseWriter, *http.Request) { <-release })
	defer close(release)
	at := replicaServer(t, func(w http.ResponseWriter, q *http.Request) { _, _ = io.WriteString(w, `{}`) })
	r.d.SetPool(logging(pool("iris", at), service.Logger{URL: "http://" + stuck, Mode: service.LogAll}))
	for range 600 {
		if a := r.send(http.MethodPost, "/v1/models/iris:predict", `{"instances":[[1]]}`); a.code != http.StatusOK {
			t.Fatal(a)
		}
	}
	metrics, err := r.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range metrics {
		if m.GetName() == "roundhouse_gateway_logged_payloads_total" {
			if n := m.GetMetric()[0].GetCounter().GetValue(); n < 100 {
				t.Errorf("%v were dropped of 1,200 events", n)
			}
			return
		}
	}
	t.Error("nothing was dropped")
}
