package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/yaml"

	"roundhouse.dev/roundhouse/cmd/internal/app"
	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/history"
	"roundhouse.dev/roundhouse/internal/decide/loadjob"
	"roundhouse.dev/roundhouse/internal/decide/route"
	"roundhouse.dev/roundhouse/internal/decide/usage"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/edge/cluster"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// Cluster is a cluster, by its API server.
type Cluster struct {
	*cluster.Client
	warnings       io.Writer
	gatewayService string // of Target

	mu   sync.Mutex
	said []string
}

// maxSaid is how many different problems are printed: those of a console that runs for
// days may be many.
const maxSaid = 100

// warn prints each problem once.
func (c *Cluster) warn(list ...error) {
	for _, err := range list {
		c.Warn(err)
	}
}

// Warn prints a problem, and reports whether it is a new one.
func (c *Cluster) Warn(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := err.Error()
	if slices.Contains(c.said, text) || len(c.said) == maxSaid {
		return false
	}
	c.said = append(c.said, text)
	_, _ = fmt.Fprintf(c.warnings, "warning: %s\n", text)
	return true
}

// Platform implements Backend.
func (*Cluster) Platform() dialect.Platform { return dialect.Kubernetes }

// Pace implements Backend.
func (*Cluster) Pace() (first, most time.Duration) { return 100 * time.Millisecond, 2 * time.Second }

// Services implements Backend.
func (c *Cluster) Services(ctx context.Context, namespace string, rendered bool) ([]admin.Service, error) {
	list, refused, err := c.Client.Services(ctx, namespace)
	c.warn(refused...)
	out := make([]admin.Service, len(list))
	for i, s := range list {
		out[i] = admin.ServiceOf(s.ServiceState, false)
		if rendered {
			out[i].Rendered = s.Manifest.Rendered()
		}
	}
	return out, err
}

// Detailed implements Backend.
func (c *Cluster) Detailed(ctx context.Context, namespace string) ([]admin.Service, error) {
	list, err := c.Services(ctx, namespace, false)
	for i := range list {
		if err == nil {
			list[i], err = c.Service(ctx, service.Key{Namespace: list[i].Namespace, Name: list[i].Name})
		}
	}
	return list, err
}

// Service implements Backend.
func (c *Cluster) Service(ctx context.Context, k service.Key) (admin.Service, error) {
	s, err := c.Client.Service(ctx, k)
	if err != nil {
		return admin.Service{}, err
	}
	c.warn(s.Refused...)
	out := admin.ServiceOf(s.ServiceState, false)
	out.Rendered, out.Written = s.Manifest.Rendered(), s.Manifest.Authored()
	return out, nil
}

// Describe implements Backend.
func (c *Cluster) Describe(ctx context.Context, k service.Key) (admin.Service, error) {
	s, err := c.Service(ctx, k)
	if err == nil {
		s.Events = c.events(ctx, s)
	}
	return s, err
}

// maxEvents is how many of a manifest's events are shown, the latest.
const maxEvents = 10

// events are the last ones of a service's manifest.
func (c *Cluster) events(ctx context.Context, s admin.Service) []admin.Event {
	list, err := c.Happened(ctx, service.Origin{APIVersion: s.APIVersion, Kind: s.Kind}, service.Key{Namespace: s.Namespace, Name: s.Name}, "")
	if err != nil {
		c.warn(err)
	}
	list = list[max(0, len(list)-maxEvents):]
	out := make([]admin.Event, len(list))
	for i, e := range list {
		out[i] = admin.Event{Time: e.Time, Type: e.Type, Reason: e.Reason, Message: e.Message}
	}
	return out
}

// Events implements Backend.
func (c *Cluster) Events(ctx context.Context, k *service.Key) (out []admin.NumberedEvent, err error) {
	var of []admin.Service
	if k != nil {
		s, err := c.Service(ctx, *k)
		if err != nil {
			return nil, err
		}
		of = []admin.Service{s}
	} else if of, err = c.Services(ctx, "", false); err != nil {
		return nil, err
	}
	for _, s := range of {
		for _, e := range c.events(ctx, s) {
			out = append(out, admin.NumberedEvent{Event: history.Event{Time: e.Time, Namespace: s.Namespace, Service: s.Name, Reason: e.Reason, Message: e.Message, Warning: e.Type == "Warning"}})
		}
	}
	slices.SortStableFunc(out, func(a, b admin.NumberedEvent) int { return a.Time.Compare(b.Time) })
	return out, nil
}

