package scaling

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/kpa"
)

// Case is what a contestant is replayed on.
type Case struct {
	Pool   Pool
	Trace  *Trace
	Limits service.Limits
	Goal   time.Duration // the longest wait that is in time
}

// Replay replays a contestant.
func (c Case) Replay(of Contestant) (*Result, error) {
	scaler, err := of.New(c)
	if err != nil {
		return nil, err
	}
	return Run(c.Pool, c.Trace, scaler)
}

// Contestant makes the scalers of one policy.
type Contestant struct {
	Name    string
	Summary string
	// New makes a scaler for one replay.
	New func(c Case) (Scaler, error)
}

// Contestants are the policies to compare.
func Contestants() []Contestant {
	return []Contestant{
		{Name: "roundhouse", Summary: "the product's own decision", New: func(c Case) (Scaler, error) {
			return NewShipped(c.Limits, c.Trace.Begin), nil
		}},
		{Name: "knative", Summary: "Knative's KPA with its defaults, and the slots as containerConcurrency", New: func(c Case) (Scaler, error) {
			return NewKnative(kpa.Default(float64(c.Pool.Slots), c.Limits.Min, c.Limits.Max)), nil
		}},
		{Name: "average", Summary: "the mean of the last ten minutes, as KubeAI's autoscaler, with the target below", New: func(c Case) (Scaler, error) {
			return NewAverage(DefaultAverage(c.Limits.Target, c.Limits.Min, c.Limits.Max)), nil
		}},
		{Name: "hpa", Summary: "a HorizontalPodAutoscaler with Kubernetes' defaults over requests per replica; never below one", New: func(c Case) (Scaler, error) {
			return NewHPA(DefaultHPA(c.Limits.Target, c.Limits.Min, c.Limits.Max)), nil
		}},
		{Name: "clairvoyant", Summary: "knows the trace: as few requests over --slo as are possible, for few replica-seconds", New: func(c Case) (Scaler, error) {
			return NewClairvoyant(c.Pool, c.Trace, c.Goal)
		}},
	}
}

// knativeWith is Knative's KPA with another utilization, in percent, and another
// stable window.
func knativeWith(name string) (Contestant, error) {
	wrong := fmt.Errorf("policy %q: write knative/UTILIZATION/WINDOW with 1 to 100 percent and 6s to 1h, for example knative/50/30s", name)
	_, settings, _ := strings.Cut(name, "/")
	percent, span, _ := strings.Cut(settings, "/")
	utilization, err := strconv.ParseFloat(percent, 64)
	if err != nil || !(utilization >= 1 && utilization <= 100) {
		return Contestant{}, wrong
	}
	window, err := time.ParseDuration(span)
	if err != nil || window < 6*time.Second || window > time.Hour {
		return Contestant{}, wrong
	}
	return Contestant{Name: name, Summary: "Knative's KPA with these settings", New: func(c Case) (Scaler, error) {
		cfg := kpa.Default(float64(c.Pool.Slots), c.Limits.Min, c.Limits.Max)
		cfg.Utilization, cfg.StableWindow = utilization/100, window
		return NewKnative(cfg), nil
	}}, nil
}

// FindContestant finds one by its name; knative/50/30s is Knative's with other
// settings.
func FindContestant(name string) (Contestant, error) {
	if strings.HasPrefix(name, "knative/") {
		return knativeWith(name)
	}
	var names []string
	for _, c := range Contestants() {
		if c.Name == name {
			return c, nil
		}
		names = append(names, c.Name)
	}
	return Contestant{}, fmt.Errorf("there is no policy %q; there are %s", name, strings.Join(names, ", "))
}
