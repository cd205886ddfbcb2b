package service

import (
	"cmp"
	"fmt"
	"reflect"
	"time"

	"roundhouse.dev/roundhouse/internal/core/cron"
)

// ScaleMetric is what a scale target counts.
type ScaleMetric string

// The scale metrics: those of KServe and OME, then those that engines tell of
// themselves, then what a Prometheus server answers.
const (
	MetricConcurrency ScaleMetric = "concurrency" // requests in flight per replica
	MetricRPS         ScaleMetric = "rps"         // requests per second per replica
	MetricCPU         ScaleMetric = "cpu"         // percent: of the request on a cluster, of the limit on one machine
	MetricMemory      ScaleMetric = "memory"      // percent: likewise
	MetricQueue       ScaleMetric = "queue"       // requests in the engine's own queue per replica
	MetricKV          ScaleMetric = "kv"          // percent of the engine's KV cache
	MetricTokens      ScaleMetric = "tokens"      // tokens in the engine's KV cache per replica
	MetricExternal    ScaleMetric = "external"    // the answer to a query, per replica
)

// ScaleMetrics are all scale metrics.
var ScaleMetrics = []ScaleMetric{MetricConcurrency, MetricRPS, MetricCPU, MetricMemory, MetricQueue, MetricKV, MetricTokens, MetricExternal}

// Resource reports whether m is what replicas use of a resource.
func (m ScaleMetric) Resource() bool { return m == MetricCPU || m == MetricMemory }

// Engine reports whether m is read from the engine's own metrics.
func (m ScaleMetric) Engine() bool { return m == MetricQueue || m == MetricKV || m == MetricTokens }

// Measured reports whether m is a measurement, rather than a count of requests.
func (m ScaleMetric) Measured() bool { return m.Resource() || m.Engine() || m == MetricExternal }

// Percent reports whether m is a percentage.
func (m ScaleMetric) Percent() bool { return m.Resource() || m == MetricKV }

// DefaultTarget is the target of m where none is stated; 0: one must be.
func (m ScaleMetric) DefaultTarget() float64 {
	switch {
	case m.Percent():
		return DefaultUtilization
	case m == MetricQueue:
		return DefaultQueue
	case m == MetricTokens, m == MetricExternal:
		return 0
	}
	return DefaultScaleTarget
}

// ExternalMetric is a query that a Prometheus server answers.
type ExternalMetric struct {
	// URL is the server's, without /api/v1/query.
	URL   string `json:"url"`
	Query string `json:"query"`
}

// MetricTarget is a metric, and what a replica is to have of it.
type MetricTarget struct {
	Metric   ScaleMetric     `json:"metric"`
	Target   float64         `json:"target"`
	External *ExternalMetric `json:"external,omitempty"`
}

// Name names the metric in messages, and among the metrics of a component.
func (m MetricTarget) Name() string {
	if m.External != nil {
		return string(m.Metric) + " " + m.External.Query
	}
	return string(m.Metric)
}

