package autoscale

import (
	"fmt"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Standby is what decides between asleep and gone for a role whose count is zero.
type Standby struct {
	// Policy and For are the component's; Levels are those of its engine that the
	// policy allows, by depth.
	Policy service.StandbyPolicy
	For    time.Duration
	Levels []int
	// Gone forbids sleep: the service is stopped, or unloaded by a request.
	Gone bool
	// Level is the one at which a replica sleeps now, since Since; 0 for none.
	Level int
	Since time.Time
	// Free and Total are the machine's main memory in bytes; 0 where not known.
	Free, Total int64
}

// StandbyDecision is at which level the last replica sleeps; 0: it stops.
type StandbyDecision struct {
	Level int
	Again time.Duration // when to decide again; 0 for at a change
	Why   string
}

const (
	// pressure is the part of main memory that must be free for replicas to sleep.
	pressure = 0.1
	// standbyLook is how often the memory is looked at while a replica sleeps.
	standbyLook = 10 * time.Second
)

// DecideStandby decides between asleep and gone. A replica falls asleep at the first
// level; with the policy auto, and too little memory, at the deepest, which takes
// least. One that sleeps stops when there is too little memory, or after For.
func DecideStandby(in Standby, now time.Time) StandbyDecision {
	if in.Gone || in.Policy == "" || in.Policy == service.StandbyNever || len(in.Levels) == 0 {
		return StandbyDecision{}
	}
	short := in.Free > 0 && float64(in.Free) < pressure*float64(in.Total)
	memory := fmt.Sprintf("%d of %d MiB of main memory are free", in.Free>>20, in.Total>>20)
	if in.Level > 0 {
		switch left := in.For - now.Sub(in.Since); {
		case short:
			return StandbyDecision{Why: "stopped: " + memory}
		case left <= 0:
			return StandbyDecision{Why: fmt.Sprintf("stopped after %s asleep", in.For)}
		default:
			return StandbyDecision{Level: in.Level, Again: min(left, standbyLook), Why: fmt.Sprintf("asleep at level %d", in.Level)}
		}
	}
	deepest := in.Levels[len(in.Levels)-1]
	switch {
	case !short:
		return StandbyDecision{Level: in.Levels[0], Again: standbyLook, Why: fmt.Sprintf("asleep at level %d", in.Levels[0])}
	case in.Policy == service.StandbyAuto && deepest != in.Levels[0]:
		return StandbyDecision{Level: deepest, Again: standbyLook, Why: fmt.Sprintf("asleep at level %d: %s", deepest, memory)}
	}
	return StandbyDecision{Why: "stopped rather than asleep: " + memory}
}
