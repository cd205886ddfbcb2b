package published

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/engine/onnx/ort"
)

// machine is one with this program, a Python without packages, and what was installed
// with pip since.
type machine struct {
	modules map[string]bool
}

// brings are the modules that a package of PyPI brings, itself or by what it needs, and
// that runtimes of the catalog ask for. Servers such as vLLM are none of them: pip's runs
// on GPUs.
var brings = map[string][]string{
	"numpy": {"numpy"}, "pydantic": {"pydantic"}, "catboost": {"catboost"}, "mlflow": {"mlflow"}, "pandas": {"pandas"},
	"scikit-learn": {"sklearn", "joblib"}, "paddlepaddle": {"paddle"}, "pypmml": {"pypmml"}, "tensorflow": {"tensorflow"},
	"torch": {"torch", "jinja2"}, "transformers": {"transformers", "safetensors"}, "onnxruntime": {"onnxruntime"},
}

// pip finds the packages of install lines.
var pip = regexp.MustCompile(`pip install ((?:[a-z][a-z0-9-]*)(?: [a-z][a-z0-9-]*)*)`)

// host is the machine before anything is asked of it.
func (m machine) host() selection.Host {
	return selection.Host{Programs: map[string]bool{"roundhouse": true, "sh": true, "python3": true}, MemoryBytes: 64 << 30}
}

const python = "/usr/bin/python3"

// asked is the machine with its answers to what selection asks of it.
func (m machine) asked(t *testing.T, checks []selection.Check) selection.Host {
	h := m.host()
	h.Answers = map[selection.Check]selection.Answer{}
	for _, q := range checks {
		a := selection.Answer{Program: python}
		switch {
		case q.Modules != "":
			lacks := slices.DeleteFunc(strings.Fields(q.Modules), func(name string) bool { return m.modules[name] })
			if len(lacks) > 0 {
				a.Lacks = "lacks " + strings.Join(lacks, ", ")
			}
		case q.Command == "java":
			a = selection.Answer{Lacks: "java is not on PATH"}
		case q.Command == "roundhouse-onnx":
			a.Program = "/usr/bin/roundhouse-onnx"
		case q.Command == "roundhouse-onnx --check":
			a.Program = "/usr/bin/roundhouse-onnx"
			if !m.modules["onnxruntime"] {
				a.Lacks = "fails: roundhouse-onnx: " + (&ort.NotFoundError{}).Error()
			}
		default:
			t.Errorf("nothing here knows what a machine answers to %+v", q)
		}
		h.Answers[q] = a
	}
	return h
}

// fate is what becomes of a service on one machine.
type fate struct {
	outcome outcome
	why     string // what it is told where it does not run
	runtime *selection.Candidate
	service *service.Service // with how its components run here
	host    selection.Host
}

// on is what becomes of a service on a machine.
func (w world) on(t *testing.T, m machine, s *service.Service) fate {
	host := m.host()
	local := workload.LocalizeBeside(*s, w.catalog, host)
	if s.Custom {
		local = workload.LocalizeService(*s, w.catalog, host)
	}
	req := selection.Request{Service: &local, Attributes: w.attributes(s)}
	host = m.asked(t, selection.Checks(req, w.here, host))
	f := fate{outcome: none, service: &local, host: host}
	if s.Custom {
		rule := selection.HostRule(local.Components, host)
		if f.outcome, f.why = lacks, rule.Why; rule.Pass {
			f.outcome = runs
		}
		return f
	}
	r := selection.Choose(req, w.here, host)
	if f.runtime, f.why = r.Chosen, r.Message; r.Chosen != nil {
		f.outcome = runs
		return f
	}
	for _, c := range r.Candidates {
		if failed := slices.DeleteFunc(slices.Clone(c.Rules), func(r selection.Rule) bool { return r.Pass }); len(failed) == 1 && failed[0].Name == selection.RuleHost {
			f.outcome = lacks
		}
	}
	return f
}

// bare is what becomes of a service on a bare machine, and the line after which it
// runs, if it is told one and that is enough.
func (w world) bare(t *testing.T, at string, s *service.Service) (fate, string) {
	if strings.HasPrefix(w.input(s).URI, "pvc://") {
		return fate{outcome: volume}, ""
	}
	f := w.on(t, machine{}, s)
	if f.outcome == runs {
		return f, ""
	}
	if f.why == "" {
		t.Errorf("%s: it does not run, and nothing says why", at)
	}
	if strings.Contains(f.why, "\n") {
		t.Errorf("%s: is told in more than one line: %q", at, f.why)
	}
	if f.outcome == none {
		return f, ""
	}
	lines := pip.FindAllStringSubmatch(f.why, -1)
	if len(lines) != 1 {
		return f, ""
	}
	m := machine{modules: map[string]bool{}}
	for _, name := range strings.Fields(lines[0][1]) {
		for _, module := range brings[name] {
			m.modules[module] = true
		}
	}
	after := w.on(t, m, s)
	if after.outcome != runs {
		return f, ""
	}
	after.outcome, after.why = installs, f.why
	return after, lines[0][0]
}
