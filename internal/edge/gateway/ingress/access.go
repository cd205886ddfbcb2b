package ingress

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/route"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/keys"
)

// Reason is why a request is refused.
type Reason int

// The reasons. Each protocol has a status of its own for them.
const (
	Internal    Reason = iota // an error that is none of these
	NoKey                     // the request has no API key
	BadKey                    // its key is not valid
	OverLimit                 // its key is over its limits
	Forbidden                 // its key is not for the model
	Unnamed                   // it names no model
	NotFound                  // the model is not known, or its name is ambiguous
	OtherAPI                  // the model does not serve the API
	QueueFull                 // the model's queue is full
	Unavailable               // no replica can take it
	NoBackend                 // its route leads nowhere
)

// Refusal is why a request is not forwarded, in words for its client.
type Refusal struct {
	Reason     Reason
	Message    string
	RetryAfter time.Duration // 0: not known
	Key        string        // the id of the key that is over its limits
}

// Error is the message.
func (r *Refusal) Error() string { return r.Message }

// Enter checks the key that a request has in the fields named, and removes it from
// h. The caller ends the pass with Leave; it is nil when no key is needed. The
// error is a *Refusal.
func Enter(ring *keys.Ring, h map[string][]string, names []string) (*keys.Pass, error) {
	if ring == nil || !ring.Required() {
		return nil, nil
	}
	pass, err := ring.Enter(TakeSecret(h, names))
	if err == nil {
		return pass, nil
	}
	var limited *keys.Refusal
	switch {
	case errors.As(err, &limited):
		return nil, &Refusal{Reason: OverLimit, Message: limited.Message, RetryAfter: max(limited.RetryAfter, time.Second), Key: limited.Key}
	case errors.Is(err, keys.ErrNoKey):
		return nil, &Refusal{Reason: NoKey, Message: "an API key is needed: send Authorization: Bearer KEY, or x-api-key: KEY"}
	default:
		return nil, &Refusal{Reason: BadKey, Message: "the API key is not valid: it is mistyped, revoked or expired"}
	}
}

// defaultPrefix begins the names of services that need none.
const defaultPrefix = service.DefaultNamespace + "/"

// limited reports whether a key allows some models only.
func limited(pass *keys.Pass) bool { return len(pass.Models()) > 0 }

func forbidden(pass *keys.Pass, model string) error {
	return &Refusal{Reason: Forbidden, Message: fmt.Sprintf("API key %s is not for model %q", pass.Key(), model)}
}

// CheckModel returns an error if the key does not allow the model that q asks for.
// The error is the same for an unknown model, unless the key names it: otherwise a
// limited key would reveal which other models exist.
func CheckModel(d *dispatch.Dispatcher, pass *keys.Pass, q dispatch.Request) error {
	if !limited(pass) {
		return nil
	}
	leads, allowed := false, true
	d.Leads(&q, func(k service.Key) bool {
		leads, allowed = true, allows(d, pass, &q, k.Stable())
		return allowed
	})
	if allowed && (leads || pass.Allows(q.Model)) {
		return nil
	}
	return forbidden(pass, q.Model)
}

// CheckGraph returns an error if the key does not allow an inference graph. A key for
// the graph is enough for its steps.
func CheckGraph(pass *keys.Pass, k service.Key) error {
	full := k.String()
	if !limited(pass) || pass.Allows(full, strings.TrimPrefix(full, defaultPrefix)) || pass.AllowsIn(k.Namespace, k.Name) {
		return nil
	}
	return forbidden(pass, k.Name)
}

// Permission returns the check for dispatch.Request.May of q: it returns an error
// for a service or shared pool that the key does not allow. It is nil for a key
// that allows all. The check reads q whenever it is called.
//
// A key allows a request if it allows every target that the request may be sent to,
// so that access does not depend on the random choice among weighted targets.
func Permission(d *dispatch.Dispatcher, pass *keys.Pass, q *dispatch.Request) func(service.Key) error {
	if !limited(pass) {
		return nil
	}
	return func(drawn service.Key) error {
		seen, allowed := false, true
		d.Leads(q, func(k service.Key) bool {
			k = k.Stable()
			seen, allowed = seen || k == drawn, allows(d, pass, q, k)
			return allowed
		})
		if allowed && (seen || allows(d, pass, q, drawn)) { // not seen: routes changed meanwhile
			return nil
		}
		return forbidden(pass, q.Model)
	}
}

