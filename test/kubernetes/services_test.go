//go:build kubernetes && linux

package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Requests to the examples' models, and the class each sample is of.
const (
	irisTensor = `{"inputs":[{"name":"input-0","shape":[1,4],"datatype":"FP32","data":[5.1,3.5,1.4,0.2]}]}`
	irisRow    = `{"instances":[[5.1,3.5,1.4,0.2]]}`
	irisClass  = 0
)

// predicts wants one row of probabilities, of which that of a class is the
// highest.
func predicts(class, classes int) func(int, []byte) error {
	return func(status int, body []byte) error {
		var out struct {
			Outputs     []struct{ Data []float64 }
			Predictions [][]float64
		}
		if err := json.Unmarshal(body, &out); status != http.StatusOK || err != nil {
			return fmt.Errorf("status %d: %.300s", status, body)
		}
		var row []float64
		switch {
		case len(out.Outputs) > 0:
			row = out.Outputs[0].Data
		case len(out.Predictions) > 0:
			row = out.Predictions[0]
		}
		if len(row) != classes {
			return fmt.Errorf("%d classes, want %d: %.300s", len(row), classes, body)
		}
		for _, p := range row {
			if p > row[class] {
				return fmt.Errorf("want class %d of %v", class, row)
			}
		}
		return nil
	}
}

// iris asks the service iris over v2.
func (p *product) iris() request {
	return request{p.address, "iris.apps." + domain, "/v2/models/iris/infer", irisTensor, predicts(irisClass, 3)}
}

// chat asks a simulated engine.
func (p *product) chat(namespace, name string) request {
	return request{p.address, name + "." + namespace + "." + domain, "/v1/chat/completions",
		`{"model":"` + name + `","max_tokens":8,"messages":[{"role":"user","content":"Hello"}]}`,
		func(status int, body []byte) error {
			if status != http.StatusOK || !strings.Contains(string(body), `"choices"`) {
				return fmt.Errorf("status %d: %.300s", status, body)
			}
			return nil
		}}
}

const irisManifest = `
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: iris, namespace: apps}
spec:
  model: {uri: "pvc://models/%s", format: {name: xgboost}}
  scaling: {minReplicas: 2, maxReplicas: 3}
  engine: {env: [{name: GENERATION, value: "%s"}]}
`

func native(ctx context.Context, p *product) {
	p.do(p.ApplyYAML(ctx, fmt.Sprintf(irisManifest, "iris.ubj", "1")))
	u := p.awaitReady(ctx, modelService, "apps", "iris")
	if host := p.host(u); host != "iris.apps."+domain {
		p.t.Errorf("the service is at %s", host)
	}
	p.awaitReplicas(ctx, "apps", "iris", 2)
	p.iris().must(p.t)
	v1 := p.iris()
	v1.path, v1.body = "/v1/models/iris:predict", irisRow
	v1.must(p.t)
}

func kserve(ctx context.Context, p *product) {
	p.do(p.ApplyYAML(ctx, `
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: flowers, namespace: kserve}
spec:
  predictor:
    minReplicas: 1
    model:
      modelFormat: {name: xgboost}
      protocolVersion: v2
      storageUri: pvc://models/iris.ubj
`))
	u := p.awaitReady(ctx, kserveService, "kserve", "flowers")
	p.says(u, "UpToDate", "status", "modelStatus", "transitionStatus")
	p.says(u, "Loaded", "status", "modelStatus", "states", "activeModelState")
	if revision, _, _ := unstructured.NestedString(u.Object, "status", "components", "predictor", "latestReadyRevision"); revision == "" {
		p.t.Errorf("no ready revision of the predictor: %v", u.Object["status"])
	}
	if condition(u, "PredictorReady")["status"] != "True" {
		p.t.Errorf("PredictorReady is %v", condition(u, "PredictorReady"))
	}
	request{p.address, p.host(u), "/v2/models/flowers/infer", irisTensor, predicts(irisClass, 3)}.must(p.t)
}

func ome(ctx context.Context, p *product) {
	p.do(p.ApplyYAML(ctx, `
apiVersion: ome.io/v1beta1
kind: BaseModel
metadata: {name: pretend-7b, namespace: ome}
spec:
  modelFormat: {name: safetensors, version: "1.0.0"}
  modelArchitecture: PretendForCausalLM
  modelParameterSize: 7B
  storage: {storageUri: pvc://models/iris.ubj}
---
apiVersion: ome.io/v1beta1
kind: ServingRuntime
metadata: {name: srt-pretend, namespace: ome}
spec:
  supportedModelFormats:
  - modelFormat: {name: safetensors, version: "1.0.0"}
    modelArchitecture: PretendForCausalLM
    autoSelect: true
    priority: 1
  protocolVersions: [openAI]
  modelSizeRange: {min: 5B, max: 9B}
  engineConfig:
    runner:
      name: ome-container
      image: roundhouse.local/roundhouse:e2e
      imagePullPolicy: Never
      args: [simulate, engine, --host, 0.0.0.0, --port, "8080", --model, pretend, --speed, "20"]
      ports: [{containerPort: 8080}]
      readinessProbe: {httpGet: {path: /health, port: 8080}, periodSeconds: 1}
---
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {name: pretend, namespace: ome}
spec:
  model: {name: pretend-7b, kind: BaseModel}
  engine: {minReplicas: 1, maxReplicas: 2}
`))
	u := p.awaitReady(ctx, omeService, "ome", "pretend")
	p.says(u, "UpToDate", "status", "modelStatus", "transitionStatus")
	if condition(u, "EngineReady")["status"] != "True" {
		p.t.Errorf("EngineReady is %v", condition(u, "EngineReady"))
	}
	r := p.chat("ome", "pretend")
	r.host = p.host(u)
	r.must(p.t)
}

// says checks one field.
func (p *product) says(u *unstructured.Unstructured, want string, path ...string) {
	p.t.Helper()
	if got, _, _ := unstructured.NestedString(u.Object, path...); got != want {
		text, _ := json.Marshal(u.Object["status"])
		p.t.Errorf("%s is %q, want %q: %s", strings.Join(path, "."), got, want, text)
	}
}

// zeroAndBack has a service sleep for want of requests, and wakes it by one.
func zeroAndBack(ctx context.Context, p *product) {
	p.do(p.ApplyYAML(ctx, `
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: sleeper, namespace: apps}
spec:
  model: {format: {name: simulator}}
  scaling: {minReplicas: 0, maxReplicas: 2, scaleToZeroAfter: 5s}
`))
	p.await(ctx, modelService, "apps", "sleeper", "known", known)
	p.t.Logf("the first request took %.2f s", p.chat("apps", "sleeper").must(p.t).Seconds())
	began := time.Now()
	p.awaitReplicas(ctx, "apps", "sleeper", 0)
	p.t.Logf("asleep %.1f s after the last answer", time.Since(began).Seconds())
	p.t.Logf("the request that woke it took %.2f s", p.chat("apps", "sleeper").must(p.t).Seconds())
}
