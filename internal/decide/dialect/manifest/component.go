package manifest

import (
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
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
