//go:build kubernetes && linux

package kubernetes

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/test/kubernetes/node"
)

// fetch asks a pod.
func fetch(ctx context.Context, address, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.300s", res.Status, body)
	}
	return string(body), err
}

// answered counts the requests that a simulated engine answered.
func (p *product) answered(ctx context.Context, pod *corev1.Pod) (n int) {
	p.t.Helper()
	text, err := fetch(ctx, pod.Status.PodIP+":8080", "/metrics")
	p.do(err)
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		if name, value, found := strings.Cut(lines.Text(), "} "); found && strings.HasPrefix(name, "vllm:request_success_total{") {
			v, err := strconv.ParseFloat(value, 64)
			p.do(err)
			n += int(v)
		}
	}
	return n
}

// pairRuntime has an engine that prefills, a decoder that takes its time to
// start, and a router that looks for both, with the account it is given, and
// says that it is ready before they are.
const pairRuntime = `
apiVersion: ome.io/v1beta1
kind: BaseModel
metadata: {name: pair-1b, namespace: shapes}
spec:
  modelFormat: {name: safetensors, version: "1.0.0"}
  modelArchitecture: PretendForCausalLM
  modelParameterSize: 1B
  storage: {storageUri: pvc://models/pair}
---
apiVersion: ome.io/v1beta1
kind: ServingRuntime
metadata: {name: srt-pair, namespace: shapes}
spec:
  supportedModelFormats:
  - modelFormat: {name: safetensors, version: "1.0.0"}
    modelArchitecture: PretendForCausalLM
    autoSelect: true
    priority: 1
  protocolVersions: [openAI]
  modelSizeRange: {min: 500M, max: 2B}
  engineConfig:
    runner:
      name: ome-container
      image: roundhouse.local/roundhouse:e2e
      imagePullPolicy: Never
      args: [simulate, engine, --host, 0.0.0.0, --port, "8080", --model, pair, --role, prefill, --speed, "20"]
      ports: [{containerPort: 8080}]
      readinessProbe: {httpGet: {path: /health, port: 8080}, periodSeconds: 1}
  decoderConfig:
    runner:
      name: ome-container
      image: roundhouse.local/roundhouse:e2e
      imagePullPolicy: Never
      args: [simulate, engine, --host, 0.0.0.0, --port, "8080", --model, pair, --role, decode, --speed, "20", --startup-delay, 60s]
      ports: [{containerPort: 8080}]
      readinessProbe: {httpGet: {path: /health, port: 8080}, periodSeconds: 1}
  routerConfig:
    runner:
      name: router
      image: roundhouse.local/server:e2e
      imagePullPolicy: Never
      args:
        [router, --port, "8080", --service-discovery, --service-discovery-namespace, "{{.Namespace}}", --service-discovery-port, "8080",
         --prefill-selector, component=engine, "ome.io/inferenceservice={{.Name}}",
         --decode-selector, component=decoder, "ome.io/inferenceservice={{.Name}}"]
      ports: [{containerPort: 8080}]
      readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
`

// pair is a service of the three.
func pair(minimum int, generation string) string {
	return fmt.Sprintf(`
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata:
  name: pair
  namespace: shapes
  annotations: {autoscaling.knative.dev/scale-to-zero-pod-retention-period: 5s}
spec:
  model: {name: pair-1b, kind: BaseModel}
  runtime: {name: srt-pair}
  engine: {minReplicas: %[1]d, maxReplicas: 1, runner: {name: ome-container, env: [{name: GENERATION, value: "%[2]s"}]}}
  decoder: {minReplicas: %[1]d, maxReplicas: 1, runner: {name: ome-container, env: [{name: GENERATION, value: "%[2]s"}]}}
  router: {minReplicas: %[1]d, maxReplicas: 1, runner: {name: router, env: [{name: GENERATION, value: "%[2]s"}]}}
`, minimum, generation)
}

// byRole are a service's pods, of which each role has one.
func byRole(pods []corev1.Pod) map[string]*corev1.Pod {
	out := map[string]*corev1.Pod{}
	for i := range pods {
		out[pods[i].Labels["roundhouse.dev/role"]] = &pods[i]
	}
	return out
}