// FollowEvents implements Backend.
func (c *Cluster) FollowEvents(ctx context.Context, k *service.Key, each func(admin.NumberedEvent) error) error {
	return c.Client.FollowEvents(ctx, k, func(e history.Event) error { return each(admin.NumberedEvent{Event: e}) }, func(err error) { c.warn(err) })
}

// FollowChanges implements Backend.
func (c *Cluster) FollowChanges(ctx context.Context, k *service.Key, changed func()) error {
	if k == nil {
		return c.FollowServices(ctx, "", "", changed)
	}
	return c.FollowServices(ctx, k.Namespace, k.Name, changed)
}

// Undo implements Backend.
func (*Cluster) Undo(context.Context, service.Key) (admin.Change, error) {
	return admin.Change{}, errors.New("a cluster keeps no earlier manifests of services: apply the one to go back to")
}

var errNoRequests = errors.New("only a running `roundhouse up` keeps the last requests. In a cluster the gateways write them with --access-log")

// Requests implements Backend.
func (*Cluster) Requests(context.Context, admin.RequestQuery) ([]admin.Request, error) {
	return nil, errNoRequests
}

// FollowRequests implements Backend.
func (*Cluster) FollowRequests(context.Context, admin.RequestQuery, func(admin.Request) error) error {
	return errNoRequests
}

// ids are the IDs of kinds whose plurals commands use.
var ids = map[string]string{"services": "service", "runtimes": "runtime", "models": "model", "weights": "weight", "bases": dialect.BaseID, "acceleratorclasses": dialect.AcceleratorID, "clusterstoragecontainers": dialect.StorageContainerID, "localmodelcaches": dialect.CacheID, "localmodelnodegroups": dialect.NodeGroupID, "benchmarkjobs": dialect.BenchmarkID, "reserves": dialect.ReserveID}

// Objects implements Backend.
func (c *Cluster) Objects(ctx context.Context, kinds string) ([]admin.Object, error) {
	if kinds == "configmaps" {
		return nil, errors.New("kubectl lists the ConfigMaps of a cluster")
	}
	if kinds == "secrets" || kinds == "serviceaccounts" {
		return nil, fmt.Errorf("this program reads no %s of a cluster: kubectl lists them", kinds)
	}
	list, refused, err := c.Manifests(ctx, ids[kinds], "")
	if err != nil {
		return nil, err
	}
	c.warn(refused...)
	var out []admin.Object
	for _, m := range list {
		one := admin.Object{}
		switch {
		case m.Runtime != nil:
			one = admin.RuntimeOf(*m.Runtime)
		case m.Base != nil:
			one = admin.BaseOf(*m.Base)
		case m.StorageContainer != nil:
			one = admin.StorageContainerOf(*m.StorageContainer)
		case m.ModelCache != nil:
			one = admin.Object{Kind: dialect.CacheID, Namespace: m.Key.Namespace, Name: m.Key.Name, Created: m.Created(),
				ModelCache: &admin.ModelCache{URI: service.RedactURI(m.ModelCache.URI), CacheStatus: dialect.ReadCacheStatus(m.Status)}}
		case m.NodeGroup != nil:
			one = admin.NodeGroupOf(*m.NodeGroup)
		case m.Benchmark != nil:
			one = benchmarkOf(m)
		case m.Accelerator != nil:
			one = admin.AcceleratorOf(*m.Accelerator)
		default:
			one = admin.ModelOf(*m.Model)
		}
		one.Rendered = m.Rendered()
		out = append(out, one)
	}
	if kinds == "runtimes" {
		shipped, err := app.Catalog()
		if err != nil {
			return nil, err
		}
		for _, rt := range shipped {
			out = append(out, admin.RuntimeOf(rt))
		}
	}
	return out, nil
}

