package route

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// maxParents is how many gateways a pool's status lists, as the published
// schema bounds it.
const maxParents = 32

// Statuses returns the status of every routing object, given all of them and all
// services. degraded is what is wrong with the addresses of a pool, by its key:
// that a name cannot be looked up, for example.
func Statuses(services []Member, objects []routing.Object, degraded map[service.Key]routing.Degradation) map[routing.ID]routing.Status {
	s := statuses{set: accept(objects), services: services, degraded: degraded, members: map[service.Key][]service.Key{}}
	for _, m := range services {
		s.keys = append(s.keys, m.Key)
	}
	slices.SortFunc(s.keys, compareKeys)
	s.poolNames = slices.SortedFunc(maps.Keys(s.set.pools), compareKeys)
	out := make(map[routing.ID]routing.Status, len(objects))
	for _, o := range objects {
		out[routing.IDOf(o)] = s.of(o)
	}
	return out
}

// statuses is one call of Statuses under way.
type statuses struct {
	set       *accepted
	services  []Member
	keys      []service.Key // of services, sorted
	poolNames []service.Key
	degraded  map[service.Key]routing.Degradation
	members   map[service.Key][]service.Key
}

func (s *statuses) of(o routing.Object) routing.Status {
	switch o := o.(type) {
	case *routing.Pool:
		return s.pool(o)
	case *routing.Route:
		return s.route(o)
	case *routing.HTTPRoute:
		return s.httpRoute(o)
	case *routing.Model:
		return s.model(o)
	case *routing.Objective:
		return s.inPool(o.Pool, "priority "+fmt.Sprint(o.Priority))
	case *routing.Rewrite:
		return s.rewrite(o)
	}
	return routing.Status{}
}

func condition(kind, status, reason, message string) service.Condition {
	return service.Condition{Type: kind, Status: status, Reason: reason, Message: message}
}

func (s *statuses) membersOf(p *routing.Pool) []service.Key {
	out, ok := s.members[p.Key]
	if !ok {
		out = Members(p, s.services)
		s.members[p.Key] = out
	}
	return out
}

func (s *statuses) pool(p *routing.Pool) routing.Status {
	out := routing.Status{Members: s.membersOf(p), Parents: s.parents(p.Key)}
	var has []string
	if n := len(out.Members); n > 0 {
		names := make([]string, n)
		for i, k := range out.Members {
			names[i] = k.Name
		}
		has = append(has, plural(n, "service")+": "+listed(names[:min(n, maxListed)], n))
	}
	if n := len(p.Addresses); n > 0 {
		has = append(has, plural(n, "address"))
	}
	message := strings.Join(has, "; ")
	bad := s.degraded[p.Key]
	ready := condition(routing.ConditionReady, "True", routing.ReasonAccepted, message)
	switch {
	case len(has) == 0:
		ready = condition(routing.ConditionReady, "False", routing.ReasonNoEndpoints, s.noMembers(p))
	case bad.Down && len(out.Members) == 0:
		ready = condition(routing.ConditionReady, "False", routing.ReasonNoEndpoints, message+"; "+bad.Message)
	case bad.Message != "":
		ready = condition(routing.ConditionReady, "True", routing.ReasonDegraded, message+"; "+bad.Message)
	}
	accepted := condition(routing.ConditionAccepted, "True", routing.ReasonAccepted, ready.Message)
	if len(out.Parents) == 0 {
		accepted = condition(routing.ConditionAccepted, "Unknown", routing.ReasonPending, "no HTTPRoute refers to it; requests reach it by its host and by its models' names")
	}
	out.Conditions = []service.Condition{ready, accepted, condition(routing.ConditionResolvedRefs, "True", routing.ReasonResolvedRefs, "")}
	return out
}

