package workload

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// mergePod lays a service's pod over a runtime's by Kubernetes' strategic
// merge (containers and env by name, volume mounts by path, limits by
// resource), except that container arguments merge by flag. A service's main
// container stands for the runtime's whatever either is called.
func mergePod(base corev1.PodSpec, baseMain string, over corev1.PodSpec, overMain string) (corev1.PodSpec, string, error) {
	main := baseMain
	if main == "" {
		main = overMain
	}
	base, over = *base.DeepCopy(), *over.DeepCopy()
	for i := range over.Containers {
		c := &over.Containers[i]
		if c.Name == overMain || c.Name == "" {
			c.Name = main
		}
		b := container(base, c.Name)
		if b == nil {
			continue
		}
		// A new command line takes over whole: the runtime's arguments
		// belonged to the runtime's program.
		if len(c.Args) > 0 && len(c.Command) == 0 {
			c.Args = MergeArgs(b.Args, c.Args)
		}
		// So does a hook: one of two kinds would be none.
		if l := c.Lifecycle; l != nil && l.PreStop != nil && b.Lifecycle != nil {
			b.Lifecycle.PreStop = nil
		}
	}
	baseJSON, err := json.Marshal(base)
	if err != nil {
		return base, main, fmt.Errorf("runtime pod: %w", err)
	}
	overJSON, err := json.Marshal(over)
	if err != nil {
		return base, main, fmt.Errorf("service pod: %w", err)
	}
	// PodSpec marshals its required list even when it is empty; as a patch
	// that would be a null.
	if len(over.Containers) == 0 {
		var m map[string]json.RawMessage
		if err := json.Unmarshal(overJSON, &m); err != nil {
			return base, main, fmt.Errorf("service pod: %w", err)
		}
		delete(m, "containers")
		if overJSON, err = json.Marshal(m); err != nil {
			return base, main, fmt.Errorf("service pod: %w", err)
		}
	}
	merged, err := strategicpatch.StrategicMergePatch(baseJSON, overJSON, corev1.PodSpec{})
	if err != nil {
		return base, main, fmt.Errorf("merge of the service's pod over the runtime's: %w", err)
	}
	var out corev1.PodSpec
	if err := json.Unmarshal(merged, &out); err != nil {
		return base, main, fmt.Errorf("merged pod: %w", err)
	}
	return out, main, nil
}

// container finds a container by name, nil when absent.
func container(p corev1.PodSpec, name string) *corev1.Container {
	for i := range p.Containers {
		if p.Containers[i].Name == name {
			return &p.Containers[i]
		}
	}
	return nil
}

// mergeNodes lays the service's leader and worker over the runtime's.
func (c *Component) mergeNodes(base, over *service.Component) (err error) {
	if c.Leader, err = mergeNode(base.Leader, over.Leader); err != nil {
		return fmt.Errorf("leader: %w", err)
	}
	if c.Worker, err = mergeNode(base.Worker, over.Worker); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	return nil
}

// mergeNode lays one side of a multi-node component over the runtime's.
func mergeNode(base, over *service.Node) (*Node, error) {
	switch {
	case base == nil && over == nil:
		return nil, nil
	case base == nil:
		base = &service.Node{}
	case over == nil:
		over = &service.Node{}
	}
	pod, main, err := mergePod(base.Pod, base.Main, over.Pod, over.Main)
	if err != nil {
		return nil, err
	}
	size := max(base.Size, 1)
	if over.Size > 0 {
		size = over.Size
	}
	return &Node{Pod: pod, Main: main, Size: size}, nil
}

// overlay is base with over's entries in their place; nil when both are empty.
func overlay(layers ...map[string]string) map[string]string {
	var out map[string]string
	for _, l := range layers {
		if len(l) > 0 && out == nil {
			out = map[string]string{}
		}
		maps.Copy(out, l)
	}
	return out
}

// flag is one option of a command line as written: its words in order.
type flag struct {
	name  string // normalized; "" for leading positional words
	words []string
}

// MergeArgs lays a service's arguments over a runtime's by flag: a flag the
// service states takes the place of the runtime's, a new one is appended. A
// flag that stands more than once on either side is repeatable, and all its
// occurrences are kept, the runtime's first. Positional words before the
// first flag are kept from both.
//
// "--a=1", "--a 1" and "-a 1" are read alike, and "-" and "_" inside a name
// are one: servers in this field accept either.
func MergeArgs(runtime, service []string) []string {
	if len(service) == 0 {
		return runtime
	}
	base, over := parseArgs(runtime), parseArgs(service)
	repeated := map[string]bool{}
	for _, flags := range [][]flag{base, over} {
		seen := map[string]bool{}
		for _, f := range flags {
			repeated[f.name] = repeated[f.name] || seen[f.name]
			seen[f.name] = true
		}
	}
	replaces := map[string][]string{}
	for _, f := range over {
		if f.name != "" && !repeated[f.name] {
			replaces[f.name] = f.words
		}
	}
	var out []string
	done := map[string]bool{}
	for _, f := range base {
		if words, ok := replaces[f.name]; ok {
			out = append(out, words...)
			done[f.name] = true
			continue
		}
		out = append(out, f.words...)
		if f.name == "" { // the service's positional words follow the runtime's
			out = append(out, positional(over)...)
			done[""] = true
		}
	}
	if !done[""] {
		out = append(append([]string{}, positional(over)...), out...)
	}
	for _, f := range over {
		if f.name != "" && !done[f.name] {
			out = append(out, f.words...)
		}
	}
	return out
}

func positional(fs []flag) []string {
	if len(fs) > 0 && fs[0].name == "" {
		return fs[0].words
	}
	return nil
}

// parseArgs groups words by the flag they belong to: without knowing a
// program's flags, a word after a flag is its value.
func parseArgs(words []string) []flag {
	var out []flag
	for _, w := range words {
		if name, ok := flagName(w); ok {
			out = append(out, flag{name: name, words: []string{w}})
			continue
		}
		if len(out) == 0 {
			out = append(out, flag{})
		}
		last := &out[len(out)-1]
		last.words = append(last.words, w)
	}
	return out
}

// flagName is the normalized name of a word that is a flag; negative numbers
// and a lone "-" are values.
func flagName(w string) (string, bool) {
	if len(w) < 2 || w[0] != '-' || w == "--" {
		return "", false
	}
	if c := w[1]; c >= '0' && c <= '9' || c == '.' {
		return "", false
	}
	name, _, _ := strings.Cut(w, "=")
	return strings.ReplaceAll(name, "_", "-"), true
}
