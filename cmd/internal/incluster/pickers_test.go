package incluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// scripted is an endpoint picker, in Envoy's own words, that sends everything
// where it is told, or refuses it. It buffers nothing and changes nothing.
type scripted struct {
	extprocv3.UnimplementedExternalProcessorServer
	to     atomic.Pointer[string] // "" refuses
	asked  atomic.Int64
	served atomic.Pointer[string]
}

func (p *scripted) Process(s extprocv3.ExternalProcessor_ProcessServer) error {
	p.asked.Add(1)
	for {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		answer := &extprocv3.ProcessingResponse{}
		to := *p.to.Load()
		switch {
		case m.GetRequestHeaders() != nil && to == "":
			answer.Response = &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extprocv3.ImmediateResponse{
				Status: &typev3.HttpStatus{Code: typev3.StatusCode_TooManyRequests}, Body: []byte("the picker is full")}}
		case m.GetRequestHeaders() != nil:
			answer.Response = &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: &extprocv3.CommonResponse{
				HeaderMutation: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "x-gateway-destination-endpoint", RawValue: []byte(to)}}}}}}}
		case m.GetRequestBody() != nil:
			answer.Response = &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{
				BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{StreamedResponse: &extprocv3.StreamedBodyResponse{
					Body: m.GetRequestBody().Body, EndOfStream: m.GetRequestBody().EndOfStream}}}}}}
		case m.GetResponseHeaders() != nil:
			by := m.GetMetadataContext().GetFilterMetadata()["envoy.lb"].GetFields()["x-gateway-destination-endpoint-served"].GetStringValue()
			p.served.Store(&by)
			answer.Response = &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{Response: &extprocv3.CommonResponse{
				HeaderMutation: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "x-picked", RawValue: []byte(by)}}}}}}}
		}
		if err := s.Send(answer); err != nil {
			return err
		}
	}
}

// service writes a Service and where its only pod is.
func (r *rig) service(name, labels string, port int) *discoveryv1.EndpointSlice {
	r.t.Helper()
	kubetest.Apply(r.t, r.api, r.ns, fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, labels: {%s}}\nspec: {ports: [{name: grpc, port: 9002, targetPort: 9000, appProtocol: kubernetes.io/h2c}]}\n", name, labels))
	return r.slice(name, port)
}

// slice writes where the only pod of a Service is.
func (r *rig) slice(name string, port int) *discoveryv1.EndpointSlice {
	r.t.Helper()
	n := int32(port)
	es := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: ptr("grpc"), Port: &n}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.7"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr(true)}}}}
	r.create(es)
	return es
}

