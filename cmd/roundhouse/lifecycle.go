package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/backend"
	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/progress"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// lifecycle is a command that changes how services run, by an edit of their manifests.
type lifecycle struct {
	remote
	namespaced
	wait    bool
	timeout time.Duration
	done    string // what it did, of a change that was one
}

// staying says what becomes of such an edit.
const staying = `
The change is made in the manifest that the server has; ` + "`get -o yaml`" + ` shows it. It
outlives restarts, and stays when the manifest is applied again unless that states
the same field. In a cluster the object is patched.`

func (l *lifecycle) flags(cmd *cobra.Command, waits string) {
	l.remote.flags(cmd)
	l.namespaced.flags(cmd)
	cmd.Flags().BoolVar(&l.wait, "wait", false, waits)
	cmd.Flags().DurationVar(&l.timeout, "timeout", 10*time.Minute, "how long --wait waits")
}

// run edits each of the named services, and waits for it where that is asked for.
func (l *lifecycle) run(cmd *cobra.Command, names []string, e dialect.Edit) error {
	b, err := l.open(cmd, &l.namespaced)
	if err != nil {
		return err
	}
	o := applyOptions{wait: l.wait, timeout: l.timeout, out: cmd.OutOrStdout(), err: cmd.ErrOrStderr(), progress: progress.New(cmd.ErrOrStderr())}
	for _, name := range names {
		k := l.key(name)
		ch, err := b.Edit(cmd.Context(), k, e)
		if err != nil {
			return err
		}
		if e.Stop != nil && !*e.Stop {
			woken, err := b.Wake(cmd.Context(), k)
			if err != nil {
				return err
			}
			o.awake = woken.Action == "woken"
		}
		if ch.Action != "unchanged" {
			ch.Action = l.done
		}
		if e.Stop == nil || !*e.Stop {
			err = o.report(cmd.Context(), b, []admin.Change{ch})
		} else {
			err = l.stopped(cmd.Context(), b, k, &o)
			o.print(ch, "")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// stopped waits until a service has no replica.
func (l *lifecycle) stopped(ctx context.Context, b backend.Backend, k service.Key, o *applyOptions) error {
	if !l.wait {
		return nil
	}
	s, err := backend.Await(ctx, b, k, func(s admin.Service) bool { return backend.Resolved(s) && len(s.Replicas) == 0 }, l.timeout, o.progress)
	if err == nil && len(s.Replicas) > 0 {
		err = fmt.Errorf("%s still has %d replicas: they finish the requests that they have", k, len(s.Replicas))
	}
	return err
}

func newStopCommand() *cobra.Command {
	l := lifecycle{done: "stopped"}
	cmd := &cobra.Command{
		Use:   "stop SERVICE…",
		Short: "Switch services off until they are started again",
		Long: `Switch services off until they are started again. Their replicas finish the requests
that they have, and end. Requests that come meanwhile are refused with 503 and start
nothing.` + staying,
		Example: `  roundhouse stop iris
  roundhouse stop llama mistral --wait
  roundhouse stop llama --context production`,
		Args: command.Wants(1, -1, "the name of a service"),
		RunE: func(cmd *cobra.Command, args []string) error {
			on := true
			return l.run(cmd, args, dialect.Edit{Stop: &on})
		},
	}
	l.flags(cmd, "wait until no replica is left")
	return cmd
}

func newStartCommand() *cobra.Command {
	l := lifecycle{done: "started"}
	cmd := &cobra.Command{
		Use:   "start SERVICE…",
		Short: "Switch services on, and start a replica of each",
		Long: `Switch services on that were stopped, and start a replica of each that has none, as a
request would. One that scales to zero stops again when it is idle for as long as its
manifest says. In a cluster such a service starts at its first request.` + staying,
		Example: `  roundhouse start iris
  roundhouse start llama --wait`,
		Args: command.Wants(1, -1, "the name of a service"),
		RunE: func(cmd *cobra.Command, args []string) error {
			off := false
			return l.run(cmd, args, dialect.Edit{Stop: &off})
		},
	}
	l.flags(cmd, "wait until a replica is ready")
	return cmd
}

func newRestartCommand() *cobra.Command {
	l := lifecycle{done: "restarted"}
	cmd := &cobra.Command{
		Use:   "restart SERVICE…",
		Short: "Replace all replicas of services, without losing requests",
		Long: `Replace all replicas of services as a rollout does: new ones start and become ready
before the old ones finish their requests and end. Where the machine has no room for
both, an old one ends first.` + staying,
		Example: `  roundhouse restart iris
  roundhouse restart llama --wait --timeout 20m
  roundhouse restart llama --context production`,
		Args: command.Wants(1, -1, "the name of a service"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return l.run(cmd, args, dialect.Edit{Restart: time.Now()})
		},
	}
	l.flags(cmd, "wait until the new replicas are ready")
	return cmd
}

func newScaleCommand() *cobra.Command {
	l := lifecycle{done: "scaled"}
	var replicas, least, most int
	var component string
	cmd := &cobra.Command{
		Use:   "scale SERVICE… --replicas N | --min N --max N",
		Short: "Set how many replicas services have",
		Long: `Set the least and the largest number of replicas of services: --replicas sets both.
The autoscaler decides between them. With --min 0 a service stops while it is idle.` + staying,
		Example: `  roundhouse scale iris --replicas 3
  roundhouse scale llama --min 0 --max 4
  roundhouse scale llama --component decoder --min 2
  roundhouse scale llama --replicas 2 --context production`,
		Args: command.Wants(1, -1, "the name of a service"),
		RunE: func(cmd *cobra.Command, args []string) error {
			given := cmd.Flags().Changed
			e := dialect.Edit{Component: service.Role(component)}
			switch {
			case given("replicas") && (given("min") || given("max")):
				return command.Usagef("--replicas sets both --min and --max: give it alone")
			case given("replicas"):
				e.Min, e.Max = &replicas, &replicas
			case given("min") || given("max"):
				if given("min") {
					e.Min = &least
				}
				if given("max") {
					e.Max = &most
				}
			default:
				return command.Usagef("say how many: --replicas N, or --min N and --max N")
			}
			if replicas < 0 || least < 0 || most < 0 {
				return command.Usagef("a number of replicas is not below 0: `roundhouse stop` switches a service off")
			}
			if given("replicas") && replicas == 0 {
				return command.Usagef("--replicas 0 is ambiguous: `roundhouse stop` switches a service off, --min 0 has it stop while it is idle")
			}
			if given("min") && given("max") && least > most {
				return command.Usagef("--min %d is more than --max %d", least, most)
			}
			return l.run(cmd, args, e)
		},
	}
	l.flags(cmd, "wait until the replicas are ready")
	cmd.Flags().IntVar(&replicas, "replicas", 0, "the number of replicas, both least and most")
	cmd.Flags().IntVar(&least, "min", 0, "the least number of replicas")
	cmd.Flags().IntVar(&most, "max", 0, "the largest number of replicas")
	cmd.Flags().StringVar(&component, "component", "engine", "component of a service that has several: engine, decoder, router or transformer")
	return cmd
}
