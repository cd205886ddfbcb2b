package selection

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// GPU is an accelerator of a machine as its driver describes it.
type GPU struct {
	Name   string // "NVIDIA H100 80GB HBM3"
	Memory int64  // in bytes; 0 is not known
	// Capability is its compute capability ("9.0"), "" where that is not known.
	Capability string
	// PCIVendor and PCIDevice are its identifiers on the bus, in hexadecimal
	// digits; "" where they are not known.
	PCIVendor, PCIDevice string
}

// acceleratorRoles are the roles that run on accelerators.
var acceleratorRoles = []service.Role{service.RoleEngine, service.RoleDecoder}

// accelerator: the runtime lists the classes that the service names, and for each
// of its roles a class meets what runtime and service ask for. entry is the
// matched one, nil for none.
func (s *subject) accelerator(rt *service.Runtime, entry *service.SupportedFormat) (Rule, service.RoleClasses) {
	var chosen service.RoleClasses
	if why := s.unlistedClass(rt); why != "" {
		return fail(RuleAccelerator, why), chosen
	}
	var words []string
	var of []service.Role
	for _, role := range acceleratorRoles {
		if rt.Components.Get(role) == nil && s.svc.Components.Get(role) == nil {
			continue
		}
		name, why, ok := s.class(rt, entry, role)
		if !ok {
			return fail(RuleAccelerator, why), service.RoleClasses{}
		}
		chosen.Set(role, name)
		if why != "" {
			words, of = append(words, why), append(of, role)
		}
	}
	if words = slices.Compact(words); len(words) > 1 {
		for i := range words {
			words[i] = string(of[i]) + " " + words[i]
		}
	}
	switch why := s.host.without(rt.AcceleratorNeeds); {
	case chosen == (service.RoleClasses{}) && why != "":
		return fail(RuleAccelerator, "it requires "+why), chosen
	case len(words) > 0:
		return pass(RuleAccelerator, strings.Join(words, "; ")), chosen
	case len(s.svc.AcceleratorClass) > 0:
		return pass(RuleAccelerator, "has "+strings.Join(s.svc.AcceleratorClass, ", ")), chosen
	}
	return pass(RuleAccelerator, "none asked for"), chosen
}

// Classes are the accelerator classes of a service's roles on a runtime that it is
// pinned to: those that it names, else those it has had as long as they are known,
// else those that are chosen now.
func Classes(req Request, rt *service.Runtime, pinned service.RoleClasses, host Host) service.RoleClasses {
	s := newSubject(req, host)
	s.named = s.svc.Runtime != nil && s.svc.Runtime.Name == rt.Name
	m, ok := s.matched(rt)
	_, out := s.accelerator(rt, m.of(rt, ok))
	for _, role := range acceleratorRoles {
		name := cmp.Or(s.svc.Accelerators[role].Class, pinned.Get(role))
		if c := s.known(name); c != nil {
			out.Set(role, c.Name)
		}
	}
	return out
}

// Entry is the entry of a runtime's formats that a model matches, nil for none.
func Entry(req Request, rt *service.Runtime) *service.SupportedFormat {
	s := newSubject(req, Host{})
	s.named = s.svc.Runtime != nil && s.svc.Runtime.Name == rt.Name
	m, ok := s.matched(rt)
	return m.of(rt, ok)
}

// of is the entry that matches, nil for none.
func (m match) of(rt *service.Runtime, ok bool) *service.SupportedFormat {
	if !ok {
		return nil
	}
	return &rt.Formats[m.entry]
}

// unlistedClass returns which class that the service names the runtime does not
// list, "" for none.
func (s *subject) unlistedClass(rt *service.Runtime) string {
	for _, want := range s.svc.AcceleratorClass {
		switch {
		case len(rt.AcceleratorClasses) == 0:
			return "lists none, the service asks for " + strings.Join(s.svc.AcceleratorClass, ", ")
		case !slices.ContainsFunc(rt.AcceleratorClasses, func(have string) bool { return strings.EqualFold(have, want) }):
			return "lists " + strings.Join(rt.AcceleratorClasses, ", ") + ", the service asks for " + want
		}
	}
	return ""
}

// known finds a class that was applied, nil for none.
func (s *subject) known(name string) *service.AcceleratorClass {
	if name == "" {
		return nil
	}
	for i := range s.classes {
		if strings.EqualFold(s.classes[i].Name, name) {
			return &s.classes[i]
		}
	}
	return nil
}

