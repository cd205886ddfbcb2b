package route

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// slow is a second implementation of Resolve, by scans over all objects for
// every query. draw stands for chance: the same for every choice.
type slow struct {
	services []Entry
	objects  []routing.Object
	domain   string
	draw     int
}

// outcome is what is compared.
type outcome struct {
	pool     routing.Ref
	model    string
	named    bool
	priority int32
	err      string // the kind of error
}

func objectsOf[T routing.Object](s *slow) (out []T) {
	for _, o := range s.objects {
		if o, ok := o.(T); ok {
			out = append(out, o)
		}
	}
	slices.SortStableFunc(out, func(a, b T) int { return older(a, b) })
	return out
}

func (s *slow) hasPool(k service.Key) bool {
	return slices.ContainsFunc(objectsOf[*routing.Pool](s), func(p *routing.Pool) bool { return p.Key == k })
}

func (s *slow) hasService(k service.Key) bool {
	return slices.ContainsFunc(s.services, func(e Entry) bool { return e.Key == k })
}

func (s *slow) hostOf(e Entry) string {
	if e.Host != "" {
		return e.Host
	}
	return Host(e.Key, s.domain)
}

// winner is the accepted InferenceModel of a name in a pool, nil for none.
func (s *slow) winner(pool service.Key, name string) *routing.Model {
	for _, m := range objectsOf[*routing.Model](s) {
		if m.Pool == pool && m.ModelName == name {
			return m
		}
	}
	return nil
}

func (s *slow) choose(weights []uint32) int {
	var lots []int
	for i, w := range weights {
		for range w {
			lots = append(lots, i)
		}
	}
	if len(lots) == 0 {
		return -1
	}
	if len(weights) == 1 {
		return 0
	}
	return lots[s.draw%len(lots)]
}

func (s *slow) chooseModel(in []routing.WeightedModel) (string, bool) {
	var weights []uint32
	for _, m := range in {
		weights = append(weights, m.Weight)
	}
	if i := s.choose(weights); i >= 0 {
		return in[i].Name, true
	}
	return "", false
}

func (s *slow) resolve(q Query) outcome {
	var at []Entry
	for _, e := range s.services {
		if s.hostOf(e) == q.Host {
			at = append(at, e)
		}
	}
	if len(at) == 1 {
		k := at[0].Key
		return outcome{pool: routing.Service(k), named: q.Model == "" || q.Model == k.Name || q.Model == k.String()}
	}
	if len(at) == 0 {
		for _, p := range objectsOf[*routing.Pool](s) {
			if Host(p.Key, s.domain) == q.Host {
				return s.inPool(p.Key, q, q.Model, nil)
			}
		}
	}
	r, rule, match := s.httpRoute(q)
	if r != nil && !(match.CatchAll() && len(r.Hostnames) == 0) {
		return s.forward(r, rule, q)
	}
	names := s.named(q.Model)
	switch {
	case len(names) == 1:
		return names[0](q)
	case r != nil:
		return s.forward(r, rule, q)
	case len(names) == 0:
		return outcome{err: "not found"}
	}
	return outcome{err: "ambiguous"}
}

// named are what answers to a name: first by its full form, then bare.
func (s *slow) named(model string) []func(Query) outcome {
	out, _ := s.namedBy(model)
	return out
}

// namedBy also tells of which namespaces they are.
func (s *slow) namedBy(model string) (out []func(Query) outcome, of map[string]bool) {
	var full, bare []func(Query) outcome
	fullOf, bareOf := map[string]bool{}, map[string]bool{}
	namespaces := map[string]bool{}
	for _, e := range s.services {
		namespaces[e.Key.Namespace] = true
	}
	for _, o := range s.objects {
		namespaces[o.Common().Namespace] = true
	}
	for ns := range namespaces {
		if name, ok := strings.CutPrefix(model, ns+"/"); ok {
			if in := s.namedIn(ns, name); len(in) > 0 {
				full, fullOf[ns] = append(full, in...), true
			}
		}
		if in := s.namedIn(ns, model); len(in) > 0 {
			bare, bareOf[ns] = append(bare, in...), true
		}
	}
	if len(full) > 0 {
		return full, fullOf
	}
	return bare, bareOf
}

