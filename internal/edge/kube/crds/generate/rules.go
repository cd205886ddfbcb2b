package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/picker"
	"roundhouse.dev/roundhouse/internal/decide/reserve"
)

// Bounds. Those that dialect has too bear its numbers; the others keep the
// server's estimate of what a rule costs within its budget.
const (
	maxName         = 253
	maxWord         = 64
	maxModelName    = 256
	maxContainers   = 64
	maxFormats      = 256
	maxModels       = 100
	maxTargets      = 16
	maxChanges      = 16
	maxRequirements = 32
	maxLevels       = 9
	maxWakeCalls    = 8
	maxAddresses    = 256
	maxScorers      = 16
	maxFilters      = 64
	maxLabels       = 64
	maxWeight       = 1_000_000
)

// Patterns, as dialect has them.
const (
	label     = `[a-z0-9]([-a-z0-9]*[a-z0-9])?`
	subdomain = label + `(\.` + label + `)*`
	host      = `[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?(\.[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?)*`
	inet6     = `\[[0-9a-fA-F.]*:[0-9a-fA-F:.]*\]`
	port      = `0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])`
	quantity  = `^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]+)?$`
	span      = `^[-+]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$`
	// A model's name has no blank at its ends and no control character.
	modelEdge = `[^\x00-\x20\x7f\x{85}\p{Z}]`
	modelName = modelEdge + `([^\x00-\x1f\x7f]*` + modelEdge + `)?`
	labelName = `([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)`
	size      = `^\s*\+?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\s*[kKmMbBtT]?\s*$`
)

// parameters is the count that a size stands for; %s is a string of the form
// of size.
const parameters = `[%s.lowerAscii().trim()].map(s, double(s.matches('[kmbt]$') ? s.substring(0, size(s) - 1).trim() : s) * ` +
	`(s.endsWith('k') ? 1e3 : s.endsWith('m') ? 1e6 : s.endsWith('b') ? 1e9 : s.endsWith('t') ? 1e12 : 1.0))[0]`

// stated: a string is there and not empty; some: a list is. The optionals of
// CEL would be shorter, but the server's estimate of their cost has no bounds.
func stated(path string) string { return fmt.Sprintf("(has(%[1]s) && %[1]s != '')", path) }

func some(path string) string { return fmt.Sprintf("(has(%[1]s) && size(%[1]s) > 0)", path) }

// complete: a component can run without a runtime.
func complete(c string) string {
	return "(has(" + c + ".local) || " + stated(c+".image") + " || " + some(c+".command") +
		" || has(" + c + ".containers) && " + c + ".containers.exists(c, " + stated("c.image") + " || " + some("c.command") + "))"
}

// cel adds a rule that must hold.
func cel(expression, message string) rule {
	return func(p *props) {
		p.XValidations = append(p.XValidations, apiext.ValidationRule{Rule: expression, Message: message})
	}
}

func require(names ...string) rule {
	return func(p *props) { p.Required = append(p.Required, names...) }
}

func atLeast(n float64) rule { return func(p *props) { p.Minimum = number(n) } }

func between(low, high float64) rule {
	return func(p *props) { p.Minimum, p.Maximum = number(low), number(high) }
}

func above(n float64) rule {
	return func(p *props) { p.Minimum, p.ExclusiveMinimum = number(n), true }
}

// form is a pattern of at most limit characters; what is not stated may be
// written as "".
func form(expr string, limit int64) rule {
	return func(p *props) { p.Pattern, p.MaxLength = expr, count(limit) }
}

func length(limit int64) rule { return func(p *props) { p.MaxLength = count(limit) } }

func atMost(n int64) rule { return func(p *props) { p.MaxItems = count(n) } }

// few is a map of at most so many members.
func few(n int64) rule { return func(p *props) { p.MaxProperties = count(n) } }

// set is a list whose items differ.
func set(p *props) {
	of := "set"
	p.XListType = &of
}

// keyed is a list whose items differ in one field, so that several writers may
// each have theirs.
func keyed(by string) rule {
	return func(p *props) {
		of := "map"
		p.XListType, p.XListMapKeys = &of, []string{by}
	}
}

