//go:build kubernetes && linux

package kubernetes

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/test/kubernetes/node"
)

// shapes is the namespace of the services of these tests.
const shapes = "shapes"

// serverImage is the harness's own program.
const serverImage = "roundhouse.local/server:e2e"

// TestShapes lives with services that are more than one kind of pod: groups over
// several nodes, which the controller of LeaderWorkerSets runs, and engines,
// decoders, routers and transformers that call each other. The tests build on
// one another, but for those of another service.
func TestShapes(t *testing.T) {
	p := &product{Cluster: node.Get(t), t: t}
	p.live(t, []string{"Install"}, []step{
		{"Install", 2 * time.Minute, installShapes},
		{"GroupsInstalledLater", 3 * time.Minute, groupsLater},
		{"GroupsAnswer", 2 * time.Minute, groupsAnswer},
		{"GroupRestarts", 2 * time.Minute, groupRestarts},
		{"RollingGroups", 3 * time.Minute, rollingGroups},
		{"RollingOneGroup", 3 * time.Minute, rollingOneGroup},
		{"FailingGroups", 3 * time.Minute, failingGroups},
		{"GroupsScale", 4 * time.Minute, groupsScale},
		{"GroupsDeleted", 2 * time.Minute, groupsDeleted},
		{"GroupsOfKServe", 2 * time.Minute, groupsOfKServe},
		{"Disaggregated", 3 * time.Minute, disaggregated},
		{"Transformed", 3 * time.Minute, transformed},
		{"OverGRPC", 2 * time.Minute, overGRPC},
		{"Uninstall", 2 * time.Minute, uninstallShapes},
	})
}

func installShapes(ctx context.Context, p *product) {
	manifests, err := chart(ctx, values)
	p.do(err)
	p.do(p.StartNames(ctx))
	p.do(p.ImportProgram(ctx, "server", serverImage))
	p.do(p.ApplyYAML(ctx, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+system+"}\n---\n"+manifests))
	p.do(p.ApplyYAML(ctx, `
apiVersion: v1
kind: Namespace
metadata: {name: `+shapes+`}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: models-`+shapes+`}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadOnlyMany]
  storageClassName: ""
  claimRef: {namespace: `+shapes+`, name: models}
  hostPath: {path: /run/roundhouse/shapes, type: DirectoryOrCreate}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: models, namespace: `+shapes+`}
spec:
  accessModes: [ReadOnlyMany]
  storageClassName: ""
  volumeName: models-`+shapes+`
  resources: {requests: {storage: 1Gi}}
`))
	p.do(p.AwaitRollout(ctx, system, controller))
	p.do(p.AwaitRollout(ctx, system, gateway))
	var s corev1.Service
	p.do(p.Get(ctx, client.ObjectKey{Namespace: system, Name: gateway}, &s))
	p.address = net.JoinHostPort(s.Spec.ClusterIP, "80")
}

func uninstallShapes(ctx context.Context, p *product) {
	_, err := p.Kubectl(ctx, "delete", "namespace", shapes, "--wait")
	p.do(err)
	manifests, err := chart(ctx, values)
	p.do(err)
	p.do(p.DeleteYAML(ctx, manifests))
	p.gone(ctx)
}

// wideRuntime is a runtime of two nodes: the leader answers, and a worker is
// ready once it has found its leader by the name that LeaderWorkerSet gives.
const wideRuntime = `
apiVersion: ome.io/v1beta1
kind: BaseModel
metadata: {name: wide-700b, namespace: shapes}
spec:
  modelFormat: {name: safetensors, version: "1.0.0"}
  modelArchitecture: PretendForCausalLM
  modelParameterSize: 700B
  storage: {storageUri: pvc://models/wide}
---
apiVersion: ome.io/v1beta1
kind: ServingRuntime
metadata: {name: srt-wide, namespace: shapes}
spec:
  supportedModelFormats:
  - modelFormat: {name: safetensors, version: "1.0.0"}
    modelArchitecture: PretendForCausalLM
    autoSelect: true
    priority: 1
  protocolVersions: [openAI]
  modelSizeRange: {min: 650B, max: 750B}
  engineConfig:
    leader:
      runner:
        name: ome-container
        image: roundhouse.local/roundhouse:e2e
        imagePullPolicy: Never
        args: [simulate, engine, --host, 0.0.0.0, --port, "8080", --model, wide, --speed, "20"]
        ports: [{containerPort: 8080}]
        readinessProbe: {httpGet: {path: /health, port: 8080}, periodSeconds: 1}
    worker:
      size: 1
      runner:
        name: ome-container
        image: roundhouse.local/server:e2e
        imagePullPolicy: Never
        args: [worker, "$(LWS_LEADER_ADDRESS):8080", "8080"]
        readinessProbe: {httpGet: {path: /health, port: 8080}, periodSeconds: 1}
`

