package ome

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// classAnnotation is OME's annotation of an accelerator class that a service needs.
const classAnnotation = "ome.io/accelerator-class"

type acceleratorClass struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta    `json:"metadata"`
	Spec            acceleratorClassSpec `json:"spec"`
}

type acceleratorClassSpec struct {
	Vendor       string                `json:"vendor"`
	Family       string                `json:"family"`
	Model        string                `json:"model"`
	Discovery    discovery             `json:"discovery"`
	Capabilities capabilities          `json:"capabilities"`
	Resources    []acceleratorResource `json:"resources"`
	Integration  any                   `json:"integration"`
	Cost         *cost                 `json:"cost"`
}

type discovery struct {
	NodeSelector map[string]string `json:"nodeSelector"`
	Affinity     *corev1.Affinity  `json:"affinity"`
	PCIVendorID  string            `json:"pciVendorID"`
	DeviceIDs    []string          `json:"deviceIDs"`
}

type capabilities struct {
	MemoryGB            *resource.Quantity `json:"memoryGB"`
	ComputeCapability   string             `json:"computeCapability"`
	LevelZeroVersion    any                `json:"levelZeroVersion"`
	ClockSpeedMHz       any                `json:"clockSpeedMHz"`
	MemoryBandwidthGBps *resource.Quantity `json:"memoryBandwidthGBps"`
	Features            []string           `json:"features"`
	Performance         *performance       `json:"performance"`
}

type performance struct {
	Fp32Tflops int64 `json:"fp32Tflops"`
	Fp16Tflops int64 `json:"fp16Tflops"`
	Int8Tops   int64 `json:"int8Tops"`
	Int4Tops   int64 `json:"int4Tops"`
	Latency    any   `json:"latency"`
}

type acceleratorResource struct {
	Name      string             `json:"name"`
	Quantity  *resource.Quantity `json:"quantity"`
	Divisible any                `json:"divisible"`
}

type cost struct {
	PerHour          *resource.Quantity `json:"perHour"`
	PerMillionTokens *resource.Quantity `json:"perMillionTokens"`
	SpotPerHour      *resource.Quantity `json:"spotPerHour"`
	Tier             string             `json:"tier"`
}

// selector is which class a service, or one of its components, asks for.
type selector struct {
	AcceleratorClass string       `json:"acceleratorClass"`
	Policy           string       `json:"policy"`
	Constraints      *constraints `json:"constraints"`
}

// needs are in a runtime's requirements and in a service's constraints.
type needs struct {
	MinMemory                   int64    `json:"minMemory"`
	MinComputePerformanceTFLOPS int64    `json:"minComputePerformanceTFLOPS"`
	MinArchitectureVersion      string   `json:"minArchitectureVersion"`
	RequiredFeatures            []string `json:"requiredFeatures"`
	PreferredPrecisions         []string `json:"preferredPrecisions"`
}

type requirements struct {
	needs `json:",inline"`

	AcceleratorClasses []string `json:"acceleratorClasses"`
}

type constraints struct {
	needs `json:",inline"`

	MaxMemory            int64    `json:"maxMemory"`
	ExcludedClasses      []string `json:"excludedClasses"`
	ArchitectureFamilies []string `json:"architectureFamilies"`
}

type acceleratorConfig struct {
	MinMemoryPerBillionParams int64             `json:"minMemoryPerBillionParams"`
	TensorParallelismOverride *parallelism      `json:"tensorParallelismOverride"`
	RuntimeArgsOverride       []string          `json:"runtimeArgsOverride"`
	EnvironmentOverride       map[string]string `json:"environmentOverride"`
}

type parallelism struct {
	TensorParallelSize   int64 `json:"tensorParallelSize"`
	PipelineParallelSize int64 `json:"pipelineParallelSize"`
	DataParallelSize     int64 `json:"dataParallelSize"`
}

