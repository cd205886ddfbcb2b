package manifest

import (
	"math"
	"net/url"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// Bounds of what a component scales on.
const (
	maxMetrics    = 8
	maxQueryBytes = 4 << 10
	maxURLBytes   = 2 << 10
	maxRatio      = 1000
)

// measurements are the metrics of a list.
var measurements = slices.DeleteFunc(slices.Clone(service.ScaleMetrics), func(m service.ScaleMetric) bool { return !m.Measured() })

// checkMetrics checks what a component scales on.
func checkMetrics(r *Report, path string, s service.Scaling) {
	switch {
	case s.ScaleMetric == service.MetricExternal && s.External == nil:
		r.Errorf(path+".scaleMetric", "external needs a server and an expression: write them in external.url and external.query, or a metric of autoScaling in a KServe manifest")
	case s.ScaleMetric != service.MetricExternal && s.External != nil:
		r.Errorf(path+".external", "has no effect without scaleMetric: external")
	case s.External != nil:
		CheckExternal(r, path+".external", "url", *s.External)
	}
	if s.ScaleMetric.Measured() && s.ScaleTarget == nil && s.ScaleMetric.DefaultTarget() == 0 {
		r.Errorf(path+".scaleTarget", "is missing: write %s a replica is to have", what(s.ScaleMetric))
	}
	if s.ScaleTarget != nil {
		checkPercent(r, path+".scaleTarget", s.ScaleMetric, *s.ScaleTarget)
	}
	checkList(r, path+".metrics", s)
	if s.Ratio == nil {
		return
	}
	if !slices.Contains(service.Roles, s.Ratio.Component) {
		r.Errorf(path+".ratio.component", "unknown component %q: write one of %s", Clip(string(s.Ratio.Component)), Joined(service.Roles))
	} else if strings.HasSuffix(path, "."+string(s.Ratio.Component)+".scaling") || path == "spec.scaling" && s.Ratio.Component == service.RoleEngine {
		r.Errorf(path+".ratio.component", "%s is the component itself: name another one", s.Ratio.Component)
	}
	if n := s.Ratio.Replicas; !(n >= 1.0/maxRatio && n <= maxRatio) {
		r.Errorf(path+".ratio.replicas", "%v is not between %v and %d", n, 1.0/maxRatio, maxRatio)
	}
}

// what names the unit of a metric that has no default target.
func what(m service.ScaleMetric) string {
	if m == service.MetricTokens {
		return "how many tokens"
	}
	return "how much of the query's result"
}

// checkPercent refuses a target that no KV cache reaches.
func checkPercent(r *Report, path string, m service.ScaleMetric, target float64) {
	if m == service.MetricKV && target > 100 {
		r.Errorf(path, "%v percent of a KV cache are never used: write at most 100", target)
	}
}

func checkList(r *Report, path string, s service.Scaling) {
	if len(s.Metrics) > maxMetrics {
		r.Errorf(path, "%d metrics are more than %d", len(s.Metrics), maxMetrics)
		return
	}
	known := map[string]bool{service.MetricTarget{Metric: s.ScaleMetric, External: s.External}.Name(): true}
	for i, m := range s.Metrics {
		at := strict.Index(path, i)
		switch {
		case !slices.Contains(measurements, m.Metric):
			r.Errorf(at+".metric", "%q is not a measurement: write one of %s", Clip(string(m.Metric)), Joined(measurements))
			continue
		case m.Metric == service.MetricExternal && m.External == nil:
			r.Errorf(at+".external", "is missing: write url and query")
			continue
		case m.Metric != service.MetricExternal && m.External != nil:
			r.Errorf(at+".external", "has no effect without metric: external")
		case m.External != nil:
			CheckExternal(r, at+".external", "url", *m.External)
		}
		if known[m.Name()] {
			r.Errorf(at, "%s is scaled on already: remove one", Clip(m.Name()))
		}
		known[m.Name()] = true
		checkPercent(r, at+".target", m.Metric, m.Target)
		if m.Target == 0 && m.Metric.DefaultTarget() == 0 {
			r.Errorf(at+".target", "is missing: write %s a replica is to have", what(m.Metric))
		} else if !(m.Target > 0) || math.IsInf(m.Target, 0) {
			r.Errorf(at+".target", "%v is not a target above 0", m.Target)
		}
	}
}

// CheckExternal checks a query. A URL with a password would be shown with the
// manifest.
func CheckExternal(r *Report, path, server string, m service.ExternalMetric) {
	u, err := url.Parse(m.URL)
	switch {
	case m.URL == "":
		r.Refuse(path+"."+server, "is missing: write the URL of a Prometheus server, such as http://127.0.0.1:9090")
	case len(m.URL) > maxURLBytes:
		r.Refuse(path+"."+server, "is longer than %d bytes", maxURLBytes)
	case err == nil && u.User != nil:
		r.Refuse(path+"."+server, "must have no user and no password")
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		r.Refuse(path+"."+server, "%q is no URL of a Prometheus server, such as http://127.0.0.1:9090", Clip(m.URL))
	case u.RawQuery != "" || u.Fragment != "":
		r.Refuse(path+"."+server, "must end before the ? and the #: write the expression in query")
	}
	switch {
	case strings.TrimSpace(m.Query) == "":
		r.Refuse(path+".query", "is missing: write an expression with one result, such as sum(rate(requests_total[1m]))")
	case len(m.Query) > maxQueryBytes:
		r.Refuse(path+".query", "is longer than %d bytes", maxQueryBytes)
	}
}