// Scaling bounds and steers a component's replica count. Nil fields are
// unset: the runtime's value, then the default of Settled, takes their place.
type Scaling struct {
	MinReplicas *int `json:"minReplicas,omitempty"`
	MaxReplicas *int `json:"maxReplicas,omitempty"`
	// ScaleTarget is the wanted value of ScaleMetric per replica.
	ScaleTarget *float64    `json:"scaleTarget,omitempty"`
	ScaleMetric ScaleMetric `json:"scaleMetric,omitempty"`
	// External is what ScaleMetric external reads.
	External *ExternalMetric `json:"external,omitempty"`
	// Metrics are scaled on besides ScaleMetric: the highest count wins.
	Metrics []MetricTarget `json:"metrics,omitempty"`
	// Ratio is how many replicas there are for each of another component.
	Ratio *Ratio `json:"ratio,omitempty"`
	// MaxConcurrency limits requests in flight per replica; nil or 0 is no limit.
	MaxConcurrency *int `json:"maxConcurrency,omitempty"`
	// ScaleToZeroAfter is how long a service stays idle before it stops.
	ScaleToZeroAfter *time.Duration `json:"scaleToZeroAfter,omitempty"`
	// StartupTimeout is the budget from start to ready of one replica.
	StartupTimeout *time.Duration `json:"startupTimeout,omitempty"`
	// AnswerTimeout is how long a replica may take to begin an answer; nil or 0
	// leaves it to the gateway.
	AnswerTimeout *time.Duration `json:"answerTimeout,omitempty"`
	// Queue bounds the requests that wait for a replica; nil leaves it to the
	// gateway.
	Queue *QueueBounds `json:"queue,omitempty"`
	// Standby is what becomes of the last replica when the component is idle,
	// StandbyFor how long it sleeps before it stops.
	Standby    StandbyPolicy  `json:"standby,omitempty"`
	StandbyFor *time.Duration `json:"standbyFor,omitempty"`
	// Schedule are times at which other bounds hold.
	Schedule []ScheduleWindow `json:"schedule,omitempty"`
	// Prewarm has a replica started ahead of the usual return of requests.
	Prewarm Prewarm `json:"prewarm,omitempty"`
	// Preset is who decides the count, and Knative are the settings of
	// PresetKnative.
	Preset  Preset   `json:"preset,omitempty"`
	Knative *Knative `json:"knative,omitempty"`
}

// QueueBounds bound the requests that wait for a replica, and for how long each
// does; what is 0 is left to the gateway.
type QueueBounds struct {
	MaxRequests int           `json:"maxRequests,omitempty"`
	MaxBytes    int64         `json:"maxBytes,omitempty"`
	MaxWait     time.Duration `json:"maxWait,omitempty"`
	// Fairness is what the fairness ids of a priority share; "" is requests.
	Fairness Fairness `json:"fairness,omitempty"`
}

// Fairness is what callers share equally while requests wait.
type Fairness string

// The values of Fairness.
const (
	FairRequests Fairness = "requests"
	FairTokens   Fairness = "tokens"
)

// Fairnesses lists them.
var Fairnesses = []Fairness{FairRequests, FairTokens}

// Prewarm is whether a replica is started ahead of requests.
type Prewarm string

// The values of Prewarm.
const (
	PrewarmOff  Prewarm = "off"
	PrewarmAuto Prewarm = "auto"
)

// ScheduleWindow gives a count other bounds from each match of one cron expression
// to the next match of another. Of several open ones the largest minimum and the
// largest maximum hold; what one does not state is the component's own.
type ScheduleWindow struct {
	Name string `json:"name,omitempty"`
	// Start and End are cron expressions of five fields.
	Start string `json:"start"`
	End   string `json:"end"`
	// TimeZone is an IANA time zone; empty is UTC.
	TimeZone    string `json:"timeZone,omitempty"`
	MinReplicas *int   `json:"minReplicas,omitempty"`
	MaxReplicas *int   `json:"maxReplicas,omitempty"`
}

// Window parses the window's times.
func (s ScheduleWindow) Window() (cron.Window, error) {
	start, err := cron.Parse(s.Start)
	if err != nil {
		return cron.Window{}, fmt.Errorf("start %w", err)
	}
	end, err := cron.Parse(s.End)
	if err != nil {
		return cron.Window{}, fmt.Errorf("end %w", err)
	}
	zone, err := cron.Zone(s.TimeZone)
	if err != nil {
		return cron.Window{}, fmt.Errorf("timeZone %w", err)
	}
	return cron.NewWindow(start, end, zone), nil
}

// Defaults of Settled. ScaleToZeroAfter and StartupTimeout follow ModelZ's
// figures of 3 and 10 minutes, the former lengthened to the quickstart's 5.
const (
	DefaultScaleTarget      = 10
	DefaultUtilization      = 80 // percent, where a resource or the KV cache is the metric; KServe's
	DefaultQueue            = 2  // requests in an engine's own queue
	DefaultScaleToZeroAfter = 5 * time.Minute
	DefaultStartupTimeout   = 10 * time.Minute
	DefaultStandbyFor       = time.Hour
)

