package scaling

import (
	"time"

	"roundhouse.dev/roundhouse/internal/decide/kpa"
)

// Knative is Knative's autoscaler (KPA) with an activator that is always told
// what waits.
type Knative struct {
	cfg   kpa.Config
	state kpa.State
}

// NewKnative is an autoscaler that has seen nothing.
func NewKnative(cfg kpa.Config) *Knative { return &Knative{cfg: cfg} }

// Reacts implements Scaler: a first request is told at once to an autoscaler
// that has decided on none.
func (k *Knative) Reacts(e Event) (after time.Duration, reacts bool) {
	return 0, e == Idle && k.state.Idle()
}

// Step implements Scaler.
func (k *Knative) Step(v *View) Decision {
	var d kpa.Decision
	k.state, d = k.state.Step(k.cfg, kpa.View{Now: v.Now, Load: v.Queued + v.Running, Present: len(v.Replicas), Ready: v.Ready(),
		LoadSeconds: v.LoadSeconds, Arrived: v.Arrived})
	return Decision{Count: d.Count, Again: d.Again}
}
