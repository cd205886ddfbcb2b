// Package backend does the work of commands: at a running `up`, through its admin
// API, or in a cluster, through its API server.
package backend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"strings"
	"time"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/cmd/internal/app"
	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/inference"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/edge/cluster"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// Backend is where the work of a command is done: a running `up` or a cluster.
type Backend interface {
	// Platform is where replicas run.
	Platform() dialect.Platform
	// Pace is the first and the longest interval between two looks at a service
	// that somebody waits for.
	Pace() (first, most time.Duration)
	Apply(context.Context, admin.ApplyRequest) (admin.ApplyResponse, error)
	ExplainFiles(context.Context, admin.ApplyRequest) ([]admin.Explanation, error)
	Explain(context.Context, service.Key) ([]admin.Explanation, error)
	ExplainRequest(context.Context, admin.InferenceRequest) (admin.Explanation, error)
	ExplainWake(context.Context, service.Key) (admin.Explanation, error)
	ExplainScale(context.Context, service.Key) ([]fleet.ScaleHistory, error)
	// Requests and Events are what happened last, the oldest first; with a key the
	// events are of one service. Follow… goes on with what happens, until ctx ends.
	Requests(context.Context, admin.RequestQuery) ([]admin.Request, error)
	FollowRequests(context.Context, admin.RequestQuery, func(admin.Request) error) error
	Events(context.Context, *service.Key) ([]admin.NumberedEvent, error)
	FollowEvents(context.Context, *service.Key, func(admin.NumberedEvent) error) error
	// FollowChanges calls changed when a service changes, with a key that one, until ctx
	// ends or changes cannot be followed.
	FollowChanges(ctx context.Context, k *service.Key, changed func()) error
	Usage(ctx context.Context, since string, k *service.Key) (admin.UsageReport, error)
	Services(ctx context.Context, namespace string, rendered bool) ([]admin.Service, error)
	// Detailed is Services with their replicas.
	Detailed(ctx context.Context, namespace string) ([]admin.Service, error)
	Service(context.Context, service.Key) (admin.Service, error)
	// Describe is Service with the events of its manifest.
	Describe(context.Context, service.Key) (admin.Service, error)
	Objects(ctx context.Context, kinds string) ([]admin.Object, error)
	Delete(ctx context.Context, kinds string, k service.Key) (admin.Change, error)
	// Edit changes the manifest of a service by a command's edit.
	Edit(context.Context, service.Key, dialect.Edit) (admin.Change, error)
	// Undo gives a service the manifest of its revision before the last back.
	Undo(context.Context, service.Key) (admin.Change, error)
	// Wake starts a replica of a service that has none.
	Wake(context.Context, service.Key) (admin.Change, error)
	// DeleteObject deletes the object of a manifest.
	DeleteObject(context.Context, fleet.Object) (admin.Change, error)
	Routing(ctx context.Context, namespace string) ([]admin.RoutingObject, error)
	DeleteRouting(ctx context.Context, kind string, k service.Key) (admin.Change, error)
	// Reserves lists those of a namespace, "" for all. One machine has none.
	Reserves(ctx context.Context, namespace string) ([]*api.Reserve, error)
	Logs(context.Context, service.Key, admin.LogQuery) (io.ReadCloser, error)
	Reads(ctx context.Context, path string, size int64, dir bool) (bool, error)
	Upload(ctx context.Context, u artifact.Upload, open func() (io.ReadCloser, error)) (string, error)
}

// Up is a running `up`, by its admin API.
type Up struct{ *admin.Client }

// Platform implements Backend.
func (Up) Platform() dialect.Platform { return dialect.Process }

// Pace implements Backend.
func (Up) Pace() (first, most time.Duration) { return 5 * time.Millisecond, 200 * time.Millisecond }

// Describe implements Backend.
func (u Up) Describe(ctx context.Context, k service.Key) (admin.Service, error) {
	s, err := u.Service(ctx, k)
	if err != nil {
		return s, err
	}
	list, err := u.Events(ctx, &k)
	s.Events = admin.EventsOf(list)
	return s, err
}

// Events implements Backend. What is told of a service that is gone remains; one of which
// nothing is known must be there.
func (u Up) Events(ctx context.Context, k *service.Key) ([]admin.NumberedEvent, error) {
	list, err := u.Client.Events(ctx, k)
	if err == nil && len(list) == 0 && k != nil {
		_, err = u.Service(ctx, *k)
	}
	return list, err
}

// FollowChanges implements Backend: whatever changes on one machine is an event.
func (u Up) FollowChanges(ctx context.Context, k *service.Key, changed func()) error {
	return u.FollowEvents(ctx, k, func(admin.NumberedEvent) error {
		changed()
		return nil
	})
}

// Edit implements Backend.
func (u Up) Edit(ctx context.Context, k service.Key, e dialect.Edit) (admin.Change, error) {
	s, err := u.Service(ctx, k)
	if err != nil {
		return admin.Change{}, err
	}
	read := dialect.Read(s.File, []byte(s.Rendered))
	if len(read.Objects) != 1 {
		return admin.Change{}, fmt.Errorf("%s: its manifest cannot be read: apply it again", k)
	}
	patch, err := e.Patch(read.Objects[0])
	if err != nil {
		return admin.Change{}, err
	}
	return u.Client.Edit(ctx, k, patch)
}

