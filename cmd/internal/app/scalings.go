package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/printer"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/edge/simulate/scaling"
)

// Scalings compares scaling policies over traffic.
type Scalings struct {
	Pool      scaling.Pool
	Limits    service.Limits
	Files     []string // traces, in place of workloads
	Read      scaling.ReadOptions
	Workloads []string
	Asked     scaling.Asked
	Startups  []string
	Policies  []string
	Manifests []admin.File // services whose scaling is compared too
	Seeds     int
	Goal      time.Duration
}

// Run replays every traffic with every startup time under every policy; done
// gets those of one traffic and startup time.
func (s *Scalings) Run(ctx context.Context, done func([]printer.Scaling) error) error {
	contestants, err := s.contestants()
	if err != nil {
		return err
	}
	return s.each(func(name, startup string, cases []scaling.Case) error {
		all := make([]printer.Scaling, len(contestants))
		for i, contestant := range contestants {
			all[i] = printer.Scaling{Workload: name, Startup: startup, Policy: contestant.Name, Skipped: cases[0].Trace.Skipped}
			for _, c := range cases {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				result, err := c.Replay(contestant)
				if err != nil {
					return err
				}
				all[i].Seeds = append(all[i].Seeds, result.Summarize(s.Goal))
				if all[i].Counts == nil {
					all[i].Counts, all[i].Elapsed, all[i].Slots = result.Counts, result.Elapsed, c.Pool.Slots
				}
			}
			all[i].Summary = scaling.Median(all[i].Seeds)
		}
		return done(all)
	})
}

// Suggest searches the cheapest scaling for every traffic and startup time, with
// at most a share of the requests late.
func (s *Scalings) Suggest(ctx context.Context, share float64, done func(printer.ScalingSuggestion) error) error {
	if !(share >= 0 && share < 1) {
		return command.Usagef("--late is %v: want a share from 0 to less than 1", share)
	}
	return s.each(func(name, startup string, cases []scaling.Case) error {
		found, err := scaling.Suggest(cases, share, ctx.Err)
		if err != nil {
			return err
		}
		return done(printer.ScalingSuggestion{Workload: name, Startup: startup, Suggestion: found})
	})
}

// each calls with the cases of one traffic and startup time, one for each seed.
func (s *Scalings) each(with func(name, startup string, cases []scaling.Case) error) error {
	if err := s.validate(); err != nil {
		return err
	}
	all, err := s.traffic()
	if err != nil {
		return err
	}
	for _, t := range all {
		traces := make([]*scaling.Trace, s.Seeds)
		for i := range traces {
			if traces[i], err = t.trace(uint64(i) + 1); err != nil {
				return err
			}
		}
		for _, text := range s.Startups {
			pool := s.Pool
			if pool.Startup, err = scaling.ParseStartup(text); err == nil {
				err = pool.Validate()
			}
			if err != nil {
				return command.Usagef("%w", err)
			}
			cases := make([]scaling.Case, s.Seeds)
			for i := range cases {
				pool.Seed = uint64(i) + 1
				cases[i] = scaling.Case{Pool: pool, Trace: traces[i], Limits: s.Limits, Goal: s.Goal}
			}
			if err := with(t.name, text, cases); err != nil {
				return err
			}
		}
	}
	return nil
}

// validate returns what is out of range.
func (s *Scalings) validate() error {
	if s.Seeds < 1 || s.Seeds > maxSeeds {
		return command.Usagef("--seeds is %d: want 1 to %d", s.Seeds, maxSeeds)
	}
	if err := s.Pool.Validate(); err != nil {
		return command.Usagef("%w", err)
	}
	if !(s.Asked.Rate > 0) {
		return command.Usagef("--rate is %v: want more than 0", s.Asked.Rate)
	}
	if l := s.Limits; l.Min < 0 || l.Max < max(l.Min, 1) || !(l.Target > 0) || l.ScaleToZeroAfter < 0 || s.Goal < 0 {
		return command.Usagef("--min %d, --max %d, --target %v, --scale-to-zero-after %v, --slo %v: want 0 <= min <= max, max and target above 0, and times of 0 or more", l.Min, l.Max, l.Target, l.ScaleToZeroAfter, s.Goal)
	}
	return nil
}

// arrivals is what the policies are compared on: a trace for every seed.
type arrivals struct {
	name  string
	trace func(seed uint64) (*scaling.Trace, error)
}

// traffic is the files', else the workloads'.
func (s *Scalings) traffic() ([]arrivals, error) {
	var all []arrivals
	for _, file := range s.Files {
		all = append(all, arrivals{name: file, trace: func(seed uint64) (*scaling.Trace, error) { return s.read(file, seed) }})
	}
	if len(all) > 0 {
		return all, nil
	}
	for _, name := range s.Workloads {
		w, err := scaling.FindWorkload(name)
		if err != nil {
			return nil, command.Usagef("--workload: %w", err)
		}
		all = append(all, arrivals{name: w.Name, trace: func(seed uint64) (*scaling.Trace, error) {
			asked := s.Asked
			asked.Seed = seed
			trace, err := w.Generate(asked)
			if err != nil {
				return nil, command.Usagef("%w", err)
			}
			return trace, nil
		}})
	}
	return all, nil
}

func (s *Scalings) read(file string, seed uint64) (*scaling.Trace, error) {
	in, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("--trace %s: %w", file, command.Cause(err))
	}
	o := s.Read
	o.Seed = seed
	t, err := scaling.Read(file, in, o)
	return t, errors.Join(err, in.Close())
}

// contestants are the policies asked for, and the services of the manifests.
func (s *Scalings) contestants() ([]scaling.Contestant, error) {
	var all []scaling.Contestant
	for _, name := range s.Policies {
		c, err := scaling.FindContestant(name)
		if err != nil {
			return nil, command.Usagef("--policy: %w", err)
		}
		all = append(all, c)
	}
	if len(s.Manifests) == 0 {
		return all, nil
	}
	objects, _, err := admin.Objects(s.Manifests, "")
	if err != nil {
		return nil, err
	}
	found := false
	for _, o := range objects {
		if o.Service == nil {
			continue
		}
		found = true
		l := service.Scaling{}.Settled()
		if engine := o.Service.Components.Engine; engine != nil {
			l = engine.Scaling.Settled()
		}
		name := o.Service.Key.String()
		if len(l.Measured()) > 0 {
			return nil, fmt.Errorf("%s scales by %s, which a replay of requests does not have: want concurrency or rps", name, l.Measured()[0].Metric)
		}
		s.Pool.Max = max(s.Pool.Max, l.Max)
		all = append(all, scaling.Contestant{Name: name, New: func(c scaling.Case) (scaling.Scaler, error) { return scaling.NewShipped(l, c.Trace.Begin), nil }})
	}
	if !found {
		return nil, errors.New("the manifests have no service to compare")
	}
	return all, nil
}
