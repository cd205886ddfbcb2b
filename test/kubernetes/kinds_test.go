//go:build kubernetes && linux

package kubernetes

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bench "roundhouse.dev/roundhouse/internal/decide/load"
	"roundhouse.dev/roundhouse/test/kubernetes/node"
)

// TestKinds lives with the kinds of KServe and OME that are more than a service of one
// model: graphs, loggers and batchers, LLMInferenceServices, classes of accelerators.
func TestKinds(t *testing.T) {
	p := &product{Cluster: node.Get(t), t: t}
	p.live(t, []string{"Install"}, []step{
		{"Install", 2 * time.Minute, installShapes},
		{"LoggedAndBatched", 3 * time.Minute, loggedAndBatched},
		{"Graph", 3 * time.Minute, graph},
		{"TrainedModels", 3 * time.Minute, trainedModels},
		{"StorageContainer", 3 * time.Minute, storageContainer},
		{"LLMInferenceService", 3 * time.Minute, llmInferenceService},
		{"Accelerated", 3 * time.Minute, accelerated},
		{"Benchmark", 3 * time.Minute, benchmark},
		{"Uninstall", 2 * time.Minute, uninstallShapes},
	})
}

var (
	graphKind = schema.GroupVersionKind{Group: "serving.kserve.io", Version: "v1alpha1", Kind: "InferenceGraph"}
	llmKind   = schema.GroupVersionKind{Group: "serving.kserve.io", Version: "v1alpha2", Kind: "LLMInferenceService"}
	benchKind = schema.GroupVersionKind{Group: "ome.io", Version: "v1beta1", Kind: "BenchmarkJob"}
)

// sink is a server in the namespace of the services, with a Service of its own, and what
// it was sent.
const sink = `
apiVersion: v1
kind: Pod
metadata: {name: sink, namespace: shapes, labels: {app: sink}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: sink, image: roundhouse.local/server:e2e, imagePullPolicy: Never, args: [sink, "8080"], ports: [{containerPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: sink, namespace: shapes}
spec: {selector: {app: sink}, ports: [{port: 80, targetPort: 8080}]}
`

// petals is a service of the quickstart's model.
func petals(name, more string) string {
	return fmt.Sprintf(`
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: %s, namespace: shapes}
spec:
  predictor:
    minReplicas: 1
    maxReplicas: 1
%s
    model: {modelFormat: {name: xgboost}, protocolVersion: v1, runtime: roundhouse-xgboost, storageUri: "pvc://models/iris.ubj"}
`, name, more)
}

// loggedAndBatched has a gateway gather requests; each of them and its answer come to a
// Service of the service's own namespace.
func loggedAndBatched(ctx context.Context, p *product) {
	p.irisModel()
	p.do(p.ApplyYAML(ctx, sink+"---"+petals("logged", `    logger: {mode: all, url: "http://sink.shapes"}
    batcher: {maxBatchSize: 2, maxLatency: 5000}`)))
	u := p.awaitReady(ctx, kserveService, shapes, "logged")
	var pod corev1.Pod
	p.do(node.Await(ctx, p, "the sink runs", &corev1.PodList{}, func(l *corev1.PodList) bool {
		return slices.ContainsFunc(l.Items, func(one corev1.Pod) bool { pod = one; return one.Name == "sink" && ready(&one) })
	}, client.InNamespace(shapes)))
	const requests = 3 // of which two come to one of the two gateways
	batches := make(chan string, requests)
	r := request{p.address, p.host(u), "/v1/models/logged:predict", irisRow, func(status int, body []byte) error {
		var out struct{ BatchID string }
		if err := json.Unmarshal(body, &out); err != nil || status != http.StatusOK || out.BatchID == "" {
			return fmt.Errorf("status %d: %.300s", status, body)
		}
		batches <- out.BatchID
		return nil
	}}
	failed := make(chan error, requests)
	for range requests {
		go func() { failed <- r.do(ctx, http.DefaultClient) }()
	}
	ids := map[string]bool{}
	for range requests {
		p.do(<-failed)
		ids[<-batches] = true
	}
	if len(ids) != requests-1 {
		p.t.Errorf("%d requests were of the batches %v", requests, ids)
	}
	want := []string{"org.kubeflow.serving.inference.request", "org.kubeflow.serving.inference.response"}
	var seen string
	for { // whoever asked was answered before the copies are sent
		var err error
		seen, err = fetch(ctx, pod.Status.PodIP+":8080", "/seen")
		if err == nil && strings.Count(seen, want[0]) >= requests && strings.Count(seen, want[1]) >= requests {
			break
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			p.t.Fatalf("the logger's server was sent %s (%v)", seen, err)
		}
	}
	if !strings.Contains(seen, "5.1") || !strings.Contains(seen, "predictions") || !strings.Contains(seen, "inferenceservicename=logged") {
		p.t.Errorf("the logger's server was sent %s", seen)
	}
	_, err := p.Kubectl(ctx, "delete", "inferenceservices.serving.kserve.io/logged", "pod/sink", "service/sink", "-n", shapes)
	p.do(err)
	p.nothingLeft(ctx)
}

