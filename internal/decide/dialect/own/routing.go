package own

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
	"roundhouse.dev/roundhouse/internal/decide/picker"
)

// Bounds of our own kinds.
const (
	maxModels    = 100 // names of one Route
	maxAddresses = 256 // of one Pool

	minHealthTime     = 100 * time.Millisecond // between two checks, and of one
	maxHealthFailures = 100                    // in a row
)

func readRoute(r *manifest.Reader, m *api.Route, o *manifest.Object) {
	out := &routing.Route{}
	r.Routing(m.Metadata, o, out)
	out.Models = slices.Clone(m.Spec.Models)
	manifest.CheckAtMost(r.Report, "spec.models", len(out.Models), maxModels)
	for i, name := range out.Models {
		at := strict.Index("spec.models", i)
		manifest.CheckModelName(r.Report, at, name, manifest.MaxModelName)
		if slices.Contains(out.Models[:i], name) {
			r.Errorf(at, "%q is listed twice", manifest.Clip(name))
		}
	}
	if len(out.Models) == 0 {
		out.Models = []string{m.Metadata.Name}
	}
	out.Priority = manifest.ReadCriticality(r.Report, "spec.criticality", m.Spec.Criticality)
	if m.Spec.Priority != nil {
		if m.Spec.Criticality != "" {
			r.Errorf("spec.priority", "and criticality both say how urgent requests are: remove one")
		}
		out.Priority = *m.Spec.Priority
	}
	if l := m.Spec.Latency; l != nil {
		manifest.CheckDuration(r.Report, "spec.latency.ttft", l.TTFT)
		manifest.CheckDuration(r.Report, "spec.latency.tpot", l.TPOT)
		if l.TTFT != nil {
			out.Latency.First = l.TTFT.Duration
		}
		if l.TPOT != nil {
			out.Latency.Each = l.TPOT.Duration
		}
	}
	out.Handling = readHandling(r, out.Namespace, &m.Spec)
	if len(m.Spec.Targets) == 0 {
		r.Errorf("spec.targets", "is missing: write where requests go, as service or pool")
	}
	manifest.CheckAtMost(r.Report, "spec.targets", len(m.Spec.Targets), manifest.MaxBackends)
	var weights []*int32
	for _, t := range m.Spec.Targets {
		weights = append(weights, t.Weight)
	}
	for i, w := range manifest.ReadWeights(r.Report, "spec.targets", weights, 0) {
		out.Targets = append(out.Targets, readRouteTarget(r, strict.Index("spec.targets", i), out.Namespace, m.Spec.Targets[i], w))
	}
}

// maxMirrors bounds the mirrors of one Route.
const maxMirrors = 4

// readHandling reads a Route's timeouts and mirrors.
func readHandling(r *manifest.Reader, namespace string, in *api.RouteSpec) (out routing.Handling) {
	if t := in.Timeouts; t != nil {
		manifest.CheckDuration(r.Report, "spec.timeouts.request", t.Request)
		manifest.CheckDuration(r.Report, "spec.timeouts.backendRequest", t.BackendRequest)
		if t.Request != nil {
			out.Timeout = t.Request.Duration
		}
		if t.BackendRequest != nil {
			out.TryTimeout = t.BackendRequest.Duration
		}
		if out.Timeout > 0 && out.TryTimeout > out.Timeout {
			r.Errorf("spec.timeouts.backendRequest", "%v is more than request, which is %v", out.TryTimeout, out.Timeout)
		}
	}
	out.RequestHeader = readHeaders(r, "spec.requestHeaders", in.RequestHeaders, true)
	out.ResponseHeader = readHeaders(r, "spec.responseHeaders", in.ResponseHeaders, false)
	readRetries(r, in, &out)
	manifest.CheckAtMost(r.Report, "spec.mirrors", len(in.Mirrors), maxMirrors)
	for i, m := range in.Mirrors {
		at := strict.Index("spec.mirrors", i)
		target := readRouteTarget(r, at, namespace, api.RouteTarget{Service: m.Service, Pool: m.Pool, Model: m.Model}, 1)
		mirror := routing.Mirror{Ref: target.Ref, Model: m.Model, PerMillion: routing.Whole}
		if m.Percent != nil {
			if *m.Percent < 0 || *m.Percent > 100 {
				r.Errorf(at+".percent", "%d is not a percentage: 0 to 100", *m.Percent)
			} else {
				mirror.PerMillion = uint32(*m.Percent) * (routing.Whole / 100)
			}
		}
		out.Mirrors = append(out.Mirrors, mirror)
	}
	return out
}

