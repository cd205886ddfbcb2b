package dialect

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Edit is a change that people ask for by a command instead of by a manifest.
type Edit struct {
	// Stop switches a service off, or on again; nil leaves that as it is.
	Stop *bool
	// Min and Max are the bounds of the replicas of Component; nil leaves one as it is.
	Min, Max  *int
	Component service.Role
	// Restart is when all replicas are asked to be replaced; zero leaves them.
	Restart time.Time
}

// Patch returns a JSON merge patch (RFC 7386) that makes an edit in the fields of
// the service's own kind.
func (e Edit) Patch(o Object) (map[string]any, error) {
	out := map[string]any{}
	if e.Stop != nil {
		set(out, stopAt(o.Origin), e.stop(o.Origin))
	}
	if !e.Restart.IsZero() {
		set(out, []string{"metadata", "annotations", service.AnnotationRestarted}, e.Restart.UTC().Format(time.RFC3339Nano))
	}
	if e.Min == nil && e.Max == nil {
		return out, nil
	}
	at, err := replicasAt(o, e.Component)
	if err != nil {
		return nil, err
	}
	for name, n := range map[string]*int{"minReplicas": e.Min, "maxReplicas": e.Max} {
		if n != nil {
			set(out, append(slices.Clone(at), name), *n)
		}
	}
	return out, nil
}

// stopAt is where a kind says that it is switched off.
func stopAt(o service.Origin) []string {
	switch o.Dialect() {
	case service.DialectRoundhouse:
		return []string{"spec", "stopped"}
	case service.DialectKServe:
		return []string{"metadata", "annotations", service.AnnotationKServeStop}
	}
	return []string{"metadata", "annotations", service.AnnotationStop}
}

// stop is what stands there; nil removes it.
func (e Edit) stop(o service.Origin) any {
	switch {
	case !*e.Stop:
		return nil
	case o.Dialect() == service.DialectRoundhouse:
		return true
	}
	return "true"
}

// replicasAt is where a kind has the bounds of a component's replicas.
func replicasAt(o Object, role service.Role) ([]string, error) {
	if role == "" {
		role = service.RoleEngine
	}
	if o.Service == nil || o.Service.Components.Get(role) == nil {
		return nil, fmt.Errorf("%s has no component %s", o.Key, role)
	}
	part := string(role)
	switch o.Origin.Dialect() {
	case service.DialectRoundhouse:
		return []string{"spec", part, "scaling"}, nil
	case service.DialectKServe:
		if role == service.RoleEngine {
			part = "predictor"
		}
		return []string{"spec", part}, nil
	case service.DialectOME:
		if root, bad := parse(o.Original); bad == nil && role == service.RoleEngine && has(root, []string{"spec", "predictor"}) {
			part = "predictor"
		}
		return []string{"spec", part}, nil
	}
	return nil, fmt.Errorf("the replicas of a %s stand in a list: change its manifest and apply that", o.Origin.Kind)
}

func set(tree map[string]any, path []string, v any) {
	for _, key := range path[:len(path)-1] {
		next, ok := tree[key].(map[string]any)
		if !ok {
			next = map[string]any{}
			tree[key] = next
		}
		tree = next
	}
	tree[path[len(path)-1]] = v
}

// Merge returns a manifest with a merge patch made in it, comments and order kept.
// null removes a field. The result is YAML, also of a manifest in JSON.
func Merge(original []byte, patch map[string]any) ([]byte, error) {
	root, bad := parse(original)
	switch {
	case bad != nil:
		return nil, errors.New(bad.Message)
	case root == nil || root.Kind != yaml.MappingNode:
		return nil, errors.New("the manifest is no mapping")
	}
	if err := merge(root, patch); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), enc.Close()
}

func merge(n *yaml.Node, patch map[string]any) error {
	for _, key := range slices.Sorted(maps.Keys(patch)) {
		at := child(n, key)
		inner, deeper := patch[key].(map[string]any)
		switch {
		case child(n, "<<") >= 0, at >= 0 && n.Content[at].Kind == yaml.AliasNode:
			return fmt.Errorf("%s stands in a part that YAML's aliases share: write that part out, or change the manifest and apply it", key)
		case patch[key] == nil:
			if at >= 0 {
				n.Content = slices.Delete(n.Content, at-1, at+1)
			}
			continue
		case deeper && at >= 0 && n.Content[at].Kind == yaml.MappingNode:
			if n.Content[at].Anchor != "" {
				return fmt.Errorf("%s is shared by YAML's aliases: write it out, or change the manifest and apply it", key)
			}
			if err := merge(n.Content[at], inner); err != nil {
				return err
			}
			continue
		}
		v := &yaml.Node{Kind: yaml.MappingNode}
		if deeper {
			if err := merge(v, inner); err != nil {
				return err
			}
			if len(v.Content) == 0 {
				continue // nothing but removals
			}
		} else if err := v.Encode(patch[key]); err != nil {
			return err
		}
		if at >= 0 {
			v.LineComment, n.Content[at] = n.Content[at].LineComment, v
			continue
		}
		if len(n.Content) == 0 {
			n.Style &^= yaml.FlowStyle // {} has nothing to stay on the line with
		}
		n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, v)
	}
	return nil
}

// Unstated returns what of a merge patch a manifest says nothing of: what stays of
// earlier commands when it is applied again. Removals do not stay: what the manifest
// states holds. It is nil where nothing stays.
func Unstated(original []byte, patch map[string]any) map[string]any {
	root, bad := parse(original)
	if bad != nil || root == nil {
		return nil
	}
	return unstated(root, patch, nil)
}

func unstated(root *yaml.Node, patch map[string]any, path []string) map[string]any {
	var out map[string]any
	keep := func(key string, v any) {
		if out == nil {
			out = map[string]any{}
		}
		out[key] = v
	}
	for key, v := range patch {
		at := append(slices.Clone(path), key)
		switch inner, deeper := v.(map[string]any); {
		case deeper:
			if rest := unstated(root, inner, at); rest != nil {
				keep(key, rest)
			}
		case v != nil && !has(root, at):
			keep(key, v)
		}
	}
	return out
}

// Combine returns one merge patch that does what two do, one after the other.
func Combine(first, second map[string]any) map[string]any {
	out := maps.Clone(first)
	if out == nil {
		out = map[string]any{}
	}
	for key, v := range second {
		inner, deeper := v.(map[string]any)
		if before, both := out[key].(map[string]any); both && deeper {
			v = Combine(before, inner)
		}
		out[key] = v
	}
	return out
}

// child is the index of a key's value in a mapping, -1 without it.
func child(n *yaml.Node, key string) int {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return i + 1
		}
	}
	return -1
}

// has reports whether a manifest has a field at a path.
func has(n *yaml.Node, path []string) bool {
	for _, key := range path {
		if n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		at := -1
		if n.Kind == yaml.MappingNode {
			at = child(n, key)
		}
		if at < 0 {
			return false
		}
		n = n.Content[at]
	}
	return true
}
