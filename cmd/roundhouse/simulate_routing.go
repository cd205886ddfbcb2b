package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/decide/picker"
	"roundhouse.dev/roundhouse/internal/edge/simulate/replay"
)

// simulateRouting is `roundhouse simulate routing`.
type simulateRouting struct {
	replay   replay.Config
	file     string
	workload string
	requests int
	rates    []float64
	policies []string
	seeds    int
	speed    float64
	goal     time.Duration
	output   string
}

func newSimulateRoutingCommand() *cobra.Command {
	s := &simulateRouting{replay: replay.DefaultConfig()}
	var about []string
	for _, w := range replay.Workloads() {
		about = append(about, fmt.Sprintf("  %-14s %s", w.Name, w.Summary))
	}
	cmd := &cobra.Command{
		Use:   "routing",
		Short: "Replay a trace against simulated engines under several policies",
		Long: `Replay a trace against simulated engines under several policies, and print what
callers would have seen: time to the first token (TTFT), the part of prompt tokens
found in a prefix cache, and the requests a second whose first token came in time,
by criticality. Time is virtual: an hour of traffic takes seconds.

The trace is a file in Mooncake's format (lines of JSON with timestamp,
input_length, output_length, hash_ids), or a synthetic workload:

` + strings.Join(about, "\n"),
		Example: `  roundhouse simulate routing
  roundhouse simulate routing --workload unique --rate 20,40 --seeds 5
  roundhouse simulate routing --trace mooncake_trace.jsonl --engines 16 --speed 2
  roundhouse simulate routing --workload identical --requests 1000 --concurrency 8 --engines 4`,
		Args: command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd.Context(), cmd.OutOrStdout()) },
	}
	f := cmd.Flags()
	f.StringVar(&s.file, "trace", "", "file of requests in Mooncake's format, in place of a workload")
	f.StringVar(&s.workload, "workload", "shared-prefix", "synthetic requests: one of those above")
	f.IntVar(&s.requests, "requests", 2000, "requests of a workload")
	f.Float64SliceVar(&s.rates, "rate", []float64{16, 24, 32}, "requests a second of a workload; several are replayed one after the other")
	f.Float64Var(&s.speed, "speed", 1, "how much faster than written a trace file comes")
	f.IntVar(&s.replay.Gateways, "gateways", s.replay.Gateways, "gateways that take the requests by turns, each of which knows only what it sent itself")
	f.IntVar(&s.replay.Concurrency, "concurrency", 0, "callers that ask one after the other, whatever the times; 0 goes by the times")
	f.IntVar(&s.replay.Engines, "engines", s.replay.Engines, "simulated engines")
	f.StringSliceVar(&s.policies, "policy", []string{"round-robin", "least-request", "seed-50", "v0.3-128", picker.Default}, "policies to compare")
	f.DurationVar(&s.replay.Scrape, "scrape", s.replay.Scrape, "time between two looks at the engines' metrics")
	f.IntVar(&s.seeds, "seeds", 5, "replays of each, with traffic of their own; the figures are their medians")
	f.DurationVar(&s.goal, "slo", 2*time.Second, "time to the first token that makes an answer a good one")
	f.StringVarP(&s.output, "output", "o", "", "json prints every replay; the default is a table")
	addSimulatePhysicsFlags(cmd, &s.replay.Physics)
	return cmd
}

// replayed is one replay and what it was of.
type replayed struct {
	Workload string         `json:"workload"`
	Rate     float64        `json:"rate,omitempty"`
	Policy   string         `json:"policy"`
	Seed     uint64         `json:"seed"`
	Summary  replay.Summary `json:"summary"`
}

// maxSeeds bounds the replays of one policy at one rate.
const maxSeeds = 1000

func (s *simulateRouting) run(ctx context.Context, out io.Writer) error {
	if s.seeds < 1 || s.seeds > maxSeeds {
		return command.Usagef("--seeds is %d: want 1 to %d", s.seeds, maxSeeds)
	}
	if s.output != "" && s.output != "json" {
		return command.Usagef("--output is %q: want json, or nothing for a table", s.output)
	}
	for _, policy := range s.policies {
		cfg := s.replay
		cfg.Policy = policy
		if err := cfg.Validate(); err != nil {
			return command.Usagef("%w", err)
		}
	}
	traces, err := s.traces()
	if err != nil {
		return err
	}
	var all []replayed
	for _, t := range traces {
		done, err := s.compare(ctx, t)
		if err != nil {
			return err
		}
		all = append(all, done...)
		if s.output == "" {
			printReplays(out, done, s.goal)
		}
	}
	if s.output == "json" {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(all)
	}
	return nil
}

