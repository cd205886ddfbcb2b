package incluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// pod writes a pod of somebody else's with an address and readiness.
func (r *rig) pod(name string, labels map[string]string, ready corev1.ConditionStatus) *corev1.Pod {
	r.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: name, Labels: labels},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "vllm"}}}}
	r.create(p)
	r.readies(p, ready)
	return p
}

func (r *rig) readies(p *corev1.Pod, ready corev1.ConditionStatus) {
	r.t.Helper()
	r.readiesAt(p, "192.0.2.1", ready)
}

// readiesAt is readies of a pod with an address of its own.
func (r *rig) readiesAt(p *corev1.Pod, ip string, ready corev1.ConditionStatus) {
	r.t.Helper()
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready, LastTransitionTime: metav1.Now()}}}
	if err := r.api.Status().Update(r.t.Context(), p); err != nil {
		r.t.Fatal(err)
	}
}

// podsToo has pods' addresses, too, mean this machine.
func podsToo(raw any) (any, error) {
	if p, ok := raw.(*corev1.Pod); ok && p.Status.PodIP != "" {
		p.Status.PodIP = strings.Replace(p.Status.PodIP, "192.0.2.", "127.0.0.", 1)
	}
	return toLoopback(raw)
}

// complete asks for a completion at a host and path.
func (g *running) complete(ctx context.Context, host, path, model string) (int, string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+g.address()+path, bytes.NewReader([]byte(fmt.Sprintf(`{"model":%q,"prompt":"x"}`, model))))
	if err != nil {
		return 0, err.Error()
	}
	req.Host = host
	req.Header.Set("Content-Type", "application/json")
	resp, err := g.http.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body) + errText(err)
}

// TestRoutesOfOurGateways: an HTTPRoute is served when, and under the hosts at
// which, it is attached to a Gateway of our class, its InferencePool by the pods
// that have its labels, whoever runs them.
func TestRoutesOfOurGateways(t *testing.T) {
	r := newRig(t)
	kubetest.Published(t, r.api, kubetest.GatewayAPI, kubetest.InferenceExtension)
	m := newModel(t)
	apply := func(text string) {
		t.Helper()
		kubetest.Place(t, r.api, r.ns, strings.ReplaceAll(text, "PORT", fmt.Sprint(m.port())))
	}
	apply(kubetest.GatewayClasses + `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: ours}
spec: {gatewayClassName: NS, listeners: [{name: web, port: 80, protocol: HTTP, hostname: "*.llm.test"}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: theirs}
spec: {gatewayClassName: NS-other, listeners: [{name: web, port: 80, protocol: HTTP}]}
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: pool}
spec: {selector: {matchLabels: {app: vllm}}, targetPorts: [{number: PORT}], endpointPickerRef: {name: picker, port: {number: 9002}, failureMode: FailClose}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: ours}
spec:
  parentRefs: [{name: ours}]
  hostnames: [chat.llm.test, chat.else.test]
  rules: [{backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: pool}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: theirs}
spec:
  parentRefs: [{name: theirs}]
  hostnames: [theirs.llm.test]
  rules: [{backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: pool}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: far}
spec:
  parentRefs: [{name: ours}]
  hostnames: [far.llm.test]
  rules: [{backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: pool, namespace: default}]}]
`)
	r.pod("vllm-1", map[string]string{"app": "vllm"}, corev1.ConditionTrue)
	r.pod("other-1", map[string]string{"app": "other"}, corev1.ConditionTrue)
	g := r.gateway(func(o *Options) { o.Adopt, o.transform, o.Pickers = []string{"gateway"}, podsToo, PickersIgnore })
	ctx := t.Context()
	for host, want := range map[string]int{"chat.llm.test": 200, "chat.else.test": 404, "theirs.llm.test": 404, "far.llm.test": 500} {
		if status, body := g.complete(ctx, host, "/v1/completions", "llama"); status != want {
			t.Errorf("%s: %d %s, want %d", host, status, body, want)
		}
	}
	if _, body := g.complete(ctx, "far.llm.test", "/v1/completions", "llama"); !strings.Contains(body, "ReferenceGrant") {
		t.Errorf("a reference that is not allowed: %s", body)
	}

	eventually := func(host string, want int) {
		t.Helper()
		kubetest.Eventually(t, func() string {
			bound, cancel := context.WithCancel(ctx)
			defer cancel()
			if status, body := g.complete(bound, host, "/v1/completions", "llama"); status != want {
				return fmt.Sprint(status, " ", body)
			}
			return ""
		})
	}
	// A Gateway's listener, and the class of one, decide while the gateway runs.
	apply("apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: ours}\nspec: {gatewayClassName: NS, listeners: [{name: web, port: 80, protocol: HTTP, hostname: \"*.else.test\"}]}\n")
	eventually("chat.else.test", 200)
	eventually("chat.llm.test", 404)
	apply("apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: theirs}\nspec: {gatewayClassName: NS, listeners: [{name: web, port: 80, protocol: HTTP}]}\n")
	eventually("theirs.llm.test", 200)
	// The gateway's Service has other ports than the listener.
	r.create(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: "roundhouse-gateway"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 8080}}}})
	eventually("theirs.llm.test", 404)
}

