package service

import "time"

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
