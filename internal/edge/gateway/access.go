package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/keys"
)

// defaultPrefix begins the names of services that need none.
const defaultPrefix = service.DefaultNamespace + "/"

// enter lets the request in by its key; false when it has been refused.
func (x *exchange) enter() bool {
	ring := x.gw.cfg.Keys
	if ring == nil || !ring.Required() {
		return true
	}
	var err error
	if x.pass, err = ring.Enter(ingress.TakeSecret(x.r.Header, ingress.SecretHeaders)); err == nil {
		return true
	}
	var limited *keys.Refusal
	switch {
	case errors.As(err, &limited):
		x.refusedKey = limited.Key
		x.gw.metrics.Refused("limit")
		x.retryAfter(limited.RetryAfter)
		x.failWith(http.StatusTooManyRequests, limited.Message, "", "rate_limit_exceeded")
	case errors.Is(err, keys.ErrNoKey):
		x.gw.metrics.Refused("no_key")
		x.w.Header().Set("WWW-Authenticate", `Bearer realm="roundhouse"`)
		x.failWith(http.StatusUnauthorized, "an API key is needed: send Authorization: Bearer KEY, or x-api-key: KEY", "", "missing_api_key")
	default:
		x.gw.metrics.Refused("bad_key")
		x.w.Header().Set("WWW-Authenticate", `Bearer realm="roundhouse", error="invalid_token"`)
		x.failWith(http.StatusUnauthorized, "the API key is not valid: it is mistyped, revoked or expired", "", "invalid_api_key")
	}
	return false
}

// mayUse says whether the request's key is for the model it names, and answers
// 403 if it is not. An unknown model gets the same answer unless the key names
// it, or a limited key would tell which other models there are.
func (x *exchange) mayUse() bool {
	if !x.limited() {
		return true
	}
	k, err := x.gw.dispatch.Key(x.query())
	if err == nil {
		err = x.may(k)
	} else if err = nil; !x.pass.Allows(x.model) {
		err = &forbiddenError{x.pass.Key(), x.model}
	}
	if err != nil {
		x.refuse(err)
	}
	return err == nil
}

// limited says whether the request's key is for some models only.
func (x *exchange) limited() bool { return len(x.pass.Models()) > 0 }

// forbiddenError says that a key is not for a model.
type forbiddenError struct{ key, model string }

func (e *forbiddenError) Error() string {
	return fmt.Sprintf("API key %s is not for model %q", e.key, e.model)
}

// may is an error if the request's key is not for the service or shared pool
// that it is routed to.
func (x *exchange) may(k service.Key) error {
	if len(x.pass.Models()) == 0 {
		return nil // for all
	}
	full := k.String()
	if x.pass.Allows(full, strings.TrimPrefix(full, defaultPrefix)) || x.allowsBare(k, k.Name) {
		return nil
	}
	q := x.query()
	q.Model = ""
	if _, err := x.gw.dispatch.Key(q); err != nil {
		// Nothing but the name decides, so it is the model's.
		if x.pass.Allows(x.model) || x.pass.Allows(inNamespace(k, x.model)...) || x.allowsBare(k, strings.TrimPrefix(x.model, k.Namespace+"/")) {
			return nil
		}
	}
	return &forbiddenError{x.pass.Key(), x.model}
}

// allowsBare says whether the request's key names a service, or an adapter of
// it, without its namespace: the key is for that namespace, or the name is the
// service's for whoever has the key. So it may be asked in full, too.
func (x *exchange) allowsBare(k service.Key, name string) bool {
	if !x.pass.Allows(name) {
		return false
	}
	if x.pass.AllowsIn(k.Namespace, name) {
		return true
	}
	at, err := x.gw.dispatch.Key(dispatch.Request{Model: name, Namespaces: x.pass.Namespaces()})
	return err == nil && at == k
}

// sees reports whether a key is for a model.
func sees(pass *keys.Pass, s dispatch.Status) bool {
	k := s.Pool.Key.String()
	names := []string{s.Name, k, strings.TrimPrefix(k, defaultPrefix)}
	if s.Adapter != nil {
		names = append(names, inNamespace(s.Pool.Key, s.Adapter.Name)...)
	}
	return pass.Allows(names...) || pass.AllowsIn(s.Pool.Key.Namespace, s.Pool.Key.Name)
}

// inNamespace are the ways to write a name that a service answers to in full:
// in the default namespace it needs none.
func inNamespace(k service.Key, name string) []string {
	full := k.Namespace + "/" + strings.TrimPrefix(name, k.Namespace+"/")
	return []string{full, strings.TrimPrefix(full, defaultPrefix)}
}

// expect takes from the key's tokens what the prompt will cost at least.
func (x *exchange) expect() {
	if x.pass != nil && x.parsed != nil && !x.form {
		x.pass.Expect(int64(length(x.prompt) / observe.BytesPerToken))
	}
}
