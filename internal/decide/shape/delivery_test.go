package shape

import (
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/decide/workload"
)

func deployed(t *testing.T, rev workload.Revision, o Options) corev1.PodSpec {
	t.Helper()
	out, err := Render(rev, o)
	if err != nil || len(out.Deployments) != 1 {
		t.Fatal(len(out.Deployments), err)
	}
	return out.Deployments[0].Spec.Template.Spec
}

func initNames(pod *corev1.PodSpec) (out []string) {
	for _, c := range pod.InitContainers {
		out = append(out, c.Name)
	}
	return out
}

// TestDelivery: how a pod gets its model is the revision's, since the image that
// fetches is too; a server with that image has nothing to be pulled beside.
func TestDelivery(t *testing.T) {
	raw, err := os.ReadFile("testdata/single.in")
	if err != nil {
		t.Fatal(err)
	}
	rev := revision(t, "single.in", string(raw))
	o := everything
	o.HubEndpoint = "http://hub:8083"
	pod := deployed(t, rev, o)
	if got := initNames(&pod); !slices.Equal(got, []string{Fetcher, Waiter}) {
		t.Fatalf("init containers %q", got)
	}
	waiter, main := pod.InitContainers[1], pod.Containers[0]
	if waiter.Image != main.Image || len(waiter.Env) != 1 || waiter.SecurityContext.AllowPrivilegeEscalation == nil || *waiter.SecurityContext.AllowPrivilegeEscalation {
		t.Errorf("the waiter: %+v", waiter)
	}
	if pod.InitContainers[0].RestartPolicy == nil || *pod.InitContainers[0].RestartPolicy != corev1.ContainerRestartPolicyAlways {
		t.Error("the kubelet would wait for the download before it pulls")
	}

	earlier := rev
	earlier.Delivery = workload.Delivery{}
	pod = deployed(t, earlier, everything)
	if got := initNames(&pod); !slices.Equal(got, []string{Fetcher}) || pod.InitContainers[0].RestartPolicy != nil || slices.Contains(pod.InitContainers[0].Args, "--stay") {
		t.Errorf("a revision of an earlier release: %+v", pod.InitContainers)
	}

	ours := rev
	ours.Image = main.Image
	pod = deployed(t, ours, everything)
	if got := initNames(&pod); !slices.Equal(got, []string{Fetcher}) {
		t.Errorf("with our own image: %q", got)
	}

	ours.Delivery.Store = "/srv/models"
	pod = deployed(t, ours, everything)
	if got := initNames(&pod); !slices.Equal(got, []string{Fetcher, Waiter}) {
		t.Errorf("with a store: %q", got)
	}
	var host string
	for _, v := range pod.Volumes {
		if v.HostPath != nil {
			host = v.HostPath.Path
		}
	}
	mount := mountAt(&pod.Containers[0], modelPath)
	if host != "/srv/models/team" || mount == nil || !mount.ReadOnly || !strings.HasSuffix(mount.SubPathExpr, "/model") {
		t.Errorf("the server has %+v of %s", mount, host)
	}
}

// TestWithoutRights: the waiter has the server's user, and no right of it.
func TestWithoutRights(t *testing.T) {
	got := without(&corev1.SecurityContext{Privileged: new(true), RunAsUser: new(int64(7)), Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_ADMIN"}}})
	if got.Privileged != nil || *got.RunAsUser != 7 || len(got.Capabilities.Add) != 0 || !slices.Contains(got.Capabilities.Drop, "ALL") || !*got.ReadOnlyRootFilesystem {
		t.Errorf("%+v", got)
	}
	if without(nil).RunAsNonRoot != nil {
		t.Error("an image whose user is root would not be run")
	}
}