// disaggregated has engine, decoder and router answer together, be replaced
// together, sleep and wake together; no request comes before one of them.
func disaggregated(ctx context.Context, p *product) {
	p.do(p.ApplyYAML(ctx, pairRuntime+"---"+pair(1, "1")))
	p.awaitReady(ctx, omeService, shapes, "pair")
	pods := p.awaitReplicas(ctx, shapes, "pair", 3)
	r := p.chat(shapes, "pair")
	r.must(p.t)
	roles := byRole(pods)
	for _, role := range []string{"engine", "decoder"} {
		if n := p.answered(ctx, roles[role]); n != 1 {
			p.t.Errorf("the %s answered %d requests, want 1", role, n)
		}
	}
	if account := roles["router"].Spec.ServiceAccountName; account != "pair-router" {
		p.t.Errorf("the router runs as %q", account)
	}
	l := start(p.t, r, 3, false)
	l.reach(p.t, 50)
	began := time.Now()
	p.do(p.ApplyYAML(ctx, pair(1, "2")))
	old := uids(pods)
	p.do(node.Await(ctx, p, "another generation", &corev1.PodList{}, func(l *corev1.PodList) bool {
		return len(l.Items) == 3 && !slices.ContainsFunc(l.Items, func(pod corev1.Pod) bool { return old[string(pod.UID)] || !ready(&pod) })
	}, client.InNamespace(shapes), client.MatchingLabels{"roundhouse.dev/service": "pair"}))
	p.t.Logf("three roles rolled in %.1f s", time.Since(began).Seconds())
	l.reach(p.t, 50)
	l.flawless(p.t, "a new revision of three roles")
	p.do(p.ApplyYAML(ctx, pair(0, "2")))
	began = time.Now()
	p.awaitReplicas(ctx, shapes, "pair", 0)
	p.t.Logf("asleep after %.1f s", time.Since(began).Seconds())
	// The decoder alone needs three seconds to start.
	took := r.must(p.t)
	p.t.Logf("the request that woke it took %.2f s", took.Seconds())
	if took < 3*time.Second {
		p.t.Errorf("the request was answered before the decoder can have been ready")
	}
	_, err := p.Kubectl(ctx, "delete", "inferenceservices.ome.io", "pair", "-n", shapes)
	p.do(err)
	p.nothingLeft(ctx)
}

// transformed has a transformer stay up before a predictor that sleeps: a
// request wakes that, and comes to the transformer once it is ready.
func transformed(ctx context.Context, p *product) {
	p.irisModel()
	p.do(p.ApplyYAML(ctx, `
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: flowers
  namespace: shapes
  annotations: {autoscaling.knative.dev/scale-to-zero-pod-retention-period: 5s}
spec:
  predictor:
    minReplicas: 0
    maxReplicas: 1
    model:
      modelFormat: {name: xgboost}
      protocolVersion: v1
      runtime: roundhouse-xgboost
      storageUri: pvc://models/iris.ubj
  transformer:
    minReplicas: 1
    containers:
    - {name: kserve-container, image: roundhouse.local/server:e2e, imagePullPolicy: Never, args: [transformer]}
    storageUris: [{uri: pvc://models/iris.ubj, mountPath: /mnt/own/iris.ubj}]
`))
	r := request{p.address, "flowers." + shapes + "." + domain, "/v1/models/flowers:predict", `{"instances":[[0.2,1.4,3.5,5.1]]}`, predicts(irisClass, 3)}
	p.await(ctx, kserveService, shapes, "flowers", "known", known)
	p.t.Logf("the first request took %.2f s", r.must(p.t).Seconds())
	u := p.awaitReady(ctx, kserveService, shapes, "flowers")
	if condition(u, "TransformerReady")["status"] != "True" {
		p.t.Errorf("TransformerReady is %v", condition(u, "TransformerReady"))
	}
	pods := byRole(p.awaitReplicas(ctx, shapes, "flowers", 2))
	if !slices.ContainsFunc(pods["transformer"].Spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/mnt/own/iris.ubj" && m.ReadOnly }) {
		p.t.Errorf("the transformer has no files of its own: %+v", pods["transformer"].Spec.Containers[0].VolumeMounts)
	}
	// The predictor by itself says otherwise: the row is the wrong way round.
	direct := r
	direct.address = net.JoinHostPort(pods["engine"].Status.PodIP, "8080")
	if err := direct.do(ctx, http.DefaultClient); err == nil {
		p.t.Error("the predictor's own answer is that of the transformer")
	}
	p.awaitReplicas(ctx, shapes, "flowers", 1)
	p.t.Logf("the request that woke the predictor took %.2f s", r.must(p.t).Seconds())
	again := byRole(p.awaitReplicas(ctx, shapes, "flowers", 2))
	if again["transformer"] == nil || again["transformer"].UID != pods["transformer"].UID {
		p.t.Error("the transformer did not stay")
	}
	_, err := p.Kubectl(ctx, "delete", "inferenceservices.serving.kserve.io", "flowers", "-n", shapes)
	p.do(err)
	p.nothingLeft(ctx)
}

