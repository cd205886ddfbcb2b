package route

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// httpTable holds the matches of all HTTPRoutes and GRPCRoutes, each list in the order
// of the Gateway API's precedence.
type httpTable struct {
	exact    map[string][]*httpMatch // by host
	wildcard map[string][]*httpMatch // by the host's suffix, ".example.com"
	any      []*httpMatch
	// exactOf and wildcardOf are the namespace of all routes of a host; "" where
	// there are several.
	exactOf, wildcardOf map[string]string
	// hosted reports that a route of other requests than calls over gRPC asks for a host.
	hosted bool
	// edits reports that a rule has an answer of its own, or changes its requests'
	// URLs: otherwise nobody has to look for those.
	edits bool
}

// httpMatch is one match of one rule.
type httpMatch struct {
	route *routing.HTTPRoute
	rule  int // index
	spec  *routing.HTTPMatch
	// prefix is the path without the slash at its end.
	prefix  string
	path    *regexp.Regexp
	headers []valueMatch
	query   []valueMatch
	split   split
	// everything: the match asks for nothing in particular, and its route for
	// no host.
	everything bool
	// plain: its rule leads to Kubernetes Services alone.
	plain bool
}

type valueMatch struct {
	name, value string
	pattern     *regexp.Regexp // nil for an exact value
}

func (v *valueMatch) holds(value string) bool {
	if v.pattern != nil {
		return v.pattern.MatchString(value)
	}
	return v.value == value
}

// Whole compiles a regular expression (RE2) that must match a whole value.
func Whole(pattern string) (*regexp.Regexp, error) {
	if _, err := regexp.Compile(pattern); err != nil { // before the brackets hide a fault
		return nil, err
	}
	return regexp.Compile(`\A(?:` + pattern + `)\z`)
}

func (t *Table) compileHTTP(set *accepted) httpTable {
	h := httpTable{exact: map[string][]*httpMatch{}, wildcard: map[string][]*httpMatch{}}
	h.exactOf, h.wildcardOf = map[string]string{}, map[string]string{}
	for _, r := range set.http {
		h.hosted = h.hosted || !r.GRPC && len(r.Hostnames) > 0
		for i := range r.Rules {
			h.edits = h.edits || r.Rules[i].Handling.Redirect != nil || r.Rules[i].Handling.Rewrite != nil
			for j := range r.Rules[i].Matches {
				m := compileMatch(r, i, &r.Rules[i].Matches[j])
				if m == nil {
					continue
				}
				for _, name := range r.Hostnames {
					if suffix, ok := strings.CutPrefix(name, "*"); ok {
						belong(h.wildcardOf, suffix, r.Namespace)
						h.wildcard[suffix] = append(h.wildcard[suffix], m)
					} else {
						belong(h.exactOf, name, r.Namespace)
						h.exact[name] = append(h.exact[name], m)
					}
				}
				if len(r.Hostnames) == 0 {
					h.any = append(h.any, m)
				}
			}
		}
	}
	for _, lists := range []map[string][]*httpMatch{h.exact, h.wildcard} {
		for _, list := range lists {
			slices.SortStableFunc(list, precedence)
		}
	}
	// What comes after names is a tenant's: however much it asks for, it takes nothing
	// from a route that has every host.
	slices.SortStableFunc(h.any, func(a, b *httpMatch) int {
		return cmp.Or(last(a.route.AfterNames, b.route.AfterNames), precedence(a, b))
	})
	return h
}

