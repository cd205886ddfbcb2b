package controller

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/network"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// TestQuota shows a refusal of the API server in the status, and heals when
// there is room.
func TestQuota(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	t.Parallel()
	none := corev1.ResourceList{"count/deployments.apps": resource.MustParse("0")}
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "none"}, Spec: corev1.ResourceQuotaSpec{Hard: none}}
	if err := c.Create(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	q.Status = corev1.ResourceQuotaStatus{Hard: none, Used: none} // there is no controller to count
	if err := c.Status().Update(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	begin(t, options(t, ns), kubetest.Server(t))
	u := kubetest.Apply(t, c, ns, iris)[0]
	kubetest.Eventually(t, func() string {
		if got := condition(get(t, c, u), "Ready"); !strings.Contains(got, "exceeded quota: none") {
			return "the quota's refusal, not " + got
		}
		return ""
	})
	kubetest.Eventually(t, func() string { return lacks(events(t, c, u), "PlatformFailed") })
	if err := c.Delete(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, func() string {
		if made(t, c, ns, "iris")["deployments"] != 1 {
			return "a Deployment"
		}
		return ""
	})
}

// TestBadManifest says on the object what is wrong; what ran goes on, also
// through a restart.
func TestBadManifest(t *testing.T) {
	c := kubetest.Client(t, "kserve")
	ns := kubetest.Namespace(t, c, nil)
	first := begin(t, options(t), kubetest.Server(t))
	u := kubetest.Apply(t, c, ns, kserveSklearn)[0]
	uid := func() string {
		var d appsv1.Deployment
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: u.GetName() + "-engine"}, &d); err != nil {
			return ""
		}
		return fmt.Sprint(d.UID, d.Generation)
	}
	kubetest.Eventually(t, func() string {
		if uid() == "" || field(get(t, c, u), "status", "observedGeneration") != "1" {
			return "a Deployment"
		}
		return ""
	})
	before := uid()
	kubetest.Apply(t, c, ns, strings.Replace(kserveSklearn, "storageUri", "storageURI", 1))
	said := func() string {
		if got := field(get(t, c, u), "status", "modelStatus", "lastFailureInfo", "message"); !strings.Contains(got, "spec.predictor.model.storageURI") {
			return "what is wrong, not " + got
		}
		return ""
	}
	kubetest.Eventually(t, said)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	told := func() (n int32) {
		var all corev1.EventList
		if err := c.List(t.Context(), &all, client.InNamespace(ns)); err != nil {
			t.Fatal(err)
		}
		for _, e := range all.Items {
			if e.InvolvedObject.Name == u.GetName() {
				n += 1 + e.Count
				if e.Series != nil {
					n += e.Series.Count
				}
			}
		}
		return n
	}
	events := told()
	cfg := kubetest.Server(t)
	writes := kubetest.Count(cfg)
	begin(t, options(t), cfg)
	probe := kubetest.Apply(t, c, ns, iris)[0]
	kubetest.Eventually(t, func() string {
		if field(get(t, c, probe), "status", "revision") == "<nil>" {
			return "the status of another service"
		}
		return said()
	})
	if got := uid(); got != before {
		t.Errorf("the Deployment was %s, is %s", before, got)
	}
	for _, w := range writes.Take() {
		if strings.Contains(w, u.GetName()) {
			t.Errorf("the restart wrote %s", w)
		}
	}
	if now := told(); now != events {
		t.Errorf("%d events of it before the restart, %d after", events, now)
	}
}

// TestUsage refuses in words what cannot be used.
func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "--image is missing"},
		{[]string{"--image", "i", "--adopt", "kserv"}, "not a dialect"},
		{[]string{"--image", "i", "--install-crds", "x"}, "write some of roundhouse"},
		{[]string{"--image", "i", "--gateway-url", "{name}"}, "write a URL"},
		{[]string{"--image", "i", "--lease-duration", "1s"}, "write 6s or more"},
	} {
		var out, logs bytes.Buffer
		if code := run(append([]string{"controller"}, c.args...), &out, &logs); code != 2 || !strings.Contains(logs.String(), c.want) {
			t.Errorf("%v: exit %d, %s", c.args, code, logs.String())
		}
	}
	file := t.TempDir() + "/none"
	var out, logs bytes.Buffer
	if code := run([]string{"controller", "--image", "i", "--kubeconfig", file}, &out, &logs); code != 1 || !strings.Contains(logs.String(), "no API server to speak to") {
		t.Errorf("exit %d, %s", code, logs.String())
	}
}

// TestInternalModels are refused, whichever name leads there.
func TestInternalModels(t *testing.T) {
	for text, internal := range map[string]bool{
		"127.0.0.1": true, "::1": true, "169.254.169.254": true, "10.1.2.3": true, "172.16.0.1": true, "192.168.1.1": true, "100.64.0.1": true,
		"0.0.0.0": true, "::": true, "fe80::1": true, "fd00::1": true, "::ffff:10.0.0.1": true, "64:ff9b::a00:1": true, "2002:a00:1::": true, "224.0.0.1": true, "::7f00:1": true, "2001:0:a00:1::": true, "::ffff:0:a00:1": true, "255.255.255.255": true,
		"8.8.8.8": false, "2001:4860:4860::8888": false, "172.32.0.1": false,
	} {
		if got := network.Internal(netip.MustParseAddr(text)); got != internal {
			t.Errorf("%s: internal %v", text, got)
		}
	}
	i, err := newInspector(t.TempDir(), false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for uri, want := range map[string]string{
		"file:///models/iris":         "pods run on any",
		"models/iris":                 "pods run on any",
		"http://localhost:1/m":        "internal address",
		"http://169.254.169.254/m":    "internal address",
		"http://[::ffff:127.0.0.1]/m": "internal address",
	} {
		_, err := i.Inspect(t.Context(), service.Files{URI: uri})
		var never interface{ NotExist() bool }
		if err == nil || !strings.Contains(err.Error(), want) || !asNotExist(err, &never) {
			t.Errorf("%s: %v", uri, err)
		}
	}
}

func asNotExist(err error, out *interface{ NotExist() bool }) bool {
	e, ok := err.(interface{ NotExist() bool })
	*out = e
	return ok && e.NotExist()
}
