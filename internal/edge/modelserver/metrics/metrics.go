// Package metrics counts and measures, and shows it in Prometheus' text
// format. docs/design/libraries.md explains why it is no library.
//
// A Family is one metric, a Series one combination of its labels' values.
// Looking a series up costs a lock; keep the Series where that matters. A
// family holds at most MaxSeries, then all further combinations share one
// whose labels are Overflow: names that a client makes up cannot exhaust
// memory.
package metrics

import (
	"fmt"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// The bounds of a registry, in families and in series of each.
const (
	MaxFamilies = 1000
	MaxSeries   = 10_000
)

// Overflow is the value of every label of the series beyond MaxSeries.
const Overflow = "__other__"

// Kind is the type of a family.
type Kind string

// The kinds.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// buckets are the upper bounds of what histograms count, those of Prometheus'
// clients; they suit seconds.
var buckets = [...]float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10}

// Registry holds families. Its zero value is ready to use.
type Registry struct {
	mu struct {
		sync.RWMutex
		families []*Family // in the order they are shown
		included []Included
	}
}

// Included appends metrics from outside the registry, in the text format, except
// those whose names are taken.
type Included func(dst []byte, taken func(name string) bool) []byte

// Include shows another's metrics behind the registry's own.
func (r *Registry) Include(i Included) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.included = append(r.mu.included, i)
}

// Family is a metric.
type Family struct {
	names  []string // the name and its aliases
	help   string
	kind   Kind
	labels []string

	mu struct {
		sync.RWMutex
		series map[string]*Series // by the values of the labels
	}
}

// Series is one line of a counter or gauge, or one histogram.
type Series struct {
	labels string // a="b",c="d"
	value  atomic.Int64
	sum    atomic.Uint64 // of a histogram: the bits of a float64
	counts *[len(buckets) + 1]atomic.Uint64
}

// The names of metrics and labels.
var (
	namePattern  = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)
	labelPattern = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
)

// Desc describes a family.
type Desc struct {
	Name    string
	Aliases []string // other names that show the same values
	Help    string
	Kind    Kind
	Labels  []string
}

func (d Desc) validate() error {
	for _, name := range d.names() {
		if !namePattern.MatchString(name) {
			return fmt.Errorf("metric %q: a name is letters, digits, _ and :, not a digit first", name)
		}
	}
	for _, label := range d.Labels {
		if !labelPattern.MatchString(label) || label == "le" {
			return fmt.Errorf("metric %q: label %q: is letters, digits and _, not a digit first, and not le", d.Name, label)
		}
	}
	return nil
}

func (d Desc) names() []string { return append([]string{d.Name}, d.Aliases...) }

// Register makes a family, or finds the one that was registered with the same
// name, kind and labels. Another use of a name is an error.
func (r *Registry) Register(d Desc) (*Family, error) {
	if err := d.validate(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.mu.families {
		for _, name := range d.names() {
			if !slices.Contains(f.names, name) {
				continue
			}
			if f.kind != d.Kind || !slices.Equal(f.labels, d.Labels) {
				return nil, fmt.Errorf("metric %q: is a %s with the labels %v already", name, f.kind, f.labels)
			}
			return f, nil
		}
	}
	if len(r.mu.families) == MaxFamilies {
		return nil, fmt.Errorf("metric %q: there are %d metrics already, the limit", d.Name, MaxFamilies)
	}
	f := &Family{names: d.names(), help: d.Help, kind: d.Kind, labels: slices.Clone(d.Labels)}
	f.mu.series = map[string]*Series{}
	r.mu.families = append(r.mu.families, f)
	return f, nil
}

// With is the series of the labels' values, one for each.
func (f *Family) With(values ...string) *Series {
	key := strings.Join(values, "\xff")
	f.mu.RLock()
	s := f.mu.series[key]
	f.mu.RUnlock()
	if s != nil {
		return s
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.mu.series[key]; s != nil {
		return s
	}
	if len(f.mu.series) >= MaxSeries {
		values = slices.Repeat([]string{Overflow}, len(f.labels))
		key = strings.Join(values, "\xff")
		if s := f.mu.series[key]; s != nil {
			return s
		}
	}
	s = &Series{labels: f.quote(values)}
	if f.kind == Histogram {
		s.counts = new([len(buckets) + 1]atomic.Uint64)
	}
	f.mu.series[key] = s
	return s
}

// quote writes labels with their values; a value that is missing is "".
func (f *Family) quote(values []string) string {
	var b strings.Builder
	for i, label := range f.labels {
		if i > 0 {
			b.WriteByte(',')
		}
		value := ""
		if i < len(values) {
			value = values[i]
		}
		_, _ = b.WriteString(label + `="` + escape.Replace(strings.ToValidUTF8(value, "\ufffd")) + `"`)
	}
	return b.String()
}

// escape is how the text format quotes.
var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// Add adds n to a counter or gauge.
func (s *Series) Add(n int64) { s.value.Add(n) }

// Value is what a counter or gauge stands at, or how often a histogram was
// observed.
func (s *Series) Value() int64 { return s.value.Load() }

// Observe counts a value in a histogram; NaN is not counted.
func (s *Series) Observe(x float64) {
	if s.counts == nil || math.IsNaN(x) {
		return
	}
	i := 0
	for i < len(buckets) && x > buckets[i] {
		i++
	}
	s.counts[i].Add(1)
	s.value.Add(1)
	for {
		old := s.sum.Load()
		if s.sum.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+x)) {
			return
		}
	}
}

// ServeHTTP answers with the metrics.
func (r *Registry) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(r.Append(nil)) // a scraper that left needs no answer
}