func readRouteTarget(r *manifest.Reader, path, namespace string, in api.RouteTarget, weight uint32) routing.Target {
	out := routing.Target{Model: in.Model, Weight: weight}
	if in.Model != "" {
		manifest.CheckModelName(r.Report, path+".model", in.Model, manifest.MaxModelName)
	}
	switch {
	case in.Service != "" && in.Pool != "":
		r.Errorf(path+".pool", "and service both say where requests go: remove one")
	case in.Pool != "":
		manifest.CheckName(r.Report, path+".pool", in.Pool, true)
		out.Ref = routing.PoolRef(service.Key{Namespace: namespace, Name: in.Pool})
	default:
		if in.Service == "" {
			r.Errorf(path+".service", "is missing: name a service, or a pool")
		} else {
			manifest.CheckName(r.Report, path+".service", in.Service, false)
		}
		out.Ref = routing.Service(service.Key{Namespace: namespace, Name: in.Service})
	}
	return out
}

func readPool(r *manifest.Reader, m *api.Pool, o *manifest.Object) {
	out := &routing.Pool{Addresses: m.Spec.Addresses}
	r.Routing(m.Metadata, o, out)
	if len(m.Spec.Selector) == 0 && len(m.Spec.Addresses) == 0 {
		r.Errorf("spec.selector", "is missing: write labels of services, or addresses of servers that run already")
	}
	if r.Has("spec.selector") {
		out.Selector = manifest.CheckSelector(r.Report, "spec.selector", m.Spec.Selector)
	}
	manifest.CheckAtMost(r.Report, "spec.addresses", len(m.Spec.Addresses), maxAddresses)
	for i, a := range m.Spec.Addresses {
		at := strict.Index("spec.addresses", i)
		manifest.CheckAddress(r.Report, at, a)
		if slices.Contains(m.Spec.Addresses[:i], a) {
			r.Errorf(at, "%q is listed twice", manifest.Clip(a))
		}
	}
	answer := len(out.Addresses) > 0
	out.Prefill = readHelpers(r, "spec.prefillAddresses", m.Spec.PrefillAddresses, answer, out)
	out.Encode = readHelpers(r, "spec.encodeAddresses", m.Spec.EncodeAddresses, answer, out)
	out.Protocol = manifest.ReadProtocol(r.Report, "spec.protocol", m.Spec.Protocol)
	if out.Protocol == "" {
		out.Protocol = service.ProtocolOpenAI
	}
	if out.Protocol == service.ProtocolGRPCV1 {
		r.Errorf("spec.protocol", "%s is not supported in a pool: write v1, v2, grpc-v2, openAI or cohere", out.Protocol)
	}
	if pm := m.Spec.Metrics; pm != nil {
		out.Metrics = readPoolMetrics(r, pm)
	}
	if e := m.Spec.KVEvents; e != nil {
		out.KVEvents = readPoolKVEvents(r, e)
	}
	if n := m.Spec.DataParallelSize; n != nil {
		out.DataParallelSize = *n
		checkRanks(r, "spec.dataParallelSize", out)
	}
	if h := m.Spec.HealthCheck; h != nil {
		out.Health = readPoolHealth(r, h)
	}
	if p := m.Spec.Picker; p != nil {
		out.Picker = readPoolPicker(r, p)
	}
	out.Bounds = readPoolBounds(r, &m.Spec)
}

