package workload

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/selection"
)

func ptr[T any](v T) *T { return &v }

func runtime() service.Runtime {
	return service.Runtime{
		Meta:  service.Meta{Key: service.Key{Name: "vllm-large"}, Labels: map[string]string{"tier": "runtime", "kept": "yes"}},
		Scope: service.ScopeCluster,
		Components: service.Components{Engine: &service.Component{
			Main: "kserve-container",
			Pod: corev1.PodSpec{
				Containers: []corev1.Container{{
					Name: "kserve-container", Image: "vllm/vllm-openai:v0.9",
					Args: []string{"--port=8080", "--model=/mnt/models", "--served-model-name={{.Name}}", "--max-model-len=4096"},
					Env:  []corev1.EnvVar{{Name: "A", Value: "runtime"}, {Name: "B", Value: "runtime"}},
					Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
						"cpu": resource.MustParse("2"), "nvidia.com/gpu": resource.MustParse("2")}},
				}, {Name: "sidecar", Image: "side:1"}},
			},
			Scaling: service.Scaling{MinReplicas: ptr(1), MaxReplicas: ptr(3), ScaleTarget: ptr(5.0)},
			Local: &service.Local{Command: []string{"vllm", "serve", "{{.ModelPath}}", "--port", "{{.Port}}", "--served-model-name", "{{.Name}}"},
				Install: "pip install vllm"},
		}},
	}
}

func svc() *service.Service {
	return &service.Service{
		Meta: service.Meta{Key: service.Key{Namespace: "team", Name: "llama"}, Labels: map[string]string{"tier": "service"},
			Annotations: map[string]string{"a-b": "dashed", "amp": "a&b"}},
		RuntimeVersion: "v1.1",
		Components: service.Components{Engine: &service.Component{
			Main:   "kserve-container",
			Labels: map[string]string{"tier": "component"},
			Pod: corev1.PodSpec{Containers: []corev1.Container{{
				Name: "kserve-container", Args: []string{"--max-model-len=8192", "--chat-template={{ m.content }}"},
				Env: []corev1.EnvVar{{Name: "B", Value: `{{index .Annotations "a-b"}}`}, {Name: "C", Value: "{{.Annotations.amp}}"}},
			}}},
			Scaling: service.Scaling{MaxReplicas: ptr(7), ScaleToZeroAfter: ptr(time.Minute)},
		}},
	}
}

