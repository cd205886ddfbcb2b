package modelcaches

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/credentials"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/precache"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// maxText bounds what an event quotes of others.
const maxText = 900

// keep does what is to be done for every cache, and for what is left of those that are
// gone. again is when it is to be called without a change, 0 for never.
func (k *Keeper) keep(ctx context.Context) (again time.Duration, err error) {
	p := &pass{Keeper: k, w: k.seen.world(k.cfg.System), now: k.cfg.Now(), wanted: map[client.ObjectKey]bool{}}
	manifests, err := k.cfg.Manifests(ctx)
	if err != nil {
		return 0, err
	}
	kept, problems := k.cfg.Fleet.CacheNodes()
	var errs []error
	there := map[client.ObjectKey]bool{}
	for _, o := range k.cfg.Fleet.Objects(fleet.CacheKind) {
		there[keyOf(o.Key)] = true
		errs = append(errs, p.cache(ctx, o.ModelCache, kept[o.Key], problems[o.Key], manifestOf(manifests, o)))
	}
	for key, d := range p.w.sets {
		if !p.wanted[key] {
			errs = append(errs, p.remove(ctx, d))
		}
	}
	for key := range k.told {
		if !there[key] {
			delete(k.told, key)
		}
	}
	gone := func(uid types.UID) bool {
		return !slices.ContainsFunc(manifests, func(u *unstructured.Unstructured) bool { return u.GetUID() == uid })
	}
	maps.DeleteFunc(k.written, func(uid types.UID, _ version) bool { return gone(uid) })
	maps.DeleteFunc(k.refused, func(uid types.UID, _ refusal) bool { return gone(uid) })
	return p.again, errors.Join(errs...)
}

func keyOf(k service.Key) client.ObjectKey {
	return client.ObjectKey{Namespace: k.Namespace, Name: k.Name}
}

// manifestOf is a cache as it is in the API; nil where it is not known.
func manifestOf(all []*unstructured.Unstructured, o fleet.Object) *unstructured.Unstructured {
	i := slices.IndexFunc(all, func(u *unstructured.Unstructured) bool {
		return u.GetKind() == o.Origin.Kind && client.ObjectKeyFromObject(u) == keyOf(o.Key)
	})
	if i < 0 || all[i].GetDeletionTimestamp() != nil {
		return nil
	}
	return all[i]
}

// pass is one look at everything.
type pass struct {
	*Keeper
	w      world
	now    time.Time
	wanted map[client.ObjectKey]bool // DaemonSets
	again  time.Duration
}

// dueIn has the next pass come within a time.
func (p *pass) dueIn(d time.Duration) {
	if p.again == 0 || d < p.again {
		p.again = d
	}
}

// cache has the nodes keep a cache's model, and tells of it.
func (p *pass) cache(ctx context.Context, c *service.ModelCache, kept []precache.Kept, problem string, u *unstructured.Unstructured) error {
	var errs []error
	var copies []precache.Copy
	for _, one := range kept {
		key := client.ObjectKey{Namespace: one.Namespace, Name: one.Name}
		p.wanted[key] = true
		if ns := one.Namespace; len(p.cfg.Namespaces) > 0 && !slices.Contains(p.cfg.Namespaces, ns) {
			problem = fmt.Sprintf("the model is fetched in the namespace %s, which this controller does not watch: add it to --watch-namespace", ns)
			continue
		}
		refused, err := p.set(ctx, c, one)
		if errs = append(errs, err); refused != "" {
			problem = refused
		}
		for _, pod := range p.w.keepers[one.Name] {
			if copied, ok := precache.CopyOf(pod); ok && pod.Namespace == one.Namespace {
				copies = append(copies, copied)
			}
		}
	}
	st := precache.Status(copies, problem)
	st.Services, st.LLMServices = p.cfg.Fleet.CacheUsers(c)
	if u != nil {
		p.tell(u, st)
		errs = append(errs, p.status(ctx, u, st))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("localmodelcache %s: %w", c.Key, err)
	}
	return nil
}