// items applies rules to what a list holds.
func items(rules ...rule) rule {
	return func(p *props) {
		for _, r := range rules {
			r(p.Items.Schema)
		}
	}
}

// oneOf is a choice; "" is none.
func oneOf[S ~string](names ...S) rule {
	return func(p *props) {
		for _, n := range append([]S{""}, names...) {
			p.Enum = append(p.Enum, apiext.JSON{Raw: fmt.Appendf(nil, "%q", string(n))})
		}
	}
}

// stating leaves "" out of a choice: one must be stated.
func stating(p *props) { p.Enum = p.Enum[1:] }

// protocolOf is a choice in any dialect's spelling, whatever the case.
func protocolOf(names ...service.Protocol) rule {
	var all []string
	for _, n := range names {
		all = append(all, regexp.QuoteMeta(string(n)))
	}
	for _, spelt := range []string{"openinference-v1", "openinference-v2", "kfserving", "open-inference"} {
		if p, ok := service.ParseProtocol(spelt); ok && slices.Contains(names, p) {
			all = append(all, spelt)
		}
	}
	return func(p *props) { p.Pattern = `^(?i:` + strings.Join(all, "|") + `)?$` }
}

var (
	duration = []rule{form(span, maxWord), cel("duration(self) > duration('0s')", "must be more than 0")}
	modelled = []rule{form(`^`+modelName+`$`, maxModelName),
		cel(fmt.Sprintf("size(bytes(self)) <= %d", maxModelName), fmt.Sprintf("more than %d bytes", maxModelName))}
	sized = []rule{length(maxWord), cel(
		`self == '' || self.matches(r'`+size+`') && `+fmt.Sprintf(parameters, "self")+` >= 0.5 && `+fmt.Sprintf(parameters, "self")+` <= 1e18`,
		"is not a parameter count: write a number such as 7B or 350M")}
	operator = []rule{oneOf(service.OperatorEqual, service.OperatorGreaterThan, service.OperatorGreaterThanOrEqual)}
)

// containerRules are those of a list of containers.
var containerRules = []rule{
	atMost(maxContainers),
	cel("size(self) < 2 || self.all(c, "+stated("c.name")+")", "of several containers each needs a name"),
	cel("self.all(c, !"+stated("c.name")+" || self.exists_one(d, has(d.name) && d.name == c.name))", "two containers have the same name"),
}

// labelNamed: a service's name becomes part of others'.
func labelNamed(p *props) {
	p.Properties["metadata"] = props{Type: "object", Properties: map[string]props{
		"name": {Type: "string", Pattern: "^" + label + "$", MaxLength: count(63)},
	}}
}

// bounds are the replicas asked for where a component's scaling lies over the
// service's.
const bounds = `!has(self.scaling) || [[self.?engine.?scaling.?minReplicas.orValue(self.?scaling.?minReplicas.orValue(0)), ` +
	`self.?engine.?scaling.?maxReplicas.orValue(self.?scaling.?maxReplicas.orValue(0))]].all(b, b[1] == 0 || b[0] <= b[1])`

// presets: Knative's autoscaler scales on concurrency or rps alone, also where one
// field states the preset and another the metrics.
const presets = `!has(self.scaling) || [[self.?engine.?scaling.?preset.orValue(''), self.scaling.?preset.orValue(''), ` +
	`self.?engine.?scaling.?scaleMetric.orValue(''), self.scaling.?scaleMetric.orValue('')]].all(p, ` +
	`(p[0] != '' ? p[0] : p[1]) != 'knative' || (p[2] != '' ? p[2] : p[3]) in ['', 'concurrency', 'rps'] && ` +
	`!(self.?engine.?scaling.?metrics.hasValue() ? size(self.engine.scaling.metrics) > 0 : ` +
	`has(self.scaling.metrics) && size(self.scaling.metrics) > 0))`

// rules are by "Type" or "Type.field".
func rules() map[string][]rule {
	all := map[string][]rule{}
	for _, part := range []map[string][]rule{serviceRules(), metricRules(), scalingRules(), knativeRules(), standbyRules(), runtimeRules(), routingRules(), handlingRules(), pickerRules(), reserveRules(), statusRules()} {
		for name, r := range part {
			all[name] = r
		}
	}
	return all
}

