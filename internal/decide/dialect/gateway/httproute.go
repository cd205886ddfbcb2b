package gateway

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// The bounds of HTTPRoute's published schema.
const (
	maxParents   = 32
	maxHostnames = 16
	maxMatches   = 64
	maxNamed     = 16 // headers or parameters of one match
	maxPath      = 1024
	maxValue     = 4096 // of a header
)

var methods = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}

func readHTTPRoute(r *manifest.Reader, m *httpRoute, o *manifest.Object) {
	out := &routing.HTTPRoute{}
	r.Routing(m.Metadata, o, out)
	readRouteSpec(r, out, m.Spec.ParentRefs, m.Spec.Hostnames, len(m.Spec.Rules))
	for i := range m.Spec.Rules {
		out.Rules = append(out.Rules, readHTTPRule(r, strict.Index("spec.rules", i), out.Namespace, &m.Spec.Rules[i]))
	}
}

// readRouteSpec reads what routes of both kinds have.
func readRouteSpec(r *manifest.Reader, out *routing.HTTPRoute, parents []httpParentRef, hostnames []string, rules int) {
	manifest.CheckAtMost(r.Report, "spec.parentRefs", len(parents), maxParents)
	for i, p := range parents {
		at := strict.Index("spec.parentRefs", i)
		manifest.CheckName(r.Report, at+".name", p.Name, true)
		parent := routing.Parent{Group: p.Group, Kind: p.Kind, Namespace: p.Namespace, Name: p.Name, SectionName: p.SectionName}
		if p.Port != nil {
			manifest.CheckPort(r.Report, at+".port", *p.Port)
			parent.Port = *p.Port
		}
		out.Parents = append(out.Parents, parent)
	}
	manifest.CheckAtMost(r.Report, "spec.hostnames", len(hostnames), maxHostnames)
	for i, h := range hostnames {
		checkHostname(r, strict.Index("spec.hostnames", i), h)
		out.Hostnames = append(out.Hostnames, strings.ToLower(h))
	}
	if rules == 0 {
		r.Errorf("spec.rules", "is missing: write where requests go, as backendRefs")
	}
	manifest.CheckAtMost(r.Report, "spec.rules", rules, maxRules)
}

func checkHostname(r *manifest.Reader, path, h string) {
	switch {
	case !manifest.Hostname.MatchString(strings.ToLower(h)) || len(h) > 253:
		r.Errorf(path, "%q is not a host: write a name, or *. and the names it may end with, without a port", manifest.Clip(h))
	case strings.Trim(h, "0123456789.") == "":
		r.Errorf(path, "%q is an address: a route goes by names", manifest.Clip(h))
	}
}

func readHTTPRule(r *manifest.Reader, path, namespace string, in *httpRule) routing.HTTPRule {
	var out routing.HTTPRule
	manifest.CheckAtMost(r.Report, path+".matches", len(in.Matches), maxMatches)
	for i, m := range in.Matches {
		out.Matches = append(out.Matches, readHTTPMatch(r, strict.Index(path+".matches", i), m))
	}
	if len(out.Matches) == 0 {
		out.Matches = []routing.HTTPMatch{readHTTPMatch(r, path+".matches", httpMatch{})}
	}
	readRule(r, path, namespace, in, &out)
	return out
}

// readRule reads what the rules of both kinds have: what becomes of their requests.
func readRule(r *manifest.Reader, path, namespace string, in *httpRule, out *routing.HTTPRule) {
	if len(in.BackendRefs) == 0 && len(in.Filters) == 0 {
		// In a cluster its requests get an error, as the Gateway API has it.
		r.Problem(path+".backendRefs", "is missing: name the InferencePool or service that answers").Platform = manifest.Process
	}
	manifest.CheckAtMost(r.Report, path+".backendRefs", len(in.BackendRefs), manifest.MaxBackends)
	for i, b := range in.BackendRefs {
		out.Backends = append(out.Backends, readBackend(r, strict.Index(path+".backendRefs", i), namespace, b))
	}
	readHandling(r, path, namespace, in, out)
}

func readHTTPMatch(r *manifest.Reader, path string, in httpMatch) routing.HTTPMatch {
	out := routing.HTTPMatch{Path: routing.ValueMatch{Type: routing.MatchPrefix, Value: "/"}, Method: in.Method}
	if in.Path != nil {
		out.Path = readPathMatch(r, path+".path", in.Path)
	}
	if in.Method != "" && !slices.Contains(methods, in.Method) {
		r.Errorf(path+".method", "unknown method %q: write one of %s", manifest.Clip(in.Method), strings.Join(methods, ", "))
	}
	manifest.CheckAtMost(r.Report, path+".headers", len(in.Headers), maxNamed)
	manifest.CheckAtMost(r.Report, path+".queryParams", len(in.QueryParams), maxNamed)
	out.Headers = readNamedMatches(r, path+".headers", in.Headers, manifest.CanonicalHeader)
	out.Query = readNamedMatches(r, path+".queryParams", in.QueryParams, func(s string) string { return s })
	return out
}

