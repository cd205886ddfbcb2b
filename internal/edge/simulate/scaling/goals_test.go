package scaling

import (
	"slices"
	"testing"
	"time"
)

// TestShippedAgainstKnative: the shipped decision costs less than Knative's,
// and makes hardly more requests wait over two seconds: a twelfth more where
// Knative buys twice as much for a backlog.
func TestShippedAgainstKnative(t *testing.T) {
	for _, goal := range []struct {
		workload string
		cost     float64 // of Knative's replica-seconds
	}{{"bursty", 0.6}, {"on-off", 0.65}, {"diurnal", 1.02}, {"like-azure-code", 0.6}, {"like-azure-conversation", 1}} {
		for _, startup := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute} {
			var late, cost [2][]float64
			for seed := range uint64(3) {
				trace := generate(t, goal.workload, Asked{Seed: seed + 1})
				p := pool(startup)
				p.Seed = seed + 1
				for i, name := range []string{"roundhouse", "knative"} {
					c, err := FindContestant(name)
					if err != nil {
						t.Fatal(err)
					}
					r, _ := replay(t, c, p, trace)
					over := 0
					for _, w := range r.Waits {
						if w < 0 || w > 2*time.Second {
							over++
						}
					}
					late[i] = append(late[i], 100*float64(over)/float64(len(r.Waits)))
					cost[i] = append(cost[i], r.ReplicaSeconds)
				}
			}
			for i := range 2 {
				slices.Sort(late[i])
				slices.Sort(cost[i])
			}
			ratio := cost[0][1] / cost[1][1]
			t.Logf("%s, startup %v: %.2f of Knative's replica-seconds; %.2f %% wait over 2 s, with Knative %.2f %%", goal.workload, startup, ratio, late[0][1], late[1][1])
			if ratio > goal.cost || late[0][1] > 1.12*late[1][1]+0.5 {
				t.Errorf("%s, startup %v: %.2f of Knative's replica-seconds, want %.2f; %.2f %% wait over 2 s, with Knative %.2f %%",
					goal.workload, startup, ratio, goal.cost, late[0][1], late[1][1])
			}
		}
	}
}
