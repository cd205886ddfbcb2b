// Package podmetrics reads what the pods of services take of processors and memory,
// from metrics.k8s.io, which metrics-server serves in most clusters. Only namespaces
// that somebody asks about are read.
package podmetrics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

const (
	// askedFor is for how long a namespace is read after somebody asked.
	askedFor = time.Minute
	// readTimeout bounds the reading of one namespace.
	readTimeout = 10 * time.Second
	// pageSize is how many pods one answer lists, maxPods how many are read of a
	// namespace.
	pageSize = 500
	maxPods  = 10_000
	// maxProblem bounds what is quoted of the API server.
	maxProblem = 256
)

// Config of a Reader. Client is required, and must not cache.
type Config struct {
	Client client.Reader
	// Every is the time between two readings; metrics-server measures every 15 s.
	Every time.Duration
	Now   func() time.Time
	Log   *slog.Logger
}

// DefaultConfig reads every 10 s.
func DefaultConfig() Config { return Config{Every: 10 * time.Second} }

// Reader reads the use of pods. It is safe for concurrent use.
type Reader struct {
	cfg Config

	mu         sync.Mutex
	namespaces map[string]*namespace
	first      chan struct{} // a namespace is asked about that was not
}

// namespace is what is known of a namespace's pods.
type namespace struct {
	asked   time.Time
	problem string // of the last reading
	pods    map[string]*pod
}

// pod is what is known of a pod.
type pod struct {
	requests map[corev1.ResourceName]float64
	problem  string // why it has no requests of a resource
	stamp    string // of its last measurement
	use      replica.Use
}

// New makes a reader that reads nothing yet.
func New(cfg Config) (*Reader, error) {
	if cfg.Client == nil || cfg.Every <= 0 {
		return nil, errors.New("podmetrics: a Client and an Every above 0 are required")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Reader{cfg: cfg, namespaces: map[string]*namespace{}, first: make(chan struct{}, 1)}, nil
}

// Use is what a pod takes of its requests, as last measured, or why that is not
// known. It has the pods of the namespace read on.
func (r *Reader) Use(in, name string) *replica.Use {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.namespaces[in]
	if n == nil {
		n = &namespace{problem: "not read yet"}
		r.namespaces[in] = n
		select {
		case r.first <- struct{}{}:
		default:
		}
	}
	n.asked = r.cfg.Now()
	p := n.pods[name]
	switch {
	case p != nil && !p.use.At.IsZero():
		use := p.use
		use.Problem = cmp.Or(n.problem, p.problem)
		return &use
	case p != nil && p.problem != "":
		return &replica.Use{Problem: p.problem}
	case n.problem != "":
		return &replica.Use{Problem: n.problem}
	}
	return &replica.Use{Problem: "metrics.k8s.io has no measurement of it yet"}
}

// Run reads until ctx ends.
func (r *Reader) Run(ctx context.Context) {
	tick := time.NewTicker(r.cfg.Every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-r.first:
		case <-ctx.Done():
			return
		}
		for _, in := range r.wanted() {
			r.read(ctx, in)
		}
	}
}

// wanted are the namespaces that somebody asked about lately; others are forgotten.
func (r *Reader) wanted() (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for in, n := range r.namespaces {
		if r.cfg.Now().Sub(n.asked) > askedFor {
			delete(r.namespaces, in)
			continue
		}
		out = append(out, in)
	}
	return out
}

// read reads the pods of one namespace.
func (r *Reader) read(ctx context.Context, in string) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	measured, err := r.list(ctx, in)
	if ctx.Err() == nil || err == nil {
		r.note(in, measured, problemOf(err))
	}
	for _, name := range r.unknown(in) {
		requests, problem, err := r.requests(ctx, in, name)
		if err != nil {
			if !apierrors.IsNotFound(err) {
				r.cfg.Log.Debug("a pod's requests cannot be read", "namespace", in, "pod", name, "error", err)
			}
			continue // tried again with the next reading
		}
		r.mu.Lock()
		if n := r.namespaces[in]; n != nil && n.pods[name] != nil {
			n.pods[name].requests, n.pods[name].problem = requests, problem
		}
		r.mu.Unlock()
	}
	if err == nil { // now with the requests of new pods
		r.note(in, measured, "")
	}
}