// wide is a service of groups of two.
func wide(minimum, maximum int, more string) string {
	return fmt.Sprintf(`
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata:
  name: wide
  namespace: shapes
  annotations: {autoscaling.knative.dev/scale-to-zero-pod-retention-period: 5s}
spec:
  model: {name: wide-700b, kind: BaseModel}
  engine:
    minReplicas: %d
    maxReplicas: %d
    scaleTarget: 2
    scaleMetric: concurrency
%s`, minimum, maximum, more)
}

// generation is what of a service makes another revision.
func generation(name string) string {
	return fmt.Sprintf(`
    leader:
      runner: {name: ome-container, env: [{name: GENERATION, value: "%s"}]}
`, name)
}

// groupSets is the kind that runs groups.
var groupSets = schema.GroupVersionKind{Group: "leaderworkerset.x-k8s.io", Version: "v1", Kind: "LeaderWorkerSetList"}

// awaitGroups waits until exactly n groups of the service wide are there,
// leader and worker ready, and no pod of an earlier generation.
func (p *product) awaitGroups(ctx context.Context, n int, without map[string]bool) (leaders, workers []corev1.Pod) {
	p.t.Helper()
	var l corev1.PodList
	err := node.Await(ctx, p, fmt.Sprintf("%d groups", n), &l, func(l *corev1.PodList) bool {
		return len(l.Items) == 2*n && !slices.ContainsFunc(l.Items, func(pod corev1.Pod) bool { return !ready(&pod) || without[string(pod.UID)] })
	}, client.InNamespace(shapes), client.MatchingLabels{"roundhouse.dev/service": "wide"})
	if err != nil {
		var lines []string
		for _, pod := range l.Items {
			lines = append(lines, fmt.Sprintf("%s %s ready=%v", pod.Name, pod.Status.Phase, ready(&pod)))
		}
		sets, _ := p.Kubectl(ctx, "get", "leaderworkersets,statefulsets", "-n", shapes)
		p.t.Fatalf("%v: %v\n%s", err, lines, sets)
	}
	for _, pod := range l.Items {
		if pod.Labels["leaderworkerset.sigs.k8s.io/worker-index"] == "0" {
			leaders = append(leaders, pod)
		} else {
			workers = append(workers, pod)
		}
	}
	return leaders, workers
}

func uids(lists ...[]corev1.Pod) map[string]bool {
	out := map[string]bool{}
	for _, l := range lists {
		for _, pod := range l {
			out[string(pod.UID)] = true
		}
	}
	return out
}

// groupsLater: a service over several nodes says what it lacks, and runs as
// soon as it is there.
func groupsLater(ctx context.Context, p *product) {
	p.do(p.ApplyYAML(ctx, wideRuntime+"---"+wide(2, 2, generation("1"))))
	p.await(ctx, omeService, shapes, "wide", "in want of LeaderWorkerSets", func(u *unstructured.Unstructured) bool {
		message, _ := condition(u, "Ready")["message"].(string)
		return strings.Contains(message, "install sigs.k8s.io/lws")
	})
	began := time.Now()
	p.do(p.InstallGroups(ctx))
	p.t.Logf("their controller is installed after %.1f s", time.Since(began).Seconds())
	began = time.Now()
	p.awaitReady(ctx, omeService, shapes, "wide")
	p.awaitGroups(ctx, 2, nil)
	p.t.Logf("two groups are ready %.1f s later", time.Since(began).Seconds())
}

