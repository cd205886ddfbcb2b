package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

func newApplyCommand() *cobra.Command {
	var r remote
	var files []string
	var reselect, force, wait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "apply -f FILE|FOLDER…",
		Short: "Apply manifests, and print what happened to each object",
		Long: `Make manifests the desired state: Roundhouse's own, KServe's (v1beta1
InferenceService, v1alpha1 runtimes) and OME's (v1beta1), as they are. All
objects of one call are applied, or, when any has a problem, none.

Model files given as file:// are read in place where the server can, and
uploaded where it cannot. Relative ones start at the manifest's folder, or at the
current one with -f -. On a cluster (--context) manifests are applied on the
server's side, once the API server has said that it would take all of them; those
without a namespace go into that of the context.`,
		Example: `  roundhouse apply -f iris.yaml
  roundhouse apply -f manifests/ --wait
  roundhouse apply -f iris.yaml --context production
  cat iris.yaml | roundhouse apply -f -`,
		Args: command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(files) == 0 {
				return command.Usagef("-f FILE is required")
			}
			manifests, err := readManifests(files, stdin(cmd))
			if err != nil {
				return err
			}
			c, err := r.open(cmd, nil)
			if err != nil {
				return err
			}
			return apply(cmd.Context(), c, applyOptions{files: manifests, reselect: reselect, force: force, wait: wait, timeout: timeout,
				out: cmd.OutOrStdout(), progress: newProgress(os.Stderr)})
		},
	}
	r.flags(cmd)
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "manifest file or folder, or - for standard input; may be repeated")
	cmd.Flags().BoolVar(&reselect, "reselect", false, "choose the runtime anew although one is pinned")
	cmd.Flags().BoolVar(&force, "force-conflicts", false, "on a cluster, take over fields that others have set")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until every service and its canary are ready or asleep")
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Minute, "how long --wait waits")
	return cmd
}

type applyOptions struct {
	files    []admin.File
	reselect bool
	force    bool
	wait     bool
	timeout  time.Duration
	out      io.Writer
	progress *progress
}

func apply(ctx context.Context, c backend, o applyOptions) error {
	for i := range o.files {
		if err := uploads(ctx, c, &o.files[i], o.progress.upload); err != nil {
			return err
		}
	}
	resp, err := c.Apply(ctx, admin.ApplyRequest{Files: o.files, Reselect: o.reselect, Force: o.force})
	if err != nil {
		return err
	}
	for _, w := range resp.Warnings {
		fmt.Fprintln(os.Stderr, w)
	}
	if len(resp.Changes) == 0 {
		return errors.New("nothing was applied: no manifest was given")
	}
	routed, err := routedNow(ctx, c, resp.Changes)
	if err != nil {
		return err
	}
	failed, began := 0, time.Now()
	for _, ch := range resp.Changes {
		if ch.Kind != "service" {
			_, _ = fmt.Fprintf(o.out, "%s %s%s\n", objectName(ch), ch.Action, routed[fleet.ID{Kind: ch.Kind, Key: key(ch)}])
			continue
		}
		until, limit := resolved, max(time.Second, resolveLimit-time.Since(began))
		if o.wait {
			until, limit = settled, o.timeout
		}
		svc, err := await(ctx, c, key(ch), until, limit, o.progress)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(o.out, "service %s %s: %s\n", key(ch), ch.Action, statusLine(svc))
		if o.wait && !taken(svc) {
			failed++
		}
	}
	if failed > 0 {
		within := ""
		if time.Since(began) >= o.timeout {
			within = " within " + o.timeout.String()
		}
		services, are := "services", "are"
		if failed == 1 {
			services, are = "service", "is"
		}
		return fmt.Errorf("%d %s %s not ready%s: see `roundhouse describe`", failed, services, are, within)
	}
	return nil
}

// resolveLimit is how long all services of one apply may take until what they
// run on is known; what is not known by then is said as it is.
const resolveLimit = 10 * time.Second