// class is the one that a role runs on, "" for none, and why. A class of which only
// the name is known counts as one that fits.
func (s *subject) class(rt *service.Runtime, entry *service.SupportedFormat, role service.Role) (name, why string, ok bool) {
	sel := s.svc.Accelerators[role]
	needs := rt.AcceleratorNeeds.And(sel.Needs)
	if sel.Class != "" {
		c := s.known(sel.Class)
		if c == nil {
			return "", "has " + sel.Class + ", and no AcceleratorClass of that name is applied", true
		}
		if why := s.unfit(rt, entry, role, c, needs); why != "" {
			return "", "class " + c.Name + " " + why, false
		}
		return c.Name, "has " + c.Name, true
	}
	if !sel.Chooses() {
		return "", "", true
	}
	if len(rt.AcceleratorClasses) == 0 {
		return "", "lists no classes to choose from", true
	}
	var fit []*service.AcceleratorClass
	var misfits []string
	for _, name := range rt.AcceleratorClasses {
		c := s.known(name)
		if c == nil || slices.Contains(fit, c) {
			continue
		}
		if why := s.unfit(rt, entry, role, c, needs); why != "" {
			misfits = append(misfits, c.Name+" "+why)
		} else {
			fit = append(fit, c)
		}
	}
	switch {
	case len(fit) == 0 && len(misfits) == 0:
		return "", "no AcceleratorClass is applied of those that it lists, " + strings.Join(rt.AcceleratorClasses, ", "), true
	case len(fit) == 0:
		return "", "no class fits: " + strings.Join(misfits, "; "), false
	case len(fit) == 1:
		return fit[0].Name, "takes " + fit[0].Name + ", the only class that fits", true
	}
	best, reason := pick(fit, cmp.Or(sel.Policy, service.AcceleratorFirstAvailable), needs)
	return best.Name, "takes " + best.Name + ", " + reason, true
}

// unfit returns why a role cannot have a class, "" where it can.
func (s *subject) unfit(rt *service.Runtime, entry *service.SupportedFormat, role service.Role, c *service.AcceleratorClass, needs service.AcceleratorNeeds) string {
	if why := lacks(c, needs); why != "" {
		return why
	}
	if config := entry.On(c.Name); config != nil && config.MinMemoryPerBillionGB > 0 && s.model.Parameters > 0 && c.MemoryGB > 0 {
		count := max(1, config.Parallel.Tensor) * max(1, config.Parallel.Pipeline)
		if config.Parallel.Tensor == 0 && config.Parallel.Pipeline == 0 {
			gpus, _ := part{role, rt.Components.Get(role), s.svc.Components.Get(role)}.needs()
			count = max(1, gpus)
		}
		if need := float64(config.MinMemoryPerBillionGB) * float64(s.model.Parameters) / 1e9; need > c.MemoryGB*float64(count) {
			return "has " + gigabytes(c.MemoryGB*float64(count)) + " in " + strconv.FormatInt(count, 10) + " of them, the model takes " + gigabytes(need)
		}
	}
	return s.host.lacksClass(c)
}

// lacks returns what a class lacks of what is needed, "" for nothing. The least
// TFLOPS refuse no class, as in OME.
func lacks(c *service.AcceleratorClass, n service.AcceleratorNeeds) string {
	switch {
	case slices.ContainsFunc(n.Excluded, func(name string) bool { return strings.EqualFold(name, c.Name) }):
		return "is excluded"
	case len(n.Families) > 0 && !slices.ContainsFunc(n.Families, c.OfFamily):
		return "is of family " + orNone(c.Family) + ", not " + strings.Join(n.Families, " or ")
	case (n.MinMemoryGB > 0 || n.MaxMemoryGB > 0) && c.MemoryGB == 0:
		return "states no memory"
	case c.MemoryGB < float64(n.MinMemoryGB):
		return "has " + gigabytes(c.MemoryGB) + ", less than " + gigabytes(float64(n.MinMemoryGB))
	case n.MaxMemoryGB > 0 && c.MemoryGB > float64(n.MaxMemoryGB):
		return "has " + gigabytes(c.MemoryGB) + ", more than " + gigabytes(float64(n.MaxMemoryGB))
	case n.MinCapability != "" && c.ComputeCapability == "":
		return "states no compute capability"
	case n.MinCapability != "" && service.CompareCapability(c.ComputeCapability, n.MinCapability) < 0:
		return "has compute capability " + c.ComputeCapability + ", below " + n.MinCapability
	}
	for _, f := range n.Features {
		if !slices.ContainsFunc(c.Features, func(have string) bool { return strings.EqualFold(have, f) }) {
			return "lacks the feature " + f
		}
	}
	return ""
}

