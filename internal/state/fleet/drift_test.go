package fleet_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// TestDrifted has the platform given everything again, and once.
func TestDrifted(t *testing.T) {
	r := newRig(t)
	r.apply(serviceYAML("iris", "scaling: {minReplicas: 1}"))
	r.reconcile("iris")
	r.took()
	r.Drifted(key("iris"))
	r.Drifted(key("nobody"))
	for _, want := range [][]string{{"apply default/iris", "scale default/iris/engine 1"}, nil} {
		r.reconcile("iris")
		got := r.took()
		if len(got) != len(want) || !slices.EqualFunc(got, want, strings.HasPrefix) {
			t.Errorf("calls %v, not %v", got, want)
		}
	}
}

// TestRefusalIsReported has the status say what the platform refused.
func TestRefusalIsReported(t *testing.T) {
	r := newRig(t)
	r.apply(serviceYAML("iris", "scaling: {minReplicas: 1}"))
	r.platform.fail = errors.New("exceeded quota: pods")
	if _, err := r.Reconcile(t.Context(), key("iris")); err == nil {
		t.Error("no error")
	}
	if n := len(r.reports); n != 1 || !strings.Contains(r.reports[0].Status.Conditions[0].Message, "exceeded quota") {
		t.Errorf("reports %+v", r.reports)
	}
}

// TestCreated keeps the time that whoever applies an object knows.
func TestCreated(t *testing.T) {
	r := newRig(t)
	objects := parse(t, serviceYAML("iris", "scaling: {minReplicas: 1}"))
	then := epoch.Add(-1e12)
	objects[0].SetCreated(then)
	if _, err := r.Apply(t.Context(), objects, fleet.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	if st, err := r.Get(t.Context(), key("iris")); err != nil || !st.Object.Created().Equal(then) {
		t.Errorf("created %v, %v", st.Object.Created(), err)
	}
}