// noMembers names the labels that the pool selects by, and a service whose label
// is similar.
func (s *statuses) noMembers(p *routing.Pool) string {
	var labels []string
	for _, k := range slices.Sorted(maps.Keys(p.Selector)) {
		labels = append(labels, k+"="+p.Selector[k])
	}
	text := "no service of namespace " + p.Namespace + " has the labels " + strings.Join(labels, ",")
	for _, m := range s.services {
		for k, v := range p.Selector {
			have := m.Labels[k]
			if m.Namespace == p.Namespace && have != "" && have != v && len(nearest(v, []string{have})) > 0 {
				return text + fmt.Sprintf("; %s has %s=%s", m.Name, k, have)
			}
		}
	}
	return text
}

// parents returns the gateways whose HTTPRoutes send requests to the pool.
func (s *statuses) parents(pool service.Key) []routing.Parent {
	var out []routing.Parent
	for _, r := range s.set.http {
		uses := slices.ContainsFunc(r.Rules, func(rule routing.HTTPRule) bool {
			return slices.ContainsFunc(rule.Backends, func(b routing.Backend) bool { return b.Ref == routing.PoolRef(pool) })
		})
		for _, p := range r.Parents {
			p.SectionName, p.Port = "", 0 // a pool's parent is a gateway as a whole
			if p.Namespace == "" && r.Namespace != pool.Namespace {
				p.Namespace = r.Namespace
			}
			if uses && !slices.Contains(out, p) && len(out) < maxParents {
				out = append(out, p)
			}
		}
	}
	return out
}

