// Package route decides where a request goes, from the host it was sent to,
// its path and headers, and the model it names: to a service or a pool, under
// which name of the model, and how urgently. It also reports what is wrong with
// these objects. A Table is immutable: it is built anew for every change of the
// services and routing objects, and read without locks.
package route

import (
	"cmp"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// DefaultDomain ends the hosts of services whose URL is not stated.
const DefaultDomain = "localhost"

// Entry is one service to route to, or the canary of one.
type Entry struct {
	Key service.Key
	// Host is the host of the service's URL, without a port; "" means
	// Host(Key, domain).
	Host string
	// Adapters are names of LoRA adapters that the service's replicas have;
	// requests may name each as a model.
	Adapters []string
	// Served are the replicas' own names of the model and its adapters, where
	// they answer every other name by the model without an adapter, as SGLang
	// does: such names are refused.
	Served []string
	// Access is how else requests reach it.
	Access service.Access
	// Parent is the service of its namespace at whose host requests may name this one.
	Parent string
	// Repository: the service has no model of its own, but those whose Parent it is.
	Repository bool
}

// Query is what a request says of where it wants to go.
type Query struct {
	// Host is the request's Host header; a port is ignored.
	Host string
	// Path, RawQuery and Method are for HTTPRoutes alone; Path has no query.
	Path, RawQuery, Method string
	// GRPC: it is a call over gRPC, Path is "/service/method". GRPCRoutes take no other.
	GRPC bool
	// RawPath is the URL's, "" where Path says all; Secure, that the request came over
	// TLS. They are for redirects and rewrites alone.
	RawPath string
	Secure  bool
	// Header gives the first value of a header; nil is a request without any.
	Header func(canonicalName string) string
	// Model is the name in the body or path: "name" or "namespace/name".
	// It may be empty when the Host or an HTTPRoute decides.
	Model string
	// Objective is the value of routing.HeaderObjective; "" has Header asked for it.
	Objective string
}

// Target is where a request goes.
type Target struct {
	// Pool is the service or shared pool whose endpoints may answer.
	Pool routing.Ref
	// Model is the name to give the replica; "" leaves the request's, unless
	// Named.
	Model string
	// Named reports that the request named the service, so that a replica is to
	// be given its own name for the model instead. It is false when the Host
	// alone decided and the model is a name only the server behind knows (an
	// adapter, one model of many), and when Model is set.
	Named bool
	// Adapter is the service's adapter that the request names, "" for none.
	Adapter string
	// Priority is the request's: above 0 critical, below 0 sheddable.
	Priority int32
	// Latency is how long the answer may take, as objects say.
	Latency routing.LatencyTarget
	// Handling is how the route treats the request; nil is as all are. Not to be
	// changed.
	Handling *routing.Handling

	by reasons
}

// Table resolves queries: by host and name in constant time, by HTTPRoutes in
// the order of their precedence. The zero Table knows no service.
type Table struct {
	hosts map[string]routing.Ref // the zero Ref marks a host that two services claim
	full  map[string][]*claim    // "namespace/name"; more than one is ambiguous
	bare  map[string][]*claim    // "name", sorted by namespace
	keys  []service.Key          // services, sorted by name, then namespace
	pools map[service.Key]*pool
	// adapters are services', and canaries', names of theirs.
	adapters map[service.Key][]string
	served   map[service.Key][]string // see Entry.Served
	children map[service.Key][]string // names of the services with this parent
	lenders  map[service.Key]bool     // see Entry.Repository
	hostOf   map[service.Key]string
	access   map[service.Key]service.Access // of services that have any
	below    map[string]service.Key         // of paths below which their own are
	http     httpTable
	graphs   graphs
	all      []*claim // every name, sorted
	domain   string
}

// Host is the host of a service's URL: "name.namespace.domain". An empty
// domain means DefaultDomain.
func Host(k service.Key, domain string) string {
	if domain == "" {
		domain = DefaultDomain
	}
	return strings.ToLower(k.WorkloadName() + "." + k.Namespace + "." + domain)
}

// HostNamespace is the namespace in a host or wildcard at or below domain, ""
// where it has none; within reports whether it is there. An empty domain means
// DefaultDomain.
func HostNamespace(host, domain string) (namespace string, within bool) {
	if domain = strings.ToLower(cmp.Or(domain, DefaultDomain)); host == domain {
		return "", true
	}
	rest, within := strings.CutSuffix(host, "."+domain)
	if i := strings.LastIndexByte(rest, '.'); within && i >= 0 {
		return rest[i+1:], true
	}
	return "", within
}

// NewTable builds the table of services and of routing objects, which it reads
// and keeps; domain ends the hosts of entries that state none. Of entries with
// the same Key the last counts. A host that two services claim decides for
// neither. Objects that are not accepted (see Statuses) route nothing.
func NewTable(entries []Entry, domain string, objects ...routing.Object) *Table {
	t := &Table{
		hosts:  make(map[string]routing.Ref, len(entries)),
		full:   make(map[string][]*claim, len(entries)),
		bare:   make(map[string][]*claim, len(entries)),
		domain: domain,
		hostOf: make(map[service.Key]string, len(entries)),
	}
	for _, e := range entries {
		host := normalHost(e.Host)
		if host == "" {
			host = Host(e.Key, domain)
		}
		t.hostOf[e.Key] = host
		if len(e.Adapters) > 0 {
			if t.adapters == nil {
				t.adapters = map[service.Key][]string{}
			}
			t.adapters[e.Key] = e.Adapters
		}
		if e.Parent != "" {
			if t.children == nil {
				t.children = map[service.Key][]string{}
			}
			parent := service.Key{Namespace: e.Key.Namespace, Name: e.Parent}
			t.children[parent] = append(t.children[parent], e.Key.Name)
		}
		if e.Repository {
			if t.lenders == nil {
				t.lenders = map[service.Key]bool{}
			}
			t.lenders[e.Key] = true
		}
		if len(e.Served) > 0 {
			if t.served == nil {
				t.served = map[service.Key][]string{}
			}
			t.served[e.Key] = e.Served
		}
		t.reach(e)
	}
	for k, host := range t.hostOf {
		if !k.IsCanary() { // reached through its service, or by its host
			t.keys = append(t.keys, k)
		}
		ref := routing.Service(k)
		if _, claimed := t.hosts[host]; claimed {
			ref = routing.Ref{}
		}
		t.hosts[host] = ref
	}
	slices.SortFunc(t.keys, compareKeys)
	set := accept(append(t.groups(), objects...))
	t.addPools(set)
	t.addClaims(set)
	t.http = t.compileHTTP(set)
	t.addGraphs(objects)
	return t
}

func compareKeys(a, b service.Key) int {
	return cmp.Or(strings.Compare(a.WorkloadName(), b.WorkloadName()), strings.Compare(a.Namespace, b.Namespace))
}

// Resolve finds where a query goes. A Host that is a service's or a pool's
// decides; then an HTTPRoute that asks for anything in particular; then the
// model's name, full before bare, which works while it means one thing; then
// an HTTPRoute that takes everything. random gives a number in [0, n) and
// chooses among weighted targets.
//
// The error is a *NotFoundError, *AmbiguousError, *MissingModelError or
// *BackendError.
func (t *Table) Resolve(q Query, random func(n int) int) (Target, error) {
	ref, match, claims := t.decide(&q)
	switch {
	case ref.Pool:
		return t.pools[ref.Key].resolve(&q, q.Model, random, Target{})
	case ref.Name != "":
		return t.at(ref.Key, &q)
	case match != nil:
		return t.forward(match, &q, random)
	case len(claims) == 1:
		return t.claimed(claims[0], &q, random)
	case len(claims) == 0:
		return Target{}, t.notFound(q.Model)
	}
	return Target{}, t.ambiguous(q.Model, claims)
}

// decide finds what decides where a query goes: its host, an HTTPRoute, or what
// its model's name means, which is several things or none where the query does
// not resolve.
func (t *Table) decide(q *Query) (ref routing.Ref, match *httpMatch, claims []*claim) {
	host := normalHost(q.Host)
	if ref, ok := t.hosts[host]; ok && ref.Name != "" {
		return ref, nil, nil
	}
	match = t.find(q, host)
	if match != nil && !match.everything {
		return ref, match, nil
	}
	claims, ok := t.full[q.Model]
	if !ok {
		claims = t.bare[q.Model]
	}
	if len(claims) == 1 {
		match = nil
	}
	return ref, match, claims
}

// Leads calls yield with every service and pool that a query may go to, whatever
// is drawn, until yield returns false. It calls it with none where Resolve fails.
func (t *Table) Leads(q Query, yield func(routing.Ref) bool) {
	ref, match, claims := t.decide(&q)
	switch {
	case ref.Name != "":
		t.leads(ref, q.Model, yield)
	case match != nil:
		for i, b := range match.route.Rules[match.rule].Backends {
			if match.split.weight(i) > 0 && b.Fault == "" && !t.leads(b.Ref, q.Model, yield) {
				return
			}
		}
	case len(claims) == 1:
		t.claimLeads(claims[0], yield)
	}
}

// claimLeads is Leads for a query that a claim decides.
func (t *Table) claimLeads(c *claim, yield func(routing.Ref) bool) {
	switch {
	case c.route != nil:
		for i, at := range c.route.Targets {
			more := true
			switch {
			case c.split.weight(i) == 0:
			case at.Pool && at.Model != "": // the pool is not asked about the model
				more = t.pools[at.Key] == nil || yield(at.Ref)
			default:
				more = t.leads(at.Ref, c.key.Name, yield)
			}
			if !more {
				return
			}
		}
	case c.pool != nil:
		yield(c.pool.ref)
	case c.of != service.Key{}:
		yield(routing.Service(c.of))
	default:
		yield(routing.Service(c.key))
	}
}

// leads calls yield with a service or pool if it exists and takes the model. It
// returns false where yield did.
func (t *Table) leads(ref routing.Ref, model string, yield func(routing.Ref) bool) bool {
	if ref.Pool {
		p := t.pools[ref.Key]
		return p == nil || !p.takes(model) || yield(ref)
	}
	if _, there := t.hostOf[ref.Key]; !there {
		return true
	}
	return yield(ref)
}

// isFull reports whether name is the key's "namespace/name".
func isFull(name string, k service.Key) bool {
	n := len(k.Namespace)
	return len(name) == n+1+len(k.Name) && name[:n] == k.Namespace && name[n] == '/' && name[n+1:] == k.Name
}

// Name is the shortest name that resolves to the service k: its bare name
// while that is unique, else "namespace/name".
func (t *Table) Name(k service.Key) string {
	if len(t.bare[k.Name]) > 1 {
		return k.String()
	}
	return k.WorkloadName()
}

// Keys lists the services by name, then namespace. The caller must not change
// the slice.
func (t *Table) Keys() []service.Key { return t.keys }

// normalHost strips port and trailing dot and lowers the case. It allocates
// only for hosts with upper-case letters.
func normalHost(h string) string {
	if i := strings.LastIndexByte(h, ':'); i >= 0 && strings.IndexByte(h[i:], ']') < 0 {
		h = h[:i]
	}
	return strings.ToLower(strings.TrimSuffix(h, "."))
}

// accepted are the objects that count, by kind, oldest first.
type accepted struct {
	pools      map[service.Key]*routing.Pool
	models     []*routing.Model
	objectives []*routing.Objective
	rewrites   []*routing.Rewrite
	routes     []*routing.Route
	http       []*routing.HTTPRoute
	// modelOf and routeOf hold who has a name: the oldest that asks for it.
	modelOf map[poolModel]*routing.Model
	routeOf map[service.Key]*routing.Route
}

// poolModel is a name that one InferenceModel of a pool can have.
type poolModel struct {
	pool service.Key
	name string
}

// older orders objects by creation, then name: the first wins a name both ask
// for.
func older(a, b routing.Object) int {
	x, y := a.Common(), b.Common()
	return cmp.Or(x.Created.Compare(y.Created), strings.Compare(x.Key.String(), y.Key.String()))
}

// accept sorts objects out. Of models, those that lost their name are left
// out; a route stays for the names it did not lose.
func accept(objects []routing.Object) *accepted {
	s := &accepted{pools: map[service.Key]*routing.Pool{}, modelOf: map[poolModel]*routing.Model{}, routeOf: map[service.Key]*routing.Route{}}
	objects = slices.SortedStableFunc(slices.Values(objects), older)
	for _, o := range objects {
		switch o := o.(type) {
		case *routing.Pool:
			s.pools[o.Key] = o
		case *routing.Model:
			if at := (poolModel{o.Pool, o.ModelName}); s.modelOf[at] == nil {
				s.modelOf[at] = o
				s.models = append(s.models, o)
			}
		case *routing.Objective:
			s.objectives = append(s.objectives, o)
		case *routing.Rewrite:
			s.rewrites = append(s.rewrites, o)
		case *routing.HTTPRoute:
			s.http = append(s.http, o)
		case *routing.Route:
			s.routes = append(s.routes, o)
			for _, name := range o.Models {
				if at := (service.Key{Namespace: o.Namespace, Name: name}); s.routeOf[at] == nil {
					s.routeOf[at] = o
				}
			}
		}
	}
	return s
}

// ResolveIn is Resolve for a query of which it is settled already that it is
// for ref, by an outer gateway for example: the model's name and the priority
// are left to find. The errors are those of Resolve.
func (t *Table) ResolveIn(ref routing.Ref, q Query, random func(n int) int) (Target, error) {
	if !ref.Pool {
		return t.at(ref.Key, &q)
	}
	if p := t.pools[ref.Key]; p != nil {
		return p.resolve(&q, q.Model, random, Target{})
	}
	return Target{Pool: ref}, nil
}
