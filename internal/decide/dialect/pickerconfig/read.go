package pickerconfig

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// The bounds of a configuration.
const (
	maxPlugins  = 100
	maxProfiles = 10
	maxWeight   = 1_000_000
)

// reader reads one configuration.
type reader struct {
	*manifest.Report
	// at appends a field to a path.
	at       func(path, field string) string
	tolerant bool // errors are warnings
	root     string
	in       *config
	out      service.Scheduling
	encode   string // the profile of the endpoints that encode pictures; "" for none
}

// errorf reports what would change where requests go.
func (r *reader) errorf(path, format string, args ...any) {
	if r.tolerant {
		r.Warnf(path, "has no effect: "+format, args...)
		return
	}
	r.Errorf(path, format, args...)
}

func (r *reader) field(name string) string { return r.at(r.root, name) }

func (r *reader) read(root string, in *config) *service.Scheduling {
	r.root, r.in = root, in
	if len(in.Plugins) > maxPlugins || len(in.SchedulingProfiles) > maxProfiles {
		r.errorf(root, "%d plugins and %d profiles are more than there may be (%d and %d)", len(in.Plugins), len(in.SchedulingProfiles), maxPlugins, maxProfiles)
		return nil
	}
	for i := range in.Plugins {
		r.plugin(i)
	}
	r.profiles()
	r.detector()
	r.flowControl()
	r.others()
	return &r.out
}

// name is what a plugin is referred to by.
func (p *plugin) name() string {
	if p.Name != "" {
		return p.Name
	}
	return p.Type
}

// plugin checks one plugin, whether anything refers to it or not.
func (r *reader) plugin(i int) {
	p := &r.in.Plugins[i]
	path := strict.Index(r.field("plugins"), i)
	c, ok := counterparts[p.Type]
	switch {
	case p.Type == "":
		r.errorf(path, "has no type: write one, for example queue-scorer")
		return
	case !ok:
		r.errorf(r.at(path, "type"), "unknown plugin %q%s", manifest.Clip(p.Type), meant(p.Type))
		return
	case slices.ContainsFunc(r.in.Plugins[:i], func(q plugin) bool { return q.name() == p.name() }):
		r.errorf(path, "%q is the name of another plugin too: give one of them another name", manifest.Clip(p.name()))
	case c.lacks != "":
		r.errorf(r.at(path, "type"), "%s has no counterpart: %s", p.Type, c.lacks)
		return
	case c.note != "":
		r.Warnf(r.at(path, "type"), "%s %s", p.Type, c.note)
	}
	r.ranges(r.at(path, "parameters"), p, &c)
	if !c.free {
		r.parameters(r.at(path, "parameters"), p, &c)
	}
}

// numbers are the parameters that are numbers, with the least and the most of each.
var numbers = map[string][2]float64{
	"threshold":            {0, 1e9},
	"nonCachedTokens":      {0, 1e9},
	"queueDepthThreshold":  {1, 1e9},
	"kvCacheUtilThreshold": {0.01, 1},
	"maxConcurrency":       {1, 1e6},
}

// rangeOf is that of a parameter that is read as a number.
func (c *counterpart) rangeOf(name string) (of [2]float64, ok bool) {
	if name == c.scale {
		return [2]float64{1, 1e12}, true
	}
	if of, ok = numbers[name]; !ok || !slices.Contains(c.reads, name) {
		return of, false
	}
	return of, true
}

// ranges checks the numbers among a plugin's parameters.
func (r *reader) ranges(path string, p *plugin, c *counterpart) {
	for _, name := range slices.Sorted(maps.Keys(p.Parameters)) {
		if of, ok := c.rangeOf(name); ok && !within(p.Parameters[name], of) {
			r.errorf(strict.Key(path, name), "%s is not a number from %g to %g", manifest.Clip(fmt.Sprint(p.Parameters[name])), of[0], of[1])
		}
	}
}

func within(v any, of [2]float64) bool {
	n, ok := v.(float64)
	return ok && n >= of[0] && n <= of[1]
}

// parameters warns of those without an effect.
func (r *reader) parameters(path string, p *plugin, c *counterpart) {
	var names []string
	for name := range p.Parameters {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		why, ignored := c.ignores[name]
		switch {
		case slices.Contains(c.reads, name) || c.scale == name:
		case ignored:
			r.Warnf(strict.Key(path, name), "%s", why)
		default:
			r.Warnf(strict.Key(path, name), "has no effect: %s is read without it", p.Type)
		}
	}
}

