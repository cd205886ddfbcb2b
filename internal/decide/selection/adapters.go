package selection

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

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
	case scripted(rt.Components.Engine):
		return fail(RuleAdapters, "runs a shell script that hands no arguments to its engine, so none about LoRA adapters; "+has)
	}
	return pass(RuleAdapters, "takes LoRA adapters, "+has)
}

// maxNamed is how many adapters a reason names.
const maxNamed = 4

// scripted says whether what is appended to the arguments of a component's
// container stays in a shell.
func scripted(c *service.Component) bool {
	if c == nil {
		return false
	}
	main := container(c.Pod, c.Main)
	if c.Leader != nil {
		main = container(c.Leader.Pod, c.Leader.Main)
	}
	return main != nil && shellOnly(main)
}

func shellOnly(c *corev1.Container) bool {
	words := slices.Concat(c.Command, c.Args)
	if len(words) == 0 || !slices.Contains([]string{"sh", "bash", "/bin/sh", "/bin/bash"}, words[0]) {
		return false
	}
	at := slices.IndexFunc(words, func(w string) bool { return len(w) > 1 && w[0] == '-' && strings.HasSuffix(w, "c") })
	return at > 0 && at+1 < len(words) && !strings.Contains(words[at+1], "$@")
}