// last orders false before true.
func last(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

func belong(of map[string]string, host, namespace string) {
	if have, there := of[host]; there && have != namespace {
		namespace = ""
	}
	of[host] = namespace
}

// whose is the namespace whose HTTPRoutes ask for a host most exactly, "" if
// those of several do; false where none does.
func (h *httpTable) whose(host string) (namespace string, asked bool) {
	if namespace, asked = h.exactOf[host]; asked {
		return namespace, true
	}
	for at := range len(host) {
		if at > 0 && host[at] == '.' {
			if namespace, asked = h.wildcardOf[host[at:]]; asked {
				return namespace, true
			}
		}
	}
	return "", false
}

// compileMatch is nil for a pattern that does not compile, which reading a
// manifest refuses.
func compileMatch(r *routing.HTTPRoute, rule int, spec *routing.HTTPMatch) *httpMatch {
	m := &httpMatch{route: r, rule: rule, spec: spec, prefix: strings.TrimSuffix(spec.Path.Value, "/"),
		everything: len(r.Hostnames) == 0 && spec.CatchAll()}
	for _, b := range r.Rules[rule].Backends {
		m.split.add(b.Weight)
	}
	m.plain = plain(r.Rules[rule].Backends)
	var err error
	if spec.Path.Type == routing.MatchRegexp {
		if m.path, err = Whole(spec.Path.Value); err != nil {
			return nil
		}
	}
	compile := func(in []routing.NamedMatch) (out []valueMatch) {
		for _, n := range in {
			v := valueMatch{name: n.Name, value: n.Value}
			if n.Type == routing.MatchRegexp {
				pattern, e := Whole(n.Value)
				v.pattern, err = pattern, cmp.Or(err, e)
			}
			out = append(out, v)
		}
		return out
	}
	m.headers, m.query = compile(spec.Headers), compile(spec.Query)
	if err != nil {
		return nil
	}
	return m
}

// precedence is the Gateway API's for matches of the same host. Those of GRPCRoutes come
// first, since HTTPRoutes may take calls over gRPC, too. Of HTTPRoutes: an exact path,
// a pattern (which the API leaves open; the longest first), the longest
// prefix, a method, the most headers, the most query parameters, the oldest
// route, its name; then the order in the route.
func precedence(a, b *httpMatch) int {
	switch {
	case a.route.GRPC != b.route.GRPC && a.route.GRPC:
		return -1
	case a.route.GRPC != b.route.GRPC:
		return 1
	case a.route.GRPC:
		return cmp.Or(
			named(a.spec.Call.Service, b.spec.Call.Service),
			named(a.spec.Call.Method, b.spec.Call.Method),
			cmp.Compare(len(b.spec.Headers), len(a.spec.Headers)),
			elder(a, b),
		)
	}
	rank := map[routing.MatchType]int{routing.MatchExact: 0, routing.MatchRegexp: 1, routing.MatchPrefix: 2}
	method := func(m *httpMatch) int {
		if m.spec.Method != "" {
			return 0
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(rank[a.spec.Path.Type], rank[b.spec.Path.Type]),
		cmp.Compare(len(b.prefix), len(a.prefix)),
		cmp.Compare(method(a), method(b)),
		cmp.Compare(len(b.spec.Headers), len(a.spec.Headers)),
		cmp.Compare(len(b.spec.Query), len(a.spec.Query)),
		elder(a, b),
	)
}

// elder orders matches that ask for as much: the oldest route, its name, then the order
// in the route.
func elder(a, b *httpMatch) int {
	return cmp.Or(
		a.route.Created.Compare(b.route.Created),
		strings.Compare(a.route.Key.String(), b.route.Key.String()),
		cmp.Compare(a.rule, b.rule),
	)
}

// named orders what matches ask of a call's service or method: the longest first. How
// many characters a pattern matches the API leaves open; patterns come after all names.
func named(a, b routing.ValueMatch) int {
	rank := func(m routing.ValueMatch) int {
		switch m.Type {
		case routing.MatchExact:
			return 0
		case routing.MatchRegexp:
			return 1
		case routing.MatchPrefix: // no call has one
		}
		return 2
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(len(b.Value), len(a.Value)))
}

// find is the match that takes the request, nil for none. The most specific
// host that has one decides.
func (t *Table) find(q *Query, host string) *httpMatch {
	h := &t.http
	if len(h.exact)+len(h.wildcard)+len(h.any) == 0 {
		return nil
	}
	first := func(list []*httpMatch) *httpMatch {
		for _, m := range list {
			if m.holds(q) {
				return m
			}
		}
		return nil
	}
	if m := first(h.exact[host]); m != nil {
		return m
	}
	for at := strings.IndexByte(host, '.'); at > 0 && len(h.wildcard) > 0; {
		if m := first(h.wildcard[host[at:]]); m != nil {
			return m
		}
		next := strings.IndexByte(host[at+1:], '.')
		if next < 0 {
			break
		}
		at += 1 + next
	}
	for _, m := range h.any {
		if m.holds(q) && !(m.route.AfterNames && t.others(q, host, m.route.Namespace)) {
			return m
		}
	}
	return nil
}

// KnowsHost reports whether a host, with or without a port, is one that a
// service, a pool or an HTTPRoute names.
func (t *Table) KnowsHost(hostport string) bool {
	host := normalHost(hostport)
	if _, ok := t.hosts[host]; ok || t.graphs.hosts[host] != nil {
		return true
	}
	if _, ok := t.http.exact[host]; ok {
		return true
	}
	for rest := host; len(t.http.wildcard) > 0; {
		at := strings.IndexByte(rest, '.')
		if at < 0 {
			break
		}
		if _, ok := t.http.wildcard[rest[at:]]; ok && rest[at:] != host {
			return true
		}
		rest = rest[at+1:]
	}
	return false
}

// NamesPath reports whether an HTTPRoute that names a path takes a request: who
// wrote it wants requests there, whatever they are. One that takes all of a
// root ("/", "/v1", ".*") names none.
func (t *Table) NamesPath(q Query) bool {
	host := normalHost(q.Host)
	if ref, ok := t.hosts[host]; ok && ref.Name != "" {
		return false
	}
	m := t.find(&q, host)
	return m != nil && m.names()
}

// Broken is why the HTTPRoute that takes a request can forward none: no backend of
// its rule is there, or the rule's own answer. nil where one is, and where no HTTPRoute
// takes it. own reports that the gateway answers such a request itself otherwise, for all
// namespaces: then a route without a host whose namespace comes after names has no say.
func (t *Table) Broken(q Query, own bool) error {
	host := normalHost(q.Host)
	if ref, ok := t.hosts[host]; ok && ref.Name != "" {
		return nil
	}
	m := t.find(&q, host)
	if m == nil || own && m.route.AfterNames && len(m.route.Hostnames) == 0 {
		return nil
	}
	if err := m.answer(&q); err != nil {
		return err
	}
	why := "no backend has a weight above 0"
	for i, b := range m.route.Rules[m.rule].Backends {
		lost := cmp.Or(b.Fault, t.missing(b.Ref))
		switch {
		case m.split.weight(i) == 0:
		case lost == "":
			return nil
		default:
			why = lost
		}
	}
	return &BackendError{Object: m.name(), Message: why}
}

// others reports whether a request belongs to another namespace than this one: it
// was sent to a host of the services' domain that is not this namespace's, or
// to one that another's HTTPRoutes ask for, whether or not they take it; or it
// names a model that another has.
func (t *Table) others(q *Query, host, namespace string) bool {
	if of, within := HostNamespace(host, t.domain); within && of != namespace {
		return true
	}
	if of, asked := t.http.whose(host); asked && of != namespace {
		return true
	}
	claims, ok := t.full[q.Model]
	if !ok {
		claims = t.bare[q.Model]
	}
	return slices.ContainsFunc(claims, func(c *claim) bool { return c.key.Namespace != namespace })
}

// holds reports whether a request meets the match.
func (m *httpMatch) holds(q *Query) bool {
	if m.route.GRPC && !q.GRPC || m.spec.Method != "" && m.spec.Method != q.Method || m.route.Scheme != "" && (m.route.Scheme == "https") != q.Secure || !m.holdsPath(q.Path) {
		return false
	}
	for i := range m.headers {
		if q.Header == nil || !m.headers[i].holds(q.Header(m.headers[i].name)) {
			return false
		}
	}
	for i := range m.query {
		value, ok := param(q.RawQuery, m.query[i].name)
		if !ok || !m.query[i].holds(value) {
			return false
		}
	}
	return true
}

func (m *httpMatch) holdsPath(path string) bool {
	if path == "" {
		path = "/"
	}
	switch m.spec.Path.Type {
	case routing.MatchExact:
		return path == m.spec.Path.Value
	case routing.MatchRegexp:
		return m.path.MatchString(path)
	}
	return strings.HasPrefix(path, m.prefix) && (len(path) == len(m.prefix) || path[len(m.prefix)] == '/')
}

// forward sends a request to one of the rule's backends. One that is not there
// keeps its share, which fails, as the Gateway API has it.
func (t *Table) forward(m *httpMatch, q *Query, random func(n int) int) (Target, error) {
	if err := m.answer(q); err != nil {
		return Target{}, err
	}
	backends := m.route.Rules[m.rule].Backends
	i := m.split.pick(random)
	if i < 0 {
		return Target{}, &BackendError{Object: m.name(), Message: "no backend has a weight above 0"}
	}
	b := &backends[i]
	if lost := cmp.Or(b.Fault, t.missing(b.Ref)); lost != "" {
		return Target{}, &BackendError{Object: m.name(), Message: lost}
	}
	out := Target{Pool: b.Ref, Handling: m.handling(b), by: reasons{http: m, index: i}}
	if out.Handling != nil && out.Handling.Redirect != nil {
		return Target{}, m.redirect(out.Handling.Redirect, q)
	}
	if b.Pool {
		return t.pools[b.Key].resolve(q, q.Model, random, out)
	}
	// Services that a rule splits between have names of their own: each is
	// given its.
	out.Named = q.Model == ""
	for j := range backends {
		out.Named = out.Named || !backends[j].Pool && names(backends[j].Key, q.Model)
	}
	if !out.Named {
		at, err := t.at(b.Key, q)
		if err != nil {
			return Target{}, err
		}
		out.Adapter, out.Model = at.Adapter, at.Model
	}
	return out, nil
}

// names reports whether a model's name is the service's, bare or full. A canary
// has its service's names, and its own.
func names(k service.Key, model string) bool {
	return model == k.Name || isFull(model, k) || k.Variant != "" && (model == k.WorkloadName() || model == k.String())
}

// param is the first value of a query's parameter; ok is false when the query
// has none of the name. Parts that cannot be read are passed over.
func param(query, name string) (value string, ok bool) {
	for query != "" {
		var part string
		part, query, _ = strings.Cut(query, "&")
		if strings.Contains(part, ";") {
			continue
		}
		key, v, _ := strings.Cut(part, "=")
		if key, fine := unescape(key); !fine || key != name || part == "" {
			continue
		}
		if v, fine := unescape(v); fine {
			return v, true
		}
	}
	return "", false
}

// unescape reads + and %XX.
func unescape(s string) (string, bool) {
	if strings.IndexByte(s, '%') < 0 && strings.IndexByte(s, '+') < 0 {
		return s, true
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '+':
			out = append(out, ' ')
		case '%':
			if i+2 >= len(s) {
				return "", false
			}
			hi, lo := hex(s[i+1]), hex(s[i+2])
			if hi < 0 || lo < 0 {
				return "", false
			}
			out = append(out, byte(hi<<4|lo))
			i += 2
		default:
			out = append(out, c)
		}
	}
	return string(out), true
}

func hex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