// storageContainer has a ClusterStorageContainer fetch from a store that the product does
// not know. Before it is there, the service's status asks for it; a model that it does not
// find is told in its words.
func storageContainer(ctx context.Context, p *product) {
	model, err := os.ReadFile("../../examples/quickstart/models/iris.ubj")
	p.do(err)
	from := func(name, uri string) string {
		return strings.Replace(petals(name, ""), "pvc://models/iris.ubj", uri, 1)
	}
	says := func(name string, words ...string) {
		p.await(ctx, kserveService, shapes, name, strings.Join(words, ", "), func(u *unstructured.Unstructured) bool {
			status := fmt.Sprint(u.Object["status"])
			return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(status, w) })
		})
	}
	p.do(p.ApplyYAML(ctx, from("fetched", "registry://models/iris.ubj")))
	says("fetched", "nothing fetches from registry://", "apply a ClusterStorageContainer for it")
	p.do(p.ApplyYAML(ctx, `
apiVersion: serving.kserve.io/v1alpha1
kind: ClusterStorageContainer
metadata: {name: registry}
spec:
  container:
    name: storage-initializer
    image: `+serverImage+`
    imagePullPolicy: Never
    command: [/server, fetch]
    env: [{name: CONTENT, value: `+base64.StdEncoding.EncodeToString(model)+`}]
    resources: {requests: {cpu: 10m, memory: 20Mi}, limits: {memory: 100Mi}}
  supportedUriFormats: [{prefix: "registry://"}]
---`+from("lost", "registry://models/none")))
	u := p.awaitReady(ctx, kserveService, shapes, "fetched")
	request{p.address, p.host(u), "/v1/models/fetched:predict", irisRow, predicts(irisClass, 3)}.must(p.t)
	says("lost", "registry://models/none: not in the registry")
	_, err = p.Kubectl(ctx, "delete", "inferenceservices.serving.kserve.io/fetched", "inferenceservices.serving.kserve.io/lost", "-n", shapes)
	p.do(err)
	p.nothingLeft(ctx)
	_, err = p.Kubectl(ctx, "delete", "clusterstoragecontainers.serving.kserve.io/registry")
	p.do(err)
}

// graph has a gateway ask two services, one after the other where the request says so.
func graph(ctx context.Context, p *product) {
	p.irisModel()
	p.do(p.ApplyYAML(ctx, petals("first", "")+"---"+petals("second", "")+`---
apiVersion: serving.kserve.io/v1alpha1
kind: InferenceGraph
metadata: {name: both, namespace: shapes}
spec:
  nodes:
    root:
      routerType: Sequence
      steps:
      - {name: one, serviceName: first}
      - {name: all, nodeName: ensemble, data: $request, condition: "predictions"}
    ensemble:
      routerType: Ensemble
      steps:
      - {name: a, serviceName: first}
      - {name: b, serviceName: second, dependency: Hard}
`))
	p.awaitReady(ctx, kserveService, shapes, "first")
	p.awaitReady(ctx, kserveService, shapes, "second")
	u := p.awaitReady(ctx, graphKind, shapes, "both")
	row := predicts(irisClass, 3)
	r := request{p.address, p.host(u), "/", irisRow, func(status int, body []byte) error {
		var out map[string]json.RawMessage
		if err := json.Unmarshal(body, &out); err != nil || status != http.StatusOK || len(out) != 2 {
			return fmt.Errorf("status %d: %.300s", status, body)
		}
		for _, step := range []string{"a", "b"} {
			if err := row(status, out[step]); err != nil {
				return fmt.Errorf("step %s: %w", step, err)
			}
		}
		return nil
	}}
	r.must(p.t)
	_, err := p.Kubectl(ctx, "delete", "inferenceservices.serving.kserve.io/second", "-n", shapes)
	p.do(err)
	p.await(ctx, graphKind, shapes, "both", "tells of the missing service", func(u *unstructured.Unstructured) bool {
		return strings.Contains(fmt.Sprint(u.Object["status"]), "second")
	})
	_, err = p.Kubectl(ctx, "delete", "inferencegraphs.serving.kserve.io/both", "inferenceservices.serving.kserve.io/first", "-n", shapes)
	p.do(err)
	p.nothingLeft(ctx)
}

