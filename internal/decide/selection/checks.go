package selection

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Check is a question about what a command needs besides its program, which
// only the host can answer: whether an interpreter has modules, or whether a
// command succeeds.
type Check struct {
	// Command is the interpreter, or the words of the command, separated by
	// spaces; "" is the host's own interpreter.
	Command string
	// Modules are what the interpreter has to have, separated by spaces; ""
	// asks for the command.
	Modules string
	// Env are the variables that the replica would see and that matter here,
	// as NAME=VALUE lines; Dir is its working directory, "" for the host's.
	Env, Dir string
}

// Answer is a host's to a Check.
type Answer struct {
	Program string // the file that was asked, "" when there is none
	Lacks   string // what it lacks, in words; "" when nothing
}

// requirement is a Check with the line that helps.
type requirement struct {
	Check
	install string
}

// Checks lists what to ask the host before it is chosen among runtimes for req:
// what those require that nothing else keeps out.
func Checks(req Request, runtimes []service.Runtime, host Host) []Check {
	if host.Cluster {
		return nil
	}
	out := checksFor(req, runtimes, host)
	if other, ok := alternative(req, host); ok {
		for _, c := range checksFor(other, runtimes, host) {
			if !slices.Contains(out, c) {
				out = append(out, c)
			}
		}
	}
	return out
}

// checksFor are those for a request as it stands.
func checksFor(req Request, runtimes []service.Runtime, host Host) []Check {
	s := newSubject(req, host)
	if s.svc.Custom {
		return checksOf(s.svc.Components, service.Components{}, host, service.Attributes{})
	}
	all := inNamespace(runtimes, s.namespace)
	if ref := s.svc.Runtime; ref != nil {
		s.named = true
		rt := lookup(all, *ref)
		if rt == nil {
			return nil
		}
		all = []*service.Runtime{rt}
	}
	var out []Check
	for _, a := range s.assess(all) {
		if a.failed > 1 || a.failed == 1 && a.Rules[a.first].Name != RuleHost {
			continue
		}
		for _, c := range checksOf(a.Runtime.Components, s.svc.Components, host, s.model) {
			if !slices.Contains(out, c) {
				out = append(out, c)
			}
		}
	}
	return out
}

// checksOf lists the checks of components that the host has the programs of.
func checksOf(base, over service.Components, h Host, model service.Attributes) (out []Check) {
	for _, role := range service.Roles {
		p := part{role, base.Get(role), over.Get(role)}
		local := p.local()
		if local == nil || len(local.Command) == 0 {
			continue
		}
		if program := Program(local.Command); program != "" && !h.Programs[local.Command[0]] {
			continue
		}
		for _, q := range p.requirements(local, model) {
			out = append(out, q.Check)
		}
	}
	return out
}

// requirements are those of a command for a model. A model that brings its own
// Python environment needs no modules of the host's interpreter.
func (p part) requirements(local *service.Local, model service.Attributes) (out []requirement) {
	env := p.relevant(local)
	brings := model.Environment != "" || p.environment(local)
	for _, r := range local.Requires {
		if len(r.Formats) > 0 && !slices.ContainsFunc(r.Formats, func(f string) bool { return strings.EqualFold(f, model.Format.Name) }) {
			continue
		}
		if brings && len(r.Python) > 0 && len(r.Command) == 0 {
			continue
		}
		q := requirement{Check{Command: strings.Join(r.Command, " "), Modules: strings.Join(r.Python, " "), Env: env}, r.Install}
		if q.install == "" {
			q.install = local.Install
		}
		out = append(out, q)
	}
	if q, ok := p.module(local); ok {
		out = append(out, q)
	}
	return out
}

// module is the requirement that "python3 -m MODULE" itself states. It is none
// where the folder it runs in is not known yet, since that may hold the module.
func (p part) module(local *service.Local) (requirement, bool) {
	module := moduleOf(local.Command)
	if module == "" || strings.Contains(local.Command[0]+module+local.WorkingDir, "{{") {
		return requirement{}, false
	}
	top, _, _ := strings.Cut(module, ".")
	return requirement{Check{Command: local.Command[0], Modules: top, Env: p.relevant(local), Dir: local.WorkingDir}, local.Install}, true
}

