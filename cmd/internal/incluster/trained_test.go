package incluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/kube/demand"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// podAgent is the agent of a pod, which says what it is told to.
type podAgent struct {
	*httptest.Server
	mu     sync.Mutex
	models map[string]replica.Guest
}

func newPodAgent(t *testing.T) *podAgent {
	a := &podAgent{}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if r.URL.Path != shape.AgentModels || a.models == nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_ = json.NewEncoder(w).Encode(a.models)
	}))
	t.Cleanup(a.Close)
	return a
}

func (a *podAgent) says(models map[string]replica.Guest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.models = models
}

// TestTrainedModels: a model that the pods of another service load is served by those
// that have it, wakes that service, and says why where its server refused it; the
// controller is told what agents say.
func TestTrainedModels(t *testing.T) {
	r := newRig(t)
	r.api = kubetest.Client(t, "kserve")
	m, agent := newModel(t), newPodAgent(t)
	kubetest.Apply(t, r.api, r.ns, `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: server}
spec: {predictor: {minReplicas: 0, model: {modelFormat: {name: xgboost}, protocolVersion: v2}}}
`)
	var guests []workload.Guest
	for _, name := range []string{"one", "bad"} {
		kubetest.Apply(t, r.api, r.ns, fmt.Sprintf(`apiVersion: serving.kserve.io/v1alpha1
kind: TrainedModel
metadata: {name: %s}
spec: {inferenceService: server, model: {framework: xgboost, storageUri: "s3://b/%[1]s", memory: 64Mi}}
`, name))
		guests = append(guests, workload.Guest{Name: name, Model: workload.Model{URI: "s3://b/" + name, Format: "xgboost"}})
	}
	k := r.record(service.ProtocolV2, "server", m.port(), 0, guests)
	g := r.gateway(func(o *Options) {
		o.Adopt, o.agentPort = []string{"kserve"}, agent.Listener.Addr().(*net.TCPAddr).Port
	})

	// The first request wakes the host, and waits until its pod has the model.
	host := "server." + r.ns + ".models.test"
	type answer struct {
		status int
		body   string
	}
	first := make(chan answer, 1)
	go func() {
		status, body, err := g.ask(t.Context(), "one", host)
		first <- answer{status, body + fmt.Sprint(err)}
	}()
	kubetest.Eventually(t, func() string {
		if n := r.replicas(k); n != 1 {
			return fmt.Sprintf("the host has %d replicas", n)
		}
		return ""
	})
	agent.says(map[string]replica.Guest{"one": {Message: "is being loaded"}})
	r.endpoint(k, "server-1", m.port(), true)
	kubetest.Eventually(t, func() string {
		if len(g.view.Agents()) == 0 {
			return "no agent was asked"
		}
		return ""
	})
	if n := m.answered.Load(); n != 0 {
		t.Errorf("the pod got %d requests before it had the model", n)
	}
	agent.says(map[string]replica.Guest{"one": {Loaded: true}, "bad": {Failures: 3, Message: "no tree in here"}})
	if a := <-first; a.status != http.StatusOK {
		t.Fatalf("the first request: %d %s", a.status, a.body)
	}
	for _, tt := range []struct {
		model, host string
		status      int
		says        string
	}{
		{"one", "", 200, "outputs"},
		{"one", "one." + r.ns + ".models.test", 200, "outputs"},
		{"bad", host, 503, "no tree in here"},
		{"nobody", host, 404, `\"nobody\" is not served by service ` + k.String()},
	} {
		kubetest.Eventually(t, func() string {
			status, body, err := g.ask(t.Context(), tt.model, tt.host)
			if err != nil || status != tt.status || !strings.Contains(body, tt.says) {
				return fmt.Sprintf("%s at %q: %d %s %v, want %d %s", tt.model, tt.host, status, body, err, tt.status, tt.says)
			}
			return ""
		})
	}
	a := g.view.Agents()[0]
	if h, ok := demand.HostOf(a.Service, a.Pod, a.Models, a.At, a.At); !ok || h.Service != k.String() || h.Pod != "server-1" || !h.Models["one"].Loaded || h.Models["bad"].Failures != 3 {
		t.Errorf("the controller is told %+v, %v", h, ok)
	}

	// A pod that has lost it gets no more requests for it.
	agent.says(map[string]replica.Guest{"bad": {Loaded: true}})
	kubetest.Eventually(t, func() string {
		status, body, err := g.ask(t.Context(), "bad", "")
		if err != nil || status != 200 {
			return fmt.Sprint(status, body, err)
		}
		return ""
	})
	before := m.answered.Load()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if status, body, err := g.ask(ctx, "one", ""); err == nil && status == http.StatusOK || m.answered.Load() != before {
		t.Errorf("a model that no pod has: %d %s %v, answered %d more", status, body, err, m.answered.Load()-before)
	}
}
