package selection

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// needy is a runtime of sklearn and xgboost models that requires modules for
// the former.
func needy(name string, priority int, l service.Local) service.Runtime {
	rt := service.Runtime{Scope: service.ScopeCatalog, Components: service.Components{Engine: &service.Component{Local: &l}}}
	rt.Name = name
	for _, f := range []string{"sklearn", "xgboost"} {
		rt.Formats = append(rt.Formats, service.SupportedFormat{Format: service.NamedVersion{Name: f}, AutoSelect: true, Priority: &priority})
	}
	return rt
}

func asking(format string, env ...corev1.EnvVar) Request {
	svc := &service.Service{}
	svc.Name = "s"
	svc.Components.Engine = &service.Component{Main: "main", Pod: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Env: env}}}}
	return Request{Service: svc, Attributes: service.Attributes{Format: service.NamedVersion{Name: format}}}
}

// TestChecks: the host is asked for what the candidates require of the model's
// format, with the service's own interpreter, and its answers decide.
func TestChecks(t *testing.T) {
	first := needy("first", 2, service.Local{Command: []string{"roundhouse", "serve"}, Install: "pip install numpy scikit-learn",
		Requires: []service.Requirement{{Formats: []string{"sklearn"}, Python: []string{"numpy", "sklearn"}}}})
	second := needy("second", 1, service.Local{Command: []string{"roundhouse", "serve"}})
	other := needy("other", 3, service.Local{Command: []string{"roundhouse"}, Requires: []service.Requirement{{Python: []string{"never"}}}})
	other.Disabled = true
	runtimes := []service.Runtime{first, second, other}
	host := Host{Programs: map[string]bool{"roundhouse": true}}

	if got := Checks(asking("xgboost"), runtimes, host); len(got) > 0 {
		t.Errorf("asks for %v, which xgboost models do not need", got)
	}
	if got := Checks(asking("sklearn"), runtimes, Host{Cluster: true}); len(got) > 0 {
		t.Errorf("asks a cluster for %v", got)
	}
	req := asking("sklearn", corev1.EnvVar{Name: "ROUNDHOUSE_PYTHON", Value: "/venv/python"}, corev1.EnvVar{Name: "OTHER", Value: "x"})
	checks := Checks(req, runtimes, host)
	want := Check{Modules: "numpy sklearn", Env: "ROUNDHOUSE_PYTHON=/venv/python"}
	if !slices.Equal(checks, []Check{want}) {
		t.Fatalf("asks for %+v, want %+v", checks, want)
	}
	own := req
	own.Attributes.Environment = "./env.tar.gz"
	for _, brings := range []Request{own,
		asking("sklearn", corev1.EnvVar{Name: "MLSERVER_MODEL_ENVIRONMENT_TARBALL", Value: "/env.tar.gz"}),
		asking("sklearn", corev1.EnvVar{Name: "MLSERVER_MODEL_ENVIRONMENT_PATH", Value: "/venv"})} {
		if got := Checks(brings, runtimes, host); len(got) > 0 {
			t.Errorf("asks for %v, which the model's own environment has to have", got)
		}
	}
	for _, c := range []struct {
		answer Answer
		chosen string
		why    string
	}{
		{Answer{Program: "/venv/python"}, "first", "runs on this machine"},
		{Answer{Program: "/venv/python", Lacks: "lacks numpy"}, "second", "/venv/python lacks numpy: /venv/python -m pip install numpy scikit-learn"},
		{Answer{Program: "/venv/python", Lacks: "fails: no numpy; run /venv/python -m pip install numpy scikit-learn"}, "second", "/venv/python fails: no numpy; run /venv/python -m pip install numpy scikit-learn"},
		{Answer{Lacks: "/venv/python is not on PATH"}, "second", "/venv/python is not on PATH: install Python, or name an interpreter with ROUNDHOUSE_PYTHON"},
	} {
		host.Answers = map[Check]Answer{want: c.answer}
		if res := Choose(own, runtimes, host); res.Chosen == nil || res.Chosen.Name != "first" {
			t.Errorf("%+v, and the model brings its environment: chosen %+v", c.answer, res.Chosen)
		}
		res := Choose(req, runtimes, host)
		if res.Chosen == nil || res.Chosen.Name != c.chosen {
			t.Errorf("%+v: chosen %+v, want %s", c.answer, res.Chosen, c.chosen)
		}
		i := slices.IndexFunc(res.Candidates, func(c Candidate) bool { return c.Name == "first" })
		if rules := res.Candidates[i].Rules; rules[len(rules)-1].Why != c.why {
			t.Errorf("%+v: %q, want %q", c.answer, rules[len(rules)-1].Why, c.why)
		}
	}
}

// TestFallbackIsTold: what runs in place of a runtime's own program is part of
// why it was chosen.
func TestFallbackIsTold(t *testing.T) {
	own := service.Local{Command: []string{"mlserver", "start"}}
	rt := needy("mlserver", 1, service.Local{Command: []string{"roundhouse", "serve"}, FallbackOf: &own})
	res := Choose(asking("xgboost"), []service.Runtime{rt}, Host{Programs: map[string]bool{"roundhouse": true}})
	if res.Chosen == nil || !strings.HasSuffix(res.Chosen.Why, "; runs roundhouse in place of mlserver, which is not on PATH") {
		t.Errorf("chosen %+v", res.Chosen)
	}
}

