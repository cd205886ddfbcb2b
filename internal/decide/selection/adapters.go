package selection

import (
	"fmt"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// adapters: the runtime can be told of the service's LoRA adapters.
func (s *subject) adapters(rt *service.Runtime) Rule {
	names := s.svc.AdapterNames()
	has := fmt.Sprintf("the service has %d: %s", len(names), strings.Join(names[:min(len(names), maxNamed)], ", "))
	if len(names) > maxNamed {
		has += ", …"
	}
	switch {
	case rt.Adapters == nil:
		return fail(RuleAdapters, "takes no LoRA adapters, "+has+"; where its engine does, say how in its spec.adapters")
	case s.scripted(rt.Components.Engine):
		return fail(RuleAdapters, "runs a shell script that hands no arguments to its engine, so none about LoRA adapters; "+has)
	}
	return pass(RuleAdapters, "takes LoRA adapters, "+has)
}

// maxNamed is how many adapters a reason names.
const maxNamed = 4

// scripted reports whether what is appended to a component's command line stays in
// a shell.
func (s *subject) scripted(c *service.Component) bool {
	switch {
	case c == nil:
		return false
	case !s.host.Cluster && c.Local != nil:
		return shellOnly(c.Local.Command)
	}
	main := container(c.Pod, c.Main)
	if c.Leader != nil {
		main = container(c.Leader.Pod, c.Leader.Main)
	}
	return main != nil && shellOnly(slices.Concat(main.Command, main.Args))
}

// shellOnly reports whether words run a shell's script that uses none of its
// arguments.
func shellOnly(words []string) bool {
	if len(words) == 0 || !slices.Contains([]string{"sh", "bash", "/bin/sh", "/bin/bash"}, words[0]) {
		return false
	}
	at := slices.IndexFunc(words, func(w string) bool { return len(w) > 1 && w[0] == '-' && strings.HasSuffix(w, "c") })
	return at > 0 && at+1 < len(words) && !strings.Contains(words[at+1], "$@")
}
