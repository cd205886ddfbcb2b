// Package rollout decides how much of a service's traffic its canary takes: a
// changed manifest's revision beside the one that serves. Pure.
package rollout

import "fmt"

// Input is what a step looks at.
type Input struct {
	// Percent is what the manifest says; nil is 100.
	Percent *int
	// Serving reports that a revision serves already. Without one there is nothing
	// to be careful of, and the manifest's is the service's.
	Serving bool
	// Same reports that the manifest asks for what serves.
	Same   bool
	Canary Canary
}

// Canary is the manifest's revision, as far as it has come.
type Canary struct {
	// Refused is why it could not be made; "" when it could.
	Refused string
	// WasReady reports that a replica of it has been ready once, so that asleep it
	// can be trusted to wake.
	WasReady bool
	// Ready counts its ready replicas, Asleep reports whether none is wanted.
	Ready  int
	Asleep bool
	// Failing is what is wrong with its replicas; "" when nothing is.
	Failing string
}

// Decision is what should be.
type Decision struct {
	// Canary reports that the manifest's revision runs beside the one that
	// serves; false has it replace that.
	Canary bool
	// Percent is the canary's share of the traffic now, 0 to 100.
	Percent int
	Why     string
}

// Gradual reports whether a manifest that asks for percent is to run beside what
// serves.
func Gradual(percent *int, serving bool) bool { return serving && percent != nil && *percent < 100 }

// before ends what is said of a canary that takes nothing.
const before = "; the previous revision answers all requests"

// Step decides. A canary takes its share once a replica of it has been ready,
// and loses it while none is and one is failing.
func Step(in Input) Decision {
	if !Gradual(in.Percent, in.Serving) || in.Same {
		return Decision{Why: "the manifest's revision is the service's"}
	}
	d := Decision{Canary: true}
	c := in.Canary
	switch {
	case c.Refused != "":
		d.Why = "the canary cannot be made (" + c.Refused + ")" + before
	case c.Ready > 0, c.WasReady && c.Failing == "":
		d.Percent = max(0, *in.Percent)
		d.Why = fmt.Sprintf("ready, takes %d %%", d.Percent)
		if c.Ready == 0 && c.Asleep {
			d.Why = fmt.Sprintf("asleep, takes %d %% and wakes for it", d.Percent)
		}
	case c.Failing != "":
		d.Why = "the canary is not ready (" + c.Failing + ")" + before
	default:
		d.Why = "the canary is not ready yet" + before
	}
	return d
}
