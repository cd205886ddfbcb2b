package autoscale

import (
	"fmt"
	"strings"
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
	Swap        Swap
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

// Swap is what is known of a machine's swap, and of the replica that may go there.
type Swap struct {
	Free, Total int64 // bytes
	// Why says why processes cannot be moved there; "" where they can.
	Why string
	// Holds and GPUs are the main memory of the replica and that of GPUs, in bytes;
	// 0 where they are not known.
	Holds, GPUs int64
}

// lacks is why the replica cannot be suspended; "" where it can.
func (s Swap) lacks() string {
	switch {
	case s.Why != "":
		return s.Why
	case s.GPUs > 0:
		return fmt.Sprintf("it uses %d MiB of a GPU, which a stopped process keeps", s.GPUs>>20)
	case float64(s.Free-s.Holds) < pressure*float64(s.Total):
		return fmt.Sprintf("%d of %d MiB of swap are free, and it uses %d MiB", s.Free>>20, s.Total>>20, s.Holds>>20)
	}
	return ""
}

// DecideStandby decides between asleep and gone. A replica falls asleep at the first
// level of its engine; with the policy auto, and too little memory, at the deepest,
// which takes least. Without such a level it is suspended, if it fits into the swap.
// One that sleeps stops when there is too little memory, or after For; one that is
// suspended holds none, and stops when there is too little swap.
func DecideStandby(in Standby, now time.Time) StandbyDecision {
	if in.Gone || in.Policy == "" || in.Policy == service.StandbyNever || len(in.Levels) == 0 {
		return StandbyDecision{}
	}
	short := in.Free > 0 && float64(in.Free) < pressure*float64(in.Total)
	memory := fmt.Sprintf("%d of %d MiB of main memory are free", in.Free>>20, in.Total>>20)
	if in.Level > 0 {
		return in.sleepOn(short, memory, now)
	}
	engine, suspends := in.Levels, false
	if last := len(in.Levels) - 1; in.Levels[last] == service.LevelSuspended {
		engine, suspends = in.Levels[:last], true
	}
	sleep := func(level int, why string) StandbyDecision {
		return StandbyDecision{Level: level, Again: standbyLook, Why: service.AsleepAt(level) + why}
	}
	why := ""
	if short {
		why = ": " + memory
	}
	switch {
	case len(engine) > 0 && !short:
		return sleep(engine[0], "")
	case len(engine) > 1 && in.Policy == service.StandbyAuto:
		return sleep(engine[len(engine)-1], why)
	case suspends && in.Swap.lacks() == "":
		return sleep(service.LevelSuspended, why)
	case suspends:
		why += "; not suspended: " + in.Swap.lacks()
	}
	return StandbyDecision{Why: "stopped rather than asleep: " + strings.TrimLeft(why, ":; ")}
}

// sleepOn decides whether a replica that sleeps goes on. short: there is too little
// main memory, of which memory tells.
func (in Standby) sleepOn(short bool, memory string, now time.Time) StandbyDecision {
	full := in.Swap
	full.Holds = 0 // it is there
	switch left := in.For - now.Sub(in.Since); {
	case in.Level == service.LevelSuspended && full.lacks() != "":
		return StandbyDecision{Why: "stopped: " + full.lacks()}
	case in.Level != service.LevelSuspended && short:
		return StandbyDecision{Why: "stopped: " + memory}
	case left <= 0:
		return StandbyDecision{Why: fmt.Sprintf("stopped after %s asleep", in.For)}
	default:
		return StandbyDecision{Level: in.Level, Again: min(left, standbyLook), Why: service.AsleepAt(in.Level)}
	}
}
