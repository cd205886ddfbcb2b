package reserves

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/decide/reserve"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// maxText bounds what a status quotes of others.
const maxText = 1 << 10

// defaultAtOnce is on how many nodes a Reserve without nodesAtOnce pulls at a time.
const defaultAtOnce = 2

// disabled is the status of a Reserve that is not served.
const disabled = "this installation serves no Reserve: set reserves.enabled of the Helm chart, which lets the controller read nodes and makes the PriorityClass of placeholders"

// keep does what is to be done for every Reserve. again is when it is to be called
// without a change, 0 for never.
func (k *Keeper) keep(ctx context.Context) (again time.Duration, err error) {
	now := k.cfg.Now()
	p := &pass{Keeper: k, w: k.seen.world(), now: now, wanted: map[string]bool{}}
	p.note()
	if k.cfg.Used != nil && slices.ContainsFunc(p.w.reserves, takesUsed) {
		p.used, p.due = k.cfg.Used(), now.Add(usedEvery)
	}
	var errs []error
	for _, u := range p.w.reserves {
		if u.GetDeletionTimestamp() == nil {
			errs = append(errs, p.reserve(ctx, u))
		}
	}
	k.forget(p)
	if !p.due.IsZero() {
		again = max(p.due.Sub(now), settle)
	}
	return again, errors.Join(errs...)
}

func takesUsed(u *unstructured.Unstructured) bool {
	from, _, _ := unstructured.NestedSlice(u.Object, "spec", "images", "from")
	return len(from) > 0
}

// forget drops what is known of nodes, images, Jobs and Reserves that are gone.
func (k *Keeper) forget(p *pass) {
	k.history.Forget(p.w.nodes, p.wanted)
	k.tallies.keep(&p.w)
	for uid := range k.noted {
		if !slices.ContainsFunc(p.w.jobs, func(j *batchv1.Job) bool { return string(j.UID) == uid }) {
			delete(k.noted, uid)
		}
	}
	for key := range k.last {
		if !slices.ContainsFunc(p.w.reserves, func(u *unstructured.Unstructured) bool { return client.ObjectKeyFromObject(u) == key }) {
			delete(k.last, key)
		}
	}
}

// pass is one look at everything.
type pass struct {
	*Keeper
	w      world
	now    time.Time
	used   []reserve.Image
	wanted map[string]bool // images, by their canonical names
	due    time.Time       // zero for never
}

func (p *pass) dueAt(t time.Time) {
	if !t.IsZero() && (p.due.IsZero() || t.Before(p.due)) {
		p.due = t
	}
}

// note records the pulls that have ended.
func (p *pass) note() {
	for _, j := range p.w.jobs {
		state, message := p.stateOf(j)
		if state == reserve.Active || p.noted[string(j.UID)] {
			continue
		}
		p.noted[string(j.UID)] = true
		pull := pullOf(j)
		if i := slices.IndexFunc(p.w.nodes, func(n reserve.Node) bool { return n.Name == pull.Node }); i >= 0 {
			p.history.Note(&p.w.nodes[i], pull.Image, state == reserve.Done, p.now)
			p.tallies.pulled(pull.Node, state == reserve.Done)
			if state == reserve.Failed {
				p.last[client.ObjectKey{Namespace: j.Namespace, Name: j.Labels[reserve.LabelReserve]}] =
					&api.ImageFailure{Image: pull.Image, Node: pull.Node, Message: excerpt.Of(message, maxText)}
				p.log("an image could not be pulled", j, "image", pull.Image, "node", pull.Node, "problem", message)
			}
		}
	}
}

func (p *pass) log(message string, o client.Object, args ...any) {
	p.cfg.Log.Info(message, append([]any{"reserve", o.GetNamespace() + "/" + o.GetLabels()[reserve.LabelReserve]}, args...)...)
}

func pullOf(j *batchv1.Job) reserve.Pull {
	return reserve.Pull{Node: j.Annotations[reserve.AnnotationNode], Image: j.Annotations[reserve.AnnotationImage]}
}

// stateOf is what became of a Job. The image has been pulled once its container has
// been made, whatever comes of that; a pull that fails ends the Job, since the
// kubelet would try on and on.
func (p *pass) stateOf(j *batchv1.Job) (state reserve.State, message string) {
	for _, c := range j.Status.Conditions {
		switch {
		case c.Status != corev1.ConditionTrue:
		case c.Type == batchv1.JobComplete:
			return reserve.Done, ""
		case c.Type == batchv1.JobFailed:
			state, message = reserve.Failed, c.Message
		}
	}
	for _, pod := range p.w.pods {
		if !metav1.IsControlledBy(pod, j) {
			continue
		}
		if pulled(pod) {
			return reserve.Done, ""
		}
		if _, problem := reserve.PullProblem(pod); problem != "" {
			return reserve.Failed, problem
		}
	}
	return state, message
}

