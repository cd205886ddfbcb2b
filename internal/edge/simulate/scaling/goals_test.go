package scaling

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"
)

// full runs what takes minutes: every workload, startup time and seed.
var full = flag.Bool("full", false, "replay every workload, startup time and setting")

// startups are the startup times of a comparison.
func startups() []time.Duration {
	if *full {
		return []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute}
	}
	return []time.Duration{time.Minute}
}

// TestGoals: the shipped decision costs so much of Knative's replica-seconds and of the
// clairvoyant's, and has no more requests over two seconds than Knative's, in the
// medians of five seeds. Without -full it is asked for a startup of a minute, and not of
// the longest workload.
func TestGoals(t *testing.T) {
	for _, goal := range []struct {
		workload             string
		knative, clairvoyant float64 // of their replica-seconds
		more                 float64 // percent points over Knative's late requests
	}{{"bursty", 0.4, 1.8, 0}, {"on-off", 0.5, 2.15, 0}, {"like-azure-code", 0.3, 1.35, 0.2}, {"like-azure-conversation", 0.95, 1.3, 1.2}, {"diurnal", 1, 1.2, 0}} {
		if goal.workload == "diurnal" && !*full {
			continue
		}
		for _, startup := range startups() {
			policies := []string{"roundhouse", "knative", "clairvoyant"}
			late, cost := make([]float64, len(policies)), make([]float64, len(policies))
			for i, name := range policies {
				late[i], cost[i] = medians(t, goal.workload, name, startup)
			}
			of, best := cost[0]/cost[1], cost[0]/cost[2]
			text := fmt.Sprintf("%s, startup %v: %.2f %% over 2 s, Knative's %.2f %%; %.2f of Knative's replica-seconds, %.2f of the clairvoyant's",
				goal.workload, startup, late[0], late[1], of, best)
			t.Log(text)
			if late[0] > late[1]+goal.more || of > goal.knative || best > goal.clairvoyant {
				t.Errorf("%s; want at most %.2f points more, %.2f and %.2f", text, goal.more, goal.knative, goal.clairvoyant)
			}
		}
	}
}

// medians are the percent of requests over two seconds, and the replica-seconds.
func medians(t *testing.T, workload, policy string, startup time.Duration) (late, cost float64) {
	var lates, costs []float64
	for seed := range uint64(5) {
		p := pool(startup)
		p.Seed = seed + 1
		c, err := FindContestant(policy)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Case{Pool: p, Trace: generate(t, workload, Asked{Seed: seed + 1}), Limits: limits(), Goal: 2 * time.Second}.Replay(c)
		if err != nil {
			t.Fatal(err)
		}
		lates, costs = append(lates, 100*r.Summarize(2*time.Second).Late), append(costs, r.ReplicaSeconds)
	}
	slices.Sort(lates)
	slices.Sort(costs)
	return lates[len(lates)/2], costs[len(costs)/2]
}
