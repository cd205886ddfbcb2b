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
	// Manager is the other manager of its status, with ReasonManaged.
	Manager string
	// Running: the manifest as it was before is still served, and the refusal
	// is written with its status.
	Running bool
}

// read reads a manifest as the cache has it now.
func (s *Source) read(ctx context.Context, i item) error {
	c, err := s.claim(ctx, i)
	if err != nil {
		return err
	}
	if err := s.configs.follow(ctx, i, c.named()); err != nil {
		return err
	}
	if gone := s.claims.put(i, c); gone != nil {
		delete(s.warned, gone.ref.UID)
		if s.cfg.Reporter != nil {
			s.cfg.Reporter.Forget(gone.ref)
		}
	}
	return nil
}

// claim is nil where there is no manifest that is ours to read.
func (s *Source) claim(ctx context.Context, i item) (*claim, error) {
	if i.kind == configMaps {
		return s.configClaim(ctx, i)
	}
	r, before := s.kinds.informed(i.kind), s.claims.get(i)
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
	if u.GetDeletionTimestamp() != nil || !s.kinds.adopted(ctx, i.kind.Dialect(), i.Namespace) {
		return nil, nil
	}
	c := &claim{ref: Ref{u.GroupVersionKind(), i.id().Key, u.GetUID(), u.GetGeneration()}, created: u.GetCreationTimestamp().Time}
	if i.kind.Dialect() != service.DialectRoundhouse {
		c.other = kube.OtherWriter(u)
	}
	if before != nil && before.ref.UID == c.ref.UID {
		c.reported = before.reported
	}
	var err error
	if c.document, err = Document(u); err != nil {
		return nil, err
	}
	if before != nil && before.ref.UID == c.ref.UID && bytes.Equal(before.document, c.document) {
		c.document, c.object, c.problems, c.warnings = before.document, before.object, before.problems, before.warnings
		return c, nil
	}
	if c.object, c.problems, c.warnings = parse(c.document); c.object != nil {
		c.object.SetCreated(c.created)
		if c.object.ID() != i.id() {
			return nil, fmt.Errorf("%s was read as %s", i, c.object.ID())
		}
	}
	return c, nil
}

// withheld reports whether a service is not served because another controller
// serves it. One that runs continues: a conflict between operators must not
// fail its requests. A benchmark is run by one of them alone, too.
func (s *Source) withheld(id fleet.ID, c *claim) bool {
	switch {
	case c.other == nil:
		return false
	case id.Kind == serviceID:
		return s.cfg.Records.Manifest(id.Key) == nil
	}
	return id.Kind == fleet.BenchmarkKind
}

// otherManager names who else manages a service, "" for nobody.
func (s *Source) otherManager(id fleet.ID) string {
	if s.cfg.OtherManager == nil || id.Kind != serviceID {
		return ""
	}
	return s.cfg.OtherManager(id.Key)
}

// Again reads the manifests of a service again.
func (s *Source) Again(k service.Key) {
	s.look(s.claims.of(fleet.ID{Kind: serviceID, Key: k}))
}

// settle gives the sink an object as it is now, and reports what is wrong with
// its manifests.
func (s *Source) settle(ctx context.Context, id fleet.ID) error {
	if s.sink == nil {
		return nil
	}
	at, c := s.claims.winner(id)
	withheld := c != nil && s.withheld(id, c)
	_, known := s.claims.getApplied(id)
	other := s.otherManager(id)
	var errs []error
	for _, i := range s.claims.of(id) {
		if i == at {
			continue
		}
		errs = append(errs, s.refuse(ctx, i, s.claims.get(i), Refusal{Reason: ReasonTaken, Message: fmt.Sprintf(
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

// managed returns who else serves a manifest and how to hand it over.
func managed(i item, c *claim) string {
	return fmt.Sprintf("%s wrote this object's status at %s, so Roundhouse does not serve it. If that controller is gone, hand the object over: kubectl annotate %s %s -n %s %s=%s",
		c.other.Manager, c.other.At.UTC().Format(time.RFC3339), i.kind.CRD(), i.Name, i.Namespace, kube.AnnotationTakeOver, c.other.At.UTC().Format(time.RFC3339))
}

func (s *Source) withdraw(ctx context.Context, id fleet.ID) error {
	var gone *fleet.NotFoundError
	if err := s.sink.Delete(ctx, id); err != nil && !errors.As(err, &gone) {
		return err
	}
	s.claims.withdraw(id)
	s.look(s.claims.conflicting())
	return nil
}

func (s *Source) apply(ctx context.Context, id fleet.ID, i item, c *claim) error {
	was, _ := s.claims.getApplied(id)
	if was.item == i && was.uid != c.ref.UID {
		// Another object of the same name: what belonged to the former one is
		// deleted with it, and the decision is made anew.
		if err := s.withdraw(ctx, id); err != nil {
			return err
		}
	}
	if was == (applied{i, c.ref.UID, c.object}) {
		// Its generation or its status has changed. To apply it again would
		// retry a service that cannot run with each write of its status.
		if id.Kind == serviceID {
			s.sink.Demanded(id.Key)
		}
	} else {
		if _, err := s.sink.Apply(ctx, []fleet.Object{*c.object}, fleet.ApplyOptions{}); err != nil {
			c.conflicts = true
			return s.refuse(ctx, i, c, Refusal{Reason: ReasonConflict, Message: strings.ReplaceAll(err.Error(), "\n", "; ")})
		}
		c.conflicts = false
		s.claims.setApplied(id, applied{i, c.ref.UID, c.object})
		s.look(s.claims.conflicting()) // the objects that they conflict with may have changed
	}
	c.reported = ""
	if s.cfg.Reporter != nil {
		s.cfg.Reporter.Accepted(c.ref)
		if len(c.warnings) > 0 && s.warned[c.ref.UID] != c.ref.Generation {
			s.warned[c.ref.UID] = c.ref.Generation
			s.cfg.Reporter.Warned(c.ref, c.warnings)
		}
	}
	return nil
}

// quiet suppresses warnings about a manifest that is older than this process:
// they have been reported.
func (s *Source) quiet(i item) {
	if c := s.claims.get(i); c != nil && len(c.warnings) > 0 {
		s.warned[c.ref.UID] = c.ref.Generation
	}
}

func (s *Source) refuse(ctx context.Context, i item, c *claim, r Refusal) error {
	r.Ref, r.Status = c.ref, i.kind.Status
	if reported := r.Reason + r.Message; c.reported != reported {
		c.reported = reported
		s.cfg.Log.Warn("manifest refused", "manifest", i.String(), "reason", r.Reason, "message", r.Message)
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