func serviceRules() map[string][]rule {
	return map[string][]rule{
		"ModelService": {labelNamed,
			cel("!has(self.spec.model) || !has(self.spec.model.adapters) || self.spec.model.adapters.all(a, a.name != self.metadata.name)",
				"an adapter has the service's own name")},
		"ModelServiceSpec": {
			cel("has(self.model) || has(self.runtime) || has(self.engine) && "+complete("self.engine"),
				"model is missing: say what to serve, as model.uri or model.ref, or give engine.containers an image or engine.local a command"),
			cel(bounds, "scaling and engine.scaling together ask for more minReplicas than maxReplicas"),
			cel(presets, "preset knative scales on concurrency or rps alone, and another field asks for other metrics: remove them, or write preset: ours"),
		},
		"ModelServiceSpec.canaryTrafficPercent": {between(0, 100)},
		"Residency.priority":                    {between(-1000, 1000)},
		"Residency.gpuPercent":                  {between(0, 100)},
		"Residency": {cel("!has(self.gpuMemory) || !has(self.gpuPercent) || self.gpuPercent == 0",
			"gpuMemory and gpuPercent both say what a replica takes of a GPU: state one of them")},
		"Residency.group":                 {form(`^(`+label+`)?$`, 63)},
		"Residency.oneOf":                 {form(`^(`+label+`)?$`, 63)},
		"ModelServiceSpec.runtimeVersion": {length(maxName)},
		"ModelServiceSpec.protocol":       {protocolOf(service.Protocols...)},
		"ModelServiceSpec.disaggregation": {oneOf(service.Disaggregations...)},
		"KVCache": {require("connector"),
			cel(`!has(self.remote) || self.remote == '' || !has(self.connector) || self.connector != 'lmcache' || self.remote.matches(r'^[^ \n]+://[^ \n]+$') && !self.remote.startsWith('://')`,
				"remote is no URL of a store: write one such as redis://HOST:PORT or lm://HOST:PORT"),
			cel(`!has(self.remote) || !has(self.connector) || self.connector != 'hicache' || self.remote.matches(r'^[a-z0-9_-]*$')`,
				"remote is no name of a storage backend of SGLang's: write one such as mooncake, hf3fs, nixl or file")},
		"KVCache.connector": {oneOf(service.Connectors...), stating},
		"KVCache.remote":    {length(4096)},
		"KVCache.memory":    {cel("type(self) == int ? self >= 1073741824 : quantity(string(self)).compareTo(quantity('1Gi')) >= 0", "must be at least 1Gi")},
		"Model": {
			cel("!has(self.ref) || !"+stated("self.uri"), "uri and ref both say where the model is: remove one"),
			cel("has(self.ref) || "+stated("self.uri")+" || has(self.format) && "+stated("self.format.name"),
				"uri is missing: say where the model is, or name a model in ref"),
			cel("!has(self.ref) || !has(self.ref.kind) || self.ref.kind in ['', 'BaseModel', 'ClusterBaseModel']",
				"ref.kind: write BaseModel or ClusterBaseModel, or nothing for whichever there is"),
		},
		"Model.uri":        {length(4096)},
		"Model.parameters": sized,
		"Model.adapters":   {atMost(service.MaxAdapters), keyed("name")},
		"Adapter":          {require("name", "uri")},
		"Adapter.name":     {form(`^`+label+`$`, 63)},
		"Adapter.uri":      {length(4096), func(p *props) { p.MinLength = count(1) }},
		"Adapter.rank":     {between(1, 1<<16)},
		"ObjectRef":        {require("name")},
		"ObjectRef.name":   {form(`^`+subdomain+`$`, maxName)},
		"Component": {
			cel("!"+some("self.containers")+" || !has(self.resources) && !"+stated("self.image")+" && !"+some("self.command")+" && !"+
				some("self.args")+" && !"+some("self.env"),
				"containers and the short form (image, command, args, env, resources) both describe the serving container: write one of them"),
		},
		"Metrics.path": {form(`^(/.*)?$`, 4096)},
		"Metrics.port": {between(1, 65535)},
		"Node.size":    {atLeast(1)},
		"Local":        {require("command")},
		"Local.command": {func(p *props) { p.MinItems = count(1) },
			cel("self[0] != ''", "is missing: name the program to run and its arguments")},
		"Local.env":              {func(p *props) { *p = list(free()) }},
		"Local.requires":         {atMost(maxRequirements)},
		"LocalFallback.requires": {atMost(maxRequirements)},
		"LocalFallback":          {require("command")},
		"LocalFallback.command": {func(p *props) { p.MinItems = count(1) },
			cel("self[0] != ''", "is missing: name the program to run and its arguments")},
		"LocalFallback.env": {func(p *props) { *p = list(free()) }},
		"Requirement":       {cel(some("self.python")+" != "+some("self.command"), "must have either python or command")},
	}
}

