package route

import (
	"cmp"
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
// that a name cannot be looked up, for example. The addresses of a pool without
// an entry are not known yet.
//
// One rule holds for Ready of every kind. An object that serves all it asks for is
// True; one that serves a part is True for the reason Degraded, and the message
// names the part that does not serve; one that serves nothing is False. While
// nothing serves and some of it is not known yet, Ready is Unknown.
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
	case *routing.Graph:
		return s.graph(o)
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
	out := routing.Status{Members: s.membersOf(p)}
	parents, used := s.parents(p.Key)
	out.Parents = parents
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
	bad, known := s.degraded[p.Key]
	ready := condition(routing.ConditionReady, "True", routing.ReasonAccepted, message)
	switch {
	case len(has) == 0:
		ready = condition(routing.ConditionReady, "False", routing.ReasonNoEndpoints, s.noMembers(p))
	case bad.Down && len(out.Members) == 0:
		ready = condition(routing.ConditionReady, "False", routing.ReasonNoEndpoints, message+"; "+bad.Message)
	case (bad.Unchecked || !known) && len(p.Addresses) > 0 && len(out.Members) == 0:
		ready = condition(routing.ConditionReady, "Unknown", routing.ReasonChecking, strings.Join(nonEmpty(message, "no server has been checked yet", bad.Message), "; "))
	case bad.Message != "":
		ready = condition(routing.ConditionReady, "True", routing.ReasonDegraded, message+"; "+bad.Message)
	}
	accepted := condition(routing.ConditionAccepted, "True", routing.ReasonAccepted, ready.Message)
	switch {
	case p.Import && len(p.Addresses) == 0:
		accepted = condition(routing.ConditionAccepted, "False", routing.ReasonNoEndpoints, ready.Message)
	case !used:
		accepted = condition(routing.ConditionAccepted, "Unknown", routing.ReasonPending, "no HTTPRoute or GRPCRoute refers to it; requests reach it by its host and by its models' names")
	}
	out.Conditions = []service.Condition{ready, accepted, condition(routing.ConditionResolvedRefs, "True", routing.ReasonResolvedRefs, "")}
	return out
}