// TestAlternative: where a runtime yields, or is only implied, the host is asked for what
// the others require too. If none of them runs, the one that pip can mend is told of.
func TestAlternative(t *testing.T) {
	const named = "named"
	pinned := needy(named, 9, service.Local{Command: []string{"server"}, Install: "apt-get install server"})
	python := needy("python", 1, service.Local{Command: []string{"roundhouse", "serve"}, Install: "pip install scikit-learn",
		Requires: []service.Requirement{{Python: []string{"sklearn"}}}})
	runtimes := []service.Runtime{pinned, python}
	host := Host{Programs: map[string]bool{"roundhouse": true}}
	req := asking("sklearn")
	req.Service.Runtime = &service.ObjectRef{Name: named}
	if got := Checks(req, runtimes, host); len(got) > 0 {
		t.Errorf("asks for %v of another runtime than the one that is named", got)
	}
	const mended = "python could serve it (and 1 more), but /usr/bin/python3 lacks sklearn: /usr/bin/python3 -m pip install scikit-learn"
	for name, set := range map[string]func(*service.Service){
		"implied": func(s *service.Service) { s.Runtime = &service.ObjectRef{Name: named, Implied: true} },
		"yields":  func(s *service.Service) { s.RuntimeYields = true },
		"chosen":  func(s *service.Service) { s.Runtime = nil },
	} {
		r := asking("sklearn")
		r.Service.Runtime = &service.ObjectRef{Name: named}
		set(r.Service)
		checks := Checks(r, runtimes, host)
		if !slices.Equal(checks, []Check{{Modules: "sklearn"}}) {
			t.Fatalf("%s: asks for %v", name, checks)
		}
		host.Answers = map[Check]Answer{checks[0]: {Program: "/usr/bin/python3", Lacks: "lacks sklearn"}}
		if res := Choose(r, runtimes, host); res.Chosen != nil || res.Message != mended {
			t.Errorf("%s: without the package %+v is chosen: %q", name, res.Chosen, res.Message)
		}
		host.Answers = map[Check]Answer{checks[0]: {Program: "/usr/bin/python3"}}
		if res := Choose(r, runtimes, host); res.Chosen == nil || res.Chosen.Name != "python" {
			t.Errorf("%s: with the package %+v is chosen: %q", name, res.Chosen, res.Message)
		}
	}
}

// TestPip: pip mends what lacks the packages of one line and nothing else.
func TestPip(t *testing.T) {
	answers := map[Check]Answer{
		{Modules: "sklearn"}: {Program: "/usr/bin/python3", Lacks: "lacks sklearn"},
		{Modules: "torch"}:   {Program: "/usr/bin/python3", Lacks: "lacks torch"},
		{Modules: "gone"}:    {Lacks: "python3 is not on PATH"},
		{Command: "java"}:    {Lacks: "java is not on PATH"},
	}
	serve := []string{"roundhouse", "serve"}
	for name, c := range map[string]struct {
		local service.Local
		want  bool
	}{
		"packages":             {service.Local{Command: serve, Install: "pip install scikit-learn", Requires: []service.Requirement{{Python: []string{"sklearn"}}}}, true},
		"a program":            {service.Local{Command: []string{"vllm"}, Install: "pip install vllm"}, true},
		"a program of others":  {service.Local{Command: []string{"server"}, Install: "apt-get install server"}, false},
		"a program, unknown":   {service.Local{Command: []string{"server"}}, false},
		"no interpreter":       {service.Local{Command: serve, Install: "pip install gone", Requires: []service.Requirement{{Python: []string{"gone"}}}}, false},
		"two lines":            {service.Local{Command: serve, Install: "pip install scikit-learn", Requires: []service.Requirement{{Python: []string{"sklearn"}}, {Python: []string{"torch"}, Install: "pip install torch"}}}, false},
		"packages and Java":    {service.Local{Command: serve, Install: "pip install scikit-learn", Requires: []service.Requirement{{Python: []string{"sklearn"}}, {Command: []string{"java"}}}}, false},
		"nothing":              {service.Local{Command: serve}, false},
		"program and packages": {service.Local{Command: []string{"vllm"}, Install: "pip install vllm", Requires: []service.Requirement{{Python: []string{"sklearn"}}}}, false},
	} {
		rt := needy("a", 1, c.local)
		s := newSubject(asking("sklearn"), Host{Programs: map[string]bool{"roundhouse": true}, Answers: answers})
		if got := s.pip(&rt); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
		more := needy("a", 1, c.local)
		more.Components.Engine.Pod.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}}}}
		more.Components.Engine.Local.Command = append([]string{"other"}, c.local.Command...)
		if s.pip(&more) {
			t.Errorf("%s: pip is said to bring a GPU", name)
		}
	}
}

// TestRouterOfNone: on a cluster a service with a router gets no runtime that has none,
// unless it brings the image of one.
func TestRouterOfNone(t *testing.T) {
	rt := needy("a", 1, service.Local{Command: []string{"roundhouse"}})
	rt.Components.Engine.Pod.Containers = []corev1.Container{{Name: "main", Image: "example.com/server"}}
	req := asking("sklearn")
	req.Service.Components.Router = &service.Component{}
	res := Choose(req, []service.Runtime{rt}, Host{Cluster: true})
	if want := "a could serve it, but it has no router, and the service names no image for one"; res.Chosen != nil || !strings.HasPrefix(res.Message, want) {
		t.Errorf("%+v is chosen: %q", res.Chosen, res.Message)
	}
	req.Service.Components.Router.Pod.Containers = []corev1.Container{{Name: "main", Image: "example.com/router"}}
	if res = Choose(req, []service.Runtime{rt}, Host{Cluster: true}); res.Chosen == nil {
		t.Errorf("with an image of a router: %q", res.Message)
	}
}