// metricRules are those of the signals that scale a component.
func metricRules() map[string][]rule {
	return map[string][]rule{
		"External":       {require("url", "query")},
		"External.url":   {length(2048)},
		"External.query": {length(4096)},
		"ScaleMetric":    {require("metric")},
		"ScaleMetric.metric": {oneOf(service.MetricCPU, service.MetricMemory, service.MetricQueue, service.MetricKV, service.MetricTokens,
			service.MetricExternal)},
		"ScaleMetric.target": {above(0)},
		"Ratio":              {require("component", "replicas")},
		"Ratio.component":    {oneOf(service.Roles...)},
		"Ratio.replicas":     {above(0)},
	}
}

func scalingRules() map[string][]rule {
	return map[string][]rule{
		"Scaling": {
			cel("!has(self.minReplicas) || !has(self.maxReplicas) || self.maxReplicas == 0 || self.minReplicas <= self.maxReplicas",
				"minReplicas is more than maxReplicas"),
			cel("!has(self.targetConcurrency) || !has(self.scaleTarget) && (!has(self.scaleMetric) || self.scaleMetric in ['', 'concurrency'])",
				"targetConcurrency and scaleTarget or scaleMetric both say what to scale on: remove one"),
			cel("!has(self.preset) || self.preset != 'knative' || (!has(self.scaleMetric) || self.scaleMetric in ['', 'concurrency', 'rps']) && !"+some("self.metrics"),
				"preset knative scales on concurrency or rps alone: write one as scaleMetric and no metrics, or write preset: ours"),
		},
		"Scaling.minReplicas":       {atLeast(0)},
		"Scaling.maxReplicas":       {atLeast(0)},
		"Scaling.maxConcurrency":    {atLeast(0)},
		"Scaling.targetConcurrency": {above(0)},
		"Scaling.scaleTarget":       {above(0)},
		"Scaling.scaleMetric":       {oneOf(service.ScaleMetrics...)},
		"Scaling.metrics":           {atMost(8)},
		"Scaling.scaleToZeroAfter":  duration,
		"Scaling.prewarm":           {oneOf(service.PrewarmAuto, service.PrewarmOff)},
		"Scaling.preset":            {oneOf(service.Presets...)},
		"Scaling.schedule":          {atMost(32)},
		"ScheduleWindow": {require("start", "end"), cel("has(self.minReplicas) || has(self.maxReplicas)", "changes nothing: write minReplicas, maxReplicas or both"),
			cel("!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas", "minReplicas is more than maxReplicas")},
		"ScheduleWindow.minReplicas": {atLeast(0)},
		"ScheduleWindow.maxReplicas": {atLeast(1)},
		"Scaling.startupTimeout":     duration,
		"Scaling.answerTimeout":      duration,
	}
}

