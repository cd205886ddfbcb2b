package objects

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// Ref is one manifest in the API.
type Ref struct {
	schema.GroupVersionKind
	service.Key
	UID        types.UID
	Generation int64
}

// Why a manifest does not count.
const (
	ReasonInvalid  = "InvalidManifest"
	ReasonTaken    = "NameTaken"
	ReasonManaged  = "OtherManager"
	ReasonConflict = "Refused"
)

// Refusal is why a manifest does not count, and what to do.
type Refusal struct {
	Ref
	Status  Form
	Reason  string
	Message string
	// Manager is who keeps its status instead, with ReasonManaged.
	Manager string
	// Running: what the manifest said before goes on being served, and its
	// status comes with that.
	Running bool
}

// claim is what one manifest says of an object of the fleet.
type claim struct {
	ref      Ref
	created  time.Time
	object   *fleet.Object // nil when it cannot be read
	document []byte
	problems []string
	warnings []string
	other    *kube.StatusWriter
	told     string // what was last said against it
	// conflicts: it was refused for what else there is.
	conflicts bool
}

// look reads a manifest as the cache has it now.
func (s *Source) look(ctx context.Context, i item) error {
	c, err := s.claim(ctx, i)
	if err != nil {
		return err
	}
	id := i.id()
	s.mu.Lock()
	defer s.mu.Unlock()
	claims := s.mu.claims[id]
	if c == nil {
		if gone := claims[i]; gone != nil {
			delete(s.warned, gone.ref.UID)
			if s.cfg.Reporter != nil {
				s.cfg.Reporter.Forget(gone.ref)
			}
		}
		if delete(claims, i); len(claims) == 0 {
			delete(s.mu.claims, id)
		}
		return nil
	}
	if claims == nil {
		claims = map[item]*claim{}
		s.mu.claims[id] = claims
	}
	claims[i] = c
	return nil
}

// claim is nil where there is no manifest that is ours to read.
func (s *Source) claim(ctx context.Context, i item) (*claim, error) {
	s.mu.Lock()
	r, before := s.mu.running[i.kind], s.mu.claims[i.id()][i]
	s.mu.Unlock()
	if r == nil {
		return nil, nil
	}
	u := r.object.DeepCopy()
	switch err := s.cfg.Cache.Get(ctx, i.NamespacedName, u); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	if u.GetDeletionTimestamp() != nil || !s.adopted(ctx, i.kind.Dialect(), i.Namespace) {
		return nil, nil
	}
	c := &claim{ref: Ref{u.GroupVersionKind(), i.id().Key, u.GetUID(), u.GetGeneration()}, created: u.GetCreationTimestamp().Time}
	if i.kind.Dialect() != service.DialectRoundhouse {
		c.other = kube.OtherWriter(u)
	}
	if before != nil && before.ref.UID == c.ref.UID {
		c.told = before.told
	}
	var err error
	if c.document, err = Document(u); err != nil {
		return nil, err
	}
	if before != nil && before.ref.UID == c.ref.UID && bytes.Equal(before.document, c.document) {
		c.document, c.object, c.problems, c.warnings = before.document, before.object, before.problems, before.warnings
		return c, nil
	}
	if c.object, c.problems, c.warnings = read(c.document); c.object != nil {
		c.object.SetCreated(c.created)
		if c.object.ID() != i.id() {
			return nil, fmt.Errorf("%s was read as %s", i, c.object.ID())
		}
	}
	return c, nil
}

// winner is the manifest that an object goes by: of several the oldest, and of
// those of one second the first in the order of kinds. mu is held.
func (s *Source) winner(id fleet.ID) (item, *claim) {
	var at item
	var best *claim
	for i, c := range s.mu.claims[id] {
		if best == nil || c.created.Before(best.created) || c.created.Equal(best.created) && rank(i.kind) < rank(at.kind) {
			at, best = i, c
		}
	}
	return at, best
}

func rank(k *Kind) int {
	for i := range Kinds {
		if Kinds[i] == k {
			return i
		}
	}
	return len(Kinds)
}

// withheld reports whether a service stays out because somebody else serves it.
// One that ran goes on: who calls it is not to suffer from a quarrel between
// operators. mu is held.
func (s *Source) withheld(id fleet.ID, c *claim) bool {
	return c.other != nil && id.Kind == serviceID && s.cfg.Records.Manifest(id.Key) == nil
}

// elsewhere says who else looks after a service.
func (s *Source) elsewhere(id fleet.ID) string {
	if s.cfg.Elsewhere == nil || id.Kind != serviceID {
		return ""
	}
	return s.cfg.Elsewhere(id.Key)
}

// Again looks again at the manifests of a service.
func (s *Source) Again(k service.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.mu.claims[fleet.ID{Kind: serviceID, Key: k}] {
		s.queue.Add(i)
	}
}

