// Package status writes the status of objects, each in its own dialect, and
// records events. It writes only when something has changed: values that change
// by themselves are not written, and times stay as long as what they date.
package status

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/history"
	"roundhouse.dev/roundhouse/internal/decide/loadjob"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/edge/kube/objects"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// Config is what a Writer works with. Client and Events are required.
type Config struct {
	// Client reads manifests from a cache and writes their status.
	Client client.Client
	Events events.EventRecorder
	// Every is how often a service's status is written for changes that nobody
	// waits for, such as counts; see gist for the rest. 0 means DefaultEvery.
	Every time.Duration
	Now   func() time.Time
	Log   *slog.Logger
}

// DefaultEvery merges the changes of several pods into one write.
const DefaultEvery = time.Second

// Writer writes status; it is an objects.Reporter and its Report a
// fleet.Config.Report. It is safe for concurrent use if one object is reported
// by one caller at a time.
type Writer struct {
	cfg Config

	mu struct {
		sync.Mutex
		refused map[types.UID]objects.Refusal
		written map[types.UID]written
		seen    map[service.Key]history.Seen
		noticed map[types.UID]string // the other manager that our notice names
	}
}

// written is the last status that was applied, while the cache may not show it
// yet: over is the version it was applied to.
type written struct {
	status []byte
	over   string
	at     time.Time
	gist   string
}

// New makes a writer.
func New(cfg Config) (*Writer, error) {
	if cfg.Client == nil || cfg.Events == nil {
		return nil, errors.New("status: Client and Events are required")
	}
	if cfg.Every == 0 {
		cfg.Every = DefaultEvery
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	w := &Writer{cfg: cfg}
	w.mu.refused = map[types.UID]objects.Refusal{}
	w.mu.written = map[types.UID]written{}
	w.mu.seen = map[service.Key]history.Seen{}
	w.mu.noticed = map[types.UID]string{}
	return w, nil
}

// Report writes a service's status. It is a fleet.Config.Report: a delayed
// status is written when Report is called again, after the time it returns. If
// the process ends before, the next leader writes it.
func (w *Writer) Report(ctx context.Context, st fleet.ServiceState) (again time.Duration, err error) {
	u, err := w.get(ctx, st.Object.Origin, st.Object.Key)
	if u == nil || err != nil {
		return 0, err
	}
	stated := w.stated(u, st)
	desired, err := w.prepare(ctx, u, dialect.Status(st.Object.Origin, stated))
	if err != nil {
		return 0, err
	}
	if desired != nil {
		gist := gist(stated)
		if again = w.hold(u.GetUID(), gist); again == 0 {
			if err := w.write(ctx, u, desired, gist); err != nil {
				return 0, err
			}
		}
	}
	w.tell(u, st, u.Object["status"] != nil && desired == nil)
	return again, nil
}

// stated returns a service's status as it is to be written: with the API
// object's generation if the status is of it, and the problem of a manifest
// that is not served as it is.
func (w *Writer) stated(u *unstructured.Unstructured, st fleet.ServiceState) service.Status {
	out := st.Status
	out.Generation = observed(u, st.Object.Original, st.Status.Generation == st.Generation)
	w.mu.Lock()
	r, bad := w.mu.refused[u.GetUID()]
	w.mu.Unlock()
	if bad {
		out.Generation = u.GetGeneration()
		out = spoilt(out, r)
	}
	return out
}

// observed is the generation of an API object that a status speaks of, which was made
// of original: the object's own where that is as the object is now and nothing has
// changed since, else the one that its status has.
func observed(u *unstructured.Unstructured, original []byte, settled bool) int64 {
	before, _, _ := unstructured.NestedInt64(u.Object, "status", "observedGeneration")
	if doc, err := objects.Document(u); err == nil && bytes.Equal(doc, original) && settled {
		return u.GetGeneration()
	}
	return before
}

// Refused writes what is wrong with a manifest. If the service continues as it
// was, its next report has the problem.
func (w *Writer) Refused(ctx context.Context, r objects.Refusal) error {
	w.mu.Lock()
	before, known := w.mu.refused[r.UID]
	w.mu.refused[r.UID] = r
	w.mu.Unlock()
	u, err := w.find(ctx, r.GroupVersionKind, r.Key)
	if u == nil || err != nil {
		return err
	}
	var changed bool
	switch {
	case r.Reason == objects.ReasonManaged:
		return w.notice(ctx, u, r.Manager, r.Message)
	case r.Running:
		changed = !known && !says(u, r.Message) // an earlier process may have written it
	default:
		status := refusal(u, r)
		if status == nil {
			changed = !known
			break
		}
		if changed, err = w.put(ctx, u, status); err != nil {
			return err
		}
	}
	if changed || known && before.Message != r.Message {
		w.event(u, true, r.Reason, r.Message)
	}
	return nil
}

// Accepted reports that nothing is wrong with a manifest any more; its service's
// next report writes its status.
func (w *Writer) Accepted(r objects.Ref) {
	w.mend(r)
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.mu.refused, r.UID)
}

