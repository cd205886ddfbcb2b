// Package records stores the decisions about each service in
// ControllerRevisions, apps/v1's kind for revisions. Each is owned by the
// manifest's object and deleted with it.
//
// The data of a ControllerRevision cannot change, so every decision is a new
// one, named by its content and numbered; the highest number counts. Writing
// the new one before deleting the old one makes the change atomic.
package records

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// Format is how records are written now. A reader refuses a higher one.
const Format = 1

// AnnotationFormat holds a record's format.
const AnnotationFormat = "roundhouse.dev/record-format"

// writeTimeout bounds one write, with its retries.
const writeTimeout = 15 * time.Second

// Objects are the manifests, which the API server stores; an objects.Source is
// one.
type Objects interface {
	Objects() []fleet.Object
	// Owner is the manifest that a service's record belongs to.
	Owner(service.Key) (metav1.OwnerReference, bool)
	// Manifest is the document of a service's manifest, nil without one.
	Manifest(service.Key) []byte
}

// Store is a fleet.Store. It is the only writer of records while it is used.
type Store struct {
	client  client.Client
	objects Objects

	mu struct {
		sync.Mutex
		known map[service.Key][]kept // the one that counts is last
		// later is the highest format that this installation has written.
		later int
		// installation is ours, "" before Lead; managedBy are the services that
		// others look after, with whose.
		installation string
		managedBy    map[service.Key]string
		// unseen is the record of a service that this process writes or has
		// written, by name, until the cache has it; see Look.
		unseen map[service.Key]string
	}
}

// kept is one ControllerRevision, and of the newest what it holds.
type kept struct {
	name     string
	number   int64
	manifest []byte
	owners   []metav1.OwnerReference
	// strange is why no decision may replace it.
	strange error
}

// stored is the data of a ControllerRevision: a record, and the manifest it
// was made from, so that a service whose manifest has become unreadable
// continues after a restart.
type stored struct {
	fleet.Record
	Manifest json.RawMessage `json:"manifest,omitempty"`
}

// New makes a store. c reads ControllerRevisions from a cache.
func New(c client.Client) *Store {
	s := &Store{client: c}
	s.mu.known, s.mu.later = map[service.Key][]kept{}, math.MaxInt
	s.mu.managedBy, s.mu.unseen = map[service.Key]string{}, map[service.Key]string{}
	return s
}

// Use sets the manifests. Call it before any other method.
func (s *Store) Use(o Objects) { s.objects = o }

// Decode reads a record from its ControllerRevision.
func Decode(cr *appsv1.ControllerRevision) (fleet.Record, error) {
	st, err := decode(cr)
	return st.Record, err
}

func decode(cr *appsv1.ControllerRevision) (stored, error) {
	var st stored
	format, err := strconv.Atoi(cr.Annotations[AnnotationFormat])
	at := "ControllerRevision " + cr.Namespace + "/" + cr.Name
	switch {
	case err != nil:
		return st, fmt.Errorf("%s: its annotation %s is no number: delete it, and the decision is made anew", at, AnnotationFormat)
	case format > Format:
		return st, &NewerError{At: at, Format: format}
	}
	if err := json.Unmarshal(cr.Data.Raw, &st); err != nil {
		return st, fmt.Errorf("%s: its data cannot be read (%w): delete it, and the decision is made anew", at, err)
	}
	// A user who may write in this namespace may not therefore write in others.
	own := service.WorkloadKey(cr.Namespace, cr.Annotations[shape.AnnotationService])
	for _, k := range []*service.Key{&st.Service, &st.Revision.Service} {
		*k = service.ParseKey(k.String()) // older records have the variant in the name
		if *k != own || k.Name == "" {
			return st, fmt.Errorf("%s: it is for the service %s, and its annotation names %s: delete it, and the decision is made anew", at, k, own)
		}
	}
	return st, nil
}

// NewerError is the error for a record of a later format than this version
// reads.
type NewerError struct {
	At     string
	Format int
}

// Error returns a message with the remedy.
func (e *NewerError) Error() string {
	return fmt.Sprintf("%s was written by a later version of the controller (format %d; this one reads up to %d): run that version again, or delete the record, which may restart the service's pods", e.At, e.Format, Format)
}

// Newest returns, of a namespace's or a cluster's records, the one that counts
// for each service.
func Newest(list []appsv1.ControllerRevision) map[service.Key]*appsv1.ControllerRevision {
	out := map[service.Key]*appsv1.ControllerRevision{}
	for i := range list {
		cr := &list[i]
		k := serviceOf(cr)
		if b := out[k]; b == nil || Counts(cr, b) {
			out[k] = cr
		}
	}
	return out
}

