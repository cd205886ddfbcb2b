package workload

import (
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/selection"
)

// Localize fills in how a runtime's components run as processes: by the
// fallback of what the runtime says, where its program is not on this host; and
// where the runtime does not say, by the main container's own command, if its program is
// on this host; else as the catalog runtime with the same image repository
// does. A component that stays without Local cannot run here; selection rejects
// it with that reason. The runtime given is not changed.
func Localize(rt service.Runtime, catalog []service.Runtime, host selection.Host) service.Runtime {
	for _, role := range service.Roles {
		c := rt.Components.Get(role)
		if c == nil {
			continue
		}
		filled := *c
		if c.Local != nil {
			filled.Local = present(installable(c.Local, role, catalog, host), host)
		} else if l := localOf(*c, role, catalog, host); l != nil {
			filled.Local, filled.LocalDerived = present(sleeping(l, role, catalog), host), true
		}
		if filled.Local != c.Local {
			rt.Components.Set(role, &filled)
		}
	}
	return rt
}

// LocalizeService does the same for a service that brings its own containers.
func LocalizeService(s service.Service, catalog []service.Runtime, host selection.Host) service.Service {
	rt := Localize(service.Runtime{Components: s.Components}, catalog, host)
	s.Components = rt.Components
	return s
}

// LocalizeBeside does the same for the components that a service brings beside what a
// runtime runs: its transformer and its explainer.
func LocalizeBeside(s service.Service, catalog []service.Runtime, host selection.Host) service.Service {
	own := service.Components{Transformer: s.Components.Transformer, Explainer: s.Components.Explainer}
	rt := Localize(service.Runtime{Components: own}, catalog, host)
	s.Components.Transformer, s.Components.Explainer = rt.Components.Transformer, rt.Components.Explainer
	return s
}

// installable is l with the install line of the catalog's runtime whose command
// is the same program, where l states none and the program is not on the host.
func installable(l *service.Local, role service.Role, catalog []service.Runtime, host selection.Host) *service.Local {
	l = sleeping(l, role, catalog)
	program := selection.Program(l.Command)
	if l.Install != "" || program == "" || host.Programs == nil || host.Programs[program] {
		return l
	}
	for i := range catalog {
		c := catalog[i].Components.Get(role)
		if c != nil && c.Local != nil && c.Local.Install != "" && selection.Program(c.Local.Command) == program {
			filled := *l
			filled.Install = c.Local.Install
			return &filled
		}
	}
	return l
}

// sleeping is l with the way to sleep of the catalog's runtime whose command
// begins with the same words, where l states none.
func sleeping(l *service.Local, role service.Role, catalog []service.Runtime) *service.Local {
	if l.Standby != nil {
		return l
	}
	for i := range catalog {
		c := catalog[i].Components.Get(role)
		if c == nil || c.Local == nil || c.Local.Standby == nil {
			continue
		}
		words := c.Local.Command
		if end := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "-") || strings.Contains(w, "{{") }); end >= 0 {
			words = words[:end]
		}
		if len(words) > 0 && len(l.Command) >= len(words) && slices.Equal(l.Command[:len(words)], words) {
			filled := *l
			filled.Standby = c.Local.Standby
			return &filled
		}
	}
	return l
}

// present is l, or its fallback where the program of l is not on the host. A
// host that is not known changes nothing.
func present(l *service.Local, host selection.Host) *service.Local {
	program := selection.Program(l.Command)
	if l.Fallback == nil || program == "" || host.Programs == nil || host.Programs[program] {
		return l
	}
	fallback := *l.Fallback
	fallback.FallbackOf = l
	return &fallback
}

func localOf(c service.Component, role service.Role, catalog []service.Runtime, host selection.Host) *service.Local {
	m := container(c.Pod, c.Main)
	if m == nil {
		return nil
	}
	if len(m.Command) > 0 && (host.Programs[m.Command[0]] || strings.Contains(m.Command[0], "/") && !inImage(m.Command[0])) {
		return fromContainer(m, c.Metrics.Over(c.Annotations).Port)
	}
	if m.Image == "" {
		return nil
	}
	for i := range catalog {
		other := catalog[i].Components.Get(role)
		if other == nil || other.Local == nil {
			continue
		}
		if o := container(other.Pod, other.Main); o != nil && Repository(o.Image) == Repository(m.Image) {
			l := *other.Local
			// Arguments belong to the image's program; where this binary stands
			// in for it, they would mean nothing to it.
			if l.Command[0] != "roundhouse" {
				l.Command = MergeArgs(l.Command, portable(m.Args))
			}
			return &l
		}
	}
	return nil
}

// inImage reports whether an absolute program path means a place inside an image
// rather than on this machine. Relative paths and paths below a home or /opt
// could be either; only the well-known shells and interpreters are certain to
// be here too, and those a host lists by name.
func inImage(program string) bool {
	return strings.HasPrefix(program, "/") && !strings.HasPrefix(program, "/bin/") && !strings.HasPrefix(program, "/usr/bin/")
}

// fromContainer reads a container's command line as a process: the model's
// mount path, the declared port and that of the metrics become the replica's
// own.
func fromContainer(m *corev1.Container, metrics int32) *service.Local {
	words := slices.Concat(m.Command, m.Args)
	var http int32
	if len(m.Ports) > 0 {
		http = m.Ports[0].ContainerPort
	}
	script := scriptOf(words)
	for i, w := range words {
		w = strings.ReplaceAll(w, mountPath, "{{.ModelPath}}")
		if i == script && http > 0 {
			w = portFlag(http).ReplaceAllString(w, "${1}{{.Port}}")
		}
		if there, ok := withoutPort(w, http); ok {
			w = there + "{{.Port}}"
		} else if there, ok := withoutPort(w, metrics); ok {
			w = there + "{{.MetricsPort}}"
		}
		words[i] = w
	}
	return &service.Local{Command: words, WorkingDir: m.WorkingDir}
}

// scriptOf is the index of the text that a shell runs, -1 where none does.
func scriptOf(words []string) int {
	if len(words) > 2 && slices.Contains([]string{"sh", "bash"}, path.Base(words[0])) && strings.HasPrefix(words[1], "-") && strings.HasSuffix(words[1], "c") {
		return 2
	}
	return -1
}

// portFlag finds a port in the text of a shell, where it is the value of a flag.
func portFlag(port int32) *regexp.Regexp {
	return regexp.MustCompile(`(--(?:http[-_])?port[= ]['"]?)` + strconv.Itoa(int(port)) + `\b()`)
}

// withoutPort is what stands before a port in a word that is one, or ends in
// "=" and one.
func withoutPort(word string, port int32) (before string, ok bool) {
	before, ok = strings.CutSuffix(word, strconv.Itoa(int(port)))
	return before, ok && port > 0 && (before == "" || strings.HasSuffix(before, "="))
}

// portable keeps of a container's arguments those that mean the same outside
// the container: not ports, hosts and paths, which the replica's own replace.
func portable(args []string) []string {
	var out []string
	for _, f := range parseArgs(args) {
		name := strings.TrimLeft(f.name, "-")
		switch {
		case f.name == "", strings.HasSuffix(name, "port"), name == "host", name == "model-dir", name == "model", name == "model-path":
			continue
		case strings.Contains(strings.Join(f.words, " "), mountPath):
			continue
		}
		out = append(out, f.words...)
	}
	return out
}
