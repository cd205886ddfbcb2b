package workload

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// FetchProcess is the process of a container that fetches the files at a URI into
// [ModelAt], on one machine, as KServe runs it: its arguments are the URI and the folder.
func FetchProcess(c corev1.Container, uri string) (*Process, error) {
	if len(c.EnvFrom) > 0 {
		return nil, fmt.Errorf("spec.container.envFrom is of pods alone: write the variables, or list their secret in the service account of the service")
	}
	for _, e := range c.Env {
		if e.ValueFrom != nil {
			return nil, fmt.Errorf("spec.container.env: %s takes its value from what only a pod has: give it a value, or list its secret in the service account of the service", e.Name)
		}
	}
	ct := &Container{Image: c.Image, Pull: c.ImagePullPolicy, Entrypoint: len(c.Command) > 0}
	ct.secure(&corev1.PodSpec{}, &c)
	if c.SecurityContext == nil {
		ct.Drop = []string{"ALL"} // it writes files
	}
	p := &Process{Command: slices.Concat(c.Command, []string{uri, ModelAt}), WorkingDir: c.WorkingDir, Env: slices.Clone(c.Env), Container: ct}
	if q, ok := c.Resources.Limits[corev1.ResourceMemory]; ok {
		p.MemoryBytes = max(0, q.Value())
	}
	if q, ok := c.Resources.Limits[corev1.ResourceCPU]; ok {
		ct.CPUs = max(0, q.AsApproximateFloat64())
	}
	return p, nil
}