// benchmarkOf is a benchmark of a cluster, as far as its status tells.
func benchmarkOf(m *cluster.Manifest) admin.Object {
	status, _ := m.Status.(map[string]any)
	b := &loadjob.Benchmark{Job: *m.Benchmark, UID: m.UID, Mark: loadjob.Mark(m.Original)}
	is, why := loadjob.Read(b, status)
	if len(m.Problems) > 0 {
		is, why = loadjob.Status{State: loadjob.Failed}, strings.Join(m.Problems, "; ")
	}
	out := &admin.Benchmark{State: is.State, Reason: strings.ReplaceAll(why, "\n", "; "), Target: b.Subject(), Output: service.RedactURI(b.Output.URI), Details: strings.TrimSpace(is.Details + "\n" + is.Warnings)}
	out.Report.Started, out.Report.Ended = is.Started, is.Completed
	return admin.Object{Kind: fleet.BenchmarkKind, Namespace: m.Key.Namespace, Name: m.Key.Name, Created: m.Created(), Benchmark: out}
}

// Routing implements Backend.
func (c *Cluster) Routing(ctx context.Context, namespace string) ([]admin.RoutingObject, error) {
	list, refused, err := c.Manifests(ctx, "", namespace)
	if err != nil {
		return nil, err
	}
	c.warn(refused...)
	var members []route.Member
	if slices.ContainsFunc(list, (*cluster.Manifest).IsPool) {
		services, refused, err := c.Manifests(ctx, "service", namespace)
		if c.warn(refused...); err != nil {
			c.warn(err)
		}
		for _, m := range services {
			members = append(members, route.NewMember(m.Service))
		}
	}
	var out []admin.RoutingObject
	for i, st := range cluster.RoutingOf(list, members) {
		one := admin.RoutingOf(st)
		one.Rendered = list[i].Rendered()
		out = append(out, one)
	}
	return out, nil
}

// Apply implements Backend.
func (c *Cluster) Apply(ctx context.Context, req admin.ApplyRequest) (admin.ApplyResponse, error) {
	return c.put(ctx, req, false)
}

// DryApply asks the API server what an apply would do, and has each manifest as it is
// and would be.
func (c *Cluster) DryApply(ctx context.Context, req admin.ApplyRequest) (admin.ApplyResponse, error) {
	objects, _, err := admin.ObjectsOn(dialect.Kubernetes, req.Files, "")
	if err != nil {
		return admin.ApplyResponse{}, err
	}
	out, err := c.put(ctx, req, true)
	for i := range out.Changes {
		ch := &out.Changes[i]
		ch.After = inNamespace(objects[i].Original, ch.Namespace)
		if found, wrong := c.Find(ctx, ch.Kind, service.Key{Namespace: ch.Namespace, Name: ch.Name}); wrong == nil {
			ch.Before = found[0].Authored()
		}
		if ch.Before != "" && ch.Before != ch.After {
			ch.Action = "configured"
		}
	}
	return out, err
}

// inNamespace is a manifest as it would be applied, its fields in order.
func inNamespace(original []byte, namespace string) string {
	var doc map[string]any
	err := yaml.Unmarshal(original, &doc)
	if md, ok := doc["metadata"].(map[string]any); ok && namespace != "" {
		md["namespace"] = namespace
	}
	var out []byte
	if err == nil {
		out, err = yaml.Marshal(doc)
	}
	if err != nil {
		return "# " + err.Error() + "\n"
	}
	return string(out)
}

// Check asks the API server whether it would take manifests. Nothing changes.
func (c *Cluster) Check(ctx context.Context, files []admin.File) error {
	_, err := c.put(ctx, admin.ApplyRequest{Files: files}, true)
	return err
}

