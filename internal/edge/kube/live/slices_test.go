package live

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// newView is a view of events that the test makes.
func newView(t *testing.T, change func(*Config)) *View {
	cfg := DefaultConfig()
	cfg.ProbeEvery = 5 * time.Millisecond
	if change != nil {
		change(&cfg)
	}
	v := &View{cfg: cfg, changed: fleet.NewChanges()}
	v.prober = newProber(cfg, v.probed)
	v.mu.slices, v.mu.sets, v.mu.keys, v.mu.decided = map[objectID]*slice{}, map[setID]*set{}, map[setID]service.Key{}, newDecided()
	t.Cleanup(v.Close)
	return v
}

type point struct {
	pod, address       string
	ready, terminating bool
}

func es(k service.Key, name string, role service.Role, family discoveryv1.AddressType, port int32, points ...point) *discoveryv1.EndpointSlice {
	http := shape.PortHTTP
	out := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: name,
		Labels: map[string]string{discoveryv1.LabelServiceName: shape.Name(k, role), shape.LabelService: shape.LabelValue(k.WorkloadName()), shape.LabelRole: string(role)}}, AddressType: family,
		Ports: []discoveryv1.EndpointPort{{Name: &http, Port: &port}}}
	for _, p := range points {
		out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{Addresses: []string{p.address}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: p.pod},
			Conditions: discoveryv1.EndpointConditions{Ready: &p.ready, Terminating: &p.terminating}})
	}
	return out
}

// says writes a service's replicas in a line.
func says(t *testing.T, v *View, k service.Key) string {
	t.Helper()
	rs, err := v.Observe(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, r := range rs {
		out = append(out, fmt.Sprintf("%s %s %s %s", r.ID, r.Role, r.Phase, r.HTTP))
	}
	return strings.Join(out, "; ")
}

// TestSlices follows a service's slices as the endpoint controller writes them.
func TestSlices(t *testing.T) {
	v := newView(t, nil)
	k := service.Key{Namespace: "ml", Name: "iris"}
	long := service.Key{Namespace: "ml", Name: strings.Repeat("long-", 20) + "name"}
	const v4, v6 = discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6
	for _, c := range []struct {
		when  string
		of    service.Key
		slice *discoveryv1.EndpointSlice
		gone  bool
		want  string
	}{
		{"nothing", k, es(service.Key{Namespace: "other", Name: "iris"}, "s", "engine", v4, 8080, point{"p1", "10.9.0.1", true, false}), false, ""},
		{"a pod starts", k, es(k, "s", "engine", v4, 8080, point{"p1", "10.0.0.1", false, false}), false, "ml/p1 engine Starting 10.0.0.1:8080"},
		{"it is ready", k, es(k, "s", "engine", v4, 8080, point{"p1", "10.0.0.1", true, false}), false, "ml/p1 engine Ready 10.0.0.1:8080"},
		{"by another family, too", k, es(k, "s6", "engine", v6, 8080, point{"p1", "fd00::1", true, false}), false, "ml/p1 engine Ready 10.0.0.1:8080"},
		{"another role", k, es(k, "r", "router", v4, 9000, point{"q1", "10.0.1.1", true, false}), false, "ml/p1 engine Ready 10.0.0.1:8080; ml/q1 router Ready 10.0.1.1:9000"},
		{"it ends", k, es(k, "s", "engine", v4, 8080, point{"p1", "10.0.0.1", false, true}), false, "ml/p1 engine Draining 10.0.0.1:8080; ml/q1 router Ready 10.0.1.1:9000"},
		{"one family is gone", k, es(k, "s6", "engine", v6, 8080), true, "ml/p1 engine Draining 10.0.0.1:8080; ml/q1 router Ready 10.0.1.1:9000"},
		{"it is gone", k, es(k, "s", "engine", v4, 8080), false, "ml/q1 router Ready 10.0.1.1:9000"},
		{"moving between slices", k, es(k, "s2", "router", v4, 9000, point{"q1", "10.0.1.1", false, false}), false, "ml/q1 router Ready 10.0.1.1:9000"},
		{"all is gone", k, es(k, "r", "router", v4, 9000), true, "ml/q1 router Starting 10.0.1.1:9000"},
		{"a name too long for a label", long, es(long, "l", "engine", v4, 8080, point{"p", "10.0.2.1", true, false}), false, "ml/p engine Ready 10.0.2.1:8080"},
		{"a canary", k.Canary(), es(k.Canary(), "c", "engine", v4, 8080, point{"c1", "10.0.3.1", true, false}), false, "ml/c1 engine Ready 10.0.3.1:8080"},
		{"whose service is apart", k, es(k, "none", "engine", v4, 8080), false, "ml/q1 router Starting 10.0.1.1:9000"},
	} {
		v.sawSlice(c.slice, !c.gone)
		got := says(t, v, c.of)
		if c.when == "moving between slices" && got == "ml/q1 router Starting 10.0.1.1:9000" {
			t.Errorf("%s: a ready pod is taken for one that starts", c.when)
		} else if got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.when, got, c.want)
		}
	}
}