func render(t *testing.T, s *service.Service, rt service.Runtime) Revision {
	t.Helper()
	rev, err := Render(Input{Service: s, Runtime: &rt, Choice: service.RuntimeChoice{Name: rt.Name, Scope: rt.Scope}, Protocol: service.ProtocolOpenAI, URI: "hf://x"})
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

func TestRenderMergesServiceOverRuntime(t *testing.T) {
	rev := render(t, svc(), runtime())
	c := rev.Component(service.RoleEngine)
	m := container(c.Pod, c.Main)
	if m.Image != "vllm/vllm-openai:v1.1" {
		t.Errorf("image %q", m.Image)
	}
	wantArgs := "--port=8080 --model=/mnt/models --served-model-name=llama --max-model-len=8192 --chat-template={{ m.content }}"
	if got := strings.Join(m.Args, " "); got != wantArgs {
		t.Errorf("args\n got  %s\n want %s", got, wantArgs)
	}
	env := map[string]string{}
	for _, e := range m.Env {
		env[e.Name] = e.Value
	}
	if env["A"] != "runtime" || env["B"] != "dashed" || env["C"] != "a&b" {
		t.Errorf("env %v", env)
	}
	if container(c.Pod, "sidecar") == nil {
		t.Error("the runtime's sidecar is lost")
	}
	if c.Labels["tier"] != "component" || c.Labels["kept"] != "yes" && rev.Labels["kept"] != "yes" {
		t.Errorf("labels %v, revision %v", c.Labels, rev.Labels)
	}
	want := service.Limits{Min: 1, Max: 7, Target: 5, Metric: service.MetricConcurrency, ScaleToZeroAfter: time.Minute, StartupTimeout: 10 * time.Minute}
	if !c.Limits.Equal(want) {
		t.Errorf("limits %+v, want %+v", c.Limits, want)
	}
	p, err := c.Process.Resolve(Location{Port: 1234, ModelPath: "/data/llama"})
	if err != nil {
		t.Fatal(err)
	}
	wantCmd := "vllm serve /data/llama --port 1234 --served-model-name llama --max-model-len=8192 --chat-template={{ m.content }}"
	if got := strings.Join(p.Command, " "); got != wantCmd {
		t.Errorf("command\n got  %s\n want %s", got, wantCmd)
	}
	if p.GPUs != 2 || p.Install != "pip install vllm" {
		t.Errorf("process %+v", p)
	}
}

func TestTemplateErrorsNameThePath(t *testing.T) {
	s := svc()
	s.Components.Engine.Pod.Containers[0].Args = []string{"--x={{.Labels.absent}}"}
	rt := runtime()
	_, err := Render(Input{Service: s, Runtime: &rt})
	if err == nil || !strings.Contains(err.Error(), "team/llama") || !strings.Contains(err.Error(), "args[4]") || !strings.Contains(err.Error(), "absent") {
		t.Fatalf("error %v", err)
	}
	s.Components.Engine.Pod.Containers[0].Args = []string{`--x={{index .Labels "absent"}}`}
	if _, err = Render(Input{Service: s, Runtime: &rt}); err == nil {
		t.Fatal("index of a missing key is no error")
	}
}

func TestHashFollowsInputsAndNotCounts(t *testing.T) {
	base := render(t, svc(), runtime())
	same := func(name string, want bool, s *service.Service, rt service.Runtime) {
		if got := render(t, s, rt).Hash == base.Hash; got != want {
			t.Errorf("%s: same hash %v, want %v", name, got, want)
		}
	}
	same("nothing changed", true, svc(), runtime())
	s := svc()
	s.Components.Engine.Scaling.MaxReplicas = ptr(9)
	same("scaling", true, s, runtime())
	s = svc()
	s.Created = time.Now()
	s.Origin = service.Origin{File: "elsewhere.yaml", Line: 9}
	same("where and when it was applied", true, s, runtime())
	s = svc()
	s.Components.Engine.Pod.Containers[0].Args[0] = "--max-model-len=1"
	same("an argument", false, s, runtime())
	rt := runtime()
	rt.Components.Engine.Pod.Containers[0].Image = "other"
	same("the runtime's image", false, svc(), rt)
	rt = runtime()
	rt.Components.Engine.LocalDerived = true
	withDerived := render(t, svc(), rt).Hash
	rt.Components.Engine.Local = &service.Local{Command: []string{"other"}}
	if render(t, svc(), rt).Hash != withDerived {
		t.Error("a local command found for this host counts as input")
	}
	rt = runtime()
	rt.Scope = service.ScopeCatalog
	inCatalog := render(t, svc(), rt).Hash
	rt.Components.Engine.Pod.Containers[0].Image = "newer"
	if render(t, svc(), rt).Hash != inCatalog {
		t.Error("a newer catalog restarts what runs")
	}
}

func TestLocalize(t *testing.T) {
	host := selection.Host{Programs: map[string]bool{"myserver": true}}
	catalog := []service.Runtime{runtime()}
	at := func(c corev1.Container) *service.Local {
		c.Name = "main"
		rt := service.Runtime{Components: service.Components{Engine: &service.Component{Main: "main", Pod: corev1.PodSpec{Containers: []corev1.Container{c}}}}}
		out := Localize(rt, catalog, host)
		if rt.Components.Engine.Local != nil {
			t.Fatal("the runtime given was changed")
		}
		return out.Components.Engine.Local
	}
	own := at(corev1.Container{Command: []string{"myserver"}, Args: []string{"--dir=/mnt/models", "--http_port=9000", "--p", "9000"},
		Ports: []corev1.ContainerPort{{ContainerPort: 9000}}})
	if got := strings.Join(own.Command, " "); got != "myserver --dir={{.ModelPath}} --http_port={{.Port}} --p {{.Port}}" {
		t.Errorf("own command: %s", got)
	}
	same := at(corev1.Container{Image: "docker.io/vllm/vllm-openai:v0.1", Args: []string{"--model=/mnt/models", "--port=8000", "--dtype", "half"}})
	if same == nil || strings.Join(same.Command, " ") != "vllm serve {{.ModelPath}} --port {{.Port}} --served-model-name {{.Name}} --dtype half" {
		t.Errorf("by image: %+v", same)
	}
	if got := at(corev1.Container{Image: "unknown:1", Command: []string{"absent"}}); got != nil {
		t.Errorf("a program that is not here: %+v", got)
	}
}

func TestResolveExpandsVariables(t *testing.T) {
	p := Process{Command: []string{"run", "$(A)-$(B)", "$$(A)", "$(NOPE)", "$", "$(", "--p=$(PORT)"}, Env: []corev1.EnvVar{{Name: "A", Value: "x{{.Port}}"}, {Name: "B", Value: "y"}}}
	out, err := p.Resolve(Location{Port: 7})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(out.Command, " "); got != "run x7-y $(A) $(NOPE) $ $( --p=7" {
		t.Fatalf("got %q", got)
	}
	if _, err := (Process{}).Resolve(Location{}); err == nil {
		t.Fatal("an empty command resolves")
	}
}

// TestRouterIsToldAddresses: a router's command and variables may name the
// addresses of the other roles, and its configuration is in its environment as
// on a cluster, where nothing else states it.
func TestRouterIsToldAddresses(t *testing.T) {
	s := &service.Service{Meta: service.Meta{Key: service.Key{Namespace: "default", Name: "chat"}}}
	s.Components.Engine = &service.Component{Local: &service.Local{Command: []string{"engine"}}, Config: map[string]string{"POLICY": "no router's"}}
	s.Components.Router = &service.Component{Config: map[string]string{"POLICY": "random", "RETRIES": "1"}, Local: &service.Local{
		Command: []string{"route", "http://$(ROUNDHOUSE_ENGINE_ADDRESS)"},
		Env:     []corev1.EnvVar{{Name: "TO", Value: "$(ROUNDHOUSE_DECODER_ADDRESS)"}, {Name: "RETRIES", Value: "2"}}}}
	rev, err := Render(Input{Service: s})
	if err != nil {
		t.Fatal(err)
	}
	out, err := rev.Component(service.RoleRouter).Process.Resolve(Location{Addresses: map[service.Role]string{
		service.RoleEngine: "127.0.0.1:1", service.RoleDecoder: "127.0.0.1:2"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(out.Command, " "); got != "route http://127.0.0.1:1" {
		t.Errorf("command %q", got)
	}
	want := []corev1.EnvVar{{Name: "ROUNDHOUSE_ENGINE_ADDRESS", Value: "127.0.0.1:1"}, {Name: "ROUNDHOUSE_DECODER_ADDRESS", Value: "127.0.0.1:2"},
		{Name: "TO", Value: "127.0.0.1:2"}, {Name: "RETRIES", Value: "2"}, {Name: "POLICY", Value: "random"}}
	if !slices.Equal(out.Env, want) {
		t.Errorf("variables %v, want %v", out.Env, want)
	}
	if env := rev.Component(service.RoleEngine).Process.Env; len(env) != 0 {
		t.Errorf("an engine is given a router's configuration: %v", env)
	}
}

// TestVariablesInVariables: a value may refer to the variables before it, as in
// Kubernetes; the process given stays as it is.
func TestVariablesInVariables(t *testing.T) {
	p := Process{Command: []string{"run", "$(URL)"}, Env: []corev1.EnvVar{
		{Name: "HOST", Value: "db"}, {Name: "URL", Value: "http://$(HOST):$(PORT)/$(LATER)"}, {Name: "LATER", Value: "$$(HOST) $(NOPE)"},
		{Name: "SECRET", ValueFrom: &corev1.EnvVarSource{}}}}
	out, err := p.Resolve(Location{Port: 7})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"HOST": "db", "URL": "http://db:7/$(LATER)", "LATER": "$(HOST) $(NOPE)", "SECRET": ""}
	for _, e := range out.Env {
		if e.Value != want[e.Name] {
			t.Errorf("%s is %q, want %q", e.Name, e.Value, want[e.Name])
		}
	}
	if out.Command[1] != "http://db:7/$(LATER)" || p.Env[1].Value != "http://$(HOST):$(PORT)/$(LATER)" {
		t.Errorf("command %q; given %+v", out.Command, p.Env)
	}
}

// TestVariablesAreBounded: variables that double each other end in an error and
// not in the machine's memory.
func TestVariablesAreBounded(t *testing.T) {
	p := Process{Command: []string{"run", "$(V40)"}, Env: []corev1.EnvVar{{Name: "V0", Value: "x"}}}
	for i := 1; i <= 40; i++ {
		p.Env = append(p.Env, corev1.EnvVar{Name: fmt.Sprintf("V%d", i), Value: fmt.Sprintf("$(V%d)$(V%d)", i-1, i-1)})
	}
	if _, err := p.Resolve(Location{}); err == nil || !strings.Contains(err.Error(), "once their variables are expanded") {
		t.Errorf("error %v", err)
	}
}

func TestRenderWithoutARuntime(t *testing.T) {
	s := &service.Service{Meta: service.Meta{Key: service.Key{Namespace: "d", Name: "own"}}, Custom: true}
	if _, err := Render(Input{Service: s}); err == nil || !strings.Contains(err.Error(), "nothing to run") {
		t.Fatalf("error %v", err)
	}
	s.Components.Engine = &service.Component{Main: "c", Pod: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "x"}}},
		Local: &service.Local{Command: []string{"x", "{{.Port}}"}}}
	rev, err := Render(Input{Service: s})
	if err != nil || rev.Components[0].Process.Command[1] != "{{.Port}}" {
		t.Fatalf("%+v, %v", rev, err)
	}
}