// others reports whether a request is another namespace's.
func (s *slow) others(q Query, ns string) bool {
	labels := strings.Split(q.Host, ".")
	if n := len(labels); labels[n-1] == DefaultDomain && (n < 3 || labels[n-2] != ns) {
		return true
	}
	longest, exact := "", false
	spaces := map[string]bool{}
	for _, r := range objectsOf[*routing.HTTPRoute](s) {
		for _, h := range r.Hostnames {
			is := h == q.Host
			switch {
			case !hostHolds(h, q.Host) || exact && !is || exact == is && len(h) < len(longest):
				continue
			case is != exact || len(h) > len(longest):
				longest, exact = h, is
				clear(spaces)
			}
			spaces[r.Namespace] = true
		}
	}
	if delete(spaces, ns); len(spaces) > 0 {
		return true
	}
	_, of := s.namedBy(q.Model)
	delete(of, ns)
	return len(of) > 0
}

func (s *slow) namedIn(ns, name string) []func(Query) outcome {
	for _, r := range objectsOf[*routing.Route](s) {
		if r.Namespace == ns && slices.Contains(r.Models, name) {
			return []func(Query) outcome{func(q Query) outcome { return s.byRoute(r, name, q) }}
		}
	}
	var out []func(Query) outcome
	for _, p := range objectsOf[*routing.Pool](s) {
		if p.Namespace == ns && s.winner(p.Key, name) != nil {
			out = append(out, func(q Query) outcome { return s.inPool(p.Key, q, name, nil) })
		}
	}
	if k := (service.Key{Namespace: ns, Name: name}); len(out) == 0 && s.hasService(k) {
		out = append(out, func(Query) outcome { return outcome{pool: routing.Service(k), named: true} })
	}
	return out
}

func (s *slow) byRoute(r *routing.Route, name string, q Query) outcome {
	var weights []uint32
	for _, t := range r.Targets {
		weights = append(weights, t.Weight)
	}
	i := s.choose(weights)
	if i < 0 {
		return outcome{err: "backend"}
	}
	t := r.Targets[i]
	switch {
	case t.Ref.Pool && !s.hasPool(t.Key), !t.Ref.Pool && !s.hasService(t.Key):
		return outcome{err: "backend"}
	case t.Ref.Pool && t.Model == "":
		return s.inPool(t.Key, q, name, &r.Priority)
	}
	out := outcome{pool: t.Ref, model: t.Model, named: t.Model == "", priority: r.Priority}
	if t.Ref.Pool {
		s.objective(t.Key, q, &out)
	}
	if out.model == q.Model {
		out.model = ""
	}
	return out
}

func (s *slow) inPool(k service.Key, q Query, name string, priority *int32) outcome {
	rewrite := func(name string) []routing.WeightedModel {
		for _, o := range objectsOf[*routing.Rewrite](s) {
			for _, rule := range o.Rules {
				if o.Pool == k && slices.Contains(rule.Models, name) {
					return rule.Targets
				}
			}
		}
		return nil
	}
	if short, ok := strings.CutPrefix(name, k.Namespace+"/"); ok && s.winner(k, name) == nil && rewrite(name) == nil {
		name = short
	}
	out := outcome{pool: routing.PoolRef(k), model: name}
	to := rewrite(name)
	if to == nil && s.winner(k, name) == nil {
		for _, o := range objectsOf[*routing.Rewrite](s) {
			for _, rule := range o.Rules {
				if o.Pool == k && len(rule.Models) == 0 && to == nil {
					to = rule.Targets
				}
			}
		}
	}
	if to != nil {
		if model, ok := s.chooseModel(to); ok {
			out.model = model
		}
	}
	any := slices.ContainsFunc(objectsOf[*routing.Model](s), func(m *routing.Model) bool { return m.Pool == k })
	m := s.winner(k, out.model)
	switch {
	case m != nil && len(m.Targets) > 0:
		model, ok := s.chooseModel(m.Targets)
		if !ok {
			return outcome{err: "backend"}
		}
		out.model = model
	case m == nil && any && to == nil && name == "":
		return outcome{err: "missing"}
	case m == nil && any && to == nil:
		return outcome{err: "not found"}
	}
	if m != nil {
		out.priority = m.Priority
	}
	if priority != nil {
		out.priority = *priority
	}
	s.objective(k, q, &out)
	if out.model == q.Model {
		out.model = ""
	}
	return out
}