// TestExposed: a Service that somebody made of ours has our labels, since
// kubectl expose copies them, and is none of ours: neither its ports nor what
// it says of pods count.
func TestExposed(t *testing.T) {
	k := service.Key{Namespace: "ml", Name: "iris"}
	ours := es(k, "s", "engine", discoveryv1.AddressTypeIPv4, 8080, point{"p1", "10.0.0.1", true, false})
	public := es(k, "public", "engine", discoveryv1.AddressTypeIPv4, 80, point{"p1", "10.0.0.1", true, false}, point{"other", "10.9.0.9", true, false})
	public.Labels[discoveryv1.LabelServiceName] = "iris-public"
	*public.Ports[0].Name = ""
	for range 20 { // slices have no order
		v := newView(t, nil)
		v.sawSlice(public, true)
		if got := says(t, v, k); got != "" {
			t.Fatalf("before ours there is %s", got)
		}
		v.sawSlice(ours, true)
		v.sawSlice(public, true)
		if got := says(t, v, k); got != "ml/p1 engine Ready 10.0.0.1:8080" {
			t.Fatalf("got %s", got)
		}
	}
}

// decide has the view know a revision of one engine.
func (v *View) decide(k service.Key, port int32) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.records[k] = &fleet.Record{Service: k, Revision: workload.Revision{Service: k, Hash: "h", Protocol: service.ProtocolV2, Components: []workload.Component{{
		Role: service.RoleEngine, Main: "main", Pod: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Ports: []corev1.ContainerPort{{ContainerPort: port}}}}}}}}}
}

// changed waits until the view tells of a service.
func changed(t *testing.T, v *View, k service.Key, what string, ok func() bool) {
	t.Helper()
	limit := time.After(time.Minute)
	for !ok() {
		select {
		case <-v.Changed():
		case <-limit:
			t.Fatalf("%s: never", what)
		}
	}
}

