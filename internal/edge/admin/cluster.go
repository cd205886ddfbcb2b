package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// Cluster answers for the services of a cluster, and changes them, as its user may.
type Cluster interface {
	Services(ctx context.Context, namespace string, rendered bool) ([]Service, error)
	Service(context.Context, service.Key) (Service, error)
	Objects(ctx context.Context, kinds string) ([]Object, error)
	Routing(ctx context.Context, namespace string) ([]RoutingObject, error)
	Explain(context.Context, service.Key) ([]Explanation, error)
	ExplainFiles(context.Context, ApplyRequest) ([]Explanation, error)
	ExplainScale(context.Context, service.Key) ([]fleet.ScaleHistory, error)
	Usage(ctx context.Context, since string, k *service.Key) (UsageReport, error)
	Logs(context.Context, service.Key, LogQuery) (io.ReadCloser, error)
	// DryApply asks the API server what an apply would do.
	DryApply(context.Context, ApplyRequest) (ApplyResponse, error)
	Apply(context.Context, ApplyRequest) (ApplyResponse, error)
	Edit(context.Context, service.Key, dialect.Edit) (Change, error)
	Delete(ctx context.Context, kinds string, k service.Key) (Change, error)
	DeleteRouting(ctx context.Context, kind string, k service.Key) (Change, error)
}

const readsOnly = "this console only reads: start it with --allow-changes to change what your kubeconfig lets you change"

// without are the pages that a cluster has nothing for, by their path, and traffic.
func (s *Server) without() map[string]string {
	out := map[string]string{
		"traffic":  "What is asked of a cluster's services is in the metrics of its gateways.",
		"requests": "A cluster keeps no last requests: its gateways write each to their log with --access-log, and count them in their metrics.",
		"copies":   "The copies of models on a cluster's nodes are not shown: `roundhouse pull` is for one machine.",
		"keys":     "API keys of a cluster are in the Secret that gateway.apiKeys.secret of the chart names: `roundhouse keys --file` makes them.",
	}
	if !s.cfg.AllowChanges {
		out["playground"] = "Requests start models, and this console only reads: start it with --allow-changes, or ask with `roundhouse chat` and `roundhouse infer`."
		out["apply"] = "This console only reads: start it with --allow-changes to apply manifests."
	}
	return out
}

// handleCluster adds the paths that a console asks of a cluster. Those that change
// something refuse unless changes are allowed; what a cluster has nothing for says so.
func (s *Server) handleCluster(mux *http.ServeMux) {
	c := s.cfg.Cluster
	mux.HandleFunc("GET /api/v1/services", read(func(r *http.Request) (any, error) {
		return c.Services(r.Context(), r.URL.Query().Get("namespace"), owns(r) && r.URL.Query().Has("rendered"))
	}))
	mux.HandleFunc("GET /api/v1/services/{namespace}/{name}", read(func(r *http.Request) (any, error) {
		out, err := c.Service(r.Context(), key(r))
		if !owns(r) {
			out.Rendered, out.Written = "", ""
		}
		return out, err
	}))
	mux.HandleFunc("GET /api/v1/services/{namespace}/{name}/explain", read(func(r *http.Request) (any, error) { return c.Explain(r.Context(), key(r)) }))
	mux.HandleFunc("GET /api/v1/services/{namespace}/{name}/explain-scale", read(func(r *http.Request) (any, error) { return c.ExplainScale(r.Context(), key(r)) }))
	mux.HandleFunc("GET /api/v1/services/{namespace}/{name}/logs", s.clusterLogs)
	mux.HandleFunc("GET /api/v1/usage", read(func(r *http.Request) (any, error) {
		var of *service.Key
		if name := r.FormValue("service"); name != "" {
			k := service.ParseKey(name)
			of = &k
		}
		return c.Usage(r.Context(), cmp.Or(r.FormValue("since"), DefaultSince), of)
	}))
	for _, kinds := range []string{"runtimes", "models", "weights", "bases", "acceleratorclasses", "clusterstoragecontainers"} {
		mux.HandleFunc("GET /api/v1/"+kinds, read(func(r *http.Request) (any, error) {
			out, err := c.Objects(r.Context(), kinds)
			for i := range out {
				if !owns(r) {
					out[i].Rendered = ""
				}
			}
			return append([]Object{}, out...), err
		}))
	}
	mux.HandleFunc("GET /api/v1/routing", read(func(r *http.Request) (any, error) {
		out, err := c.Routing(r.Context(), r.URL.Query().Get("namespace"))
		for i := range out {
			if !owns(r) {
				out[i].Rendered = ""
			}
		}
		return append([]RoutingObject{}, out...), err
	}))
	mux.HandleFunc("POST /api/v1/explain", func(w http.ResponseWriter, r *http.Request) {
		s.asked(w, r, func(ctx context.Context, req ApplyRequest) (any, error) { return c.ExplainFiles(ctx, req) })
	})
	mux.HandleFunc("/api/v1/keys", absent(s.without()["keys"]))
	mux.HandleFunc("/api/v1/copies", absent(s.without()["copies"]))
	mux.HandleFunc("/api/v1/downloads", absent(s.without()["copies"]))
	mux.HandleFunc("GET /api/v1/services/{namespace}/{name}/explain-wake", absent("On a cluster a wake stops nothing: Kubernetes finds room for its pods, or its nodes are scaled."))
	mux.HandleFunc("POST /api/v1/explain-request", absent("What a request would meet is known to the gateways of the cluster alone: `roundhouse explain request` asks a running up."))
	s.changeCluster(mux)
}