// groupsAnswer: leaders answer, and they alone.
func groupsAnswer(ctx context.Context, p *product) {
	leaders, workers := p.awaitGroups(ctx, 2, nil)
	r := p.chat(shapes, "wide")
	l := start(p.t, r, 4, false)
	l.reach(p.t, 200)
	l.flawless(p.t, "two groups")
	for _, pod := range leaders {
		if n := p.answered(ctx, &pod); n == 0 {
			p.t.Errorf("%s answered nothing", pod.Name)
		}
	}
	for _, pod := range workers {
		if _, err := fetch(ctx, pod.Status.PodIP+":8080", "/health"); err != nil {
			p.t.Errorf("%s does not reach its leader: %v", pod.Name, err)
		}
	}
}

// groupRestarts: a worker that dies takes its group along; the other group goes
// on answering.
func groupRestarts(ctx context.Context, p *product) {
	leaders, workers := p.awaitGroups(ctx, 2, nil)
	l := start(p.t, p.chat(shapes, "wide"), 4, false)
	l.reach(p.t, 100)
	began := time.Now()
	p.kill(ctx, &workers[1])
	group := workers[1].Labels["leaderworkerset.sigs.k8s.io/group-index"]
	of := func(pod corev1.Pod) bool { return pod.Labels["leaderworkerset.sigs.k8s.io/group-index"] != group }
	p.awaitGroups(ctx, 2, uids(slices.DeleteFunc(slices.Concat(leaders, workers), of)))
	p.t.Logf("the group is ready again after %.1f s", time.Since(began).Seconds())
	l.reach(p.t, 200)
	l.flawless(p.t, "a group's restart")
}

// rollingGroups: two groups of a new revision take over, and no request fails.
func rollingGroups(ctx context.Context, p *product) {
	rollGroups(ctx, p, 2, "2")
}

// rollingOneGroup: so it is where one group is all there is.
func rollingOneGroup(ctx context.Context, p *product) {
	p.do(p.ApplyYAML(ctx, wide(1, 1, generation("2"))))
	p.awaitGroups(ctx, 1, nil)
	rollGroups(ctx, p, 1, "3")
}

func rollGroups(ctx context.Context, p *product, n int, name string) {
	leaders, workers := p.awaitGroups(ctx, n, nil)
	l := start(p.t, p.chat(shapes, "wide"), 4, false)
	l.reach(p.t, 100)
	began := time.Now()
	p.do(p.ApplyYAML(ctx, wide(n, n, generation(name))))
	p.awaitGroups(ctx, n, uids(leaders, workers))
	p.t.Logf("%d groups rolled in %.1f s", n, time.Since(began).Seconds())
	p.awaitReady(ctx, omeService, shapes, "wide")
	l.reach(p.t, 100)
	l.flawless(p.t, fmt.Sprintf("a new revision of %d groups", n))
}

// failingGroups: a revision that never gets ready leaves the group that serves,
// the status says why, and the next revision takes over.
func failingGroups(ctx context.Context, p *product) {
	leaders, workers := p.awaitGroups(ctx, 1, nil)
	l := start(p.t, p.chat(shapes, "wide"), 2, false)
	p.do(p.ApplyYAML(ctx, wide(1, 1, `
    leader:
      runner: {name: ome-container, args: [--speed, "-1"]}
`)))
	u := p.await(ctx, omeService, shapes, "wide", "said to fail", func(u *unstructured.Unstructured) bool {
		transition, _, _ := unstructured.NestedString(u.Object, "status", "modelStatus", "transitionStatus")
		return transition == "BlockedByFailedLoad"
	})
	if message := fmt.Sprint(condition(u, "Ready")["message"]); !strings.Contains(message, "exit code 2") {
		p.t.Errorf("the status does not say why: %s", message)
	}
	p.t.Logf("it is %v", condition(u, "Ready"))
	l.reach(p.t, 100)
	p.do(p.ApplyYAML(ctx, wide(1, 1, generation("4"))))
	p.awaitGroups(ctx, 1, uids(leaders, workers))
	p.awaitReady(ctx, omeService, shapes, "wide")
	l.reach(p.t, 50)
	l.flawless(p.t, "a failing revision of groups")
}

