package selection

import (
	"math"
	"slices"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Diagnosis is what a machine can do with a runtime.
type Diagnosis struct {
	Runtime string `json:"runtime"`
	// Formats are those to which the rest applies, as the runtime names them.
	Formats []string `json:"formats,omitempty"`
	Runs    bool     `json:"runs"`
	// Why is what is lacking and the line that mends it, or what runs in place of the
	// runtime's own program.
	Why string `json:"why,omitempty"`
	// TooSmall: the machine has too few GPUs or too little memory, whatever is
	// installed.
	TooSmall bool `json:"tooSmall,omitempty"`
}

// CheckAll lists what to ask a machine before Diagnose.
func CheckAll(runtimes []service.Runtime, host Host) (out []Check) {
	for i := range runtimes {
		for _, model := range models(&runtimes[i]) {
			for _, c := range checksOf(runtimes[i].Components, service.Components{}, host, model) {
				if !slices.Contains(out, c) {
					out = append(out, c)
				}
			}
		}
	}
	return out
}

// Diagnose returns what a machine can do with each runtime that says how it runs on
// one: formats that fare alike together, in the order of the runtimes. images counts
// the other runtimes, which only come as images.
func Diagnose(runtimes []service.Runtime, host Host) (out []Diagnosis, images int) {
	large := host
	large.Accelerators, large.MemoryBytes = math.MaxInt32, 0
	for i := range runtimes {
		rt := &runtimes[i]
		if rt.Disabled {
			continue
		}
		if !local(rt) {
			images++
			continue
		}
		begin := len(out)
		for _, model := range models(rt) {
			rule := hostRule(rt.Components, service.Components{}, host, model)
			d := Diagnosis{Runtime: rt.Name, Runs: rule.Pass, Why: rule.Why, TooSmall: hostRule(rt.Components, service.Components{}, large, model).Why != rule.Why}
			at := slices.IndexFunc(out[begin:], func(o Diagnosis) bool { return o.Why == d.Why })
			if at < 0 {
				at = len(out) - begin
				out = append(out, d)
			}
			if f := model.Format.Name; f != "" && !slices.Contains(out[begin+at].Formats, f) {
				out[begin+at].Formats = append(out[begin+at].Formats, f)
			}
		}
	}
	return out, images
}

// models are one of each format that a runtime supports, or one of none.
func models(rt *service.Runtime) []service.Attributes {
	var out []service.Attributes
	for _, f := range rt.Formats {
		out = append(out, service.Attributes{Format: f.Format})
	}
	if out == nil {
		out = []service.Attributes{{}}
	}
	return out
}

// local reports whether a runtime says how any of its components runs on one machine.
func local(rt *service.Runtime) bool {
	for _, role := range service.Roles {
		if c := rt.Components.Get(role); c != nil && c.Local != nil {
			return true
		}
	}
	return false
}