// noMembers names the labels that the pool selects by, and a service whose label
// is similar.
func (s *statuses) noMembers(p *routing.Pool) string {
	if p.Import {
		return routing.ImportLacks
	}
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

// parents returns the gateways whose HTTPRoutes and GRPCRoutes send requests, or copies
// of them, to the pool. used reports whether any route does: on one machine a route need
// name no gateway.
func (s *statuses) parents(pool service.Key) (out []routing.Parent, used bool) {
	ref := routing.PoolRef(pool)
	copies := func(m routing.Mirror) bool { return m.Ref == ref }
	for _, r := range s.set.http {
		uses := slices.ContainsFunc(r.Rules, func(rule routing.HTTPRule) bool {
			return slices.ContainsFunc(rule.Handling.Mirrors, copies) || slices.ContainsFunc(rule.Backends, func(b routing.Backend) bool {
				return b.Ref == ref || b.Handling != nil && slices.ContainsFunc(b.Handling.Mirrors, copies)
			})
		})
		if !uses {
			continue
		}
		used = true
		for _, p := range r.Parents {
			p.SectionName, p.Port = "", 0 // a pool's parent is a gateway as a whole
			if p.Namespace == "" && r.Namespace != pool.Namespace {
				p.Namespace = r.Namespace
			}
			if !slices.Contains(out, p) && len(out) < maxParents {
				out = append(out, p)
			}
		}
	}
	return out, used
}

// unresolved returns that what ref names does not exist; "" where it does.
func (s *statuses) unresolved(ref routing.Ref) string {
	existing := s.keys
	if ref.Pool {
		existing = s.poolNames
	}
	if _, ok := slices.BinarySearchFunc(existing, ref.Key, compareKeys); ok {
		return ""
	}
	return notFound(ref, existing)
}

func (s *statuses) httpRoute(r *routing.HTTPRoute) routing.Status {
	var refs []routing.Ref
	p := parts{statuses: s}
	does := ""
	for _, rule := range r.Rules {
		switch {
		case rule.Fault != "":
			p.other = appendNew(p.other, rule.Fault)
			continue
		case rule.Handling.Redirect != nil:
			p.serving, does = p.serving+1, "redirects"
		}
		for _, b := range rule.Backends {
			refs = append(refs, b.Ref)
			p.add(b.Ref, b.Weight, b.Fault)
		}
	}
	if len(refs) > 0 {
		does = "to " + summary(refs)
	}
	resolved := condition(routing.ConditionResolvedRefs, "True", routing.ReasonResolvedRefs, "")
	if len(p.missing) > 0 { // even if others serve: so the Gateway API has it
		resolved = condition(routing.ConditionResolvedRefs, "False", routing.ReasonBackendNotFound, strings.Join(p.missing, "; "))
	}
	return routing.Status{Parents: r.Parents, Conditions: []service.Condition{p.ready(does, "backend"),
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
	p := parts{statuses: s, other: inUse}
	for _, t := range r.Targets {
		p.add(t.Ref, t.Weight, "")
	}
	ready := p.ready(names+" to "+summary(refs), "target")
	if len(inUse) == len(r.Models) && len(inUse) > 0 {
		ready = condition(routing.ConditionReady, "False", routing.ReasonModelNameInUse, strings.Join(inUse, "; "))
	}
	return routing.Status{Conditions: []service.Condition{ready}}
}

// parts are the services and pools that a route leads to, by their state.
type parts struct {
	*statuses
	serving, unknown int      // of those that get requests
	missing          []string // there is no such object
	checking, down   []string // pools
	other            []string // what else of the route does not serve
}

// add adds a target of a route; fault is why it gets no requests.
func (p *parts) add(ref routing.Ref, weight uint32, fault string) {
	lost := cmp.Or(fault, p.unresolved(ref))
	var at service.Condition
	if lost == "" && ref.Pool {
		at = p.pool(p.set.pools[ref.Key]).Ready()
	}
	switch {
	case lost != "":
		p.missing = appendNew(p.missing, lost)
	case at.Status == "False":
		p.down = appendNew(p.down, "pool "+ref.Name+" has no endpoint: "+at.Message)
	case at.Status == "Unknown":
		p.checking = appendNew(p.checking, "pool "+ref.Name+": "+at.Message)
		p.unknown += min(int(weight), 1)
	default:
		p.serving += min(int(weight), 1)
	}
}

func appendNew(list []string, text string) []string {
	if slices.Contains(list, text) {
		return list
	}
	return append(list, text)
}

// ready returns the condition Ready of a route. does is the verb for what it does
// with requests, noun the word for its targets.
func (p *parts) ready(does, noun string) service.Condition {
	faults := slices.Concat(p.missing, p.down, p.other)
	reason := routing.ReasonNoEndpoints
	if len(p.missing) > 0 {
		reason = routing.ReasonBackendNotFound
	}
	switch {
	case p.serving > 0 && len(faults) == 0:
		return condition(routing.ConditionReady, "True", routing.ReasonRouted, does)
	case p.serving > 0:
		return condition(routing.ConditionReady, "True", routing.ReasonDegraded, strings.Join(append([]string{does}, faults...), "; "))
	case p.unknown > 0:
		return condition(routing.ConditionReady, "Unknown", routing.ReasonChecking, strings.Join(append(p.checking, faults...), "; "))
	case len(faults) == 0 || len(p.missing)+len(p.down) == 0:
		faults = append(faults, "no "+noun+" has a weight above 0")
	}
	return condition(routing.ConditionReady, "False", reason, strings.Join(faults, "; "))
}

func nonEmpty(parts ...string) []string {
	return slices.DeleteFunc(parts, func(s string) bool { return s == "" })
}

// inPool returns the status of an object that belongs to a pool and has no other
// problem; note is what it does.
func (s *statuses) inPool(pool service.Key, note string) routing.Status {
	if lost := s.unresolved(routing.PoolRef(pool)); lost != "" {
		return routing.Status{Conditions: []service.Condition{
			condition(routing.ConditionReady, "False", routing.ReasonBackendNotFound, lost),
			condition(routing.ConditionAccepted, "Unknown", routing.ReasonPending, lost),
			condition(routing.ConditionResolvedRefs, "False", routing.ReasonBackendNotFound, lost)}}
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
			for _, name := range rewritten(rule) {
				if _, ok := older[name]; !ok && other.Pool == o.Pool {
					older[name] = other.Name
				}
			}
		}
	}
	names := 0
	var taken []string
	for _, rule := range o.Rules {
		for _, name := range rewritten(rule) {
			names++
			if by := older[name]; by != "" {
				taken = append(taken, cmp.Or(name, "every other name")+" is rewritten by the older "+by)
			}
		}
	}
	out := s.inPool(o.Pool, strings.Join(append([]string{"in pool " + o.Pool.Name}, taken...), "; "))
	switch ready := &out.Conditions[0]; {
	case ready.Status != "True" || len(taken) == 0:
	case len(taken) == names:
		ready.Status, ready.Reason = "False", routing.ReasonModelNameInUse
	default:
		ready.Reason = routing.ReasonDegraded
	}
	return out
}

// rewritten lists the names that a rule rewrites; "" is every other name.
func rewritten(rule routing.RewriteRule) []string {
	if len(rule.Models) == 0 {
		return []string{""}
	}
	return rule.Models
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
