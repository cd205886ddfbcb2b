package selection

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"roundhouse.dev/roundhouse/internal/core/service"
)

func TestProgram(t *testing.T) {
	for _, c := range []struct{ command, want string }{
		{"", ""},
		{"vllm serve", "vllm"},
		{"roundhouse serve {{.ModelPath}}", "roundhouse"},
		{"./bin/serve", ""},
		{"/usr/bin/python3 -m vllm", ""},
		{"{{.Annotations.program}} x", ""},
		{"python3 -m vllm.entrypoints.openai.api_server --port 1", "python3 -m vllm.entrypoints.openai.api_server"},
		{"python3 -u -O -m sglang.launch_server", "python3 -m sglang.launch_server"},
		{"python3.12 -m x", "python3.12 -m x"},
		{"python3 server.py -m x", "python3"},
		{"python3 -m", "python3"},
		{"sh -m x", "sh"},
	} {
		if got := Program(strings.Fields(c.command)); got != c.want {
			t.Errorf("Program(%q) = %q, want %q", c.command, got, c.want)
		}
	}
}

func TestHostRuleOfOwnContainers(t *testing.T) {
	engine := &service.Component{Main: "user", Pod: corev1.PodSpec{Containers: []corev1.Container{
		{Name: "sidecar", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("64")}}},
		{Name: "user", Image: "team/app:2", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1"), "amd.com/gpu": resource.MustParse("1")}}},
	}}}
	host := Host{Programs: map[string]bool{"app": true}, Accelerators: 2}
	r := HostRule(service.Components{Engine: engine}, host)
	if r.Pass || r.Why != "no command for image team/app on this machine" {
		t.Errorf("without a command: %+v", r)
	}
	engine.Pod.Containers[1].Command = []string{"/app/run", "--fast"}
	if r, want := HostRule(service.Components{Engine: engine}, host), "no command for image team/app on this machine: its command /app/run is taken for a path in the image; name a program that is on PATH"; r.Pass || r.Why != want {
		t.Errorf("with a path as its command: %+v, want %q", r, want)
	}
	engine.Local = &service.Local{Command: []string{"app"}}
	if r := HostRule(service.Components{Engine: engine}, host); !r.Pass {
		t.Errorf("with a command: %+v", r)
	}
	host.Accelerators = 1
	if r := HostRule(service.Components{Engine: engine}, host); r.Pass || !strings.Contains(r.Why, "needs 2 GPUs") {
		t.Errorf("with one GPU: %+v", r)
	}
	if r := HostRule(service.Components{}, host); r.Pass {
		t.Errorf("nothing to run: %+v", r)
	}
	if r := HostRule(service.Components{}, Host{Cluster: true}); !r.Pass {
		t.Errorf("on a cluster: %+v", r)
	}
	if r := HostRule(service.Components{Engine: engine}, Host{Cluster: true}); !r.Pass {
		t.Errorf("a container on a cluster: %+v", r)
	}
	engine.Pod = corev1.PodSpec{}
	if r := HostRule(service.Components{Engine: engine}, Host{Cluster: true}); r.Pass || r.Why != "its engine is a command for one machine and has no container" {
		t.Errorf("a command on a cluster: %+v", r)
	}
	needs := &service.Component{Main: "main", Pod: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}}
	if r := clusterRule(service.Components{Engine: engine}, service.Components{Engine: needs}); r.Pass {
		t.Errorf("a command on a cluster, with what the service needs of memory: %+v", r)
	}
	if r := HostRule(service.Components{Engine: &service.Component{Main: "main"}}, Host{Cluster: true}); r.Pass || r.Why != "it leaves to the service what its engine runs, and the service names no image" {
		t.Errorf("a runtime that says not what runs: %+v", r)
	}
}