// offered is what the policies are compared on: a trace for every seed.
type offered struct {
	name  string
	rate  float64
	trace func(seed uint64) (*replay.Trace, error)
}

func (s *simulateRouting) traces() ([]offered, error) {
	if s.file != "" {
		if !(s.speed > 0) {
			return nil, command.Usagef("--speed is %v: want more than 0", s.speed)
		}
		in, err := os.Open(s.file)
		if err != nil {
			return nil, fmt.Errorf("--trace %s: %w", s.file, bare(err))
		}
		t, err := replay.ReadMooncake(s.file, in)
		if err := errors.Join(err, in.Close()); err != nil {
			return nil, err
		}
		t.Scale(s.speed)
		return []offered{{name: s.file, trace: func(uint64) (*replay.Trace, error) { return t, nil }}}, nil
	}
	w, err := replay.FindWorkload(s.workload)
	if err != nil {
		return nil, command.Usagef("--workload: %w", err)
	}
	if w.Adapters > 0 && s.replay.Physics.MaxAdapters == 0 {
		s.replay.Physics.MaxAdapters = 4
	}
	if s.replay.Concurrency > 0 { // the callers set the pace, so the times do not count
		return []offered{{name: w.Name, trace: func(seed uint64) (*replay.Trace, error) { return w.Generate(s.requests, 1, seed) }}}, nil
	}
	var all []offered
	for _, rate := range s.rates {
		all = append(all, offered{name: w.Name, rate: rate, trace: func(seed uint64) (*replay.Trace, error) { return w.Generate(s.requests, rate, seed) }})
	}
	return all, nil
}

// compare replays one traffic under every policy.
func (s *simulateRouting) compare(ctx context.Context, t offered) ([]replayed, error) {
	var all []replayed
	for seed := range uint64(s.seeds) {
		trace, err := t.trace(seed + 1)
		if err != nil {
			return nil, err
		}
		for _, policy := range s.policies {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			cfg := s.replay
			cfg.Policy, cfg.Seed = policy, seed+1
			result, err := replay.Run(cfg, trace)
			if err != nil {
				return nil, err
			}
			all = append(all, replayed{Workload: t.name, Rate: t.rate, Policy: policy, Seed: seed + 1, Summary: result.Summarize(s.goal)})
		}
	}
	return all, nil
}

// printReplays prints a line per policy, the medians over the seeds.
func printReplays(out io.Writer, all []replayed, goal time.Duration) {
	first := all[0]
	_, _ = fmt.Fprintf(out, "%s, %d requests", first.Workload, first.Summary.Requests)
	if first.Rate > 0 {
		_, _ = fmt.Fprintf(out, ", %g a second", first.Rate)
	}
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(tw, "\npolicy\tTTFT p50\tp90\tp99\thit rate\tmost of one\tshed\t%s\t\n", "≤"+goal.String()+": "+strings.Join(replay.Criticalities, "\t"))
	for i := range all {
		policy := all[i].Policy
		if slices.IndexFunc(all, func(r replayed) bool { return r.Policy == policy }) < i {
			continue
		}
		m := func(f func(replay.Summary) float64) float64 {
			var values []float64
			for _, r := range all {
				if r.Policy == policy {
					values = append(values, f(r.Summary))
				}
			}
			slices.Sort(values)
			return values[(len(values)-1)/2]
		}
		_, _ = fmt.Fprintf(tw, "%s\t%.3f s\t%.3f s\t%.3f s\t%.0f %%\t%.0f %%\t%.1f %%", policy,
			m(func(s replay.Summary) float64 { return s.First.P50 }), m(func(s replay.Summary) float64 { return s.First.P90 }),
			m(func(s replay.Summary) float64 { return s.First.P99 }), 100*m(func(s replay.Summary) float64 { return s.HitRate }),
			100*m(func(s replay.Summary) float64 { return s.Most }),
			100*m(func(s replay.Summary) float64 { return float64(s.Shed) / float64(s.Requests) }))
		for _, c := range replay.Criticalities {
			_, _ = fmt.Fprintf(tw, "\t%.1f/s", m(func(s replay.Summary) float64 { return s.Good[c] }))
		}
		_, _ = fmt.Fprintln(tw, "\t")
	}
	_ = tw.Flush()
	_, _ = fmt.Fprintln(out)
}