// checkRanks checks how many ranks the engines of a pool have. One without any would be
// taken for several endpoints, and get the requests of all of them.
func checkRanks(r *manifest.Reader, at string, p *routing.Pool) {
	n, engine := p.DataParallelSize, p.Metrics.Engine
	switch {
	case n < 1 || n > service.MaxDataParallelSize:
		r.Errorf(at, "%d is out of range: write 1 to %d", n, service.MaxDataParallelSize)
	case n == 1:
	case engine != "" && engine != "vllm" && engine != "sglang":
		r.Warnf(at, "%s has no ranks that a request can name, as vllm and sglang have: each server would count as %d: remove it", engine, n)
	case p.Protocol == service.ProtocolV1 || p.Protocol == service.ProtocolV2 || p.Protocol == service.ProtocolGRPCV2:
		r.Warnf(at, "servers of the protocol %s have no ranks that a request can name: each would count as %d: remove it", p.Protocol, n)
	}
}

// readHelpers reads the addresses of servers that compute something for those that
// answer, and adds them to the pool's.
func readHelpers(r *manifest.Reader, field string, addresses []string, answer bool, out *routing.Pool) (helpers []string) {
	if len(addresses) > 0 && !answer {
		r.Errorf(field, "and no addresses: write those of the servers that answer")
	}
	manifest.CheckAtMost(r.Report, field, len(addresses), maxAddresses)
	for i, a := range addresses {
		at := strict.Index(field, i)
		ip, err := netip.ParseAddrPort(a)
		switch {
		case err != nil || ip.Port() == 0:
			r.Errorf(at, "%q is not an IP address with a port: write 10.0.0.7:8000", manifest.Clip(a))
		case slices.Contains(out.Addresses, a):
			r.Errorf(at, "%q is listed twice", manifest.Clip(a))
		}
		out.Addresses = append(slices.Clip(out.Addresses), a)
		helpers = append(helpers, ip.String())
	}
	return helpers
}

func readPoolKVEvents(r *manifest.Reader, in *api.PoolKVEvents) service.KVEvents {
	out := service.KVEvents{Port: in.Port, Topic: in.Topic}
	if in.ReplayPort != nil {
		out.ReplayPort = *in.ReplayPort
	}
	if out.Port < 1 || out.Port > 65535 {
		r.Errorf("spec.kvEvents.port", "%d is no port: write 1 to 65535", out.Port)
	}
	if in.ReplayPort != nil && (out.ReplayPort < 1 || out.ReplayPort > 65535) {
		r.Errorf("spec.kvEvents.replayPort", "%d is no port: write 1 to 65535, or leave it out", out.ReplayPort)
	}
	if len(out.Topic) > maxTopicBytes {
		r.Errorf("spec.kvEvents.topic", "it has %d bytes; at most %d are allowed", len(out.Topic), maxTopicBytes)
	}
	return out
}

// maxTopicBytes bounds a topic of KV events.
const maxTopicBytes = 256

func readPoolMetrics(r *manifest.Reader, in *api.PoolMetrics) routing.Metrics {
	if in.Engine != "" && !slices.Contains(routing.Engines, in.Engine) {
		if near := strict.Nearest(in.Engine, routing.Engines); near != "" {
			r.Errorf("spec.metrics.engine", "unknown engine %q; did you mean %q?", manifest.Clip(in.Engine), near)
		} else {
			r.Errorf("spec.metrics.engine", "unknown engine %q: write one of %s, or nothing to have it found out", manifest.Clip(in.Engine), strings.Join(routing.Engines, ", "))
		}
	}
	at := readMetrics(r, "spec.metrics", &api.Metrics{Path: in.Path, Port: in.Port})
	return routing.Metrics{Engine: in.Engine, Path: at.Path, Port: at.Port}
}

// readMetrics reads where load is told.
func readMetrics(r *manifest.Reader, path string, in *api.Metrics) (out service.Metrics) {
	if in == nil {
		return out
	}
	if out.Path = in.Path; in.Path != "" && !strings.HasPrefix(in.Path, "/") {
		r.Errorf(path+".path", "%q is not a path: it begins with /", manifest.Clip(in.Path))
	}
	manifest.CheckOptionalPort(r.Report, path+".port", in.Port)
	if in.Port != nil {
		out.Port = *in.Port
	}
	return out
}