// Warned records events for fields that have no effect.
func (w *Writer) Warned(r objects.Ref, warnings []string) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(r.GroupVersionKind)
	u.SetNamespace(r.Namespace)
	u.SetName(r.Name)
	u.SetUID(r.UID)
	for i, text := range warnings {
		if i == maxWarnings {
			w.event(u, true, "ManifestWarning", fmt.Sprintf("and %d more: `roundhouse validate` lists them", len(warnings)-i))
			return
		}
		w.event(u, true, "ManifestWarning", text)
	}
}

// maxWarnings bounds the events about one manifest's warnings.
const maxWarnings = 10

// Routing writes the status of routing objects. Those of HTTPRoutes, GRPCRoutes and
// InferencePools are shared with other gateways, and are written by package
// gatewayapi.
func (w *Writer) Routing(ctx context.Context, states []fleet.RoutingState) error {
	var errs []error
	for _, st := range states {
		if _, ok := st.Object.Routing.(*routing.HTTPRoute); ok || st.Object.Origin.Kind == "InferencePool" && st.Object.Origin.APIVersion == sharedPools {
			continue
		}
		u, err := w.get(ctx, st.Object.Origin, st.Object.Key)
		if u == nil || err != nil {
			errs = append(errs, err)
			continue
		}
		status := dialect.RoutingStatus(st.Object.Routing, st.Status)
		if st.Object.Routing.RoutingKind() == routing.KindGraph { // the one of these kinds that states it
			status["observedGeneration"] = observed(u, st.Object.Original, true)
		}
		_, err = w.put(ctx, u, status)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Benchmark writes the status of a benchmark, unless its manifest is another by now, and
// records an event if its Job cannot be made.
func (w *Writer) Benchmark(ctx context.Context, r objects.Ref, st loadjob.Status) error {
	u, err := w.find(ctx, r.GroupVersionKind, r.Key)
	if u == nil || err != nil || u.GetUID() != r.UID {
		return err
	}
	before, _, _ := unstructured.NestedMap(u.Object, "status")
	changed, err := w.put(ctx, u, st.Over(before, w.cfg.Now()))
	if changed && st.Denied {
		w.event(u, true, "JobRefused", st.Details)
	}
	return err
}

// sharedPools is the version whose status names the gateway that wrote each
// part.
const sharedPools = "inference.networking.k8s.io/v1"

func (w *Writer) get(ctx context.Context, o service.Origin, k service.Key) (*unstructured.Unstructured, error) {
	gv, err := schema.ParseGroupVersion(o.APIVersion)
	if err != nil {
		return nil, fmt.Errorf("status of %s: %w", k, err)
	}
	return w.find(ctx, gv.WithKind(o.Kind), k)
}

// find reads a manifest from the cache; nil when it no longer exists.
func (w *Writer) find(ctx context.Context, gvk schema.GroupVersionKind, k service.Key) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	err := w.cfg.Client.Get(ctx, client.ObjectKey{Namespace: k.Namespace, Name: k.Name}, u)
	if apierrors.IsNotFound(err) || notCached(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("status of %s %s: %w", gvk.Kind, k, err)
	}
	return u, nil
}

// put applies a status unless the object has it, and reports whether it did.
func (w *Writer) put(ctx context.Context, u *unstructured.Unstructured, status map[string]any) (bool, error) {
	desired, err := w.prepare(ctx, u, status)
	if desired == nil || err != nil {
		return false, err
	}
	return true, w.write(ctx, u, desired, "")
}

// prepare makes a status ready to be applied; nil when the object has it, or
// another manager writes it.
func (w *Writer) prepare(ctx context.Context, u *unstructured.Unstructured, status map[string]any) (map[string]any, error) {
	if (service.Origin{APIVersion: u.GetAPIVersion()}).Dialect() != service.DialectRoundhouse {
		if other := kube.OtherWriter(u); other != nil {
			return nil, w.notice(ctx, u, other.Manager, fmt.Sprintf("%s keeps this object's status; what Roundhouse knows of it is in events", other.Manager))
		}
	}
	desired, err := plain(status)
	if err != nil {
		return nil, fmt.Errorf("status of %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	now, _, _ := unstructured.NestedMap(u.Object, "status")
	still(desired)
	keepTimes(desired, now)
	if same(desired, now, owned(u)) {
		return nil, nil
	}
	return desired, nil
}

// write applies a status, unless it is the last one that was applied.
func (w *Writer) write(ctx context.Context, u *unstructured.Unstructured, desired map[string]any, gist string) error {
	text, err := json.Marshal(desired)
	if err != nil {
		return fmt.Errorf("status of %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	w.mu.Lock()
	last := w.mu.written[u.GetUID()]
	w.mu.Unlock()
	if last.over == u.GetResourceVersion() && bytes.Equal(last.status, text) {
		return nil // and the cache will show it soon
	}
	apply := &unstructured.Unstructured{Object: map[string]any{"status": desired}}
	apply.SetGroupVersionKind(u.GroupVersionKind())
	apply.SetNamespace(u.GetNamespace())
	apply.SetName(u.GetName())
	apply.SetUID(u.GetUID()) // never to another object of the same name
	err = w.cfg.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(apply), client.FieldOwner(shape.FieldManager), client.ForceOwnership)
	if err = gone(err); err != nil {
		return fmt.Errorf("status of %s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
	}
	w.mu.Lock()
	w.mu.written[u.GetUID()] = written{text, u.GetResourceVersion(), w.cfg.Now(), gist}
	w.mu.Unlock()
	return nil
}

// Forget drops what is remembered of a deleted manifest.
func (w *Writer) Forget(r objects.Ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.mu.refused, r.UID)
	delete(w.mu.written, r.UID)
	delete(w.mu.noticed, r.UID)
	if w.mu.seen[r.Key].Identity == string(r.UID) {
		delete(w.mu.seen, r.Key)
	}
}

// Runtimes have a status only for a refusal, and later for its end. A runtime
// that was never refused has none.

// mendTimeout bounds the write that withdraws a runtime's refusal.
const mendTimeout = 10 * time.Second

// mend withdraws the refusal of a runtime that counts now.
func (w *Writer) mend(r objects.Ref) {
	if k := objects.KindOf(r.GroupKind()); k == nil || k.Status != objects.RuntimeStatus {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), mendTimeout)
	defer cancel()
	u, err := w.find(ctx, r.GroupVersionKind, r.Key)
	if err == nil && u != nil && denied(u) {
		_, err = w.put(ctx, u, map[string]any{"conditions": []any{condition(service.Condition{Type: service.ConditionReady, Status: "True",
			Reason: "Accepted", Since: time.Now()})}})
	}
	if err != nil {
		w.cfg.Log.Warn("the status of a runtime still says that it is refused", "runtime", r.Key.String(), "error", err)
	}
}

// denied reports whether a status refuses its object.
func denied(u *unstructured.Unstructured) bool {
	list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, raw := range list {
		if c, _ := raw.(map[string]any); c["type"] == service.ConditionReady && c["status"] == "False" {
			return true
		}
	}
	return false
}