// Read reads every record into memory. It fails at a record of a later format
// that this installation has written: without it a service would be decided
// anew. Another record of a later format only blocks the decisions about its
// service. A record that cannot be read otherwise is reported and left out.
func (s *Store) Read(ctx context.Context) (records []fleet.Record, err error) {
	var list appsv1.ControllerRevisionList
	if err := s.client.List(ctx, &list, client.MatchingLabels{shape.LabelRecord: "true"}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the records: %w", err)
	}
	s.mu.Lock()
	later := s.mu.later
	s.mu.Unlock()
	slices.SortFunc(list.Items, func(a, b appsv1.ControllerRevision) int { return order(&a, &b) })
	newest := Newest(list.Items)
	known := map[service.Key][]kept{}
	var errs []error
	for i := range list.Items {
		cr := &list.Items[i]
		k := serviceOf(cr)
		one := kept{name: cr.Name, number: cr.Revision}
		if newest[k] == cr {
			st, err := decode(cr)
			if newer := (*NewerError)(nil); errors.As(err, &newer) && newer.Format > later {
				err = &StrangeError{newer.At, newer.Format}
				one.strange = err
			}
			if err != nil {
				errs = append(errs, err)
			} else {
				records = append(records, st.Record)
				one.manifest, one.owners = st.Manifest, cr.OwnerReferences
			}
		}
		known[k] = append(known[k], one)
	}
	s.mu.Lock()
	s.mu.known, s.mu.managedBy = known, map[service.Key]string{}
	for k, cr := range newest {
		if !k.IsCanary() {
			s.attribute(k, cr)
		}
	}
	s.mu.Unlock()
	return records, errors.Join(errs...)
}

// Load implements fleet.Store.
func (s *Store) Load() ([]fleet.Object, []fleet.Record, error) {
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	records, err := s.Read(ctx)
	objects := s.objects.Objects()
	// A record of another object that had the name is deleted with that one.
	records = slices.DeleteFunc(records, func(r fleet.Record) bool {
		now, ok := s.objects.Owner(r.Service)
		was := s.owners(r.Service)
		return ok && len(was) > 0 && !sameOwner(was, []metav1.OwnerReference{now})
	})
	return objects, records, err
}

func sameOwner(a, b []metav1.OwnerReference) bool {
	return slices.EqualFunc(a, b, func(x, y metav1.OwnerReference) bool { return x.UID == y.UID })
}

// PutObject implements fleet.Store: the API server has the objects.
func (s *Store) PutObject(fleet.Object) error { return nil }

// DeleteObject implements fleet.Store.
func (s *Store) DeleteObject(fleet.ID) error { return nil }

// Manifest is the document a service's record was made from, nil where there
// is no record.
func (s *Store) Manifest(k service.Key) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if of := s.mu.known[k]; len(of) > 0 {
		return of[len(of)-1].manifest
	}
	return nil
}

// MadeFrom implements fleet.Made.
func (s *Store) MadeFrom(k service.Key, document []byte) bool {
	was := s.Manifest(k)
	if bytes.Equal(was, document) {
		return true
	}
	var a, b any
	return json.Unmarshal(was, &a) == nil && json.Unmarshal(document, &b) == nil && reflect.DeepEqual(a, b)
}

// Services lists those with a record, without canaries and without those that
// other installations manage.
func (s *Store) Services() []service.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Collect(maps.Keys(s.mu.known)), func(k service.Key) bool { return k.IsCanary() || s.mu.managedBy[k] != "" })
}

// PutRecord implements fleet.Store.
func (s *Store) PutRecord(r fleet.Record) error {
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	if other := s.OtherInstallation(r.Service); other != nil {
		return other
	}
	cr, one, err := s.render(r)
	if err != nil {
		return err
	}
	s.mu.Lock()
	of := slices.Clone(s.mu.known[r.Service])
	s.mu.Unlock()
	if of, err = s.familiar(ctx, r.Service, of); err != nil {
		return fmt.Errorf("store the decision of %s: %w", r.Service, err)
	}
	if n := len(of); n > 0 {
		if of[n-1].name == one.name && sameOwner(of[n-1].owners, one.owners) {
			return nil
		}
		cr.Revision = of[n-1].number + 1
	}
	one.number = cr.Revision
	s.expect(r.Service, cr.Name)
	if err := s.create(ctx, cr); err != nil {
		s.expect(r.Service, "")
		return fmt.Errorf("store the decision of %s: %w", r.Service, err)
	}
	of = append(slices.DeleteFunc(of, func(k kept) bool { return k.name == one.name }), one)
	s.mu.Lock()
	s.mu.known[r.Service] = of
	s.mu.Unlock()
	if r.Service.IsCanary() {
		s.Tidy(ctx, r.Service)
	}
	return nil
}