// put applies manifests, or only checks them.
func (c *Cluster) put(ctx context.Context, req admin.ApplyRequest, dry bool) (out admin.ApplyResponse, err error) {
	if req.Reselect {
		return out, command.Usagef("--reselect does not work on a cluster: name the runtime in the manifest, or delete the ControllerRevision of the service to choose again")
	}
	objects, warnings, err := admin.ObjectsOn(dialect.Kubernetes, req.Files, "")
	if err != nil {
		return out, err
	}
	out.Warnings = append(warnings, others(req.Files)...)
	if problems := local(objects); len(problems) > 0 {
		return out, &admin.ManifestError{Problems: problems}
	}
	docs := make([]dialect.Object, len(objects))
	for i, o := range objects {
		docs[i] = o.Object
	}
	changes, err := c.Client.Apply(ctx, docs, cluster.ApplyOptions{DryRun: dry, Force: req.Force})
	for _, ch := range changes {
		out.Changes = append(out.Changes, admin.Change{Kind: ch.ID.Kind, Namespace: ch.ID.Namespace, Name: ch.ID.Name, Action: ch.Action})
	}
	return out, err
}

// others warns about documents that kubectl must apply.
func others(files []admin.File) []string {
	var out []string
	for _, f := range files {
		for _, p := range dialect.Read(f.Name, []byte(f.Data)).Problems {
			if p.Warning && p.Platform == dialect.Process && p.Path == "kind" {
				kind, _, _ := strings.Cut(p.Message, " ")
				out = append(out, fmt.Sprintf("%s:%d: warning: %s is skipped: apply it with kubectl", p.File, p.Line, kind))
			}
		}
	}
	return out
}

// local returns a problem for each model that no pod can reach.
func local(objects []fleet.Object) []string {
	var out []string
	for _, o := range objects {
		for _, uri := range o.ModelURIs() {
			if artifact.Local(uri) {
				out = append(out, fmt.Sprintf("%s:%d: %s: %s", o.Origin.File, o.Origin.Line, o.ID(), onOneMachine(uri)))
			}
		}
	}
	return out
}

func onOneMachine(uri string) string {
	return artifact.Redact(uri) + " is a file of one machine, which pods cannot read: put the model at s3://, gs://, hf:// or pvc://, for example"
}

// Reads implements Backend.
func (c *Cluster) Reads(_ context.Context, path string, _ int64, _ bool) (bool, error) {
	return false, errors.New(onOneMachine("file://" + path))
}

// Upload implements Backend.
func (c *Cluster) Upload(context.Context, artifact.Upload, func() (io.ReadCloser, error)) (string, error) {
	return "", errors.New("a cluster takes no uploads")
}

// Delete implements Backend.
func (c *Cluster) Delete(ctx context.Context, kinds string, k service.Key) (admin.Change, error) {
	return c.deleteOne(ctx, cmp.Or(ids[kinds], kinds), k)
}

// DeleteRouting implements Backend.
func (c *Cluster) DeleteRouting(ctx context.Context, kind string, k service.Key) (admin.Change, error) {
	return c.deleteOne(ctx, kind, k)
}

func (c *Cluster) deleteOne(ctx context.Context, id string, k service.Key) (admin.Change, error) {
	m, err := c.findOne(ctx, id, k, "delete one of them by its manifest, with -f")
	if err != nil {
		return admin.Change{}, err
	}
	return c.deleteManifest(ctx, m.Object)
}

// findOne finds the only manifest of a name; mend says what to do where there are
// several.
func (c *Cluster) findOne(ctx context.Context, id string, k service.Key, mend string) (*cluster.Manifest, error) {
	found, err := c.Find(ctx, id, k)
	if err != nil {
		return nil, err
	}
	if len(found) > 1 {
		var kinds []string
		for _, m := range found {
			kinds = append(kinds, m.Origin.Kind+" of "+m.Origin.APIVersion)
		}
		return nil, fmt.Errorf("%s %s exists as %s: %s", id, k, strings.Join(kinds, " and as "), mend)
	}
	return found[0], nil
}

// Edit implements Backend.
func (c *Cluster) Edit(ctx context.Context, k service.Key, e dialect.Edit) (admin.Change, error) {
	m, err := c.findOne(ctx, "service", k, "delete one of them by its manifest first")
	if err != nil {
		return admin.Change{}, err
	}
	patch, err := e.Patch(m.Object.Object)
	if err != nil {
		return admin.Change{}, err
	}
	return admin.Change{Kind: "service", Namespace: k.Namespace, Name: k.Name, Action: "configured"}, c.Client.Edit(ctx, m.Object.Object, patch)
}