// readClass reads an AcceleratorClass.
func readClass(r *manifest.Reader, m *acceleratorClass, o *manifest.Object) {
	out := r.AcceleratorClass(m.Metadata, o)
	spec, can := &m.Spec, &m.Spec.Capabilities
	out.Vendor, out.Family, out.Model = spec.Vendor, spec.Family, spec.Model
	out.NodeSelector, out.Affinity = spec.Discovery.NodeSelector, spec.Discovery.Affinity
	if len(out.NodeSelector) > 0 && out.NodeSelector[service.LabelGPUProduct] == "" {
		r.OneMachine("spec.discovery.nodeSelector", true, "has no effect on one machine: its GPUs are told by "+service.LabelGPUProduct+" alone, or by the other fields")
	}
	out.PCIVendor, out.PCIDevices = spec.Discovery.PCIVendorID, spec.Discovery.DeviceIDs
	out.ComputeCapability, out.Features = can.ComputeCapability, can.Features
	out.MemoryGB = readGigabytes(r, "spec.capabilities.memoryGB", can.MemoryGB)
	out.BandwidthGBps = readGigabytes(r, "spec.capabilities.memoryBandwidthGBps", can.MemoryBandwidthGBps)
	if p := can.Performance; p != nil {
		const at = "spec.capabilities.performance."
		for _, f := range []struct {
			field, precision string
			value            int64
		}{{"fp32Tflops", "fp32", p.Fp32Tflops}, {"fp16Tflops", "fp16", p.Fp16Tflops}, {"int8Tops", "int8", p.Int8Tops}, {"int4Tops", "int4", p.Int4Tops}} {
			notNegative(r, at+f.field, f.value)
			if f.value > 0 {
				if out.TFLOPS == nil {
					out.TFLOPS = map[string]int64{}
				}
				out.TFLOPS[f.precision] = f.value
			}
		}
	}
	for i, res := range spec.Resources {
		at := strict.Index("spec.resources", i)
		switch q := cmp.Or(res.Quantity, new(resource.MustParse("1"))); {
		case res.Name == "":
			r.Errorf(at+".name", "is missing: name the resource that nodes have, such as nvidia.com/gpu")
		case q.Sign() < 0:
			r.Errorf(at+".quantity", "%s is negative", q.String())
		default:
			if out.Resources == nil {
				out.Resources = corev1.ResourceList{}
			}
			out.Resources[corev1.ResourceName(res.Name)] = *q
		}
	}
	if c := spec.Cost; c != nil {
		out.Cost = service.AcceleratorCost{Tier: c.Tier, PerHour: readPrice(r, "spec.cost.perHour", c.PerHour),
			SpotPerHour: readPrice(r, "spec.cost.spotPerHour", c.SpotPerHour), PerMillionTokens: readPrice(r, "spec.cost.perMillionTokens", c.PerMillionTokens)}
		if c.Tier != "" && !slices.Contains([]string{"low", "medium", "high"}, strings.ToLower(c.Tier)) {
			r.Warnf("spec.cost.tier", "%q is taken for medium: write low, medium or high", manifest.Clip(c.Tier))
		}
	}
}

// plainGigabytes is up to where a quantity without a unit is a number of gigabytes.
const plainGigabytes = 1 << 20

// readGigabytes reads "80Gi", and 80 as the field's name has it.
func readGigabytes(r *manifest.Reader, path string, q *resource.Quantity) float64 {
	if q == nil {
		return 0
	}
	if q.Sign() < 0 {
		r.Errorf(path, "%s is negative", q.String())
		return 0
	}
	n := q.AsApproximateFloat64()
	if n > plainGigabytes {
		n /= 1 << 30
	}
	return n
}

func readPrice(r *manifest.Reader, path string, q *resource.Quantity) *float64 {
	if q == nil {
		return nil
	}
	if q.Sign() < 0 {
		r.Errorf(path, "%s is negative", q.String())
	}
	return new(q.AsApproximateFloat64())
}

func notNegative(r *manifest.Reader, path string, n int64) {
	if n < 0 {
		r.Errorf(path, "%d is negative", n)
	}
}