func knativeRules() map[string][]rule {
	within := func(least, most string) []rule {
		return []rule{cel(fmt.Sprintf("self >= %s.0 && self <= %s.0", least, most), fmt.Sprintf("is not within %s and %s", least, most))}
	}
	seconds := func(least string) []rule {
		return []rule{form(span, maxWord), cel(fmt.Sprintf("duration(self) >= duration('%s') && duration(self) <= duration('1h')", least), fmt.Sprintf("is not within %s and 1h", least))}
	}
	return map[string][]rule{
		"Knative.targetUtilizationPercentage":   within("1", "100"),
		"Knative.panicWindowPercentage":         within("1", "100"),
		"Knative.panicThresholdPercentage":      within("110", "1000"),
		"Knative.targetBurstCapacity":           {cel("self == -1.0 || self >= 0.0 && self <= 1e9", "is neither -1 nor 0 to 1e9")},
		"Knative.window":                        seconds("6s"),
		"Knative.scaleDownDelay":                seconds("0s"),
		"Knative.scaleToZeroPodRetentionPeriod": seconds("0s"),
		"Knative.initialScale":                  {between(0, service.MaxKnativeScale)},
		"Knative.activationScale":               {between(1, service.MaxKnativeScale)},
	}
}

func standbyRules() map[string][]rule {
	return map[string][]rule{
		"Scaling.standbyFor": duration,
		"Scaling.standby":    {form(`^(|auto|never|suspend|level[1-9])$`, 8)},
		"Standby":            {require("levels")},
		"Standby.env":        {func(p *props) { *p = list(free()) }},
		"Standby.levels": {atMost(maxLevels), func(p *props) { p.MinItems = count(1) },
			cel("self.all(l, !has(l.level) || self.exists_one(m, has(m.level) && m.level == l.level))", "two have the same level")},
		"StandbyLevel":       {require("level", "sleep", "wake")},
		"StandbyLevel.level": {between(1, maxLevels)},
		"StandbyLevel.wake":  {atMost(maxWakeCalls), func(p *props) { p.MinItems = count(1) }},
		"StandbyCall":        {require("path")},
		"StandbyCall.path":   {form(`^/[!-~]*$`, 4096)},
	}
}

func runtimeRules() map[string][]rule {
	return map[string][]rule{
		"ServingRuntimeSpec": {
			cel("has(self.local) || has(self.engine) && (has(self.engine.leader) || "+complete("self.engine")+")",
				"engine is missing what to run: give engine.containers an image, or local a command"),
			cel("!has(self.local) || !has(self.engine) || !has(self.engine.local)",
				"local and engine.local both say how the engine runs: remove one"),
		},
		"ServingRuntimeSpec.protocolVersions":      {items(protocolOf(service.Protocols...))},
		"ServingRuntimeSpec.disaggregation":        {oneOf(service.Disaggregations...)},
		"ServingRuntimeSpec.supportedModelFormats": {atMost(maxFormats)},
		"AdapterArgs": {require("each")},
		"AdapterArgs.each": {atMost(maxContainers), items(length(4096)),
			cel("self.exists(w, w.contains('{{.Adapter}}'))", "does not name the adapter: write arguments with {{.Adapter}} and {{.AdapterPath}}")},
		"AdapterArgs.model": {length(4096),
			cel("self == '' || self.contains('{{.Adapter}}')", "does not name the adapter: write {{.Adapter}} into the model's name, or leave it out")},
		"SizeRange": {cel("!"+stated("self.min")+" || !"+stated("self.max")+" || "+
			fmt.Sprintf(parameters, "self.min")+" <= "+fmt.Sprintf(parameters, "self.max"), "min is more than max")},
		"SizeRange.min": sized,
		"SizeRange.max": sized,
		"SupportedFormat": {
			cel("has(self.modelFormat) ? "+stated("self.modelFormat.name")+" : "+stated("self.name"),
				"name is missing: name the model format"),
			cel("!has(self.modelFormat) || (!"+stated("self.name")+" || has(self.modelFormat.name) && self.name.lowerAscii() == self.modelFormat.name.lowerAscii()) && (!"+
				stated("self.version")+" || has(self.modelFormat.version) && self.version == self.modelFormat.version)",
				"name and version disagree with modelFormat: keep modelFormat"),
		},
		"SupportedFormat.name":     {length(maxName)},
		"SupportedFormat.version":  {length(maxWord)},
		"SupportedFormat.priority": {atLeast(1)},
		"VersionedName.name":       {length(maxName)},
		"VersionedName.version":    {length(maxWord)},
		"VersionedName.operator":   operator,
	}
}

