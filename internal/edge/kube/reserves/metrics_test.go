package reserves

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/internal/decide/reserve"
)

// gathered is what the metrics tell, a line each.
func gathered(t *testing.T, k *Keeper) string {
	t.Helper()
	reg := prometheus.NewRegistry()
	if err := reg.Register(k); err != nil {
		t.Fatal(err)
	}
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range all {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetValue())
			}
			v := m.GetGauge().GetValue()
			if f.GetType() == dto.MetricType_COUNTER {
				v = m.GetCounter().GetValue()
			}
			out = append(out, fmt.Sprintf("%s %s %v", strings.TrimPrefix(f.GetName(), "roundhouse_reserve_"), strings.Join(labels, " "), v))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// TestMetrics: placeholders that make room count once each, however often their pods
// are seen, and what belonged to a Reserve or node that is gone goes with it.
func TestMetrics(t *testing.T) {
	k := &Keeper{tallies: newTallies()}
	s := newSeen(func() {}, k.tallies.placeholder)
	key := client.ObjectKey{Namespace: "a", Name: "room"}
	pod := func(name, reason string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, Labels: map[string]string{reserve.LabelReserve: "room"}}}
		if reason != "" {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason}}
		}
		return p
	}
	s.object(pod("one", ""), true)
	for range 3 {
		s.object(pod("one", corev1.PodReasonPreemptionByScheduler), true)
	}
	s.object(pod("one", corev1.PodReasonPreemptionByScheduler), false)
	s.object(pod("two", corev1.PodReasonPreemptionByScheduler), true) // seen too late to have been seen without
	s.object(pod("three", "DeletionByTaintManager"), true)
	k.tallies.status(key, api.ReserveStatus{Placeholders: &api.PlaceholderStatus{Wanted: 3, Running: 1, Pending: 2}, Images: &api.ReserveImageState{Wanted: 4, Present: 2, Pulling: 1, Failed: 1}})
	k.tallies.pulled("n1", true)
	k.tallies.pulled("n1", true)
	k.tallies.pulled("n2", false)
	const want = `image_pulls_total n1 pulled 2
image_pulls_total n2 failed 1
images a room failed 1
images a room present 2
images a room pulling 1
images a room wanted 4
placeholders a room pending 2
placeholders a room running 1
placeholders a room wanted 3
placeholders_preempted_total a room 2`
	if got := gathered(t, k); got != want {
		t.Errorf("got\n%s", got)
	}
	k.tallies.keep(&world{nodes: []reserve.Node{{Name: "n2"}}, reserves: []*unstructured.Unstructured{}})
	if got := gathered(t, k); got != "image_pulls_total n2 failed 1" {
		t.Errorf("after the Reserve and a node are gone:\n%s", got)
	}
	for i := range 3 * maxNodeSeries {
		k.tallies.pulled(fmt.Sprint("n", i), true)
	}
	for i := range 2 * maxReserveSeries {
		k.tallies.status(client.ObjectKey{Namespace: "a", Name: fmt.Sprint("r", i)}, api.ReserveStatus{Placeholders: &api.PlaceholderStatus{}})
	}
	if lines := strings.Split(gathered(t, k), "\n"); len(lines) > 2*maxNodeSeries+4*maxReserveSeries {
		t.Errorf("%d series", len(lines))
	}
}
