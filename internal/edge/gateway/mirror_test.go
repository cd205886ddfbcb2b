package gateway

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// handled routes "m" to the service m, as h says.
func handled(r *rig, h routing.Handling) {
	key := service.Key{Namespace: "default", Name: "m"}
	r.d.SetObjects([]routing.Object{&routing.Route{Meta: service.Meta{Key: key}, Models: []string{"m"},
		Targets: []routing.Target{{Ref: routing.Service(key), Weight: 1}}, Handling: h}})
}

// copyOf is what a mirror was sent.
type copyOf struct{ path, body, prefill string }

func TestMirror(t *testing.T) {
	r := newRig(t, nil)
	copies := make(chan copyOf, 10)
	p := pool("m", replicaServer(t, writes(`{"from":"m"}`)))
	shadow := pool("shadow", replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		copies <- copyOf{req.URL.RequestURI(), string(b), req.Header.Get(headerPrefill)}
		w.WriteHeader(http.StatusInternalServerError) // which nobody sees
	}))
	shadow.ServedName = "org/next"
	r.d.SetPool(p)
	r.d.SetPool(shadow)
	to := routing.Service(service.Key{Namespace: "default", Name: "shadow"})
	handled(r, routing.Handling{Mirrors: []routing.Mirror{{Ref: to, PerMillion: routing.Whole}, {Ref: to}, {Ref: routing.Service(service.Key{Namespace: "default", Name: "gone"}), PerMillion: routing.Whole}}})
	req, err := http.NewRequest("POST", r.url+"/v1/completions?a=1", strings.NewReader(`{"prompt":"hi","model":"m","n":12345678901234567890}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(headerPrefill, "10.6.6.6:80")
	resp, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close() // what matters was read
	if resp.StatusCode != 200 || string(body) != `{"from":"m"}` {
		t.Errorf("the client gets %d %s", resp.StatusCode, body)
	}
	got := <-copies
	if want := (copyOf{"/v1/completions?a=1", `{"prompt":"hi","model":"org/next","n":12345678901234567890}`, ""}); got != want {
		t.Errorf("the mirror got %+v, want %+v", got, want)
	}
	// The copies settle, and nothing of them stays.
	for r.gw.mirrored.Load() > 0 || r.gw.buffered.Used() > 0 {
		time.Sleep(time.Millisecond)
	}
	e := r.d.Endpoints(to)
	if len(e) != 1 || e[0].Record.Failures() != 1 || e[0].Record.FirstBytes != 0 {
		t.Errorf("the mirror's failure counts as %+v", e)
	}
	select {
	case again := <-copies:
		t.Errorf("a mirror of no requests got %+v", again)
	default:
	}
}

func TestMirrorThatIsAsleep(t *testing.T) {
	r := newRig(t, nil)
	r.d.SetPool(pool("m", replicaServer(t, writes(`{}`))))
	asleep := pool("shadow")
	asleep.Limits.Max = 1
	r.d.SetPool(asleep)
	handled(r, routing.Handling{Mirrors: []routing.Mirror{{Ref: routing.Service(service.Key{Namespace: "default", Name: "shadow"}), PerMillion: routing.Whole}}})
	if a := r.send("POST", "/v1/completions", `{"model":"m","prompt":"hi"}`); a.code != 200 {
		t.Fatalf("%d %s", a.code, a.body)
	}
	for r.gw.mirrored.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
	if s, _ := r.d.Status(routing.Service(service.Key{Namespace: "default", Name: "shadow"})); s.Demand.Queued != 0 || s.Admission.Arrived != 0 {
		t.Errorf("a copy waits for a replica: %+v", s.Admission)
	}
}

func TestTimeoutsOfARoute(t *testing.T) {
	r := newRig(t, nil)
	end := make(chan struct{})
	slow := func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)                      // or the end of the connection is not noticed
		if strings.HasSuffix(req.URL.Path, "/chat/completions") { // begins, and does not end
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {}\n\n")
			_ = http.NewResponseController(w).Flush()
		}
		select {
		case <-end:
		case <-req.Context().Done():
		}
	}
	p := pool("m", replicaServer(t, slow))
	t.Cleanup(func() { close(end) }) // before the server waits for its requests
	r.d.SetPool(p)
	for within, h := range map[string]routing.Handling{
		"within the route's timeout of 50ms":                 {Timeout: 50 * time.Millisecond},
		"within the 50ms that its route allows one endpoint": {TryTimeout: 50 * time.Millisecond, Timeout: time.Hour},
	} {
		handled(r, h)
		begun := time.Now()
		if a := r.send("POST", "/v1/completions", `{"model":"m","prompt":"hi"}`); a.code != http.StatusGatewayTimeout || time.Since(begun) < 50*time.Millisecond || !strings.Contains(a.body, within) {
			t.Errorf("%+v: %d %s", h, a.code, a.body)
		}
	}
	handled(r, routing.Handling{Timeout: 100 * time.Millisecond})
	if a := r.send("POST", "/v1/chat/completions", `{"model":"m","messages":[],"stream":true}`); a.code != 200 ||
		!strings.Contains(a.body, "event: error\ndata: ") || !strings.Contains(a.body, "the answer did not end within the route's timeout of 100ms") || !strings.Contains(a.body, `"code":"timeout"`) || strings.Contains(a.body, "replica") {
		t.Errorf("an answer that goes on longer than the route allows: %d %s", a.code, a.body)
	}
	s, _ := r.d.Status(routing.Service(p.Key))
	if e := r.d.Endpoints(routing.Service(p.Key)); len(e) != 1 || !e[0].Open || s.Demand.Running != 0 {
		t.Errorf("the route's timeout counts against the replica: %+v", e)
	}
}
