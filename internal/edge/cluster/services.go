package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/pods"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// Service is a service of a cluster, and what can be seen of it.
type Service struct {
	Manifest *Manifest
	fleet.ServiceState
	Events []Event
	// Refused is what could not be looked at.
	Refused []error

	roles map[service.Role]pods.Role
	pods  []*corev1.Pod // replicas' order
}

// Event is something that happened to a manifest.
type Event struct {
	Time    time.Time `json:"time"`
	Type    string    `json:"type"` // Normal, Warning
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Count   int       `json:"count,omitempty"`
}

// counted is a Deployment or LeaderWorkerSet, as far as it is read.
type counted struct {
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Replicas *int `json:"replicas"`
	} `json:"spec"`
	Status struct {
		Replicas   int `json:"replicas"`
		Ready      int `json:"readyReplicas"`
		Conditions []struct {
			Type    string `json:"type"`
			Status  string `json:"status"`
			Message string `json:"message"`
		} `json:"conditions"`
	} `json:"status"`
}

func (d *counted) desired() int {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

func (d *counted) key() service.Key {
	return service.WorkloadKey(d.Namespace, d.Annotations[shape.AnnotationService])
}

// Services lists services with what their manifests say of them, and of those
// whose dialect has no words for it what their records and Deployments say. The
// second result is what could not be looked at.
func (c *Client) Services(ctx context.Context, namespace string) ([]*Service, []error, error) {
	list, refused, err := c.Manifests(ctx, "service", namespace)
	if err != nil {
		return nil, nil, err
	}
	out := make([]*Service, len(list))
	more := false
	for i, m := range list {
		out[i] = &Service{Manifest: m, ServiceState: stateOf(m)}
		more = more || m.Origin.Dialect() != service.DialectRoundhouse
	}
	if !more {
		c.unseen(ctx, out...)
		return out, refused, nil
	}
	// One list for all is cheaper than one for each.
	sets, err := c.sets(ctx, namespace, "")
	if err != nil {
		refused = append(refused, err)
	}
	records, err := c.records(ctx, namespace, "")
	if err != nil {
		refused = append(refused, err)
	}
	for _, s := range out {
		s.fill(records[s.Object.Key], sets)
	}
	c.unseen(ctx, out...)
	return out, refused, nil
}

// Service is one service with its replicas and events.
func (c *Client) Service(ctx context.Context, k service.Key) (*Service, error) {
	found, err := c.Find(ctx, "service", k)
	if err != nil {
		return nil, err
	}
	s := &Service{Manifest: found[0], ServiceState: stateOf(found[0])}
	selector := managedBy(k.Name)
	records, err := c.records(ctx, k.Namespace, selector)
	s.refuse(err)
	sets, err := c.sets(ctx, k.Namespace, selector)
	s.refuse(err)
	s.fill(records[k], sets)
	list, err := listed[corev1.Pod](ctx, c, podsAt, k.Namespace, metav1.ListOptions{LabelSelector: selector})
	s.refuse(err)
	s.observe(list, sets)
	c.unseen(ctx, s)
	return s, nil
}

func (s *Service) refuse(err error) {
	if err != nil {
		s.Refused = append(s.Refused, err)
	}
}

// stateOf is what a manifest says of its service.
func stateOf(m *Manifest) fleet.ServiceState {
	st := fleet.ServiceState{Object: m.Object, Generation: m.Generation, Status: dialect.ReadStatus(m.Origin, m.Status)}
	if len(m.Problems) > 0 && len(st.Status.Conditions) == 0 {
		st.Status.Conditions = []service.Condition{{Type: service.ConditionReady, Status: "False", Reason: "InvalidManifest", Message: m.Problems[0]}}
	}
	return st
}

// managedBy selects what the controller made: of a service or, with "", of all.
func managedBy(name string) string {
	selector := shape.LabelManagedBy + "=" + shape.Manager
	if name != "" {
		selector += "," + shape.LabelService + "=" + shape.LabelValue(name)
	}
	return selector
}

// sets lists what has a count of pods, by the service's key.
func (c *Client) sets(ctx context.Context, namespace, selector string) (map[service.Key][]*counted, error) {
	selector = cmp.Or(selector, managedBy(""))
	at := []resource{deploymentsAt}
	if in, err := c.kinds(ctx); err == nil {
		at = in.counted()
	}
	out := map[service.Key][]*counted{}
	for _, r := range at {
		items, err := listed[counted](ctx, c, r, namespace, metav1.ListOptions{LabelSelector: selector})
		if err != nil && !Missing(err) {
			return out, err
		}
		for _, d := range items {
			out[d.key()] = append(out[d.key()], d)
		}
	}
	return out, nil
}

// records lists what was decided of each service, its canary apart.
func (c *Client) records(ctx context.Context, namespace, selector string) (map[service.Key]*fleet.Record, error) {
	selector = cmp.Or(selector, managedBy(""))
	items, err := listed[appsv1.ControllerRevision](ctx, c, recordsAt, namespace, metav1.ListOptions{LabelSelector: selector + "," + shape.LabelRecord + "=true"})
	if err != nil {
		return nil, err
	}
	return newest(items)
}

// newest reads the last record of each service.
func newest(items []*appsv1.ControllerRevision) (map[service.Key]*fleet.Record, error) {
	last := map[service.Key]*appsv1.ControllerRevision{}
	for _, cr := range items {
		k := service.WorkloadKey(cr.Namespace, cr.Annotations[shape.AnnotationService])
		if b, there := last[k]; !there || b.Revision < cr.Revision {
			last[k] = cr
		}
	}
	out := map[service.Key]*fleet.Record{}
	for k, cr := range last {
		var r fleet.Record
		if err := json.Unmarshal(cr.Data.Raw, &r); err != nil {
			return out, fmt.Errorf("ControllerRevision %s/%s: was it written by another version of the controller? %w", cr.Namespace, cr.Name, err)
		}
		out[k] = &r
	}
	return out, nil
}

// fill adds what a status in the manifest's dialect has no words for.
func (s *Service) fill(r *fleet.Record, sets map[service.Key][]*counted) {
	st := &s.Status
	if percent := s.Object.Service.CanaryPercent; st.Canary != nil && st.Canary.Wanted == 0 && percent != nil {
		st.Canary.Wanted = *percent
	}
	if r != nil {
		rev := r.Revision
		s.Revision = &rev
		if st.Runtime.Name == "" || st.Runtime.Name == rev.Runtime.Name {
			st.Runtime = rev.Runtime
		}
		if st.Protocol == "" {
			st.Protocol = rev.Protocol
		}
		if st.Revision == "" {
			st.Revision = rev.Hash
		}
		s.roles = map[service.Role]pods.Role{}
		for _, c := range rev.Components {
			main := c.Main
			if c.Leader != nil {
				main = c.Leader.Main
			}
			http, grpc := shape.Ports(c, rev.Protocol)
			s.roles[c.Role] = pods.Role{HTTP: http, GRPC: grpc, Main: main, Startup: c.Limits.StartupTimeout}
		}
	}
	if len(st.Components) > 0 && s.Manifest.Origin.Dialect() == service.DialectRoundhouse {
		return
	}
	var parts []service.ComponentStatus
	for _, role := range service.Roles {
		for _, d := range sets[s.Object.Key] {
			if d.Labels[shape.LabelRole] == string(role) {
				parts = append(parts, service.ComponentStatus{Role: role, Desired: d.desired(), Running: d.Status.Replicas, Ready: d.Status.Ready})
			}
		}
	}
	if len(parts) > 0 {
		st.Components = parts
	}
}

// observe reads the replicas of the service and of its canary.
func (s *Service) observe(list []*corev1.Pod, sets map[service.Key][]*counted) {
	slices.SortStableFunc(list, func(a, b *corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	for _, k := range []service.Key{s.Object.Key, s.Object.Key.Canary()} {
		var own []*corev1.Pod
		for _, p := range list {
			if p.Annotations[shape.AnnotationService] == k.WorkloadName() {
				own = append(own, p)
			}
		}
		var counts []pods.Set
		for _, d := range sets[k] {
			if d.DeletionTimestamp != nil {
				continue
			}
			set := pods.Set{Name: d.Name, Role: service.Role(d.Labels[shape.LabelRole]), Revision: d.Labels[shape.LabelRevision],
				Count: d.desired(), Since: time.Now()}
			for _, c := range d.Status.Conditions {
				if c.Type == "ReplicaFailure" && c.Status == "True" {
					set.Refused = c.Message
				}
			}
			counts = append(counts, set)
		}
		s.Replicas = append(s.Replicas, pods.Observe(k, own, counts, s.roles)...)
		s.pods = append(s.pods, own...)
	}
}

// Happened reads the events of a manifest, the oldest first: of a reason or, with "", all.
func (c *Client) Happened(ctx context.Context, origin service.Origin, k service.Key, reason string) ([]Event, error) {
	namespace := k.Namespace
	if namespace == "" {
		namespace = service.DefaultNamespace // where events of what has none are kept
	}
	selector := "involvedObject.kind=" + origin.Kind + ",involvedObject.name=" + k.Name
	if reason != "" {
		selector += ",reason=" + reason
	}
	items, err := listed[corev1.Event](ctx, c, eventsAt, namespace, metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		return nil, err
	}
	var out []Event
	for _, e := range items {
		one := Event{Time: happened(e), Type: e.Type, Reason: e.Reason, Message: e.Message, Count: int(e.Count)}
		if e.Series != nil {
			one.Count = int(e.Series.Count)
		}
		out = append(out, one)
	}
	slices.SortStableFunc(out, func(a, b Event) int { return a.Time.Compare(b.Time) })
	return out, nil
}

// happened returns when an event happened last.
func happened(e *corev1.Event) time.Time {
	if e.Series != nil {
		return e.Series.LastObservedTime.Time
	}
	last := e.CreationTimestamp.Time
	for _, t := range []time.Time{e.EventTime.Time, e.LastTimestamp.Time} {
		if t.After(last) {
			last = t
		}
	}
	return last
}

// LogOptions select the output.
type LogOptions struct {
	fleet.LogOptions
	// Replica is a pod's name, "" for the newest.
	Replica string
}

// Logs opens the output of a replica: of its main container, or of the one that
// fetches its model while that is what it is at. The caller closes it.
func (c *Client) Logs(ctx context.Context, k service.Key, o LogOptions) (io.ReadCloser, error) {
	s, err := c.Service(ctx, k)
	if err != nil {
		return nil, err
	}
	var pod *corev1.Pod
	for _, p := range s.pods {
		if p.Labels[shape.LabelWorkerIndex] != "" && p.Labels[shape.LabelWorkerIndex] != "0" && o.Replica == "" {
			continue // the leader says more
		}
		if o.Replica == "" || p.Name == o.Replica {
			pod = p // the last is the newest
		}
	}
	switch {
	case pod == nil && len(s.Refused) > 0:
		return nil, s.Refused[0]
	case pod == nil && o.Replica != "":
		return nil, fmt.Errorf("%s has no pod %q: `roundhouse describe %s` lists those there are; a cluster keeps no output of pods that are gone", k, o.Replica, k)
	case pod == nil:
		return nil, fmt.Errorf("%s has no pod now: %s; a cluster keeps no output of pods that are gone%s", k, s.podless(), waiting(s.Replicas))
	}
	if pod.Spec.NodeName == "" {
		return nil, fmt.Errorf("pod %s has written nothing: it is not on a node yet%s", pod.Name, waiting(s.Replicas))
	}
	container := pods.LogContainer(pod, s.roles[service.Role(pod.Labels[shape.LabelRole])].Main)
	q := map[string]string{"container": container}
	if o.Tail > 0 {
		q["tailLines"] = strconv.Itoa(o.Tail)
	}
	if o.Follow {
		q["follow"] = "true"
	}
	if o.Previous {
		q["previous"] = "true"
	}
	out, err := c.output(ctx, pod, q)
	if err != nil {
		return nil, fmt.Errorf("output of container %s of pod %s: %w", container, pod.Name, err)
	}
	return out, nil
}

// podless returns why a service has no pod: its status has the reason, or there
// are no requests.
func (s *Service) podless() string {
	for _, c := range s.Status.Conditions {
		if c.Type == service.ConditionReady && c.Status != "True" && c.Message != "" {
			return c.Message
		}
	}
	return "it starts at the first request"
}

// waiting returns why there is no pod although there should be one.
func waiting(list []replica.Replica) string {
	for _, r := range list {
		if r.Message != "" {
			return ": " + r.Message
		}
	}
	return ""
}
