package selection

import (
	"bufio"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/test/golden"
)

// TestScripts runs testdata/*.txt. A script is lines of
//
//	runtime NAME [scope=cluster] [namespace=N] [protocols=a,b] [size=5B-9B] [created=2024-01-02] …
//	  format NAME[/VERSION] [framework=NAME[/VERSION]] [arch=A] [quant=Q] [auto] [priority=N] [op=…] [fop=…]
//	host [cluster] [programs=a,b] [gpus=N] [memory=16Gi]
//	class NAME [memory=80] [capability=9.0] [product=P] … (an accelerator class)
//	service NAME [namespace=N] [format=NAME[/VERSION]] … [runtime=NAME] [protocol=P] [default=P] …
//	reset
//	choose | conflicts
//	----
//	expected output, up to an empty line
//
// and comments that begin with #. Values hold spaces when in double quotes.
func TestScripts(t *testing.T) {
	golden.Scripts(t, func(t *testing.T, text string) string {
		got, err := (&script{}).run(text)
		if err != nil {
			t.Fatal(err)
		}
		return got
	})
}

// script is the state that a script's lines build up.
type script struct {
	runtimes []service.Runtime
	host     Host
	req      Request
	classes  []service.AcceleratorClass
}

// run executes a script and returns it with its output brought up to date.
func (s *script) run(text string) (string, error) {
	var out strings.Builder
	sc := bufio.NewScanner(strings.NewReader(text))
	for n := 1; sc.Scan(); n++ {
		line := sc.Text()
		out.WriteString(line + "\n")
		words, err := split(line)
		if err != nil {
			return "", fmt.Errorf("line %d: %w", n, err)
		}
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		result, err := s.command(words[0], fields(words[1:]))
		if err != nil {
			return "", fmt.Errorf("line %d: %w", n, err)
		}
		if words[0] != "choose" && words[0] != "conflicts" {
			continue
		}
		if !sc.Scan() || sc.Text() != "----" {
			return "", fmt.Errorf("line %d: %s must be followed by ----", n, words[0])
		}
		out.WriteString("----\n" + result + "\n")
		for n++; sc.Scan() && sc.Text() != ""; n++ {
		}
		n++
	}
	return out.String(), sc.Err()
}

func (s *script) command(verb string, f fieldList) (string, error) {
	var err error
	switch verb {
	case "reset":
		*s = script{}
	case "runtime":
		var rt service.Runtime
		rt, err = readRuntime(f)
		s.runtimes = append(s.runtimes, rt)
	case "format":
		if len(s.runtimes) == 0 {
			return "", fmt.Errorf("format before any runtime")
		}
		rt := &s.runtimes[len(s.runtimes)-1]
		var e service.SupportedFormat
		e, err = readFormat(f)
		rt.Formats = append(rt.Formats, e)
	case "host":
		s.host, err = readHost(f)
	case "class":
		var c service.AcceleratorClass
		c, err = readClass(f)
		s.classes = append(s.classes, c)
	case "service":
		s.req, err = readService(f)
	case "choose":
		return s.choose()
	case "conflicts":
		return s.conflicts(), nil
	default:
		return "", fmt.Errorf("unknown command %q", verb)
	}
	return "", err
}

// choose prints the explanation, having checked that it survives JSON.
func (s *script) choose() (string, error) {
	s.req.Classes = s.classes
	res := Choose(s.req, s.runtimes, s.host)
	text := res.Explain()
	data, err := json.Marshal(res)
	if err != nil {
		return "", err
	}
	var back Result
	if err := json.Unmarshal(data, &back); err != nil {
		return "", err
	}
	if again := back.Explain(); again != text {
		return "", fmt.Errorf("the explanation changed through JSON:\n%s\nwas\n%s", again, text)
	}
	return text, nil
}

func (s *script) conflicts() string {
	var b strings.Builder
	for _, c := range Conflicts(s.runtimes) {
		fmt.Fprintf(&b, "%s %s: %s\n", c.Runtime.Name, c.Field, c.Message)
	}
	if b.Len() == 0 {
		return "none\n"
	}
	return b.String()
}

// fieldList is the words after a verb: a name, flags and key=value pairs.
type fieldList map[string]string

func fields(words []string) fieldList {
	f := fieldList{}
	for i, w := range words {
		k, v, ok := strings.Cut(w, "=")
		if !ok && i == 0 {
			k, v = "name", w
		}
		f[k] = v
	}
	return f
}

func (f fieldList) has(k string) bool { _, ok := f[k]; return ok }

// only refuses keys that the command does not know.
func (f fieldList) only(keys string) error {
	known := strings.Fields(keys)
	for k := range f {
		found := false
		for _, have := range known {
			found = found || k == have
		}
		if !found {
			return fmt.Errorf("unknown field %q, known: %s", k, keys)
		}
	}
	return nil
}

// split cuts a line at spaces; double quotes keep them.
func split(line string) ([]string, error) {
	var words []string
	word, quoted, open := "", false, false
	for _, r := range line + " " {
		switch {
		case r == '"':
			quoted, open = !quoted, true
		case r == ' ' && !quoted:
			if word != "" || open {
				words = append(words, word)
			}
			word, open = "", false
		default:
			word += string(r)
		}
	}
	if quoted {
		return nil, fmt.Errorf("unclosed quote")
	}
	return words, nil
}

