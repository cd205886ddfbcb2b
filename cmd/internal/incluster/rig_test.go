package incluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
	"roundhouse.dev/roundhouse/internal/edge/kube/records"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

func TestMain(m *testing.M) { kubetest.Main(m) }

// wire stands between a gateway and the API server, and can be cut.
type wire struct {
	net.Listener
	to   string
	mu   sync.Mutex
	open map[net.Conn]bool
	cut  bool
}

func newWire(t *testing.T, to string) *wire {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{Listener: l, to: to, open: map[net.Conn]bool{}}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go w.carry(c)
		}
	}()
	t.Cleanup(func() { w.set(true); _ = l.Close() })
	return w
}

func (w *wire) carry(c net.Conn) {
	up, err := net.Dial("tcp", w.to)
	if err != nil {
		_ = c.Close() // as if nobody were there
		return
	}
	w.mu.Lock()
	if w.cut {
		_, _ = up.Close(), c.Close()
	}
	w.open[c], w.open[up] = true, true
	w.mu.Unlock()
	go func() { _, _ = io.Copy(up, c); _ = up.Close() }()
	_, _ = io.Copy(c, up)
	_ = c.Close()
	w.mu.Lock()
	delete(w.open, c)
	delete(w.open, up)
	w.mu.Unlock()
}

func (w *wire) set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut = cut; cut {
		for c := range w.open {
			_ = c.Close()
		}
	}
}

// rig is a namespace with a gateway before it.
type rig struct {
	t    *testing.T
	api  client.Client
	ns   string
	wire *wire
	dir  string
}

func newRig(t *testing.T) *rig {
	cfg := kubetest.Server(t)
	r := &rig{t: t, api: kubetest.Client(t), dir: t.TempDir()}
	r.ns = kubetest.Namespace(t, r.api, nil)
	r.wire = newWire(t, strings.Trim(strings.TrimPrefix(cfg.Host, "https://"), "/"))
	k := clientcmdapi.NewConfig()
	k.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://" + r.wire.Addr().String(), CertificateAuthorityData: cfg.CAData}
	k.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData}
	k.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	k.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*k, r.path("kubeconfig")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.path("token"), []byte("none"), 0o600); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) path(name string) string { return filepath.Join(r.dir, name) }

// running is a gateway that answers.
type running struct {
	*Gateway
	stop func()
	http *http.Client
}

func (g *running) address() string { return g.Listeners.Inference.Addr().String() }
func (g *running) ready() bool {
	resp, err := http.Get("http://" + g.Listeners.Health.Addr().String() + "/readyz")
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// gateway starts one and waits until it is ready.
func (r *rig) gateway(change func(*Options)) *running {
	r.t.Helper()
	o := Options{Kubeconfig: r.path("kubeconfig"), System: r.ns, ControllerService: "roundhouse-controller", Namespaces: []string{r.ns}, Listen: "127.0.0.1:0", Metrics: "127.0.0.1:0", Health: "127.0.0.1:0",
		URL: "http://{name}.{namespace}.models.test", Pod: "gateway-1", ControllerToken: r.path("token"), Version: "test", Out: io.Discard, Logs: &testLog{t: r.t}, transform: toLoopback}
	o.Front = frontDefaults()
	if change != nil {
		change(&o)
	}
	ctx, cancel := context.WithCancel(r.t.Context())
	g, err := New(ctx, o)
	if err != nil {
		cancel()
		r.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	var once sync.Once
	out := &running{Gateway: g, http: &http.Client{Transport: &http.Transport{}}, stop: func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				r.t.Error(err)
			}
		})
	}}
	r.t.Cleanup(out.stop)
	kubetest.Eventually(r.t, func() string {
		if out.ready() {
			return ""
		}
		return "the gateway is not ready"
	})
	return out
}

// testLog is silent once the test has ended.
type testLog struct{ t *testing.T }

func (l *testLog) Write(b []byte) (int, error) {
	if l.t.Context().Err() == nil {
		l.t.Log(strings.TrimSpace(string(b)))
	}
	return len(b), nil
}

// toLoopback has the test network's addresses mean this machine.
func toLoopback(raw any) (any, error) {
	if es, ok := raw.(*discoveryv1.EndpointSlice); ok {
		for i := range es.Endpoints {
			for j, a := range es.Endpoints[i].Addresses {
				if strings.HasPrefix(a, "192.0.2.") {
					es.Endpoints[i].Addresses[j] = "127.0.0.1"
				}
			}
		}
	}
	return raw, nil
}

// serve writes what the controller would of a service: its manifest, the
// record of its revision, and a Deployment of a count.
func (r *rig) serve(name string, port, count int32, change ...func(*service.Limits)) service.Key {
	r.t.Helper()
	return r.serveAs(service.ProtocolV2, name, port, count, change...)
}