func (s *slow) objective(k service.Key, q Query, out *outcome) {
	for _, o := range objectsOf[*routing.Objective](s) {
		if o.Pool == k && o.Name == routing.FirstOf(q.Header, routing.HeaderObjective) {
			out.priority = o.Priority
		}
	}
}

func (s *slow) forward(r *routing.HTTPRoute, rule int, q Query) outcome {
	var weights []uint32
	named := q.Model == ""
	for _, b := range r.Rules[rule].Backends {
		weights = append(weights, b.Weight)
		named = named || !b.Ref.Pool && (q.Model == b.Name || q.Model == b.Key.String())
	}
	i := s.choose(weights)
	if i < 0 {
		return outcome{err: "backend"}
	}
	switch b := r.Rules[rule].Backends[i]; {
	case b.Ref.Pool && s.hasPool(b.Key):
		return s.inPool(b.Key, q, q.Model, nil)
	case !b.Ref.Pool && s.hasService(b.Key):
		return outcome{pool: b.Ref, named: named}
	}
	return outcome{err: "backend"}
}

// httpRoute finds the match of the highest precedence among all that hold: the
// longest exact host, the longest wildcard, then the Gateway API's order.
func (s *slow) httpRoute(q Query) (*routing.HTTPRoute, int, *routing.HTTPMatch) {
	type candidate struct {
		key   string // sorts by precedence
		route *routing.HTTPRoute
		rule  int
		match *routing.HTTPMatch
	}
	var all []candidate
	for nth, r := range objectsOf[*routing.HTTPRoute](s) {
		if r.GRPC && !q.GRPC {
			continue
		}
		hosts := r.Hostnames
		if len(hosts) == 0 {
			hosts = []string{""}
		}
		for _, h := range hosts {
			if !hostHolds(h, q.Host) || h == "" && r.AfterNames && s.others(q, r.Namespace) {
				continue
			}
			for i, rule := range r.Rules {
				for j := range rule.Matches {
					m := &rule.Matches[j]
					if !matchHolds(m, q) {
						continue
					}
					rank := map[routing.MatchType]int{routing.MatchExact: 0, routing.MatchRegexp: 1, routing.MatchPrefix: 2}[m.Path.Type]
					wild, noMethod, after := 0, 0, 0
					if strings.HasPrefix(h, "*") || h == "" {
						wild = 1
					}
					if h == "" && r.AfterNames {
						after = 1
					}
					if m.Method == "" {
						noMethod = 1
					}
					asks := fmt.Sprintf("1 %d %04d %d %02d %02d", rank, 9999-len(strings.TrimSuffix(m.Path.Value, "/")), noMethod, 99-len(m.Headers), 99-len(m.Query))
					if r.GRPC {
						ranks := map[routing.MatchType]int{routing.MatchExact: 0, routing.MatchRegexp: 1, "": 2}
						asks = fmt.Sprintf("0 %d %04d %d %04d %02d", ranks[m.Call.Service.Type], 9999-len(m.Call.Service.Value),
							ranks[m.Call.Method.Type], 9999-len(m.Call.Method.Value), 99-len(m.Headers))
					}
					all = append(all, candidate{fmt.Sprintf("%d %03d %d %s %04d %02d %02d", wild, 999-len(h), after, asks, nth, i, j), r, i, m})
				}
			}
		}
	}
	if len(all) == 0 {
		return nil, 0, nil
	}
	best := slices.MinFunc(all, func(a, b candidate) int { return strings.Compare(a.key, b.key) })
	return best.route, best.rule, best.match
}