// groupsScale: load raises the count, its end lowers it to zero, and a request
// wakes the service.
func groupsScale(ctx context.Context, p *product) {
	p.do(p.ApplyYAML(ctx, wide(1, 2, generation("4"))))
	p.awaitGroups(ctx, 1, nil)
	l := start(p.t, p.chat(shapes, "wide"), 8, false)
	began := time.Now()
	p.awaitGroups(ctx, 2, nil)
	p.t.Logf("load raised the count after %.1f s", time.Since(began).Seconds())
	l.flawless(p.t, "a second group")
	began = time.Now()
	p.awaitGroups(ctx, 1, nil)
	p.t.Logf("one group is left %.1f s after the load", time.Since(began).Seconds())
	p.do(p.ApplyYAML(ctx, wide(0, 2, generation("4"))))
	began = time.Now()
	p.awaitGroups(ctx, 0, nil)
	p.t.Logf("none is left %.1f s later", time.Since(began).Seconds())
	p.t.Logf("the request that woke it took %.2f s", p.chat(shapes, "wide").must(p.t).Seconds())
	p.awaitGroups(ctx, 1, nil)
}

// groupsDeleted: nothing of the service is left.
func groupsDeleted(ctx context.Context, p *product) {
	_, err := p.Kubectl(ctx, "delete", "inferenceservices.ome.io", "wide", "-n", shapes)
	p.do(err)
	p.nothingLeft(ctx)
}

// groupsOfKServe: a worker that is written for KServe finds its head by the
// variable that KServe gives.
func groupsOfKServe(ctx context.Context, p *product) {
	p.do(p.ApplyYAML(ctx, `
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {name: nodes, namespace: shapes}
spec:
  supportedModelFormats: [{name: huggingface, version: "1", autoSelect: true, priority: 2}]
  protocolVersions: [v2]
  containers:
  - name: kserve-container
    image: roundhouse.local/roundhouse:e2e
    imagePullPolicy: Never
    args: [simulate, engine, --host, 0.0.0.0, --port, "8080", --model, llm, --speed, "20"]
    ports: [{containerPort: 8080}]
    readinessProbe: {httpGet: {path: /health, port: 8080}, periodSeconds: 1}
  workerSpec:
    pipelineParallelSize: 2
    containers:
    - name: worker-container
      image: roundhouse.local/server:e2e
      imagePullPolicy: Never
      args: [worker, "$(HEAD_SVC).$(POD_NAMESPACE).svc.cluster.local:8080", "8080"]
      env: [{name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}]
      readinessProbe: {httpGet: {path: /health, port: 8080}, periodSeconds: 1}
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: llm, namespace: shapes}
spec:
  predictor:
    workerSpec: {}
    model:
      modelFormat: {name: huggingface}
      runtime: nodes
      storageUri: pvc://models/llm
`))
	p.awaitReplicas(ctx, shapes, "llm", 2)
	p.awaitReady(ctx, kserveService, shapes, "llm")
	p.chat(shapes, "llm").must(p.t)
	_, err := p.Kubectl(ctx, "delete", "inferenceservices.serving.kserve.io", "llm", "-n", shapes)
	p.do(err)
	p.nothingLeft(ctx)
}

// nothingLeft waits until the namespace holds nothing that services are made
// of, ours or what others made for them.
func (p *product) nothingLeft(ctx context.Context) {
	p.t.Helper()
	sets := &unstructured.UnstructuredList{}
	sets.SetGroupVersionKind(groupSets)
	lists := map[string]client.ObjectList{
		"StatefulSets": &appsv1.StatefulSetList{}, "Deployments": &appsv1.DeploymentList{}, "pods": &corev1.PodList{},
		"Services": &corev1.ServiceList{}, "PodDisruptionBudgets": &policyv1.PodDisruptionBudgetList{}, "ControllerRevisions": &appsv1.ControllerRevisionList{},
	}
	if err := p.List(ctx, sets, client.InNamespace(shapes)); !meta.IsNoMatchError(err) {
		p.do(err)
		lists["LeaderWorkerSets"] = sets
	}
	for what, list := range lists {
		p.do(node.Await(ctx, p, "no "+what, list, func(l client.ObjectList) bool { return meta.LenList(l) == 0 }, client.InNamespace(shapes)))
	}
}