// meant names the type that was probably meant, or those there are.
func meant(got string) string {
	var names []string
	for name, c := range counterparts {
		if c.lacks == "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if near := strict.Nearest(got, names); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return ": those with a counterpart are listed in docs/endpoint-picker.md"
}

// meantPlugin names the plugin that a reference probably meant, or says what to do.
func (r *reader) meantPlugin(ref string) string {
	var names []string
	for i := range r.in.Plugins {
		names = append(names, r.in.Plugins[i].name())
	}
	if near := strict.Nearest(ref, names); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return ": add it there"
}

// resolve finds the plugin that a reference names; nil with a problem if it is none, or
// one that has been reported.
func (r *reader) resolve(path, ref string) (*plugin, *counterpart) {
	i := slices.IndexFunc(r.in.Plugins, func(p plugin) bool { return p.name() == ref })
	if i < 0 {
		r.errorf(r.at(path, "pluginRef"), "%q is not among plugins%s", manifest.Clip(ref), r.meantPlugin(ref))
		return nil, nil
	}
	p := &r.in.Plugins[i]
	c, ok := counterparts[p.Type]
	if !ok || c.lacks != "" {
		return nil, nil
	}
	return p, &c
}

// profiles reads how endpoints are scored and chosen: by the profile of those that
// answer.
func (r *reader) profiles() {
	main, path := r.mainProfile()
	if main == nil {
		return
	}
	p := &r.out.Picker
	for i, ref := range main.Plugins {
		r.use(strict.Index(r.at(path, "plugins"), i), &ref)
	}
	if p.Choice == "random" && len(p.Scorers) > 0 {
		r.Warnf(path, "the scorers have no effect: random-picker takes any endpoint")
		p.Scorers = nil
	}
	if len(p.Scorers) == 0 { // all endpoints are alike; the preset is one without scorers
		p.Preset, p.Choice = "round-robin", "random"
	}
	for i := range r.in.SchedulingProfiles {
		if other := &r.in.SchedulingProfiles[i]; other != main && !r.sameScorers(main, other) {
			at := strict.Index(r.field("schedulingProfiles"), i)
			if r.encode != "" && other.Name == r.encode {
				if len(r.weights(other)) > 0 {
					r.Warnf(at, "its scorers have no effect: an encoder is chosen by what it is to encode and by how much it has")
				}
				continue
			}
			r.Warnf(at, "has no effect where it differs from %q: endpoints of all roles are scored alike", manifest.Clip(main.Name))
		}
	}
}

// mainProfile is the profile of the endpoints that answer; nil without one.
func (r *reader) mainProfile() (*profile, string) {
	list, path := r.in.SchedulingProfiles, r.field("schedulingProfiles")
	if len(list) == 0 {
		r.errorf(path, "is missing: write a profile with the plugins that choose an endpoint")
		return nil, ""
	}
	name, apart := r.disaggregation()
	if !apart {
		if len(list) > 1 {
			r.errorf(strict.Index(path, 1), "a second profile needs the plugin disagg-profile-handler: add it, or remove the profile")
		}
		return &list[0], strict.Index(path, 0)
	}
	i := slices.IndexFunc(list, func(p profile) bool { return p.Name == name })
	if i < 0 {
		r.errorf(path, "has no profile %q, which chooses the endpoint that answers: add it", manifest.Clip(name))
		return nil, ""
	}
	return &list[i], strict.Index(path, i)
}

// sameScorers reports whether two profiles refer to the same scorers with the same weights.
func (r *reader) sameScorers(a, b *profile) bool {
	return fmt.Sprint(r.weights(a)) == fmt.Sprint(r.weights(b))
}

func (r *reader) weights(p *profile) map[string]float64 {
	out := map[string]float64{}
	for _, ref := range p.Plugins {
		i := slices.IndexFunc(r.in.Plugins, func(p plugin) bool { return p.name() == ref.PluginRef })
		if i < 0 {
			continue
		}
		if c, ok := counterparts[r.in.Plugins[i].Type]; ok && c.slot == scorer {
			out[c.name] += weight(&ref)
		}
	}
	return out
}

func weight(ref *pluginRef) float64 {
	if ref.Weight == nil {
		return 1
	}
	return *ref.Weight
}

// use takes a plugin of the main profile.
func (r *reader) use(path string, ref *pluginRef) {
	p, c := r.resolve(path, ref.PluginRef)
	if p == nil {
		return
	}
	to := &r.out.Picker
	switch c.slot {
	case scorer:
		w := weight(ref)
		if !(w >= 0) || w > maxWeight {
			r.errorf(r.at(path, "weight"), "%v is not a weight: 0 to %d", w, maxWeight)
			return
		}
		one := service.Scorer{Name: c.name, Weight: w}
		if c.scale != "" {
			one.Scale, _ = r.number(p, c.scale)
		}
		if i := slices.IndexFunc(to.Scorers, func(s service.Scorer) bool { return s.Name == c.name }); i >= 0 {
			to.Scorers[i].Weight += w
			return
		}
		to.Scorers = append(to.Scorers, one)
		if to.Choice == "" {
			to.Choice = "best"
		}
	case picker:
		to.Choice = c.name
	case handler, decider, detector:
		r.errorf(r.at(path, "pluginRef"), "%s chooses no endpoint: remove the reference", p.Type)
	case builtIn:
	}
}

// disaggregation reads whether prompts are computed apart, and returns the name of the
// profile of the endpoints that answer.
func (r *reader) disaggregation() (profile string, apart bool) {
	i := slices.IndexFunc(r.in.Plugins, func(p plugin) bool {
		return p.Type == "disagg-profile-handler" || p.Type == "pd-profile-handler"
	})
	if i < 0 {
		return "", false
	}
	p := &r.in.Plugins[i]
	path := r.at(strict.Index(r.field("plugins"), i), "parameters")
	text := func(group, key, flat, fallback string) string {
		if m, ok := p.Parameters[group].(map[string]any); ok {
			if s, ok := m[key].(string); ok {
				return s
			}
		}
		if s, ok := p.Parameters[flat].(string); ok {
			return s
		}
		return fallback
	}
	name := text("deciders", "prefill", "prefillDeciderPluginName", text("", "", "deciderPluginName", ""))
	if n, ok := r.number(p, "threshold"); ok {
		r.out.PrefillTokens = int64(n)
	}
	if name != "" {
		r.decider(path, name)
	}
	if name := text("deciders", "encode", "encodeDeciderPluginName", ""); name != "" {
		r.encodeDecider(path, name)
	}
	r.encode = text("profiles", "encode", "encodeProfile", "encode")
	return text("profiles", "decode", "decodeProfile", "decode"), true
}

// always is what is new of a prompt that another endpoint is always to compute.
const always = 1

// named is the decider of a name; nil, with an error, where there is none.
func (r *reader) named(path, name string) *plugin {
	i := slices.IndexFunc(r.in.Plugins, func(p plugin) bool { return p.name() == name })
	if i < 0 {
		r.errorf(path, "the decider %q is not among plugins%s", manifest.Clip(name), r.meantPlugin(name))
		return nil
	}
	return &r.in.Plugins[i]
}

// encodeDecider checks the decider of what is encoded apart, which changes nothing.
func (r *reader) encodeDecider(path, name string) {
	if p := r.named(path, name); p != nil && p.Type != "always-disagg-multimodal-decider" {
		r.errorf(path, "%q decides about no picture: name always-disagg-multimodal-decider", manifest.Clip(name))
	}
}

// decider reads which prompts are computed apart.
func (r *reader) decider(path, name string) {
	p := r.named(path, name)
	if p == nil {
		return
	}
	switch p.Type {
	case "always-disagg-pd-decider":
		r.out.PrefillTokens = always
	case "prefix-based-pd-decider":
		n, ok := r.number(p, "nonCachedTokens")
		if r.out.PrefillTokens = int64(n); !ok || n == 0 { // which turns it off
			r.out.PrefillTokens = math.MaxInt64
		}
	default:
		r.errorf(path, "%q decides about no prompt: name prefix-based-pd-decider or always-disagg-pd-decider", manifest.Clip(name))
	}
}

// detector reads from when on an endpoint has no capacity.
func (r *reader) detector() {
	ref := "utilization-detector"
	if d := r.in.SaturationDetector; d != nil && d.PluginRef != "" {
		ref = d.PluginRef
	} else if !slices.ContainsFunc(r.in.Plugins, func(p plugin) bool { return p.name() == ref }) {
		return
	}
	path := r.field("saturationDetector")
	p, c := r.resolve(path, ref)
	switch {
	case p == nil:
	case c.slot != detector:
		r.errorf(r.at(path, "pluginRef"), "%s detects no saturation: name utilization-detector or concurrency-detector", p.Type)
	case p.Type == "utilization-detector":
		r.out.Saturation.QueueDepth, _ = r.number(p, "queueDepthThreshold")
		r.out.Saturation.KVUsage, _ = r.number(p, "kvCacheUtilThreshold")
	default:
		if mode, ok := p.Parameters["concurrencyMode"]; ok && mode != "requests" {
			r.errorf(r.parameter(p, "concurrencyMode"), "requests in flight are counted, not tokens: write requests")
		}
		n, ok := r.number(p, "maxConcurrency")
		if r.out.MaxConcurrency = int(n); !ok {
			r.out.MaxConcurrency = 100 // as there
		}
	}
}

// parameter is the path of a plugin's.
func (r *reader) parameter(p *plugin, name string) string {
	i := slices.IndexFunc(r.in.Plugins, func(q plugin) bool { return q.name() == p.name() })
	return strict.Key(r.at(strict.Index(r.field("plugins"), i), "parameters"), name)
}

// number is a plugin's parameter; false where it has none, or one that is reported.
func (r *reader) number(p *plugin, name string) (float64, bool) {
	c := counterparts[p.Type]
	if of, ok := c.rangeOf(name); !ok || !within(p.Parameters[name], of) {
		return 0, false
	}
	return p.Parameters[name].(float64), true
}

// flowControl reads the bounds of what waits.
func (r *reader) flowControl() {
	f, path := r.in.FlowControl, r.field("flowControl")
	if f == nil {
		return
	}
	if !slices.Contains(r.in.FeatureGates, "flowControl") {
		r.Warnf(path, "has no effect without flowControl among featureGates")
		return
	}
	q := &r.out.Queue
	q.MaxRequests = int(r.quantity(r.at(path, "maxRequests"), f.MaxRequests, 1_000_000))
	q.MaxBytes = r.quantity(r.at(path, "maxBytes"), f.MaxBytes, 1<<40)
	if ttl := f.DefaultRequestTTL; ttl != nil {
		if q.MaxWait = ttl.Duration; q.MaxWait < 0 || q.MaxWait > 24*time.Hour {
			r.errorf(r.at(path, "defaultRequestTTL"), "%v is not a time from 0 to 24h", ttl.Duration)
			q.MaxWait = 0
		}
	}
	if f.DefaultPriorityBand != nil {
		r.Warnf(r.at(path, "defaultPriorityBand"), "has no effect: every priority has a band, and maxRequests and maxBytes hold for all of them together")
	}
	if len(f.PriorityBands) > 0 {
		r.Warnf(r.at(path, "priorityBands"), "has no effect: every priority has a band, and maxRequests and maxBytes hold for all of them together")
	}
	if f.UsageLimitPolicyPluginRef != "" {
		r.Warnf(r.at(path, "usageLimitPolicyPluginRef"), "has no effect: the thresholds are those of the saturation detector")
	}
}

func (r *reader) quantity(path string, q *quantity, most int64) int64 {
	if q == nil {
		return 0
	}
	n := q.Value()
	if n < 1 || n > most {
		r.errorf(path, "%s is not from 1 to %d", manifest.Clip(q.String()), most)
		return 0
	}
	return n
}

// others reads what only has to be what it is here anyway.
func (r *reader) others() {
	known := []string{"flowControl", "dataLayer", "enableLegacyMetrics", "prepareDataPlugins"}
	for i, gate := range r.in.FeatureGates {
		if !slices.Contains(known, gate) {
			r.Warnf(strict.Index(r.field("featureGates"), i), "%q has no effect: of the gates, %s are known", manifest.Clip(gate), strings.Join(known, ", "))
		}
	}
	if p := r.in.Parser; p != nil {
		r.resolve(r.field("parser"), p.PluginRef)
	}
	if d := r.in.DataLayer; d != nil && d.Discovery != nil {
		r.errorf(r.at(r.field("dataLayer"), "discovery"), "endpoints are those of pools: write a Pool with addresses, and remove this")
	}
}
