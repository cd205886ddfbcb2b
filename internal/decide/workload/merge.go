package workload

import (
	"encoding/json"
	"fmt"
	"maps"

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
	over = *over.DeepCopy()
	for i := range over.Containers {
		c := &over.Containers[i]
		if c.Name == overMain || c.Name == "" {
			c.Name = main
		}
		if b := container(base, c.Name); b != nil && len(c.Args) > 0 {
			// A new command line takes over whole: the runtime's arguments
			// belonged to the runtime's program.
			if len(c.Command) == 0 {
				c.Args = MergeArgs(b.Args, c.Args)
			}
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