func list(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

func namedVersion(s string) service.NamedVersion {
	name, v, _ := strings.Cut(s, "/")
	return service.NamedVersion{Name: name, Version: v}
}

func readRuntime(f fieldList) (rt service.Runtime, err error) {
	if err := f.only("name scope namespace protocols size created disabled multi any multinode decoder workers classes image local install gpus memory adapters minmemory mincapability features"); err != nil {
		return rt, err
	}
	rt.Name, rt.Namespace, rt.Scope = f["name"], f["namespace"], service.ScopeCluster
	if rt.Namespace != "" {
		rt.Scope = service.ScopeNamespace
	}
	if f.has("scope") {
		rt.Scope = service.Scope(f["scope"])
	}
	for _, p := range list(f["protocols"]) {
		proto, ok := service.ParseProtocol(p)
		if !ok {
			return rt, fmt.Errorf("protocol %q", p)
		}
		rt.Protocols = append(rt.Protocols, proto)
	}
	if f.has("size") {
		lo, hi, _ := strings.Cut(f["size"], "-")
		rt.Size = &service.SizeRange{Min: parameters(lo), Max: parameters(hi)}
	}
	if f.has("created") {
		if rt.Created, err = time.Parse("2006-01-02", f["created"]); err != nil {
			return rt, err
		}
	}
	rt.Disabled, rt.MultiModel, rt.AutoSelectAny, rt.MultiNode = f.has("disabled"), f.has("multi"), f.has("any"), f.has("multinode")
	rt.AcceleratorClasses = list(f["classes"])
	rt.AcceleratorNeeds = readNeeds(f)
	if f.has("adapters") {
		rt.Adapters = &service.AdapterArgs{Each: []string{"{{.Adapter}}"}}
	}
	rt.Components, err = readComponents(f)
	return rt, err
}

func parameters(s string) int64 {
	n, err := service.ParseParameters(s)
	if err != nil {
		return 0
	}
	return n
}

// readComponents makes an engine, and a decoder or workers where asked for,
// each with the container the fields describe.
func readComponents(f fieldList) (c service.Components, err error) {
	main := corev1.Container{Name: "main", Image: f["image"]}
	for field, name := range map[string]corev1.ResourceName{"gpus": "nvidia.com/gpu", "memory": corev1.ResourceMemory} {
		if !f.has(field) {
			continue
		}
		q, err := resource.ParseQuantity(f[field])
		if err != nil {
			return c, err
		}
		if main.Resources.Limits == nil {
			main.Resources.Limits = corev1.ResourceList{}
		}
		main.Resources.Limits[name] = q
	}
	fresh := func() *service.Component {
		part := &service.Component{Main: "main", Pod: corev1.PodSpec{Containers: []corev1.Container{main}}}
		if f.has("local") {
			part.Local = &service.Local{Command: strings.Fields(f["local"]), Install: f["install"]}
		}
		return part
	}
	c.Engine = fresh()
	if f.has("decoder") {
		c.Decoder = fresh()
	}
	if f.has("workers") {
		n, err := strconv.Atoi(f["workers"])
		if err != nil {
			return c, err
		}
		c.Engine.Worker = &service.Node{Main: "main", Pod: c.Engine.Pod, Size: n}
	}
	return c, nil
}

func readFormat(f fieldList) (e service.SupportedFormat, err error) {
	if err := f.only("name framework arch quant auto priority op fop pipeline vae on tp perbillion"); err != nil {
		return e, err
	}
	e.Format, e.Framework = namedVersion(f["name"]), namedVersion(f["framework"])
	e.Architecture, e.Quantization, e.AutoSelect = f["arch"], f["quant"], f.has("auto")
	e.Diffusion = readPipeline(f)
	if f.has("on") {
		config := service.AcceleratorConfig{MinMemoryPerBillionGB: int64(number0(f["perbillion"]))}
		config.Parallel.Tensor = int64(number0(f["tp"]))
		e.Accelerators = map[string]service.AcceleratorConfig{f["on"]: config}
	}
	e.FormatOperator, e.FrameworkOperator = service.Operator(f["op"]), service.Operator(f["fop"])
	if f.has("priority") {
		p, err := strconv.Atoi(f["priority"])
		if err != nil {
			return e, err
		}
		e.Priority = &p
	}
	return e, nil
}

func readHost(f fieldList) (h Host, err error) {
	if err := f.only("name cluster programs gpus memory gpu"); err != nil {
		return h, err
	}
	h.Cluster = f["name"] == "cluster"
	h.Programs = map[string]bool{}
	for _, p := range list(f["programs"]) {
		h.Programs[p] = true
	}
	if f.has("gpus") {
		if h.Accelerators, err = strconv.Atoi(f["gpus"]); err != nil {
			return h, err
		}
	}
	for _, g := range list(f["gpu"]) { // NAME/GIGABYTES/CAPABILITY
		parts := strings.Split(g+"//", "/")
		h.GPUs = append(h.GPUs, GPU{Name: parts[0], Memory: int64(number0(parts[1]) * (1 << 30)), Capability: parts[2]})
		h.Accelerators = len(h.GPUs)
	}
	if f.has("memory") {
		q, err := resource.ParseQuantity(f["memory"])
		if err != nil {
			return h, err
		}
		h.MemoryBytes = q.Value()
	}
	return h, nil
}

func readService(f fieldList) (req Request, err error) {
	if err := f.only("name namespace api format framework arch quant size from runtime kind protocol default multi custom decoder workers classes gpus adapters pipeline vae policy decoderpolicy minmemory maxmemory mincapability features excluded families precisions"); err != nil {
		return req, err
	}
	a := service.Attributes{Format: namedVersion(f["format"]), Framework: namedVersion(f["framework"]),
		Architecture: f["arch"], Quantization: f["quant"], Parameters: parameters(f["size"]), Diffusion: readPipeline(f)}
	for _, pair := range list(f["from"]) {
		if a.From == nil {
			a.From = map[string]string{}
		}
		k, v, _ := strings.Cut(pair, ":")
		a.From[k] = v
	}
	svc := &service.Service{MultiModel: f.has("multi"), Custom: f.has("custom"), AcceleratorClass: list(f["classes"])}
	svc.Name, svc.Namespace, svc.Origin.APIVersion = f["name"], service.DefaultNamespace, f["api"]
	sel := service.AcceleratorSelector{Policy: service.AcceleratorPolicy(f["policy"]), Needs: readNeeds(f)}
	if names := list(f["classes"]); len(names) == 1 {
		sel.Class = names[0]
	}
	if sel.Class != "" || sel.Chooses() {
		svc.Accelerators = map[service.Role]service.AcceleratorSelector{service.RoleEngine: sel, service.RoleDecoder: sel}
	}
	if f.has("decoderpolicy") {
		sel.Policy = service.AcceleratorPolicy(f["decoderpolicy"])
		svc.Accelerators[service.RoleDecoder] = sel
	}
	if f.has("namespace") {
		svc.Namespace = f["namespace"]
	}
	if f.has("runtime") {
		svc.Runtime = &service.ObjectRef{Name: f["runtime"], Kind: f["kind"]}
	}
	for _, name := range list(f["adapters"]) {
		if svc.Model == nil {
			svc.Model = &service.ModelSource{}
		}
		svc.Model.Adapters = append(svc.Model.Adapters, service.Adapter{Name: name})
	}
	var ok1, ok2 bool
	svc.Protocol, ok1 = service.ParseProtocol(f["protocol"])
	svc.ProtocolDefault, ok2 = service.ParseProtocol(f["default"])
	if !ok1 || !ok2 {
		return req, fmt.Errorf("unknown protocol")
	}
	if f.has("decoder") || f.has("workers") || f.has("gpus") {
		svc.Components, err = readComponents(f)
	}
	return Request{Service: svc, Attributes: a}, err
}

func number0(s string) float64 {
	n, _ := strconv.ParseFloat(s, 64)
	return n
}

func readPipeline(f fieldList) *service.DiffusionPipeline {
	if !f.has("pipeline") && !f.has("vae") {
		return nil
	}
	p := &service.DiffusionPipeline{Class: f["pipeline"]}
	if f.has("vae") {
		library, kind, _ := strings.Cut(f["vae"], ".")
		p.Components = map[string]service.DiffusionComponent{"vae": {Library: library, Type: kind}}
	}
	return p
}

func readNeeds(f fieldList) service.AcceleratorNeeds {
	return service.AcceleratorNeeds{MinMemoryGB: int64(number0(f["minmemory"])), MaxMemoryGB: int64(number0(f["maxmemory"])), MinCapability: f["mincapability"],
		Features: list(f["features"]), Excluded: list(f["excluded"]), Families: list(f["families"]), Precisions: list(f["precisions"])}
}

func readClass(f fieldList) (c service.AcceleratorClass, err error) {
	if err := f.only("name vendor family model memory capability bandwidth features fp16 int8 hour spot tokens tier product device"); err != nil {
		return c, err
	}
	c.Name, c.Vendor, c.Family, c.Model = f["name"], f["vendor"], f["family"], f["model"]
	c.MemoryGB, c.BandwidthGBps, c.ComputeCapability, c.Features = number0(f["memory"]), number0(f["bandwidth"]), f["capability"], list(f["features"])
	c.TFLOPS = map[string]int64{"fp16": int64(number0(f["fp16"])), "int8": int64(number0(f["int8"]))}
	if f.has("product") {
		c.NodeSelector = map[string]string{"nvidia.com/gpu.product": f["product"]}
	}
	c.PCIDevices = list(f["device"])
	c.Cost.Tier = f["tier"]
	for key, at := range map[string]**float64{"hour": &c.Cost.PerHour, "spot": &c.Cost.SpotPerHour, "tokens": &c.Cost.PerMillionTokens} {
		if f.has(key) {
			*at = new(number0(f[key]))
		}
	}
	return c, nil
}
