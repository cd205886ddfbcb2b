package worker

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"context"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
)

// Bounds of the metrics that one worker's code keeps with prometheus_client, and
// of what is kept for all workers that have ended.
const (
	maxCollectedSamples = 10_000
	maxCollectedBytes   = 2 << 20 // of names, labels and descriptions
	maxCollectedLabels  = 64      // of a sample
)

// wireSample is ["my_calls_total", [["kind","a"]], 3.0].
type wireSample struct {
	name   string
	labels [][2]string
	value  float64
}

// UnmarshalJSON reads an array. Values that JSON does not have are strings.
func (s *wireSample) UnmarshalJSON(text []byte) error {
	var value json.RawMessage
	fields := []any{&s.name, &s.labels, &value}
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	if len(fields) != 3 {
		return errors.New("a sample is a name, labels and a value")
	}
	var err error
	s.value, err = strconv.ParseFloat(string(bytes.Trim(value, `"`)), 64)
	return err
}

// collected holds the metrics that models' code keeps with prometheus_client, of
// all workers. Counts of ended workers are kept, so that counters never fall.
type collected struct {
	log *slog.Logger

	mu struct {
		sync.Mutex
		workers map[*worker]*ledger
		ended   *ledger
		updates uint64
		refused bool // that something was has been said
	}
}

// ledger is a set of metrics.
type ledger struct {
	pid      int
	families []*family // in order of appearance
	byName   map[string]*family
	samples  int
	bytes    int
}

// family is a metric.
type family struct {
	name, help, kind, mode string
	samples                []*sample
	byLabels               map[string]*sample // by name and labels
}

type sample struct {
	name, labels string
	value        float64
	changed      uint64 // the update that changed it
}

func newCollected(log *slog.Logger) *collected {
	c := &collected{log: log}
	c.mu.workers, c.mu.ended = map[*worker]*ledger{}, &ledger{}
	return c
}

var (
	familyPattern = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)
	labelPattern  = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
	familyKinds   = []string{"counter", "gauge", "histogram", "summary", "untyped"}
)

// update records what has changed in a worker. It ignores malformed values and
// values beyond the bounds.
func (c *collected) update(w *worker, pid int, m *message) {
	if c == nil || !m.Whole && len(m.Collected) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.updates++
	l := c.mu.workers[w]
	if l == nil || m.Whole {
		l = &ledger{pid: pid}
		c.mu.workers[w] = l
	}
	complete := true
	for i := range m.Collected {
		wire := &m.Collected[i]
		f := l.family(wire.Name, wire.Help, wire.Type, wire.Mode)
		for _, s := range wire.Samples {
			labels, ok := quoteLabels(s.labels)
			if f == nil || !ok || !f.has(s.name) {
				complete = false
				continue
			}
			to := l.sample(f, s.name, labels)
			if to == nil {
				complete = false
				continue
			}
			if to.value != s.value {
				to.value, to.changed = s.value, c.mu.updates
			}
		}
	}
	if !complete && !c.mu.refused {
		c.mu.refused = true
		c.log.Warn("metrics of models' code are left out: they are malformed, or too many", "max_samples", maxCollectedSamples, "max_bytes", maxCollectedBytes)
	}
}

// end keeps the counts of a worker that ended and drops its gauges.
func (c *collected) end(w *worker) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.mu.workers[w]; l != nil {
		delete(c.mu.workers, w)
		c.mu.ended.add(l, func(f *family) bool { return f.mode == modeSum && f.kind != "gauge" })
	}
}

// The modes in which the values of several workers become one, as in
// prometheus_client. In any other mode each worker has a sample of its own.
const (
	modeSum    = "sum"
	modeMin    = "min"
	modeMax    = "max"
	modeRecent = "mostrecent"
)

