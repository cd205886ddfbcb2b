//go:build kubernetes && linux

package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/test/kubernetes/node"
)

// kill ends the program of a pod by SIGKILL: nobody is told.
func (p *product) kill(ctx context.Context, pod *corev1.Pod) {
	p.t.Helper()
	for _, c := range pod.Status.ContainerStatuses {
		p.do(p.KillContainer(ctx, c.ContainerID))
	}
}

// awaitRestart waits until a pod is ready again that was killed before.
func (p *product) awaitRestart(ctx context.Context, pod *corev1.Pod) {
	p.t.Helper()
	before := restarts(pod)
	p.do(node.Await(ctx, p, pod.Name+" is ready again", &corev1.PodList{}, func(l *corev1.PodList) bool {
		return len(l.Items) == 1 && restarts(&l.Items[0]) > before && ready(&l.Items[0])
	}, client.InNamespace(pod.Namespace), client.MatchingFields{"metadata.name": pod.Name}))
}

// killedPod kills the program of one of two replicas under load, then deletes
// the other's pod without a grace. Nobody notices: requests that were not
// answered yet go to the one that is left.
func killedPod(ctx context.Context, p *product) {
	pods := p.awaitReplicas(ctx, "apps", "iris", 2)
	l := start(p.t, p.iris(), 6, false)
	l.reach(p.t, 200)
	began := time.Now()
	p.kill(ctx, &pods[0])
	p.awaitRestart(ctx, &pods[0])
	p.t.Logf("the killed one is back after %.1f s", time.Since(began).Seconds())
	l.reach(p.t, 200)
	began = time.Now()
	p.do(p.Delete(ctx, &pods[1], client.GracePeriodSeconds(0)))
	p.awaitGone(ctx, &pods[1])
	p.awaitReplicas(ctx, "apps", "iris", 2)
	p.t.Logf("another took the deleted one's place after %.1f s", time.Since(began).Seconds())
	l.reach(p.t, 100)
	l.flawless(p.t, "killed replicas")
}

func (p *product) awaitGone(ctx context.Context, pod *corev1.Pod) {
	p.t.Helper()
	p.do(node.Await(ctx, p, pod.Name+" is gone", &corev1.PodList{}, func(l *corev1.PodList) bool { return len(l.Items) == 0 },
		client.InNamespace(pod.Namespace), client.MatchingFields{"metadata.name": pod.Name}))
}

// killedGateway kills one of two gateways under load. The other answers all
// that is sent to it, and what is sent to their Service comes through again.
func killedGateway(ctx context.Context, p *product) {
	pods := p.pods(ctx, system, gateway)
	if len(pods) != 2 {
		p.t.Fatalf("%d gateways", len(pods))
	}
	to := func(address string) request {
		r := p.iris()
		r.address = address
		return r
	}
	living := start(p.t, to(net.JoinHostPort(pods[1].Status.PodIP, "8080")), 3, false)
	all := start(p.t, p.iris(), 3, true)
	living.reach(p.t, 100)
	all.reach(p.t, 100)
	p.kill(ctx, &pods[0])
	killed := time.Now()
	p.awaitRestart(ctx, &pods[0])
	p.t.Logf("two gateways again after %.1f s", time.Since(killed).Seconds())
	living.reach(p.t, 100)
	all.reach(p.t, 100)
	living.flawless(p.t, "the gateway that lived")
	failures := all.end()
	var last time.Time
	for _, f := range failures {
		if f.at.After(last) {
			last = f.at
		}
	}
	p.t.Logf("their Service: %d of %d requests failed, the last %.2f s after the kill", len(failures), all.asked.Load(), max(0, last.Sub(killed).Seconds()))
	if last.Sub(killed) > 5*time.Second {
		p.t.Errorf("requests still failed then: %v", failures[len(failures)-1].err)
	}
}

// killedController takes every controller away: what serves serves, and a
// service at zero wakes. They come back and change nothing.
func killedController(ctx context.Context, p *product) {
	p.awaitReplicas(ctx, "apps", "sleeper", 0)
	l := start(p.t, p.iris(), 2, false)
	p.scaled(ctx, system, controller, 0)
	p.t.Logf("without a controller a request woke the service in %.2f s", p.chat("apps", "sleeper").must(p.t).Seconds())
	before := p.names(ctx)
	p.scaled(ctx, system, controller, 2)
	p.awaitReplicas(ctx, "apps", "sleeper", 0) // somebody decides again
	l.flawless(p.t, "no controller")
	for name := range p.names(ctx) {
		if !before[name] {
			p.t.Errorf("the controllers that came back made the pod %s", name)
		}
	}
}

