package manifest

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// CheckCanary reads how much of the traffic a changed manifest is to take.
func CheckCanary(r *Report, path string, percent *int) *int {
	path += ".canaryTrafficPercent"
	if percent != nil && (*percent < 0 || *percent > 100) {
		r.Errorf(path, "%d is not a percentage: write 0 to 100", *percent)
	}
	return percent
}

// CheckOneCanary refuses a component with a share of its own: a service's revision
// is all of its components.
func CheckOneCanary(r *Report, path string, percent *int, s *service.Service) {
	if percent != nil && (s.CanaryPercent == nil && *percent != 100 || s.CanaryPercent != nil && *s.CanaryPercent != *percent) {
		r.Errorf(path+".canaryTrafficPercent", "%d is not what the first component says: all components of a service are one revision", *percent)
	}
}

// ScalingFields are the fields by which KServe and OME both scale a component.
type ScalingFields struct {
	Min, Max, Target *int
	Metric           string
	Concurrency      *int
	// Timeout is in seconds and stands in the field called TimeoutField.
	Timeout      *int
	TimeoutField string
}

// ReadComponentScaling reads the fields by which KServe and OME scale a component
// at path.
func ReadComponentScaling(r *Report, path string, in ScalingFields) service.Scaling {
	out := service.Scaling{MinReplicas: in.Min, MaxReplicas: in.Max,
		ScaleMetric: service.ScaleMetric(in.Metric), MaxConcurrency: in.Concurrency}
	if in.Target != nil {
		f := float64(*in.Target)
		out.ScaleTarget = &f
	}
	CheckNotNegative(r, path+".containerConcurrency", in.Concurrency)
	if CheckNotNegative(r, path+"."+in.TimeoutField, in.Timeout); in.Timeout != nil {
		d := time.Duration(min(*in.Timeout, math.MaxInt32)) * time.Second
		out.AnswerTimeout = &d
	}
	return CheckScaling(r, path, out)
}

// Variable finds a container's environment variable and its index.
func Variable(c corev1.Container, name string) (int, string) {
	for i, e := range c.Env {
		if e.Name == name {
			return i, e.Value
		}
	}
	return -1, ""
}

// WithEnv adds variables to the container called name, making it if need be.
// Variables that are stated already stay as they are.
func WithEnv(cs []corev1.Container, name string, env []corev1.EnvVar) []corev1.Container {
	i := slices.IndexFunc(cs, func(c corev1.Container) bool { return c.Name == name })
	if i < 0 {
		cs, i = append(cs, corev1.Container{Name: name}), len(cs)
	}
	for _, e := range env {
		if at, _ := Variable(cs[i], e.Name); at < 0 {
			cs[i].Env = append(cs[i].Env, e)
		}
	}
	return cs
}

// maxPriority bounds residency.priority, up and down.
const maxPriority = 1000

// CheckResidency checks values of residency; at is where a field of it stands.
func CheckResidency(r *Report, at func(field string) string, in service.Residency) {
	if in.Priority < -maxPriority || in.Priority > maxPriority {
		r.Errorf(at("priority"), "%d is not between %d and %d", in.Priority, -maxPriority, maxPriority)
	}
	if in.GPUMemory > 0 && in.GPUMemory < 1<<20 {
		r.Errorf(at("gpuMemory"), "%d bytes are less than 1Mi: write the memory that a replica takes of a GPU with a unit, such as 8Gi", in.GPUMemory)
	}
	if in.GPUPercent < 0 || in.GPUPercent > 100 {
		r.Errorf(at("gpuPercent"), "%d is not between 1 and 100: write the percent of each of its GPUs that a replica takes", in.GPUPercent)
	} else if in.GPUPercent > 0 && in.GPUMemory > 0 {
		r.Errorf(at("gpuPercent"), "is stated beside gpuMemory: state one of them")
	}
	if in.Group != "" {
		CheckName(r, at("group"), in.Group, false)
	}
	if in.OneOf != "" {
		CheckName(r, at("oneOf"), in.OneOf, false)
	}
}

// WarnResidency warns that residency means nothing to a cluster.
func WarnResidency(r *Report, path string) {
	p := r.Problem(path, "has no effect on a cluster: Kubernetes places the pods. minReplicas keeps replicas, and a priorityClassName says which pods make room")
	p.Warning, p.Platform = true, Kubernetes
}

// readKeepBodies reads the annotation of bodies that are kept.
func readKeepBodies(r *Report, annotations map[string]string) int {
	text, stated := annotations[service.AnnotationKeepBodies]
	if !stated {
		return 0
	}
	at := strict.Key("metadata.annotations", service.AnnotationKeepBodies)
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > service.MaxKeptBody {
		r.Errorf(at, "%q is not read: write a number of bytes from 0 to %d", Clip(text), service.MaxKeptBody)
		return 0
	}
	p := r.Problem(at, "has no effect on a cluster: only a running roundhouse up keeps the last requests")
	p.Warning, p.Platform = true, Kubernetes
	return n
}

// checkModelStore checks the annotation of a model store.
func checkModelStore(r *Report, annotations map[string]string) {
	store, stated := annotations[service.AnnotationModelStore]
	if !stated {
		return
	}
	at := strict.Key("metadata.annotations", service.AnnotationModelStore)
	if bad := service.ModelStoreError(store); bad != "" {
		r.Errorf(at, "%q is not read: %s", Clip(store), bad)
		return
	}
	p := r.Problem(at, "has no effect on one machine: the data directory has the models of all services")
	p.Warning, p.Platform = true, Process
}