// settle tells the sink of an object as it is now, and the authors of its
// manifests what is wrong with them.
func (s *Source) settle(ctx context.Context, id fleet.ID) error {
	if s.sink == nil {
		return nil
	}
	s.mu.Lock()
	at, c := s.winner(id)
	withheld := c != nil && s.withheld(id, c)
	losers := map[item]*claim{}
	for i, l := range s.mu.claims[id] {
		if i != at {
			losers[i] = l
		}
	}
	_, known := s.mu.applied[id]
	s.mu.Unlock()
	other := s.elsewhere(id)
	var errs []error
	for i, l := range losers {
		errs = append(errs, s.refuse(ctx, i, l, Refusal{Reason: ReasonTaken, Message: fmt.Sprintf(
			"metadata.name: %s is the name of an older %s (%s): delete one of them, or give this one another name", id.Name, c.ref.Kind, c.ref.Group)}))
	}
	switch {
	case c == nil || withheld || other != "":
		if known {
			errs = append(errs, s.withdraw(ctx, id))
		}
		switch {
		case c != nil && other != "":
			errs = append(errs, s.refuse(ctx, at, c, Refusal{Reason: ReasonManaged, Message: other, Manager: other}))
		case withheld:
			errs = append(errs, s.refuse(ctx, at, c, Refusal{Reason: ReasonManaged, Message: managed(at, c), Manager: c.other.Manager}))
		}
	case c.object == nil:
		errs = append(errs, s.refuse(ctx, at, c, Refusal{Reason: ReasonInvalid, Message: listed(c.problems), Running: known}))
	default:
		errs = append(errs, s.apply(ctx, id, at, c))
	}
	return errors.Join(errs...)
}

// managed says who else serves a manifest and how it is handed over.
func managed(i item, c *claim) string {
	return fmt.Sprintf("%s wrote this object's status at %s, so it is left to that one. If it is gone, hand the object over: kubectl annotate %s %s -n %s %s=%s",
		c.other.Manager, c.other.At.UTC().Format(time.RFC3339), i.kind.CRD(), i.Name, i.Namespace, kube.AnnotationTakeOver, c.other.At.UTC().Format(time.RFC3339))
}

func (s *Source) withdraw(ctx context.Context, id fleet.ID) error {
	var gone *fleet.NotFoundError
	if err := s.sink.Delete(ctx, id); err != nil && !errors.As(err, &gone) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.applied, id)
	s.reconsider()
	return nil
}

// reconsider looks again at manifests that were refused for what else there
// was, now that something of that is otherwise. mu is held.
func (s *Source) reconsider() {
	for _, claims := range s.mu.claims {
		for i, c := range claims {
			if c.conflicts {
				s.queue.Add(i)
			}
		}
	}
}

func (s *Source) apply(ctx context.Context, id fleet.ID, i item, c *claim) error {
	s.mu.Lock()
	was := s.mu.applied[id]
	s.mu.Unlock()
	if was.item == i && was.uid != c.ref.UID {
		// Another object of the same name: what belonged to the one before goes
		// with it, and the decision is made anew.
		if err := s.withdraw(ctx, id); err != nil {
			return err
		}
	}
	if was == (applied{i, c.ref.UID, c.object}) {
		// Its generation or its status has changed. To apply it again would have
		// a service that cannot be run tried again whenever that is said.
		if id.Kind == serviceID {
			s.sink.Demanded(id.Key)
		}
	} else {
		if _, err := s.sink.Apply(ctx, []fleet.Object{*c.object}, fleet.ApplyOptions{}); err != nil {
			s.mu.Lock()
			c.conflicts = true
			s.mu.Unlock()
			return s.refuse(ctx, i, c, Refusal{Reason: ReasonConflict, Message: strings.ReplaceAll(err.Error(), "\n", "; ")})
		}
		s.mu.Lock()
		c.conflicts, s.mu.applied[id] = false, applied{i, c.ref.UID, c.object}
		s.reconsider()
		s.mu.Unlock()
	}
	c.told = ""
	if s.cfg.Reporter != nil {
		s.cfg.Reporter.Accepted(c.ref)
		if len(c.warnings) > 0 && s.warned[c.ref.UID] != c.ref.Generation {
			s.warned[c.ref.UID] = c.ref.Generation
			s.cfg.Reporter.Warned(c.ref, c.warnings)
		}
	}
	return nil
}

// quiet has a manifest that was here before this process not warned of: that
// has been done.
func (s *Source) quiet(i item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.mu.claims[i.id()][i]; c != nil && len(c.warnings) > 0 {
		s.warned[c.ref.UID] = c.ref.Generation
	}
}

func (s *Source) refuse(ctx context.Context, i item, c *claim, r Refusal) error {
	r.Ref, r.Status = c.ref, i.kind.Status
	if told := r.Reason + r.Message; c.told != told {
		c.told = told
		s.cfg.Log.Warn("manifest does not count", "manifest", i.String(), "reason", r.Reason, "message", r.Message)
	}
	if s.cfg.Reporter == nil {
		return nil
	}
	err := s.cfg.Reporter.Refused(ctx, r)
	if err == nil && r.Running && i.kind.ID == serviceID {
		s.sink.Demanded(c.ref.Key)
	}
	return err
}