// names are the pods of services that serve throughout.
func (p *product) names(ctx context.Context) map[string]bool {
	p.t.Helper()
	out := map[string]bool{}
	for _, ns := range []string{"apps", "kserve", "ome"} {
		for _, pod := range p.pods(ctx, ns, "") {
			if !strings.HasPrefix(pod.Name, "sleeper") {
				out[pod.Name] = true
			}
		}
	}
	return out
}

// rollingModel changes a service under load: new replicas take the old ones'
// places, and no request fails.
func rollingModel(ctx context.Context, p *product) {
	old := map[string]bool{}
	for _, pod := range p.awaitReplicas(ctx, "apps", "iris", 2) {
		old[pod.Name] = true
	}
	l := start(p.t, p.iris(), 6, false)
	l.reach(p.t, 100)
	began := time.Now()
	p.do(p.ApplyYAML(ctx, fmt.Sprintf(irisManifest, "iris.ubj", "2")))
	err := node.Await(ctx, p, "two new pods", &corev1.PodList{}, func(l *corev1.PodList) bool {
		fresh := 0
		for _, pod := range l.Items {
			if old[pod.Name] || !ready(&pod) {
				return false
			}
			fresh++
		}
		return fresh == 2
	}, client.InNamespace("apps"), client.MatchingLabels{"roundhouse.dev/service": "iris"})
	p.do(err)
	p.t.Logf("rolled in %.1f s", time.Since(began).Seconds())
	p.awaitReady(ctx, modelService, "apps", "iris")
	l.reach(p.t, 100)
	l.flawless(p.t, "a new revision")
}

// rollingGateway upgrades the gateways under load, to the same image by another
// name.
func rollingGateway(ctx context.Context, p *product) {
	p.do(p.Tag(ctx, node.Image, "roundhouse.local/roundhouse:next"))
	manifests, err := chart(ctx, strings.Replace(values, "tag: e2e", "tag: next", 1))
	p.do(err)
	before := p.names(ctx)
	kept := start(p.t, p.iris(), 4, false)
	fresh := start(p.t, p.iris(), 2, true)
	kept.reach(p.t, 100)
	fresh.reach(p.t, 100)
	began := time.Now()
	p.do(p.ApplyYAML(ctx, manifests))
	p.do(p.AwaitRollout(ctx, system, gateway))
	p.do(p.AwaitRollout(ctx, system, controller))
	p.t.Logf("gateways and controllers rolled in %.1f s", time.Since(began).Seconds())
	// The old ones go on for a while after they left.
	p.do(node.Await(ctx, p, "the old gateways are gone", &corev1.PodList{}, func(l *corev1.PodList) bool { return len(l.Items) == 4 }, client.InNamespace(system)))
	kept.reach(p.t, 100)
	fresh.reach(p.t, 100)
	kept.flawless(p.t, "kept connections")
	fresh.flawless(p.t, "new connections")
	for name := range p.names(ctx) {
		if !before[name] {
			p.t.Errorf("a new controller made the pod %s", name)
		}
	}
}

// failingRevision asks for a model that is not there: what served goes on, and
// the status says what is wrong.
func failingRevision(ctx context.Context, p *product) {
	l := start(p.t, p.iris(), 3, false)
	p.do(p.ApplyYAML(ctx, fmt.Sprintf(irisManifest, "missing.ubj", "2")))
	u := p.await(ctx, modelService, "apps", "iris", "said to fail", func(u *unstructured.Unstructured) bool {
		why, _, _ := unstructured.NestedString(u.Object, "status", "model", "lastFailure", "message")
		return why != ""
	})
	status, _ := json.Marshal(u.Object["status"])
	p.t.Logf("the status says %s", status)
	l.reach(p.t, 200)
	p.do(p.ApplyYAML(ctx, fmt.Sprintf(irisManifest, "iris.ubj", "2")))
	p.awaitReady(ctx, modelService, "apps", "iris")
	p.awaitReplicas(ctx, "apps", "iris", 2)
	l.reach(p.t, 50)
	l.flawless(p.t, "a failing revision")
}

