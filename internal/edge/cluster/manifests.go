package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// Manifest is one manifest in the API, read into the hub.
type Manifest struct {
	fleet.Object
	// Status is what stands there, in the words of the manifest's dialect.
	Status     any
	Generation int64
	// Problems are why the manifest cannot be read; Object then has its names
	// alone.
	Problems []string
	// Written says that our controller has written the status.
	Written bool

	written map[string]any // as Authored
}

// Rendered is the manifest as YAML, with its status.
func (m *Manifest) Rendered() string {
	doc := map[string]any{}
	for k, v := range m.written {
		doc[k] = v
	}
	if m.Status != nil {
		doc["status"] = m.Status
	}
	out, err := encodeYAML(doc)
	if err != nil {
		return "# " + err.Error() + "\n"
	}
	return string(out)
}

// installed are the kinds of manifests that the cluster has, in the version to
// ask for. It is asked once.
type installed struct {
	once  sync.Once
	err   error
	at    map[*dialect.Resource]resource
	group map[string]bool
}

// kinds finds out which kinds of manifests there are, and which of the other
// groups that are asked.
func (c *Client) kinds(ctx context.Context) (*installed, error) {
	in := &c.installed
	in.once.Do(func() { in.err = c.discover(ctx, in) })
	return in, in.err
}

func (c *Client) discover(ctx context.Context, in *installed) error {
	var groups struct {
		Groups []struct {
			Name     string `json:"name"`
			Versions []struct {
				Version string `json:"version"`
			} `json:"versions"`
		} `json:"groups"`
	}
	err := c.call(ctx, request{method: http.MethodGet, path: "/apis", verb: "list", what: "API groups"}, &groups)
	if err != nil {
		return err
	}
	in.at, in.group = map[*dialect.Resource]resource{}, map[string]bool{}
	var mu sync.Mutex
	var wait errgroup.Group
	wait.SetLimit(maxAtOnce)
	for _, g := range groups.Groups {
		in.group[g.Name] = true
		for _, v := range g.Versions {
			wanted := slices.ContainsFunc(dialect.Resources, func(r dialect.Resource) bool {
				return r.Group == g.Name && slices.Contains(r.Versions, v.Version)
			})
			if !wanted {
				continue
			}
			wait.Go(func() error {
				var list struct {
					Resources []struct {
						Name string `json:"name"`
					} `json:"resources"`
				}
				err := c.call(ctx, request{method: http.MethodGet, path: "/apis/" + g.Name + "/" + v.Version, verb: "list", what: "kinds of " + g.Name}, &list)
				if Missing(err) {
					return nil // gone since
				}
				mu.Lock()
				defer mu.Unlock()
				for _, r := range list.Resources {
					in.note(g.Name, v.Version, r.Name)
				}
				return err
			})
		}
	}
	return wait.Wait()
}

// note remembers that a kind is served, in the preferred of the versions read.
func (in *installed) note(group, version, plural string) {
	for i := range dialect.Resources {
		r := &dialect.Resources[i]
		if r.Group != group || r.Plural != plural || !slices.Contains(r.Versions, version) {
			continue
		}
		if before, there := in.at[r]; there && slices.Index(r.Versions, before.version) < slices.Index(r.Versions, version) {
			continue
		}
		in.at[r] = resource{group: group, version: version, plural: plural, clusterScoped: r.ClusterScoped()}
	}
}

// maxAtOnce is how many calls are under way at once.
const maxAtOnce = 8

// meta is the metadata of any object.
type meta struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace"`
	ResourceVersion string            `json:"resourceVersion"`
	Generation      int64             `json:"generation"`
	Created         time.Time         `json:"creationTimestamp"`
	Deleted         *time.Time        `json:"deletionTimestamp"`
	Labels          map[string]string `json:"labels"`
	Annotations     map[string]string `json:"annotations"`
	Managed         []struct {
		Manager     string `json:"manager"`
		Subresource string `json:"subresource"`
	} `json:"managedFields"`
}

// writtenBy says whether a field manager has written the object's status.
func (m *meta) writtenBy(manager string) bool {
	for _, f := range m.Managed {
		if f.Manager == manager && f.Subresource == "status" {
			return true
		}
	}
	return false
}

// annotationApplied is kubectl's copy of what it applied.
const annotationApplied = "kubectl.kubernetes.io/last-applied-configuration"

// manifest reads an object of the API.
func manifest(r *dialect.Resource, at resource, raw json.RawMessage) (*Manifest, error) {
	var object map[string]any
	var head struct {
		Metadata meta `json:"metadata"`
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&object); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, err
	}
	object["apiVersion"], object["kind"] = at.group+"/"+at.version, r.Kind // lists leave them out
	m := &Manifest{Status: object["status"], Generation: head.Metadata.Generation, written: dialect.Authored(object, annotationApplied)}
	m.Written = head.Metadata.writtenBy(shape.FieldManager)
	doc, err := json.Marshal(m.written)
	if err != nil {
		return nil, err
	}
	read := dialect.Read("", doc).Applied()
	for _, p := range read.Errors(dialect.Kubernetes) {
		p.Line = 0 // of a document nobody has seen
		m.Problems = append(m.Problems, p.String())
	}
	if len(m.Problems) > 0 || len(read.Objects) != 1 {
		m.Object.Object = unread(r, at, head.Metadata)
		return m, nil
	}
	m.Object.Object = read.Objects[0]
	m.Origin.Line = 0
	m.SetCreated(head.Metadata.Created)
	return m, nil
}