// decisive are the variables that decide where interpreters and libraries are found.
var decisive = []string{"PATH", "PYTHONPATH", "PYTHONHOME", "ROUNDHOUSE_PYTHON", "ROUNDHOUSE_ONNXRUNTIME"}

// relevant are those that the part sets, the last of each.
func (p part) relevant(local *service.Local) string {
	set := map[string]string{}
	for _, e := range p.env(local) {
		if e.ValueFrom == nil && slices.Contains(decisive, e.Name) && !strings.Contains(e.Value, "{{") {
			set[e.Name] = e.Value
		}
	}
	var lines []string
	for _, name := range decisive {
		if v, ok := set[name]; ok {
			lines = append(lines, name+"="+v)
		}
	}
	return strings.Join(lines, "\n")
}

// environment reports whether the part's variables name a Python environment
// for its model, as model-settings.json may.
func (p part) environment(local *service.Local) bool {
	named := map[string]bool{}
	for _, e := range p.env(local) {
		named[e.Name] = e.Value != "" || e.ValueFrom != nil
	}
	return named["MLSERVER_MODEL_ENVIRONMENT_TARBALL"] || named["MLSERVER_MODEL_ENVIRONMENT_PATH"]
}

// env lists the part's variables; of each name the last counts.
func (p part) env(local *service.Local) []corev1.EnvVar {
	var lists [][]corev1.EnvVar
	if p.base != nil {
		if c := container(p.base.Pod, p.base.Main); c != nil {
			lists = append(lists, c.Env)
		}
	}
	lists = append(lists, local.Env)
	if p.over != nil {
		if c := container(p.over.Pod, p.over.Main); c != nil {
			lists = append(lists, c.Env)
		}
	}
	return slices.Concat(lists...)
}

// Lacking reports whether the host lacks something that was asked for.
func (h Host) Lacking() bool {
	for _, a := range h.Answers {
		if a.Lacks != "" || a.Program == "" {
			return true
		}
	}
	return false
}

// lacking are the requirements that the host does not meet, of each answer the first.
func (p part) lacking(h Host, model service.Attributes) (out []requirement) {
	said := map[Answer]bool{}
	for _, q := range p.requirements(p.local(), model) {
		if a, known := h.Answers[q.Check]; known && (a.Program == "" || a.Lacks != "") && !said[a] {
			said[a], out = true, append(out, q)
		}
	}
	return out
}

// pip is the line of pip after which the host can run the part as a process, "" where
// there is none, or where one line is not enough.
func (p part) pip(h Host, model service.Attributes) string {
	local := p.local()
	if local == nil || len(local.Command) == 0 || p.nodes() > 0 {
		return ""
	}
	install, unmet := local.Install, p.lacking(h, model)
	switch missing := p.missing(local, h); {
	case missing == "" && len(unmet) == 1 && h.Answers[unmet[0].Check].Program != "":
		install = unmet[0].install
	case missing == "" || len(unmet) > 0:
		return ""
	}
	if !strings.HasPrefix(install, "pip install ") {
		return ""
	}
	return install
}

// unmet words the requirements that the host does not meet, with what installs
// them; "" when it meets all it was asked for.
func (p part) unmet(h Host, model service.Attributes) string {
	var out []string
	for _, q := range p.lacking(h, model) {
		a := h.Answers[q.Check]
		switch {
		case a.Program == "" && q.Modules != "":
			out = append(out, a.Lacks+": install Python, or name an interpreter with ROUNDHOUSE_PYTHON")
		case q.install == "":
			out = append(out, strings.TrimSpace(a.Program+" "+a.Lacks))
		default:
			install := q.install
			if pip, ok := strings.CutPrefix(install, "pip install "); ok && q.Modules != "" {
				install = a.Program + " -m pip install " + pip
			}
			text := strings.TrimSpace(a.Program + " " + a.Lacks)
			if !strings.Contains(text, install) { // which the program may have said itself
				text += ": " + install
			}
			out = append(out, text)
		}
	}
	return strings.Join(out, "; ")
}
