package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/app"
	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/manifestfile"
	"roundhouse.dev/roundhouse/cmd/internal/printer"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/simulate"
	"roundhouse.dev/roundhouse/internal/edge/simulate/scaling"
)

func newSimulateScalingCommand() *cobra.Command {
	s := app.Scalings{Limits: service.Limits{Metric: service.MetricConcurrency}}
	var output, svg string
	var about, policies, manifests []string
	for _, w := range scaling.Workloads() {
		about = append(about, fmt.Sprintf("  %-24s %s", w.Name, w.Summary))
	}
	about = append(about, "", "The policies:", "")
	for _, c := range scaling.Contestants() {
		about = append(about, fmt.Sprintf("  %-24s %s", c.Name, c.Summary))
		policies = append(policies, c.Name)
	}
	var suggest bool
	var prewarm string
	var share float64
	cmd := &cobra.Command{
		Use:   "scaling",
		Short: "Replay traffic through the autoscaler and others, in virtual time",
		Long: `Replay traffic through the autoscaler and others, and print what callers would have
waited for a free slot of a replica, and what the replicas would have cost. Time is
virtual: a month of traffic takes seconds. The same seed gives the same figures.

The traffic is a file or a synthetic workload. Files are Azure's CSV of LLM requests
(TIMESTAMP, ContextTokens, GeneratedTokens), a CSV of counts (timestamp, requests) or
of service times (timestamp, seconds), Mooncake's lines of JSON (timestamp,
input_length, output_length), or an access log of the gateway. The workloads:

` + strings.Join(about, "\n"),
		Example: `  roundhouse simulate scaling
  roundhouse simulate scaling --workload diurnal --startup 30s,60s,120s --seeds 5 --svg diurnal.svg
  roundhouse simulate scaling --workload bursty --slots 16 --service 2s --startup lognormal:60s:0.4
  roundhouse simulate scaling --workload cron,office-hours --prewarm auto
  roundhouse simulate scaling --policy roundhouse,knative/50/30s,knative/85/2m
  roundhouse simulate scaling --trace access.log --model chat -f chat.yaml
  roundhouse simulate scaling --trace access.log --model chat --suggest --slo 5s --late 0.02`,
		Args: command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := settleScaling(&s, prewarm); err != nil {
				return err
			}
			if len(manifests) > 0 {
				var err error
				if s.Manifests, err = manifestfile.Read(manifests, command.Stdin(cmd)); err != nil {
					return err
				}
			}
			if suggest && svg != "" {
				return command.Usagef("--svg has no effect with --suggest: give one of them")
			}
			if suggest {
				return suggestScaling(cmd, &s, share, output)
			}
			return compareScaling(cmd, &s, output, svg)
		},
	}
	addSimulateTrafficFlags(cmd, &s)
	addSimulateReplicaFlags(cmd, &s)
	f := cmd.Flags()
	f.StringSliceVar(&s.Policies, "policy", policies, "policies to compare; knative/50/30s is Knative's with a utilization of 50 percent and a stable window of 30 s")
	f.StringArrayVarP(&manifests, "filename", "f", nil, "manifest, or - for standard input: the scaling of its services is compared too; may be repeated")
	f.StringVar(&prewarm, "prewarm", string(service.PrewarmOff), "prewarm of the product's decision: auto or off")
	f.IntVar(&s.Seeds, "seeds", 1, "replays of each policy, each with other traffic; the table shows medians")
	f.DurationVar(&s.Goal, "slo", 2*time.Second, "longest wait that counts as in time")
	f.BoolVar(&suggest, "suggest", false, "search target, least and most replicas and idle time for the fewest replica-seconds within --late")
	f.Float64Var(&share, "late", 0.01, "share of requests that may wait longer than --slo, for --suggest")
	f.StringVar(&svg, "svg", "", "file for a chart of the load and of each policy's replicas over time, of the first seed")
	command.OutputFlag(cmd, &output, "json, with the figures of every seed (default: a table)", "json")
	return cmd
}