// pulled reports whether the image of a pull's pod is on its node.
func pulled(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.Name == reserve.Puller && (s.ImageID != "" || s.State.Running != nil || s.State.Terminated != nil)
	})
}

// reserve does what is to be done for one Reserve.
func (p *pass) reserve(ctx context.Context, u *unstructured.Unstructured) error {
	r, err := parse(u)
	if err != nil {
		return fmt.Errorf("reserve %s/%s: %w", u.GetNamespace(), u.GetName(), err)
	}
	var f reserve.Facts
	if p.cfg.PriorityClass == "" {
		f.Reason, f.Problem = reserve.ReasonDisabled, disabled
	} else {
		f, err = p.serve(ctx, r)
	}
	now := reserve.Status(r, f)
	p.tallies.status(client.ObjectKeyFromObject(u), now)
	if err := errors.Join(err, p.status(ctx, u, now)); err != nil {
		return fmt.Errorf("reserve %s/%s: %w", u.GetNamespace(), u.GetName(), err)
	}
	return nil
}

// serve writes the objects of a Reserve, and returns what its status tells.
func (p *pass) serve(ctx context.Context, r *api.Reserve) (reserve.Facts, error) {
	var f reserve.Facts
	nodes := slices.DeleteFunc(slices.Clone(p.w.nodes), func(n reserve.Node) bool { return !reserve.Selects(&r.Spec, &n) })
	f.Nodes = len(nodes)
	counted, again := reserve.Counted(&r.Spec, nodes, p.now)
	p.dueAt(again)
	f.Wanted, f.Why = reserve.Count(r.Spec.Placeholders, counted)
	err := p.placeholders(ctx, r, &f)
	return f, errors.Join(err, p.images(ctx, r, nodes, &f))
}

// placeholders has the Deployment be as it should. What the API server refuses is
// in the status, and tried again later.
func (p *pass) placeholders(ctx context.Context, r *api.Reserve, f *reserve.Facts) error {
	key := client.ObjectKey{Namespace: r.Metadata.Namespace, Name: reserve.DeploymentName(r)}
	have := p.w.deployments[key]
	if have != nil && !reserve.Owned(have, r.Metadata.UID) {
		have = nil
	}
	if r.Spec.Placeholders == nil {
		if have == nil || have.DeletionTimestamp != nil {
			return nil
		}
		return client.IgnoreNotFound(p.cfg.Client.Delete(ctx, have.DeepCopy(), client.PropagationPolicy(metav1.DeletePropagationBackground)))
	}
	for _, pod := range p.w.pods {
		if pod.Namespace == key.Namespace && pod.DeletionTimestamp == nil && reserve.IsPlaceholder(pod, r) {
			f.Pods = append(f.Pods, reserve.PlaceholderOf(pod))
		}
	}
	err := p.write(ctx, have, reserve.Deployment(r, f.Wanted, reserve.Env{Image: p.cfg.Image, PriorityClass: p.cfg.PriorityClass}))
	switch {
	case apierrors.IsAlreadyExists(err):
		f.Refused = fmt.Sprintf("a Deployment %s exists and does not belong to this Reserve: delete it, or give the Reserve another name", key.Name)
	case err != nil:
		f.Refused = excerpt.Of(err.Error(), maxText)
	case have != nil:
		for _, c := range have.Status.Conditions {
			if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
				f.Refused = excerpt.Of(c.Message, maxText)
			}
		}
	}
	return err
}

// write makes a Deployment, or replaces what it asks for.
func (p *pass) write(ctx context.Context, have, want *appsv1.Deployment) error {
	if have == nil {
		err := p.cfg.Client.Create(ctx, want.DeepCopy(), client.FieldOwner(shape.FieldManager))
		if apierrors.IsAlreadyExists(err) {
			var there appsv1.Deployment // which the watch has not told of yet
			if e := p.cfg.Reader.Get(ctx, client.ObjectKeyFromObject(want), &there); e == nil && metav1.GetControllerOf(&there) != nil &&
				metav1.GetControllerOf(&there).UID == want.OwnerReferences[0].UID {
				return nil
			}
		}
		return err
	}
	if have.DeletionTimestamp != nil || have.Annotations[reserve.AnnotationApplied] == want.Annotations[reserve.AnnotationApplied] &&
		have.Spec.Replicas != nil && *have.Spec.Replicas == *want.Spec.Replicas {
		return nil
	}
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/metadata/uid", "value": have.UID},
		{"op": "replace", "path": "/spec", "value": want.Spec},
		{"op": "add", "path": "/metadata/annotations", "value": want.Annotations},
	})
	if err != nil {
		return err
	}
	return p.cfg.Client.Patch(ctx, have.DeepCopy(), client.RawPatch(types.JSONPatchType, patch), client.FieldOwner(shape.FieldManager))
}

