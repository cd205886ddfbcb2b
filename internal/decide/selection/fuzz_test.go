package selection

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// generator draws requests and runtimes from vocabularies small enough that
// matches, ties and near misses are common.
type generator struct{ *rand.Rand }

func (g generator) pick(words ...string) string { return words[g.IntN(len(words))] }

func (g generator) one(in int) bool { return g.IntN(in) == 0 }

func (g generator) versioned(names ...string) service.NamedVersion {
	v := service.NamedVersion{Name: g.pick(names...)}
	if v.Name != "" {
		v.Version = g.pick("", "", "1", "1.0", "v1", "1.0.0-rc1", "1.0rc1", "1.1.post2", "2", "2.0.0+cu1", "2.1.dev0", "beta", "Beta")
	}
	return v
}

func (g generator) parameters() int64 {
	return []int64{0, 0, 3e9, 7e9, 7_200_000_000, 9e9, 70e9}[g.IntN(7)]
}

func (g generator) attributes() service.Attributes {
	return service.Attributes{
		Format:       g.versioned("sklearn", "SKLearn", "xgboost", "safetensors", ""),
		Framework:    g.versioned("", "transformers", "Transformers", "torch"),
		Architecture: g.pick("", "LlamaForCausalLM", "MistralForCausalLM"),
		Quantization: g.pick("", "", "fp8"),
		Diffusion:    g.pipeline(),
		Parameters:   g.parameters(),
	}
}

func (g generator) pipeline() *service.DiffusionPipeline {
	if !g.one(4) {
		return nil
	}
	p := &service.DiffusionPipeline{Class: g.pick("", "FluxPipeline", "QwenImagePipeline")}
	for _, name := range []string{"vae", "scheduler"} {
		if g.one(2) {
			if p.Components == nil {
				p.Components = map[string]service.DiffusionComponent{}
			}
			p.Components[name] = service.DiffusionComponent{Library: g.pick("", "diffusers", "transformers"), Type: g.pick("", "AutoencoderKL")}
		}
	}
	return p
}

// near is an entry made from the model, so that most agree somewhere.
func (g generator) near(a service.Attributes) service.SupportedFormat {
	other := g.attributes()
	f := service.SupportedFormat{Format: a.Format, Framework: a.Framework, Architecture: a.Architecture, Quantization: a.Quantization}
	switch g.IntN(16) {
	case 0, 1, 2:
		f.Diffusion = a.Diffusion
	case 3:
		f.Diffusion = other.Diffusion
	}
	if g.one(3) {
		f.Accelerators = map[string]service.AcceleratorConfig{g.pick("h100", "A100"): {MinMemoryPerBillionGB: int64(g.IntN(30)),
			Parallel: service.AcceleratorParallel{Tensor: int64(g.IntN(3)), Pipeline: int64(g.IntN(2))}}}
	}
	if g.one(4) {
		f.Format = other.Format
	}
	if g.one(3) {
		f.Framework = other.Framework
	}
	if g.one(3) {
		f.Architecture = other.Architecture
	}
	if g.one(3) {
		f.Quantization = other.Quantization
	}
	if g.one(3) {
		f.Framework = service.NamedVersion{}
	}
	f.FormatOperator = service.Operator(g.pick("", "", "Equal", "GreaterThan", "GreaterThanOrEqual"))
	f.FrameworkOperator = service.Operator(g.pick("", "", "Equal", "GreaterThan", "GreaterThanOrEqual"))
	f.AutoSelect = !g.one(4)
	if !g.one(3) {
		p := g.IntN(4)
		f.Priority = &p
	}
	return f
}

