package pools

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// TestTooMany: a namespace whose pools name more Services than may be watched
// takes no place of another's, whoever came first; what is not watched is said
// once, and watched when there is room.
func TestTooMany(t *testing.T) {
	told := map[service.Key][]string{}
	var mu sync.Mutex
	cfg := DefaultServicesConfig()
	cfg.MaxServices = 4
	cfg.REST, cfg.Mapper = &rest.Config{Host: "http://127.0.0.1:1"}, meta.NewDefaultRESTMapper(nil)
	cfg.Changed = func(pool service.Key, s ServiceState) {
		mu.Lock()
		defer mu.Unlock()
		told[pool] = append(told[pool], s.Problem)
	}
	w, err := NewServices(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	pool := func(namespace string, n int) *routing.Pool {
		p := &routing.Pool{Extension: routing.Extension{Name: fmt.Sprintf("epp-%d", n)}}
		p.Key = service.Key{Namespace: namespace, Name: fmt.Sprintf("pool-%d", n)}
		return p
	}
	watched := func() string {
		w.mu.Lock()
		defer w.mu.Unlock()
		n := map[string]int{}
		for k := range w.services {
			n[k.Namespace]++
		}
		return fmt.Sprint(n)
	}
	var all []*routing.Pool
	for n := range 9 {
		all = append(all, pool("greedy", n))
	}
	w.Set(all)
	if got := watched(); got != "map[greedy:4]" {
		t.Errorf("alone: %s", got)
	}
	for range 3 {
		w.Set(append(all[:9:9], pool("zeal", 0)))
	}
	if got := watched(); got != "map[greedy:3 zeal:1]" {
		t.Errorf("beside another: %s", got)
	}
	mu.Lock()
	said := 0
	for key, problems := range told {
		if key.Namespace != "greedy" || len(problems) != 1 || !strings.Contains(problems[0], "more than 4 Services") {
			t.Errorf("%v is told %q", key, problems)
		}
		said++
	}
	mu.Unlock()
	if said != 6 {
		t.Errorf("%d pools are told that they have no watch", said)
	}
	w.Set(append(all[7:9:9], pool("zeal", 0)))
	if got := watched(); got != "map[greedy:2 zeal:1]" {
		t.Errorf("with room: %s", got)
	}
}

func ptr[T any](v T) *T { return &v }

// slice is an EndpointSlice of one named port; each endpoint is its address, with
// "-" before one that is not ready and "+" before one that says that it is.
func slice(name, port string, number int32, endpoints ...string) *discoveryv1.EndpointSlice {
	es := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Ports: []discoveryv1.EndpointPort{{Name: &port, Port: &number}, {Name: ptr("other"), Port: ptr[int32](1)}}}
	for _, e := range endpoints {
		one := discoveryv1.Endpoint{Addresses: []string{strings.TrimLeft(e, "-+")}}
		if e[0] == '-' || e[0] == '+' {
			one.Conditions.Ready = ptr(e[0] == '+')
		}
		es.Endpoints = append(es.Endpoints, one)
	}
	return es
}

// TestState: what a Service and its slices say of a picker.
func TestState(t *testing.T) {
	svc := func(change func(*corev1.Service)) *corev1.Service {
		s := &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
			{Name: "dns", Port: 9002, Protocol: corev1.ProtocolUDP}, {Name: "grpc", Port: 9002}, {Name: "metrics", Port: 9090, Protocol: corev1.ProtocolTCP}}}}
		if change != nil {
			change(s)
		}
		return s
	}
	pods := []*discoveryv1.EndpointSlice{slice("b", "grpc", 9000, "10.0.0.3", "-10.0.0.4"), slice("a", "grpc", 9001, "+10.0.0.2", "10.0.0.1"), slice("c", "grpc", 9001, "+10.0.0.2"), slice("v6", "grpc", 9, "fd00::1"), slice("names", "grpc", 9000, "metadata.internal.example", "localhost")}
	const all = "10.0.0.1:9001 10.0.0.2:9001 10.0.0.3:9000 [fd00::1]:9"
	for name, c := range map[string]struct {
		service *corev1.Service
		port    int32
		want    string
	}{
		"missing":      {nil, 9002, "problem: there is no Service epp in namespace prod"},
		"there":        {svc(nil), 9002, all},
		"without port": {svc(nil), 0, all},
		"another port": {svc(nil), 9090, ""},
		"no such port": {svc(nil), 9003, "problem: Service epp has no port 9003"},
		"UDP":          {svc(func(s *corev1.Service) { s.Spec.Ports = s.Spec.Ports[:1] }), 9002, "problem: Service epp has no port 9002"},
		"plain":        {svc(func(s *corev1.Service) { s.Spec.Ports[1].AppProtocol = ptr("kubernetes.io/h2c") }), 9002, "plain " + all},
		"http2":        {svc(func(s *corev1.Service) { s.Spec.Ports[1].AppProtocol = ptr("http2") }), 9002, all},
		"external name": {svc(func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "evil.test"
		}), 9002, "problem: Service epp is an ExternalName: requests go to a Service that has pods"},
		"own":     {svc(func(s *corev1.Service) { s.Labels = map[string]string{shape.LabelPicker: "true"} }), 9002, "own"},
		"not own": {svc(func(s *corev1.Service) { s.Labels = map[string]string{shape.LabelPicker: "false"} }), 9002, all},
	} {
		t.Run(name, func(t *testing.T) {
			w := &named{key: service.Key{Namespace: "prod", Name: "epp"}, object: c.service, slices: map[string]*discoveryv1.EndpointSlice{}}
			for _, es := range pods {
				w.slices[es.Name] = es
			}
			s := w.state(routing.Extension{Name: "epp", Port: c.port})
			got := strings.Join(s.Addresses, " ")
			switch {
			case s.Own:
				got = "own" + got
			case s.Problem != "":
				got = "problem: " + s.Problem + got
			case s.Plain:
				got = "plain " + got
			}
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			port := c.port
			if port == 0 {
				port = 9002
			}
			if s.Name != fmt.Sprintf("prod/epp:%d", port) || s.Authority != fmt.Sprintf("epp.prod.svc:%d", port) {
				t.Errorf("named %s, asked as %s", s.Name, s.Authority)
			}
		})
	}
}