// unresolved lists the refs that do not exist, each once.
func (s *statuses) unresolved(refs []routing.Ref) []string {
	var out []string
	for _, ref := range refs {
		existing := s.keys
		if ref.Pool {
			existing = s.poolNames
		}
		if _, ok := slices.BinarySearchFunc(existing, ref.Key, compareKeys); ok {
			continue
		}
		if text := notFound(ref, existing); !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out
}

func (s *statuses) httpRoute(r *routing.HTTPRoute) routing.Status {
	var refs []routing.Ref
	for _, rule := range r.Rules {
		for _, b := range rule.Backends {
			refs = append(refs, b.Ref)
		}
	}
	resolved := condition(routing.ConditionResolvedRefs, "True", routing.ReasonResolvedRefs, "")
	ready := condition(routing.ConditionReady, "True", routing.ReasonRouted, "to "+summary(refs))
	if unresolved := s.unresolved(refs); len(unresolved) > 0 {
		resolved = condition(routing.ConditionResolvedRefs, "False", routing.ReasonBackendNotFound, strings.Join(unresolved, "; "))
		ready = condition(routing.ConditionReady, "False", routing.ReasonBackendNotFound, resolved.Message)
	} else {
		ready = s.checkPools(ready, refs)
	}
	return routing.Status{Parents: r.Parents, Conditions: []service.Condition{ready,
		condition(routing.ConditionAccepted, "True", routing.ReasonAccepted, ""), resolved}}
}

// summary names each of refs once.
func summary(refs []routing.Ref) string {
	var out []string
	for _, ref := range refs {
		text := "service " + ref.Name
		if ref.Pool {
			text = "pool " + ref.Name
		}
		if !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return listed(out[:min(len(out), maxListed)], len(out))
}

func (s *statuses) route(r *routing.Route) routing.Status {
	var refs []routing.Ref
	for _, t := range r.Targets {
		refs = append(refs, t.Ref)
	}
	var inUse []string
	for _, name := range r.Models {
		if by := s.set.routeOf[service.Key{Namespace: r.Namespace, Name: name}]; by != nil && by != r {
			inUse = append(inUse, fmt.Sprintf("%s belongs to the older route %s", name, by.Name))
		}
	}
	names := listed(r.Models[:min(len(r.Models), maxListed)], len(r.Models))
	ready := condition(routing.ConditionReady, "True", routing.ReasonRouted, names+" to "+summary(refs))
	unresolved := s.unresolved(refs)
	switch {
	case len(inUse) == len(r.Models) && len(inUse) > 0:
		ready = condition(routing.ConditionReady, "False", routing.ReasonModelNameInUse, strings.Join(inUse, "; "))
	case len(unresolved) > 0:
		ready = condition(routing.ConditionReady, "False", routing.ReasonBackendNotFound, strings.Join(append(unresolved, inUse...), "; "))
	default:
		ready.Message = strings.Join(append([]string{ready.Message}, inUse...), "; ")
		ready = s.checkPools(ready, refs)
	}
	return routing.Status{Conditions: []service.Condition{ready}}
}

// checkPools returns the condition Ready of an object that sends requests to
// refs: False if all of them are pools without endpoints, degraded if some are.
func (s *statuses) checkPools(ready service.Condition, refs []routing.Ref) service.Condition {
	var down []string
	dead := map[routing.Ref]bool{}
	for _, ref := range refs {
		p := s.set.pools[ref.Key]
		if !ref.Pool || p == nil || dead[ref] {
			continue
		}
		if c := s.pool(p).Ready(); c.Status == "False" {
			dead[ref] = true
			down = append(down, "pool "+ref.Name+" has no endpoint: "+c.Message)
		}
	}
	switch {
	case len(down) == 0:
		return ready
	case !slices.ContainsFunc(refs, func(r routing.Ref) bool { return !dead[r] }):
		return condition(ready.Type, "False", routing.ReasonNoEndpoints, strings.Join(down, "; "))
	}
	return condition(ready.Type, "True", routing.ReasonDegraded, ready.Message+"; "+strings.Join(down, "; "))
}

// inPool returns the status of an object that belongs to a pool and has no other
// problem; note is what it does.
func (s *statuses) inPool(pool service.Key, note string) routing.Status {
	if unresolved := s.unresolved([]routing.Ref{routing.PoolRef(pool)}); len(unresolved) > 0 {
		return routing.Status{Conditions: []service.Condition{
			condition(routing.ConditionReady, "False", routing.ReasonBackendNotFound, unresolved[0]),
			condition(routing.ConditionAccepted, "Unknown", routing.ReasonPending, unresolved[0]),
			condition(routing.ConditionResolvedRefs, "False", routing.ReasonBackendNotFound, unresolved[0])}}
	}
	return routing.Status{Conditions: []service.Condition{
		condition(routing.ConditionReady, "True", routing.ReasonAccepted, note),
		condition(routing.ConditionAccepted, "True", routing.ReasonAccepted, ""),
		condition(routing.ConditionResolvedRefs, "True", routing.ReasonResolvedRefs, "")}}
}

func (s *statuses) model(m *routing.Model) routing.Status {
	by := s.set.modelOf[poolModel{m.Pool, m.ModelName}]
	if by == nil || by == m {
		return s.inPool(m.Pool, m.ModelName+" in pool "+m.Pool.Name)
	}
	message := fmt.Sprintf("model %s of pool %s belongs to the older InferenceModel %s; this one applies once that is deleted", m.ModelName, m.Pool.Name, by.Key)
	return routing.Status{Conditions: []service.Condition{
		condition(routing.ConditionReady, "False", routing.ReasonModelNameInUse, message),
		condition(routing.ConditionAccepted, "False", routing.ReasonModelNameInUse, message)}}
}

// rewrite returns a rewrite's status, which names the models that an older
// object rewrites.
func (s *statuses) rewrite(o *routing.Rewrite) routing.Status {
	older := map[string]string{} // name → the rewrite that has it
	for _, other := range s.set.rewrites {
		if other == o {
			break
		}
		for _, rule := range other.Rules {
			names := rule.Models
			if len(names) == 0 {
				names = []string{""}
			}
			for _, name := range names {
				if _, ok := older[name]; !ok && other.Pool == o.Pool {
					older[name] = other.Name
				}
			}
		}
	}
	note := "in pool " + o.Pool.Name
	for _, rule := range o.Rules {
		names := rule.Models
		if len(names) == 0 {
			names = []string{""}
		}
		for _, name := range names {
			if by := older[name]; by != "" {
				what := name
				if name == "" {
					what = "every other name"
				}
				note += fmt.Sprintf("; %s is rewritten by the older %s", what, by)
			}
		}
	}
	return s.inPool(o.Pool, note)
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if strings.HasSuffix(noun, "s") {
		noun += "e"
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
