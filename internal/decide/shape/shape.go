// Package shape turns a revision into the objects a Kubernetes cluster runs it
// as: for each role a Deployment or a LeaderWorkerSet, a headless Service and a
// PodDisruptionBudget. They say nothing of counts: those have another writer,
// which is a HorizontalPodAutoscaler where a role scales by cpu or memory.
// Pure: the same revision and options give the same objects.
package shape

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"reflect"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// Options are what a cluster adds to a revision.
type Options struct {
	// Owner is the manifest's object; nil leaves the objects without an owner.
	Owner *metav1.OwnerReference
	// LeaderWorkerSets reports that the kind is installed.
	LeaderWorkerSets bool
	// Accounts are the service accounts of [AccountOf], as far as they are known.
	Accounts map[string]Account
	// PublicModels refuses models at internal addresses, which a URI names or
	// leads to.
	PublicModels bool
	// HubEndpoint is where pods find the Hugging Face Hub that name none: a cache;
	// "" for the Hub itself.
	HubEndpoint string
}

// Objects are what a revision is on a cluster, in the order of its roles.
// Deployments and Groups have no replica count.
type Objects struct {
	Deployments []appsv1.Deployment
	Services    []corev1.Service
	Budgets     []policyv1.PodDisruptionBudget
	// Lists are the models that the pods of a role load while they run.
	Lists []corev1.ConfigMap
	// Scalers are of the roles that scale by cpu or memory.
	Scalers []autoscalingv2.HorizontalPodAutoscaler
	// Groups are LeaderWorkerSets, for roles whose replicas span nodes.
	Groups []LeaderWorkerSet
	// Accounts, Roles and Bindings let a router see pods that it looks for itself.
	Accounts []corev1.ServiceAccount
	Roles    []rbacv1.Role
	Bindings []rbacv1.RoleBinding
}

// Render makes a revision's objects. Errors name the service, the role and
// what to change. The objects share nothing with the revision.
func Render(rev workload.Revision, o Options) (Objects, error) {
	var out Objects
	for i := range rev.Components {
		r := renderer{rev: &rev, c: rev.Components[i], m: rev.ModelOf(rev.Components[i].Role), o: o}
		if err := r.render(&out); err != nil {
			return Objects{}, fmt.Errorf("%s: %s: %w", rev.Service, r.c.Role, err)
		}
	}
	return out, nil
}

// renderer makes the objects of one role.
type renderer struct {
	rev *workload.Revision
	c   workload.Component
	m   workload.Model // that the role's pods have
	o   Options
}

func (r *renderer) render(out *Objects) error {
	if r.c.Leader != nil || r.c.Worker != nil {
		g, err := r.group()
		if err != nil {
			return err
		}
		out.Groups = append(out.Groups, g)
	} else {
		d, err := r.deployment()
		if err != nil {
			return err
		}
		out.Deployments = append(out.Deployments, d)
	}
	out.Services = append(out.Services, r.service())
	out.Budgets = append(out.Budgets, r.budget())
	if r.c.Repository != "" {
		out.Lists = append(out.Lists, r.list())
	}
	r.scaler(out)
	r.access(out)
	return nil
}

func (r *renderer) deployment() (appsv1.Deployment, error) {
	pod, err := r.pod(r.c.Pod, r.c.Main, true)
	if err != nil {
		return appsv1.Deployment{}, err
	}
	deadline := seconds(r.c.Limits.StartupTimeout) + deadlineSlack
	d := appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: r.meta(),
		Spec: appsv1.DeploymentSpec{
			Selector:                &metav1.LabelSelector{MatchLabels: r.selector()},
			Template:                corev1.PodTemplateSpec{ObjectMeta: r.podMeta(), Spec: pod},
			Strategy:                strategy(r.c.Strategy),
			RevisionHistoryLimit:    new(int32(revisionHistory)),
			ProgressDeadlineSeconds: &deadline,
		},
	}
	r.pin(&d.ObjectMeta, d.Spec.Strategy)
	return d, nil
}

