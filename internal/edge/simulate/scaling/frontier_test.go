package scaling

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// grid are the settings of Knative's that ours is compared with.
var grid = struct {
	utilization []int
	window      []string
}{[]int{30, 50, 70, 85, 100}, []string{"15s", "30s", "60s", "120s", "300s"}}

// TestBelowKnativesFrontier: of all settings of Knative's utilization and window,
// none has as few requests over two seconds as the product's decision for as few
// replica-seconds. The log has the frontier: the settings that no other one beats.
// Without -full it is asked for a startup of a minute, not of the longest workload, and
// of every third setting.
func TestBelowKnativesFrontier(t *testing.T) {
	for _, workload := range []string{"bursty", "on-off", "like-azure-code", "like-azure-conversation", "diurnal"} {
		if workload == "diurnal" && !*full {
			continue
		}
		for _, startup := range startups() {
			trace := generate(t, workload, Asked{Seed: 1})
			of := func(policy string) point {
				c, err := FindContestant(policy)
				if err != nil {
					t.Fatal(err)
				}
				p := pool(startup)
				p.Seed = 1
				r, _ := replay(t, c, p, trace)
				s := r.Summarize(2 * time.Second)
				return point{policy, 100 * s.Late, s.ReplicaSeconds}
			}
			ours := of("roundhouse")
			var all []point
			for i, u := range grid.utilization {
				for k, w := range grid.window {
					if !*full && (i+k)%3 > 0 {
						continue
					}
					all = append(all, of(fmt.Sprintf("knative/%d/%s", u, w)))
				}
			}
			var frontier []string
			for _, p := range all {
				if !slices.ContainsFunc(all, func(q point) bool { return q != p && q.late <= p.late && q.cost <= p.cost }) {
					frontier = append(frontier, fmt.Sprintf("%s %.2f %% %.2f", strings.TrimPrefix(p.policy, "knative/"), p.late, p.cost/ours.cost))
				}
				if p.late <= ours.late && p.cost <= ours.cost {
					t.Errorf("%s, startup %v: %s has %.2f %% over 2 s for %.0f replica-seconds, ours %.2f %% for %.0f", workload, startup, p.policy, p.late, p.cost, ours.late, ours.cost)
				}
			}
			cheapest := 0.0 // of those with no more late requests
			for _, p := range all {
				if p.late <= ours.late && (cheapest == 0 || p.cost < cheapest) {
					cheapest = p.cost
				}
			}
			t.Logf("%s, startup %v: ours %.2f %% for %.0f; the cheapest setting of Knative's with no more costs %.2f times that; frontier (late, cost of ours): %s",
				workload, startup, ours.late, ours.cost, cheapest/ours.cost, strings.Join(frontier, ", "))
		}
	}
}

// point is what a policy came to: percent of late requests, replica-seconds.
type point struct {
	policy     string
	late, cost float64
}

func TestKnativeSettingsByName(t *testing.T) {
	for _, name := range []string{"knative/", "knative/70", "knative/0/60s", "knative/101/60s", "knative/70/5s", "knative/70/2h", "knative/x/60s", "knative/NaN/60s"} {
		if _, err := FindContestant(name); err == nil {
			t.Errorf("%s is read", name)
		}
	}
	trace := generate(t, "bursty", Asked{Seed: 1, Length: time.Hour})
	var all []*Result
	for _, name := range []string{"knative", "knative/70/60s", "knative/35/60s"} {
		c, err := FindContestant(name)
		if err != nil {
			t.Fatal(err)
		}
		r, _ := replay(t, c, pool(time.Minute), trace)
		all = append(all, r)
	}
	if !slices.Equal(all[0].Waits, all[1].Waits) || all[0].ReplicaSeconds != all[1].ReplicaSeconds {
		t.Error("knative/70/60s differs from Knative's defaults")
	}
	if all[2].ReplicaSeconds <= all[0].ReplicaSeconds {
		t.Error("half the utilization costs no more")
	}
}