// routedNow says how the routing objects among changes are, ": " before.
func routedNow(ctx context.Context, c backend, changes []admin.Change) (map[fleet.ID]string, error) {
	out := map[fleet.ID]string{}
	if !slices.ContainsFunc(changes, func(ch admin.Change) bool {
		return !slices.Contains([]string{"service", "runtime", "model", "weight"}, ch.Kind)
	}) {
		return out, nil
	}
	list, err := c.Routing(ctx, "")
	for _, o := range list {
		out[fleet.ID{Kind: o.Type, Key: service.Key{Namespace: o.Namespace, Name: o.Name}}] = ": " + routingLine(o)
	}
	return out, err
}

// objectName is "kind namespace/name"; cluster-scoped objects have no
// namespace.
func objectName(c admin.Change) string {
	return fleet.ID{Kind: c.Kind, Key: key(c)}.String()
}

func key(c admin.Change) service.Key { return service.Key{Namespace: c.Namespace, Name: c.Name} }

// resolved: what runs is known, or why nothing can.
func resolved(s admin.Service) bool {
	return len(s.Status.Conditions) > 0 && s.Status.Generation == s.Generation
}

// settled: it answers requests, or will not without help.
func settled(s admin.Service) bool {
	ready := s.Ready()
	switch {
	case !resolved(s):
		return false
	case ready.Status == "True":
		// Replicas are being replaced, or the canary's start.
		return s.Status.Model.Transition != service.InProgress && canary(s) != service.InProgress
	case ready.Status == "False":
		return ready.Reason != "Starting" && ready.Reason != "Fetching" && ready.Reason != "Pending"
	}
	return false
}

// canary is how far a service's canary has come, "" without one.
func canary(s admin.Service) service.Transition {
	if c := s.Status.Canary; c != nil {
		return c.Transition
	}
	return ""
}

// taken: it answers as its manifest now says, and not as the one before did.
func taken(s admin.Service) bool {
	done := func(t service.Transition) bool { return t == service.UpToDate || t == "" }
	return s.Ready().Status == "True" && done(s.Status.Model.Transition) && done(canary(s))
}

// await polls a service until it is as wanted or the limit is over, and
// returns it as it then is.
func await(ctx context.Context, c backend, k service.Key, until func(admin.Service) bool, limit time.Duration, p *progress) (admin.Service, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer p.done()
	var last admin.Service
	first, most := pace(c)
	for wait := first; ; wait = min(2*wait, most) {
		svc, err := c.Service(ctx, k)
		switch {
		case ctx.Err() == context.DeadlineExceeded && last.Name != "":
			return last, nil
		case err != nil:
			return svc, err
		case until(svc):
			return svc, nil
		}
		last = svc
		p.service(svc)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			if ctx.Err() == context.Canceled {
				return last, ctx.Err()
			}
			return last, nil
		}
	}
}

// whyNot returns why a canary is not ready: KServe's and OME's statuses tell it of
// the last failure alone.
func whyNot(s admin.Service) string {
	why := s.Status.Canary.Why
	if f := s.Status.Model.LastFailure; f != nil && canary(s) != service.InProgress {
		why = cmp.Or(why, f.Message)
	}
	return cmp.Or(why, "not ready yet: the revision before serves")
}

// statusLine says in one line what a service runs on and how it is.
func statusLine(s admin.Service) string {
	ready := s.Ready()
	on := ""
	if r := s.Status.Runtime; r.Name != "" {
		on = "on " + r.Name + ", "
	}
	switch {
	case ready.Status == "True" && ready.Message != "" && ready.Message != service.WakesAtRequest:
		return on + "ready, but " + ready.Message
	case ready.Status == "True" && canary(s) != "" && canary(s) != service.UpToDate:
		return on + "ready, but its canary is not: " + whyNot(s)
	case ready.Status == "True" && ready.Reason == "Asleep":
		return on + "asleep, " + service.WakesAtRequest
	case ready.Status == "True":
		return on + "ready"
	case ready.Message != "":
		return on + "not ready: " + ready.Message
	case ready.Status == "":
		return "not yet looked at"
	default:
		return on + "not ready: " + ready.Reason
	}
}