// TestPoolOfPods: endpoints of a pool come and go with the pods of its labels.
func TestPoolOfPods(t *testing.T) {
	r := newRig(t)
	kubetest.Published(t, r.api, kubetest.InferenceExtension)
	m := newModel(t)
	text := `apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: pool}
spec: {selector: {matchLabels: {app: vllm}}, targetPorts: [{number: PORT}], endpointPickerRef: {name: picker, port: {number: 9002}}}
`
	kubetest.Apply(t, r.api, r.ns, strings.ReplaceAll(text, "PORT", fmt.Sprint(m.port())))
	p := r.pod("vllm-1", map[string]string{"app": "vllm"}, corev1.ConditionFalse)
	g := r.gateway(func(o *Options) { o.Adopt, o.transform, o.Pickers = []string{"gateway"}, podsToo, PickersIgnore })
	open := func(want string) {
		t.Helper()
		kubetest.Eventually(t, func() string {
			var got []string
			for _, e := range g.traffic.AllEndpoints() {
				got = append(got, fmt.Sprint(strings.TrimPrefix(e.ID, r.ns+"/"), " ", e.Open))
			}
			if text := strings.Join(got, ", "); text != want {
				return text
			}
			return ""
		})
	}
	id := fmt.Sprintf("vllm-1:%d", m.port())
	open(id + " false")
	r.readies(p, corev1.ConditionTrue)
	open(id + " true")
	if status, body := g.complete(t.Context(), "pool."+r.ns+".models.test", "/v1/completions", "llama"); status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
	if err := r.api.Delete(t.Context(), p, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	open("")
	r.pod("vllm-2", map[string]string{"app": "vllm"}, corev1.ConditionTrue)
	open(fmt.Sprintf("vllm-2:%d true", m.port()))
	// The pool looks for others.
	kubetest.Apply(t, r.api, r.ns, strings.NewReplacer("PORT", fmt.Sprint(m.port()), "app: vllm", "app: sglang").Replace(text))
	open("")
}

// TestImportedPools: an InferencePoolImport leads to the addresses of its annotation, as
// they are now.
func TestImportedPools(t *testing.T) {
	r := newRig(t)
	kubetest.Published(t, r.api, kubetest.InferenceExtension)
	m := newModel(t)
	const text = `apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: InferencePoolImport
metadata: {name: west, annotations: {roundhouse.dev/addresses: "AT"}}
`
	at := fmt.Sprintf("127.0.0.1:%d", m.port())
	kubetest.Apply(t, r.api, r.ns, strings.ReplaceAll(text, "AT", at))
	g := r.gateway(func(o *Options) { o.Adopt, o.Internal, o.Pickers = []string{"gateway"}, true, PickersIgnore })
	host := "west." + r.ns + ".models.test"
	eventually := func(want int) {
		t.Helper()
		kubetest.Eventually(t, func() string {
			bound, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			if status, body := g.complete(bound, host, "/v1/completions", "llama"); status != want {
				return fmt.Sprint(status, " ", body)
			}
			return ""
		})
	}
	eventually(http.StatusOK)
	kubetest.Apply(t, r.api, r.ns, strings.ReplaceAll(text, "AT", ""))
	eventually(http.StatusServiceUnavailable)
	kubetest.Apply(t, r.api, r.ns, strings.ReplaceAll(text, "AT", at))
	eventually(http.StatusOK)
}
