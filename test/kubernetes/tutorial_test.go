//go:build kubernetes && linux

package kubernetes

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
	"roundhouse.dev/roundhouse/test/kubernetes/node"
)

// tutorial is docs/tutorials/kserve.md, whose commands are run as they stand there.
type tutorial struct {
	*product
	dir    string   // where they run
	env    []string // with which
	blocks []string // of the page: the manifest, then each block of commands
}

// TestTutorial does what the tutorial of KServe says, command by command. The node
// has KServe's own definitions, and in place of its controller, whose image is not
// here, a Deployment of that name. The model lies on a volume, since the node
// reaches no store of the internet.
func TestTutorial(t *testing.T) {
	tu := &tutorial{product: &product{Cluster: node.Get(t)}}
	with := func(run func(context.Context, *tutorial)) func(context.Context, *product) {
		return func(ctx context.Context, _ *product) { run(ctx, tu) }
	}
	tu.live(t, []string{"KServe", "Look", "Install", "ServeTwice"}, []step{
		{"KServe", 0, with(tutorialKServe)},
		{"Look", 0, with(tutorialLook)},
		{"Install", 0, with(tutorialInstall)},
		{"ServeTwice", 0, with(tutorialServe)},
		{"KeepTheManifests", 0, with(tutorialKeep)},
		{"Uninstall", 0, with(tutorialUninstall)},
	})
}