// strategy has a new revision take over only once it is ready, where its manifest says
// nothing else: no pod goes before another stands in for it. Of the bounds that it
// states one alone, a surge of 0 leaves the other to Kubernetes' own, so that
// replicas can be replaced at all.
func strategy(s *service.Strategy) appsv1.DeploymentStrategy {
	none, quarter := intstr.FromInt32(0), intstr.FromString("25%") // of a surge rounded up, else down
	out := &appsv1.RollingUpdateDeployment{MaxUnavailable: &none, MaxSurge: &quarter}
	switch {
	case s == nil:
	case s.Recreate:
		return appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	default:
		if at := s.MaxSurge; at != nil {
			out.MaxSurge = new(*at)
		}
		switch at := s.MaxUnavailable; {
		case at != nil:
			out.MaxUnavailable = new(*at)
		case service.NoneOf(s.MaxSurge):
			out.MaxUnavailable = &quarter
		}
	}
	return appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: out}
}

const (
	// deadlineSlack is what a pod may take beyond its startup, in seconds: to be
	// placed on a node, and to have its image and its model brought.
	deadlineSlack = 3600
	// revisionHistory is how many old ReplicaSets stay. Ours are records of
	// nothing: what a revision was is kept elsewhere.
	revisionHistory = 2
)

// service is headless: requests go to pods, not to an address that spreads them.
func (r *renderer) service() corev1.Service {
	http, grpc := r.ports()
	s := corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: r.meta(),
		Spec: corev1.ServiceSpec{
			Type:      corev1.ServiceTypeClusterIP,
			ClusterIP: corev1.ClusterIPNone,
			Selector:  r.selector(),
		},
	}
	if r.grouped() {
		s.Spec.Selector[LabelWorkerIndex] = "0" // the leader answers
	}
	for _, p := range []struct {
		name string
		port int32
	}{{PortHTTP, http}, {PortGRPC, grpc}} {
		if p.port > 0 {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: p.name, Port: p.port,
				TargetPort: intstr.FromInt32(p.port), Protocol: corev1.ProtocolTCP})
		}
	}
	r.applied(&s.ObjectMeta, s)
	return s
}

// budget has nodes drained one pod of a role at a time, where its manifest says
// nothing else.
func (r *renderer) budget() policyv1.PodDisruptionBudget {
	one := intstr.FromInt32(1)
	b := policyv1.PodDisruptionBudget{
		TypeMeta:   metav1.TypeMeta{APIVersion: "policy/v1", Kind: "PodDisruptionBudget"},
		ObjectMeta: r.meta(),
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: &one,
			Selector:       &metav1.LabelSelector{MatchLabels: r.selector()},
		},
	}
	if own := r.c.Budget; own != nil {
		b.Spec.MinAvailable, b.Spec.MaxUnavailable = own.MinAvailable, own.MaxUnavailable
	}
	r.applied(&b.ObjectMeta, b)
	return b
}

func (r *renderer) grouped() bool { return r.c.Leader != nil || r.c.Worker != nil }

// selector finds the role's pods; it can never change.
func (r *renderer) selector() map[string]string {
	return map[string]string{LabelService: LabelValue(r.rev.Service.WorkloadName()), LabelRole: string(r.c.Role)}
}

func (r *renderer) meta() metav1.ObjectMeta {
	m := metav1.ObjectMeta{
		Name:        Name(r.rev.Service, r.c.Role),
		Namespace:   r.rev.Service.Namespace,
		Labels:      r.selector(),
		Annotations: map[string]string{AnnotationService: r.rev.Service.WorkloadName()},
	}
	m.Labels[LabelManagedBy] = Manager
	if r.o.Owner != nil {
		m.OwnerReferences = []metav1.OwnerReference{*r.o.Owner.DeepCopy()}
	}
	return m
}

