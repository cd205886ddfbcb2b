package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"roundhouse.dev/roundhouse/catalog"
	"roundhouse.dev/roundhouse/cmd/internal/backend"
	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/manifestfile"
	"roundhouse.dev/roundhouse/cmd/internal/printer"
	"roundhouse.dev/roundhouse/cmd/internal/progress"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
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
		Short: "Create or update objects from manifests",
		Long: `Create or update the objects in manifests: Roundhouse's own, those of KServe
(v1beta1 InferenceService, v1alpha1 runtimes) and those of OME (v1beta1), unchanged.
Either all objects are applied or, if one has an error, none.

The server reads a model file (file://) where it is, if it can; otherwise the file
is uploaded. Relative paths start at the folder of the manifest, or with -f - at the
current folder. In a cluster (--context), manifests are applied server-side, after a
dry run of all of them; objects without a namespace go into that of the context.

--wait waits until services are ready or asleep, and until the servers of pools have
been checked. It fails if a service is not ready in time, if no server of a pool is
healthy, or if a route leads to nothing that serves; the error gives the reason.
Without --wait, apply prints the state of routes and pools at that moment.`,
		Example: `  roundhouse apply -f iris.yaml
  roundhouse apply -f manifests/ --wait
  roundhouse apply -f iris.yaml --context production
  cat iris.yaml | roundhouse apply -f -`,
		Args: command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(files) == 0 {
				return command.Usagef("-f FILE is required")
			}
			manifests, err := manifestfile.Read(files, command.Stdin(cmd))
			if err != nil {
				return err
			}
			c, err := r.open(cmd, nil)
			if err != nil {
				return err
			}
			return apply(cmd.Context(), c, applyOptions{files: manifests, reselect: reselect, force: force, wait: wait, timeout: timeout,
				out: cmd.OutOrStdout(), err: cmd.ErrOrStderr(), progress: progress.New(cmd.ErrOrStderr())})
		},
	}
	r.flags(cmd)
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "manifest file or folder, or - for standard input; may be repeated")
	cmd.Flags().BoolVar(&reselect, "reselect", false, "choose the runtime again, although one is pinned")
	cmd.Flags().BoolVar(&force, "force-conflicts", false, "in a cluster, take over fields that other managers own")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until services and their canaries are ready or asleep, routes and pools are ready, and benchmarks have ended")
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Minute, "how long --wait waits")
	return cmd
}

type applyOptions struct {
	files    []admin.File
	reselect bool
	force    bool
	wait     bool
	awake    bool // a service that sleeps is waited for too
	timeout  time.Duration
	out, err io.Writer
	progress *progress.Bar
}

func apply(ctx context.Context, b backend.Backend, o applyOptions) error {
	for i := range o.files {
		if err := manifestfile.Upload(ctx, b, &o.files[i], o.progress.Upload); err != nil {
			return err
		}
	}
	resp, err := b.Apply(ctx, admin.ApplyRequest{Files: o.files, Reselect: o.reselect, Force: o.force})
	if err != nil {
		return err
	}
	for _, w := range resp.Warnings {
		_, _ = fmt.Fprintln(o.err, w)
	}
	if len(resp.Changes) == 0 {
		return errors.New("nothing to apply: the files contain no object")
	}
	o.name(b.Platform(), resp.Changes)
	return o.report(ctx, b, resp.Changes)
}

// name has changes show the kinds that their manifests have.
func (o *applyOptions) name(at dialect.Platform, changes []admin.Change) {
	objects, _, err := admin.ObjectsOn(at, o.files, "")
	if err != nil {
		return // what was applied was read
	}
	shown := map[fleet.ID]string{}
	for _, obj := range objects {
		shown[obj.ID()] = backend.Shown(obj)
	}
	for i := range changes {
		ch := &changes[i]
		stated := id(*ch)
		unstated := stated // a cluster puts it into the namespace of the command
		unstated.Namespace = service.DefaultNamespace
		ch.Shown = cmp.Or(shown[stated], shown[unstated])
	}
}

