package dialect

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// The bounds of HTTPRoute's published schema.
const (
	maxParents   = 32
	maxHostnames = 16
	maxMatches   = 64
	maxNamed     = 16 // headers or parameters of one match
	maxBackends  = 16
	maxPath      = 1024
	maxValue     = 4096 // of a header
)

var methods = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}

func readHTTPRoute(r *reading, m *httpRoute, o *Object) {
	out := &routing.HTTPRoute{}
	r.routing(m.Metadata, o, out)
	r.atMost("spec.parentRefs", len(m.Spec.ParentRefs), maxParents)
	for i, p := range m.Spec.ParentRefs {
		at := strict.Index("spec.parentRefs", i)
		r.name(at+".name", p.Name, true)
		parent := routing.Parent{Group: p.Group, Kind: p.Kind, Namespace: p.Namespace, Name: p.Name, SectionName: p.SectionName}
		if p.Port != nil {
			r.port(at+".port", *p.Port)
			parent.Port = *p.Port
		}
		out.Parents = append(out.Parents, parent)
	}
	r.atMost("spec.hostnames", len(m.Spec.Hostnames), maxHostnames)
	for i, h := range m.Spec.Hostnames {
		r.hostname(strict.Index("spec.hostnames", i), h)
		out.Hostnames = append(out.Hostnames, strings.ToLower(h))
	}
	if len(m.Spec.Rules) == 0 {
		r.errorf("spec.rules", "is missing: write where requests go, as backendRefs")
	}
	r.atMost("spec.rules", len(m.Spec.Rules), maxRules)
	for i := range m.Spec.Rules {
		out.Rules = append(out.Rules, r.httpRule(strict.Index("spec.rules", i), out.Namespace, &m.Spec.Rules[i]))
	}
}

func (r *reading) atMost(path string, n, limit int) {
	if n > limit {
		r.errorf(path, "%d entries are more than there may be (%d)", n, limit)
	}
}

var hostname = regexp.MustCompile(`^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

func (r *reading) hostname(path, h string) {
	switch {
	case !hostname.MatchString(strings.ToLower(h)) || len(h) > 253:
		r.errorf(path, "%q is not a host: write a name, or *. and the names it may end with, without a port", clip(h))
	case strings.Trim(h, "0123456789.") == "":
		r.errorf(path, "%q is an address: an HTTPRoute goes by names", clip(h))
	}
}

func (r *reading) httpRule(path, namespace string, in *httpRule) routing.HTTPRule {
	var out routing.HTTPRule
	r.atMost(path+".matches", len(in.Matches), maxMatches)
	for i, m := range in.Matches {
		out.Matches = append(out.Matches, r.httpMatch(strict.Index(path+".matches", i), m))
	}
	if len(out.Matches) == 0 {
		out.Matches = []routing.HTTPMatch{r.httpMatch(path+".matches", httpMatch{})}
	}
	for i, f := range in.Filters {
		kind := "of an unknown type"
		if fields, ok := f.(map[string]any); ok && fields["type"] != nil {
			kind = clip(fmt.Sprint(fields["type"]))
		}
		r.errorf(strict.Index(path+".filters", i), "the filter %s is not supported: remove it; requests are forwarded as they are", kind)
	}
	if len(in.BackendRefs) == 0 && len(in.Filters) == 0 {
		r.errorf(path+".backendRefs", "is missing: name the InferencePool or service that answers")
	}
	r.atMost(path+".backendRefs", len(in.BackendRefs), maxBackends)
	for i, b := range in.BackendRefs {
		out.Backends = append(out.Backends, r.backend(strict.Index(path+".backendRefs", i), namespace, b))
	}
	return out
}

func (r *reading) httpMatch(path string, in httpMatch) routing.HTTPMatch {
	out := routing.HTTPMatch{Path: routing.ValueMatch{Type: routing.MatchPrefix, Value: "/"}, Method: in.Method}
	if in.Path != nil {
		out.Path = r.pathMatch(path+".path", in.Path)
	}
	if in.Method != "" && !slices.Contains(methods, in.Method) {
		r.errorf(path+".method", "unknown method %q: write one of %s", clip(in.Method), strings.Join(methods, ", "))
	}
	r.atMost(path+".headers", len(in.Headers), maxNamed)
	r.atMost(path+".queryParams", len(in.QueryParams), maxNamed)
	out.Headers = r.namedMatches(path+".headers", in.Headers, canonicalHeader)
	out.Query = r.namedMatches(path+".queryParams", in.QueryParams, func(s string) string { return s })
	return out
}

func (r *reading) pathMatch(path string, in *httpValue) routing.ValueMatch {
	out := routing.ValueMatch{Type: r.matchType(path+".type", in.Type, routing.MatchPrefix, routing.MatchExact, routing.MatchRegexp), Value: "/"}
	if in.Name != "" {
		r.errorf(path+".name", "unknown field; known here: type, value")
	}
	if in.Value != nil {
		out.Value = *in.Value
	}
	if len(out.Value) > maxPath {
		r.errorf(path+".value", "%d bytes are more than a path may have (%d)", len(out.Value), maxPath)
	}
	if out.Type == routing.MatchRegexp {
		r.pattern(path+".value", out.Value)
		return out
	}
	if !strings.HasPrefix(out.Value, "/") {
		r.errorf(path+".value", "%q is not a path: it begins with /", clip(out.Value))
	}
	for _, part := range []string{"//", "/./", "/../", "%2f", "%2F", "#", "?"} {
		if strings.Contains(out.Value, part) {
			r.errorf(path+".value", "%q holds %s, which no path that is matched does", clip(out.Value), part)
		}
	}
	for _, end := range []string{"/..", "/."} {
		if strings.HasSuffix(out.Value, end) {
			r.errorf(path+".value", "%q ends with %s, which no path that is matched does", clip(out.Value), end)
		}
	}
	return out
}

// matchType is s, or the first of those known.
func (r *reading) matchType(path, s string, known ...routing.MatchType) routing.MatchType {
	if s == "" {
		return known[0]
	}
	if !slices.Contains(known, routing.MatchType(s)) {
		r.errorf(path, "unknown type %q: write one of %s", clip(s), joined(known))
	}
	return routing.MatchType(s)
}

func (r *reading) pattern(path, expr string) {
	if _, err := regexp.Compile(expr); err != nil {
		r.errorf(path, "is not a regular expression (RE2): %s", clip(strings.TrimPrefix(err.Error(), "error parsing regexp: ")))
	}
}

var token = regexp.MustCompile("^[-!#$%&'*+.^_`|~0-9A-Za-z]+$")