// Kind is what metrics.k8s.io has of pods.
var Kind = schema.GroupVersionKind{Group: "metrics.k8s.io", Version: "v1beta1", Kind: "PodMetricsList"}

func (r *Reader) list(ctx context.Context, in string) ([]unstructured.Unstructured, error) {
	var out []unstructured.Unstructured
	for next := ""; ; {
		page := &unstructured.UnstructuredList{}
		page.SetGroupVersionKind(Kind)
		err := r.cfg.Client.List(ctx, page, client.InNamespace(in), client.MatchingLabels{shape.LabelManagedBy: shape.Manager}, client.Limit(pageSize), client.Continue(next))
		if err != nil {
			return nil, err
		}
		out = append(out, page.Items...)
		if next = page.GetContinue(); next == "" || len(out) >= maxPods {
			return out, nil
		}
	}
}

// problemOf is why a namespace cannot be read, in words for its services' status.
func problemOf(err error) string {
	switch {
	case err == nil:
		return ""
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
		return "this cluster does not serve metrics.k8s.io: install metrics-server"
	case apierrors.IsForbidden(err):
		return "the controller may not list pods.metrics.k8s.io"
	}
	return "metrics.k8s.io: " + excerpt.Of(err.Error(), maxProblem)
}

// note takes in a reading.
func (r *Reader) note(in string, measured []unstructured.Unstructured, problem string) {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.namespaces[in]
	if n == nil {
		return
	}
	if n.problem != problem && problem != "" {
		r.cfg.Log.Warn("what pods take of processors and memory is not known", "namespace", in, "problem", problem)
	}
	if n.problem = problem; problem != "" {
		return // what was read grows old
	}
	before := n.pods
	n.pods = make(map[string]*pod, len(measured))
	for i := range measured {
		u := &measured[i]
		p := before[u.GetName()]
		if p == nil {
			p = &pod{}
		}
		n.pods[u.GetName()] = p
		stamp, _, _ := unstructured.NestedString(u.Object, "timestamp")
		if p.requests == nil || stamp == p.stamp {
			continue
		}
		p.stamp, p.use = stamp, replica.Use{At: now, CPU: percent(u, corev1.ResourceCPU, p.requests), Memory: percent(u, corev1.ResourceMemory, p.requests)}
	}
}

// unknown are the pods whose requests are not known.
func (r *Reader) unknown(in string) (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.namespaces[in]; n != nil {
		for name, p := range n.pods {
			if p.requests == nil && p.problem == "" {
				out = append(out, name)
			}
		}
	}
	return out
}

// requests are what a pod's containers request, or why that says nothing.
func (r *Reader) requests(ctx context.Context, in, name string) (out map[corev1.ResourceName]float64, problem string, err error) {
	var p corev1.Pod
	if err := r.cfg.Client.Get(ctx, client.ObjectKey{Namespace: in, Name: name}, &p); err != nil {
		return nil, "", err
	}
	out = map[corev1.ResourceName]float64{}
	for _, resource := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		for i := range p.Spec.Containers {
			q, stated := p.Spec.Containers[i].Resources.Requests[resource]
			if !stated || q.Sign() <= 0 {
				delete(out, resource)
				problem = fmt.Sprintf("container %s requests no %s, of which it would take a part", p.Spec.Containers[i].Name, resource)
				break
			}
			out[resource] += q.AsApproximateFloat64()
		}
	}
	if len(out) == 0 {
		return nil, problem, nil
	}
	return out, problem, nil
}

// percent is what a pod's containers take of what they request; below 0 where that is
// not known.
func percent(u *unstructured.Unstructured, of corev1.ResourceName, requests map[corev1.ResourceName]float64) float64 {
	containers, _, _ := unstructured.NestedSlice(u.Object, "containers")
	if requests[of] <= 0 || len(containers) == 0 {
		return -1
	}
	sum := 0.0
	for _, c := range containers {
		fields, _ := c.(map[string]any)
		text, found, _ := unstructured.NestedString(fields, "usage", string(of))
		q, err := resource.ParseQuantity(text)
		if !found || err != nil {
			return -1
		}
		sum += q.AsApproximateFloat64()
	}
	return 100 * sum / requests[of]
}
