package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// FieldManager owns the fields that the command line applies.
const FieldManager = "roundhouse-cli"

// ApplyOptions steer one Apply.
type ApplyOptions struct {
	// DryRun has the API server check everything and change nothing.
	DryRun bool
	// Force takes over fields that others have set.
	Force bool
}

// document is one object on its way to the API server.
type document struct {
	object *dialect.Object
	id     fleet.ID
	at     resource
	body   []byte
	before string // resourceVersion, "" for a new one
}

func (d *document) where() string {
	return fmt.Sprintf("%s:%d: %s", d.object.Origin.File, d.object.Origin.Line, d.id)
}

// Apply makes manifests the desired state by server-side apply. The API server
// is asked about all of them first, and none is applied where it refuses one.
// Objects without a namespace go into the client's, and are returned so.
func (c *Client) Apply(ctx context.Context, objects []dialect.Object, o ApplyOptions) ([]fleet.Change, error) {
	in, err := c.kinds(ctx)
	if err != nil {
		return nil, err
	}
	docs := make([]*document, len(objects))
	var errs []error
	for i := range objects {
		docs[i], err = c.document(in, &objects[i])
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if err := c.tryAll(ctx, docs, o.Force); err != nil {
		return nil, err
	}
	var out []fleet.Change
	for _, d := range docs {
		action := "unchanged"
		if d.before == "" {
			action = "created"
		}
		if !o.DryRun {
			now, err := c.patch(ctx, d, o.Force, false)
			if err != nil {
				if len(out) > 0 {
					err = fmt.Errorf("%w (applied before it: %s)", err, strings.Join(applied(out), ", "))
				}
				return out, err
			}
			if d.before != "" && now != d.before {
				action = "configured"
			}
		}
		out = append(out, fleet.Change{ID: d.id, Action: action})
	}
	return out, nil
}

// NamesNamespace reports whether a manifest names its namespace.
func NamesNamespace(original []byte) bool {
	var head metav1.PartialObjectMetadata
	return yaml.Unmarshal(original, &head) == nil && head.Namespace != ""
}

// numbers has JSON's numbers stay as they are written.
func numbers(d *json.Decoder) *json.Decoder {
	d.UseNumber()
	return d
}

func applied(list []fleet.Change) []string {
	var out []string
	for _, ch := range list {
		out = append(out, ch.ID.String())
	}
	return out
}

// document prepares an object for the API server.
func (c *Client) document(in *installed, o *dialect.Object) (*document, error) {
	r := dialect.ResourceOf(o.Origin.APIVersion, o.Origin.Kind)
	d := &document{object: o, id: fleet.Object{Object: *o}.ID()}
	if r == nil {
		return nil, fmt.Errorf("%s: %s %s", d.where(), o.Origin.Kind, dialect.Unkept(o.Origin.APIVersion, o.Origin.Kind))
	}
	var object map[string]any
	if err := yaml.Unmarshal(o.Original, &object, numbers); err != nil {
		return nil, fmt.Errorf("%s: %w", d.where(), err)
	}
	delete(object, "status")
	md, _ := object["metadata"].(map[string]any)
	if md == nil {
		return nil, fmt.Errorf("%s: metadata is missing", d.where())
	}
	for _, k := range []string{"managedFields", "resourceVersion", "uid", "generation", "creationTimestamp"} {
		delete(md, k) // of a manifest that `get -o yaml` of kubectl printed
	}
	if ns, _ := md["namespace"].(string); ns == "" && !r.ClusterScoped() {
		md["namespace"] = c.Namespace()
		d.id.Namespace = c.Namespace()
	}
	_, version, _ := strings.Cut(o.Origin.APIVersion, "/")
	d.at = resourceOf(r, version)
	if _, there := in.at[r]; !there {
		return nil, fmt.Errorf("%s: %s has no kind %s.%s: %s", d.where(), c.Name(), r.Plural, r.Group, install(o.Origin))
	}
	var err error
	d.body, err = json.Marshal(object)
	return d, err
}

func install(o service.Origin) string {
	if o.Dialect() == service.DialectRoundhouse {
		return "is Roundhouse installed there? `roundhouse manifests | kubectl apply --server-side -f -` installs it"
	}
	return "its CRDs are not installed: start the controller with --install-crds, or install the project's own"
}

// tryAll finds out what is there, and asks whether everything would be taken.
func (c *Client) tryAll(ctx context.Context, docs []*document, force bool) error {
	errs := make([]error, len(docs))
	var wait errgroup.Group
	wait.SetLimit(maxAtOnce)
	for i, d := range docs {
		wait.Go(func() error {
			now, err := c.get(ctx, d.at, d.id.Namespace, d.id.Name)
			switch {
			case err == nil:
				d.before = now.GetResourceVersion()
			case !Missing(err):
				errs[i] = fmt.Errorf("%s: %w", d.where(), err)
				return nil
			}
			_, errs[i] = c.patch(ctx, d, force, true)
			return nil
		})
	}
	_ = wait.Wait() // every error is in errs
	// One reason for all is said once.
	var unreachable *UnreachableError
	for _, err := range errs {
		if errors.As(err, &unreachable) || err != nil && ctx.Err() != nil {
			return err
		}
	}
	return errors.Join(errs...)
}

// patch applies one object, and returns the version it now has.
func (c *Client) patch(ctx context.Context, d *document, force, dry bool) (string, error) {
	o := metav1.PatchOptions{FieldManager: FieldManager, FieldValidation: metav1.FieldValidationStrict, Force: &force}
	if dry {
		o.DryRun = []string{metav1.DryRunAll}
	}
	now, err := call(ctx, c, "patch", d.at.words(d.id.Namespace), func(ctx context.Context) (*unstructured.Unstructured, error) {
		return c.on(d.at, d.id.Namespace).Patch(ctx, d.id.Name, types.ApplyPatchType, d.body, o)
	})
	if err != nil {
		return "", fmt.Errorf("%s: %w", d.where(), err)
	}
	return now.GetResourceVersion(), nil
}