func (g generator) component(complete bool) *service.Component {
	box := corev1.Container{Name: "main", Image: g.pick("", "a/b:1", "host:5000/a@sha256:0")}
	if g.one(3) {
		box.Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(g.pick("0", "1", "2", "8"))}
	}
	if g.one(3) {
		box.Resources.Requests = corev1.ResourceList{"memory": resource.MustParse(g.pick("1Gi", "30Gi"))}
	}
	c := &service.Component{Main: "main", Pod: corev1.PodSpec{Containers: []corev1.Container{box}}}
	if complete && !g.one(8) || !complete && g.one(4) {
		c.Local = &service.Local{Command: strings.Fields(g.pick("serve", "serve", "absent --x", "/opt/serve", "python3 -m vllm", "python3 -m gone", "")),
			Install: g.pick("", "pip install it")}
	}
	if complete && g.one(10) {
		c.Worker = &service.Node{Main: "main", Pod: c.Pod, Size: g.IntN(3)}
	}
	return c
}

func (g generator) runtime(i int, a service.Attributes) service.Runtime {
	rt := service.Runtime{Scope: service.Scope(g.pick("namespace", "cluster", "cluster", "catalog"))}
	rt.Name = fmt.Sprintf("rt-%d", i)
	if rt.Scope == service.ScopeNamespace {
		rt.Namespace = g.pick("default", "default", "other")
	}
	if rt.Scope != service.ScopeCatalog {
		rt.Created = time.Unix(int64(g.IntN(3))*3600, 0)
		if g.one(6) {
			rt.Name = "rt-0" // the same name in another scope
		}
	}
	rt.Disabled, rt.MultiModel, rt.AutoSelectAny, rt.MultiNode = g.one(12), g.one(12), g.one(3), g.one(15)
	for range g.IntN(4) {
		rt.Formats = append(rt.Formats, g.near(a))
	}
	for range g.IntN(3) {
		rt.Protocols = append(rt.Protocols, service.Protocols[g.IntN(len(service.Protocols))])
	}
	if !g.one(3) {
		rt.Size = &service.SizeRange{Min: []int64{0, 1e9, 5e9, 7e9}[g.IntN(4)], Max: []int64{0, 7e9, 9e9, 100e9}[g.IntN(4)]}
	}
	for range g.IntN(4) {
		rt.AcceleratorClasses = append(rt.AcceleratorClasses, g.pick("h100", "A100", "l4"))
	}
	if g.one(16) {
		rt.AcceleratorNeeds = g.needs()
	}
	if !g.one(15) {
		rt.Components.Engine = g.component(true)
	}
	if g.one(2) {
		rt.Adapters = &service.AdapterArgs{Each: []string{"{{.Adapter}}"}}
	}
	if e := rt.Components.Engine; e != nil && e.Local != nil && g.one(4) {
		e.Local.Command = []string{"sh", "-c", g.pick("serve", `serve "$@"`)}
	}
	if g.one(10) {
		rt.Components.Decoder = g.component(true)
	}
	if g.one(10) {
		rt.Components.Router = g.component(true)
	}
	return rt
}

func (g generator) request() Request {
	svc := &service.Service{MultiModel: g.one(15)}
	svc.Name, svc.Namespace = "s", service.DefaultNamespace
	svc.Origin.APIVersion = g.pick("", "serving.kserve.io/v1beta1", "ome.io/v1beta1")
	svc.Protocol = service.Protocol(g.pick("", "", "", "v1", "v2", "openAI"))
	svc.ProtocolDefault = service.Protocol(g.pick("", "", "v1", "openAI"))
	if g.one(4) {
		svc.Runtime = &service.ObjectRef{Name: fmt.Sprintf("rt-%d", g.IntN(4)), Kind: g.pick("", "", "ServingRuntime", "ClusterServingRuntime")}
	}
	for _, role := range []service.Role{service.RoleEngine, service.RoleDecoder} {
		var sel service.AcceleratorSelector
		if g.one(20) {
			sel.Class = g.pick("H100", "a100")
			svc.AcceleratorClass = append(svc.AcceleratorClass, sel.Class)
		}
		if g.one(10) {
			sel.Policy = service.AcceleratorPolicy(g.pick("", "BestFit", "Cheapest", "MostCapable", "FirstAvailable"))
			sel.Needs = g.needs()
		}
		if sel.Class != "" || sel.Policy != "" || !sel.Needs.IsZero() {
			if svc.Accelerators == nil {
				svc.Accelerators = map[service.Role]service.AcceleratorSelector{}
			}
			svc.Accelerators[role] = sel
		}
	}
	if g.one(4) {
		svc.Components.Engine = g.component(false)
	}
	if g.one(4) {
		svc.Model = &service.ModelSource{Adapters: []service.Adapter{{Name: "sql"}}}
	}
	if g.one(12) {
		svc.Components.Decoder = g.component(false)
	}
	return Request{Service: svc, Attributes: g.attributes(), Classes: g.classes()}
}

