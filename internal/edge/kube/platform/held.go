package platform

import (
	"cmp"
	"context"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/pods"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// kind is one of the kinds a service is made of.
type kind string

const (
	kindDeployment kind = "Deployment"
	kindGroups     kind = "LeaderWorkerSet"
	kindService    kind = "Service"
	kindBudget     kind = "PodDisruptionBudget"
	kindAccount    kind = "ServiceAccount"
	kindRole       kind = "Role"
	kindBinding    kind = "RoleBinding"
	kindScaler     kind = "HorizontalPodAutoscaler"
)

// counted kinds have a number of replicas.
func (k kind) counted() bool { return k == kindDeployment || k == kindGroups }

// id names an object of a service's namespace.
type id struct {
	kind kind
	name string
}

// compare puts what makes pods first, after what counts them: nothing makes any
// while the rest goes.
func (i id) compare(j id) int {
	rank := func(k kind) int {
		return slices.Index([]kind{kindScaler, kindDeployment, kindGroups, kindService, kindBudget, kindBinding, kindRole, kindAccount}, k)
	}
	return cmp.Or(cmp.Compare(rank(i.kind), rank(j.kind)), cmp.Compare(i.name, j.name))
}

func (k kind) gvk() schema.GroupVersionKind {
	switch k {
	case kindDeployment:
		return appsv1.SchemeGroupVersion.WithKind(string(k))
	case kindGroups:
		return groupVersionKind
	case kindBudget:
		return policyv1.SchemeGroupVersion.WithKind(string(k))
	case kindScaler:
		return autoscalingv2.SchemeGroupVersion.WithKind(string(k))
	case kindAccount, kindRole, kindBinding:
		return accessKinds[k]
	case kindService:
	}
	return corev1.SchemeGroupVersion.WithKind(string(k))
}

// object is what is known of one object: from the watch, or from the answer
// to a write of ours, whichever is newer.
type object struct {
	uid      types.UID
	version  string // resourceVersion
	role     service.Role
	applied  string // shape.AnnotationApplied
	revision string
	deleting bool

	// Of what has a count: the count, since when, what we are changing it to
	// (-1: nothing), and why pods could not be made.
	count int
	since time.Time
	// surge reports that there is one replica beyond the count; replicas is how many
	// there are to be with it. Of LeaderWorkerSets alone.
	surge    bool
	replicas int
	writing  int
	refused  string
	// raised: somebody raised the count, and whoever decides counts has not
	// looked since he was told. Until then it is not lowered: what he decides by
	// may be older.
	raised bool
}

// held is what the cluster holds of one service. Platform.mu guards it.
type held struct {
	objects map[id]object
	pods    map[string]member
	// starts are of groups, as long as there is something to have some.
	starts map[groupID]start
	// wanted are the objects of the revision last applied.
	wanted map[id]bool
	// rendered is what each of them has as applied, once it is written.
	rendered map[id]string
	roles    map[service.Role]role
	// removed: what is still there is going.
	removed bool
}

// member is a pod and its place in the order in which pods were seen: their
// times of creation have whole seconds.
type member struct {
	*corev1.Pod // shared with the watch's cache: nobody changes it
	order       int
}

// role is what the revision last applied says of a role's replicas.
type role struct {
	pods.Role
	left bool // the count is left to others
	// resource: it scales by what replicas use of a resource; measured: an
	// autoscaler of ours sees to that.
	resource, measured bool
}

// of returns what is held of a service, made when absent. The lock is held.
func (p *Platform) of(k service.Key) *held {
	h := p.mu.held[k]
	if h == nil {
		h = &held{objects: map[id]object{}, pods: map[string]member{}}
		p.mu.held[k] = h
	}
	return h
}

// tidy forgets a service of which nothing is left. The lock is held.
func (p *Platform) tidy(k service.Key, h *held) {
	if len(h.objects) == 0 && len(h.pods) == 0 && len(h.wanted) == 0 {
		delete(p.mu.held, k)
	}
}

// keyOf is the service an object or pod belongs to.
func keyOf(o metav1.Object) (service.Key, bool) {
	k := service.WorkloadKey(o.GetNamespace(), o.GetAnnotations()[shape.AnnotationService])
	if k.Name == "" {
		k.Name = o.GetLabels()[shape.LabelService]
	}
	return k, k.Name != ""
}

// older reports whether a comes before b in the order of the API server's writes.
func older(a, b string) bool {
	n, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && n < 0
}

// event is what is told to others.
type event struct {
	raised  int // to this count
	drifted bool
}

// tell reports that a service changed. Callbacks have a goroutine of their own: who
// calls Apply or Scale may hold a lock that they need. The lock is not held.
func (p *Platform) tell(k service.Key, e event) {
	p.queue.Add(k)
	if e == (event{}) {
		return
	}
	p.mu.Lock()
	before := p.mu.untold[k]
	p.mu.untold[k] = event{max(before.raised, e.raised), before.drifted || e.drifted}
	p.mu.Unlock()
	p.news.Add(k)
}

// runNews calls back until ctx ends.
func (p *Platform) runNews(ctx context.Context) {
	stop := context.AfterFunc(ctx, p.news.ShutDown)
	defer stop()
	for {
		k, down := p.news.Get()
		if down {
			return
		}
		p.mu.Lock()
		e := p.mu.untold[k]
		p.mu.untold[k] = event{} // being told
		p.mu.Unlock()
		if e.raised > 0 {
			p.cfg.Raised(k, e.raised)
		}
		if e.drifted {
			p.cfg.Drifted(k)
		}
		p.mu.Lock()
		if p.mu.untold[k] == (event{}) {
			delete(p.mu.untold, k)
		}
		p.mu.Unlock()
		p.news.Done(k)
	}
}

// saw takes in an object as a watch or an answer showed it. One that has our
// labels under a name we do not give is somebody's copy (`kubectl expose`
// copies labels), and none of ours to delete.
func (p *Platform) saw(k service.Key, i id, o object) {
	if i.name != shape.Name(k, o.role) {
		return
	}
	p.mu.Lock()
	h := p.of(k)
	before, known := h.objects[i]
	if known && older(o.version, before.version) {
		p.mu.Unlock()
		return
	}
	var e event
	o.writing, o.since = -1, p.cfg.Now()
	if known && before.uid == o.uid {
		o.writing, o.raised = before.writing, before.raised
		if o.count == before.count {
			o.since = before.since
		}
		// A leader that was stopped for longer than its lease may write late what
		// it had decided.
		if want := h.rendered[i]; want != "" && before.applied == want && o.applied != want && !o.deleting {
			e.drifted = true
		}
		// Whoever scales it, it is not us that decide; and what is going has no
		// count to keep.
		if !p.scaledByOthers(k, i, o) && !o.deleting && o.count != o.writing {
			switch {
			case o.count > before.count:
				e.raised, o.raised = o.count, true
			case o.count < before.count:
				e.drifted, o.raised = true, false
			}
		}
	}
	h.objects[i] = o
	p.settle(k, h)
	p.mu.Unlock()
	p.tell(k, e)
}

// lost takes in that an object is gone.
func (p *Platform) lost(k service.Key, i id, uid types.UID) {
	p.mu.Lock()
	h := p.of(k)
	// One of the same name may have been made since.
	if o, known := h.objects[i]; !known || o.uid != uid {
		p.tidy(k, h)
		p.mu.Unlock()
		return
	}
	delete(h.objects, i)
	if i.kind == kindGroups {
		h.starts = nil
	}
	e := event{drifted: h.wanted[i] && !h.removed}
	p.tidy(k, h)
	p.mu.Unlock()
	p.tell(k, e)
}

// sawPod takes in a pod; nil is one that is gone.
func (p *Platform) sawPod(k service.Key, name string, pod *corev1.Pod) {
	p.mu.Lock()
	h := p.of(k)
	if pod != nil {
		m, known := h.pods[name]
		if !known || m.UID != pod.UID {
			p.mu.order++
			m.order = p.mu.order
		}
		m.Pod = pod
		h.pods[name] = m
		h.started(pod)
	} else {
		delete(h.pods, name)
		p.tidy(k, h)
	}
	p.settle(k, h)
	p.mu.Unlock()
	p.tell(k, event{})
}