// report prints the state of each changed object, after having waited for it if
// that is asked for. The error names those that are not ready then.
func (o *applyOptions) report(ctx context.Context, b backend.Backend, changes []admin.Change) error {
	routed, err := o.routed(ctx, b, changes, 0)
	if err != nil {
		return err
	}
	failed, began := 0, time.Now()
	var routing, jobs []admin.Change // waited for after the services that they lead to
	for _, ch := range changes {
		state, ok := routed[id(ch)]
		switch {
		case ok && o.wait:
			routing = append(routing, ch)
			continue
		case ok:
			o.print(ch, ": "+printer.RoutingLine(state))
			continue
		case o.wait && ch.Kind == fleet.BenchmarkKind:
			jobs = append(jobs, ch)
			continue
		case ch.Kind != "service":
			o.print(ch, "")
			continue
		}
		until, limit := o.until(began)
		svc, err := backend.Await(ctx, b, key(ch), until, limit, o.progress)
		if err != nil {
			return err
		}
		o.print(ch, ": "+printer.ServiceLine(svc))
		if o.wait && !backend.UpToDate(svc) {
			failed++
		}
	}
	reasons, err := o.routes(ctx, b, routing)
	if err != nil {
		return err
	}
	unmeasured, err := o.benchmarks(ctx, b, jobs)
	if err != nil {
		return err
	}
	if failed > 0 {
		within := ""
		if time.Since(began) >= o.timeout {
			within = " within " + o.timeout.String()
		}
		are := "are"
		if failed == 1 {
			are = "is"
		}
		reasons = append(reasons, fmt.Sprintf("%s %s not ready%s: `roundhouse describe NAME` shows why", command.Count(failed, "service"), are, within))
	}
	if reasons = append(reasons, unmeasured...); len(reasons) > 0 {
		return errors.New(strings.Join(reasons, "; "))
	}
	return nil
}

// routes waits for routes and pools, prints them, and says which are not ready.
func (o *applyOptions) routes(ctx context.Context, b backend.Backend, changes []admin.Change) (reasons []string, err error) {
	routed, err := o.routed(ctx, b, changes, o.timeout)
	if err != nil {
		return nil, err
	}
	for _, ch := range changes {
		o.print(ch, ": "+printer.RoutingLine(routed[id(ch)]))
		if why := backend.Unready(routed[id(ch)]); why != "" {
			reasons = append(reasons, objectName(ch)+" is not ready: "+why)
		}
	}
	return reasons, nil
}

// benchmarks waits for benchmarks to end, prints them, and says which have not measured.
func (o *applyOptions) benchmarks(ctx context.Context, b backend.Backend, changes []admin.Change) (reasons []string, err error) {
	if len(changes) == 0 {
		return nil, nil
	}
	var keys []service.Key
	for _, ch := range changes {
		keys = append(keys, key(ch))
	}
	known, err := backend.AwaitBenchmarks(ctx, b, keys, o.timeout)
	if err != nil {
		return nil, err
	}
	for _, ch := range changes {
		is := known[key(ch)]
		o.print(ch, ": "+cmp.Or(is.State, "Pending"))
		switch {
		case is.State == "Failed":
			reasons = append(reasons, objectName(ch)+" failed: "+is.Reason)
		case !backend.Ended(is):
			why := objectName(ch) + " has not ended within " + o.timeout.String()
			if is.Reason != "" {
				why += ": " + is.Reason
			}
			reasons = append(reasons, why)
		}
	}
	return reasons, nil
}

// until is what a service is waited for to be, and for how long, of an apply that
// began then.
func (o *applyOptions) until(began time.Time) (func(admin.Service) bool, time.Duration) {
	switch {
	case !o.wait:
		return backend.Resolved, max(time.Second, resolveLimit-time.Since(began))
	case o.awake:
		return backend.Started, o.timeout
	}
	return backend.Settled, o.timeout
}

// print prints what became of an object, and its state.
func (o *applyOptions) print(ch admin.Change, state string) {
	_, _ = fmt.Fprintf(o.out, "%s %s%s\n", objectName(ch), ch.Action, state)
}

// resolveLimit bounds how long apply waits, for all services together, until their
// runtimes are chosen.
const resolveLimit = 10 * time.Second

// routed returns the routes and pools among changes, once their state is known or
// the limit is over.
func (o *applyOptions) routed(ctx context.Context, b backend.Backend, changes []admin.Change, limit time.Duration) (map[fleet.ID]admin.RoutingObject, error) {
	var ids []fleet.ID
	for _, ch := range changes {
		if !slices.Contains([]string{"service", "runtime", "model", "weight", dialect.BaseID, dialect.AcceleratorID, dialect.ConfigMapID, fleet.BenchmarkKind, fleet.CacheKind, fleet.NodeGroupKind, dialect.StorageContainerID, fleet.SecretKind, fleet.AccountKind}, ch.Kind) {
			ids = append(ids, id(ch))
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	return backend.AwaitRouting(ctx, b, ids, limit)
}

// objectName is "kind namespace/name"; cluster-scoped objects have no
// namespace.
func objectName(c admin.Change) string {
	return fleet.ID{Kind: cmp.Or(c.Shown, c.Kind), Key: key(c)}.String()
}

func id(c admin.Change) fleet.ID { return fleet.ID{Kind: c.Kind, Key: key(c)} }

func key(c admin.Change) service.Key { return service.Key{Namespace: c.Namespace, Name: c.Name} }

func newDeleteCommand() *cobra.Command {
	var r remote
	var n namespaced
	var files []string
	cmd := &cobra.Command{
		Use:   "delete [services|runtimes|models|routes|pools] NAME… | -f FILE",
		Short: "Delete objects; the replicas of a service stop",
		Example: `  roundhouse delete iris
  roundhouse delete runtime my-runtime
  roundhouse delete -f manifests/
  roundhouse delete iris --context production`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := r.open(cmd, &n)
			if err != nil {
				return err
			}
			selected := n.selection(args)
			if len(selected.Names) == 0 && len(files) == 0 {
				return command.Usagef("give the names of objects to delete, or -f FILE")
			}
			deleted := func(ch admin.Change) { _, _ = fmt.Fprintf(cmd.OutOrStdout(), "%s deleted\n", objectName(ch)) }
			if len(files) == 0 {
				return selected.Delete(cmd.Context(), c, deleted)
			}
			manifests, err := manifestfile.Read(files, command.Stdin(cmd))
			if err != nil {
				return err
			}
			return backend.DeleteFiles(cmd.Context(), c, manifests, deleted)
		},
	}
	r.flags(cmd)
	n.flags(cmd)
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "delete the objects of a manifest file or folder; may be repeated")
	return cmd
}