func readPoolHealth(r *manifest.Reader, in *api.PoolHealthCheck) routing.HealthCheck {
	const path = "spec.healthCheck"
	out := routing.HealthCheck{Path: in.Path, Disabled: in.Disabled}
	if in.Path != "" && !strings.HasPrefix(in.Path, "/") {
		r.Errorf(path+".path", "%q is not a path: it begins with /", manifest.Clip(in.Path))
	}
	manifest.CheckOptionalPort(r.Report, path+".port", in.Port)
	if in.Port != nil {
		out.Port = *in.Port
	}
	for _, d := range []struct {
		field string
		in    *metav1.Duration
		out   *time.Duration
	}{{"interval", in.Interval, &out.Interval}, {"timeout", in.Timeout, &out.Timeout}} {
		manifest.CheckDuration(r.Report, path+"."+d.field, d.in)
		if d.in == nil {
			continue
		}
		if *d.out = d.in.Duration; d.in.Duration > 0 && d.in.Duration < minHealthTime {
			r.Errorf(path+"."+d.field, "%v is less than %v", d.in.Duration, minHealthTime)
		}
	}
	if n := in.FailureThreshold; n != nil {
		if out.FailureThreshold = int(*n); *n < 1 || *n > maxHealthFailures {
			r.Errorf(path+".failureThreshold", "%d is not 1 to %d", *n, maxHealthFailures)
		}
	}
	return out
}

func readPoolBounds(r *manifest.Reader, in *api.PoolSpec) (out routing.Bounds) {
	manifest.CheckNotNegative(r.Report, "spec.maxConcurrency", in.MaxConcurrency)
	if in.MaxConcurrency != nil {
		out.MaxConcurrency = *in.MaxConcurrency
	}
	if manifest.CheckDuration(r.Report, "spec.answerTimeout", in.AnswerTimeout); in.AnswerTimeout != nil {
		out.AnswerTimeout = in.AnswerTimeout.Duration
	}
	if q := manifest.ReadQueue(r.Report, "spec.queue", in.Queue); q != nil {
		out.MaxQueue, out.MaxQueueBytes, out.MaxWait, out.Fairness = q.MaxRequests, q.MaxBytes, q.MaxWait, q.Fairness
	}
	return out
}

// readPoolPicker reads how an endpoint is chosen; package picker knows what there
// is.
func readPoolPicker(r *manifest.Reader, in *api.PoolPicker) routing.Picker {
	out := routing.Picker{Preset: in.Preset, Filters: poolFilters(in.Filters), Choice: in.Choice, Balance: in.Balance}
	for _, s := range in.Scorers {
		one := routing.Scorer{Name: s.Name, Weight: 1, Scale: s.Scale}
		if s.Weight != nil {
			one.Weight = *s.Weight
		}
		out.Scorers = append(out.Scorers, one)
	}
	manifest.CheckDuration(r.Report, "spec.picker.fresh", in.Fresh)
	manifest.CheckDuration(r.Report, "spec.picker.stale", in.Stale)
	if in.Fresh != nil {
		out.Fresh = in.Fresh.Duration
	}
	if in.Stale != nil {
		out.Stale = in.Stale.Duration
	}
	config, err := picker.Of(out)
	if err != nil {
		r.Errorf("spec.picker.preset", "%s", afterColon(err))
		return out
	}
	if err := config.Validate(); err != nil {
		path, message, ok := strings.Cut(err.Error(), ": ")
		if field, rest, is := strings.Cut(err.Error(), " is "); is && len(field) < len(path) {
			path, message, ok = field, "is "+rest, true
		}
		if !ok {
			path, message = "scorers", err.Error()
		}
		r.Errorf("spec.picker."+path, "%s", message)
	}
	return out
}

func poolFilters(in []api.PoolFilter) (out []routing.Filter) {
	for _, f := range in {
		out = append(out, routing.Filter{Name: f.Filter, Waiting: f.Waiting, KV: f.KV, Probability: f.Probability,
			Then: poolFilters(f.Then), Else: poolFilters(f.Else)})
	}
	return out
}

// afterColon is an error's text without the place it names first.
func afterColon(err error) string {
	_, text, ok := strings.Cut(err.Error(), ": ")
	if !ok {
		return err.Error()
	}
	return text
}
