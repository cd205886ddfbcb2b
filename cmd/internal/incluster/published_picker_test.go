package incluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
	"roundhouse.dev/roundhouse/test/loopback"
)

// published runs the Inference Extension's own endpoint picker for a pool, with
// the filter of its conformance suite, and returns its port. It skips the test
// where that is not built.
func (r *rig) published(pool string) (port int) {
	r.t.Helper()
	program, err := filepath.Abs("../../../bin/k8s/epp")
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		r.t.Skipf("%v: `make conformance-kubernetes` builds it", err)
	}
	ports := make([]string, 3)
	for i := range ports { // it takes no port 0
		if _, ports[i], err = net.SplitHostPort(loopback.Reserve(r.t)); err == nil {
			port, err = strconv.Atoi(ports[i])
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program, "--kubeconfig="+r.path("kubeconfig"), "--pool-name="+pool, "--pool-namespace="+r.ns, "--grpc-port="+ports[2],
		"--grpc-health-port="+ports[0], "--metrics-port="+ports[1], "--metrics-endpoint-auth=false", "--tracing=false", "--v=1", "--config-text="+`apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: header-based-testing-filter
schedulingProfiles:
- name: conformance-profile
  plugins:
  - pluginRef: header-based-testing-filter
`)
	out := &testLog{t: r.t}
	cmd.Stdout, cmd.Stderr, cmd.Env = out, out, append(os.Environ(), "NAMESPACE="+r.ns, "POD_NAME=epp")
	ended := make(chan error, 1)
	if err := cmd.Start(); err != nil {
		cancel()
		r.t.Fatal(err)
	}
	go func() { ended <- cmd.Wait() }()
	r.t.Cleanup(func() { cancel(); <-ended })
	return port
}

// TestPublishedPicker asks the Inference Extension's own endpoint picker, over
// TLS with the certificate that it signs itself.
func TestPublishedPicker(t *testing.T) {
	r := newRig(t)
	kubetest.Published(t, r.api, kubetest.InferenceExtension)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body) // a client that leaves is nobody's concern here
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, "vllm-1 %s", body)
	}))
	t.Cleanup(server.Close)
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	kubetest.Apply(t, r.api, r.ns, fmt.Sprintf(`apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: pool}
spec: {selector: {matchLabels: {app: vllm}}, targetPorts: [{number: %s}], endpointPickerRef: {name: epp, port: {number: 9002}}}
`, port))
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: "vllm-1", Labels: map[string]string{"app": "vllm"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "vllm"}}}}
	r.create(p)
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "127.0.0.1", PodIPs: []corev1.PodIP{{IP: "127.0.0.1"}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}}
	if err := r.api.Status().Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	picker := r.published("pool")
	kubetest.Apply(t, r.api, r.ns, "apiVersion: v1\nkind: Service\nmetadata: {name: epp}\nspec: {ports: [{name: grpc, port: 9002, appProtocol: http2}]}\n")
	r.slice("epp", picker)
	g := r.gateway(func(o *Options) { o.Adopt, o.transform = []string{"gateway"}, podsToo })
	ask := func(body string, header ...string) (*http.Response, string) {
		t.Helper()
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+g.address()+"/v1/completions", strings.NewReader(body))
		req.Host = "pool." + r.ns + ".models.test"
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := g.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		got, _ := io.ReadAll(resp.Body)
		return resp, string(got)
	}
	const body = `{"model":"conformance-fake-model","prompt":"Write as if you were a critic: San Francisco"}`
	kubetest.Eventually(t, func() string {
		if resp, got := ask(body, "test-epp-endpoint-selection", "127.0.0.1"); resp.StatusCode != http.StatusOK || got != "vllm-1 "+body {
			return fmt.Sprint(resp.StatusCode, " ", got)
		}
		return ""
	})
	long := `{"model":"conformance-fake-model","prompt":"` + strings.Repeat("x", 1<<20) + `"}`
	if resp, got := ask(long, "test-epp-endpoint-selection", "127.0.0.1"); resp.StatusCode != http.StatusOK || got != "vllm-1 "+long {
		t.Errorf("a long body: %d %.200s", resp.StatusCode, got)
	}
	// Its filter leaves nobody: it refuses the request itself.
	if resp, got := ask(body, "test-epp-endpoint-selection", "10.0.0.9"); resp.StatusCode < 429 {
		t.Errorf("refused by the picker: %d %s", resp.StatusCode, got)
	} else {
		t.Logf("refused by the picker: %d %s", resp.StatusCode, got)
	}
}
