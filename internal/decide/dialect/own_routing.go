package dialect

import (
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// Bounds of our own kinds.
const (
	maxModels    = 100 // names of one Route
	maxAddresses = 256 // of one Pool

	minHealthTime     = 100 * time.Millisecond // between two checks, and of one
	maxHealthFailures = 100                    // in a row
)

func readRoute(r *reading, m *api.Route, o *Object) {
	out := &routing.Route{}
	r.routing(m.Metadata, o, out)
	out.Models = slices.Clone(m.Spec.Models)
	r.atMost("spec.models", len(out.Models), maxModels)
	for i, name := range out.Models {
		at := strict.Index("spec.models", i)
		r.modelName(at, name, maxModelName)
		if slices.Contains(out.Models[:i], name) {
			r.errorf(at, "%q is listed twice", clip(name))
		}
	}
	if len(out.Models) == 0 {
		out.Models = []string{m.Metadata.Name}
	}
	out.Priority = r.criticality("spec.criticality", m.Spec.Criticality)
	if m.Spec.Priority != nil {
		if m.Spec.Criticality != "" {
			r.errorf("spec.priority", "and criticality both say how urgent requests are: remove one")
		}
		out.Priority = *m.Spec.Priority
	}
	if len(m.Spec.Targets) == 0 {
		r.errorf("spec.targets", "is missing: write where requests go, as service or pool")
	}
	r.atMost("spec.targets", len(m.Spec.Targets), maxBackends)
	var weights []*int32
	for _, t := range m.Spec.Targets {
		weights = append(weights, t.Weight)
	}
	for i, w := range r.weights("spec.targets", weights, 0) {
		out.Targets = append(out.Targets, r.routeTarget(strict.Index("spec.targets", i), out.Namespace, m.Spec.Targets[i], w))
	}
}

func (r *reading) routeTarget(path, namespace string, in api.RouteTarget, weight uint32) routing.Target {
	out := routing.Target{Model: in.Model, Weight: weight}
	if in.Model != "" {
		r.modelName(path+".model", in.Model, maxModelName)
	}
	switch {
	case in.Service != "" && in.Pool != "":
		r.errorf(path+".pool", "and service both say where requests go: remove one")
	case in.Pool != "":
		r.name(path+".pool", in.Pool, true)
		out.Ref = routing.PoolRef(service.Key{Namespace: namespace, Name: in.Pool})
	default:
		if in.Service == "" {
			r.errorf(path+".service", "is missing: name a service, or a pool")
		} else {
			r.name(path+".service", in.Service, false)
		}
		out.Ref = routing.Service(service.Key{Namespace: namespace, Name: in.Service})
	}
	return out
}

func readPool(r *reading, m *api.Pool, o *Object) {
	out := &routing.Pool{Addresses: m.Spec.Addresses}
	r.routing(m.Metadata, o, out)
	if len(m.Spec.Selector) == 0 && len(m.Spec.Addresses) == 0 {
		r.errorf("spec.selector", "is missing: write labels of services, or addresses of servers that run already")
	}
	if r.doc.Has("spec.selector") {
		out.Selector = r.selector("spec.selector", m.Spec.Selector)
	}
	r.atMost("spec.addresses", len(m.Spec.Addresses), maxAddresses)
	for i, a := range m.Spec.Addresses {
		at := strict.Index("spec.addresses", i)
		r.address(at, a)
		if slices.Contains(m.Spec.Addresses[:i], a) {
			r.errorf(at, "%q is listed twice", clip(a))
		}
	}
	out.Protocol = r.protocol("spec.protocol", m.Spec.Protocol)
	if out.Protocol == "" {
		out.Protocol = service.ProtocolOpenAI
	}
	if out.Protocol == service.ProtocolGRPCV1 {
		r.errorf("spec.protocol", "%s is not supported of a pool: write v1, v2, grpc-v2, openAI or cohere", out.Protocol)
	}
	if pm := m.Spec.Metrics; pm != nil {
		out.Metrics = r.poolMetrics(pm)
	}
	if h := m.Spec.HealthCheck; h != nil {
		out.Health = r.poolHealth(h)
	}
	if p := m.Spec.Picker; p != nil {
		out.Picker = r.poolPicker(p)
	}
	out.Bounds = r.poolBounds(&m.Spec)
}

// address checks "host:port".
func (r *reading) address(path, a string) {
	at := strings.LastIndexByte(a, ':')
	if strings.Contains(a, "://") {
		r.errorf(path, "%q is a URL: write host:port", clip(a))
		return
	}
	if at < 1 {
		r.errorf(path, "%q is not an address: write host:port", clip(a))
		return
	}
	if n, err := strconv.ParseUint(a[at+1:], 10, 16); err != nil || n == 0 {
		r.errorf(path, "%q has no port: 1 to 65535, after the host", clip(a))
	}
	host := a[:at]
	bracketed := strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]")
	switch {
	case bracketed && strings.Trim(host[1:len(host)-1], "0123456789abcdefABCDEF:.") == "" && strings.Contains(host, ":"):
	case strings.Contains(host, ":"):
		r.errorf(path, "%q: write an IPv6 address in brackets, [::1]:8000", clip(a))
	case !hostname.MatchString(strings.ToLower(host)) || strings.HasPrefix(host, "*") || len(host) > 253:
		r.errorf(path, "%q is not a host's name or address", clip(host))
	}
}