// add adds the metrics of another ledger whose names wanted accepts.
func (l *ledger) add(o *ledger, wanted func(*family) bool) {
	for _, from := range o.families {
		if !wanted(from) {
			continue
		}
		f := l.family(from.name, from.help, from.kind, from.mode)
		if f == nil {
			continue
		}
		for _, s := range from.samples {
			labels := s.labels
			if !slices.Contains([]string{modeSum, modeMin, modeMax, modeRecent}, f.mode) && !strings.Contains(","+labels, `,pid="`) {
				labels += separator(labels) + `pid="` + strconv.Itoa(o.pid) + `"`
			}
			_, there := f.byLabels[s.name+"{"+labels]
			if to := l.sample(f, s.name, labels); to != nil {
				to.merge(s, f.mode, there)
			}
		}
	}
}

// merge combines s with o by the mode. there is whether s has a value already.
func (s *sample) merge(o *sample, mode string, there bool) {
	switch {
	case there && mode == modeSum:
		s.value += o.value
	case there && mode == modeMin:
		s.value = min(s.value, o.value)
	case there && mode == modeMax:
		s.value = max(s.value, o.value)
	case !there || o.changed >= s.changed:
		s.value = o.value
	}
	s.changed = max(s.changed, o.changed)
}

// family finds or makes a metric. It returns nil if the name or kind is
// invalid, if the name has another kind already, or beyond the bounds.
func (l *ledger) family(name, help, kind, mode string) *family {
	if f := l.byName[name]; f != nil {
		if f.kind != kind {
			return nil
		}
		return f
	}
	if len(name) > maxName || !familyPattern.MatchString(name) || !slices.Contains(familyKinds, kind) {
		return nil
	}
	f := &family{name: name, help: excerpt.Of(help, maxMessage), kind: kind, mode: mode, byLabels: map[string]*sample{}}
	if l.bytes += len(name) + len(f.help); l.bytes > maxCollectedBytes || l.samples >= maxCollectedSamples {
		return nil
	}
	if l.byName == nil {
		l.byName = map[string]*family{}
	}
	l.byName[name] = f
	l.families = append(l.families, f)
	return f
}

// sample finds or makes a sample. It returns nil when there are too many.
func (l *ledger) sample(f *family, name, labels string) *sample {
	key := name + "{" + labels
	s := f.byLabels[key]
	if s != nil {
		return s
	}
	if l.samples++; l.samples > maxCollectedSamples {
		return nil
	}
	if l.bytes += len(key); l.bytes > maxCollectedBytes {
		return nil
	}
	s = &sample{name: name, labels: labels}
	f.byLabels[key] = s
	f.samples = append(f.samples, s)
	return s
}

// has reports whether a sample of this name may belong to the metric.
func (f *family) has(name string) bool {
	suffix, ok := strings.CutPrefix(name, f.name)
	switch f.kind {
	case "histogram":
		return ok && (suffix == "_bucket" || suffix == "_count" || suffix == "_sum")
	case "summary":
		return ok && (suffix == "" || suffix == "_count" || suffix == "_sum")
	}
	return ok && suffix == ""
}

func separator(labels string) string {
	if labels == "" {
		return ""
	}
	return ","
}

var labelEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// quoteLabels writes labels in the text format. It returns false if there are too
// many, or if a name is invalid or repeated.
func quoteLabels(labels [][2]string) (string, bool) {
	if len(labels) > maxCollectedLabels {
		return "", false
	}
	var b strings.Builder
	for i, l := range labels {
		if len(l[0]) > maxName || !labelPattern.MatchString(l[0]) || slices.ContainsFunc(labels[:i], func(o [2]string) bool { return o[0] == l[0] }) {
			return "", false
		}
		_, _ = b.WriteString(separator(b.String()) + l[0] + `="` + labelEscapes.Replace(strings.ToValidUTF8(l[1], "\ufffd")) + `"`)
	}
	return b.String(), true
}