// allows reports whether the key is for the service or shared pool k, to which q
// may be sent.
func allows(d *dispatch.Dispatcher, pass *keys.Pass, q *dispatch.Request, k service.Key) bool {
	full := k.String()
	if pass.Allows(full, strings.TrimPrefix(full, defaultPrefix)) || allowsBare(d, pass, k, k.Name) {
		return true
	}
	nameless := *q
	nameless.Model = ""
	decided := false // by the host or the path
	d.Leads(&nameless, func(service.Key) bool { decided = true; return false })
	// Where the name alone decides the route, a key for the name is enough.
	return !decided && (pass.Allows(q.Model) || pass.Allows(inNamespace(k, q.Model)...) || allowsBare(d, pass, k, strings.TrimPrefix(q.Model, k.Namespace+"/")))
}

// allowsBare reports whether a key names a service, or an adapter or a route of it,
// without its namespace: the key is for that namespace, or the name means that
// service for the key's owner.
func allowsBare(d *dispatch.Dispatcher, pass *keys.Pass, k service.Key, name string) bool {
	if !pass.Allows(name) {
		return false
	}
	if pass.AllowsIn(k.Namespace, name) {
		return true
	}
	means := false
	d.Leads(&dispatch.Request{Model: name, Namespaces: pass.Namespaces()}, func(at service.Key) bool {
		means = at == k
		return !means
	})
	return means
}

// Lists reports whether lists of models show s to the owner of a key. Canaries are
// not shown: no request can name them.
func Lists(pass *keys.Pass, s *dispatch.Status) bool {
	if s.Pool.Key.IsCanary() {
		return false
	}
	k := s.Pool.Key.String()
	names := []string{s.Name, k, strings.TrimPrefix(k, defaultPrefix)}
	if s.Adapter != nil {
		names = append(names, inNamespace(s.Pool.Key, s.Adapter.Name)...)
	}
	return pass.Allows(names...) || pass.AllowsIn(s.Pool.Key.Namespace, s.Pool.Key.Name)
}

// inNamespace returns the ways to write the full name of a model in a service's
// namespace. In the default namespace it needs no prefix.
func inNamespace(k service.Key, name string) []string {
	full := k.Namespace + "/" + strings.TrimPrefix(name, k.Namespace+"/")
	return []string{full, strings.TrimPrefix(full, defaultPrefix)}
}

// Refuse explains an error of routing or admission to the client that asked for
// model. To a limited key it reveals neither which other models exist nor what the
// error lists. A request whose key does not allow the model is refunded: it does
// not count against the key's requests per minute. The result is nil for a client
// that has disconnected.
func Refuse(ctx context.Context, d *dispatch.Dispatcher, pass *keys.Pass, model string, err error) *Refusal {
	var known *Refusal
	var notFound *route.NotFoundError
	var ambiguous *route.AmbiguousError
	var unnamed *route.MissingModelError
	var unspoken *dispatch.ProtocolError
	var refused *dispatch.Error
	var lost *route.BackendError
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.As(err, &known):
		if known.Reason == Forbidden {
			pass.Refund()
		}
		return known
	case errors.As(err, &notFound), errors.As(err, &ambiguous):
		switch {
		case !limited(pass):
			return &Refusal{Reason: NotFound, Message: err.Error()}
		case !pass.Allows(model):
			return Refuse(ctx, d, pass, model, forbidden(pass, model))
		}
		return &Refusal{Reason: NotFound, Message: fmt.Sprintf("model %q is not served here by this name", model)}
	case errors.As(err, &unspoken):
		return &Refusal{Reason: OtherAPI, Message: unspoken.Explain(d.Name(unspoken.Key.Stable(), pass.Namespaces()))}
	case errors.As(err, &lost):
		return &Refusal{Reason: NoBackend, Message: err.Error()}
	case errors.As(err, &unnamed):
		return &Refusal{Reason: Unnamed, Message: err.Error()}
	case errors.As(err, &refused):
		reason := Unavailable
		if errors.Is(err, dispatch.ErrBusy) {
			reason = QueueFull
		}
		return &Refusal{Reason: reason, Message: err.Error(), RetryAfter: refused.RetryAfter}
	}
	return &Refusal{Reason: Internal, Message: err.Error()}
}
