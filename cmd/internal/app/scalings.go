package app

import (
	"context"
	"time"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/printer"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/simulate/scaling"
)

// Scalings compares scaling policies over a trace.
type Scalings struct {
	Pool      scaling.Pool
	Limits    service.Limits
	Workloads []string
	Asked     scaling.Asked
	Startups  []string
	Policies  []string
	Seeds     int
	Goal      time.Duration
}

// Run replays every traffic with every startup time under every policy; done
// gets those of one traffic and startup time.
func (s *Scalings) Run(ctx context.Context, done func([]printer.Scaling) error) error {
	if s.Seeds < 1 || s.Seeds > maxSeeds {
		return command.Usagef("--seeds is %d: want 1 to %d", s.Seeds, maxSeeds)
	}
	if l := s.Limits; l.Min < 0 || l.Max < max(l.Min, 1) || !(l.Target > 0) || l.ScaleToZeroAfter < 0 {
		return command.Usagef("--min %d, --max %d, --target %v, --scale-to-zero-after %v: want 0 <= min <= max, and a target and a time above 0", l.Min, l.Max, l.Target, l.ScaleToZeroAfter)
	}
	var contestants []scaling.Contestant
	for _, name := range s.Policies {
		c, err := scaling.FindContestant(name)
		if err != nil {
			return command.Usagef("--policy: %w", err)
		}
		contestants = append(contestants, c)
	}
	for _, name := range s.Workloads {
		w, err := scaling.FindWorkload(name)
		if err != nil {
			return command.Usagef("--workload: %w", err)
		}
		for _, text := range s.Startups {
			pool := s.Pool
			if pool.Startup, err = scaling.ParseStartup(text); err == nil {
				err = pool.Validate()
			}
			if err != nil {
				return command.Usagef("%w", err)
			}
			all, err := s.compare(ctx, w, pool, contestants)
			if err != nil {
				return err
			}
			for i := range all {
				all[i].Startup = text
			}
			if err := done(all); err != nil {
				return err
			}
		}
	}
	return nil
}

// compare replays one traffic under every policy, once for each seed.
func (s *Scalings) compare(ctx context.Context, w scaling.Workload, pool scaling.Pool, contestants []scaling.Contestant) ([]printer.Scaling, error) {
	all := make([]printer.Scaling, len(contestants))
	for i, c := range contestants {
		all[i] = printer.Scaling{Workload: w.Name, Policy: c.Name}
	}
	for seed := range uint64(s.Seeds) {
		asked := s.Asked
		asked.Seed, pool.Seed = seed+1, seed+1
		trace, err := w.Generate(asked)
		if err != nil {
			return nil, command.Usagef("%w", err)
		}
		for i, c := range contestants {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			scaler, err := c.New(pool, trace, s.Limits)
			if err != nil {
				return nil, err
			}
			result, err := scaling.Run(pool, trace, scaler)
			if err != nil {
				return nil, err
			}
			all[i].Seeds = append(all[i].Seeds, result.Summarize(s.Goal))
		}
	}
	for i := range all {
		all[i].Summary = scaling.Median(all[i].Seeds)
	}
	return all, nil
}