func (g generator) needs() service.AcceleratorNeeds {
	var n service.AcceleratorNeeds
	switch g.IntN(10) {
	case 0:
		n.MinMemoryGB = []int64{24, 41, 80}[g.IntN(3)]
	case 1:
		n.MaxMemoryGB = []int64{24, 41}[g.IntN(2)]
	case 2:
		n.MinCapability = g.pick("8.0", "9", "10.0")
	case 3:
		n.Features = []string{g.pick("FP8", "nvlink")}
	case 4:
		n.Excluded = []string{g.pick("H100", "l4")}
	case 5:
		n.Families = []string{g.pick("hopper", "NVIDIA-Ampere", "cdna")}
	case 6:
		n.Precisions = []string{g.pick("fp8", "int4"), g.pick("FP16", "fp32")}
	case 7:
		n.MinTFLOPS = 500
		n.MinMemoryGB = 24
	}
	return n
}

func (g generator) classes() (out []service.AcceleratorClass) {
	figure := func(n ...int64) int64 { return n[g.IntN(len(n))] }
	for _, name := range []string{"h100", "a100", "L4"} {
		if g.one(3) {
			continue
		}
		c := service.AcceleratorClass{Vendor: g.pick("", "nvidia"), Family: g.pick("", "hopper", "ampere"), Model: g.pick("", name),
			MemoryGB: float64(figure(0, 24, 40, 80)), ComputeCapability: g.pick("", "8.9", "9.0", "10"), BandwidthGBps: float64(figure(0, 300, 3350))}
		c.Name = name
		if g.one(2) {
			c.Features = []string{"fp8"}
			c.TFLOPS = map[string]int64{"fp16": figure(312, 989), "int8": figure(624, 1979)}
		}
		if g.one(6) {
			c.PCIVendor, c.PCIDevices = g.pick("", "10DE"), []string{g.pick("2330", "20b5")}
		}
		price := func() *float64 {
			if g.one(2) {
				return nil
			}
			return new(float64(figure(1, 2, 5)))
		}
		switch g.IntN(4) {
		case 0:
			c.Cost.PerHour, c.Cost.SpotPerHour = price(), price()
		case 1:
			c.Cost.PerMillionTokens = price()
		case 2:
			c.Cost.Tier = g.pick("low", "High", "odd")
		}
		out = append(out, c)
	}
	return out
}

func (g generator) host() Host {
	h := Host{Cluster: g.one(2), Programs: map[string]bool{"serve": true, "python3": true}, Accelerators: g.IntN(4)}
	if g.one(2) {
		h.Programs["python3 -m vllm"] = true
	}
	if g.one(2) {
		h.MemoryBytes = 16 << 30
	}
	if g.one(2) {
		known := []GPU{{Name: "NVIDIA H100 80GB HBM3", Memory: 81559 << 20, Capability: "9.0", PCIVendor: "10de", PCIDevice: "2330"},
			{Name: "NVIDIA A100-SXM4-40GB", Memory: 40960 << 20, Capability: "8.0"}, {Name: "NVIDIA L4", Capability: "8.9"}, {}}
		for range h.Accelerators {
			h.GPUs = append(h.GPUs, known[g.IntN(len(known))])
		}
	}
	return h
}