// readNeeds reads what runtimes and services alike ask of a class.
func readNeeds(r *manifest.Reader, path string, n *needs) service.AcceleratorNeeds {
	notNegative(r, path+".minMemory", n.MinMemory)
	notNegative(r, path+".minComputePerformanceTFLOPS", n.MinComputePerformanceTFLOPS)
	return service.AcceleratorNeeds{MinMemoryGB: max(0, n.MinMemory), MinTFLOPS: max(0, n.MinComputePerformanceTFLOPS),
		MinCapability: n.MinArchitectureVersion, Features: n.RequiredFeatures, Precisions: n.PreferredPrecisions}
}

// readSelectors reads which accelerator classes a service asks for: AcceleratorClass
// has all that it names, each once, and Accelerators what holds for each role. What a
// component says goes before what the service does, field by field.
func readSelectors(r *manifest.Reader, spec *inferenceServiceSpec, s *service.Service) {
	annotated := service.AcceleratorSelector{Class: s.Annotations[classAnnotation]}
	whole := readSelector(r, "spec.acceleratorSelector", spec.AcceleratorSelector)
	named := []string{annotated.Class, whole.Class}
	for _, c := range []struct {
		role service.Role
		path string
		of   *component
	}{{service.RoleEngine, "spec.engine", spec.Engine}, {service.RoleDecoder, "spec.decoder", spec.Decoder}} {
		own := service.AcceleratorSelector{}
		if c.of != nil {
			own = readSelector(r, c.path+".acceleratorOverride", c.of.AcceleratorOverride)
		}
		named = append(named, own.Class)
		out := service.AcceleratorSelector{Class: cmp.Or(own.Class, whole.Class, annotated.Class), Policy: cmp.Or(own.Policy, whole.Policy), Needs: own.Needs}
		if own.Needs.IsZero() {
			out.Needs = whole.Needs
		}
		if out.Class != "" || out.Chooses() {
			if s.Accelerators == nil {
				s.Accelerators = map[service.Role]service.AcceleratorSelector{}
			}
			s.Accelerators[c.role] = out
		}
	}
	for _, name := range named {
		if name != "" && !slices.Contains(s.AcceleratorClass, name) {
			s.AcceleratorClass = append(s.AcceleratorClass, name)
		}
	}
}

func readSelector(r *manifest.Reader, path string, in *selector) service.AcceleratorSelector {
	if in == nil {
		return service.AcceleratorSelector{}
	}
	out := service.AcceleratorSelector{Class: in.AcceleratorClass, Policy: service.AcceleratorPolicy(in.Policy)}
	switch {
	case in.Policy != "" && !slices.Contains(service.AcceleratorPolicies, out.Policy):
		r.Errorf(path+".policy", "unknown policy %q: write one of %s", manifest.Clip(in.Policy), manifest.Joined(service.AcceleratorPolicies))
	case in.Policy != "" && in.AcceleratorClass != "":
		r.Warnf(path+".policy", "has no effect: acceleratorClass names the class")
	}
	if c := in.Constraints; c != nil {
		at := path + ".constraints"
		out.Needs = readNeeds(r, at, &c.needs)
		notNegative(r, at+".maxMemory", c.MaxMemory)
		out.Needs.MaxMemoryGB, out.Needs.Excluded, out.Needs.Families = max(0, c.MaxMemory), c.ExcludedClasses, c.ArchitectureFamilies
		if c.MaxMemory > 0 && c.MinMemory > c.MaxMemory {
			r.Errorf(at+".minMemory", "%d is more than maxMemory %d: no class has both", c.MinMemory, c.MaxMemory)
		}
	}
	return out
}