// llmInferenceService is asked by its name and by KServe's path, wakes from zero, and
// leaves nothing.
func llmInferenceService(ctx context.Context, p *product) {
	p.do(p.ApplyYAML(ctx, `
apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceServiceConfig
metadata: {name: small, namespace: shapes}
spec:
  template:
    terminationGracePeriodSeconds: 20
    containers:
    - name: main
      image: roundhouse.local/roundhouse:e2e
      imagePullPolicy: Never
      command: [/roundhouse, simulate, engine, --host, 0.0.0.0, --port, "8000", --model, talk, --speed, "20"]
      ports: [{containerPort: 8000}]
      readinessProbe: {httpGet: {path: /health, port: 8000}, periodSeconds: 1}
---
apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceService
metadata: {name: talk, namespace: shapes}
spec:
  baseRefs: [{name: small}]
  model: {uri: "pvc://models/talk", name: talk}
  replicas: 2
  router: {route: {}, gateway: {}, scheduler: {}}
`))
	u := p.awaitReady(ctx, llmKind, shapes, "talk")
	p.awaitReplicas(ctx, shapes, "talk", 2)
	r := p.chat(shapes, "talk")
	if host := p.host(u); host != r.host {
		p.t.Logf("the status says that it is at %s", host)
	}
	r.must(p.t)
	by := r
	by.path = "/" + shapes + "/talk" + r.path
	by.must(p.t)
	_, err := p.Kubectl(ctx, "delete", "llminferenceservices.serving.kserve.io/talk", "llminferenceserviceconfigs.serving.kserve.io/small", "-n", shapes)
	p.do(err)
	p.nothingLeft(ctx)
}

// accelerated has a class chosen by its price, whose nodes alone run the pods.
func accelerated(ctx context.Context, p *product) {
	const label = "pretend.example/accelerator"
	var nodes corev1.NodeList
	p.do(p.List(ctx, &nodes))
	_, err := p.Kubectl(ctx, "label", "node", nodes.Items[0].Name, label+"=cheap")
	p.do(err)
	class := func(name, hour string) string {
		return fmt.Sprintf(`
apiVersion: ome.io/v1beta1
kind: AcceleratorClass
metadata: {name: %s}
spec:
  vendor: nvidia
  family: pretend
  model: %[1]s
  discovery: {nodeSelector: {%s: %[1]s}}
  capabilities: {memoryGB: 40, computeCapability: "8.0"}
  cost: {perHour: "%[3]s"}
---`, name, label, hour)
	}
	p.do(p.ApplyYAML(ctx, class("dear", "5")+class("cheap", "1")+`
apiVersion: ome.io/v1beta1
kind: BaseModel
metadata: {name: quick-1b, namespace: shapes}
spec:
  modelFormat: {name: safetensors, version: "1.0.0"}
  modelArchitecture: PretendForCausalLM
  modelParameterSize: 1B
  storage: {storageUri: pvc://models/quick}
---
apiVersion: ome.io/v1beta1
kind: ServingRuntime
metadata: {name: srt-quick, namespace: shapes}
spec:
  supportedModelFormats: [{modelFormat: {name: safetensors, version: "1.0.0"}, modelArchitecture: PretendForCausalLM, autoSelect: true}]
  protocolVersions: [openAI]
  acceleratorRequirements: {acceleratorClasses: [dear, cheap]}
  engineConfig:
    runner:
      name: ome-container
      image: roundhouse.local/roundhouse:e2e
      imagePullPolicy: Never
      args: [simulate, engine, --host, 0.0.0.0, --port, "8080", --model, quick, --speed, "20"]
      ports: [{containerPort: 8080}]
      readinessProbe: {httpGet: {path: /health, port: 8080}, periodSeconds: 1}
---
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {name: quick, namespace: shapes}
spec:
  model: {name: quick-1b, kind: BaseModel}
  runtime: {name: srt-quick}
  acceleratorSelector: {policy: Cheapest}
  engine: {minReplicas: 1, maxReplicas: 1}
`))
	p.awaitReady(ctx, omeService, shapes, "quick")
	pods := p.awaitReplicas(ctx, shapes, "quick", 1)
	if pods[0].Spec.NodeSelector[label] != "cheap" {
		p.t.Errorf("the pod's node selector is %v", pods[0].Spec.NodeSelector)
	}
	p.chat(shapes, "quick").must(p.t)
	_, err = p.Kubectl(ctx, "delete", "inferenceservices.ome.io", "quick", "-n", shapes)
	p.do(err)
	p.nothingLeft(ctx)
	_, err = p.Kubectl(ctx, "delete", "acceleratorclasses.ome.io", "dear", "cheap")
	p.do(err)
}