// TestProbes: a starting pod that answers counts as ready until its slice says
// something itself, and not for ever.
func TestProbes(t *testing.T) {
	var ready atomic.Bool
	var asked atomic.Int64
	third := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 3 {
			close(third)
		}
		if !ready.Load() || r.URL.Path != "/v2/health/ready" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, "{}")
	}))
	defer srv.Close()
	port := int32(srv.Listener.Addr().(*net.TCPAddr).Port)
	v := newView(t, func(c *Config) { c.Trust = 2 * time.Second })
	k := service.Key{Namespace: "ml", Name: "iris"}
	phase := func(want replica.Phase) func() bool {
		return func() bool { return strings.Contains(says(t, v, k), string(want)) }
	}
	slice := func(ready bool) *discoveryv1.EndpointSlice {
		return es(k, "s", "engine", discoveryv1.AddressTypeIPv4, port, point{"p1", "127.0.0.1", ready, false})
	}
	v.sawSlice(slice(false), true)
	if !phase(replica.Starting)() || asked.Load() > 0 {
		t.Errorf("%s, asked %d times before it is known how", says(t, v, k), asked.Load())
	}
	v.decide(k, port)
	v.sawSlice(slice(false), true)
	select {
	case <-third:
	case <-time.After(time.Minute):
		t.Fatal("not asked")
	}
	ready.Store(true)
	changed(t, v, k, "answered", phase(replica.Ready))
	n := asked.Load()
	changed(t, v, k, "the slice does not agree for long", phase(replica.Starting))
	if asked.Load() != n {
		t.Error("asked again after it answered")
	}
	v.sawSlice(slice(true), true)
	changed(t, v, k, "the slice says so", phase(replica.Ready))
	v.sawSlice(slice(false), true)
	changed(t, v, k, "the slice says no", phase(replica.Starting))
	if asked.Load() != n {
		t.Error("asked although the slice has said what it is")
	}
	// A pod that goes is asked no more, and no more are asked than may be.
	ready.Store(false)
	v.sawSlice(es(k, "s", "engine", discoveryv1.AddressTypeIPv4, port), true)
	v.cfg.MaxProbes, v.prober.cfg.MaxProbes = 2, 2
	v.sawSlice(es(k, "s", "engine", discoveryv1.AddressTypeIPv4, port, point{"a", "127.0.0.1", false, false}, point{"b", "127.0.0.1", false, false}, point{"c", "127.0.0.1", false, false}), true)
	running := func() int {
		v.prober.mu.Lock()
		defer v.prober.mu.Unlock()
		return len(v.prober.mu.running)
	}
	if running() != 2 {
		t.Errorf("%d are asked", running())
	}
	v.sawSlice(es(k, "s", "engine", discoveryv1.AddressTypeIPv4, port), false)
	if running() != 0 || says(t, v, k) != "" {
		t.Errorf("%d are asked, %s", running(), says(t, v, k))
	}
}

// TestCalledByName: a role that a transformer calls is ready once its slice has
// said so for as long as its name may take to be known; a probe of ours is
// none of the transformer's.
func TestCalledByName(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	host, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "http://"), ":")
	var number int32
	if _, err := fmt.Sscan(port, &number); err != nil {
		t.Fatal(err)
	}
	const v4 = discoveryv1.AddressTypeIPv4
	for _, c := range []struct {
		name  string
		roles []service.Role
		soon  bool // the probe counts
	}{{"alone", []service.Role{service.RoleEngine}, true}, {"behind a transformer", []service.Role{service.RoleEngine, service.RoleTransformer}, false},
		{"behind a router", []service.Role{service.RoleEngine, service.RoleRouter}, false}} {
		t.Run(c.name, func(t *testing.T) {
			settle := 2 * time.Second
			v := newView(t, func(cfg *Config) { cfg.Settle = settle })
			k := service.Key{Namespace: "ml", Name: "iris"}
			rev := workload.Revision{Service: k, Hash: "h"}
			for _, role := range c.roles {
				rev.Components = append(rev.Components, workload.Component{Role: role, Main: "m", Pod: corev1.PodSpec{Containers: []corev1.Container{{Name: "m",
					Ports: []corev1.ContainerPort{{ContainerPort: number}}}}}})
			}
			v.mu.records[k] = &fleet.Record{Service: k, Revision: rev}
			line := func(phase string) string { return fmt.Sprintf("ml/p1 engine %s %s:%d", phase, host, number) }
			says(t, v, k) // it is asked for
			v.sawSlice(es(k, "s", "engine", v4, number, point{"p1", host, false, false}), true)
			if c.soon {
				awaitSays(t, v, k, line("Ready"))
			}
			began := time.Now()
			v.sawSlice(es(k, "s", "engine", v4, number, point{"p1", host, true, false}), true)
			if got := says(t, v, k); !c.soon && got != line("Starting") {
				t.Errorf("as its slice is: %s", got)
			}
			awaitSays(t, v, k, line("Ready"))
			if took := time.Since(began); !c.soon && took < settle {
				t.Errorf("ready after %s", took)
			}
		})
	}
}

// awaitSays waits until a service's replicas are as wanted.
func awaitSays(t *testing.T, v *View, k service.Key, want string) {
	t.Helper()
	late := time.After(time.Minute)
	for {
		got := says(t, v, k)
		if got == want {
			return
		}
		select {
		case <-v.Changed():
		case <-late:
			t.Fatalf("%s, want %s", got, want)
		}
	}
}
