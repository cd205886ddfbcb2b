package incluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/kube/demand"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// controller is the side of a controller pod that hears gateways.
func (r *rig) controller(name string, accounts ...string) (*demand.Server, string) {
	r.t.Helper()
	s, address, _ := r.stoppable(name, accounts...)
	return s, address
}

// stoppable is a controller, and what ends it.
func (r *rig) stoppable(name string, accounts ...string) (*demand.Server, string, func()) {
	r.t.Helper()
	cfg := demand.DefaultConfig()
	cfg.Reviewer, cfg.Accounts = demand.NewReviewer(r.api, nil), accounts
	s, err := demand.NewServer(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	certs := demand.NewCertificates(r.api, client.ObjectKey{Namespace: r.ns, Name: "roundhouse-controller"}, slog.New(slog.DiscardHandler))
	if err := certs.Ensure(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l, certs.Get) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
	r.t.Cleanup(stop)
	port := int32(l.Addr().(*net.TCPAddr).Port)
	r.create(&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "roundhouse-controller"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: ptr(portReports), Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.9"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr(name == "leader")}}}})
	return s, l.Addr().String(), stop
}

// account makes a ServiceAccount and a token of it.
func (r *rig) account(name string, audiences ...string) (user, token string) {
	r.t.Helper()
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: name}}
	if err := r.api.Create(r.t.Context(), sa); client.IgnoreAlreadyExists(err) != nil {
		r.t.Fatal(err)
	}
	req := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}
	if err := r.api.SubResource("token").Create(r.t.Context(), sa, req); err != nil {
		r.t.Fatal(err)
	}
	return "system:serviceaccount:" + r.ns + ":" + name, req.Status.Token
}

