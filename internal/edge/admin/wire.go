package admin

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/load"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// File is one manifest file of an ApplyRequest.
type File struct {
	// Name is the path as the user wrote it, for messages.
	Name string `json:"name"`
	Data string `json:"data"`
	// URIs maps model URIs as written to where they are for the server.
	URIs map[string]string `json:"uris,omitempty"`
}

// ApplyRequest asks to apply the objects of manifests, all or none.
type ApplyRequest struct {
	Files    []File `json:"files"`
	Reselect bool   `json:"reselect,omitempty"`
	// Force takes over fields that others have set, in a cluster.
	Force bool `json:"-"`
}

// Change is what happened to one object.
type Change struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Action    string `json:"action"` // created, configured, unchanged, deleted, woken
	// Shown is the kind that people know it by, where that is another: it is of the
	// manifest, which the sender has.
	Shown string `json:"-"`
	// Before and After are the manifest as it was and would be, of a dry run.
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
}

// ApplyResponse lists the changes, and warnings.
type ApplyResponse struct {
	Changes  []Change `json:"changes"`
	Warnings []string `json:"warnings,omitempty"`
}

// Service is a service as commands show it.
type Service struct {
	Namespace  string                       `json:"namespace"`
	Name       string                       `json:"name"`
	APIVersion string                       `json:"apiVersion"`
	Kind       string                       `json:"kind"`
	File       string                       `json:"file,omitempty"`
	Created    time.Time                    `json:"created"`
	Generation int64                        `json:"generation"`
	Model      string                       `json:"model,omitempty"`
	Adapters   []workload.Adapter           `json:"adapters,omitempty"`
	Status     service.Status               `json:"status"`
	Scaling    map[service.Role]string      `json:"scaling,omitempty"`
	Limits     map[service.Role]ScaleLimits `json:"limits,omitempty"`
	Replicas   []replica.Replica            `json:"replicas,omitempty"`
	// InFlight is how many requests each replica has, by id, and each data-parallel rank
	// of one; LastDone is when the last request of all finished: on one machine.
	InFlight map[string]int `json:"inFlight,omitempty"`
	LastDone time.Time      `json:"lastDone,omitzero"`
	// Engines are what the engines of replicas, and their ranks, have told of themselves
	// lately, by id: on one machine.
	Engines map[string]Engine `json:"engines,omitempty"`
	// LastFailure is the last one of a replica that the journal has, whether or not the
	// service has recovered: on one machine.
	LastFailure *service.Failure `json:"lastFailure,omitempty"`
	// Events are the last of a cluster's about the manifest, oldest first.
	Events []Event `json:"events,omitempty"`
	// Rendered is the manifest as written, in YAML, with its status in the
	// words of its own dialect; Written is it without the status, of one service.
	Rendered string `json:"rendered,omitempty"`
	Written  string `json:"written,omitempty"`
}

// Action is what somebody has done to a service.
type Action struct {
	// Do is "start", "stop", "restart", "scale" or "reselect".
	Do string `json:"do"`
	// Component, Min and Max are for scale: the component is the one that has the
	// model if none is named, and a count that is not given stays.
	Component service.Role `json:"component,omitempty"`
	Min       *int         `json:"min,omitempty"`
	Max       *int         `json:"max,omitempty"`
}