// Over lays s over base: what s states wins, field by field.
func (s Scaling) Over(base Scaling) Scaling {
	out := base
	out.MinReplicas = cmp.Or(s.MinReplicas, base.MinReplicas)
	out.MaxReplicas = cmp.Or(s.MaxReplicas, base.MaxReplicas)
	out.ScaleTarget = cmp.Or(s.ScaleTarget, base.ScaleTarget)
	out.ScaleMetric = cmp.Or(s.ScaleMetric, base.ScaleMetric)
	out.External = cmp.Or(s.External, base.External)
	out.Ratio = cmp.Or(s.Ratio, base.Ratio)
	out.MaxConcurrency = cmp.Or(s.MaxConcurrency, base.MaxConcurrency)
	out.ScaleToZeroAfter = cmp.Or(s.ScaleToZeroAfter, base.ScaleToZeroAfter)
	out.StartupTimeout = cmp.Or(s.StartupTimeout, base.StartupTimeout)
	out.AnswerTimeout = cmp.Or(s.AnswerTimeout, base.AnswerTimeout)
	out.Queue = cmp.Or(s.Queue, base.Queue)
	out.Standby = cmp.Or(s.Standby, base.Standby)
	out.StandbyFor = cmp.Or(s.StandbyFor, base.StandbyFor)
	out.Prewarm = cmp.Or(s.Prewarm, base.Prewarm)
	out.Preset = cmp.Or(s.Preset, base.Preset)
	out.Knative = cmp.Or(s.Knative, base.Knative)
	if s.Metrics != nil {
		out.Metrics = s.Metrics
	}
	if s.Schedule != nil {
		out.Schedule = s.Schedule
	}
	return out
}

// Limits is a Scaling with every field settled.
type Limits struct {
	Min, Max         int // 0 <= Min <= Max, Max >= 1
	Target           float64
	Metric           ScaleMetric
	External         *ExternalMetric `json:",omitempty"` // of Metric external
	Metrics          []MetricTarget  `json:",omitempty"` // besides Metric
	Ratio            *Ratio          `json:",omitempty"`
	MaxConcurrency   int             // 0: no limit
	ScaleToZeroAfter time.Duration
	StartupTimeout   time.Duration
	// Standby is "" for StandbyNever, and StandbyFor then 0.
	Standby       StandbyPolicy    `json:",omitempty"`
	StandbyFor    time.Duration    `json:",omitempty"`
	AnswerTimeout time.Duration    `json:",omitempty"` // 0: the gateway's
	Queue         QueueBounds      `json:",omitzero"`
	Schedule      []ScheduleWindow `json:",omitempty"`
	Prewarm       bool             `json:",omitempty"`
	Knative       *Knative         `json:",omitempty"` // nil: Roundhouse's own autoscaler decides
}

// Ratio is how many replicas of a component there are to be for so many of
// another one of its service, at least.
type Ratio struct {
	Component Role    `json:"component"`
	Replicas  float64 `json:"replicas"` // for each replica of Component
}

// Equal reports whether l and o are the same.
func (l Limits) Equal(o Limits) bool { return reflect.DeepEqual(l, o) }

// ByResource reports whether l scale by what replicas use of a resource and by
// nothing else. In a cluster a HorizontalPodAutoscaler counts such replicas.
func (l *Limits) ByResource() bool { return l.Metric.Resource() && len(l.Metrics) == 0 }

// Measured are the metrics of l that are measurements, not counts of requests.
func (l *Limits) Measured() []MetricTarget {
	var out []MetricTarget
	if l.Metric.Measured() {
		out = append(out, MetricTarget{Metric: l.Metric, Target: l.Target, External: l.External})
	}
	for _, m := range l.Metrics {
		if m.Metric.Measured() {
			out = append(out, m)
		}
	}
	return out
}

