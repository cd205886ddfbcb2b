package shape

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// labelGroupIndex is which group of its LeaderWorkerSet a pod is of.
const labelGroupIndex = "leaderworkerset.sigs.k8s.io/group-index"

// ray gives the pods of a group that speak of Ray the variables that KServe
// gives them: how many nodes there are, how many accelerators each has, and
// for workers HEAD_SVC, the leader's name within its namespace, to which
// KServe's runtimes append the rest.
func (r *renderer) ray(leader, worker *corev1.PodSpec, leading, working string, size int32) {
	if !speaksRay(leader) && !speaksRay(worker) {
		return
	}
	for _, side := range []struct {
		pod    *corev1.PodSpec
		main   string
		worker bool
	}{{leader, leading, false}, {worker, working, true}} {
		c := container(side.pod, side.main)
		if c == nil && len(side.pod.Containers) > 0 {
			c = &side.pod.Containers[0]
		}
		if c == nil {
			continue
		}
		var first []corev1.EnvVar // what stands first others may refer to
		give := func(e corev1.EnvVar) {
			if !slices.ContainsFunc(c.Env, func(have corev1.EnvVar) bool { return have.Name == e.Name }) {
				first = append(first, e)
			}
		}
		give(corev1.EnvVar{Name: "RAY_NODE_COUNT", Value: strconv.Itoa(int(size))})
		if n := accelerators(c); n != "" {
			give(corev1.EnvVar{Name: "REQUEST_GPU_COUNT", Value: n})
		}
		give(corev1.EnvVar{Name: "MODEL_NAME", Value: r.rev.Service.Name})
		if side.worker {
			const index = "ROUNDHOUSE_GROUP_INDEX"
			give(corev1.EnvVar{Name: index, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{
				APIVersion: "v1", FieldPath: "metadata.labels['" + labelGroupIndex + "']"}}})
			host := fmt.Sprintf("%s-$(%s)", Name(r.rev.Service, r.c.Role), index)
			give(corev1.EnvVar{Name: "HEAD_SVC", Value: host + "." + host}) // host and subdomain of UniquePerReplica
		}
		c.Env = append(first, c.Env...)
	}
}

// speaksRay reports whether a pod starts Ray, or asks for one of its variables.
func speaksRay(pod *corev1.PodSpec) bool {
	return slices.ContainsFunc(pod.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(slices.Concat(c.Command, c.Args), func(w string) bool {
			return strings.Contains(w, "ray start") || strings.Contains(w, "RAY_") || strings.Contains(w, "HEAD_SVC")
		})
	})
}

// accelerators counts a container's; "" where it states none.
func accelerators(c *corev1.Container) string {
	for _, list := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
		total := int64(0)
		for name, q := range list {
			if strings.HasSuffix(string(name), "/gpu") {
				total += q.Value()
			}
		}
		if total > 0 {
			return strconv.FormatInt(total, 10)
		}
	}
	for _, e := range c.Env {
		if e.Name == "TENSOR_PARALLEL_SIZE" {
			return e.Value // as KServe asks for as many
		}
	}
	return ""
}