// benchmark has a Job measure a service through the gateway, its report written to a volume
// and its figures in the status; one of a service that is not there says so.
func benchmark(ctx context.Context, p *product) {
	const reports = "/run/roundhouse/reports"
	p.do(os.MkdirAll(reports, 0o777))
	p.do(os.Chmod(reports, 0o777)) // nobody's, as a volume of a host has no group of a pod's
	job := func(name, service, output string) string {
		return fmt.Sprintf(`
apiVersion: ome.io/v1beta1
kind: BenchmarkJob
metadata: {name: %s, namespace: shapes}
spec:
  endpoint: {inferenceService: {name: %s, namespace: shapes}}
  task: text-to-text
  trafficScenarios: ["D(20,5)"]
  numConcurrency: [1, 4]
  maxTimePerIteration: 1
  maxRequestsPerIteration: 20
  outputLocation: {storageUri: "%s"}
  podOverride: {resources: {requests: {cpu: 10m}}}
---`, name, service, output)
	}
	p.do(p.ApplyYAML(ctx, `
apiVersion: v1
kind: PersistentVolume
metadata: {name: reports-shapes}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  storageClassName: ""
  claimRef: {namespace: shapes, name: reports}
  hostPath: {path: `+reports+`}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: reports, namespace: shapes}
spec: {accessModes: [ReadWriteMany], storageClassName: "", volumeName: reports-shapes, resources: {requests: {storage: 1Gi}}}
---
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {name: measured, namespace: shapes}
spec:
  supportedModelFormats: [{name: huggingface, version: "1", autoSelect: true, priority: 2}]
  protocolVersions: [v2]
  containers:
  - name: kserve-container
    image: roundhouse.local/roundhouse:e2e
    imagePullPolicy: Never
    args: [simulate, engine, --host, 0.0.0.0, --port, "8080", --model, measured, --speed, "20"]
    ports: [{containerPort: 8080}]
    readinessProbe: {httpGet: {path: /health, port: 8080}, periodSeconds: 1}
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: measured, namespace: shapes}
spec:
  predictor:
    minReplicas: 1
    maxReplicas: 1
    model: {modelFormat: {name: huggingface}, runtime: measured, storageUri: "pvc://models/llm"}
---`+job("load", "measured", "pvc://reports/results")+job("nowhere", "measured", "s3://roundhouse.invalid/x")))
	u := p.await(ctx, benchKind, shapes, "load", "measured", func(u *unstructured.Unstructured) bool {
		state, _, _ := unstructured.NestedString(u.Object, "status", "state")
		return state == "Completed" || state == "Failed"
	})
	status, _, _ := unstructured.NestedStringMap(u.Object, "status")
	if status["state"] != "Completed" || !strings.Contains(status["details"], "D(20,5), 4 at once: 20 requests, 0 failed") || status["startTime"] == "" || status["completionTime"] == "" {
		p.t.Errorf("the status is %v", status)
	}
	text, err := os.ReadFile(reports + "/results/load/report.json")
	p.do(err)
	var report bench.Report
	if err := json.Unmarshal(text, &report); err != nil || len(report.Points) != 2 || report.Points[1].Requests != 20 || report.Points[1].OutputTokens != 100 {
		p.t.Errorf("%v: the report is %s", err, text)
	}
	u = p.await(ctx, benchKind, shapes, "nowhere", "refused by its store", func(u *unstructured.Unstructured) bool {
		state, _, _ := unstructured.NestedString(u.Object, "status", "state")
		return state == "Failed"
	})
	if why, _, _ := unstructured.NestedString(u.Object, "status", "failureMessage"); !strings.Contains(why, "the report cannot be written: s3://roundhouse.invalid/x/nowhere/report.json") {
		p.t.Errorf("it failed by %q", why)
	}
	_, err = p.Kubectl(ctx, "delete", "benchmarkjobs.ome.io/load", "benchmarkjobs.ome.io/nowhere", "inferenceservices.serving.kserve.io/measured", "-n", shapes)
	p.do(err)
	p.do(node.Await(ctx, p, "no Jobs", &batchv1.JobList{}, func(l *batchv1.JobList) bool { return len(l.Items) == 0 }, client.InNamespace(shapes)))
	p.nothingLeft(ctx)
	_, err = p.Kubectl(ctx, "delete", "pvc/reports", "servingruntimes.serving.kserve.io/measured", "-n", shapes)
	p.do(err)
	_, err = p.Kubectl(ctx, "delete", "pv", "reports-shapes")
	p.do(err)
}