// AppendMetrics appends, in Prometheus' text format, what models' code keeps with
// prometheus_client. It omits metrics whose names are taken.
func (e *Engine) AppendMetrics(dst []byte, taken func(name string) bool) []byte {
	c := e.report.collected
	all := &ledger{}
	everything := func(*family) bool { return true }
	c.mu.Lock()
	all.add(c.mu.ended, everything)
	var workers []*ledger
	for _, l := range c.mu.workers {
		workers = append(workers, l)
	}
	slices.SortFunc(workers, func(a, b *ledger) int { return cmp.Compare(a.pid, b.pid) })
	for _, l := range workers {
		all.add(l, everything)
	}
	c.mu.Unlock()
	own := map[string]bool{}
	for _, f := range all.families {
		names := []string{f.name}
		if f.kind == "histogram" || f.kind == "summary" {
			names = append(names, f.name+"_bucket", f.name+"_count", f.name+"_sum")
		}
		if slices.ContainsFunc(names, func(n string) bool { return own[n] || taken(n) }) {
			continue
		}
		for _, name := range names {
			own[name] = true
		}
		dst = f.appendText(dst)
	}
	return dst
}

func (f *family) appendText(dst []byte) []byte {
	if len(f.samples) == 0 {
		return dst
	}
	help := strings.NewReplacer(`\`, `\\`, "\n", `\n`).Replace(f.help)
	dst = append(dst, "# HELP "+f.name+" "+help+"\n# TYPE "+f.name+" "+f.kind+"\n"...)
	for _, s := range f.samples {
		dst = append(dst, s.name...)
		if s.labels != "" {
			dst = append(append(append(dst, '{'), s.labels...), '}')
		}
		dst = append(dst, ' ')
		dst = append(strconv.AppendFloat(dst, s.value, 'g', -1, 64), '\n')
	}
	return dst
}

// Metrics receives what models' code measures with mlserver.register and
// mlserver.log. Model and version are empty where they are unknown.
// Its methods are called by several goroutines at once and must not block.
type Metrics interface {
	// Register names a metric before its first value.
	Register(model, version, name, description string)
	// Observe takes one value of a metric, registered or not.
	Observe(model, version, name string, value float64)
}

// report passes on the metrics and log records that workers push.
type report struct {
	to        Metrics
	collected *collected
}

// maxName bounds the name of a metric, in bytes.
const maxName = 256

// metrics passes on a metrics message. It ignores malformed values.
func (r report) metrics(p *placement, m *message) {
	if r.to == nil {
		return
	}
	var model, version string
	if p != nil {
		model, version = p.model.settings.Name, p.model.settings.Version
	}
	for _, metric := range m.Registered {
		if metric.Name != "" && len(metric.Name) <= maxName {
			r.to.Register(model, version, metric.Name, excerpt.Of(metric.Description, maxMessage))
		}
	}
	for _, o := range m.Observations {
		var name string
		var value float64
		if len(o) == 2 && json.Unmarshal(o[0], &name) == nil && json.Unmarshal(o[1], &value) == nil && name != "" && len(name) <= maxName {
			r.to.Observe(model, version, name, value)
		}
	}
}

var levels = map[string]slog.Level{"DEBUG": slog.LevelDebug, "INFO": slog.LevelInfo, "WARNING": slog.LevelWarn,
	"ERROR": slog.LevelError, "CRITICAL": slog.LevelError + 4}

// record logs a record of a model's code.
func (r report) record(log *slog.Logger, p *placement, record *wireRecord) {
	attrs := []slog.Attr{slog.String("logger", excerpt.Of(record.Logger, maxName))}
	if p != nil {
		attrs = append(attrs, slog.String("model", p.model.settings.Name))
	}
	if record.Traceback != "" {
		attrs = append(attrs, slog.String("traceback", excerpt.Of(record.Traceback, maxTraceback)))
	}
	log.LogAttrs(context.Background(), levels[record.Level], excerpt.Of(record.Message, maxMessage), attrs...)
}
