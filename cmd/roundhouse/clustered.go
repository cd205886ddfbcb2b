package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/route"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/edge/cluster"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// backend is where a command's work is done: a running `up`, which an
// admin.Client speaks to, or a cluster.
type backend interface {
	Apply(context.Context, admin.ApplyRequest) (admin.ApplyResponse, error)
	ExplainFiles(context.Context, admin.ApplyRequest) ([]admin.Explanation, error)
	Explain(context.Context, service.Key) ([]admin.Explanation, error)
	ExplainRequest(context.Context, admin.InferenceRequest) (admin.Explanation, error)
	Services(ctx context.Context, namespace string, rendered bool) ([]admin.Service, error)
	Service(context.Context, service.Key) (admin.Service, error)
	Objects(ctx context.Context, kinds string) ([]admin.Object, error)
	Delete(ctx context.Context, kinds string, k service.Key) (admin.Change, error)
	Routing(ctx context.Context, namespace string) ([]admin.RoutingObject, error)
	DeleteRouting(ctx context.Context, kind string, k service.Key) (admin.Change, error)
	Logs(context.Context, service.Key, admin.LogQuery) (io.ReadCloser, error)
	Reads(ctx context.Context, path string, size int64, dir bool) (bool, error)
	Upload(ctx context.Context, u artifact.Upload, open func() (io.ReadCloser, error)) (string, error)
}

// pace is how soon, and how often at most, a service is looked at while
// somebody waits for it.
func pace(b backend) (first, most time.Duration) {
	if _, ok := b.(*clustered); ok {
		return 100 * time.Millisecond, 2 * time.Second
	}
	return 5 * time.Millisecond, 200 * time.Millisecond
}

// platformOf is where replicas run.
func platformOf(b backend) dialect.Platform {
	if _, ok := b.(*clustered); ok {
		return dialect.Kubernetes
	}
	return dialect.Process
}

// clustered does commands' work on a cluster, over its API server.
type clustered struct {
	*cluster.Client
	warnings io.Writer

	mu   sync.Mutex
	said []string
}

// warn says once what could not be looked at.
func (c *clustered) warn(list ...error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, err := range list {
		if text := err.Error(); !slices.Contains(c.said, text) {
			c.said = append(c.said, text)
			_, _ = fmt.Fprintf(c.warnings, "warning: %s\n", text)
		}
	}
}