// scene is a whole problem; runtimes of one scope and namespace have distinct
// names.
func (g generator) scene(n int) (Request, []service.Runtime, Host) {
	req := g.request()
	var rts []service.Runtime
	seen := map[string]bool{}
	for i := range n {
		rt := g.runtime(i, req.Attributes)
		if id := identity(&rt); !seen[id] {
			seen[id] = true
			rts = append(rts, rt)
		}
	}
	return req, rts, g.host()
}

func identity(rt *service.Runtime) string {
	return string(rt.Scope) + "/" + rt.Namespace + "/" + rt.Name
}

// agree holds Choose against the naive selection on one problem.
func agree(t *testing.T, req Request, rts []service.Runtime, host Host) (chosen bool) {
	t.Helper()
	before := encode(t, rts)
	res := Choose(req, rts, host)
	vs, protocol, reason := naiveChoose(req, rts, host)
	if after := encode(t, rts); after != before {
		t.Fatal("Choose changed its runtimes")
	}
	if res.Reason != reason || res.Protocol != protocol || len(res.Candidates) != len(vs) || (res.Chosen == nil) == (reason == "") {
		t.Fatalf("got reason %q protocol %q of %d, want %q %q of %d\n%s", res.Reason, res.Protocol, len(res.Candidates), reason, protocol, len(vs), res.Explain())
	}
	for _, v := range vs {
		i := slices.IndexFunc(res.Candidates, func(c Candidate) bool { return identity(c.Runtime) == identity(&v.rt) })
		if i < 0 {
			t.Fatalf("%s is no candidate", identity(&v.rt))
		}
		same(t, i, res.Candidates[i], v)
	}
	if res.Chosen == nil && (res.Message == "" || strings.Contains(res.Message, "\n")) {
		t.Errorf("message %q is not one line", res.Message)
	}
	if t.Failed() {
		t.Fatalf("attributes %+v\nservice %s\nclasses %s\nGPUs %+v\n%s\nruntimes %s", req.Attributes, encode(t, req.Service), encode(t, req.Classes), host.GPUs, res.Explain(), before)
	}
	return res.Chosen != nil
}

// same holds the candidate at index i against the naive verdict.
func same(t *testing.T, i int, c Candidate, v verdict) {
	t.Helper()
	if c.Rank != v.rank || c.Entry != v.entry || c.Rank > 0 && i != c.Rank-1 {
		t.Errorf("%s: rank %d at %d, entry %d; want rank %d, entry %d", c.Name, c.Rank, i, c.Entry, v.rank, v.entry)
	}
	if len(c.Rules) != len(v.rules) {
		t.Errorf("%s: %d rules, want %d", c.Name, len(c.Rules), len(v.rules))
	}
	if c.Classes != (service.RoleClasses{Engine: v.engine, Decoder: v.decoder}) {
		t.Errorf("%s: classes %+v, want %q and %q", c.Name, c.Classes, v.engine, v.decoder)
	}
	for _, r := range c.Rules {
		if r.Pass != v.rules[r.Name] || r.Why == "" {
			t.Errorf("%s: rule %s: %v (%q), want %v", c.Name, r.Name, r.Pass, r.Why, v.rules[r.Name])
		}
	}
}

