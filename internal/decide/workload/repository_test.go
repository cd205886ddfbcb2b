package workload

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
)

func TestLayoutOf(t *testing.T) {
	for command, want := range map[string]Layout{
		"roundhouse serve {{.ModelPath}} --format xgboost":                             LayoutRoundhouse,
		"roundhouse serve /models":                                                     "",
		"roundhouse simulate {{.ModelPath}}":                                           "",
		"/opt/roundhouse serve {{.ModelPath}}":                                         "", // another program
		"mlserver start {{.ModelPath}}":                                                LayoutMLServer,
		"/venv/bin/mlserver start {{.ModelPath}}":                                      LayoutMLServer,
		"mlserver start .":                                                             "",
		"tritonserver --model-repository={{.ModelPath}}":                               "",
		"tritonserver --model-repository={{.ModelPath}} --model-control-mode=explicit": LayoutTriton,
		"tritonserver --model-control-mode=explicit --model-store={{.ModelPath}} --http-port={{.Port}}": LayoutTriton,
		"tritonserver --model-control-mode=poll --model-store={{.ModelPath}}":                           "",
		"vllm serve {{.ModelPath}}": "",
		"mlserver":                  "",
		"":                          "",
	} {
		if got := LayoutOf(strings.Fields(command)); got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
}

// TestRepository: a service without a model of its own runs as a repository where its
// runtime's server can hold one, and as before elsewhere.
func TestRepository(t *testing.T) {
	runtime := func(command string) *service.Runtime {
		rt := &service.Runtime{Meta: service.Meta{Key: service.Key{Name: "rt"}}, Scope: service.ScopeCluster}
		rt.Components.Engine = &service.Component{Main: "main", Pod: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example/x:1"}}},
			Local: &service.Local{Command: strings.Fields(command), Env: []corev1.EnvVar{{Name: "MLSERVER_MODEL_URI", Value: "{{.ModelPath}}"}, {Name: "MLSERVER_HTTP_PORT", Value: "{{.Port}}"}},
				ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/v2/models/{{.Name}}/ready"}}}}}
		return rt
	}
	render := func(s service.Service, command string, edit func(*Input)) Revision {
		t.Helper()
		s.Key = service.Key{Namespace: "default", Name: "plain"}
		in := Input{Service: &s, Runtime: runtime(command)}
		if edit != nil {
			edit(&in)
		}
		r, err := Render(in)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	const serve = "roundhouse serve {{.ModelPath}} --name {{.Name}} --format xgboost --http-port {{.Port}}"
	holds := service.Service{Repository: true}
	r := render(holds, serve, nil)
	p := r.Component(service.RoleEngine).Process
	if got := strings.Join(p.Command, " "); r.Repository() != LayoutRoundhouse || got != "roundhouse serve {{.ModelPath}} --format xgboost --http-port {{.Port}}" {
		t.Errorf("%s: %s", r.Repository(), got)
	}
	if p.Readiness.HTTPGet.Path != "/v2/health/ready" {
		t.Errorf("ready when %+v", p.Readiness.HTTPGet)
	}
	if !slices.EqualFunc(p.Env, []string{"MLSERVER_HTTP_PORT"}, func(e corev1.EnvVar, name string) bool { return e.Name == name }) {
		t.Errorf("variables: %+v", p.Env)
	}
	if _, err := p.Resolve(Location{Port: 8080, ModelPath: "/repo"}); err != nil {
		t.Error(err)
	}
	if r.Hash == render(service.Service{}, serve, nil).Hash {
		t.Error("it is the revision of a server of one model")
	}
	// Elsewhere nothing changes, and so nothing is restarted.
	for name, edit := range map[string]func(*Input){
		"a server of one model": func(in *Input) { in.Runtime = runtime("other serve {{.ModelPath}}") },
		"a model of its own":    func(in *Input) { in.URI = "file:///m" },
		"a cluster":             func(in *Input) { in.Cluster = true },
		"a transformer": func(in *Input) {
			in.Runtime.Components.Transformer = &service.Component{Pod: corev1.PodSpec{Containers: []corev1.Container{{Name: "t"}}}, Main: "t", Local: &service.Local{Command: []string{"t"}}}
		},
		"a container": func(in *Input) { in.Containers = []service.Role{service.RoleEngine} },
	} {
		a, b := render(holds, serve, edit), render(service.Service{}, serve, edit)
		if a.Repository() != "" || a.Hash != b.Hash {
			t.Errorf("%s: %q, %s and %s", name, a.Repository(), a.Hash, b.Hash)
		}
	}
	// The arguments of the service's container count.
	engine := &service.Component{Main: "main", Pod: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Args: []string{"--model-control-mode=explicit"}}}}}
	r = render(service.Service{Repository: true, Components: service.Components{Engine: engine}}, "tritonserver --model-repository={{.ModelPath}}", nil)
	if r.Repository() != LayoutTriton {
		t.Errorf("with arguments of its own: %q", r.Repository())
	}
}