// Event is something that happened to a manifest in a cluster.
type Event struct {
	Time    time.Time `json:"time"`
	Type    string    `json:"type"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
}

// ScaleLimits are the settled scaling of one role, for people to read.
type ScaleLimits struct {
	Min, Max         int
	Target           float64
	Metric           string
	Metrics          []service.MetricTarget `json:",omitempty"` // besides Metric
	ScaleToZeroAfter string
	StartupTimeout   string
	Schedule         []service.ScheduleWindow `json:",omitempty"`
	Prewarm          bool                     `json:",omitempty"`
	// StandbyFor is how long a replica sleeps before it stops; "" where none sleeps.
	StandbyFor string `json:",omitempty"`
	// Knative: Knative's autoscaler decides, which has no ScaleToZeroAfter.
	Knative bool `json:",omitempty"`
}

// Waiting is what a request to the service waits for that has waited since some
// time.
func (s Service) Waiting(since, now time.Time) dispatch.Wait {
	of := dispatch.PoolConfig{Replicas: s.Replicas}
	for _, role := range []service.Role{service.RoleEngine, service.RoleDecoder, service.RoleTransformer, service.RoleRouter} {
		for _, c := range s.Status.Components {
			if c.Role == role {
				of.Entry, of.Startup = role, time.Duration(c.StartupSeconds*float64(time.Second))
			}
		}
	}
	return of.Wait(since, now)
}

// Ready is the service's Ready condition, zero when it has none yet.
func (s Service) Ready() service.Condition {
	for _, c := range s.Status.Conditions {
		if c.Type == service.ConditionReady {
			return c
		}
	}
	return service.Condition{}
}

// Canary is how far the service's canary has come, "" without one.
func (s Service) Canary() service.Transition {
	if c := s.Status.Canary; c != nil {
		return c.Transition
	}
	return ""
}

// Superseded is how many replicas are there still of revisions that are neither the
// service's nor its canary's.
func (s Service) Superseded() (n int) {
	if s.Status.Revision == "" {
		return 0
	}
	now := []string{s.Status.Revision}
	if c := s.Status.Canary; c != nil {
		now = append(now, c.Revision)
	}
	for _, r := range s.Replicas {
		hash := strings.TrimPrefix(workload.RevisionName(s.Name, r.Revision), s.Name)
		if r.Revision != "" && !slices.ContainsFunc(now, func(name string) bool { return strings.HasSuffix(name, hash) }) {
			n++
		}
	}
	return n
}

// Benchmark is how far a benchmark is, and what it measured until now.
type Benchmark struct {
	// State is Pending, Running, Completed or Failed; Reason is why it failed.
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	Target string `json:"target"`
	// Output is where the report is written besides.
	Output string `json:"output,omitempty"`
	// Details are what a cluster knows of what was measured, in place of the report.
	Details string      `json:"details,omitempty"`
	Report  load.Report `json:"report"`
}

// ModelCache is how far a model is that is fetched ahead of its use.
type ModelCache struct {
	service.CacheStatus
	URI string `json:"uri"` // without its secrets
	// Done and Total are bytes, on one machine; Total is 0 while it is not known.
	Done  int64 `json:"done,omitempty"`
	Total int64 `json:"total,omitempty"`
	// Again is when what failed is tried again.
	Again time.Time `json:"again,omitzero"`
}

// Object is a runtime, model or benchmark as commands show it.
type Object struct {
	Kind      string        `json:"kind"`
	Namespace string        `json:"namespace,omitempty"`
	Name      string        `json:"name"`
	Scope     service.Scope `json:"scope,omitempty"`
	Disabled  bool          `json:"disabled,omitempty"`
	// Formats are those of a runtime or model, the keys of a secret, the secrets of a
	// service account.
	Formats   string `json:"formats,omitempty"`
	Protocols string `json:"protocols,omitempty"`
	// Base is the model that fine-tuned weights were made from.
	Base string `json:"base,omitempty"`
	// Accelerator says what a class of accelerators is.
	Accelerator string `json:"accelerator,omitempty"`
	// Benchmark is what is known of one.
	Benchmark *Benchmark `json:"benchmark,omitempty"`
	// ModelCache is what is known of one.
	ModelCache *ModelCache `json:"modelCache,omitempty"`
	// Limit is how many bytes a node group's models may have on each node.
	Limit    int64     `json:"limit,omitempty"`
	Created  time.Time `json:"created,omitzero"`
	Rendered string    `json:"rendered,omitempty"`
}

// RoutingObject is a pool, a route or an object of the inference gateway, as
// commands show it.
type RoutingObject struct {
	// Type is the kind as fleet.ID spells it: "pool", "httproute", …
	Type       string    `json:"type"`
	Namespace  string    `json:"namespace"`
	Name       string    `json:"name"`
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	File       string    `json:"file,omitempty"`
	Created    time.Time `json:"created"`
	// From is which requests it takes, To where they go, each in a few words.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// Leads are the pools and services that it sends requests to, or belongs to:
	// "pool/NAMESPACE/NAME", "service/NAMESPACE/NAME".
	Leads  []string       `json:"leads,omitempty"`
	Status routing.Status `json:"status"`
	// Endpoints are a pool's now.
	Endpoints []dispatch.Endpoint `json:"endpoints,omitempty"`
	// Rules are an HTTPRoute's or GRPCRoute's, in order, and what a ModelRoute does with requests.
	Rules []RoutingRule `json:"rules,omitempty"`
	// Rendered is the manifest as written, with its status in the words of its
	// own kind.
	Rendered string `json:"rendered,omitempty"`
}

// RoutingRule is which requests a rule takes, where they go, and what becomes of them
// on the way: timeouts, retries, mirrors, filters.
type RoutingRule struct {
	From     string   `json:"from"`
	To       string   `json:"to,omitempty"`
	Handling []string `json:"handling,omitempty"`
}

// Explanation is why a service runs on its runtime: text for people, and the facts
// behind it.
type Explanation struct {
	Service string          `json:"service"`
	Text    string          `json:"text"`  // every runtime and rule
	Brief   string          `json:"brief"` // the ranked and the nearest misses; empty of what has none
	Facts   json.RawMessage `json:"facts"`
	Chosen  string          `json:"chosen,omitempty"`
}

// Error is the body of every answer that is not a success.
type Error struct {
	Message string `json:"error"`
	// Problems are a manifest's, one line each.
	Problems []string `json:"problems,omitempty"`
}
