package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/app"
	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/printer"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/simulate/scaling"
)

func newSimulateScalingCommand() *cobra.Command {
	s := app.Scalings{Limits: service.Limits{Metric: service.MetricConcurrency}}
	var output string
	var about []string
	for _, w := range scaling.Workloads() {
		about = append(about, fmt.Sprintf("  %-24s %s", w.Name, w.Summary))
	}
	about = append(about, "", "The policies:", "")
	var policies []string
	for _, c := range scaling.Contestants() {
		about = append(about, fmt.Sprintf("  %-24s %s", c.Name, c.Summary))
		policies = append(policies, c.Name)
	}
	cmd := &cobra.Command{
		Use:   "scaling",
		Short: "Replay traffic through the autoscaler and others, in virtual time",
		Long: `Replay traffic through the autoscaler and others, and print what callers would have
waited for a free slot of a replica, and what the replicas would have cost. Time is
virtual: a month of traffic takes seconds. The same seed gives the same figures.

The synthetic workloads:

` + strings.Join(about, "\n"),
		Example: `  roundhouse simulate scaling
  roundhouse simulate scaling --workload diurnal --startup 30s,60s,120s --seeds 5
  roundhouse simulate scaling --workload bursty --slots 16 --service 2s --startup lognormal:60s:0.4`,
		Args: command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" {
				return command.Usagef("--output is %q: want json", output)
			}
			s.Pool.Max = s.Limits.Max
			if s.Limits.Target == 0 {
				s.Limits.Target = 0.85 * float64(s.Pool.Slots)
			}
			var all []printer.Scaling
			err := s.Run(cmd.Context(), func(some []printer.Scaling) error {
				all = append(all, some...)
				if output == "" {
					printer.Scalings(cmd.OutOrStdout(), some, s.Goal)
				}
				return nil
			})
			if err != nil || output == "" {
				return err
			}
			encoder := json.NewEncoder(cmd.OutOrStdout())
			encoder.SetIndent("", "  ")
			return encoder.Encode(all)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&s.Workloads, "workload", []string{"bursty"}, "synthetic traffic: some of those above")
	f.DurationVar(&s.Asked.Length, "length", 0, "how long the traffic lasts (default: the workload's)")
	f.DurationVar(&s.Asked.Service, "service", 0, "mean time that a request occupies a slot (default: the workload's)")
	f.Float64Var(&s.Asked.Rate, "rate", 1, "factor of the workload's requests per second")
	f.IntVar(&s.Pool.Slots, "slots", 8, "requests that a replica runs at once; more wait")
	f.IntVar(&s.Pool.Queue, "queue", 10_000, "requests that wait at most; more are refused")
	f.StringSliceVar(&s.Startups, "startup", []string{"60s"}, "time until a started replica serves: 60s, 30s-90s, or lognormal:60s:0.4 (median, deviation of the logarithm); several are replayed one after the other")
	f.IntVar(&s.Limits.Min, "min", 0, "minReplicas")
	f.IntVar(&s.Limits.Max, "max", 64, "maxReplicas")
	f.Float64Var(&s.Limits.Target, "target", 0, "targetConcurrency (default: 85 % of the slots); Knative's is 70 % of the slots")
	f.DurationVar(&s.Limits.ScaleToZeroAfter, "scale-to-zero-after", time.Minute, "scaleToZeroAfter; Knative has its window of 60 s and its grace period of 30 s")
	f.StringSliceVar(&s.Policies, "policy", policies, "policies to compare")
	f.IntVar(&s.Seeds, "seeds", 1, "replays of each policy, each with other traffic; the table shows medians")
	f.DurationVar(&s.Goal, "slo", 2*time.Second, "longest wait that counts as in time")
	f.StringVarP(&output, "output", "o", "", "json, with the figures of every seed (default: a table)")
	return cmd
}