// Figures no machine has must neither wrap around nor fit.
func TestHostileFigures(t *testing.T) {
	huge := corev1.PodSpec{Containers: []corev1.Container{{Name: "m", Resources: corev1.ResourceRequirements{
		Limits:   corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("9e18")},
		Requests: corev1.ResourceList{"memory": resource.MustParse("9e18")}}}}}
	node := &service.Node{Pod: huge, Size: 1 << 62}
	local := &service.Local{Command: []string{"/x"}}
	c := service.Components{Engine: &service.Component{Pod: huge, Local: local, Leader: node, Worker: node},
		Decoder: &service.Component{Pod: huge, Local: local}}
	r := HostRule(c, Host{Accelerators: 8, MemoryBytes: 1 << 40})
	for _, want := range []string{"GPUs, this machine has 8", "of memory, this machine has 1024Gi", "nodes, this is one machine"} {
		if !strings.Contains(r.Why, want) || strings.Contains(r.Why, "needs -") {
			t.Errorf("%q lacks %q", r.Why, want)
		}
	}
}

func TestZeroRequest(t *testing.T) {
	res := Choose(Request{}, nil, Host{})
	if res.Chosen != nil || res.Reason != NoSupportingRuntime || res.Message == "" {
		t.Errorf("%+v", res)
	}
	res = Choose(Request{}, []service.Runtime{{}}, Host{})
	if res.Chosen != nil || len(res.Candidates) != 1 || res.Candidates[0].Entry != -1 {
		t.Errorf("%+v", res)
	}
}

func TestInputsHash(t *testing.T) {
	base := func() *service.Service {
		return &service.Service{Meta: service.Meta{Key: service.Key{Namespace: "a", Name: "b"}},
			Model: &service.ModelSource{URI: "file://x", Attributes: service.Attributes{Format: service.NamedVersion{Name: "xgboost"}}}}
	}
	hash := func(change func(*service.Service)) string {
		s := base()
		change(s)
		return InputsHash(Request{Service: s})
	}
	same := hash(func(*service.Service) {})
	two := 2
	for name, change := range map[string]func(*service.Service){
		"labels": func(s *service.Service) { s.Labels = map[string]string{"a": "b"} },
		"scaling": func(s *service.Service) {
			s.Components.Engine = &service.Component{Scaling: service.Scaling{MinReplicas: &two}}
		},
		"from":    func(s *service.Service) { s.Model.From = map[string]string{"format": "file"} },
		"version": func(s *service.Service) { s.RuntimeVersion = "v2" },
		"stopped": func(s *service.Service) { s.Stopped = true },
	} {
		if hash(change) != same {
			t.Errorf("%s: re-opens selection", name)
		}
	}
	seen := map[string]string{same: "nothing"}
	for name, change := range map[string]func(*service.Service){
		"uri":         func(s *service.Service) { s.Model.URI = "file://y" },
		"format":      func(s *service.Service) { s.Model.Format.Version = "2" },
		"ref":         func(s *service.Service) { s.Model.Ref = &service.ObjectRef{Name: "m"} },
		"runtime":     func(s *service.Service) { s.Runtime = &service.ObjectRef{Name: "r"} },
		"protocol":    func(s *service.Service) { s.Protocol = service.ProtocolV2 },
		"default":     func(s *service.Service) { s.ProtocolDefault = service.ProtocolV2 },
		"multiModel":  func(s *service.Service) { s.MultiModel = true },
		"custom":      func(s *service.Service) { s.Custom = true },
		"accelerator": func(s *service.Service) { s.AcceleratorClass = []string{"h100"} },
		"decoder":     func(s *service.Service) { s.Components.Decoder = &service.Component{} },
		"workers":     func(s *service.Service) { s.Components.Engine = &service.Component{Worker: &service.Node{}} },
		"no model":    func(s *service.Service) { s.Model = nil },
	} {
		h := hash(change)
		if other, ok := seen[h]; ok {
			t.Errorf("%s hashes as %s", name, other)
		}
		seen[h] = name
	}
	// A stored hash must stay valid over releases.
	if want := "c3973fd6c37f9630"; same != want {
		t.Errorf("the hash of a known spec is %s, was %s: pinned choices would re-open", same, want)
	}
}

