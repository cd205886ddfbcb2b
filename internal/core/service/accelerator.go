package service

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// AcceleratorClass is a kind of accelerator that nodes have, with what it can do
// (OME's kind; its objects have no namespace).
type AcceleratorClass struct {
	Meta   `json:",inline"`
	Vendor string `json:"vendor,omitempty"`
	Family string `json:"family,omitempty"`
	Model  string `json:"model,omitempty"`
	// NodeSelector and Affinity lead pods to the nodes that have it.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	Affinity     *corev1.Affinity  `json:"affinity,omitempty"`
	// PCIVendor and PCIDevices are its identifiers on the bus, in hexadecimal.
	PCIVendor  string   `json:"pciVendor,omitempty"`
	PCIDevices []string `json:"pciDevices,omitempty"`
	// MemoryGB is what one accelerator has; 0 means not stated.
	MemoryGB          float64  `json:"memoryGB,omitempty"`
	ComputeCapability string   `json:"computeCapability,omitempty"`
	BandwidthGBps     float64  `json:"bandwidthGBps,omitempty"`
	Features          []string `json:"features,omitempty"`
	// TFLOPS are by precision: fp32, fp16, int8 and int4, the last two in TOPS.
	TFLOPS map[string]int64 `json:"tflops,omitempty"`
	// Resources are what a container asks a node for to be given one.
	Resources corev1.ResourceList `json:"resources,omitempty"`
	Cost      AcceleratorCost     `json:"cost,omitzero"`
}

// LabelGPUProduct is the label of nodes for the name of their GPUs, as NVIDIA's
// feature discovery gives it.
const LabelGPUProduct = "nvidia.com/gpu.product"

// AcceleratorCost is what an accelerator costs; nil and "" are not stated.
type AcceleratorCost struct {
	PerHour          *float64 `json:"perHour,omitempty"`
	SpotPerHour      *float64 `json:"spotPerHour,omitempty"`
	PerMillionTokens *float64 `json:"perMillionTokens,omitempty"`
	Tier             string   `json:"tier,omitempty"` // low, medium or high
}

// AcceleratorPolicy is how one of several classes is chosen.
type AcceleratorPolicy string

// OME's policies.
const (
	AcceleratorBestFit        AcceleratorPolicy = "BestFit"
	AcceleratorCheapest       AcceleratorPolicy = "Cheapest"
	AcceleratorMostCapable    AcceleratorPolicy = "MostCapable"
	AcceleratorFirstAvailable AcceleratorPolicy = "FirstAvailable"
)

// AcceleratorPolicies lists them.
var AcceleratorPolicies = []AcceleratorPolicy{AcceleratorBestFit, AcceleratorCheapest, AcceleratorMostCapable, AcceleratorFirstAvailable}

// AcceleratorSelector is which class a role asks for: one by its name, else one
// that a policy chooses among those that its runtime lists.
type AcceleratorSelector struct {
	Class  string            `json:"class,omitempty"`
	Policy AcceleratorPolicy `json:"policy,omitempty"`
	Needs  AcceleratorNeeds  `json:"needs,omitzero"`
}

// Chooses reports whether it asks for more than a class by its name.
func (s AcceleratorSelector) Chooses() bool { return s.Policy != "" || !s.Needs.IsZero() }

// AcceleratorNeeds are what a class must have: the requirements of a runtime, the
// constraints of a service. 0 and "" ask for nothing.
type AcceleratorNeeds struct {
	MinMemoryGB int64 `json:"minMemoryGB,omitempty"`
	MaxMemoryGB int64 `json:"maxMemoryGB,omitempty"`
	// MinTFLOPS ranks classes, and refuses none.
	MinTFLOPS     int64    `json:"minTFLOPS,omitempty"`
	MinCapability string   `json:"minCapability,omitempty"`
	Features      []string `json:"features,omitempty"`
	Excluded      []string `json:"excluded,omitempty"`
	// Families are "hopper" or "nvidia-hopper"; none means any.
	Families []string `json:"families,omitempty"`
	// Precisions are in the order of preference.
	Precisions []string `json:"precisions,omitempty"`
}

// IsZero reports whether nothing is asked for.
func (n AcceleratorNeeds) IsZero() bool {
	return n.MinMemoryGB == 0 && n.MaxMemoryGB == 0 && n.MinTFLOPS == 0 && n.MinCapability == "" &&
		len(n.Features)+len(n.Excluded)+len(n.Families)+len(n.Precisions) == 0
}