func hostHolds(pattern, host string) bool {
	switch {
	case pattern == "":
		return true
	case strings.HasPrefix(pattern, "*."):
		return strings.HasSuffix(host, pattern[1:]) && len(host) > len(pattern)-1
	}
	return pattern == host
}

func matchHolds(m *routing.HTTPMatch, q Query) bool {
	if m.Method != "" && m.Method != q.Method {
		return false
	}
	value := func(v routing.ValueMatch, s string) bool {
		if v.Type == routing.MatchRegexp {
			found := regexp.MustCompile(v.Value)
			found.Longest()
			at := found.FindStringIndex(s)
			return at != nil && at[0] == 0 && at[1] == len(s)
		}
		return v.Value == s
	}
	if m.Path.Type == routing.MatchPrefix {
		want := strings.Split(strings.Trim(m.Path.Value, "/"), "/")
		have := strings.Split(strings.TrimPrefix(q.Path, "/"), "/")
		if m.Path.Value != "/" && (len(have) < len(want) || !slices.Equal(have[:len(want)], want)) {
			return false
		}
	} else if !value(m.Path, q.Path) {
		return false
	}
	for _, h := range m.Headers {
		if !value(h.ValueMatch, q.Header(h.Name)) {
			return false
		}
	}
	params, _ := url.ParseQuery(q.RawQuery)
	for _, p := range m.Query {
		if !params.Has(p.Name) || !value(p.ValueMatch, params.Get(p.Name)) {
			return false
		}
	}
	return true
}

func outcomeOf(t Target, err error) outcome {
	var notFound *NotFoundError
	var ambiguous *AmbiguousError
	var missing *MissingModelError
	var backend *BackendError
	switch {
	case errors.As(err, &notFound):
		return outcome{err: "not found"}
	case errors.As(err, &ambiguous):
		return outcome{err: "ambiguous"}
	case errors.As(err, &missing):
		return outcome{err: "missing"}
	case errors.As(err, &backend):
		return outcome{err: "backend"}
	}
	return outcome{pool: t.Pool, model: t.Model, named: t.Named, priority: t.Priority}
}

func compare(t *testing.T, seed uint64) outcome {
	t.Helper()
	s, q := world(rand.New(rand.NewPCG(seed, 1)))
	table := NewTable(s.services, s.domain, s.objects...)
	got := outcomeOf(table.Resolve(q, func(n int) int { return s.draw % n }))
	for draw := range 8 { // whatever is drawn is among what the query leads to
		to, err := table.Resolve(q, func(n int) int { return (s.draw + draw) % n })
		found := false
		table.Leads(q, func(ref routing.Ref) bool { found = ref == to.Pool; return !found })
		if err == nil && !found {
			t.Errorf("seed %d: goes to %s, which Leads lacks\nquery %+v", seed, to.Pool, q)
		}
	}
	want := s.resolve(q)
	if got != want {
		t.Errorf("seed %d: got %+v, want %+v\nquery %+v", seed, got, want, q)
		for _, e := range s.services {
			t.Logf("service %+v", e)
		}
		for _, o := range s.objects {
			t.Logf("%s %+v", o.RoutingKind(), o)
		}
	}
	return got
}

// TestAgainstNaive compares Resolve with the slow implementation in worlds of
// every shape, and sees that every kind of outcome occurs.
func TestAgainstNaive(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(40_000) {
		o := compare(t, seed)
		switch {
		case o.err != "":
			seen[o.err]++
		case o.pool.Pool:
			seen["pool"]++
		default:
			seen["service"]++
		}
		if t.Failed() {
			return
		}
	}
	for _, kind := range []string{"not found", "ambiguous", "missing", "backend", "pool", "service"} {
		if seen[kind] < 15 {
			t.Errorf("%s occurred %d times: the worlds are too tame: %v", kind, seen[kind], seen)
		}
	}
}

func FuzzAgainstNaive(f *testing.F) {
	for seed := range uint64(16) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) { compare(t, seed) })
}