// apiServerGone takes the API server away for a minute. Requests flow, a pod
// that dies meanwhile is done without, and afterwards all is as before.
func apiServerGone(ctx context.Context, p *product) {
	p.awaitReplicas(ctx, "apps", "iris", 2)
	before := p.names(ctx)
	l := start(p.t, p.iris(), 3, false)
	l.reach(p.t, 50)
	restarts := p.restarts(ctx, gateway)
	p.do(p.StopAPIServer())
	away := time.NewTimer(time.Minute) // the outage itself
	select {
	case <-away.C:
	case <-ctx.Done():
	}
	p.do(p.StartAPIServer(ctx))
	l.reach(p.t, 100)
	p.do(p.AwaitRollout(ctx, system, gateway))
	p.do(p.AwaitRollout(ctx, system, controller))
	p.healed(ctx)
	if n := p.restarts(ctx, gateway); n != restarts {
		p.t.Errorf("the gateways restarted %d times", n-restarts)
	}
	p.t.Logf("a request woke a service in %.2f s afterwards", p.chat("apps", "sleeper").must(p.t).Seconds())
	p.awaitReplicas(ctx, "apps", "sleeper", 0)
	p.awaitReplicas(ctx, "apps", "iris", 2)
	l.flawless(p.t, "no API server for a minute")
	for name := range p.names(ctx) {
		if !before[name] {
			p.t.Errorf("the pod %s is new", name)
		}
	}
}

// healed waits until the cluster itself has found its API server again, whose
// clients try again after up to half a minute: a Deployment gets its pod.
func (p *product) healed(ctx context.Context) {
	p.t.Helper()
	began := time.Now()
	p.do(p.ApplyYAML(ctx, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: probe, namespace: default}
spec:
  selector: {matchLabels: {app: probe}}
  template:
    metadata: {labels: {app: probe}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: engine, image: "`+node.Image+`", imagePullPolicy: Never, args: [simulate, engine]}]
`))
	p.do(p.AwaitRollout(ctx, "default", "probe"))
	p.t.Logf("Kubernetes itself runs pods again after %.1f s", time.Since(began).Seconds())
	// A node that was taken for lost has no ready endpoints until its kubelet has
	// reported, and kube-proxy refuses new connections until it has heard of it.
	for {
		c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", p.address)
		if err == nil {
			p.do(c.Close())
			break
		}
		select {
		case <-ctx.Done():
			p.t.Fatalf("the gateway's Service: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
	p.t.Logf("its Services take connections again after %.1f s", time.Since(began).Seconds())
	_, err := p.Kubectl(ctx, "delete", "deployment", "probe", "--namespace", "default", "--wait=false")
	p.do(err)
}

// deletion deletes every service; nothing of theirs is left.
func deletion(ctx context.Context, p *product) {
	for _, args := range [][]string{
		{"delete", "modelservices.roundhouse.dev", "--all", "-n", "apps"},
		{"delete", "inferenceservices.serving.kserve.io", "--all", "-n", "kserve"},
		{"delete", "inferenceservices.ome.io", "--all", "-n", "ome"},
	} {
		_, err := p.Kubectl(ctx, args...)
		p.do(err)
	}
	ours := client.MatchingLabels{"app.kubernetes.io/managed-by": "roundhouse"}
	for what, list := range map[string]client.ObjectList{
		"Deployments": &appsv1.DeploymentList{}, "pods": &corev1.PodList{}, "Services": &corev1.ServiceList{},
		"PodDisruptionBudgets": &policyv1.PodDisruptionBudgetList{}, "ControllerRevisions": &appsv1.ControllerRevisionList{},
	} {
		for _, ns := range []string{"apps", "kserve", "ome"} {
			p.do(node.Await(ctx, p, "no "+what+" in "+ns, list, func(l client.ObjectList) bool {
				return meta.LenList(l) == 0
			}, client.InNamespace(ns), ours))
		}
	}
	r := p.iris()
	r.ok = func(status int, body []byte) error {
		if status != 404 {
			return fmt.Errorf("status %d: %.300s", status, body)
		}
		return nil
	}
	r.must(p.t)
}