// Settled fills what is unset: min 1, max max(min, 1), target 10 concurrent
// requests or 80 % of a resource, no concurrency limit, 5 minutes to zero, 10 minutes to start.
// A stated max of 0 means no stated bound above min, as in Knative.
func (s Scaling) Settled() Limits {
	l := Limits{Min: 1, Target: DefaultScaleTarget, Metric: cmp.Or(s.ScaleMetric, MetricConcurrency),
		ScaleToZeroAfter: DefaultScaleToZeroAfter, StartupTimeout: DefaultStartupTimeout}
	if s.MinReplicas != nil {
		l.Min = max(0, *s.MinReplicas)
	}
	if s.MaxReplicas != nil {
		l.Max = *s.MaxReplicas
	}
	l.Max = max(l.Max, l.Min, 1)
	if t := l.Metric.DefaultTarget(); t > 0 {
		l.Target = t
	}
	if l.Metric == MetricExternal {
		l.External = s.External
	}
	l.Metrics, l.Ratio = s.Metrics, s.Ratio
	if s.ScaleTarget != nil && *s.ScaleTarget > 0 {
		l.Target = *s.ScaleTarget
	}
	if s.MaxConcurrency != nil {
		l.MaxConcurrency = max(0, *s.MaxConcurrency)
	}
	if s.ScaleToZeroAfter != nil {
		l.ScaleToZeroAfter = *s.ScaleToZeroAfter
	}
	if s.StartupTimeout != nil && *s.StartupTimeout > 0 {
		l.StartupTimeout = *s.StartupTimeout
	}
	if s.AnswerTimeout != nil {
		l.AnswerTimeout = max(0, *s.AnswerTimeout)
	}
	if s.Queue != nil {
		l.Queue = *s.Queue
	}
	if s.Standby != "" && s.Standby != StandbyNever {
		l.Standby, l.StandbyFor = s.Standby, DefaultStandbyFor
		if s.StandbyFor != nil && *s.StandbyFor > 0 {
			l.StandbyFor = *s.StandbyFor
		}
	}
	l.Schedule, l.Prewarm = s.Schedule, s.Prewarm == PrewarmAuto
	if s.Preset == PresetKnative {
		l.Target, l.Prewarm, l.Knative = s.knativeTotal(), false, cmp.Or(s.Knative, &Knative{})
	}
	return l
}

// Preset names who decides a component's count.
type Preset string

// The presets.
const (
	PresetOurs    Preset = "ours"    // Roundhouse's own autoscaler; the default
	PresetKnative Preset = "knative" // Knative's autoscaler (KPA), as its source has it
)

// Presets are all presets.
var Presets = []Preset{PresetOurs, PresetKnative}

// Bounds of Knative's settings.
const (
	MinKnativeWindow = 6 * time.Second
	MaxKnativeWindow = time.Hour

	// MaxKnativeScale bounds Knative's initial and activation scale.
	MaxKnativeScale = 1 << 20
)

// Knative are the settings of PresetKnative. Nil fields have Knative's defaults.
type Knative struct {
	TargetUtilization *float64       `json:"targetUtilizationPercentage,omitempty"` // of the target
	Window            *time.Duration `json:"window,omitempty"`
	PanicWindow       *float64       `json:"panicWindowPercentage,omitempty"`    // of Window
	PanicThreshold    *float64       `json:"panicThresholdPercentage,omitempty"` // of the ready replicas
	ScaleDownDelay    *time.Duration `json:"scaleDownDelay,omitempty"`
	// Retention is for how long the last replica stays after zero was decided.
	Retention       *time.Duration `json:"scaleToZeroPodRetentionPeriod,omitempty"`
	InitialScale    *int           `json:"initialScale,omitempty"`
	ActivationScale *int           `json:"activationScale,omitempty"`
	BurstCapacity   *float64       `json:"targetBurstCapacity,omitempty"`
}

// Knative's defaults for what a replica takes.
const (
	defaultKnativeConcurrency = 100
	defaultKnativeRPS         = 200
)

// knativeTotal is what a replica takes, as Knative has it.
func (s Scaling) knativeTotal() float64 {
	total, bound := float64(defaultKnativeConcurrency), 0.0
	if s.MaxConcurrency != nil && *s.MaxConcurrency > 0 && s.ScaleMetric != MetricRPS {
		bound = float64(*s.MaxConcurrency)
		total = bound
	}
	if s.ScaleMetric == MetricRPS {
		total = defaultKnativeRPS
	}
	if s.ScaleTarget != nil && *s.ScaleTarget > 0 {
		if total = *s.ScaleTarget; bound > 0 {
			total = min(total, bound)
		}
	}
	return total
}