func orNone(s string) string {
	if s == "" {
		return "(none)"
	}
	return s
}

// gigabytes prints a size ("80 GB").
func gigabytes(n float64) string {
	return strconv.FormatFloat(math.Round(n*10)/10, 'f', -1, 64) + " GB"
}

// pick takes one of several classes by OME's formulas; the first of equals.
func pick(fit []*service.AcceleratorClass, policy service.AcceleratorPolicy, n service.AcceleratorNeeds) (*service.AcceleratorClass, string) {
	switch policy {
	case service.AcceleratorBestFit:
		return highest(fit, func(c *service.AcceleratorClass) float64 { return fitting(c, n) }), "the best fit"
	case service.AcceleratorMostCapable:
		return highest(fit, capability(fit, n.Precisions)), "the most capable"
	case service.AcceleratorCheapest:
		for _, by := range []struct {
			of  func(service.AcceleratorCost) *float64
			why string
		}{
			{func(c service.AcceleratorCost) *float64 { return cmp.Or(c.SpotPerHour, c.PerHour) }, "the cheapest by the hour"},
			{func(c service.AcceleratorCost) *float64 { return c.PerMillionTokens }, "the cheapest by tokens"},
			{tier, "of the lowest tier of cost"},
		} {
			priced := slices.DeleteFunc(slices.Clone(fit), func(c *service.AcceleratorClass) bool { return by.of(c.Cost) == nil })
			if len(priced) > 0 {
				return highest(priced, func(c *service.AcceleratorClass) float64 { return -*by.of(c.Cost) }), by.why
			}
		}
		return fit[0], "the first listed: no class states a cost"
	case service.AcceleratorFirstAvailable:
	}
	return fit[0], "the first listed that fits"
}

// highest is the class of the highest score, the first of equals.
func highest(of []*service.AcceleratorClass, score func(*service.AcceleratorClass) float64) *service.AcceleratorClass {
	return slices.MaxFunc(of, func(a, b *service.AcceleratorClass) int { return cmp.Compare(score(a), score(b)) })
}

// tier is a tier of cost as a number, nil for none; a word that is no tier is the
// middle one.
func tier(c service.AcceleratorCost) *float64 {
	switch strings.ToLower(c.Tier) {
	case "":
		return nil
	case "low":
		return new(1.0)
	case "high":
		return new(3.0)
	}
	return new(2.0)
}

// fitting is OME's BestFit: seven parts for as little memory above the least as
// there may be, three for the TFLOPS wanted.
func fitting(c *service.AcceleratorClass, n service.AcceleratorNeeds) float64 {
	memory := 1.0
	if n.MinMemoryGB > 0 {
		memory = float64(n.MinMemoryGB) / c.MemoryGB
	}
	speed := func(tflops int64) float64 {
		if tflops == 0 || n.MinTFLOPS == 0 {
			return min(1, float64(tflops))
		}
		return min(1, float64(tflops)/float64(n.MinTFLOPS))
	}
	if len(n.Precisions) == 0 {
		most := int64(0)
		for _, t := range c.TFLOPS {
			most = max(most, t)
		}
		return 0.7*memory + 0.3*speed(most)
	}
	share := 1.0 // halved with every precision that the class has no figure of
	for _, p := range append(slices.Clone(n.Precisions), "fp16") {
		if t := tflops(c, p); t > 0 {
			return 0.7*memory + 0.3*share*speed(t)
		}
		share /= 2
	}
	return 0.7 * memory
}

// capability is OME's MostCapable: five parts memory, three bandwidth, two TFLOPS,
// each as a share of the most that there is.
func capability(of []*service.AcceleratorClass, precisions []string) func(*service.AcceleratorClass) float64 {
	speed := func(c *service.AcceleratorClass) float64 {
		for _, p := range precisions {
			if t := tflops(c, p); t > 0 {
				return float64(t)
			}
		}
		if len(precisions) > 0 {
			return 0
		}
		return float64(tflops(c, "fp16"))
	}
	var memory, bandwidth, most float64
	for _, c := range of {
		memory, bandwidth, most = max(memory, c.MemoryGB), max(bandwidth, c.BandwidthGBps), max(most, speed(c))
	}
	share := func(n, of float64) float64 {
		if of == 0 {
			return 0
		}
		return n / of
	}
	return func(c *service.AcceleratorClass) float64 {
		return 0.5*share(c.MemoryGB, memory) + 0.3*share(c.BandwidthGBps, bandwidth) + 0.2*share(speed(c), most)
	}
}