// readConfigs reads what an entry changes on classes of accelerators.
func readConfigs(r *manifest.Reader, path string, in map[string]*acceleratorConfig) map[string]service.AcceleratorConfig {
	var out map[string]service.AcceleratorConfig
	for _, class := range slices.Sorted(maps.Keys(in)) {
		c, at := in[class], strict.Key(path, class)
		if c == nil {
			continue
		}
		notNegative(r, at+".minMemoryPerBillionParams", c.MinMemoryPerBillionParams)
		manifest.CheckTemplates(r.Report, at+".runtimeArgsOverride", c.RuntimeArgsOverride)
		for _, name := range slices.Sorted(maps.Keys(c.EnvironmentOverride)) {
			where := strict.Key(at+".environmentOverride", name)
			if name == "" || strings.ContainsAny(name, "=\x00\r\n") {
				r.Errorf(where, "%q is not a variable's name", manifest.Clip(name))
			}
			manifest.CheckTemplate(r.Report, where, c.EnvironmentOverride[name])
		}
		one := service.AcceleratorConfig{MinMemoryPerBillionGB: max(0, c.MinMemoryPerBillionParams), Args: c.RuntimeArgsOverride, Env: c.EnvironmentOverride}
		if p := c.TensorParallelismOverride; p != nil {
			for _, f := range []struct {
				field string
				value int64
			}{{"tensorParallelSize", p.TensorParallelSize}, {"pipelineParallelSize", p.PipelineParallelSize}, {"dataParallelSize", p.DataParallelSize}} {
				if at := at + ".tensorParallelismOverride." + f.field; f.value < 0 || f.value > maxParallel {
					r.Errorf(at, "%d is not between 0 and %d", f.value, maxParallel)
				}
			}
			one.Parallel = service.AcceleratorParallel{Tensor: p.TensorParallelSize, Pipeline: p.PipelineParallelSize, Data: p.DataParallelSize}
		}
		if out == nil {
			out = map[string]service.AcceleratorConfig{}
		}
		out[class] = one
	}
	return out
}

// maxParallel is the most that a size of parallelism may be.
const maxParallel = 4096

// checkRuntimeAccelerators warns of settings for classes that nothing chooses.
func checkRuntimeAccelerators(r *manifest.Reader, spec *servingRuntimeSpec, out *service.Runtime) {
	for i, f := range spec.SupportedModelFormats {
		for _, class := range slices.Sorted(maps.Keys(f.AcceleratorConfig)) {
			if !slices.ContainsFunc(out.AcceleratorClasses, func(c string) bool { return strings.EqualFold(c, class) }) {
				r.Warnf(strict.Key(strict.Index("spec.supportedModelFormats", i)+".acceleratorConfig", class),
					"has no effect: acceleratorRequirements.acceleratorClasses does not list the class")
			}
		}
	}
	for _, path := range []string{"spec.engineConfig.acceleratorOverride", "spec.decoderConfig.acceleratorOverride"} {
		if r.Has(path) {
			r.Warnf(path, "has no effect in a runtime: a service asks for a class")
		}
	}
}

// pipeline is a diffusion pipeline as a model's model_index.json describes it.
type pipeline struct {
	ClassName            *string                      `json:"className"`
	Scheduler            *pipelineComponent           `json:"scheduler"`
	TextEncoder          *pipelineComponent           `json:"textEncoder"`
	Tokenizer            *pipelineComponent           `json:"tokenizer"`
	Transformer          *pipelineComponent           `json:"transformer"`
	VAE                  *pipelineComponent           `json:"vae"`
	AdditionalComponents map[string]pipelineComponent `json:"additionalComponents"`
}

type pipelineComponent struct {
	Library string `json:"library"`
	Type    string `json:"type"`
}

func (p *pipeline) read() *service.DiffusionPipeline {
	if p == nil {
		return nil
	}
	out := &service.DiffusionPipeline{Components: map[string]service.DiffusionComponent{}}
	if p.ClassName != nil {
		out.Class = *p.ClassName
	}
	for name, c := range map[string]*pipelineComponent{"scheduler": p.Scheduler, "textEncoder": p.TextEncoder, "tokenizer": p.Tokenizer, "transformer": p.Transformer, "vae": p.VAE} {
		if c != nil {
			out.Components[name] = service.DiffusionComponent(*c)
		}
	}
	for name, c := range p.AdditionalComponents {
		if _, twice := out.Components[name]; !twice {
			out.Components[name] = service.DiffusionComponent(c)
		}
	}
	if len(out.Components) == 0 {
		out.Components = nil
	}
	return out
}