// Services implements backend.
func (c *clustered) Services(ctx context.Context, namespace string, rendered bool) ([]admin.Service, error) {
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

// Service implements backend.
func (c *clustered) Service(ctx context.Context, k service.Key) (admin.Service, error) {
	s, err := c.Client.Service(ctx, k)
	if err != nil {
		return admin.Service{}, err
	}
	c.warn(s.Refused...)
	out := admin.ServiceOf(s.ServiceState, false)
	out.Rendered = s.Manifest.Rendered()
	return out, nil
}

// events are the last of a service's manifest.
func (c *clustered) events(ctx context.Context, s admin.Service) []admin.Event {
	list, err := c.Happened(ctx, service.Origin{APIVersion: s.APIVersion, Kind: s.Kind}, service.Key{Namespace: s.Namespace, Name: s.Name})
	if err != nil {
		c.warn(err)
	}
	out := make([]admin.Event, len(list))
	for i, e := range list {
		out[i] = admin.Event{Time: e.Time, Type: e.Type, Reason: e.Reason, Message: e.Message}
	}
	return out
}

// ids are the IDs of kinds whose plurals commands use.
var ids = map[string]string{"services": "service", "runtimes": "runtime", "models": "model", "weights": "weight"}

// Objects implements backend.
func (c *clustered) Objects(ctx context.Context, kinds string) ([]admin.Object, error) {
	list, refused, err := c.Manifests(ctx, ids[kinds], "")
	if err != nil {
		return nil, err
	}
	c.warn(refused...)
	var out []admin.Object
	for _, m := range list {
		one := admin.Object{}
		if m.Runtime != nil {
			one = admin.RuntimeOf(*m.Runtime)
		} else {
			one = admin.ModelOf(*m.Model)
		}
		one.Rendered = m.Rendered()
		out = append(out, one)
	}
	if kinds == "runtimes" {
		shipped, err := catalogRuntimes()
		if err != nil {
			return nil, err
		}
		for _, rt := range shipped {
			out = append(out, admin.RuntimeOf(rt))
		}
	}
	return out, nil
}

// Routing implements backend.
func (c *clustered) Routing(ctx context.Context, namespace string) ([]admin.RoutingObject, error) {
	list, refused, err := c.Manifests(ctx, "", namespace)
	if err != nil {
		return nil, err
	}
	c.warn(refused...)
	var members []route.Member
	if slices.ContainsFunc(list, func(m *cluster.Manifest) bool { return m.Routing.RoutingKind() == routing.KindPool }) {
		services, refused, err := c.Manifests(ctx, "service", namespace)
		if c.warn(refused...); err != nil {
			c.warn(err)
		}
		for _, m := range services {
			members = append(members, route.NewMember(m.Service))
		}
	}
	var out []admin.RoutingObject
	for _, m := range list {
		st := fleet.RoutingState{Object: m.Object, Status: dialect.ReadRoutingStatus(m.Routing, m.Status)}
		if p, ok := m.Routing.(*routing.Pool); ok {
			st.Status.Members = route.Members(p, members)
		}
		one := admin.RoutingOf(st)
		one.Rendered = m.Rendered()
		out = append(out, one)
	}
	return out, nil
}

// Apply implements backend.
func (c *clustered) Apply(ctx context.Context, req admin.ApplyRequest) (admin.ApplyResponse, error) {
	return c.put(ctx, req, false)
}

// put applies manifests, or asks whether they could be.
func (c *clustered) put(ctx context.Context, req admin.ApplyRequest, dry bool) (out admin.ApplyResponse, err error) {
	if req.Reselect {
		return out, command.Usagef("--reselect is not for clusters: name the runtime in the manifest, or delete the service's ControllerRevision, and the choice is made anew")
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

// others names the documents that are Kubernetes's own to apply.
func others(files []admin.File) []string {
	var out []string
	for _, f := range files {
		for _, p := range dialect.Read(f.Name, []byte(f.Data)).Problems {
			if p.Warning && p.Platform == dialect.Process && p.Path == "kind" {
				kind, _, _ := strings.Cut(p.Message, " ")
				out = append(out, fmt.Sprintf("%s:%d: warning: %s is left as it is: kubectl applies it", p.File, p.Line, kind))
			}
		}
	}
	return out
}

// local says which models no pod can reach.
func local(objects []fleet.Object) []string {
	var out []string
	for _, o := range objects {
		for _, uri := range o.ModelURIs() {
			if scheme, _, _ := strings.Cut(uri, "://"); scheme == "file" || scheme == "upload" {
				out = append(out, fmt.Sprintf("%s:%d: %s: %s", o.Origin.File, o.Origin.Line, o.ID(), onOneMachine(uri)))
			}
		}
	}
	return out
}

func onOneMachine(uri string) string {
	return artifact.Redact(uri) + " names a file of one machine, and pods run on any: put the model where all can read it, such as s3://, gs://, hf:// or pvc://"
}

// Reads implements backend.
func (c *clustered) Reads(_ context.Context, path string, _ int64, _ bool) (bool, error) {
	return false, errors.New(onOneMachine("file://" + path))
}

// Upload implements backend.
func (c *clustered) Upload(context.Context, artifact.Upload, func() (io.ReadCloser, error)) (string, error) {
	return "", errors.New("a cluster takes no uploads")
}

// Delete implements backend.
func (c *clustered) Delete(ctx context.Context, kinds string, k service.Key) (admin.Change, error) {
	return c.deleteOne(ctx, cmp.Or(ids[kinds], kinds), k)
}

// DeleteRouting implements backend.
func (c *clustered) DeleteRouting(ctx context.Context, kind string, k service.Key) (admin.Change, error) {
	return c.deleteOne(ctx, kind, k)
}

func (c *clustered) deleteOne(ctx context.Context, id string, k service.Key) (admin.Change, error) {
	found, err := c.Find(ctx, id, k)
	if err != nil {
		return admin.Change{}, err
	}
	if len(found) > 1 {
		var kinds []string
		for _, m := range found {
			kinds = append(kinds, m.Origin.Kind+" of "+m.Origin.APIVersion)
		}
		return admin.Change{}, fmt.Errorf("%s %s is there as %s: delete the one meant by its manifest, with -f", id, k, strings.Join(kinds, " and as "))
	}
	return c.deleteManifest(ctx, found[0].Object)
}

func (c *clustered) deleteManifest(ctx context.Context, o fleet.Object) (admin.Change, error) {
	ch := admin.Change{Kind: o.ID().Kind, Namespace: o.Key.Namespace, Name: o.Key.Name, Action: "deleted"}
	return ch, c.Client.Delete(ctx, o.Origin, o.Key)
}

// deleteAll deletes the objects of manifests, each of exactly its kind.
func (c *clustered) deleteAll(cmd *cobra.Command, objects []fleet.Object) error {
	var errs []error
	for _, o := range objects {
		if !stated(o) {
			o.Key.Namespace = c.Namespace()
		}
		ch, err := c.deleteManifest(cmd.Context(), o)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		_, _ = fmt.Fprintf(cmd.OutOrStdout(), "%s deleted\n", objectName(ch))
	}
	return errors.Join(errs...)
}

// stated says whether a manifest names its namespace, or has none.
func stated(o fleet.Object) bool {
	return o.Key.Namespace == "" || cluster.NamesNamespace(o.Original)
}

// Logs implements backend.
func (c *clustered) Logs(ctx context.Context, k service.Key, q admin.LogQuery) (io.ReadCloser, error) {
	return c.Client.Logs(ctx, k, cluster.LogOptions{Replica: q.Replica, LogOptions: fleet.LogOptions{Follow: q.Follow, Tail: q.Tail, Previous: q.Previous}})
}

// ExplainRequest implements backend.
func (c *clustered) ExplainRequest(context.Context, admin.InferenceRequest) (admin.Explanation, error) {
	return admin.Explanation{}, errors.New("requests are explained by a running `roundhouse up` alone: the gateways of a cluster have no port for it; their access log and metrics say which pod answered")
}

// clusterFlags say which cluster is meant.
func (r *remote) clusterFlags(cmd *cobra.Command) {
	r.cmd = cmd
	cmd.Flags().StringVar(&r.context, "context", os.Getenv("ROUNDHOUSE_CONTEXT"), "context of the kubeconfig: work on its cluster instead of a running roundhouse up; in-cluster means that of the pod this runs in")
	cmd.Flags().StringVar(&r.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster (default: those in KUBECONFIG, else ~/.kube/config)")
}

// inCluster says whether a cluster is meant, and not a running `up`.
func (r *remote) inCluster() bool {
	given := func(flag string) bool { return r.cmd.Flags().Changed(flag) }
	return given("context") || given("kubeconfig") || r.context != "" && !given("server")
}

// open is where the command's work is done. n, which may be nil, is then the
// cluster's, unless a namespace was given.
func (r *remote) open(cmd *cobra.Command, n *namespaced) (backend, error) {
	if !r.inCluster() {
		return r.client()
	}
	if r.cmd.Flags().Changed("server") {
		return nil, command.Usagef("--server is a running roundhouse up, --context and --kubeconfig mean a cluster: give one of them")
	}
	if err := r.settle(n); err != nil {
		return nil, err
	}
	return &clustered{Client: r.cluster, warnings: cmd.ErrOrStderr()}, nil
}

// settle reads the kubeconfig where a cluster is meant.
func (r *remote) settle(n *namespaced) error {
	if !r.inCluster() {
		return nil
	}
	o := cluster.Options{Kubeconfig: r.kubeconfig, Context: r.context}
	given := n != nil && r.cmd.Flags().Changed("namespace")
	if given {
		o.Namespace = n.namespace
	}
	access, err := cluster.Load(o)
	if err != nil {
		return err
	}
	if r.cluster, err = cluster.New(access, "roundhouse/"+version); err != nil {
		return err
	}
	if n != nil && !given {
		n.namespace = access.Namespace
	}
	return nil
}
