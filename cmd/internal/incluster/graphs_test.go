package incluster

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// TestGraphs: a gateway of a cluster runs InferenceGraphs: their steps are services of
// the graph's namespace, by name or by URL, its Kubernetes Services, and nothing else
// inside; a TrainedModel is one of these services.
func TestGraphs(t *testing.T) {
	r := newRig(t)
	r.api = kubetest.Client(t, "kserve")
	kubetest.Apply(t, r.api, r.ns, fmt.Sprintf(plainService, "echo"))
	r.slice("echo", echo(t, "echo"))
	m := newModel(t)
	kubetest.Apply(t, r.api, r.ns, `apiVersion: serving.kserve.io/v1alpha1
kind: TrainedModel
metadata: {name: trained}
spec:
  inferenceService: server
  model: {framework: xgboost, storageUri: "https://models.test/iris.ubj", memory: 64Mi}
`)
	k := r.decide(service.ProtocolV2, "trained", m.port(), 1)
	r.endpoint(k, "trained-1", m.port(), true)
	graph := func(name string, steps ...string) {
		kubetest.Apply(t, r.api, r.ns, fmt.Sprintf(`apiVersion: serving.kserve.io/v1alpha1
kind: InferenceGraph
metadata: {name: %s}
spec:
  nodes:
    root:
      routerType: Sequence
      steps: [%s]
`, name, strings.Join(steps, ", ")))
	}
	graph("named", "{serviceName: trained}")
	graph("linked", `{serviceUrl: "http://trained.`+r.ns+`.svc.cluster.local/v2/models/trained/infer"}`)
	graph("plain", `{serviceUrl: "http://echo/say"}`)
	graph("foreign", `{serviceUrl: "http://echo.other.svc/say"}`)
	graph("loop", `{serviceUrl: "http://127.0.0.1:1/say"}`)
	g := r.gateway(func(o *Options) { o.Adopt = []string{"kserve"} })
	for name, want := range map[string]string{
		"named":   `200 {"model_name"`,
		"linked":  `200 {"model_name"`,
		"plain":   "200 echo POST /say",
		"foreign": "500 {",
		"loop":    "500 {",
	} {
		kubetest.Eventually(t, func() string {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+g.address()+"/", strings.NewReader(question))
			if err != nil {
				return err.Error()
			}
			req.Host = name + "." + r.ns + ".models.test"
			resp, err := g.http.Do(req)
			if err != nil {
				return err.Error()
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if got := fmt.Sprint(resp.StatusCode, " ", string(body)); err != nil || !strings.HasPrefix(got, want) {
				return name + ": " + got + fmt.Sprint(err)
			}
			switch name {
			case "foreign":
				if !strings.Contains(string(body), "is of namespace other") {
					return string(body)
				}
			case "loop":
				if !strings.Contains(string(body), "is an internal address") {
					return string(body)
				}
			}
			return ""
		})
	}
}
