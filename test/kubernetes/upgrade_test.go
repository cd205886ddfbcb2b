//go:build kubernetes && linux

package kubernetes

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/test/kubernetes/node"
)

// release is a chart and the tag of the image it is installed with.
type release struct{ chart, tag string }

const imageName = "roundhouse.local/roundhouse"

// before is an older release: what `make e2e-image-before` made of a commit.
func before() (r release, archive string) {
	dir := filepath.Join(node.Binaries(), "before")
	return release{filepath.Join(dir, "chart"), "before"}, filepath.Join(dir, "image.tar")
}

// TestUpgrade upgrades Roundhouse with Helm under load and takes it back: from
// an older release to this one, and to this one by another name, so that the
// image of our own runtimes is another one, too. No request fails, and no pod
// of any model is restarted or replaced.
func TestUpgrade(t *testing.T) {
	u := &upgrade{product: &product{Cluster: node.Get(t)}, now: release{filepath.Join(node.Root(), "deploy/helm/roundhouse"), "e2e"}}
	u.next = release{u.now.chart, "next"}
	first := u.now
	old, archive := before()
	if _, err := os.Stat(archive); err == nil {
		first = old
	}
	run := func(name string, step func(context.Context)) {
		if !t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			u.t = t
			began := time.Now()
			step(ctx)
			t.Logf("%s took %.1f s", name, time.Since(began).Seconds())
		}) {
			t.FailNow()
		}
	}
	run("Install", func(ctx context.Context) {
		if first == old {
			u.do(u.Import(ctx, archive))
		}
		u.do(u.Tag(ctx, node.Image, imageName+":"+u.next.tag))
		u.install(ctx, first)
	})
	run("Services", func(ctx context.Context) {
		native(ctx, u.product)
		kserve(ctx, u.product)
		ome(ctx, u.product)
		u.decides(ctx, first)
		u.own(ctx, "iris", first.tag)
	})
	if first == old {
		run("FromAnOlderRelease", func(ctx context.Context) { u.roll(ctx, u.now) })
	} else {
		t.Logf("not from an older release: no %s: make e2e-image-before", archive)
	}
	run("ToAnotherImage", func(ctx context.Context) { u.roll(ctx, u.next) })
	run("NewService", func(ctx context.Context) { u.late(ctx, u.next.tag) })
	run("Back", func(ctx context.Context) { u.roll(ctx, u.now) })
	if first == old {
		run("BackToTheOlderRelease", func(ctx context.Context) { u.roll(ctx, old) })
		run("AndUpAgain", func(ctx context.Context) { u.roll(ctx, u.now) })
	}
	run("Deletion", func(ctx context.Context) {
		deletion(ctx, u.product)
		u.helm(ctx, "uninstall", "roundhouse")
		u.gone(ctx)
	})
}

// upgrade is a product that Helm installs.
type upgrade struct {
	*product
	now, next release
	changes   int
}

func (u *upgrade) helm(ctx context.Context, args ...string) {
	u.t.Helper()
	cmd := exec.CommandContext(ctx, filepath.Join(node.Root(), "bin/helm"), append(args, "--namespace", system, "--kubeconfig", node.Kubeconfig)...)
	dir := u.t.TempDir()
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+dir, "HELM_CONFIG_HOME="+dir, "HELM_DATA_HOME="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		u.t.Fatalf("helm %s: %v: %s", args[0], err, out)
	}
}

// put has Helm install a release, or take the place of the one that is there.
func (u *upgrade) put(ctx context.Context, r release) {
	u.t.Helper()
	file := filepath.Join(u.t.TempDir(), "values.yaml")
	u.do(os.WriteFile(file, []byte(strings.Replace(values, "tag: e2e", "tag: "+r.tag, 1)), 0o600))
	u.helm(ctx, "upgrade", "roundhouse", r.chart, "--install", "--create-namespace", "--take-ownership", "--values", file)
}

func (u *upgrade) install(ctx context.Context, r release) {
	u.put(ctx, r)
	u.rolled(ctx, r)
	var s corev1.Service
	u.do(u.Get(ctx, client.ObjectKey{Namespace: system, Name: gateway}, &s))
	u.address = net.JoinHostPort(s.Spec.ClusterIP, "80")
	u.models(ctx)
}

// rolled waits until a release alone runs.
func (u *upgrade) rolled(ctx context.Context, r release) {
	u.t.Helper()
	u.do(u.AwaitRollout(ctx, system, gateway))
	u.do(u.AwaitRollout(ctx, system, controller))
	u.do(node.Await(ctx, u, "only pods of "+r.tag, &corev1.PodList{}, func(l *corev1.PodList) bool {
		return len(l.Items) == 4 && !slices.ContainsFunc(l.Items, func(pod corev1.Pod) bool { return imageOf(&pod) != imageName+":"+r.tag || !ready(&pod) })
	}, client.InNamespace(system)))
}