// handlingRules are those of what a Route does with its requests.
func handlingRules() map[string][]rule {
	return map[string][]rule{
		"RouteSpec.mirrors":   {atMost(4)},
		"RouteHeaders.set":    {few(maxChanges), cel("self.all(k, size(self[k]) <= 4096)", "a value is longer than 4096 bytes")},
		"RouteHeaders.add":    {few(maxChanges), cel("self.all(k, size(self[k]) <= 4096)", "a value is longer than 4096 bytes")},
		"RouteHeaders.remove": {atMost(maxChanges), items(length(maxModelName))},
		"RouteRetry.codes":    {atMost(16), items(between(400, 599))},
		"RouteRetry.attempts": {between(0, 10)},
		"RouteRetry.backoff":  {form(span, maxWord), cel("duration(self) >= duration('0s') && duration(self) <= duration('1m')", "must be 0s to 1m")},
		"RouteHedge": {cel("has(self.after) != has(self.percentile)",
			"exactly one of after and percentile must be set")},
		"RouteHedge.after":           duration,
		"RouteHedge.percentile":      {between(50, 99)},
		"RouteRetryBudget.percent":   {between(0, 100)},
		"RouteRetryBudget.perSecond": {between(0, 1000)},
		"RouteTimeouts": {cel("!has(self.request) || !has(self.backendRequest) || duration(self.backendRequest) <= duration(self.request)",
			"backendRequest must be at most request")},
		"RouteTimeouts.request":        duration,
		"RouteTimeouts.backendRequest": duration,
		"RouteMirror": {cel(stated("self.service")+" != "+stated("self.pool"),
			"exactly one of service and pool must be set")},
		"RouteMirror.service": {form(`^(`+label+`)?$`, 63)},
		"RouteMirror.pool":    {form(`^(`+subdomain+`)?$`, maxName)},
		"RouteMirror.model":   {form(`^(`+modelName+`)?$`, maxModelName)},
		"RouteMirror.percent": {between(0, 100)},
	}
}

