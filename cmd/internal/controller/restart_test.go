package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// TestRestartWritesNothing, nor does a controller of another release, whose
// image is another.
func TestRestartWritesNothing(t *testing.T) {
	const n = 50
	c := kubetest.Client(t, "kserve")
	ns := kubetest.Namespace(t, c, nil)
	o := options(t)
	cfg := kubetest.Server(t)
	writes := kubetest.Count(cfg)
	first := begin(t, o, cfg)
	var all []*unstructured.Unstructured
	for i := range n {
		text := iris
		if i%2 == 1 {
			text = kserveSklearn
		}
		all = append(all, kubetest.Apply(t, c, ns, strings.NewReplacer("name: iris", fmt.Sprintf("name: iris-%d", i), "example-sklearn-isvc", fmt.Sprintf("sklearn-%d", i)).Replace(text))...)
	}
	kubetest.Eventually(t, func() string {
		for _, u := range all {
			if field(get(t, c, u), "status", "observedGeneration") != "1" || made(t, c, ns, u.GetName())["deployments"] != 1 {
				return "status of " + u.GetName()
			}
		}
		return ""
	})
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%.1f writes a service", float64(len(writes.Take()))/n)
	for _, image := range []string{"", "registry.example/roundhouse:2"} {
		o := o
		if image != "" {
			o.image = image
		}
		cfg := kubetest.Server(t)
		writes := kubetest.Count(cfg)
		again := begin(t, o, cfg)
		// A change that comes after all else has been looked at.
		probe := kubetest.Apply(t, c, ns, strings.Replace(iris, "name: iris", "name: probe", 1))[0]
		kubetest.Eventually(t, func() string {
			if field(get(t, c, probe), "status", "revision") == "<nil>" {
				return "status of the probe"
			}
			return ""
		})
		if err := c.Delete(t.Context(), probe); err != nil {
			t.Fatal(err)
		}
		kubetest.Eventually(t, func() string { return strings.Join(keys(made(t, c, ns, "probe")), " ") })
		if err := again.stop(); err != nil {
			t.Fatal(err)
		}
		var wrote []string
		for _, w := range writes.Take() {
			if !strings.Contains(w, "probe") && !strings.Contains(w, "/events") && !strings.Contains(w, certificateName) && !strings.HasSuffix(w, "/secrets") && !strings.HasSuffix(w, "/configmaps") {
				wrote = append(wrote, w)
			}
		}
		// The record of the probe is created in a collection; what services used is
		// stored as time passes, whoever leads.
		wrote = slices.DeleteFunc(wrote, func(w string) bool {
			return strings.HasPrefix(w, "POST ") && strings.HasSuffix(w, "/controllerrevisions") || strings.Contains(w, "/configmaps/roundhouse-usage-")
		})
		if len(wrote) > 0 {
			t.Errorf("image %q: a restart wrote %d times: %v", image, len(wrote), wrote)
		}
	}
}

func keys(m map[string]int) (out []string) {
	for k := range m {
		out = append(out, k)
	}
	return out
}

// TestChange counts what one changed service costs.
func TestChange(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	cfg := kubetest.Server(t)
	writes := kubetest.Count(cfg)
	r := begin(t, options(t, ns), cfg)
	u := kubetest.Apply(t, c, ns, iris)[0]
	observed := func(generation string) func() string {
		return func() string {
			if got := field(get(t, c, u), "status", "observedGeneration"); got != generation {
				return "observedGeneration " + generation + ", not " + got
			}
			return ""
		}
	}
	kubetest.Eventually(t, observed("1"))
	kubetest.Eventually(t, func() string { return lacks(events(t, c, u), "Scaled") })
	writes.Take()
	kubetest.Apply(t, c, ns, strings.Replace(iris, "s3://models/iris", "s3://models/iris2", 1))
	kubetest.Eventually(t, observed("2"))
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	const most = 6
	if got := slices.DeleteFunc(writes.Take(), func(w string) bool { return strings.Contains(w, certificateName) }); len(got) > most {
		t.Errorf("%d writes: %v", len(got), got)
	} else {
		t.Logf("%d writes: %v", len(got), got)
	}
}