// Wake implements Backend: in a cluster the first request wakes a service.
func (c *Cluster) Wake(_ context.Context, k service.Key) (admin.Change, error) {
	return admin.Change{Kind: "service", Namespace: k.Namespace, Name: k.Name, Action: "unchanged"}, nil
}

// DeleteObject implements Backend: it deletes exactly the kind of the manifest.
func (c *Cluster) DeleteObject(ctx context.Context, o fleet.Object) (admin.Change, error) {
	if !stated(o) {
		o.Key.Namespace = c.Namespace()
	}
	return c.deleteManifest(ctx, o)
}

func (c *Cluster) deleteManifest(ctx context.Context, o fleet.Object) (admin.Change, error) {
	ch := admin.Change{Kind: o.ID().Kind, Namespace: o.Key.Namespace, Name: o.Key.Name, Action: "deleted"}
	return ch, c.Client.Delete(ctx, o.Origin, o.Key)
}

// stated reports whether a manifest names its namespace, or has none.
func stated(o fleet.Object) bool {
	return o.Key.Namespace == "" || cluster.NamesNamespace(o.Original)
}

// Logs implements Backend.
func (c *Cluster) Logs(ctx context.Context, k service.Key, q admin.LogQuery) (io.ReadCloser, error) {
	return c.Client.Logs(ctx, k, cluster.LogOptions{Replica: q.Replica, LogOptions: fleet.LogOptions{Follow: q.Follow, Tail: q.Tail, Previous: q.Previous}})
}

// ExplainWake implements Backend.
func (c *Cluster) ExplainWake(context.Context, service.Key) (admin.Explanation, error) {
	return admin.Explanation{}, fleet.ErrNotShared
}

// ExplainScale implements Backend: a cluster's decisions are in the events of a service.
func (c *Cluster) ExplainScale(ctx context.Context, k service.Key) ([]fleet.ScaleHistory, error) {
	s, err := c.Service(ctx, k)
	if err != nil {
		return nil, err
	}
	events, err := c.Happened(ctx, service.Origin{APIVersion: s.APIVersion, Kind: s.Kind}, k, history.Scaled)
	if err != nil {
		return nil, err
	}
	out := []fleet.ScaleHistory{}
	for _, x := range s.Status.Components {
		h := fleet.ScaleHistory{Component: x.Role, Decisions: []fleet.ScaleDecision{}, Now: &fleet.ReplicaCounts{Desired: x.Desired, Ready: x.Ready, Starting: max(0, x.Running-x.Ready)}}
		for _, e := range events {
			message, ours := strings.CutPrefix(e.Message, string(x.Role)+": ")
			if _, n, why, ok := history.ReadScaled(message); ours && ok {
				h.Decisions = append(h.Decisions, fleet.ScaleDecision{Time: e.Time.UTC(), ReplicaCounts: fleet.ReplicaCounts{Desired: n}, Why: why})
			}
		}
		out = append(out, h)
	}
	return out, nil
}

// Usage implements Backend.
func (c *Cluster) Usage(ctx context.Context, since string, k *service.Key) (admin.UsageReport, error) {
	now := time.Now()
	first, err := usage.ParseSince(since, now)
	if err != nil {
		return admin.UsageReport{}, err
	}
	rows, err := c.Client.Usage(ctx, c.gatewayService, first, now)
	if err == nil && k != nil {
		rows = slices.DeleteFunc(rows, func(r usage.Row) bool { return r.Namespace != k.Namespace || r.Service != k.Name })
		if len(rows) == 0 {
			_, err = c.Client.Service(ctx, *k) // a name that nothing has ever had is a mistake
		}
	}
	return admin.NewUsageReport(first, rows), err
}

// ExplainRequest implements Backend.
func (c *Cluster) ExplainRequest(context.Context, admin.InferenceRequest) (admin.Explanation, error) {
	return admin.Explanation{}, errors.New("only a running `roundhouse up` explains requests. In a cluster, the access log and the metrics of the gateway show which pod answered")
}