// tflops is what a class has at a precision; fp8 is as fast as int8.
func tflops(c *service.AcceleratorClass, precision string) int64 {
	p := strings.ToLower(precision)
	if p == "fp8" {
		p = "int8"
	}
	return c.TFLOPS[p]
}

// lacksClass returns why a machine has no accelerator of a class, "" where it has
// one, or where nothing is known of those that it has, and on a cluster.
func (h Host) lacksClass(c *service.AcceleratorClass) string {
	switch {
	case h.Cluster:
		return ""
	case h.Accelerators == 0:
		return "is not on this machine, which has no GPU"
	case len(h.GPUs) == 0, slices.ContainsFunc(h.GPUs, func(g GPU) bool { return g.of(c) }):
		return ""
	}
	return "is not on this machine, which has " + h.gpuNames()
}

// without returns what of a runtime's requirements the GPUs of a machine do not
// meet, "" where they do, or where nothing is known of them, and on a cluster.
// Features are not known of any.
func (h Host) without(n service.AcceleratorNeeds) string {
	var wants []string
	if n.MinMemoryGB > 0 {
		wants = append(wants, gigabytes(float64(n.MinMemoryGB)))
	}
	if n.MinCapability != "" {
		wants = append(wants, "compute capability "+n.MinCapability)
	}
	want := strings.Join(wants, " and ")
	switch {
	case h.Cluster || len(wants) == 0:
		return ""
	case h.Accelerators == 0:
		return "a GPU with " + want + ", this machine has none"
	case len(h.GPUs) == 0, slices.ContainsFunc(h.GPUs, func(g GPU) bool {
		return (g.Memory == 0 || g.memoryGB() >= float64(n.MinMemoryGB)*(1-memoryTolerance)) &&
			(g.Capability == "" || service.CompareCapability(g.Capability, n.MinCapability) >= 0)
	}):
		return ""
	}
	return "a GPU with " + want + ", this machine has " + h.gpuNames()
}

// gpuNames lists a machine's GPUs, each kind once.
func (h Host) gpuNames() string {
	var out []string
	for _, g := range h.GPUs {
		name := cmp.Or(g.Name, "a GPU")
		if g.Memory > 0 {
			name += " (" + gigabytes(g.memoryGB()) + ")"
		}
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return strings.Join(out, ", ")
}

// memoryTolerance is how far what a driver reports may be from what a class is
// said to have: an H100 of 80 GB has 79.6.
const memoryTolerance = 0.1

func (g GPU) memoryGB() float64 { return float64(g.Memory) / (1 << 30) }

// of reports whether a GPU is of a class: by its identifiers on the bus, else by
// the name that NVIDIA's feature discovery labels nodes with, else by vendor, model,
// memory and compute capability, as far as both are known.
func (g GPU) of(c *service.AcceleratorClass) bool {
	if len(c.PCIDevices) > 0 && g.PCIDevice != "" {
		return (c.PCIVendor == "" || sameID(c.PCIVendor, g.PCIVendor)) &&
			slices.ContainsFunc(c.PCIDevices, func(id string) bool { return sameID(id, g.PCIDevice) })
	}
	if product := c.NodeSelector[service.LabelGPUProduct]; product != "" && g.Name != "" {
		return strings.EqualFold(product, strings.ReplaceAll(g.Name, " ", "-"))
	}
	words := "-" + strings.ToLower(strings.ReplaceAll(g.Name, " ", "-")) + "-"
	for _, word := range []string{c.Vendor, c.Model} {
		if word = strings.ToLower(strings.ReplaceAll(word, " ", "-")); word != "" && g.Name != "" && !strings.Contains(words, "-"+word+"-") {
			return false
		}
	}
	if c.MemoryGB > 0 && g.Memory > 0 && math.Abs(g.memoryGB()-c.MemoryGB) > c.MemoryGB*memoryTolerance {
		return false
	}
	return c.ComputeCapability == "" || g.Capability == "" || service.CompareCapability(c.ComputeCapability, g.Capability) == 0
}

// sameID compares identifiers in hexadecimal, with or without 0x.
func sameID(a, b string) bool {
	trim := func(s string) string { return strings.TrimPrefix(strings.ToLower(strings.TrimSpace(s)), "0x") }
	return trim(a) == trim(b)
}