func TestShapesAreCarriedThrough(t *testing.T) {
	rt := runtime()
	rt.Components.Engine.Leader = &service.Node{Main: "l", Pod: corev1.PodSpec{Containers: []corev1.Container{{Name: "l", Image: "img:1", Args: []string{"--rank=0", "--name={{.Name}}"}}}}}
	rt.Components.Engine.Worker = &service.Node{Main: "w", Size: 3, Pod: corev1.PodSpec{Containers: []corev1.Container{{Name: "w", Image: "img:1"}}}}
	rt.Components.Decoder = &service.Component{Main: "kserve-container", Pod: corev1.PodSpec{Containers: []corev1.Container{{Name: "kserve-container", Image: "d:1"}}}}
	rt.Components.Router = &service.Component{Main: "router", Config: map[string]string{"policy": "random", "kept": "1"}, Pod: corev1.PodSpec{Containers: []corev1.Container{{Name: "router", Image: "r:1"}}}}
	s := svc()
	s.Components.Engine.Worker = &service.Node{Size: 5}
	s.Components.Router = &service.Component{Config: map[string]string{"policy": "cache-aware"}}
	rev := render(t, s, rt)
	if len(rev.Components) != 3 {
		t.Fatalf("components %+v", rev.Components)
	}
	e := rev.Component(service.RoleEngine)
	if e.Worker.Size != 5 || e.Leader.Size != 1 || e.Leader.Pod.Containers[0].Args[1] != "--name=llama" {
		t.Errorf("leader %+v worker %+v", e.Leader, e.Worker)
	}
	if r := rev.Component(service.RoleRouter); r.Config["policy"] != "cache-aware" || r.Config["kept"] != "1" {
		t.Errorf("router config %v", r.Config)
	}
}