func TestClosest(t *testing.T) {
	known := []string{"sklearn", "xgboost", "lightgbm", "pmml"}
	for word, want := range map[string]string{"xgbost": "xgboost", "XGBoost": "xgboost", "sklern": "sklearn", "pml": "pmml", "tensorflow": "", "": ""} {
		if got := closest(word, known); got != want {
			t.Errorf("closest(%q) = %q, want %q", word, got, want)
		}
	}
}

// The order in which both guides' criteria were promised, one against the next.
func TestFitOpenSides(t *testing.T) {
	const n = 7
	order := []*service.SizeRange{{Min: 6, Max: 8}, {Min: 5, Max: 9}, {Max: 7}, {Min: 1, Max: 100}, {Min: 7}, {Min: 1}, nil}
	for i := range order[1:] {
		c1, d1 := fit(order[i], n)
		c2, d2 := fit(order[i+1], n)
		if c1 > c2 || c1 == c2 && d1 >= d2 {
			t.Errorf("%s (%d, %d) does not come before %s (%d, %d)", sizeWords(order[i]), c1, d1, sizeWords(order[i+1]), c2, d2)
		}
	}
	if c, d := fit(&service.SizeRange{Min: 1, Max: 2}, 0); c != 0 || d != 0 {
		t.Errorf("an unknown size must not order: %d, %d", c, d)
	}
}

func TestVersionsCompareAsInOME(t *testing.T) {
	const equal, above, atLeast = service.OperatorEqual, service.OperatorGreaterThan, service.OperatorGreaterThanOrEqual
	for _, c := range []struct {
		runtime, model string
		met            []service.Operator
	}{
		{"1.0.0", "1.0.0", []service.Operator{"", equal, atLeast}},
		{"1.0.1", "1.0.0", []service.Operator{above, atLeast}},
		{"1.10.0", "1.9.9", []service.Operator{above, atLeast}},
		{"1.0.0", "1.0.1", nil},
		{"99999999999999999999999999", "99999999999999999999999998", []service.Operator{above, atLeast}},
		// Numbers left out are 0, a v changes nothing; but only versions that are
		// written alike are above or below each other.
		{"1", "1.0.0", []service.Operator{"", equal}},
		{"v1", "1.0", []service.Operator{"", equal}},
		{"01", "V1", []service.Operator{"", equal}},
		{"2", "1.0.0", nil},
		{"v2.0.0", "1.0.0", nil},
		{"2.0", "1.0.0", nil},
		{"v2.0.0", "v1.0.0", []service.Operator{above, atLeast}},
		// What is no release is only ever equal, whatever the operator.
		{"2.0.0-dev", "1.0.0", nil},
		{"4.51.0.dev0", "4.50.0", nil},
		{"4.51.0", "4.51.0.dev0", nil},
		{"4.51.0.dev0", "4.51.0.DEV0", []service.Operator{"", equal, above, atLeast}},
		{"1.0.0+build", "1.0.0", nil},
		{"1.0.0-rc.1", "1.0.0rc1", nil},
		// OME reads none of these, or takes the fourth number for a suffix.
		{"1.02", "1.2", []service.Operator{"", equal, atLeast}},
		{"1.2.3.4", "1.2.3.3", []service.Operator{above, atLeast}},
		// Words.
		{"Beta", "beta", []service.Operator{"", equal, atLeast}},
		{"beta", "gamma", nil},
		{"2", "beta", nil},
		{"", "1", nil},
	} {
		for _, op := range []service.Operator{"", equal, above, atLeast} {
			if got, want := ask(c.model).metBy(c.runtime, op), slices.Contains(c.met, op); got != want {
				t.Errorf("runtime %q %s model %q: %v, want %v", c.runtime, op, c.model, got, want)
			}
		}
	}
}