// TestControllersHearOfEngines: of a service that scales by its engines' queue the real
// gateway reads every pod, though it sends none a request, and each controller hears;
// of another service nothing is told.
func TestControllersHearOfEngines(t *testing.T) {
	r := newRig(t)
	m := newModel(t)
	say := func(waiting int) {
		text := fmt.Sprintf("# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\"m\"} 8.0\n# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{model_name=\"m\"} %d.0\n# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{model_name=\"m\"} 0.5\n", waiting)
		m.metrics.Store(&text)
	}
	say(12)
	chat := r.serve("chat", m.port(), 1, func(l *service.Limits) { l.Metric, l.Target = service.MetricQueue, 2 })
	iris := r.serve("iris", m.port(), 1)
	r.endpoint(chat, "chat-engine-1", m.port(), true)
	r.endpoint(iris, "iris-engine-1", m.port(), true)
	user, token := r.account("gateway", demand.Audience)
	leader, _ := r.controller("leader", user)
	other, _ := r.controller("other", user)
	if err := os.WriteFile(r.path("token"), []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	r.gateway(nil)
	for _, waiting := range []int{12, 3} {
		say(waiting)
		for _, s := range []*demand.Server{leader, other} {
			kubetest.Eventually(t, func() string {
				if l := s.Engine(chat, "chat-engine-1"); l == nil || l.Waiting != waiting || l.Running != 8 || l.KV != 0.5 || !l.Tells.Queue || !l.Tells.KV {
					return fmt.Sprintf("%d waiting; told %+v", waiting, l)
				}
				return ""
			})
		}
	}
	if l := leader.Engine(iris, "iris-engine-1"); l != nil {
		t.Errorf("of a service that scales by requests: %+v", l)
	}
	if n := m.answered.Load(); n != 0 {
		t.Errorf("%d requests", n)
	}
}

// TestControllersHear: the real gateway reports to every controller pod, with
// its account's token, over TLS of the controller's own authority; tokens that
// are forged, of another audience or account are refused.
func TestControllersHear(t *testing.T) {
	r := newRig(t)
	m := newModel(t)
	m.hold = make(chan struct{})
	k := r.serve("iris", m.port(), 1)
	r.endpoint(k, "iris-engine-1", m.port(), true)
	user, token := r.account("gateway", demand.Audience)
	leader, address := r.controller("leader", user)
	other, _ := r.controller("other", user)
	if err := os.WriteFile(r.path("token"), []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*demand.Server{leader, other} {
		s.SetLive([]string{"gateway-1"})
		if d := s.Demand(k); !d.Unknown {
			t.Errorf("before the gateway: %+v", d)
		}
	}
	g := r.gateway(nil)
	for _, s := range []*demand.Server{leader, other} {
		if d := s.Demand(k); d.Unknown {
			t.Error("the gateway is ready and not known")
		}
	}
	answered := make(chan int, 1)
	go func() {
		status, _, _ := g.ask(t.Context(), "iris", "")
		answered <- status
	}()
	for _, s := range []*demand.Server{leader, other} {
		kubetest.Eventually(t, func() string {
			if d := s.Demand(k); d.Running != 1 || s.InFlight("iris-engine-1") != 1 {
				return fmt.Sprintf("demand %+v, %d in flight on the pod", d, s.InFlight("iris-engine-1"))
			}
			return ""
		})
	}
	close(m.hold)
	if status := <-answered; status != http.StatusOK {
		t.Errorf("status %d", status)
	}
	kubetest.Eventually(t, func() string {
		if d := leader.Demand(k); d.Running != 0 || d.Done != 1 || d.LastDone.IsZero() || d.LoadSeconds <= 0 {
			return fmt.Sprintf("demand %+v", d)
		}
		return ""
	})
	// A service that is gone is forgotten.
	u := kubetest.Parse(t, "apiVersion: roundhouse.dev/v1alpha1\nkind: ModelService\nmetadata: {name: iris, namespace: "+r.ns+"}\n")[0]
	if err := r.api.Delete(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, func() string {
		if d := leader.Demand(k); d.Arrived != 0 {
			return fmt.Sprintf("demand %+v", d)
		}
		return ""
	})

	_, wrongAudience := r.account("gateway")
	_, wrongAccount := r.account("stranger", demand.Audience)
	forged := []byte(token)
	forged[len(forged)-20] ^= 1
	pool, err := demand.NewAuthorities(r.api, client.ObjectKey{Namespace: r.ns, Name: "roundhouse-controller"}).Pool(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: demand.ServerName}}}
	defer h.CloseIdleConnections()
	for name, c := range map[string]struct {
		token  string
		status int
	}{"forged": {string(forged), 401}, "of another audience": {wrongAudience, 401}, "of another account": {wrongAccount, 403}, "none": {"", 401}, "right": {token, 200}} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+address+demand.Path, bytes.NewReader([]byte(`{"pod":"x","instance":1,"number":1}`)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+c.token)
		resp, err := h.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if _ = resp.Body.Close(); resp.StatusCode != c.status {
			t.Errorf("a token that is %s: %d, want %d", name, resp.StatusCode, c.status)
		}
	}
}

// TestControllersShareACertificate: two controller pods that start together
// end up with one Secret, and each serves what gateways trust.
func TestControllersShareACertificate(t *testing.T) {
	r := newRig(t)
	name := client.ObjectKey{Namespace: r.ns, Name: "roundhouse-controller"}
	all := make([]*demand.Certificates, 4)
	errs := make(chan error, len(all))
	for i := range all {
		all[i] = demand.NewCertificates(r.api, name, slog.New(slog.DiscardHandler))
		go func() { errs <- all[i].Ensure(t.Context()) }()
	}
	for range all {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	first, err := all[0].Get(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all[1:] {
		if cert, err := c.Get(nil); err != nil || !bytes.Equal(cert.Certificate[0], first.Certificate[0]) {
			t.Errorf("another certificate, %v", err)
		}
	}
	var s corev1.Secret
	if err := r.api.Get(t.Context(), name, &s); err != nil {
		t.Fatal(err)
	}
	before := s.ResourceVersion
	if err := all[1].Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.api.Get(t.Context(), name, &s); err != nil || s.ResourceVersion != before {
		t.Errorf("written again although nothing is due: %v", err)
	}
}