// TestAsksEndpointPicker: requests of a pool go where the picker says that it
// names, as long as there is one; then its failure mode decides.
func TestAsksEndpointPicker(t *testing.T) {
	r := newRig(t)
	kubetest.Published(t, r.api, kubetest.InferenceExtension)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p, s := &scripted{}, grpc.NewServer()
	extprocv3.RegisterExternalProcessorServer(s, p)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)

	one, two := newModel(t), newModel(t)
	at := func(m *model) string { return "127.0.0.1:" + strconv.Itoa(int(m.port())) }
	apply := func(mode, picker string) {
		t.Helper()
		kubetest.Apply(t, r.api, r.ns, fmt.Sprintf(`apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: pool}
spec: {selector: {matchLabels: {app: vllm}}, targetPorts: [{number: %d}, {number: %d}], endpointPickerRef: {name: %s, failureMode: %s, port: {number: 9002}}}
`, one.port(), two.port(), picker, mode))
	}
	apply("FailClose", "epp")
	r.pod("vllm-1", map[string]string{"app": "vllm"}, corev1.ConditionTrue)
	slice := r.service("epp", "", l.Addr().(*net.TCPAddr).Port)
	r.service("ours", shape.LabelPicker+`: "true"`, 1)
	p.to.Store(ptr(at(two)))
	g := r.gateway(func(o *Options) { o.Adopt, o.transform = []string{"gateway"}, podsToo })
	ask := func(path string) (*http.Response, string) {
		t.Helper()
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+g.address()+path, strings.NewReader(`{"model":"llama","prompt":"x"}`))
		req.Host = "pool." + r.ns + ".models.test"
		resp, err := g.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp, string(body)
	}
	for range 20 {
		if resp, body := ask("/v1/completions"); resp.StatusCode != http.StatusOK || resp.Header.Get("X-Picked") != at(two) {
			t.Fatalf("%d %s %v", resp.StatusCode, body, resp.Header)
		}
	}
	if p.asked.Load() != 20 || *p.served.Load() != at(two) {
		t.Errorf("asked %d times, told that %s answered", p.asked.Load(), *p.served.Load())
	}
	p.to.Store(ptr(""))
	if resp, body := ask("/v1/completions"); resp.StatusCode != http.StatusTooManyRequests || body != "the picker is full" {
		t.Errorf("a refusal: %d %s", resp.StatusCode, body)
	}
	p.to.Store(ptr("10.0.0.1:80"))
	if resp, body := ask("/v1/completions"); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, "10.0.0.1:80") {
		t.Errorf("an address of nobody's: %d %s", resp.StatusCode, body)
	}
	eventually := func(want int, text string) {
		t.Helper()
		kubetest.Eventually(t, func() string {
			resp, body := ask("/v1/completions")
			if resp.StatusCode != want || !strings.Contains(body, text) {
				return fmt.Sprint(resp.StatusCode, " ", body)
			}
			return ""
		})
	}
	apply("FailOpen", "epp")
	eventually(200, "")
	// Its Service has no pod any more.
	p.to.Store(ptr(at(one)))
	if err := r.api.Delete(t.Context(), slice); err != nil {
		t.Fatal(err)
	}
	apply("FailClose", "epp")
	eventually(503, "no pod that is ready; its failureMode is FailClose")
	apply("FailClose", "nobody")
	eventually(503, "there is no Service nobody")
	before := p.asked.Load()
	apply("FailClose", "ours")
	eventually(200, "")
	if n := p.asked.Load(); n != before {
		t.Errorf("asked %d times more", n-before)
	}
	// It is there again, and asked.
	slice.ResourceVersion, slice.UID = "", ""
	r.create(slice)
	p.to.Store(ptr(at(one)))
	apply("FailClose", "epp")
	kubetest.Eventually(t, func() string {
		if resp, body := ask("/v1/completions"); resp.StatusCode != http.StatusOK || resp.Header.Get("X-Picked") != at(one) {
			return fmt.Sprint(resp.StatusCode, " ", body)
		}
		return ""
	})
	if err := r.api.Delete(context.Background(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: "epp"}}); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	eventually(503, "there is no Service epp")
}

// TestAsksOurPicker asks Roundhouse's own endpoint picker as it asks any other,
// over TLS: where its Service does not say that it is ours, as when it is
// another installation's.
func TestAsksOurPicker(t *testing.T) {
	r := newRig(t)
	kubetest.Published(t, r.api, kubetest.InferenceExtension)
	one, two := newModel(t), newModel(t)
	kubetest.Apply(t, r.api, r.ns, fmt.Sprintf(pickerPool, "llama", one.port(), two.port(), "theirs"))
	r.pod("llama-1", map[string]string{"app": "llama"}, corev1.ConditionTrue)
	main, _, stop := r.picker(func(o *PickerOptions) { o.Service, o.Namespaces = "theirs", []string{r.ns} })
	_, port, err := net.SplitHostPort(main.Target())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	kubetest.Apply(t, r.api, r.ns, "apiVersion: v1\nkind: Service\nmetadata: {name: theirs}\nspec: {ports: [{name: grpc, port: 9002}]}\n")
	r.slice("theirs", n)
	g := r.gateway(func(o *Options) { o.Adopt, o.transform = []string{"gateway"}, podsToo })
	host := "llama." + r.ns + ".models.test"
	kubetest.Eventually(t, func() string {
		if status, body := g.complete(t.Context(), host, "/v1/completions", "llama"); status != http.StatusOK {
			return fmt.Sprint(status, " ", body)
		}
		return ""
	})
	for range 50 {
		if status, body := g.complete(t.Context(), host, "/v1/completions", "llama"); status != http.StatusOK {
			t.Errorf("%d %s", status, body)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if status, body := g.complete(t.Context(), host, "/v1/completions", "llama"); status != http.StatusServiceUnavailable || !strings.Contains(body, "cannot be reached") {
		t.Errorf("without the picker: %d %s", status, body)
	}
}