// irisModel puts a model onto the namespace's volume.
func (p *product) irisModel() {
	p.t.Helper()
	model, err := os.ReadFile("../../examples/quickstart/models/iris.ubj")
	p.do(err)
	p.do(os.MkdirAll("/run/roundhouse/shapes", 0o755))
	p.do(os.WriteFile("/run/roundhouse/shapes/iris.ubj", model, 0o644))
}

// overGRPC asks a service of ours over the Open Inference Protocol's gRPC, at
// the gateways' Service; the first request wakes it.
func overGRPC(ctx context.Context, p *product) {
	p.irisModel()
	p.do(p.ApplyYAML(ctx, `
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: spoken, namespace: shapes}
spec:
  model: {uri: "pvc://models/iris.ubj", format: {name: xgboost}}
  scaling: {minReplicas: 0, maxReplicas: 1, scaleToZeroAfter: 5s}
`))
	p.await(ctx, modelService, shapes, "spoken", "known", known)
	var s corev1.Service
	p.do(p.Get(ctx, client.ObjectKey{Namespace: system, Name: gateway}, &s))
	conn, err := grpc.NewClient("passthrough:///"+net.JoinHostPort(s.Spec.ClusterIP, "8081"), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("spoken."+shapes+"."+domain))
	p.do(err)
	defer func() { p.do(conn.Close()) }()
	c := oip.NewGRPCInferenceServiceClient(conn)
	infer := &oip.ModelInferRequest{ModelName: "spoken", Inputs: []*oip.ModelInferRequest_InferInputTensor{{Name: "input-0", Datatype: "FP32", Shape: []int64{1, 4},
		Contents: &oip.InferTensorContents{Fp32Contents: []float32{5.1, 3.5, 1.4, 0.2}}}}}
	for _, what := range []string{"the first request", "the request that woke it"} {
		began := time.Now()
		answer, err := c.ModelInfer(ctx, infer)
		p.do(err)
		p.t.Logf("%s took %.2f s", what, time.Since(began).Seconds())
		if row := answer.GetOutputs(); len(row) != 1 || len(row[0].GetContents().GetFp32Contents())+len(answer.GetRawOutputContents()) == 0 {
			p.t.Errorf("the answer is %v", answer)
		}
		meta, err := c.ModelMetadata(ctx, &oip.ModelMetadataRequest{Name: "spoken"})
		if err != nil || meta.GetPlatform() != "xgboost" {
			p.t.Errorf("the model is %v: %v", meta, err)
		}
		p.awaitReplicas(ctx, shapes, "spoken", 0)
	}
	if _, err := c.ModelInfer(ctx, &oip.ModelInferRequest{ModelName: "nobody"}); status.Code(err) != codes.NotFound {
		p.t.Errorf("a model that nobody serves: %v", err)
	}
	_, err = p.Kubectl(ctx, "delete", "modelservices.roundhouse.dev", "spoken", "-n", shapes)
	p.do(err)
	p.nothingLeft(ctx)
}
