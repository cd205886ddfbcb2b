package crds

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Options are what to install.
type Options struct {
	// Foreign are projects of [Projects] whose kinds are wanted.
	Foreign []string
	// FieldManager is whom the API server notes as the writer.
	FieldManager string
	// Established bounds the wait, for all together, until the API server
	// serves what was written; 0 does not wait.
	Established time.Duration
}

// established is how often one asks whether a kind is served: the server
// needs some tens of milliseconds.
const established = 50 * time.Millisecond

// Action is what was done about a definition.
type Action string

// The actions.
const (
	Created Action = "created"
	Updated Action = "updated"
	Same    Action = "unchanged"
	// Newer: what is there came with a later release.
	Newer Action = "left, for it is of a newer release"
	// Theirs: what is there is the project's own.
	Theirs Action = "left, for it is the project's own"
)

// Change is one definition and what was done.
type Change struct {
	Name   string
	Action Action
}

// Install installs our definitions and stand-ins for those of opts.Foreign
// that are absent. It goes on past an error, so that the changes list all that
// was done; the error holds every one. c must read from the API server and not
// from a cache.
func Install(ctx context.Context, c client.Client, opts Options) ([]Change, error) {
	want, err := Ours()
	if err != nil {
		return nil, err
	}
	ours := len(want)
	for _, p := range opts.Foreign {
		more, err := Foreign(p)
		if err != nil {
			return nil, err
		}
		want = append(want, more...)
	}
	var changes []Change
	var errs []error
	var pending []string
	for i, u := range want {
		var action Action
		// Controllers that start together write the same definitions, and the API
		// server its conditions into them.
		err := retry.RetryOnConflict(retry.DefaultBackoff, func() (err error) {
			action, err = install(ctx, c, u.DeepCopy(), i >= ours, opts.FieldManager)
			return err
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("CRD %s: %w", u.GetName(), err))
			continue
		}
		changes = append(changes, Change{u.GetName(), action})
		if action == Created {
			pending = append(pending, u.GetName())
		}
	}
	if opts.Established > 0 && len(pending) > 0 {
		ctx, cancel := context.WithTimeout(ctx, opts.Established)
		defer cancel()
		for _, name := range pending {
			if err := served(ctx, c, name); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return changes, errors.Join(errs...)
}

// install writes one definition, if that is right.
func install(ctx context.Context, c client.Client, u *unstructured.Unstructured, foreign bool, manager string) (Action, error) {
	have := &unstructured.Unstructured{}
	have.SetGroupVersionKind(gvk)
	err := c.Get(ctx, client.ObjectKey{Name: u.GetName()}, have)
	absent := apierrors.IsNotFound(err)
	switch {
	case err != nil && !absent:
		return "", err
	case foreign && absent:
		// Create, which fails where somebody else was faster.
		if err := c.Create(ctx, u, client.FieldOwner(manager)); !apierrors.IsAlreadyExists(err) {
			return Created, err
		}
		return Theirs, nil
	case foreign && Permissive(have):
		return Same, nil
	case foreign:
		return Theirs, nil
	case revision(have) > revision(u):
		return Newer, nil
	}
	// An equal one costs no write; one that changed since it was read conflicts.
	u.SetResourceVersion(have.GetResourceVersion())
	err = c.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(manager), client.ForceOwnership)
	switch {
	case err != nil:
		return "", err
	case absent:
		return Created, nil
	case u.GetResourceVersion() == have.GetResourceVersion():
		return Same, nil
	}
	return Updated, nil
}

// served waits until the API server serves a definition's kind.
func served(ctx context.Context, c client.Client, name string) error {
	tick := time.NewTicker(established)
	defer tick.Stop()
	have := &unstructured.Unstructured{}
	have.SetGroupVersionKind(gvk)
	for {
		if err := c.Get(ctx, client.ObjectKey{Name: name}, have); err == nil && is(have, "Established") {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("CRD %s: the API server does not serve it yet: %s", name, refusal(have))
		case <-tick.C:
		}
	}
}

// is reports whether a definition has a condition.
func is(u *unstructured.Unstructured, condition string) bool {
	for _, c := range conditions(u) {
		if c["type"] == condition {
			return c["status"] == "True"
		}
	}
	return false
}

// refusal is what keeps the API server from serving a definition.
func refusal(u *unstructured.Unstructured) string {
	for _, c := range conditions(u) {
		if c["status"] == "False" && c["message"] != "" {
			return fmt.Sprint(c["message"])
		}
	}
	return "it gives no reason"
}

func conditions(u *unstructured.Unstructured) []map[string]any {
	list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	var out []map[string]any
	for _, c := range list {
		if m, ok := c.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}
