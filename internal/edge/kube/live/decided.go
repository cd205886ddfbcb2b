package live

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube/objects"
	"roundhouse.dev/roundhouse/internal/edge/kube/records"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// decided is what the controller decided.
type decided struct {
	revisions map[service.Key]map[string]*appsv1.ControllerRevision // by name
	records   map[service.Key]*fleet.Record                         // the newest
	failures  map[service.Key]*service.Failure
	starts    map[service.Key]*string               // how far they are
	canaries  map[service.Key]*service.CanaryStatus // what those of the services take
	refs      map[service.Key]service.Origin
}

func newDecided() decided {
	return decided{revisions: map[service.Key]map[string]*appsv1.ControllerRevision{}, records: map[service.Key]*fleet.Record{},
		failures: map[service.Key]*service.Failure{}, starts: map[service.Key]*string{}, canaries: map[service.Key]*service.CanaryStatus{}, refs: map[service.Key]service.Origin{}}
}

// sawRecord records a ControllerRevision, or that it was deleted.
func (v *View) sawRecord(raw any, there bool) {
	cr, ok := raw.(*appsv1.ControllerRevision)
	if !ok {
		return
	}
	k := service.WorkloadKey(cr.Namespace, cr.Annotations[shape.AnnotationService])
	if k.Name == "" {
		return
	}
	v.mu.Lock()
	all := v.mu.revisions[k]
	if there {
		if all == nil {
			all = map[string]*appsv1.ControllerRevision{}
			v.mu.revisions[k] = all
		}
		all[cr.Name] = cr
	} else if delete(all, cr.Name); len(all) == 0 {
		delete(v.mu.revisions, k)
	}
	delete(v.mu.records, k)
	if last := newest(all); last != nil {
		if r, err := records.Decode(last); err == nil {
			v.mu.records[k] = &r
		} else {
			v.cfg.Log.Error("a record cannot be read", "error", err)
		}
	}
	v.reprobe(k)
	v.mu.Unlock()
	v.notify(k)
}

// newest returns the newest record, which is the valid one.
func newest(all map[string]*appsv1.ControllerRevision) (out *appsv1.ControllerRevision) {
	for _, one := range all {
		if out == nil || records.Counts(one, out) {
			out = one
		}
	}
	return out
}

// notify passes what is known of a service to the follower.
func (v *View) notify(k service.Key) {
	v.mu.Lock()
	d := fleet.Decision{Record: v.mu.records[k], Failure: v.mu.failures[k], Canary: v.mu.canaries[k]}
	if far := v.mu.starts[k]; far != nil {
		d.Starting = *far
	}
	v.mu.Unlock()
	d.Blocked = d.Failure != nil && d.Record == nil
	if v.follower != nil {
		v.follower.SetDecision(k, d)
	}
}

// Records are what is known of the controller's decisions, for an
// objects.Source.
func (v *View) Records() objects.Records { return known{v} }

type known struct{ v *View }

// Manifest implements objects.Records.
func (r known) Manifest(k service.Key) []byte {
	r.v.mu.Lock()
	defer r.v.mu.Unlock()
	cr := newest(r.v.mu.revisions[k])
	if cr == nil {
		return nil
	}
	var data struct {
		Manifest json.RawMessage `json:"manifest"`
	}
	if err := json.Unmarshal(cr.Data.Raw, &data); err != nil || data.Manifest == nil {
		return []byte("{}") // there is a record all the same
	}
	return data.Manifest
}

// Services implements objects.Records.
func (r known) Services() (out []service.Key) {
	r.v.mu.Lock()
	defer r.v.mu.Unlock()
	for k := range r.v.mu.records {
		if !k.IsCanary() {
			out = append(out, k)
		}
	}
	return out
}

// Sink returns a sink that passes manifests, and the failures in their status, to
// the follower.
func (v *View) Sink() objects.Sink { return sink{v} }

type sink struct{ v *View }

// Apply implements objects.Sink.
func (s sink) Apply(ctx context.Context, os []fleet.Object, o fleet.ApplyOptions) ([]fleet.Change, error) {
	changes, err := s.v.follower.Apply(ctx, os, o)
	for _, o := range os {
		if o.Service != nil && err == nil {
			s.v.mu.Lock()
			s.v.mu.refs[o.Key] = o.Origin
			s.v.mu.Unlock()
			s.v.readStatus(ctx, o.Key)
		}
	}
	return changes, err
}

// Delete implements objects.Sink.
func (s sink) Delete(ctx context.Context, id fleet.ID) error {
	if id.Kind == "service" {
		s.v.mu.Lock()
		delete(s.v.mu.refs, id.Key)
		delete(s.v.mu.failures, id.Key)
		delete(s.v.mu.starts, id.Key)
		delete(s.v.mu.canaries, id.Key)
		delete(s.v.mu.keys, setOf(id.Key))
		delete(s.v.mu.keys, setOf(id.Key.Canary()))
		s.v.mu.Unlock()
		s.v.notify(id.Key)
	}
	return s.v.follower.Delete(ctx, id)
}

// Demanded implements objects.Sink: a manifest's status may have changed.
func (s sink) Demanded(k service.Key) {
	s.v.readStatus(context.Background(), k)
	s.v.follower.Demanded(k)
}

// readStatus reads from the cache what the controller says of a service.
func (v *View) readStatus(ctx context.Context, k service.Key) {
	v.mu.Lock()
	origin, ok := v.mu.refs[k]
	v.mu.Unlock()
	if !ok {
		return
	}
	u := &unstructured.Unstructured{}
	u.SetAPIVersion(origin.APIVersion)
	u.SetKind(origin.Kind)
	err := v.cfg.Cache.Get(ctx, client.ObjectKey{Namespace: k.Namespace, Name: k.Name}, u, client.UnsafeDisableDeepCopy)
	if err != nil {
		v.cfg.Log.Debug("a status cannot be read", "service", k.String(), "error", err) // it is being deleted
		return
	}
	now, far := failureOf(u)
	canary := dialect.ReadStatus(origin, u.Object["status"]).Canary
	v.mu.Lock()
	changed := keep(v.mu.failures, k, now)
	changed = keep(v.mu.starts, k, far) || changed
	changed = keep(v.mu.canaries, k, canary) || changed
	v.mu.Unlock()
	if changed {
		v.notify(k)
	}
}

// keep records the status of a service, nil for none, and reports whether it is
// new.
func keep[T comparable](of map[service.Key]*T, k service.Key, now *T) bool {
	before := of[k]
	if now == nil {
		delete(of, k)
		return before != nil
	}
	of[k] = now
	return before == nil || *before != *now
}

// passing lists the reasons for which a service is not ready although nothing has
// failed.
var passing = []string{"", "Asleep", "Serving", "NoRevision", "Stopped"}

// failureOf returns why a service is not ready, from its manifest's condition
// Ready, which every dialect's status has, or how far its start is.
func failureOf(u *unstructured.Unstructured) (bad *service.Failure, starting *string) {
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, raw := range conditions {
		c, _ := raw.(map[string]any)
		reason, _ := c["reason"].(string)
		message, _ := c["message"].(string)
		switch {
		case c["type"] != service.ConditionReady || c["status"] != "False":
		case reason == "Starting" || reason == "Fetching":
			far := cmp.Or(message, "starting")
			return nil, &far
		case !slices.Contains(passing, reason):
			return &service.Failure{Reason: reason, Message: message}, nil
		}
	}
	return nil, nil
}
