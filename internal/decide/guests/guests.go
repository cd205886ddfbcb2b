// Package guests decides which models are loaded into the running replicas of another
// service, as KServe has a TrainedModel loaded by its InferenceService: whether that can
// load it, whether its memory is enough, and what replicas are to who asks for the model.
package guests

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// Place is where a model that names a parent is served.
type Place int

// The places.
const (
	Later Place = iota // it is not known yet: the parent has not been resolved
	Own                // in replicas of its own
	Guest              // in the parent's replicas
)

// Parent is what is known of the service that a model names.
type Parent struct {
	Key service.Key
	// Service is nil where there is none, Revision before its first.
	Service  *service.Service
	Revision *workload.Revision
	// Failure is why it cannot be run; "" where it can, or has not been looked at.
	Failure string
}

// Decide is where a model is served, and why.
func Decide(p Parent, cluster bool) (Place, string) {
	name := p.Key.Name
	switch {
	case p.Service == nil:
		return Own, "has replicas of its own: there is no service " + name + " to load it"
	case !p.Service.Repository && p.Service.Custom:
		return Own, "has replicas of its own: the predictor of " + name + " is a container of its author's, and it is not known how that loads models"
	case !p.Service.Repository:
		return Own, "has replicas of its own: " + name + " serves a model of its own, and loads no other"
	case p.Revision != nil && p.Revision.Repository() == "":
		return Own, "has replicas of its own: " + loadsNone(name, p.Revision, cluster)
	case p.Revision != nil:
		return Guest, fmt.Sprintf("is loaded into the replicas of %s, which run on %s", name, p.Revision.Runtime.Name)
	case p.Failure != "":
		return Later, name + " cannot be run, into whose replicas it is to be loaded: " + p.Failure
	}
	return Later, name + " has not been resolved yet, into whose replicas it may be loaded"
}

// loadsNone is why the replicas of a revision load no models.
func loadsNone(name string, r *workload.Revision, cluster bool) string {
	for _, role := range []service.Role{service.RoleTransformer, service.RoleRouter, service.RoleDecoder} {
		if r.Component(role) != nil {
			return fmt.Sprintf("requests to %s enter at its %s, which does not know which of the replicas behind it have loaded a model", name, role)
		}
	}
	if c := r.Component(service.RoleEngine); c != nil && c.Process != nil && c.Process.Container != nil {
		return fmt.Sprintf("%s runs on %s as a container, which models cannot be put into while it runs", name, r.Runtime.Name)
	}
	if cluster {
		return fmt.Sprintf("%s runs on %s, and on a cluster Roundhouse's own model server alone loads models while it runs: name a runtime roundhouse-*", name, r.Runtime.Name)
	}
	return fmt.Sprintf("%s runs on %s, which loads no models while it runs", name, r.Runtime.Name)
}

// Unfetched is why the pods of a cluster cannot fetch a model while they run; "" where
// they can.
func Unfetched(uri string) string {
	if scheme, _, found := strings.Cut(uri, "://"); found && shape.Fetches(scheme) {
		return ""
	}
	return fmt.Sprintf("spec.model.storageUri: %s is not fetched into a pod that runs already: put the model into a bucket (s3://, gs://, az://, https://) or on a hub (hf://, oci://)", service.RedactURI(uri))
}

// Model is what a model declares.
type Model struct {
	Name    string
	Created time.Time
	Memory  int64 // in bytes; 0 where nothing is declared
}

// Refuse returns why models do not fit into the memory limit of the replicas that load
// them all, by their names; a limit of 0 is none. The older go first, and one that does
// not fit leaves what is left to those after it.
func Refuse(parent string, limit int64, models []Model) map[string]string {
	if limit <= 0 {
		return nil
	}
	models = slices.Clone(models)
	slices.SortFunc(models, func(a, b Model) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Name, b.Name))
	})
	out, left := map[string]string{}, limit
	for _, m := range models {
		if m.Memory > left {
			out[m.Name] = fmt.Sprintf("spec.model.memory: declares %s, and of the %s that a replica of %s may use %s are left: raise the predictor's memory limit, or remove a model",
				size(m.Memory), size(limit), parent, size(left))
			continue
		}
		left -= max(m.Memory, 0)
	}
	return out
}

// size is a number of bytes in MiB, for people.
func size(n int64) string { return fmt.Sprintf("%.4g MiB", float64(n)/(1<<20)) }

// Unsupported is why the server of a revision does not read models of a framework; ""
// where it may: one whose command states no format tells by a model's files.
func Unsupported(r *workload.Revision, framework string) string {
	format := r.Component(service.RoleEngine).Flag("--format")
	if format == "" || strings.Contains(format, "{{") || strings.EqualFold(format, framework) {
		return ""
	}
	return fmt.Sprintf("spec.model.framework: %s runs on %s, which loads %s models alone, and no %s", r.Service.Name, r.Runtime.Name, format, framework)
}

// HostReady reports whether a replica of the parent itself is ready, of those that
// [Replicas] returned.
func HostReady(of []replica.Replica) bool {
	return slices.ContainsFunc(of, func(r replica.Replica) bool {
		return r.Phase == replica.Ready || r.Phase != replica.Draining && (r.Reason == reasonLoading || r.Reason == ReasonLoadFailed)
	})
}

// Replicas are a parent's replicas as those of one of its guests: ready are those that
// have loaded it.
func Replicas(of []replica.Replica, name string) []replica.Replica {
	out := make([]replica.Replica, 0, len(of))
	for _, r := range of {
		if r.Role != service.RoleEngine {
			continue
		}
		g := r.Guests[name]
		r.Guests = nil
		if r.Phase == replica.Ready && !g.Loaded {
			r.ReadyAt = time.Time{}
			if r.Phase, r.Reason, r.Message = replica.Starting, reasonLoading, "is being loaded"; g.Message != "" {
				r.Message = g.Message
			}
			if g.Failures > 0 {
				r.Phase, r.Reason, r.FailedStarts, r.Restart = replica.Failed, ReasonLoadFailed, g.Failures, g.Retry
			} else if r.Progress = g.Progress; g.Progress != nil {
				r.Phase = replica.Fetching
			}
		}
		out = append(out, r)
	}
	return out
}

// reasonLoading is the reason of a model that its server has not loaded yet.
const reasonLoading = "ModelLoading"

// ReasonLoadFailed is the reason of a model that its server refused, or whose files
// could not be fetched.
const ReasonLoadFailed = "ModelLoadFailed"
