package selection

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

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