// set has the DaemonSet of a cache be as it should. What the API server refuses is told,
// and tried again.
func (p *pass) set(ctx context.Context, c *service.ModelCache, k precache.Kept) (refused string, err error) {
	o := shape.CacheOptions{Options: shape.Options{PublicModels: p.cfg.PublicModels, HubEndpoint: p.cfg.HubEndpoint, Accounts: map[string]shape.Account{}},
		Image: p.cfg.Image, Installation: p.cfg.System, StoreSize: p.cfg.StoreSize}
	if name := shape.CacheAccount(c); name != "" {
		a, err := p.account(ctx, client.ObjectKey{Namespace: credentials.NamespaceOfCache(c), Name: name})
		if err != nil {
			return "", err
		}
		if a.missing && c.Account != "" {
			return fmt.Sprintf("spec.serviceAccountName: there is no service account %s in the namespace %s: make it", name, credentials.NamespaceOfCache(c)), nil
		}
		if a.known {
			o.Accounts[name] = a.Account
		}
	}
	want, err := shape.CacheDaemonSet(c, k, o)
	if err != nil {
		return err.Error(), nil
	}
	if refused, err = p.write(ctx, p.w.sets[client.ObjectKeyFromObject(want)], want); err != nil {
		return excerpt.Of(err.Error(), maxText), err
	}
	return refused, nil
}

// write makes a DaemonSet, or replaces what it asks for.
func (p *pass) write(ctx context.Context, have, want *appsv1.DaemonSet) (refused string, err error) {
	switch {
	case have == nil:
		err := p.cfg.Client.Create(ctx, want.DeepCopy(), client.FieldOwner(shape.FieldManager))
		switch {
		case apierrors.IsAlreadyExists(err): // the watch has not told of it yet
			return "", nil
		case apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			return fmt.Sprintf("there is no namespace %s to fetch the model in, as in KServe: make it", want.Namespace), err
		}
		return "", err
	case have.DeletionTimestamp != nil || applied(have) == applied(want):
		return "", nil
	}
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/metadata/uid", "value": have.UID},
		{"op": "replace", "path": "/spec", "value": want.Spec},
		{"op": "add", "path": "/metadata/annotations", "value": want.Annotations},
	})
	if err != nil {
		return "", err
	}
	return "", client.IgnoreNotFound(p.cfg.Client.Patch(ctx, have.DeepCopy(), client.RawPatch(types.JSONPatchType, patch), client.FieldOwner(shape.FieldManager)))
}

// applied tells what a DaemonSet was made as.
func applied(d *appsv1.DaemonSet) [2]string {
	return [2]string{d.Annotations[shape.AnnotationApplied], d.Annotations[shape.AnnotationDropping]}
}

// remove has the copies removed that a DaemonSet made which no cache asks for any more, and
// then the DaemonSet. While pods read them, or are going to, they stay.
func (p *pass) remove(ctx context.Context, d *appsv1.DaemonSet) error {
	since := d.Annotations[shape.AnnotationDropping]
	began, _ := time.Parse(time.RFC3339, since)
	switch {
	case d.DeletionTimestamp != nil, p.read(d):
		return nil
	case since == "":
		p.cfg.Log.Info("a model is removed from the nodes that kept it ahead of its use", "daemonset", d.Namespace+"/"+d.Name)
		_, err := p.write(ctx, d, shape.CacheRemoval(d, p.now.UTC().Format(time.RFC3339)))
		return err
	case !shape.Removed(d):
		if left := began.Add(dropFor).Sub(p.now); left > 0 {
			p.dueIn(left)
			return nil
		}
		p.cfg.Log.Warn("not every node has removed a model that nothing keeps any more: the next that need the space there remove it", "daemonset", d.Namespace+"/"+d.Name)
	}
	return client.IgnoreNotFound(p.cfg.Client.Delete(ctx, d.DeepCopy(), client.PropagationPolicy(metav1.DeletePropagationBackground), client.Preconditions{UID: &d.UID}))
}

// read reports whether pods read the copies that d makes, or a service's next pods would.
func (p *pass) read(d *appsv1.DaemonSet) bool {
	if slices.ContainsFunc(p.w.readers[d.Name], func(pod *corev1.Pod) bool { return shape.ReadsCopy(pod, d) }) {
		return true
	}
	return slices.ContainsFunc(p.cfg.Fleet.List(), func(st fleet.ServiceState) bool {
		return st.Revision != nil && st.Revision.Kept != nil && st.Revision.Kept.Name == d.Name
	})
}