func newValidateCommand() *cobra.Command {
	var r remote
	var files []string
	cmd := &cobra.Command{
		Use:   "validate FILE|FOLDER…",
		Short: "Check manifests without a server: print each error with its file, line and field",
		Long: `Check manifests without a server: print each error with its file, line and field,
and the runtimes that conflict with each other. A model file that is not on this
machine is a warning, and so is a format that no runtime of the catalog or of these files
lists, or a benchmark of a service that is not among them. With --context, the manifests
are checked as those of a cluster, and its API server does a dry run of all of them.`,
		Example: `  roundhouse validate iris.yaml manifests/
  roundhouse validate iris.yaml --context production`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if args = append(files, args...); len(args) == 0 {
				return command.Usagef("give a manifest file or folder")
			}
			manifests, err := manifestfile.Read(args, command.Stdin(cmd))
			if err != nil {
				return err
			}
			platform := dialect.Process
			inCluster := cmd.Flags().Changed("context") || cmd.Flags().Changed("kubeconfig")
			if inCluster {
				platform = dialect.Kubernetes
			}
			objects, err := checked(cmd, platform, manifests)
			if err != nil {
				return err
			}
			var configs []dialect.Object // of endpoint pickers
			for _, f := range manifests {
				configs = append(configs, dialect.Read(f.Name, []byte(f.Data)).Schedulings...)
			}
			if len(objects)+len(configs) == 0 {
				return errors.New("nothing to check: the files contain no object")
			}
			if inCluster {
				if err := r.settle(nil); err != nil {
					return err
				}
				if err := r.Cluster(cmd.ErrOrStderr()).Check(cmd.Context(), manifests); err != nil {
					return err
				}
			}
			for _, line := range manifestfile.Missing(objects) {
				_, _ = fmt.Fprintln(cmd.ErrOrStderr(), line)
			}
			for _, o := range objects {
				_, _ = fmt.Fprintf(cmd.OutOrStdout(), "%s:%d: %s is valid\n", o.Origin.File, o.Origin.Line, fleet.ID{Kind: backend.Shown(o), Key: o.Key})
			}
			for _, c := range configs {
				_, _ = fmt.Fprintf(cmd.OutOrStdout(), "%s:%d: %s is valid\n", c.Origin.File, c.Origin.Line, c.Kind)
			}
			return nil
		},
	}
	r.clusterFlags(cmd)
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "a manifest file or folder; may be repeated")
	return cmd
}

// checked reads manifests and prints their problems.
func checked(cmd *cobra.Command, platform dialect.Platform, manifests []admin.File) ([]fleet.Object, error) {
	objects, warnings, err := admin.ObjectsOn(platform, manifests, "")
	var problems []string
	var bad *admin.ManifestError
	switch {
	case errors.As(err, &bad):
		problems = bad.Problems
	case err != nil:
		return nil, err
	default:
		var tolerated []string
		problems, tolerated = fleet.Conflicts(objects)
		warnings = append(warnings, tolerated...)
		if platform == dialect.Process {
			runtimes, err := catalog.Runtimes()
			if err != nil {
				return nil, err
			}
			warnings = slices.Concat(warnings, fleet.MissingLevels(objects, runtimes), fleet.UnknownFormats(objects, runtimes), fleet.MissingSubjects(objects, nil))
		}
	}
	for _, line := range manifestfile.InOrder(manifests, append(warnings, problems...)) {
		_, _ = fmt.Fprintln(cmd.ErrOrStderr(), line)
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("%s in %s", command.Count(len(problems), "problem"), command.Count(len(manifests), "file"))
	}
	return objects, nil
}