// Tidy deletes the records of a service that no longer count after a PutRecord;
// a canary's are deleted with it. It is a separate step so that the decision is
// carried out first. Records that it cannot delete do no harm, and are deleted
// the next time. Nothing else may be done to the service's records meanwhile.
func (s *Store) Tidy(ctx context.Context, k service.Key) {
	s.mu.Lock()
	of := slices.Clone(s.mu.known[k])
	s.mu.Unlock()
	if len(of) < 2 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	last := of[len(of)-1]
	left := s.drop(ctx, k, of[:len(of)-1])
	s.mu.Lock()
	s.mu.known[k] = append(left, last)
	s.mu.Unlock()
}

// render makes the ControllerRevision of a record.
func (s *Store) render(r fleet.Record) (*appsv1.ControllerRevision, kept, error) {
	manifest := s.objects.Manifest(r.Service)
	if manifest == nil {
		manifest = s.Manifest(r.Service)
	}
	data, err := json.Marshal(stored{r, manifest})
	if err != nil {
		return nil, kept{}, fmt.Errorf("store the decision of %s: %w", r.Service, err)
	}
	one := kept{name: name(r.Service, data), manifest: manifest}
	if owner, ok := s.objects.Owner(r.Service); ok {
		one.owners = []metav1.OwnerReference{owner}
	} else if one.owners = s.owners(r.Service); one.owners == nil {
		return nil, one, fmt.Errorf("store the decision of %s: its manifest is no longer there", r.Service)
	}
	cr := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.Service.Namespace, Name: one.name, OwnerReferences: one.owners,
			Labels: map[string]string{shape.LabelRecord: "true", shape.LabelManagedBy: shape.Manager,
				shape.LabelService: shape.LabelValue(r.Service.Name)},
			Annotations: map[string]string{shape.AnnotationService: r.Service.WorkloadName(), AnnotationFormat: strconv.Itoa(Format)}},
		Data: runtime.RawExtension{Raw: data}, Revision: 1,
	}
	s.mu.Lock()
	if s.mu.installation != "" {
		cr.Annotations[AnnotationInstallation] = s.mu.installation
	}
	s.mu.Unlock()
	return cr, one, nil
}

func (s *Store) owners(k service.Key) []metav1.OwnerReference {
	s.mu.Lock()
	defer s.mu.Unlock()
	if of := s.mu.known[k]; len(of) > 0 {
		return of[len(of)-1].owners
	}
	return nil
}

// name returns a record's name: the service's and a hash of its content.
func name(k service.Key, data []byte) string {
	sum := sha256.Sum256(data)
	variant := ""
	if k.Variant != "" {
		variant = "-" + string(k.Variant)
	}
	return shape.RecordName(k.Stable()) + variant + "-" + hex.EncodeToString(sum[:])[:hashLength]
}

const hashLength = 10

// create writes a record. One of the same content that is still there from
// before is given the new number, which may change.
func (s *Store) create(ctx context.Context, cr *appsv1.ControllerRevision) error {
	err := s.client.Create(ctx, cr.DeepCopy(), client.FieldOwner(shape.FieldManager))
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	there := &appsv1.ControllerRevision{}
	if err := s.client.Get(ctx, client.ObjectKeyFromObject(cr), there); client.IgnoreNotFound(err) != nil {
		return err
	}
	k, ours := serviceOf(cr), cr.Annotations[AnnotationInstallation]
	if by := there.Annotations[AnnotationInstallation]; by != "" && by != ours {
		return &OtherInstallationError{k, by, ours}
	}
	patch, err := json.Marshal(map[string]any{"revision": cr.Revision,
		"metadata": map[string]any{"ownerReferences": cr.OwnerReferences}})
	if err != nil {
		return err
	}
	return s.client.Patch(ctx, cr, client.RawPatch("application/merge-patch+json", patch), client.FieldOwner(shape.FieldManager))
}

// drop deletes records that no longer count, and returns those it could not
// delete: they do no harm, and are deleted after the next decision.
func (s *Store) drop(ctx context.Context, k service.Key, of []kept) (left []kept) {
	for _, one := range of {
		cr := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: one.name}}
		if err := s.client.Delete(ctx, cr); client.IgnoreNotFound(err) != nil {
			left = append(left, one)
		}
	}
	return left
}

// DeleteRecord implements fleet.Store.
func (s *Store) DeleteRecord(k service.Key) error {
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	s.mu.Lock()
	of := slices.Clone(s.mu.known[k])
	if s.mu.managedBy[k.Stable()] != "" {
		of = nil // they are not ours to delete
	}
	s.mu.Unlock()
	left := s.drop(ctx, k, of)
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.mu.known, k); len(left) > 0 {
		s.mu.known[k] = left
		names := make([]string, len(left))
		for i := range left {
			names[i] = left[i].name
		}
		return fmt.Errorf("the records %s of %s could not be deleted", strings.Join(names, ", "), k)
	}
	return nil
}
