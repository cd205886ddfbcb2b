package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/printer"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/picker"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/edge/simulate/replay"
)

// Replays compares picking policies over simulated engines.
type Replays struct {
	Config   replay.Config
	File     string // a trace, in place of a workload
	Workload string
	Requests int
	Rates    []float64 // requests a second
	Policies []string
	// Manifests have Pools, whose pickers are compared too.
	Manifests []admin.File
	Seeds     int
	Speed     float64 // of a trace
	Goal      time.Duration
}

// Run replays every traffic under every policy; done gets those of one traffic.
func (s *Replays) Run(ctx context.Context, done func([]printer.Replay) error) error {
	if s.Seeds < 1 || s.Seeds > maxSeeds {
		return command.Usagef("--seeds is %d: want 1 to %d", s.Seeds, maxSeeds)
	}
	policies, err := s.contestants()
	if err != nil {
		return err
	}
	traces, err := s.traces()
	if err != nil {
		return err
	}
	for _, t := range traces {
		replays, err := s.compare(ctx, t, policies)
		if err == nil {
			err = done(replays)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// contestant is a policy to compare.
type contestant struct {
	name   string
	picker *picker.Config // nil: the preset of that name
}

// contestants are the policies asked for, and the pickers of the manifests' Pools.
func (s *Replays) contestants() (all []contestant, err error) {
	for _, policy := range s.Policies {
		cfg := s.Config
		cfg.Policy = policy
		if err := cfg.Validate(); err != nil {
			return nil, command.Usagef("%w", err)
		}
		all = append(all, contestant{name: policy})
	}
	if len(s.Manifests) == 0 {
		return all, nil
	}
	objects, _, err := admin.Objects(s.Manifests, "")
	if err != nil {
		return nil, err
	}
	presets := len(all)
	for _, o := range objects {
		pool, ok := o.Routing.(*routing.Pool)
		if !ok {
			continue
		}
		c, err := picker.Of(pool.Picker)
		if err == nil {
			_, err = picker.New(c)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: spec.picker: %w", pool.Key, err)
		}
		all = append(all, contestant{pool.Key.String(), &c})
	}
	if len(all) == presets {
		return nil, errors.New("the manifests have no Pool whose picker could be compared")
	}
	return all, nil
}

// maxSeeds bounds the replays of one policy at one rate.
const maxSeeds = 1000

// traffic is what the policies are compared on: a trace for every seed.
type traffic struct {
	name  string
	rate  float64
	trace func(seed uint64) (*replay.Trace, error)
}

func (s *Replays) traces() ([]traffic, error) {
	if s.File != "" {
		if !(s.Speed > 0) {
			return nil, command.Usagef("--speed is %v: want more than 0", s.Speed)
		}
		in, err := os.Open(s.File)
		if err != nil {
			return nil, fmt.Errorf("--trace %s: %w", s.File, command.Cause(err))
		}
		t, err := replay.ReadMooncake(s.File, in)
		if err := errors.Join(err, in.Close()); err != nil {
			return nil, err
		}
		t.Scale(s.Speed)
		return []traffic{{name: s.File, trace: func(uint64) (*replay.Trace, error) { return t, nil }}}, nil
	}
	w, err := replay.FindWorkload(s.Workload)
	if err != nil {
		return nil, command.Usagef("--workload: %w", err)
	}
	if w.Adapters > 0 && s.Config.Physics.MaxAdapters == 0 {
		s.Config.Physics.MaxAdapters = 4
	}
	if s.Config.Concurrency > 0 { // the callers set the pace, so the times do not count
		return []traffic{{name: w.Name, trace: func(seed uint64) (*replay.Trace, error) { return w.Generate(s.Requests, 1, seed) }}}, nil
	}
	var all []traffic
	for _, rate := range s.Rates {
		all = append(all, traffic{name: w.Name, rate: rate, trace: func(seed uint64) (*replay.Trace, error) { return w.Generate(s.Requests, rate, seed) }})
	}
	return all, nil
}

// compare replays one traffic under every policy.
func (s *Replays) compare(ctx context.Context, t traffic, policies []contestant) ([]printer.Replay, error) {
	var all []printer.Replay
	for seed := range uint64(s.Seeds) {
		trace, err := t.trace(seed + 1)
		if err != nil {
			return nil, err
		}
		for _, policy := range policies {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			cfg := s.Config
			cfg.Policy, cfg.Picker, cfg.Seed, cfg.Target = policy.name, policy.picker, seed+1, s.Goal
			result, err := replay.Run(cfg, trace)
			if err != nil {
				return nil, err
			}
			all = append(all, printer.Replay{Workload: t.name, Rate: t.rate, Policy: policy.name, Seed: seed + 1, Summary: result.Summarize(s.Goal)})
		}
	}
	return all, nil
}