// images starts and ends the Jobs of a Reserve.
func (p *pass) images(ctx context.Context, r *api.Reserve, nodes []reserve.Node, f *reserve.Facts) error {
	f.Images = reserve.Images(r, p.used, p.cfg.System == r.Metadata.Namespace)
	for _, image := range f.Images {
		p.wanted[reserve.Canonical(image)] = true
	}
	in := reserve.PullInput{Images: f.Images, Nodes: nodes, Busy: map[string]bool{}, AtOnce: defaultAtOnce}
	if r.Spec.Images != nil && r.Spec.Images.NodesAtOnce != nil {
		in.AtOnce = *r.Spec.Images.NodesAtOnce
	}
	for _, j := range p.w.jobs {
		if j.DeletionTimestamp != nil {
			continue
		}
		state, message := p.stateOf(j)
		switch {
		case reserve.Owned(j, r.Metadata.UID):
			in.Running = append(in.Running, reserve.Running{Pull: pullOf(j), Job: j.Name, State: state, Message: message})
		case state == reserve.Active:
			in.Busy[pullOf(j).Node] = true
		}
	}
	f.Pulls = reserve.PlanPulls(in, &p.history, p.now)
	p.dueAt(f.Pulls.Again)
	key := client.ObjectKey{Namespace: r.Metadata.Namespace, Name: r.Metadata.Name}
	if f.Pulls.Failed == 0 {
		delete(p.last, key)
	}
	f.Last = p.last[key]
	return p.pull(ctx, r, f.Pulls)
}

// pull carries out a plan.
func (p *pass) pull(ctx context.Context, r *api.Reserve, plan reserve.Plan) error {
	var errs []error
	for _, name := range plan.End {
		j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: r.Metadata.Namespace, Name: name}}
		errs = append(errs, client.IgnoreNotFound(p.cfg.Client.Delete(ctx, j, client.PropagationPolicy(metav1.DeletePropagationBackground))))
	}
	for _, pull := range plan.Start {
		err := p.cfg.Client.Create(ctx, reserve.Job(r, pull, reserve.Env{Image: p.cfg.Image}), client.FieldOwner(shape.FieldManager))
		if apierrors.IsAlreadyExists(err) {
			err = nil // the watch has not told of it yet, or it is being deleted
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// status writes a status unless it stands there already. It writes only over the
// version that was judged: a later one is judged when it is seen.
func (p *pass) status(ctx context.Context, u *unstructured.Unstructured, want api.ReserveStatus) error {
	have := map[string]any{}
	if s, ok := u.Object["status"].(map[string]any); ok {
		have = s
	}
	var before api.ReserveStatus
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(have, &before); err != nil {
		before = api.ReserveStatus{} // somebody else's
	}
	for i := range want.Conditions {
		c := &want.Conditions[i]
		c.ObservedGeneration, c.LastTransitionTime = u.GetGeneration(), metav1.Time{Time: p.now.UTC().Truncate(time.Second)}
		for _, b := range before.Conditions {
			if b.Type == c.Type && b.Status == c.Status && !b.LastTransitionTime.IsZero() {
				c.LastTransitionTime = b.LastTransitionTime
			}
		}
	}
	to, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&want)
	if err != nil || reflect.DeepEqual(have, to) {
		return err
	}
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/metadata/resourceVersion", "value": u.GetResourceVersion()},
		{"op": "add", "path": "/status", "value": to},
	})
	if err != nil {
		return err
	}
	err = p.cfg.Client.Status().Patch(ctx, u.DeepCopy(), client.RawPatch(types.JSONPatchType, patch), client.FieldOwner(shape.FieldManager))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) && p.moved(u) {
		return nil
	}
	return err
}

// moved reports whether another version of a Reserve has been seen.
func (p *pass) moved(u *unstructured.Unstructured) bool {
	p.seen.mu.Lock()
	defer p.seen.mu.Unlock()
	now := p.seen.reserves[client.ObjectKeyFromObject(u)]
	return now == nil || now.GetResourceVersion() != u.GetResourceVersion()
}
