package gateway

import (
	"regexp"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// The form of what an exact match names, and the bounds of a GRPCRoute's published schema.
var (
	grpcServiceName = regexp.MustCompile(`^\.?[A-Za-z_][A-Za-z_0-9]*(\.[A-Za-z_][A-Za-z_0-9]*)*$`)
	grpcMethodName  = regexp.MustCompile(`^[A-Za-z_][A-Za-z_0-9]*$`)
)

const (
	maxCallName    = 1024 // bytes of a service or a method
	maxCallMatches = 128  // of all rules of a route
)

func readGRPCRoute(r *manifest.Reader, m *grpcRoute, o *manifest.Object) {
	out := &routing.HTTPRoute{GRPC: true}
	r.Routing(m.Metadata, o, out)
	readRouteSpec(r, out, m.Spec.ParentRefs, m.Spec.Hostnames, len(m.Spec.Rules))
	matches := 0
	for i := range m.Spec.Rules {
		out.Rules = append(out.Rules, readGRPCRule(r, strict.Index("spec.rules", i), out.Namespace, &m.Spec.Rules[i]))
		matches += len(m.Spec.Rules[i].Matches)
	}
	if matches > maxCallMatches {
		r.Errorf("spec.rules", "have %d matches together, more than %d: write a second route", matches, maxCallMatches)
	}
}

func readGRPCRule(r *manifest.Reader, path, namespace string, in *grpcRule) routing.HTTPRule {
	var out routing.HTTPRule
	manifest.CheckAtMost(r.Report, path+".matches", len(in.Matches), maxMatches)
	for i, m := range in.Matches {
		out.Matches = append(out.Matches, readGRPCMatch(r, strict.Index(path+".matches", i), m))
	}
	if len(out.Matches) == 0 {
		out.Matches = []routing.HTTPMatch{readGRPCMatch(r, path+".matches", grpcMatch{})}
	}
	rule := httpRule{Filters: httpFilters(in.Filters)}
	for _, b := range in.BackendRefs {
		rule.BackendRefs = append(rule.BackendRefs, httpRef{Group: b.Group, Kind: b.Kind, Namespace: b.Namespace, Name: b.Name,
			Port: b.Port, Weight: b.Weight, Filters: httpFilters(b.Filters)})
	}
	readRule(r, path, namespace, &rule, &out)
	return out
}

// httpFilters are a GRPCRoute's filters as an HTTPRoute has them.
func httpFilters(in []grpcFilter) []httpFilter {
	out := make([]httpFilter, len(in))
	for i, f := range in {
		out[i] = httpFilter{Type: f.Type, RequestMirror: f.RequestMirror, RequestHeaderModifier: f.RequestHeaderModifier,
			ResponseHeaderModifier: f.ResponseHeaderModifier, ExtensionRef: f.ExtensionRef, grpc: true}
	}
	return out
}

// readGRPCMatch reads a match as that of the path /SERVICE/METHOD.
func readGRPCMatch(r *manifest.Reader, path string, in grpcMatch) routing.HTTPMatch {
	out := routing.HTTPMatch{Path: routing.ValueMatch{Type: routing.MatchPrefix, Value: "/"}}
	if in.Method != nil {
		out.Call = readCall(r, path+".method", in.Method)
		out.Path = callPath(out.Call)
	}
	manifest.CheckAtMost(r.Report, path+".headers", len(in.Headers), maxNamed)
	out.Headers = readNamedMatches(r, path+".headers", in.Headers, manifest.CanonicalHeader)
	return out
}

func readCall(r *manifest.Reader, path string, in *grpcMethod) (out routing.CallMatch) {
	kind := readMatchType(r, path+".type", in.Type, routing.MatchExact, routing.MatchRegexp)
	if in.Service == "" && in.Method == "" {
		r.Errorf(path, "names neither a service nor a method: write one, or leave method out to take every call")
	}
	read := func(at, value string, form *regexp.Regexp, example string) (m routing.ValueMatch) {
		switch {
		case value == "":
			return m
		case len(value) > maxCallName:
			r.Errorf(at, "%d bytes are more than a name may have (%d)", len(value), maxCallName)
		case kind == routing.MatchRegexp:
			readPattern(r, at, value)
		case !form.MatchString(value):
			r.Errorf(at, "%q is not a name: write one as %s", manifest.Clip(value), example)
		}
		return routing.ValueMatch{Type: kind, Value: value}
	}
	out.Service = read(path+".service", in.Service, grpcServiceName, "inference.GRPCInferenceService")
	out.Method = read(path+".method", in.Method, grpcMethodName, "ModelInfer")
	return out
}

// callPath is the path of the calls that a match takes.
func callPath(c routing.CallMatch) routing.ValueMatch {
	exact := func(m routing.ValueMatch) bool { return m.Type == routing.MatchExact }
	switch {
	case exact(c.Service) && exact(c.Method):
		return routing.ValueMatch{Type: routing.MatchExact, Value: "/" + c.Service.Value + "/" + c.Method.Value}
	case exact(c.Service):
		return routing.ValueMatch{Type: routing.MatchPrefix, Value: "/" + c.Service.Value}
	}
	part := func(m routing.ValueMatch) string {
		switch m.Type {
		case routing.MatchExact:
			return regexp.QuoteMeta(m.Value)
		case routing.MatchRegexp:
			return "(?:" + m.Value + ")"
		case routing.MatchPrefix: // no call has one
		}
		return "[^/]+"
	}
	return routing.ValueMatch{Type: routing.MatchRegexp, Value: "/" + part(c.Service) + "/" + part(c.Method)}
}