// changeCluster adds what changes something.
func (s *Server) changeCluster(mux *http.ServeMux) {
	c := s.cfg.Cluster
	mux.HandleFunc("POST /api/v1/apply", s.changing(func(w http.ResponseWriter, r *http.Request) {
		s.asked(w, r, func(ctx context.Context, req ApplyRequest) (any, error) {
			if r.URL.Query().Has("dry-run") {
				return c.DryApply(ctx, req)
			}
			return c.Apply(ctx, req)
		})
	}))
	mux.HandleFunc("POST /api/v1/services/{namespace}/{name}/actions", s.changing(func(w http.ResponseWriter, r *http.Request) {
		a, err := readAction(w, r)
		var e dialect.Edit
		if err == nil && a.Do == "reselect" {
			err = errors.New("reselect: on a cluster name the runtime in the manifest, or delete the ControllerRevision of the service")
		}
		if err == nil {
			e, err = a.edit(time.Now())
		}
		if err != nil {
			failError(w, err)
			return
		}
		read(func(r *http.Request) (any, error) { return c.Edit(r.Context(), key(r), e) })(w, r)
	}))
	for _, kinds := range []string{"services", "runtimes", "models", "weights", "bases", "acceleratorclasses", "clusterstoragecontainers"} {
		mux.HandleFunc("DELETE /api/v1/"+kinds+"/{namespace}/{name}", s.changing(read(func(r *http.Request) (any, error) {
			k := key(r)
			if kinds != "services" && k.Namespace == "_cluster" {
				k.Namespace = ""
			}
			return c.Delete(r.Context(), kinds, k)
		})))
	}
	mux.HandleFunc("DELETE /api/v1/routing/{kind}/{namespace}/{name}", s.changing(read(func(r *http.Request) (any, error) {
		return c.DeleteRouting(r.Context(), r.PathValue("kind"), key(r))
	})))
}

// read answers what ask returns.
func read(ask func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		out, err := ask(r)
		if err != nil {
			failError(w, err)
			return
		}
		answer(w, out)
	}
}

// absent answers why there is nothing.
func absent(why string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { fail(w, http.StatusNotImplemented, "%s", why) }
}

// changing refuses unless changes are allowed.
func (s *Server) changing(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !s.cfg.AllowChanges {
			fail(w, http.StatusForbidden, readsOnly)
			return
		}
		next(w, r)
	}
}

// asked answers what is asked of manifests.
func (s *Server) asked(w http.ResponseWriter, r *http.Request, ask func(context.Context, ApplyRequest) (any, error)) {
	var req ApplyRequest
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxManifestBytes)).Decode(&req)
	var out any
	if err == nil {
		out, err = ask(r.Context(), req)
	}
	if bad, ok := errors.AsType[*ManifestError](err); ok {
		failManifests(w, bad)
		return
	}
	if err != nil {
		failError(w, err)
		return
	}
	answer(w, out)
}

// clusterLogs streams the output of a pod.
func (s *Server) clusterLogs(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	tail, err := strconv.Atoi(orZero(q.Get("tail")))
	if err != nil || tail < 0 {
		fail(w, http.StatusBadRequest, "tail %q is not a number of lines", q.Get("tail"))
		return
	}
	out, err := s.cfg.Cluster.Logs(r.Context(), key(r), LogQuery{Replica: q.Get("replica"), Tail: tail, Follow: q.Has("follow"), Previous: q.Has("previous")})
	if err != nil {
		failError(w, fmt.Errorf("logs of %s: %w", key(r), err))
		return
	}
	defer func() { _ = out.Close() }()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.Copy(flushing{w, http.NewResponseController(w)}, out)
}
