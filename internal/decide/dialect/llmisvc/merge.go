package llmisvc

import (
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// systemNamespace is KServe's own, in which a Config is looked for that a service's
// namespace does not have.
const systemNamespace = "kserve"

// Namespaces are where a Config is looked for that a service of a namespace names.
func Namespaces(own string) []string {
	if own == systemNamespace {
		return []string{own}
	}
	return []string{own, systemNamespace}
}

// SchedulerNamespaces are where a ConfigMap is looked for that a service of a namespace
// names for its scheduler: KServe's own ones have a name that says so.
func SchedulerNamespaces(own, name string) []string {
	if strings.HasPrefix(name, "config-scheduler-") {
		return Namespaces(own)
	}
	return []string{own}
}

// Merge lays specs over one another, the first at the bottom, as KServe merges a
// service over its Configs: pods by Kubernetes' strategic merge, everything else
// field by field. Lists of other things than a pod's are replaced. What is given
// stays as it is.
func Merge(specs ...map[string]any) (map[string]any, error) {
	out := map[string]any{}
	for _, s := range specs {
		merged, err := laid(out, s, "spec")
		if err != nil {
			return nil, err
		}
		out = merged
	}
	return out, nil
}

func laid(base, over map[string]any, path string) (map[string]any, error) {
	out := maps.Clone(base)
	for k, v := range over {
		at := path + "." + k
		o, isMap := v.(map[string]any)
		b, wasMap := base[k].(map[string]any)
		var err error
		switch {
		case v == nil: // states nothing
			continue
		case !isMap || !wasMap:
			out[k] = v
		case k == "template" || k == "worker":
			var pod map[string]any
			pod, err = strategicpatch.StrategicMergeMapPatch(cloned(b), cloned(o), corev1.PodSpec{})
			out[k] = pod
		default:
			out[k], err = laid(b, o, at)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
	}
	return out, nil
}

// cloned is a deep copy: a strategic merge works in place.
func cloned(m map[string]any) map[string]any {
	out := make(map[string]any, len(m))
	for k, v := range m {
		out[k] = clonedValue(v)
	}
	return out
}

func clonedValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		return cloned(v)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = clonedValue(v[i])
		}
		return out
	}
	return v
}