// podMeta is that of the role's pods: what the manifests say, and over it what
// the pods are found by.
func (r *renderer) podMeta() metav1.ObjectMeta {
	m := metav1.ObjectMeta{Labels: map[string]string{}, Annotations: map[string]string{}}
	for k, v := range r.c.Labels {
		m.Labels[k] = v
	}
	for k, v := range r.c.Annotations {
		m.Annotations[k] = v
	}
	for k, v := range r.selector() {
		m.Labels[k] = v
	}
	if _, ok := m.Labels[labelOME]; ok && r.rev.Service.IsCanary() {
		m.Labels[labelOME] = LabelValue(r.rev.Service.WorkloadName())
	}
	m.Labels[LabelManagedBy] = Manager
	m.Labels[LabelRevision] = r.rev.Hash
	if k := r.rev.Kept; k != nil {
		m.Labels[LabelModelCache] = k.Name
	}
	m.Annotations[AnnotationService] = r.rev.Service.WorkloadName()
	return m
}

// applied notes what an object was rendered as.
func (r *renderer) applied(m *metav1.ObjectMeta, object any) {
	m.Annotations[AnnotationApplied] = digest(object)
}

// pin notes what pods were rendered from rather than as: where another version
// of this package renders them otherwise, those that run are left alone. How they are
// replaced is no part of the revision, and so is noted where it is not our default.
func (r *renderer) pin(m *metav1.ObjectMeta, how appsv1.DeploymentStrategy) {
	m.Labels[LabelRevision] = r.rev.Hash
	from := []any{m.Name, m.Namespace, m.OwnerReferences, r.rev.Hash}
	if !reflect.DeepEqual(how, strategy(nil)) {
		from = append(from, how)
	}
	r.applied(m, from)
}

func digest(v any) string {
	// Encoding these plain structs cannot fail.
	raw, _ := json.Marshal(v)
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])[:16]
}

// Annotations by which a manifest leaves the count to an autoscaler of its
// author's: of KServe, of OME, and ours.
const (
	classKServe   = "serving.kserve.io/autoscalerClass"
	classOME      = "ome.io/autoscalerClass"
	classOurs     = "roundhouse.dev/autoscalerClass"
	classExternal = "external"
)

// ExternallyScaled reports whether annotations leave a count to an autoscaler that
// the manifest's author brings.
func ExternallyScaled(annotations map[string]string) bool {
	return annotations[classKServe] == classExternal || annotations[classOME] == classExternal || annotations[classOurs] == classExternal
}

// scaler has Kubernetes count the replicas of a role whose metric is what they
// use of a resource, which requests do not tell. It never asks for none: from and
// to zero, requests decide.
func (r *renderer) scaler(out *Objects) {
	l := r.c.Limits
	if !l.ByResource() || ExternallyScaled(r.rev.Annotations) || ExternallyScaled(r.c.Annotations) {
		return
	}
	target := autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: Name(r.rev.Service, r.c.Role)}
	if r.grouped() {
		target.APIVersion, target.Kind = GroupAPIVersion, "LeaderWorkerSet"
	}
	percent := int32(min(max(math.Round(l.Target), 1), math.MaxInt32))
	least := count32(max(l.Min, 1))
	h := autoscalingv2.HorizontalPodAutoscaler{
		TypeMeta:   metav1.TypeMeta{APIVersion: "autoscaling/v2", Kind: "HorizontalPodAutoscaler"},
		ObjectMeta: r.meta(),
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: target,
			MinReplicas:    &least,
			MaxReplicas:    max(count32(l.Max), least),
			Metrics: []autoscalingv2.MetricSpec{{
				Type: autoscalingv2.ResourceMetricSourceType,
				Resource: &autoscalingv2.ResourceMetricSource{
					Name:   resourceOf(l.Metric),
					Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &percent},
				},
			}},
		},
	}
	r.applied(&h.ObjectMeta, h)
	out.Scalers = append(out.Scalers, h)
}

func resourceOf(m service.ScaleMetric) corev1.ResourceName {
	if m == service.MetricMemory {
		return corev1.ResourceMemory
	}
	return corev1.ResourceCPU
}

func count32(n int) int32 { return int32(min(max(n, 0), math.MaxInt32)) }