func imageOf(pod *corev1.Pod) string { return pod.Spec.Containers[0].Image }

// standing is what serves models: pods by their identity and restarts, and
// Deployments by how often their spec was changed.
func (u *upgrade) standing(ctx context.Context) map[string]string {
	u.t.Helper()
	out := map[string]string{}
	for _, ns := range []string{"apps", "kserve", "ome"} {
		for _, pod := range u.pods(ctx, ns, "") {
			out["pod "+ns+"/"+pod.Name] = fmt.Sprintf("%s, restarted %d times", pod.UID, restarts(&pod))
		}
		var l appsv1.DeploymentList
		u.do(u.List(ctx, &l, client.InNamespace(ns)))
		for _, d := range l.Items {
			out["Deployment "+ns+"/"+d.Name] = fmt.Sprintf("generation %d", d.Generation)
		}
	}
	return out
}

// roll upgrades to a release under load.
func (u *upgrade) roll(ctx context.Context, to release) {
	before := u.standing(ctx)
	kept, fresh := start(u.t, u.iris(), 4, false), start(u.t, u.iris(), 2, true)
	flowers := u.iris()
	flowers.host, flowers.path = "flowers.kserve."+domain, "/v2/models/flowers/infer"
	other := start(u.t, flowers, 1, false)
	all := []*load{kept, fresh, other}
	for _, l := range all {
		l.reach(u.t, 50)
	}
	began := time.Now()
	u.put(ctx, to)
	u.rolled(ctx, to)
	u.t.Logf("controllers and gateways rolled in %.1f s", time.Since(began).Seconds())
	u.decides(ctx, to)
	for _, l := range all {
		l.reach(u.t, 50)
	}
	for i, what := range []string{"kept connections", "new connections", "KServe's"} {
		all[i].flawless(u.t, what)
	}
	u.awaitReady(ctx, kserveService, "kserve", "flowers")
	after := u.standing(ctx)
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if before[name] != after[name] {
			u.t.Errorf("%s was %q and is %q", name, before[name], after[name])
		}
	}
	for name := range before {
		if _, there := after[name]; !there {
			u.t.Errorf("%s is gone", name)
		}
	}
}

// decides has whichever controller leads now look at a change that asks for no
// new pods, and reads of this release's which one that is. There are two
// replicas and no more, whatever the load.
func (u *upgrade) decides(ctx context.Context, r release) {
	u.t.Helper()
	u.changes++
	u.do(u.ApplyYAML(ctx, strings.Replace(fmt.Sprintf(irisManifest, "iris.ubj", "1"), "maxReplicas: 3", fmt.Sprintf("maxReplicas: 2, scaleToZeroAfter: %dm", u.changes), 1)))
	u.awaitReady(ctx, modelService, "apps", "iris")
	if r.chart != u.now.chart {
		return // it may not say who leads
	}
	leading := 0
	for _, pod := range u.pods(ctx, system, controller) {
		text, err := fetch(ctx, net.JoinHostPort(pod.Status.PodIP, "8090"), "/metrics")
		u.do(err)
		if strings.Contains(text, "\nroundhouse_controller_leading 1\n") {
			leading++
			if !strings.Contains(text, `roundhouse_controller_services{ready="True",reason="serving"}`) || !strings.Contains(text, `roundhouse_controller_kinds{state="unread"} 0`) {
				u.t.Errorf("%s leads and does not know its services: %.3000s", pod.Name, text[strings.Index(text, "roundhouse_controller"):])
			}
		}
	}
	if leading != 1 {
		u.t.Errorf("%d controllers say that they lead", leading)
	}
}

// own fails the test unless a service's pods are of an image of ours.
func (u *upgrade) own(ctx context.Context, service, tag string) {
	u.t.Helper()
	var l corev1.PodList
	u.do(u.List(ctx, &l, client.InNamespace("apps"), client.MatchingLabels{"roundhouse.dev/service": service}))
	for _, pod := range l.Items {
		if got := imageOf(&pod); got != imageName+":"+tag {
			u.t.Errorf("%s is of the image %s, want %s", pod.Name, got, tag)
		}
	}
	if len(l.Items) == 0 {
		u.t.Errorf("%s has no pods", service)
	}
}

// late makes a service after the upgrade: its pods are of the new image, those
// that were there are as they were.
func (u *upgrade) late(ctx context.Context, tag string) {
	manifest := strings.NewReplacer("name: iris,", "name: late,", "minReplicas: 2", "minReplicas: 1").Replace(fmt.Sprintf(irisManifest, "iris.ubj", "1"))
	u.do(u.ApplyYAML(ctx, manifest))
	u.awaitReady(ctx, modelService, "apps", "late")
	u.own(ctx, "late", tag)
	r := u.iris()
	r.host, r.path = "late.apps."+domain, "/v2/models/late/infer"
	r.must(u.t)
}