// Reserves implements Backend.
func (Up) Reserves(context.Context, string) ([]*api.Reserve, error) {
	return nil, errors.New("a Reserve keeps the nodes of a cluster ready: name a cluster with --context")
}

// DeleteObject implements Backend.
func (u Up) DeleteObject(ctx context.Context, o fleet.Object) (admin.Change, error) {
	switch {
	case o.Routing != nil:
		return u.DeleteRouting(ctx, o.ID().Kind, o.Key)
	case o.Model != nil && o.Model.FineTuned != nil:
		return u.Delete(ctx, "weights", o.Key)
	}
	return u.Delete(ctx, map[dialect.Kind]string{dialect.KindService: "services", dialect.KindRuntime: "runtimes", dialect.KindModel: "models", dialect.KindBase: "bases", dialect.KindConfigMap: "configmaps", dialect.KindAccelerator: "acceleratorclasses", dialect.KindBenchmark: "benchmarkjobs", dialect.KindModelCache: "localmodelcaches", dialect.KindNodeGroup: "localmodelnodegroups", dialect.KindStorageContainer: "clusterstoragecontainers",
		dialect.KindSecret: "secrets", dialect.KindAccount: "serviceaccounts"}[o.Kind], o.Key)
}

// Target is where commands find a running `up` or a cluster, as flags and the
// environment name it.
type Target struct {
	Server, Token string // of the admin API
	DataDir       string // which has the token unless Token is set
	Gateway       string // of inference; "" asks the server
	APIKey        string // for the gateway

	Context, Kubeconfig string // of a cluster
	GatewayService      string // of a cluster: NAMESPACE/NAME; "" finds it
	InCluster           bool   // a cluster is meant
	Version             string // of this program

	cluster *cluster.Client
}

// Up opens the admin API.
func (t *Target) Up() (Up, error) {
	token := t.Token
	if token == "" {
		var err error
		// Without a token the server will say what it needs; without a server the
		// client will.
		if token, err = datadir.ReadToken(t.DataDir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Up{}, err
		}
	}
	base, err := baseURL("--server", t.Server)
	c := &admin.Client{Base: base, Token: token}
	if (cluster.Options{Kubeconfig: t.Kubeconfig}).Known() {
		c.Hint = ", or name a cluster with --context"
	}
	return Up{c}, err
}

// Connect reads the kubeconfig and returns the namespace to work in: the given
// one, else that of the context.
func (t *Target) Connect(namespace string) (string, error) {
	access, err := cluster.Load(cluster.Options{Kubeconfig: t.Kubeconfig, Context: t.Context, Namespace: namespace})
	if err != nil {
		return "", err
	}
	t.cluster, err = cluster.New(access, "roundhouse/"+t.Version)
	return access.Namespace, err
}

// Cluster is the cluster that Connect has connected to. Warnings are written to
// warnings.
func (t *Target) Cluster(warnings io.Writer) *Cluster {
	return &Cluster{Client: t.cluster, warnings: warnings, gatewayService: t.GatewayService}
}

// Proxied reports whether requests go to the gateway through the API server of a
// cluster.
func (t *Target) Proxied() bool { return t.InCluster && t.Gateway == "" }

// Inference finds where requests go.
func (t *Target) Inference(ctx context.Context) (g inference.Gateway, err error) {
	g.APIKey = t.APIKey
	if !t.Proxied() {
		g.Base, err = baseURL("--gateway", t.gatewayAddress(ctx))
		return g, err
	}
	if t.cluster == nil {
		if _, err := t.Connect(""); err != nil {
			return g, err
		}
	}
	g.Transport = t.cluster.Transport()
	g.Base, err = t.cluster.Gateway(ctx, t.GatewayService)
	return g, err
}

// aboutTimeout bounds how long the server may take to name its version and its
// gateway.
const aboutTimeout = 2 * time.Second

// UpVersion asks the running up for its version.
func (t *Target) UpVersion(ctx context.Context) (at, version string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, aboutTimeout, fmt.Errorf("%s has not answered in %s", t.Server, aboutTimeout))
	defer cancel()
	c, err := t.Up()
	if err != nil {
		return t.Server, "", err
	}
	about, err := c.About(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return c.Base, about.Version, err
}

// ControllerVersion finds the version of the controller that is installed in the
// cluster that Connect has connected to.
func (t *Target) ControllerVersion(ctx context.Context) (at, version string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, aboutTimeout, fmt.Errorf("%s has not answered in %s", t.cluster.Name(), aboutTimeout))
	defer cancel()
	version, err = t.cluster.ControllerVersion(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return t.cluster.Name(), version, err
}

// gatewayAddress is the gateway that was named, else the one of the server, else
// the default.
func (t *Target) gatewayAddress(ctx context.Context) string {
	if t.Gateway != "" {
		return t.Gateway
	}
	ctx, cancel := context.WithTimeout(ctx, aboutTimeout)
	defer cancel()
	if c, err := t.Up(); err == nil {
		if about, err := c.About(ctx); err == nil && about.Gateway != "" {
			return about.Gateway
		}
	}
	return "http://" + app.DefaultListen
}

// baseURL reads an address given to flag: a URL, or HOST:PORT of one.
func baseURL(flag, address string) (string, error) {
	base := address
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", command.Usagef("%s is %q: want http://HOST:PORT", flag, address)
	}
	return strings.TrimSuffix(base, "/"), nil
}