func routingRules() map[string][]rule {
	helpers := []rule{atMost(maxAddresses), set, items(form(`^(`+inet6+`|[0-9]{1,3}(\.[0-9]{1,3}){3}):`+port+`$`, 64))}
	return map[string][]rule{
		"RouteSpec": {require("targets"),
			cel("!has(self.priority) || !"+stated("self.criticality"), "priority and criticality both say how urgent requests are: remove one")},
		"RouteSpec.models":      {atMost(maxModels), set, items(modelled...)},
		"RouteSpec.criticality": {oneOf("Critical", "Standard", "Sheddable")},
		"RouteLatency.ttft":     duration,
		"RouteLatency.tpot":     duration,
		"RouteSpec.targets": {atMost(maxTargets), func(p *props) { p.MinItems = count(1) },
			cel("self.all(t, has(t.weight)) || !self.exists(t, has(t.weight))", "either every target has a weight or none has")},
		"RouteTarget": {cel(stated("self.service")+" != "+stated("self.pool"),
			"name a service or a pool, one of them")},
		"RouteTarget.service": {form(`^(`+label+`)?$`, 63)},
		"RouteTarget.pool":    {form(`^(`+subdomain+`)?$`, maxName)},
		"RouteTarget.model": {form(`^(`+modelName+`)?$`, maxModelName),
			cel(fmt.Sprintf("size(bytes(self)) <= %d", maxModelName), fmt.Sprintf("more than %d bytes", maxModelName))},
		"RouteTarget.weight": {between(0, maxWeight)},

		"PoolSpec": {cel("has(self.selector) || has(self.addresses) && size(self.addresses) > 0",
			"selector is missing: write labels of services, or addresses of servers that run already"),
			cel("!has(self.selector) || size(self.selector) > 0", "selector is empty: write the labels of the model servers, such as app: vllm"),
			cel("has(self.addresses) && size(self.addresses) > 0 || (!has(self.prefillAddresses) || size(self.prefillAddresses) == 0) && (!has(self.encodeAddresses) || size(self.encodeAddresses) == 0)",
				"prefillAddresses or encodeAddresses, and no addresses: write those of the servers that answer")},
		"PoolSpec.selector": {func(p *props) {
			p.MaxProperties = count(maxLabels)
			p.AdditionalProperties.Schema.Pattern = `^` + labelName + `?$`
			p.AdditionalProperties.Schema.MaxLength = count(63)
		}, cel(`self.all(k, k.matches(r'^([^/]{1,253}/)?`+labelName+`$'))`, "a key is not a label's name")},
		"PoolSpec.addresses": {atMost(maxAddresses), set, items(form(`^(`+inet6+`|`+host+`):`+port+`$`, 2*maxName),
			cel(fmt.Sprintf("self.lastIndexOf(':') <= %d || self.startsWith('[')", maxName), "the host's name is too long"))},
		"PoolSpec.prefillAddresses":        helpers,
		"PoolSpec.encodeAddresses":         helpers,
		"PoolSpec.protocol":                {protocolOf(service.ProtocolV1, service.ProtocolV2, service.ProtocolGRPCV2, service.ProtocolOpenAI, service.ProtocolCohere)},
		"PoolSpec.dataParallelSize":        {between(1, service.MaxDataParallelSize)},
		"PoolSpec.maxConcurrency":          {atLeast(0)},
		"PoolSpec.answerTimeout":           duration,
		"PoolMetrics.engine":               {oneOf(routing.Engines...)},
		"PoolMetrics.path":                 {form(`^(/.*)?$`, 4096)},
		"PoolMetrics.port":                 {between(1, 65535)},
		"PoolKVEvents":                     {require("port")},
		"PoolKVEvents.port":                {between(1, 65535)},
		"PoolKVEvents.replayPort":          {between(1, 65535)},
		"PoolKVEvents.topic":               {length(256), cel("size(bytes(self)) <= 256", "more than 256 bytes")},
		"PoolHealthCheck.path":             {form(`^(/.*)?$`, 4096)},
		"PoolHealthCheck.port":             {between(1, 65535)},
		"PoolHealthCheck.interval":         {form(span, maxWord), cel("duration(self) >= duration('100ms')", "must be at least 100ms")},
		"PoolHealthCheck.timeout":          {form(span, maxWord), cel("duration(self) >= duration('100ms')", "must be at least 100ms")},
		"PoolHealthCheck.failureThreshold": {between(1, 100)},
		"Queue.maxRequests":                {atLeast(1)},
		"Queue.maxBytes": {form(quantity, maxWord),
			cel("type(self) == int ? self > 0 : quantity(string(self)).isGreaterThan(quantity('0'))", "must be more than 0")},
		"Queue.maxWait":  duration,
		"Queue.fairness": {oneOf(service.Fairnesses...)},
	}
}

