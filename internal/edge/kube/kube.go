// Package kube is what the controller and a gateway in a cluster share: how
// they connect to the API server, which objects they keep in memory, and which
// parts of each. Of its sub-packages, objects reads manifests, records stores
// decisions, status writes the status of manifests.
package kube

import (
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// Config is how to reach the API server.
type Config struct {
	// Kubeconfig is a file's path; "" means the pod's own account in a cluster,
	// and what kubectl reads elsewhere.
	Kubeconfig string
	// QPS is how many requests a second are sent, Burst how many at once.
	QPS   float64
	Burst int
}

// DefaultConfig bounds the requests so that a thousand services start in
// seconds and the API server's own fairness still applies.
func DefaultConfig() Config { return Config{QPS: 100, Burst: 200} }

// Validate reports every field that cannot be used.
func (c Config) Validate() error {
	if c.QPS <= 0 || c.Burst <= 0 {
		return errors.New("kube: QPS and Burst must be above 0")
	}
	return nil
}

// Connect reads how to reach the API server. It sends nothing.
func Connect(cfg Config, userAgent string) (*rest.Config, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = cfg.Kubeconfig
	out, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("no API server to speak to: %w: run in a cluster, or name a file with --kubeconfig", err)
	}
	out.QPS, out.Burst, out.UserAgent = float32(cfg.QPS), cfg.Burst, userAgent
	return out, nil
}

// Scheme holds the built-in types that are read and written, and no others:
// registering all of them costs tens of megabytes.
func Scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, batchv1.AddToScheme, corev1.AddToScheme, policyv1.AddToScheme,
		discoveryv1.AddToScheme, coordinationv1.AddToScheme, eventsv1.AddToScheme, metav1.AddMetaToScheme, authenticationv1.AddToScheme} {
		utilruntime.Must(add(s))
	}
	return s
}

// CacheOptions are what both processes keep in memory: of built-in kinds only
// the objects of Roundhouse's services, and all objects through [Trim]. Without
// namespaces, all are watched.
func CacheOptions(namespaces []string) cache.Options {
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{shape.LabelManagedBy: shape.Manager})}
	o := cache.Options{
		DefaultTransform: Trim,
		NewInformer:      NewInformer,
		// Reading a kind that is not watched is a bug, and would start a watch
		// of all objects of the kind.
		ReaderFailOnMissingInformer: true,
		ByObject: map[client.Object]cache.ByObject{
			&appsv1.ControllerRevision{}:    {Label: labels.SelectorFromSet(labels.Set{shape.LabelRecord: "true"})},
			&appsv1.Deployment{}:            ours,
			&corev1.Service{}:               ours,
			&corev1.Pod{}:                   ours,
			&policyv1.PodDisruptionBudget{}: ours,
			&discoveryv1.EndpointSlice{}:    ours,
		},
	}
	o.DefaultNamespaces = Within(namespaces)
	return o
}

// Within is the DefaultNamespaces of a cache of these namespaces; none means all.
func Within(namespaces []string) map[string]cache.Config {
	if len(namespaces) == 0 {
		return nil
	}
	out := map[string]cache.Config{}
	for _, ns := range namespaces {
		out[ns] = cache.Config{}
	}
	return out
}

// Trim drops unused parts of an object on its way into a cache: kubectl's copy
// of the applied manifest, and managed fields. Of a manifest it keeps who wrote
// its status, and which fields of it we own. What comes from such a cache must
// not be written back whole.
func Trim(obj any) (any, error) {
	o, err := meta.Accessor(obj)
	if err != nil {
		return obj, nil // a tombstone, perhaps
	}
	if fields := o.GetManagedFields(); fields != nil {
		var kept []metav1.ManagedFieldsEntry
		if _, manifest := obj.(*unstructured.Unstructured); manifest {
			for _, f := range fields {
				if f.Subresource != "status" {
					continue
				}
				if f.Manager != shape.FieldManager {
					f.FieldsV1 = nil
				}
				kept = append(kept, f)
			}
		}
		o.SetManagedFields(kept)
	}
	if a := o.GetAnnotations(); a[corev1.LastAppliedConfigAnnotation] != "" {
		delete(a, corev1.LastAppliedConfigAnnotation)
		o.SetAnnotations(a)
	}
	return obj, nil
}

// AnnotationTakeOver on a manifest is a time (RFC 3339): Roundhouse writes the
// status although other managers wrote it before that time. With it a user
// hands over an object whose former controller is gone.
const AnnotationTakeOver = "roundhouse.dev/take-over"

// NoticeManager is the field manager of the one condition that is written to a
// status which another manager writes.
const NoticeManager = shape.FieldManager + "-notice"

// StatusWriter is another manager that writes an object's status.
type StatusWriter struct {
	Manager string
	At      time.Time
}

// OtherWriter finds another manager of an object's status: a field manager that
// wrote it after we last did, or that ever did if we never have. nil when there
// is none. Managed fields have times in whole seconds, so both may have written
// within one: then ours counts, until the other's next write.
func OtherWriter(o metav1.Object) *StatusWriter {
	ours, _ := time.Parse(time.RFC3339, o.GetAnnotations()[AnnotationTakeOver])
	for _, f := range o.GetManagedFields() {
		if f.Subresource == "status" && f.Manager == shape.FieldManager && f.Time != nil && f.Time.After(ours) {
			ours = f.Time.Time
		}
	}
	var other *StatusWriter
	for _, f := range o.GetManagedFields() {
		if f.Subresource != "status" || f.Manager == shape.FieldManager || f.Manager == NoticeManager || f.Time == nil {
			continue
		}
		if at := f.Time.Time; at.After(ours) && (other == nil || at.After(other.At)) {
			other = &StatusWriter{f.Manager, at}
		}
	}
	return other
}
