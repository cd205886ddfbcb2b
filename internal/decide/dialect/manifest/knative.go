package manifest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// knative is the prefix of Knative's annotations.
const knative = "autoscaling.knative.dev/"

// presetAnnotation has the preset, as a ModelService's scaling has it. Knative's
// class does not: services of KServe's carry it that Roundhouse's own autoscaler
// scales.
const presetAnnotation = "roundhouse.dev/scaling-preset"

// checkPreset checks who decides the count of a component whose scaling is at path.
func checkPreset(r *Report, path string, s service.Scaling) {
	if s.Preset != "" && !slices.Contains(service.Presets, s.Preset) {
		r.Errorf(path+".preset", "unknown preset %q: write one of %s", Clip(string(s.Preset)), Joined(service.Presets))
		return
	}
	if k := s.Knative; k != nil {
		checkKnative(r, path+".knative", k)
	}
	switch {
	case s.Preset == service.PresetKnative:
		checkUnderKnative(r, path, s)
	case s.Knative != nil:
		r.Warnf(path+".knative", "has no effect without preset: knative beside it")
	}
}

// CheckPresetTogether reports what Knative's autoscaler does not know where one field
// states the preset, and another one the metrics; path is the latter's.
func CheckPresetTogether(r *Report, path string, whole service.Scaling, parts ...service.Scaling) {
	unknown := func(s service.Scaling) bool {
		return s.Preset == service.PresetKnative && (len(s.Metrics) > 0 || s.ScaleMetric.Measured())
	}
	if unknown(whole) && !slices.ContainsFunc(parts, unknown) { // else it is reported where it stands
		r.Errorf(path, "preset knative scales on concurrency or rps alone, and another field asks for %s: remove that, or write preset: ours", Joined(askedFor(whole)))
	}
}

// askedFor are the metrics of s that are measured.
func askedFor(s service.Scaling) (out []service.ScaleMetric) {
	if s.ScaleMetric.Measured() {
		out = append(out, s.ScaleMetric)
	}
	for _, m := range s.Metrics {
		out = append(out, m.Metric)
	}
	return out
}

// checkUnderKnative reports the fields that Knative's autoscaler does not know.
func checkUnderKnative(r *Report, path string, s service.Scaling) {
	if m := s.ScaleMetric; m != "" && m != service.MetricConcurrency && m != service.MetricRPS {
		r.Errorf(path+".scaleMetric", "preset knative scales on concurrency or rps, not on %s: write one of these, or preset: ours", Clip(string(m)))
	}
	if len(s.Metrics) > 0 {
		r.Errorf(path+".metrics", "preset knative scales on scaleMetric alone: remove metrics, or write preset: ours")
	}
	if s.ScaleToZeroAfter != nil {
		r.Warnf(path+".scaleToZeroAfter", "has no effect with preset knative: its window and scaleToZeroPodRetentionPeriod decide when the last replica stops")
	}
	if s.Prewarm == service.PrewarmAuto {
		r.Warnf(path+".prewarm", "has no effect with preset knative: Knative starts nothing ahead of requests")
	}
}

// checkKnative checks settings of Knative's, within the bounds that Knative has.
func checkKnative(r *Report, path string, k *service.Knative) {
	percent := func(name string, v *float64, least, most float64) {
		if v != nil && !(*v >= least && *v <= most) {
			r.Errorf(path+"."+name, "%v is not within %v and %v", *v, least, most)
		}
	}
	percent("targetUtilizationPercentage", k.TargetUtilization, 1, 100)
	percent("panicWindowPercentage", k.PanicWindow, 1, 100)
	percent("panicThresholdPercentage", k.PanicThreshold, 110, 1000)
	if b := k.BurstCapacity; b != nil && !(*b >= 0 && *b <= 1e9) && *b != -1 {
		r.Errorf(path+".targetBurstCapacity", "%v is neither -1 nor 0 to 1e9", *b)
	}
	span := func(name string, v *time.Duration, least time.Duration) {
		if v != nil && (*v < least || *v > service.MaxKnativeWindow || *v%time.Second != 0) {
			r.Errorf(path+"."+name, "%s is not a number of whole seconds within %s and %s", *v, least, service.MaxKnativeWindow)
		}
	}
	span("window", k.Window, service.MinKnativeWindow)
	span("scaleDownDelay", k.ScaleDownDelay, 0)
	span("scaleToZeroPodRetentionPeriod", k.Retention, 0)
	count := func(name string, v *int, least int) {
		if v != nil && (*v < least || *v > service.MaxKnativeScale) {
			r.Errorf(path+"."+name, "%d is not within %d and %d", *v, least, service.MaxKnativeScale)
		}
	}
	count("initialScale", k.InitialScale, 0)
	count("activationScale", k.ActivationScale, 1)
}

