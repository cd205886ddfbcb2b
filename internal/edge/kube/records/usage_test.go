package records_test

import (
	"math"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/usage"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
	"roundhouse.dev/roundhouse/internal/edge/kube/records"
	"roundhouse.dev/roundhouse/internal/state/metering"
)

var _ metering.Store = (*records.Usage)(nil)

func idleRow(name string, seconds float64) usage.Row {
	return usage.Row{Account: usage.Account{Namespace: "ml", Service: name, Component: service.RoleEngine}, Use: usage.Use{Replicas: usage.ByState{Idle: seconds}}}
}

// TestUsageDays: days are kept, listed and dropped in the API; one that somebody else
// wrote meanwhile is not written over, and one that nobody understands is counted anew.
func TestUsageDays(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	counted := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	a := records.NewUsage(c, ns)
	if days, err := a.Days(); err != nil || len(days) != 0 {
		t.Fatalf("%v, %v", days, err)
	}
	for i, day := range []usage.Day{"2026-11-22", "2026-11-20", "2026-11-21"} {
		if rows, _, err := a.Load(day); err != nil || len(rows) != 0 {
			t.Fatalf("%s: %v, %v", day, rows, err)
		}
		if err := a.Save(day, []usage.Row{idleRow("iris", float64(i))}, counted); err != nil {
			t.Fatal(err)
		}
	}
	b := records.NewUsage(c, ns) // the next leader's
	for _, s := range []*records.Usage{a, b} {
		if days, err := s.Days(); err != nil || len(days) != 3 || days[0] != "2026-11-20" || days[2] != "2026-11-22" {
			t.Fatalf("%v, %v", days, err)
		}
	}
	// Both load a day, both save it: the second is told, and nothing is lost.
	for _, s := range []*records.Usage{a, b} {
		if rows, at, err := s.Load("2026-11-21"); err != nil || len(rows) != 1 || rows[0].Replicas.Idle != 2 || !at.Equal(counted) {
			t.Fatalf("%v %v, %v", rows, at, err)
		}
	}
	if err := b.Save("2026-11-21", []usage.Row{idleRow("iris", 5)}, counted); err != nil {
		t.Fatal(err)
	}
	if err := a.Save("2026-11-21", []usage.Row{idleRow("iris", 9)}, counted); err == nil || !strings.Contains(err.Error(), "2026-11-21") {
		t.Errorf("written over: %v", err)
	}
	if rows, _, err := a.Load("2026-11-21"); err != nil || rows[0].Replicas.Idle != 5 {
		t.Errorf("%v, %v", rows, err)
	}
	if err := a.Drop("2026-11-20"); err != nil {
		t.Error(err)
	}
	if err := a.Drop("2026-11-20"); err != nil {
		t.Errorf("again: %v", err)
	}
	if days, _ := a.Days(); len(days) != 2 {
		t.Errorf("%v", days)
	}
	var m corev1.ConfigMap
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: usage.ConfigMapOf("2026-11-20")}, &m); !apierrors.IsNotFound(err) {
		t.Errorf("the dropped day: %v", err)
	}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: usage.ConfigMapOf("2026-11-22")}, &m); err != nil {
		t.Fatal(err)
	}
	m.BinaryData[usage.ConfigMapKey] = []byte("spoiled")
	if err := c.Update(t.Context(), &m); err != nil {
		t.Fatal(err)
	}
	if _, _, err := a.Load("2026-11-22"); err == nil || !strings.Contains(err.Error(), "counted anew") {
		t.Errorf("spoiled: %v", err)
	}
	if _, _, err := a.Load("2026-11-22"); err != nil {
		t.Errorf("spoiled, again: %v", err)
	}
	if err := a.Save("2026-11-22", []usage.Row{idleRow("iris", 1)}, counted); err != nil {
		t.Errorf("anew: %v", err)
	}
}

// TestUsageOverLeaders: controllers lead one after the other, some killed and some in
// good order. What ran is counted once, without a gap.
func TestUsageOverLeaders(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	now := time.Date(2026, 11, 22, 23, 59, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	iris, started := service.Key{Namespace: "ml", Name: "iris"}, now
	ready := []usage.Sample{usage.SampleOf(replica.Replica{Role: service.RoleEngine, Phase: replica.Ready, Started: started}, 2, 0)}
	var m *metering.Meter
	for range 4 {
		m = metering.New(metering.Config{Store: records.NewUsage(c, ns), Now: clock}).Resume()
		m.Observe(iris, ready)
		now = now.Add(30 * time.Second)
		m.Store()
		now = now.Add(10 * time.Second) // and is killed; the next leads at once
	}
	m = metering.New(metering.Config{Store: records.NewUsage(c, ns), Now: clock}).Resume()
	m.Observe(iris, nil)
	m.Store()
	rows, err := m.Report("2026-11-22", func(usage.Account) bool { return true })
	if err != nil || len(rows) != 2 || rows[0].Day != "2026-11-22" || rows[1].Day != "2026-11-23" {
		t.Fatalf("%+v, %v", rows, err)
	}
	_, sum := usage.Sum(rows)
	// The last leader finds nothing running: the 10 s before it are those that may be lost.
	if want := now.Sub(started).Seconds() - 10; math.Abs(sum.Replicas.Idle-want) > 0.01 || math.Abs(sum.GPUs.Idle-2*want) > 0.02 {
		t.Errorf("%v s idle, want %v: %+v", sum.Replicas.Idle, want, rows)
	}
}
