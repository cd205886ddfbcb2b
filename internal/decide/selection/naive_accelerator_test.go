package selection

import (
	"fmt"
	"math"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// The part of the naive selection about classes of accelerators and diffusion
// pipelines.

// naivePipeline: all that the entry states is so in the model.
func naivePipeline(entry service.DiffusionPipeline, model *service.DiffusionPipeline) bool {
	if model == nil || entry.Class != "" && entry.Class != model.Class {
		return false
	}
	for name, e := range entry.Components {
		m, there := model.Components[name]
		if !there || e.Library != "" && e.Library != m.Library || e.Type != "" && e.Type != m.Type {
			return false
		}
	}
	return true
}

// accelerated: the runtime lists all classes that are named; a class that is named
// and known fits; with a policy or constraints, a class fits of those listed and
// known, where there are such. Without a class the GPUs meet the runtime's needs.
func (n naive) accelerated(v *verdict) bool {
	rt := v.rt
	for _, want := range n.svc.AcceleratorClass {
		if !strings.Contains(strings.ToLower(strings.Join(rt.AcceleratorClasses, " ")), strings.ToLower(want)) {
			return false
		}
	}
	for role, chosen := range map[service.Role]*string{"engine": &v.engine, "decoder": &v.decoder} {
		if rt.Components.Get(role) == nil && n.svc.Components.Get(role) == nil {
			continue
		}
		name, ok := n.classed(rt, v.entry, role)
		if !ok {
			v.engine, v.decoder = "", ""
			return false
		}
		*chosen = name
	}
	return v.engine+v.decoder != "" || n.gpusMeet(rt.AcceleratorNeeds)
}

func (n naive) gpusMeet(need service.AcceleratorNeeds) bool {
	if n.host.Cluster || need.MinMemoryGB == 0 && need.MinCapability == "" {
		return true
	}
	if n.host.Accelerators == 0 {
		return false
	}
	for _, g := range n.host.GPUs {
		enough := g.Memory == 0 || float64(g.Memory) >= 0.9*float64(need.MinMemoryGB)*1024*1024*1024
		if enough && (g.Capability == "" || decimal(g.Capability) >= decimal(need.MinCapability)) {
			return true
		}
	}
	return len(n.host.GPUs) == 0
}

// decimal orders the compute capabilities of the vocabulary.
func decimal(s string) (out float64) {
	_, _ = fmt.Sscan(s, &out)
	return out
}

func (n naive) classed(rt service.Runtime, entry int, role service.Role) (string, bool) {
	sel := n.svc.Accelerators[role]
	names := rt.AcceleratorClasses
	if sel.Class != "" {
		names = []string{sel.Class}
	} else if sel.Policy == "" && sel.Needs.IsZero() {
		return "", true
	}
	var known, fit []service.AcceleratorClass
	for _, name := range names {
		for _, c := range n.classes {
			if strings.EqualFold(c.Name, name) {
				known = append(known, c)
				if n.fits(c, rt, entry, role, sel.Needs) {
					fit = append(fit, c)
				}
			}
		}
	}
	switch {
	case len(known) == 0:
		return "", true
	case len(fit) == 0:
		return "", false
	}
	best := fit[0]
	for _, c := range fit[1:] {
		if n.preferred(c, best, fit, sel.Policy, rt.AcceleratorNeeds, sel.Needs) {
			best = c
		}
	}
	return best.Name, true
}

func (n naive) fits(c service.AcceleratorClass, rt service.Runtime, entry int, role service.Role, asked service.AcceleratorNeeds) bool {
	has := func(list []string, word string) bool {
		return strings.Contains(" "+strings.ToLower(strings.Join(list, " "))+" ", " "+strings.ToLower(word)+" ")
	}
	for _, need := range []service.AcceleratorNeeds{rt.AcceleratorNeeds, asked} {
		if c.MemoryGB < float64(need.MinMemoryGB) || need.MaxMemoryGB > 0 && (c.MemoryGB == 0 || c.MemoryGB > float64(need.MaxMemoryGB)) {
			return false
		}
		if need.MinCapability != "" && (c.ComputeCapability == "" || decimal(c.ComputeCapability) < decimal(need.MinCapability)) {
			return false
		}
		for _, f := range need.Features {
			if !has(c.Features, f) {
				return false
			}
		}
		if has(need.Excluded, c.Name) {
			return false
		}
	}
	if families := append(append([]string{}, rt.AcceleratorNeeds.Families...), asked.Families...); len(families) > 0 && !has(families, c.Family) && !has(families, c.Vendor+"-"+c.Family) {
		return false
	}
	if entry >= 0 {
		for name, config := range rt.Formats[entry].Accelerators {
			if strings.EqualFold(name, c.Name) && !n.holds(c, config, rt, role) {
				return false
			}
		}
	}
	return n.onMachine(c)
}

// holds: what the parameters take is in the accelerators of one replica.
func (n naive) holds(c service.AcceleratorClass, config service.AcceleratorConfig, rt service.Runtime, role service.Role) bool {
	count := config.Parallel.Tensor * max(config.Parallel.Pipeline, 1)
	if config.Parallel.Tensor == 0 {
		count = config.Parallel.Pipeline
	}
	if count == 0 {
		count = max(1, n.gpusOf(rt.Components.Get(role), n.svc.Components.Get(role)))
	}
	return c.MemoryGB == 0 || float64(config.MinMemoryPerBillionGB)*float64(n.model.Parameters)/1e9 <= c.MemoryGB*float64(count)
}

// gpusOf: the service's figure in place of the runtime's, of the component and of its
// workers, of whom there are at least one; without a leader the component leads.
func (n naive) gpusOf(base, over *service.Component) (gpus int64) {
	for _, c := range []*service.Component{base, over} {
		if c == nil {
			continue
		}
		for _, k := range c.Pod.Containers {
			if q, ok := k.Resources.Limits["nvidia.com/gpu"]; ok {
				gpus = q.Value()
			}
		}
	}
	if base != nil && base.Worker != nil {
		for _, k := range base.Worker.Pod.Containers {
			if q, ok := k.Resources.Limits["nvidia.com/gpu"]; ok {
				gpus += q.Value() * int64(max(1, base.Worker.Size))
			}
		}
	}
	return gpus
}

// onMachine: one machine has such a GPU, as far as its GPUs are known.
func (n naive) onMachine(c service.AcceleratorClass) bool {
	if n.host.Cluster {
		return true
	}
	if len(n.host.GPUs) == 0 {
		return n.host.Accelerators > 0
	}
	for _, g := range n.host.GPUs {
		if g.PCIDevice != "" && len(c.PCIDevices) > 0 {
			if strings.EqualFold(c.PCIDevices[0], g.PCIDevice) && (c.PCIVendor == "" || strings.EqualFold(c.PCIVendor, g.PCIVendor)) {
				return true
			}
			continue
		}
		name := strings.ToLower(g.Name)
		named := name == "" || strings.Contains(name, c.Vendor) && (c.Model == "" || strings.Contains(name, strings.ToLower(c.Model)))
		sized := g.Memory == 0 || c.MemoryGB == 0 || math.Abs(float64(g.Memory)/(1<<30)-c.MemoryGB) <= c.MemoryGB/10
		able := g.Capability == "" || c.ComputeCapability == "" || decimal(g.Capability) == decimal(c.ComputeCapability)
		if named && sized && able {
			return true
		}
	}
	return false
}

// preferred: by the policy a comes before b, which is listed before it.
func (n naive) preferred(a, b service.AcceleratorClass, all []service.AcceleratorClass, policy service.AcceleratorPolicy, runtime, asked service.AcceleratorNeeds) bool {
	precisions := append(append([]string{}, asked.Precisions...), runtime.Precisions...)
	switch policy {
	case "BestFit":
		memory, speed := max(runtime.MinMemoryGB, asked.MinMemoryGB), max(runtime.MinTFLOPS, asked.MinTFLOPS)
		return naiveFit(a, memory, speed, precisions) > naiveFit(b, memory, speed, precisions)
	case "MostCapable":
		return naiveCapable(a, all, precisions) > naiveCapable(b, all, precisions)
	case "Cheapest":
		prices := []func(service.AcceleratorClass) float64{
			func(c service.AcceleratorClass) float64 {
				if c.Cost.SpotPerHour != nil {
					return *c.Cost.SpotPerHour
				}
				return value(c.Cost.PerHour)
			},
			func(c service.AcceleratorClass) float64 { return value(c.Cost.PerMillionTokens) },
			func(c service.AcceleratorClass) float64 {
				return map[string]float64{"": math.Inf(1), "low": 1, "high": 3, "odd": 2}[strings.ToLower(c.Cost.Tier)]
			},
		}
		for _, price := range prices {
			for _, c := range all {
				if !math.IsInf(price(c), 1) {
					return price(a) < price(b)
				}
			}
		}
	}
	return false
}

func value(p *float64) float64 {
	if p == nil {
		return math.Inf(1)
	}
	return *p
}

func naiveSpeed(c service.AcceleratorClass, precision string) float64 {
	return float64(c.TFLOPS[strings.ReplaceAll(strings.ToLower(precision), "fp8", "int8")])
}

func naiveFit(c service.AcceleratorClass, memory, speed int64, precisions []string) float64 {
	score := 0.7
	if memory > 0 {
		score = 0.7 * (float64(memory) / c.MemoryGB)
	}
	toward := func(t float64) float64 {
		if speed == 0 {
			return 1
		}
		return math.Min(1, t/float64(speed))
	}
	if len(precisions) == 0 {
		most := 0.0
		for _, t := range c.TFLOPS {
			most = math.Max(most, float64(t))
		}
		if most == 0 {
			return score
		}
		return score + 0.3*toward(most)
	}
	for i, p := range append(append([]string{}, precisions...), "fp16") {
		if t := naiveSpeed(c, p); t > 0 {
			return score + 0.3*math.Pow(0.5, float64(i))*toward(t)
		}
	}
	return score
}

func naiveCapable(c service.AcceleratorClass, all []service.AcceleratorClass, precisions []string) float64 {
	if len(precisions) == 0 {
		precisions = []string{"fp16"}
	}
	figures := func(c service.AcceleratorClass) [3]float64 {
		out := [3]float64{c.MemoryGB, c.BandwidthGBps}
		for i := len(precisions) - 1; i >= 0; i-- {
			if t := naiveSpeed(c, precisions[i]); t > 0 {
				out[2] = t
			}
		}
		return out
	}
	var most, share [3]float64
	for _, other := range all {
		for i, f := range figures(other) {
			most[i] = math.Max(most[i], f)
		}
	}
	for i, f := range figures(c) {
		if most[i] > 0 {
			share[i] = f / most[i]
		}
	}
	return 0.5*share[0] + 0.3*share[1] + 0.2*share[2]
}