// readPreset reads who decides the count, and for Knative's autoscaler its
// annotations; stated is what the spec states. It reports whether Knative's decides.
func readPreset(r *Report, find func(names ...string) *annotation, s *service.Scaling, stated service.Scaling) bool {
	a := find(presetAnnotation)
	if a == nil {
		return false
	}
	if s.Preset = service.Preset(a.value); !slices.Contains(service.Presets, s.Preset) {
		r.Errorf(a.path, "unknown preset %q: write one of %s", Clip(a.value), Joined(service.Presets))
		return false
	}
	if s.Preset != service.PresetKnative {
		return false
	}
	s.Knative = readKnative(r, find)
	if m := cmp.Or(stated.ScaleMetric, s.ScaleMetric); m != "" && m != service.MetricConcurrency && m != service.MetricRPS {
		r.Errorf(a.path, "preset knative scales on concurrency or rps, not on %s: write one of these, or the preset ours", Clip(string(m)))
	}
	if len(stated.Metrics) > 0 {
		r.Errorf(a.path, "preset knative scales on one metric: remove the others, or write the preset ours")
	}
	if p := find(prewarmAnnotation); p != nil && p.value == string(service.PrewarmAuto) {
		r.Warnf(p.path, "has no effect with preset knative: Knative starts nothing ahead of requests")
	}
	return true
}

// readKnative reads Knative's annotations.
func readKnative(r *Report, find func(names ...string) *annotation) *service.Knative {
	floating := func(least, most float64, names ...string) *float64 {
		return parsed(r, find(names...), fmt.Sprintf("a number within %v and %v", least, most), func(v string) (float64, bool) {
			f, err := strconv.ParseFloat(v, 64)
			return f, err == nil && f >= least && f <= most
		})
	}
	span := func(least time.Duration, name string) *time.Duration {
		return parsed(r, find(name), fmt.Sprintf("a number of whole seconds within %s and %s", least, service.MaxKnativeWindow), func(v string) (time.Duration, bool) {
			d, err := time.ParseDuration(v)
			return d, err == nil && d >= least && d <= service.MaxKnativeWindow && d%time.Second == 0
		})
	}
	count := func(least int, names ...string) *int {
		return parsed(r, find(names...), fmt.Sprintf("a number within %d and %d", least, service.MaxKnativeScale), func(v string) (int, bool) {
			n, err := strconv.Atoi(v)
			return n, err == nil && n >= least && n <= service.MaxKnativeScale
		})
	}
	return &service.Knative{
		TargetUtilization: floating(1, 100, knative+"target-utilization-percentage", knative+"targetUtilizationPercentage"),
		Window:            span(service.MinKnativeWindow, knative+"window"),
		PanicWindow:       floating(1, 100, knative+"panic-window-percentage", knative+"panicWindowPercentage"),
		PanicThreshold:    floating(110, 1000, knative+"panic-threshold-percentage", knative+"panicThresholdPercentage"),
		ScaleDownDelay:    span(0, knative+"scale-down-delay"),
		Retention:         span(0, knative+"scale-to-zero-pod-retention-period"),
		InitialScale:      count(0, knative+"initial-scale", knative+"initialScale"),
		ActivationScale:   count(1, knative+"activation-scale"),
		BurstCapacity: parsed(r, find(knative+"target-burst-capacity", knative+"targetBurstCapacity"), "-1 or a number from 0 to 1e9", func(v string) (float64, bool) {
			f, err := strconv.ParseFloat(v, 64)
			return f, err == nil && (f == -1 || f >= 0 && f <= 1e9)
		}),
	}
}

// parsed is the value of an annotation; nil without it, or if it is not what it has to be.
func parsed[T any](r *Report, a *annotation, what string, parse func(string) (T, bool)) *T {
	if a == nil {
		return nil
	}
	v, ok := parse(a.value)
	if !ok {
		r.Errorf(a.path, "%q is not %s", Clip(a.value), what)
		return nil
	}
	return &v
}

// knativeRead are Knative's annotations that are read, knativeIdle those whose
// work Roundhouse's own autoscaler does by settings of its own.
var (
	knativeRead = []string{"min-scale", "minScale", "max-scale", "maxScale", "target", "metric",
		"target-utilization-percentage", "targetUtilizationPercentage", "scale-to-zero-pod-retention-period"}
	knativeIdle = []string{"window", "panic-window-percentage", "panicWindowPercentage", "panic-threshold-percentage",
		"panicThresholdPercentage", "scale-down-delay", "initial-scale", "initialScale", "activation-scale",
		"target-burst-capacity", "targetBurstCapacity"}
)

// warnKnative warns of Knative's annotations that change nothing here; preset
// reports whether Knative's autoscaler decides.
func warnKnative(r *Report, path string, annotations map[string]string, preset bool) {
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		name, ok := strings.CutPrefix(key, knative)
		at := strict.Key(path, key)
		switch {
		case !ok || slices.Contains(knativeRead, name):
		case name == "class":
			if v := annotations[key]; v != "kpa.autoscaling.knative.dev" {
				decides := "Roundhouse's own autoscaler"
				if preset {
					decides = "with the preset knative, Knative's autoscaler (kpa)"
				}
				r.Warnf(at, "%q has no effect: %s decides the count", Clip(v), decides)
			}
		case slices.Contains(knativeIdle, name):
			if !preset {
				r.Warnf(at, "has no effect: Roundhouse's own autoscaler decides the count; the annotation %s: knative has Knative's decide it", presetAnnotation)
			}
		default:
			why := "is not one of Knative's annotations and has no effect"
			if near := strict.Nearest(name, slices.Concat(knativeRead, knativeIdle)); near != "" {
				why += fmt.Sprintf("; did you mean %q?", knative+near)
			}
			r.Warnf(at, "%s", why)
		}
	}
}