func readPathMatch(r *manifest.Reader, path string, in *httpValue) routing.ValueMatch {
	out := routing.ValueMatch{Type: readMatchType(r, path+".type", in.Type, routing.MatchPrefix, routing.MatchExact, routing.MatchRegexp), Value: "/"}
	if in.Name != "" {
		r.Errorf(path+".name", "unknown field; known here: type, value")
	}
	if in.Value != nil {
		out.Value = *in.Value
	}
	if len(out.Value) > maxPath {
		r.Errorf(path+".value", "%d bytes are more than a path may have (%d)", len(out.Value), maxPath)
	}
	if out.Type == routing.MatchRegexp {
		readPattern(r, path+".value", out.Value)
		return out
	}
	if !strings.HasPrefix(out.Value, "/") {
		r.Errorf(path+".value", "%q is not a path: it begins with /", manifest.Clip(out.Value))
	}
	for _, part := range []string{"//", "/./", "/../", "%2f", "%2F", "#", "?"} {
		if strings.Contains(out.Value, part) {
			r.Errorf(path+".value", "%q holds %s, which no path that is matched does", manifest.Clip(out.Value), part)
		}
	}
	for _, end := range []string{"/..", "/."} {
		if strings.HasSuffix(out.Value, end) {
			r.Errorf(path+".value", "%q ends with %s, which no path that is matched does", manifest.Clip(out.Value), end)
		}
	}
	return out
}

// readMatchType is s, or the first of those known.
func readMatchType(r *manifest.Reader, path, s string, known ...routing.MatchType) routing.MatchType {
	if s == "" {
		return known[0]
	}
	if !slices.Contains(known, routing.MatchType(s)) {
		r.Errorf(path, "unknown type %q: write one of %s", manifest.Clip(s), manifest.Joined(known))
	}
	return routing.MatchType(s)
}

func readPattern(r *manifest.Reader, path, expr string) {
	if _, err := regexp.Compile(expr); err != nil {
		r.Errorf(path, "is not a regular expression (RE2): %s", manifest.Clip(strings.TrimPrefix(err.Error(), "error parsing regexp: ")))
	}
}

func readNamedMatches(r *manifest.Reader, path string, in []httpValue, canonical func(string) string) []routing.NamedMatch {
	var out []routing.NamedMatch
	seen := map[string]bool{}
	for i, v := range in {
		at := strict.Index(path, i)
		if !manifest.Token.MatchString(v.Name) || len(v.Name) > manifest.MaxModelName {
			r.Errorf(at+".name", "%q is not a name", manifest.Clip(v.Name))
		}
		if v.Value == nil || *v.Value == "" || len(*v.Value) > maxValue {
			r.Errorf(at+".value", "must have 1 to %d bytes", maxValue)
			continue
		}
		name := canonical(v.Name)
		if seen[name] {
			r.Errorf(at+".name", "%s is matched already: only the first would count", manifest.Clip(v.Name))
		}
		seen[name] = true
		kind := readMatchType(r, at+".type", v.Type, routing.MatchExact, routing.MatchRegexp)
		if kind == routing.MatchRegexp {
			readPattern(r, at+".value", *v.Value)
		}
		out = append(out, routing.NamedMatch{Name: name, ValueMatch: routing.ValueMatch{Type: kind, Value: *v.Value}})
	}
	return out
}

// backends are the kinds that requests may go to, by "group kind".
var backends = map[string]bool{ // → whether a pool is meant
	"inference.networking.k8s.io InferencePool":         true,
	"inference.networking.x-k8s.io InferencePool":       true,
	"inference.networking.x-k8s.io InferencePoolImport": true,
	"roundhouse.dev Pool":                               true,
	" Service":                                          false,
	"roundhouse.dev ModelService":                       false,
	"serving.kserve.io InferenceService":                false,
	"ome.io InferenceService":                           false,
	"machinelearning.seldon.io SeldonDeployment":        false,
}

func readBackend(r *manifest.Reader, path, namespace string, in httpRef) routing.Backend {
	out := routing.Backend{Ref: routing.Ref{Key: service.Key{Namespace: namespace, Name: in.Name}}, Weight: routing.DefaultWeight, Group: in.Group}
	if in.Namespace != "" {
		manifest.CheckName(r.Report, path+".namespace", in.Namespace, false)
		out.Namespace = in.Namespace
	}
	manifest.CheckName(r.Report, path+".name", in.Name, true)
	manifest.CheckOptionalPort(r.Report, path+".port", in.Port)
	if in.Weight != nil {
		if *in.Weight < 0 || *in.Weight > manifest.MaxWeight {
			r.Errorf(path+".weight", "%d is not a weight: 0 to %d", *in.Weight, manifest.MaxWeight)
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
		r.Problem(path+".kind", out.Fault).Platform = manifest.Process
	}
	if out.Pool, out.Kind = pool, kind; in.Port != nil {
		out.Port = *in.Port
	}
	return out
}

// backendKind returns what was asked for, and what was probably meant.
func backendKind(group, kind string) string {
	text := fmt.Sprintf("%q of group %q", manifest.Clip(kind), manifest.Clip(group))
	for _, known := range slices.Sorted(maps.Keys(backends)) {
		g, k, _ := strings.Cut(known, " ")
		if k == kind && group == "" {
			text += fmt.Sprintf(" (did you leave out group: %s?)", g)
			break
		}
	}
	return text
}