func (r *rig) serveAs(protocol service.Protocol, name string, port, count int32, change ...func(*service.Limits)) service.Key {
	r.t.Helper()
	kubetest.Apply(r.t, r.api, r.ns, fmt.Sprintf("apiVersion: roundhouse.dev/v1alpha1\nkind: ModelService\nmetadata: {name: %s}\nspec: {model: {uri: \"https://models.test/iris.ubj\", format: {name: xgboost}}}\n", name))
	return r.decide(protocol, name, port, count, change...)
}

// decide writes what the controller would of a manifest that is there.
func (r *rig) decide(protocol service.Protocol, name string, port, count int32, change ...func(*service.Limits)) service.Key {
	r.t.Helper()
	return r.record(protocol, name, port, count, nil, change...)
}

// record is decide of a service that loads models of others, if guests is not nil.
func (r *rig) record(protocol service.Protocol, name string, port, count int32, guests []workload.Guest, change ...func(*service.Limits)) service.Key {
	r.t.Helper()
	k := service.Key{Namespace: r.ns, Name: name}
	limits := service.Limits{Max: 5, Target: 10, Metric: service.MetricConcurrency, ScaleToZeroAfter: time.Minute, StartupTimeout: time.Minute}
	for _, f := range change {
		f(&limits)
	}
	record := fleet.Record{Service: k, Revision: workload.Revision{Service: k, Name: name + "-1", Hash: "h1", Protocol: protocol, Components: []workload.Component{{
		Role: service.RoleEngine, Main: "main", Limits: limits,
		Pod: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "roundhouse", Ports: []corev1.ContainerPort{{ContainerPort: port}}}}}}}}}
	if guests != nil {
		record.Revision.Guests, record.Revision.Components[0].Repository = guests, workload.LayoutRoundhouse
	}
	data, err := json.Marshal(record)
	if err != nil {
		r.t.Fatal(err)
	}
	labels := map[string]string{shape.LabelManagedBy: shape.Manager, shape.LabelService: name, shape.LabelRole: "engine"}
	r.create(&appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: "roundhouse-" + name,
		Labels:      map[string]string{shape.LabelManagedBy: shape.Manager, shape.LabelRecord: "true"},
		Annotations: map[string]string{shape.AnnotationService: name, records.AnnotationFormat: strconv.Itoa(records.Format)}},
		Data: runtime.RawExtension{Raw: data}, Revision: 1})
	pod := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: record.Revision.Components[0].Pod}
	r.create(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: shape.Name(k, service.RoleEngine), Labels: labels},
		Spec: appsv1.DeploymentSpec{Replicas: &count, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: pod}})
	return k
}

func (r *rig) create(o client.Object) {
	r.t.Helper()
	if err := r.api.Create(r.t.Context(), o); err != nil {
		r.t.Fatal(err)
	}
}

// replicas is the count of a service's Deployment.
func (r *rig) replicas(k service.Key) int32 {
	r.t.Helper()
	var d appsv1.Deployment
	if err := r.api.Get(r.t.Context(), client.ObjectKey{Namespace: r.ns, Name: shape.Name(k, service.RoleEngine)}, &d); err != nil {
		r.t.Fatal(err)
	}
	return *d.Spec.Replicas
}

// endpoint writes an EndpointSlice with one pod.
func (r *rig) endpoint(k service.Key, pod string, port int32, ready bool) *discoveryv1.EndpointSlice {
	r.t.Helper()
	es := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: pod,
		Labels: map[string]string{discoveryv1.LabelServiceName: shape.Name(k, service.RoleEngine),
			shape.LabelManagedBy: shape.Manager, shape.LabelService: k.Name, shape.LabelRole: "engine"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: ptr(shape.PortHTTP), Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.7"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: r.ns, Name: pod}}}}
	r.create(es)
	return es
}

func ptr[T any](v T) *T { return &v }

// model is a pod's server: it is ready, or not yet.
type model struct {
	*httptest.Server
	starting atomic.Bool
	answered atomic.Int64
	probed   atomic.Int64
	hold     chan struct{} // nil, or what an answer waits for
	metrics  atomic.Pointer[string]
}

func newModel(t *testing.T) *model {
	m := &model{}
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/v2/health/ready" {
			m.probed.Add(1)
			if m.starting.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			return
		}
		if text := m.metrics.Load(); text != nil && req.URL.Path == "/metrics" {
			_, _ = io.WriteString(w, *text)
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		if m.hold != nil {
			<-m.hold
		}
		m.answered.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"model_name":"x","outputs":[]}`)
	}))
	t.Cleanup(m.Close)
	return m
}

func (m *model) port() int32 { return int32(m.Listener.Addr().(*net.TCPAddr).Port) }

const question = `{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[1]}]}`

// ask asks a model by name, or by the host given.
func (g *running) ask(ctx context.Context, name, host string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+g.address()+"/v2/models/"+name+"/infer", bytes.NewReader([]byte(question)))
	if err != nil {
		return 0, "", err
	}
	if host != "" {
		req.Host = host
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := g.http.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}