func (r *reading) namedMatches(path string, in []httpValue, canonical func(string) string) []routing.NamedMatch {
	var out []routing.NamedMatch
	seen := map[string]bool{}
	for i, v := range in {
		at := strict.Index(path, i)
		if !token.MatchString(v.Name) || len(v.Name) > maxModelName {
			r.errorf(at+".name", "%q is not a name", clip(v.Name))
		}
		if v.Value == nil || *v.Value == "" || len(*v.Value) > maxValue {
			r.errorf(at+".value", "must have 1 to %d bytes", maxValue)
			continue
		}
		name := canonical(v.Name)
		if seen[name] {
			r.errorf(at+".name", "%s is matched already: only the first would count", clip(v.Name))
		}
		seen[name] = true
		kind := r.matchType(at+".type", v.Type, routing.MatchExact, routing.MatchRegexp)
		if kind == routing.MatchRegexp {
			r.pattern(at+".value", *v.Value)
		}
		out = append(out, routing.NamedMatch{Name: name, ValueMatch: routing.ValueMatch{Type: kind, Value: *v.Value}})
	}
	return out
}

// canonicalHeader is how a header's name is asked for: "X-Team-Name".
func canonicalHeader(name string) string {
	b, upper := []byte(name), true
	for i, c := range b {
		if upper && 'a' <= c && c <= 'z' {
			b[i] = c - 'a' + 'A'
		} else if !upper && 'A' <= c && c <= 'Z' {
			b[i] = c - 'A' + 'a'
		}
		upper = c == '-'
	}
	return string(b)
}

// backends are the kinds that requests may go to, by "group kind".
var backends = map[string]bool{ // → whether a pool is meant
	"inference.networking.k8s.io InferencePool":   true,
	"inference.networking.x-k8s.io InferencePool": true,
	"roundhouse.dev Pool":                         true,
	" Service":                                    false,
	"roundhouse.dev ModelService":                 false,
	"serving.kserve.io InferenceService":          false,
	"ome.io InferenceService":                     false,
	"machinelearning.seldon.io SeldonDeployment":  false,
}

func (r *reading) backend(path, namespace string, in httpRef) routing.Backend {
	out := routing.Backend{Ref: routing.Ref{Key: service.Key{Namespace: namespace, Name: in.Name}}, Weight: routing.DefaultWeight, Group: in.Group}
	if in.Namespace != "" {
		r.name(path+".namespace", in.Namespace, false)
		out.Namespace = in.Namespace
	}
	r.name(path+".name", in.Name, true)
	r.optionalPort(path+".port", in.Port)
	if in.Weight != nil {
		if *in.Weight < 0 || *in.Weight > maxWeight {
			r.errorf(path+".weight", "%d is not a weight: 0 to %d", *in.Weight, maxWeight)
		} else {
			out.Weight = uint32(*in.Weight)
		}
	}
	kind := in.Kind
	if kind == "" {
		kind = "Service"
	}
	pool, known := backends[in.Group+" "+kind]
	if !known {
		// In a cluster the rest of the route is served, as the Gateway API has it.
		out.Fault = backendKind(in.Group, kind) + ": requests go to an InferencePool, a Pool, a Service, a ModelService or an InferenceService, with its group; this is none"
		r.problem(path+".kind", out.Fault).Platform = Process
	}
	out.Pool, out.Kind = pool, kind
	return out
}

// backendKind says what was asked for, and what was probably meant.
func backendKind(group, kind string) string {
	text := fmt.Sprintf("%q of group %q", clip(kind), clip(group))
	for _, known := range slices.Sorted(maps.Keys(backends)) {
		g, k, _ := strings.Cut(known, " ")
		if k == kind && group == "" {
			text += fmt.Sprintf(" (did you leave out group: %s?)", g)
			break
		}
	}
	return text
}
