package history

import (
	"cmp"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// Degraded is the reason of an event of a route or a pool that serves a part of its
// requests only.
const Degraded = "Degraded"

// Route is what events tell of a route, a pool or another object of routing, at one
// time.
type Route struct {
	Manifest string // a hash
	Does     string // which requests it takes, and where they go
	Ready    service.Condition
}

// RouteChanges returns what happened between two states of an object of routing; nil
// is one that is not there. The events have neither time nor object.
func RouteChanges(before, after *Route) (out []Event) {
	switch {
	case after == nil:
		return []Event{{Reason: Deleted, Message: "deleted"}}
	case before == nil:
		out, before = append(out, Event{Reason: Applied, Message: cmp.Or(after.Does, "applied")}), &Route{}
	case before.Manifest != after.Manifest:
		out = append(out, Event{Reason: ManifestChanged, Message: cmp.Or(after.Does, "the manifest was changed")})
	}
	is, was := after.Ready, before.Ready
	degraded := is.Status == "True" && is.Reason == routing.ReasonDegraded
	switch {
	case is.Status == was.Status && is.Reason == was.Reason:
	case degraded:
		out = append(out, Event{Reason: Degraded, Message: is.Message, Warning: true})
	case is.Status == "True" && (was.Status != "True" || was.Reason == routing.ReasonDegraded):
		out = append(out, Event{Reason: Ready, Message: cmp.Or(is.Message, "requests are answered")})
	case is.Status == "False":
		out = append(out, Event{Reason: NotReady, Message: cmp.Or(is.Message, is.Reason), Warning: true})
	}
	return out
}