func (r *reading) poolMetrics(in *api.PoolMetrics) routing.Metrics {
	if in.Engine != "" && !slices.Contains(routing.Engines, in.Engine) {
		if near := strict.Nearest(in.Engine, routing.Engines); near != "" {
			r.errorf("spec.metrics.engine", "unknown engine %q; did you mean %q?", clip(in.Engine), near)
		} else {
			r.errorf("spec.metrics.engine", "unknown engine %q: write one of %s, or nothing to have it found out", clip(in.Engine), strings.Join(routing.Engines, ", "))
		}
	}
	at := r.metrics("spec.metrics", &api.Metrics{Path: in.Path, Port: in.Port})
	return routing.Metrics{Engine: in.Engine, Path: at.Path, Port: at.Port}
}

// metrics reads where load is told.
func (r *reading) metrics(path string, in *api.Metrics) (out service.Metrics) {
	if in == nil {
		return out
	}
	if out.Path = in.Path; in.Path != "" && !strings.HasPrefix(in.Path, "/") {
		r.errorf(path+".path", "%q is not a path: it begins with /", clip(in.Path))
	}
	r.optionalPort(path+".port", in.Port)
	if in.Port != nil {
		out.Port = *in.Port
	}
	return out
}

func (r *reading) poolHealth(in *api.PoolHealthCheck) routing.HealthCheck {
	const path = "spec.healthCheck"
	out := routing.HealthCheck{Path: in.Path, Disabled: in.Disabled}
	if in.Path != "" && !strings.HasPrefix(in.Path, "/") {
		r.errorf(path+".path", "%q is not a path: it begins with /", clip(in.Path))
	}
	r.optionalPort(path+".port", in.Port)
	if in.Port != nil {
		out.Port = *in.Port
	}
	for _, d := range []struct {
		field string
		in    *metav1.Duration
		out   *time.Duration
	}{{"interval", in.Interval, &out.Interval}, {"timeout", in.Timeout, &out.Timeout}} {
		r.duration(path+"."+d.field, d.in)
		if d.in == nil {
			continue
		}
		if *d.out = d.in.Duration; d.in.Duration > 0 && d.in.Duration < minHealthTime {
			r.errorf(path+"."+d.field, "%v is less than %v", d.in.Duration, minHealthTime)
		}
	}
	if n := in.FailureThreshold; n != nil {
		if out.FailureThreshold = int(*n); *n < 1 || *n > maxHealthFailures {
			r.errorf(path+".failureThreshold", "%d is not 1 to %d", *n, maxHealthFailures)
		}
	}
	return out
}

func (r *reading) poolBounds(in *api.PoolSpec) (out routing.Bounds) {
	r.notNegative("spec.maxConcurrency", in.MaxConcurrency)
	if in.MaxConcurrency != nil {
		out.MaxConcurrency = *in.MaxConcurrency
	}
	q := in.Queue
	if q == nil {
		return out
	}
	r.positive("spec.queue.maxRequests", q.MaxRequests)
	if q.MaxRequests != nil {
		out.MaxQueue = *q.MaxRequests
	}
	if q.MaxBytes != nil {
		if out.MaxQueueBytes = q.MaxBytes.Value(); out.MaxQueueBytes <= 0 {
			r.errorf("spec.queue.maxBytes", "%s is not more than 0", q.MaxBytes)
		}
	}
	r.duration("spec.queue.maxWait", q.MaxWait)
	if q.MaxWait != nil {
		out.MaxWait = q.MaxWait.Duration
	}
	return out
}