// tutorialKServe has the cluster as its user finds it: with KServe, and a service.
func tutorialKServe(ctx context.Context, tu *tutorial) {
	page, err := os.ReadFile(filepath.Join(node.Root(), "docs/tutorials/kserve.md"))
	tu.do(err)
	for _, language := range []string{"yaml", "sh"} {
		for i, part := range strings.Split(string(page), "\n```"+language+"\n") {
			if block, _, ok := strings.Cut(part, "\n```"); i > 0 && ok {
				tu.blocks = append(tu.blocks, block+"\n")
			}
		}
	}
	if len(tu.blocks) != 6 {
		tu.t.Fatalf("the tutorial has %d blocks, this test knows 6", len(tu.blocks))
	}
	if tu.dir, err = os.MkdirTemp("", "tutorial-"); err != nil { // its folder goes with the namespaces
		tu.t.Fatal(err)
	}
	tu.do(os.Symlink(filepath.Join(node.Root(), "deploy"), filepath.Join(tu.dir, "deploy")))
	config, err := os.ReadFile(node.Kubeconfig)
	tu.do(err)
	kubeconfig := filepath.Join(tu.dir, "kubeconfig")
	tu.do(os.WriteFile(kubeconfig, []byte(strings.NewReplacer("{name: test, context:", "{name: production, context:", "current-context: test", "current-context: production").Replace(string(config))), 0o600))
	path := []string{filepath.Join(node.Root(), "bin/image/linux_"+runtime.GOARCH), node.Binaries(), filepath.Join(node.Root(), "bin"), os.Getenv("PATH")}
	tu.env = append(os.Environ(), "PATH="+strings.Join(path, ":"), "KUBECONFIG="+kubeconfig, "HOME="+tu.dir)

	tu.do(os.WriteFile(filepath.Join(tu.dir, "flowers.yaml"), []byte(tu.replaced(tu.blocks[0], "gs://kfserving-examples/models/xgboost/iris", "pvc://models/iris.ubj")), 0o600))
	kubetest.Published(tu.t, tu, "github.com/kserve/kserve@v0.15.2/config/crd/full/serving.kserve.io_*.yaml")
	tu.models(ctx, "models")
	tu.do(tu.ApplyYAML(ctx, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: kserve-controller-manager, namespace: kserve}
spec:
  selector: {matchLabels: {app: kserve}}
  template:
    metadata: {labels: {app: kserve}}
    spec: {containers: [{name: manager, image: `+node.Image+`, imagePullPolicy: Never, args: [simulate, engine]}]}
`))
	tu.run(ctx, "kubectl apply --namespace models -f flowers.yaml")
	tu.do(tu.Tag(ctx, node.Image, "registry.example/roundhouse:v1"))
}

// replaced is text with a part in another's place, which must be there.
func (tu *tutorial) replaced(text, old, by string) string {
	tu.t.Helper()
	if !strings.Contains(text, old) {
		tu.t.Fatalf("the tutorial has no %s in:\n%s", old, text)
	}
	return strings.ReplaceAll(text, old, by)
}

// run runs commands of the page and returns what they print.
func (tu *tutorial) run(ctx context.Context, commands string) string {
	tu.t.Helper()
	cmd := exec.CommandContext(ctx, "bash", "-euxc", commands)
	cmd.Dir, cmd.Env = tu.dir, tu.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		tu.t.Fatalf("%v:\n%s", err, out)
	}
	return string(out)
}

func tutorialLook(ctx context.Context, tu *tutorial) {
	tu.t.Log(tu.run(ctx, tu.blocks[1]))
	tu.t.Log(tu.run(ctx, tu.blocks[2]))
}

func tutorialInstall(ctx context.Context, tu *tutorial) {
	tu.t.Log(tu.run(ctx, tu.blocks[3]))
	tu.do(tu.AwaitRollout(ctx, system, controller))
	tu.do(tu.AwaitRollout(ctx, system, gateway))
	var s corev1.Service
	tu.do(tu.Get(ctx, client.ObjectKey{Namespace: system, Name: gateway}, &s))
	tu.address = net.JoinHostPort(s.Spec.ClusterIP, "80")
}

// tutorialServe: the ModelService that migrate printed serves, and KServe's service is
// as it was.
func tutorialServe(ctx context.Context, tu *tutorial) {
	tu.t.Log(tu.run(ctx, tu.blocks[4]))
	u := tu.await(ctx, modelService, "models", "flowers", "known", known)
	request{tu.address, tu.host(u), "/v2/models/flowers/infer", irisTensor, predicts(irisClass, 3)}.must(tu.t)
	tu.awaitReady(ctx, modelService, "models", "flowers")
	tu.awaitReplicas(ctx, "models", "flowers", 1)
	if theirs := tu.await(ctx, kserveService, "models", "flowers", "there", func(*unstructured.Unstructured) bool { return true }); theirs.Object["status"] != nil {
		tu.t.Errorf("the status of KServe's service was written: %v", theirs.Object["status"])
	}
}

// tutorialKeep: adopted, KServe's manifest itself serves.
func tutorialKeep(ctx context.Context, tu *tutorial) {
	tu.run(ctx, "kubectl delete --namespace models modelservice flowers")
	tu.awaitReplicas(ctx, "models", "flowers", 0)
	tu.t.Log(tu.run(ctx, tu.blocks[5]))
	u := tu.await(ctx, kserveService, "models", "flowers", "known", known)
	// Gateways see the label a moment after the controller has.
	ask := request{tu.address, tu.host(u), "/v2/models/flowers/infer", irisTensor, predicts(irisClass, 3)}
	for began, err := time.Now(), error(nil); ; {
		if err = ask.do(ctx, http.DefaultClient); err == nil {
			tu.t.Logf("answered %.1f s after the status was written", time.Since(began).Seconds())
			break
		}
		select {
		case <-time.After(100 * time.Millisecond): // between two tries
		case <-ctx.Done():
			tu.t.Fatal(err)
		}
	}
	tu.awaitReady(ctx, kserveService, "models", "flowers")
	var theirs appsv1.Deployment
	tu.do(tu.Get(ctx, client.ObjectKey{Namespace: "kserve", Name: "kserve-controller-manager"}, &theirs))
	if n := *theirs.Spec.Replicas; n != 0 {
		tu.t.Errorf("KServe's controller has %d replicas", n)
	}
}

// tutorialUninstall leaves the node without Roundhouse and without KServe.
func tutorialUninstall(ctx context.Context, tu *tutorial) {
	tu.run(ctx, "kubectl delete --namespace models inferenceservices.serving.kserve.io flowers; helm uninstall roundhouse --namespace roundhouse-system")
	tu.gone(ctx)
	began := time.Now()
	tu.run(ctx, "kubectl delete namespace models; kubectl delete deployment --namespace kserve kserve-controller-manager; kubectl delete persistentvolume models-models; kubectl get crd -o name | grep serving.kserve.io | xargs kubectl delete")
	tu.t.Logf("cleared in %s", time.Since(began).Round(time.Millisecond))
}