// TestDisaggregation: the service's word goes before the runtime's, and counts
// as an input.
func TestDisaggregation(t *testing.T) {
	rt, s := runtime(), svc()
	if rev := render(t, s, rt); rev.Disaggregation != "" {
		t.Errorf("%q, stated nowhere", rev.Disaggregation)
	}
	rt.Disaggregation = service.DisaggregationVLLM
	first := render(t, s, rt)
	s.Disaggregation = service.DisaggregationSGLang
	second := render(t, s, rt)
	if first.Disaggregation != service.DisaggregationVLLM || second.Disaggregation != service.DisaggregationSGLang || first.Hash == second.Hash {
		t.Errorf("the runtime's gives %q (%s), the service's %q (%s)", first.Disaggregation, first.Hash, second.Disaggregation, second.Hash)
	}
}

func TestEnvironmentPrecedence(t *testing.T) {
	rt := runtime()
	rt.Components.Engine.Pod.Containers[0].Env = []corev1.EnvVar{{Name: "PORT_IS", Value: "8080"}, {Name: "B", Value: "container"}, {Name: "K", Value: "{{.Labels.modelClass}}"}}
	rt.Components.Engine.Local.Env = []corev1.EnvVar{{Name: "PORT_IS", Value: "{{.Port}}"}, {Name: "B", Value: "local"}}
	s := svc()
	rev, err := Render(Input{Service: s, Runtime: &rt, Attributes: service.Attributes{Format: service.NamedVersion{Name: "SKLearn"}}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := rev.Components[0].Process.Resolve(Location{Port: 99})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, e := range p.Env {
		got[e.Name] = e.Value
	}
	// The service's B is a template over its annotations.
	if got["PORT_IS"] != "99" || got["B"] != "dashed" || got["K"] != "mlserver_sklearn.SKLearnModel" {
		t.Fatalf("env %v", got)
	}
}

// TestWithoutGPUs: on a machine without GPUs this program's own server is given none,
// whatever the service asks for; another program waits for them.
func TestWithoutGPUs(t *testing.T) {
	for _, c := range []struct {
		command string
		none    bool
		want    int
	}{{"roundhouse serve x", true, 0}, {"roundhouse serve x", false, 2}, {"vllm serve x", true, 2}, {"roundhouse simulate x", true, 2}} {
		rt := runtime()
		rt.Components.Engine.Local.Command = strings.Fields(c.command)
		rev, err := Render(Input{Service: svc(), Runtime: &rt, Protocol: service.ProtocolOpenAI, URI: "hf://x", NoGPUs: c.none})
		if err != nil {
			t.Fatal(err)
		}
		if p := rev.Component(service.RoleEngine).Process; p.GPUs != c.want || p.Need().GPUs != c.want {
			t.Errorf("%s, no GPUs %v: %d, want %d", c.command, c.none, p.GPUs, c.want)
		}
	}
}