func encode(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// permuted checks that the order of the runtimes has no influence.
func permuted(t *testing.T, g generator, req Request, rts []service.Runtime, host Host) {
	t.Helper()
	want, conflicts := Choose(req, rts, host).Explain(), conflictText(rts)
	shuffled := slices.Clone(rts)
	g.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	if got := Choose(req, shuffled, host).Explain(); got != want {
		t.Fatalf("the order of runtimes changed the result:\n%s\nwas\n%s", got, want)
	}
	if got := conflictText(shuffled); got != conflicts {
		t.Fatalf("the order of runtimes changed the conflicts:\n%s\nwas\n%s", got, conflicts)
	}
}

func conflictText(rts []service.Runtime) string {
	var b strings.Builder
	for _, c := range Conflicts(rts) {
		fmt.Fprintln(&b, c.Runtime.Name, c.Other != nil, c.Field, c.Message)
	}
	return b.String()
}

func TestAgainstNaive(t *testing.T) {
	chosen, total := 0, 2000
	for seed := range total {
		g := generator{rand.New(rand.NewPCG(uint64(seed), 7))}
		req, rts, host := g.scene(1 + g.IntN(12))
		if agree(t, req, rts, host) {
			chosen++
		}
		permuted(t, g, req, rts, host)
	}
	// The vocabulary must leave both outcomes common, or the test says little.
	if chosen < total/5 || chosen > total*4/5 {
		t.Errorf("%d of %d problems had a choice: the generator is one-sided", chosen, total)
	}
}

func FuzzAgainstNaive(f *testing.F) {
	for seed := range uint64(16) {
		f.Add(seed, seed*3, uint8(seed))
	}
	f.Fuzz(func(t *testing.T, a, b uint64, n uint8) {
		g := generator{rand.New(rand.NewPCG(a, b))}
		req, rts, host := g.scene(int(n % 24))
		agree(t, req, rts, host)
		permuted(t, g, req, rts, host)
	})
}

// FuzzVersions: comparing is an order, whatever the text.
func FuzzVersions(f *testing.F) {
	for _, s := range []string{"1", "v1.0", "1.0.0-rc.1", "4.40.0.dev0", "1..2", "00.0", "1.post1", "", "v", "1-", "99999999999999999999999"} {
		f.Add(s, "1.0", "2.0rc1")
	}
	f.Fuzz(func(t *testing.T, a, b, c string) {
		x, ok1 := parseVersion(a)
		y, ok2 := parseVersion(b)
		z, ok3 := parseVersion(c)
		if x.compare(x) != 0 || x.compare(y) != -y.compare(x) {
			t.Fatalf("%q and %q: %d and %d", a, b, x.compare(y), y.compare(x))
		}
		if text := strings.TrimSpace(a); text != "" && !ask(a).metBy(a, service.OperatorGreaterThanOrEqual) {
			t.Fatalf("%q does not meet itself", a)
		}
		if ok1 && ok2 && ok3 && x.compare(y) <= 0 && y.compare(z) <= 0 && x.compare(z) > 0 {
			t.Fatalf("%q <= %q <= %q, but not the first and the last", a, b, c)
		}
	})
}

func TestTotalOrder(t *testing.T) {
	g := generator{rand.New(rand.NewPCG(1, 2))}
	draw := func() standing {
		return standing{scope: g.IntN(2), fit: g.IntN(3), distance: int64(g.IntN(2)), priority: g.IntN(2), met: g.IntN(2),
			protocol: g.IntN(2), created: time.Unix(int64(g.IntN(2)), 0), name: g.pick("a", "b")}
	}
	for range 20000 {
		a, b, c := draw(), draw(), draw()
		if compare(&a, &b) != -compare(&b, &a) {
			t.Fatalf("not antisymmetric: %+v %+v", a, b)
		}
		if compare(&a, &b) <= 0 && compare(&b, &c) <= 0 && compare(&a, &c) > 0 {
			t.Fatalf("not transitive: %+v %+v %+v", a, b, c)
		}
		if (compare(&a, &b) == 0) != (a == b) {
			t.Fatalf("not total: %+v %+v", a, b)
		}
	}
}

func BenchmarkChoose100(b *testing.B) {
	g := generator{rand.New(rand.NewPCG(5, 5))}
	req := g.request()
	req.Service.Runtime = nil
	req.Attributes = service.Attributes{Format: service.NamedVersion{Name: "safetensors", Version: "1"}, Architecture: "LlamaForCausalLM", Parameters: 7e9}
	var rts []service.Runtime
	for i := range 100 {
		rts = append(rts, g.runtime(i, req.Attributes))
	}
	host := g.host()
	b.ReportAllocs()
	for b.Loop() {
		Choose(req, rts, host)
	}
}