// And is what meets both; of the precisions o's come first.
func (n AcceleratorNeeds) And(o AcceleratorNeeds) AcceleratorNeeds {
	out := o
	out.MinMemoryGB, out.MinTFLOPS = max(n.MinMemoryGB, o.MinMemoryGB), max(n.MinTFLOPS, o.MinTFLOPS)
	if n.MaxMemoryGB > 0 && (o.MaxMemoryGB == 0 || n.MaxMemoryGB < o.MaxMemoryGB) {
		out.MaxMemoryGB = n.MaxMemoryGB
	}
	if o.MinCapability == "" || n.MinCapability != "" && CompareCapability(n.MinCapability, o.MinCapability) > 0 {
		out.MinCapability = n.MinCapability
	}
	out.Features = slices.Concat(n.Features, o.Features)
	out.Excluded = slices.Concat(n.Excluded, o.Excluded)
	out.Families = slices.Concat(n.Families, o.Families)
	out.Precisions = slices.Concat(o.Precisions, n.Precisions)
	return out
}

// CompareCapability orders compute capabilities by their numbers ("10.0" is above
// "9.0"); what is not written in numbers is ordered as text.
func CompareCapability(a, b string) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(as), len(bs)) {
		x, errX := numberAt(as, i)
		y, errY := numberAt(bs, i)
		switch {
		case errX != nil || errY != nil:
			return strings.Compare(strings.ToLower(a), strings.ToLower(b))
		case x != y && x < y:
			return -1
		case x != y:
			return 1
		}
	}
	return 0
}

func numberAt(of []string, i int) (uint64, error) {
	if i >= len(of) {
		return 0, nil
	}
	return strconv.ParseUint(of[i], 10, 32)
}

// AcceleratorConfig is what an entry of a runtime's formats changes on one class of
// accelerators.
type AcceleratorConfig struct {
	// MinMemoryPerBillionGB is what each 10⁹ parameters take, of all accelerators
	// of a replica together.
	MinMemoryPerBillionGB int64               `json:"minMemoryPerBillionGB,omitempty"`
	Args                  []string            `json:"args,omitempty"`
	Env                   map[string]string   `json:"env,omitempty"`
	Parallel              AcceleratorParallel `json:"parallel,omitzero"`
}

// AcceleratorParallel are sizes of parallelism; 0 leaves what the runtime says.
type AcceleratorParallel struct {
	Tensor   int64 `json:"tensor,omitempty"`
	Pipeline int64 `json:"pipeline,omitempty"`
	Data     int64 `json:"data,omitempty"`
}

// On is what f changes on a class, nil for nothing.
func (f *SupportedFormat) On(class string) *AcceleratorConfig {
	if f == nil || class == "" {
		return nil
	}
	if c, ok := f.Accelerators[class]; ok {
		return &c
	}
	for _, name := range slices.Sorted(maps.Keys(f.Accelerators)) {
		if strings.EqualFold(name, class) {
			c := f.Accelerators[name]
			return &c
		}
	}
	return nil
}

// RoleClasses are the accelerator classes that the engine and the decoder of a
// service run on; "" for none.
type RoleClasses struct {
	Engine  string `json:"engine,omitempty"`
	Decoder string `json:"decoder,omitempty"`
}

// Get returns that of a role.
func (c RoleClasses) Get(r Role) string {
	switch r {
	case RoleEngine:
		return c.Engine
	case RoleDecoder:
		return c.Decoder
	case RoleRouter, RoleTransformer, RoleExplainer, RolePrefill, RoleEncode:
	}
	return ""
}

// Set puts that of a role.
func (c *RoleClasses) Set(r Role, class string) {
	switch r {
	case RoleEngine:
		c.Engine = class
	case RoleDecoder:
		c.Decoder = class
	case RoleRouter, RoleTransformer, RoleExplainer, RolePrefill, RoleEncode:
	}
}

// OfFamily reports whether c is of a family, written with or without its vendor
// ("hopper", "nvidia-hopper").
func (c *AcceleratorClass) OfFamily(family string) bool {
	return strings.EqualFold(family, c.Family) || strings.EqualFold(family, c.Vendor+"-"+c.Family)
}