// account reads what a service account says, once in a while.
func (p *pass) account(ctx context.Context, at client.ObjectKey) (account, error) {
	if a, ok := p.accounts[at]; ok && p.now.Sub(a.at) < accountFor {
		if a.missing {
			p.dueIn(accountFor)
		}
		return a, nil
	}
	out := account{at: p.now}
	var a corev1.ServiceAccount
	switch err := p.cfg.Reader.Get(ctx, at, &a); {
	case apierrors.IsNotFound(err):
		out.known, out.missing = true, true
		p.dueIn(accountFor)
	case apierrors.IsForbidden(err):
		p.cfg.Log.Warn("the service account may not be read: a model is fetched without its secrets", "account", at.String(), "error", err)
	case err != nil:
		return out, err
	default:
		out.known, out.Annotations = true, a.Annotations
		for _, s := range a.Secrets {
			out.Secrets = append(out.Secrets, s.Name)
		}
	}
	p.accounts[at] = out
	return out, nil
}

// tell records an event when a model is on all nodes, or is kept from some.
func (p *pass) tell(u *unstructured.Unstructured, st service.CacheStatus) {
	available, _, total := st.Copies()
	kind, reason, text := corev1.EventTypeNormal, "ModelCached", "every node of its groups has the model"
	switch {
	case st.Reason != "":
		kind, reason, text = corev1.EventTypeWarning, "ModelCacheFailed", excerpt.Of(st.Reason, maxText)
	case total == 0 || available < total:
		return
	}
	key := client.ObjectKeyFromObject(u)
	if p.told[key] == text {
		return
	}
	p.told[key] = text
	p.cfg.Log.Info("a model is kept on nodes", "localmodelcache", key.String(), "reason", reason, "message", text)
	if p.cfg.Events != nil {
		p.cfg.Events.Eventf(u, nil, kind, reason, "Keep", "%s", text)
	}
}

// status writes a status unless it stands there already. It writes only over the version
// that was judged: a later one is judged when it is seen.
func (p *pass) status(ctx context.Context, u *unstructured.Unstructured, st service.CacheStatus) error {
	want, uid := dialect.CacheStatus(st), u.GetUID()
	over := version{uid, u.GetResourceVersion(), fmt.Sprint(want)}
	if reflect.DeepEqual(u.Object["status"], any(want)) || p.written[uid] == over || kube.OtherWriter(u) != nil {
		return nil // the definition may lack a field of it
	}
	if r := p.refused[uid]; r.version == over && p.now.Before(r.again) {
		p.dueIn(r.again.Sub(p.now))
		return nil
	}
	// With another version than that of the object the API server answers with a conflict,
	// and so what it calls invalid is the status.
	patch, err := json.Marshal([]map[string]any{
		{"op": "replace", "path": "/metadata/resourceVersion", "value": u.GetResourceVersion()},
		{"op": "add", "path": "/status", "value": want},
	})
	if err != nil {
		return err
	}
	err = p.cfg.Client.Status().Patch(ctx, u.DeepCopy(), client.RawPatch(types.JSONPatchType, patch), client.FieldOwner(shape.FieldManager))
	switch {
	case err == nil:
		p.written[uid] = over
		delete(p.refused, uid)
	case apierrors.IsConflict(err): // another version, which is about to be seen
		p.dueIn(minRetry)
		return nil
	case apierrors.IsInvalid(err):
		p.refuse(u, over, err)
		return nil
	}
	return client.IgnoreNotFound(err)
}

// refuse has a status that the API server does not take tried again, the longer it does not
// the later, and tells of it as often as events are forgotten.
func (p *pass) refuse(u *unstructured.Unstructured, over version, err error) {
	r := p.refused[over.uid]
	if r.version != over {
		r.version, r.wait = over, 0
	}
	r.wait = min(max(2*r.wait, minRetry), maxRetry)
	r.again = p.now.Add(r.wait)
	p.dueIn(r.wait)
	if p.now.Sub(r.told) >= tellAgain {
		r.told = p.now
		text := excerpt.Of(err.Error(), maxText)
		p.cfg.Log.Warn("the status of a model's cache is refused, so it does not tell which nodes have the model: apply the definition of its kind that belongs to KServe's release",
			"localmodelcache", client.ObjectKeyFromObject(u).String(), "error", text)
		if p.cfg.Events != nil {
			p.cfg.Events.Eventf(u, nil, corev1.EventTypeWarning, "ModelCacheStatusRefused", "Keep",
				"the API server refuses the status, which would tell which nodes have the model: %s: apply the definition (CRD) of this kind that belongs to KServe's release", text)
		}
	}
	p.refused[over.uid] = r
}