func reserveRules() map[string][]rule {
	return map[string][]rule{
		"Reserve":     {labelNamed},
		"ReserveSpec": {cel("has(self.placeholders) || has(self.images)", "asks for nothing: write placeholders, images or both")},
		"ReserveSpec.nodeSelector": {func(p *props) {
			p.MaxProperties = count(reserve.MaxNodeSelectors)
			p.AdditionalProperties.Schema.Pattern = `^` + labelName + `?$`
			p.AdditionalProperties.Schema.MaxLength = count(63)
		}, cel(`self.all(k, k.matches(r'^([^/]{1,253}/)?`+labelName+`$'))`, "a key is not a label's name")},
		"ReserveSpec.tolerations":      {func(p *props) { *p = list(free()) }},
		"ReserveSpec.imagePullSecrets": {atMost(reserve.MaxPullSecrets), items(form(`^`+subdomain+`$`, maxName))},
		"Placeholders": {require("resources"),
			cel("[has(self.count), has(self.percent), "+some("self.ladder")+"].filter(stated, stated).size() == 1",
				"write how many there are, as exactly one of count, percent and ladder")},
		"Placeholders.count":   {between(0, reserve.MaxPlaceholders)},
		"Placeholders.percent": {between(1, 100)},
		"Placeholders.max":     {between(1, reserve.MaxPlaceholders)},
		"Placeholders.ladder":  {atMost(reserve.MaxLadder)},
		"Placeholders.resources": {func(p *props) {
			p.MinProperties, p.MaxProperties = count(1), count(reserve.MaxResources)
			p.AdditionalProperties.Schema.Pattern, p.AdditionalProperties.Schema.MaxLength = quantity, count(maxWord)
		}, cel(`self.all(k, k.matches(r'^([^/]{1,253}/)?`+labelName+`$'))`, "a key is not a name such as cpu or nvidia.com/gpu"),
			cel("self.all(k, type(self[k]) == int ? self[k] > 0 : quantity(string(self[k])).isGreaterThan(quantity('0')))", "must be more than 0")},
		"LadderStep.fromNodes": {between(0, maxWeight)},
		"LadderStep.count":     {between(0, reserve.MaxPlaceholders)},
		"ReserveImages": {cel(some("self.from")+" || "+some("self.names"),
			"names no images: write from: [services], from: [runtimes], or names")},
		"ReserveImages.from":        {atMost(2), set, items(oneOf(reserve.FromServices, reserve.FromRuntimes), stating)},
		"ReserveImages.names":       {atMost(reserve.MaxImages), set, items(form(`^[!-~]+$`, 1024))},
		"ReserveImages.nodesAtOnce": {between(1, reserve.MaxNodesAtOnce)},
		"ReserveStatus.conditions":  {keyed("type")},
	}
}

func statusRules() map[string][]rule {
	return map[string][]rule{
		"ModelServiceStatus.conditions":   {keyed("type")},
		"ServingRuntimeStatus.conditions": {keyed("type")},
		"RoutingStatus.conditions":        {keyed("type")},
	}
}

// pickerRules are those of a pool's picker.
func pickerRules() map[string][]rule {
	scorers, _ := picker.Preset(picker.Default)
	var scored []string // the presets whose choice is best
	for _, name := range picker.Presets() {
		if c, _ := picker.Preset(name); c.Choice == "" {
			scored = append(scored, "'"+name+"'")
		}
	}
	policy, err := picker.New(scorers)
	if err != nil {
		panic(err)
	}
	ages := policy.Config()
	return map[string][]rule{
		"PoolPicker": {
			cel("!"+some("self.scorers")+" || ("+stated("self.choice")+" ? self.choice == 'best' : !"+stated("self.preset")+" || self.preset in ["+strings.Join(scored, ", ")+"])",
				"scorers have no effect unless the choice is best: leave them out, or write choice: best"),
			cel(fmt.Sprintf("duration(has(self.stale) ? self.stale : '%v') > duration(has(self.fresh) ? self.fresh : '%v')", ages.Stale, ages.Fresh),
				"stale must be more than fresh")},
		"PoolPicker.preset":      {oneOf(picker.Presets()...)},
		"PoolPicker.scorers":     {atMost(maxScorers)},
		"PoolPicker.filters":     {atMost(maxFilters)},
		"PoolPicker.choice":      {oneOf(picker.Choices()...)},
		"PoolPicker.balance":     {cel("self == 0.0 || self > 1.0 && self <= 1e6", "must be above 1, or 0 for the preset's")},
		"PoolPicker.fresh":       duration,
		"PoolPicker.stale":       duration,
		"PoolFilter":             {require("filter")},
		"PoolFilter.filter":      {oneOf(picker.Filters()...), stating},
		"PoolFilter.waiting":     {atLeast(0)},
		"PoolFilter.kv":          {between(0, 1)},
		"PoolFilter.probability": {between(0, 1)},
		"PoolFilter.then":        {atMost(maxFilters)},
		"PoolFilter.else":        {atMost(maxFilters)},
		"PoolScorer":             {require("name")},
		"PoolScorer.name":        {oneOf(picker.Scorers()...), stating},
		"PoolScorer.weight":      {between(0, maxWeight)},
		"PoolScorer.scale":       {atLeast(0)},
	}
}