// residencyFields are what annotations state of residency, by the end of their
// names. Each reports what was expected where it cannot read a value.
var residencyFields = map[string]struct {
	field string
	read  func(out *service.Residency, value string) (expected string)
}{
	"pin":       {"pin", func(out *service.Residency, v string) string { return readBool(&out.Pin, v) }},
	"preload":   {"preload", func(out *service.Residency, v string) string { return readBool(&out.Preload, v) }},
	"exclusive": {"exclusive", func(out *service.Residency, v string) string { return readBool(&out.Exclusive, v) }},
	"share-gpu": {"shareGPU", func(out *service.Residency, v string) string { return readBool(&out.ShareGPU, v) }},
	"group":     {"group", func(out *service.Residency, v string) string { out.Group = v; return "" }},
	"one-of":    {"oneOf", func(out *service.Residency, v string) string { out.OneOf = v; return "" }},
	"priority": {"priority", func(out *service.Residency, v string) string {
		n, err := strconv.Atoi(v)
		if out.Priority = n; err != nil {
			return "a whole number"
		}
		return ""
	}},
	"gpu-percent": {"gpuPercent", func(out *service.Residency, v string) string {
		n, err := strconv.Atoi(strings.TrimSuffix(v, "%"))
		if out.GPUPercent = n; err != nil || n == 0 {
			return "a percent of a GPU from 1 to 100"
		}
		return ""
	}},
	"gpu-memory": {"gpuMemory", func(out *service.Residency, v string) string {
		if strict.QuantityBounded(v) {
			if q, err := resource.ParseQuantity(v); err == nil {
				out.GPUMemory = q.Value()
			}
		}
		if out.GPUMemory <= 0 {
			return "the memory that a replica takes of a GPU, such as 8Gi"
		}
		return ""
	}},
}

func readBool(out *bool, v string) (expected string) {
	b, err := strconv.ParseBool(v)
	if *out = b; err != nil {
		return `"true" or "false"`
	}
	return ""
}

// readResidency reads the annotations of residency.
func readResidency(r *Report, annotations map[string]string) (out service.Residency) {
	paths := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		name, ok := strings.CutPrefix(key, service.AnnotationResidency)
		if !ok {
			continue
		}
		at := strict.Key("metadata.annotations", key)
		f, known := residencyFields[name]
		if !known {
			continue // CheckAnnotations warns of it
		}
		paths[f.field] = at
		if expected := f.read(&out, annotations[key]); expected != "" {
			r.Errorf(at, "%q is not read: write %s", Clip(annotations[key]), expected)
		}
	}
	for _, at := range slices.Sorted(maps.Values(paths)) {
		WarnResidency(r, at)
		break
	}
	CheckResidency(r, func(field string) string { return paths[field] }, out)
	return out
}

// WarnRuntimeLabels warns of a worker's labels and annotations, which have no
// place of their own: the component's are on every node.
func WarnRuntimeLabels(r *Report, path string, labels, annotations map[string]string) {
	if len(labels) > 0 {
		r.Warnf(path+".labels", "have no effect: the runtime's are on every node")
	}
	if len(annotations) > 0 {
		r.Warnf(path+".annotations", "have no effect: the runtime's are on every node")
	}
}

// Complete reports whether a component can run without a runtime.
func Complete(c *service.Component) bool {
	if c.Local != nil && len(c.Local.Command) > 0 {
		return true
	}
	for _, ctr := range c.Pod.Containers {
		if ctr.Image != "" || len(ctr.Command) > 0 {
			return true
		}
	}
	return false
}

// CheckRefKind checks a reference's kind.
func CheckRefKind(r *Report, path, kind string, kinds ...string) {
	if kind != "" && !slices.Contains(kinds, kind) {
		r.Errorf(path, "unknown kind %q: write %s, or nothing for whichever there is", Clip(kind), strings.Join(kinds, " or "))
	}
}

// MainOf names the serving container: the one called as the dialect calls it,
// else the first, which takes that name if it has none. "" without containers.
func MainOf(cs []corev1.Container, want string) string {
	if len(cs) == 0 {
		return ""
	}
	for _, c := range cs {
		if c.Name == want {
			return want
		}
	}
	if cs[0].Name == "" {
		cs[0].Name = want
	}
	return cs[0].Name
}

// NodeOf is a node of a replica that spans several; size is nil for the default.
func NodeOf(pod corev1.PodSpec, main string, size *int) *service.Node {
	out := &service.Node{Pod: pod, Main: main}
	if size != nil {
		out.Size = *size
	}
	return out
}

// MultiNode reports whether any component spans nodes.
func MultiNode(cs service.Components) bool {
	for _, role := range service.Roles {
		if c := cs.Get(role); c != nil && (c.Leader != nil || c.Worker != nil) {
			return true
		}
	}
	return false
}

// MaxRank is far above any adapter's rank.
const MaxRank = 1 << 16

// CheckAdapterNames checks how many adapters there are, and that their names differ
// and are not the service's own.
func CheckAdapterNames(r *Report, path, own string, in []service.Adapter, at func(int) string) {
	if len(in) > service.MaxAdapters {
		r.Errorf(path, "%d adapters are more than one service may have (%d)", len(in), service.MaxAdapters)
	}
	seen := map[string]int{}
	for i, a := range in {
		j, twice := seen[a.Name]
		switch {
		case a.Name == "":
		case a.Name == own:
			r.Errorf(at(i), "%q is the name of the service itself: requests could not tell them apart", Clip(own))
		case twice:
			r.Errorf(at(i), "%q is also the name of adapter %d", Clip(a.Name), j)
			continue
		}
		seen[a.Name] = i
	}
}