// unread is a manifest of which only the names are known.
func unread(r *dialect.Resource, at resource, md meta) dialect.Object {
	k := service.Key{Namespace: md.Namespace, Name: md.Name}
	origin := service.Origin{APIVersion: at.group + "/" + at.version, Kind: r.Kind}
	common := service.Meta{Key: k, Origin: origin, Created: md.Created}
	o := dialect.Object{Origin: origin, Key: k}
	switch r.ID {
	case "service":
		o.Kind, o.Service = dialect.KindService, &service.Service{Meta: common}
	case "runtime":
		o.Kind, o.Runtime = dialect.KindRuntime, &service.Runtime{Meta: common}
	case "model":
		o.Kind, o.Model = dialect.KindModel, &service.Model{Meta: common}
	case "weight":
		o.Kind, o.Model = dialect.KindModel, &service.Model{Meta: common, FineTuned: &service.FineTuned{}}
	}
	return o
}

// Manifests lists those of the kinds of an ID ("service", "runtime", "model",
// "" for routing), of one namespace and the cluster or, with "", of all. What
// may not be listed is left out and said in refused; where nothing may be, that
// is the error.
func (c *Client) Manifests(ctx context.Context, id, namespace string) (out []*Manifest, refused []error, err error) {
	in, err := c.kinds(ctx)
	if err != nil {
		return nil, nil, err
	}
	var mu sync.Mutex
	var wait errgroup.Group
	wait.SetLimit(maxAtOnce)
	asked := 0
	for r, at := range in.at {
		if routed := r.Status == dialect.OfRouting; routed != (id == "") || id != "" && r.ID != id {
			continue
		}
		asked++
		wait.Go(func() error {
			items, err := list[json.RawMessage](ctx, c, at, namespace, nil)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case Missing(err):
				return nil
			case forbidden(err):
				refused = append(refused, err)
				return nil
			case err != nil:
				return err
			}
			for _, raw := range items {
				m, err := manifest(r, at, raw)
				if err != nil {
					return fmt.Errorf("%s: %w", at.words(namespace), err)
				}
				if m.Kind != "" { // routing objects that cannot be read have no shape to show
					out = append(out, m)
				}
			}
			return nil
		})
	}
	if err := wait.Wait(); err != nil {
		return nil, nil, err
	}
	slices.SortFunc(refused, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	if len(refused) == asked && asked > 0 {
		return nil, nil, refused[0]
	}
	slices.SortFunc(out, func(a, b *Manifest) int {
		return strings.Compare(a.Key.String()+" "+a.Origin.APIVersion+a.Origin.Kind, b.Key.String()+" "+b.Origin.APIVersion+b.Origin.Kind)
	})
	return out, refused, nil
}

// Find gets the manifests of a name: of one kind of an ID there may be several,
// of different projects. None is an error.
func (c *Client) Find(ctx context.Context, id string, k service.Key) ([]*Manifest, error) {
	in, err := c.kinds(ctx)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var out []*Manifest
	var refused error
	var wait errgroup.Group
	wait.SetLimit(maxAtOnce)
	asked := 0
	for r, at := range in.at {
		if r.ID != id || r.ClusterScoped() != (k.Namespace == "") {
			continue
		}
		asked++
		wait.Go(func() error {
			var raw json.RawMessage
			err := c.call(ctx, request{method: http.MethodGet, path: at.path(k.Namespace, k.Name), verb: "get", what: at.words(k.Namespace)}, &raw)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case Missing(err):
				return nil
			case forbidden(err):
				refused = err
				return nil
			case err != nil:
				return err
			}
			m, err := manifest(r, at, raw)
			if err == nil && m.Kind != "" {
				out = append(out, m)
			}
			return err
		})
	}
	if err := wait.Wait(); err != nil {
		return nil, err
	}
	switch {
	case len(out) > 0:
		slices.SortFunc(out, func(a, b *Manifest) int { return a.Created().Compare(b.Created()) })
		return out, nil
	case refused != nil:
		return nil, refused
	case asked == 0:
		return nil, fmt.Errorf("%s has no kind of a %s: is Roundhouse installed there? `roundhouse manifests | kubectl apply --server-side -f -` installs it", c.Name(), id)
	}
	return nil, &fleet.NotFoundError{ID: fleet.ID{Kind: id, Key: k}}
}

// Delete removes an object; what it made goes with it.
func (c *Client) Delete(ctx context.Context, origin service.Origin, k service.Key) error {
	r := dialect.ResourceOf(origin.APIVersion, origin.Kind)
	if r == nil {
		return fmt.Errorf("delete %s: %s %s is no kind that is read", k, origin.APIVersion, origin.Kind)
	}
	_, version, _ := strings.Cut(origin.APIVersion, "/")
	at := resource{group: r.Group, version: version, plural: r.Plural, clusterScoped: r.ClusterScoped()}
	err := c.call(ctx, request{method: http.MethodDelete, path: at.path(k.Namespace, k.Name), verb: "delete", what: at.words(k.Namespace),
		body: []byte(`{"apiVersion":"v1","kind":"DeleteOptions","propagationPolicy":"Background"}`), content: "application/json"}, nil)
	if Missing(err) {
		return &fleet.NotFoundError{ID: fleet.ID{Kind: r.ID, Key: k}}
	}
	return err
}