// settleScaling fills in what follows from other flags.
func settleScaling(s *app.Scalings, prewarm string) error {
	if prewarm != string(service.PrewarmOff) && prewarm != string(service.PrewarmAuto) {
		return command.Usagef("--prewarm is %q: want auto or off", prewarm)
	}
	s.Pool.Max, s.Limits.Prewarm = s.Limits.Max, prewarm == string(service.PrewarmAuto)
	if s.Limits.Target == 0 {
		s.Limits.Target = float64(s.Pool.Slots)
	}
	if s.Read.Service = s.Asked.Service; s.Read.Service == 0 {
		s.Read.Service = 4 * time.Second
	}
	return nil
}

func addSimulateTrafficFlags(cmd *cobra.Command, s *app.Scalings) {
	physics := simulate.DefaultPhysics()
	f := cmd.Flags()
	f.StringSliceVar(&s.Files, "trace", nil, "files of requests, in place of workloads")
	f.StringVar(&s.Read.Model, "model", "", "model or target whose lines of an access log count (default: all)")
	f.Float64Var(&s.Read.PromptRate, "prefill-tokens-per-second", physics.PrefillTokensPerSecond, "prompt tokens that a request computes per second, for traces that state tokens")
	f.Float64Var(&s.Read.OutputRate, "decode-tokens-per-second", physics.DecodeTokensPerSecond, "output tokens of a request per second, for traces that state tokens")
	f.StringSliceVar(&s.Workloads, "workload", []string{"bursty"}, "synthetic traffic: some of those above")
	f.DurationVar(&s.Asked.Length, "length", 0, "how long the traffic of a workload lasts (default: the workload's)")
	f.DurationVar(&s.Asked.Service, "service", 0, "mean time that a request occupies a slot (default: the workload's; 4s for a file of counts)")
	f.Float64Var(&s.Asked.Rate, "rate", 1, "factor of a workload's requests per second")
}

func addSimulateReplicaFlags(cmd *cobra.Command, s *app.Scalings) {
	f := cmd.Flags()
	f.IntVar(&s.Pool.Slots, "slots", 8, "requests that a replica runs at once; more wait")
	f.IntVar(&s.Pool.Queue, "queue", 10_000, "requests that wait at most; more are refused")
	f.StringSliceVar(&s.Startups, "startup", []string{"60s"}, "time until a started replica serves: 60s, 30s-90s, or lognormal:60s:0.4 (median, deviation of the logarithm); several are replayed one after the other")
	f.IntVar(&s.Limits.Min, "min", 0, "minReplicas")
	f.IntVar(&s.Limits.Max, "max", 64, "maxReplicas")
	f.Float64Var(&s.Limits.Target, "target", 0, "targetConcurrency (default: the slots); Knative's is 70 % of the slots")
	f.DurationVar(&s.Limits.ScaleToZeroAfter, "scale-to-zero-after", time.Minute, "scaleToZeroAfter; Knative has its window of 60 s and its grace period of 30 s")
}

func compareScaling(cmd *cobra.Command, s *app.Scalings, output, svg string) error {
	var all []printer.Scaling
	err := s.Run(cmd.Context(), func(some []printer.Scaling) error {
		all = append(all, some...)
		if output == "" {
			printer.Scalings(cmd.OutOrStdout(), some, s.Goal)
		}
		return nil
	})
	if err == nil && svg != "" {
		err = writeChart(svg, all)
	}
	if err != nil || output == "" {
		return err
	}
	return printer.JSON(cmd.OutOrStdout(), all)
}

func writeChart(file string, all []printer.Scaling) error {
	var b bytes.Buffer
	if err := printer.ScalingChart(&b, all); err != nil {
		return err
	}
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("--svg %s: %w", file, command.Cause(err))
	}
	return nil
}

func suggestScaling(cmd *cobra.Command, s *app.Scalings, share float64, output string) error {
	var all []printer.ScalingSuggestion
	err := s.Suggest(cmd.Context(), share, func(one printer.ScalingSuggestion) error {
		all = append(all, one)
		if output == "" {
			printer.SuggestedScaling(cmd.OutOrStdout(), one, s.Goal, share)
		}
		return nil
	})
	if err != nil || output == "" {
		return err
	}
	return printer.JSON(cmd.OutOrStdout(), all)
}
