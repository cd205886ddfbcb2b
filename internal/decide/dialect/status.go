package dialect

import (
	"bytes"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/gateway"
	"roundhouse.dev/roundhouse/internal/decide/dialect/kserve"
	"roundhouse.dev/roundhouse/internal/decide/dialect/llmisvc"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/ome"
	"roundhouse.dev/roundhouse/internal/decide/dialect/own"
	"roundhouse.dev/roundhouse/internal/decide/dialect/secrets"
	"roundhouse.dev/roundhouse/internal/decide/dialect/seldon"
)

// Status is a service's status in the words of the dialect it was written in:
// what goes under "status:" of its manifest. The map is the caller's.
func Status(origin service.Origin, st service.Status) map[string]any {
	switch origin.Dialect() {
	case service.DialectKServe:
		if origin.Kind == llmisvc.KindService {
			return llmisvc.Status(st)
		}
		if origin.Kind == kserve.KindTrainedModel {
			return kserve.TrainedStatus(st)
		}
		return kserve.Status(st)
	case service.DialectOME:
		return ome.Status(st)
	case service.DialectSeldon:
		return seldon.Status(st)
	}
	return own.Status(st)
}

// Render is an object's manifest as it was written, comments and order
// included, with its status in place of any it had; nil leaves the status out.
// uris are the model files' URIs to write for those in the manifest: a relative
// path would name another file where the text is applied again.
func Render(o Object, uris map[string]string, st *service.Status) ([]byte, error) {
	if st == nil {
		return render(o, uris, nil)
	}
	return render(o, uris, Status(o.Origin, *st))
}

// render is Render with the status as it is to stand there, nil for none.
func render(o Object, uris map[string]string, status map[string]any) ([]byte, error) {
	if o.Secret != nil {
		return yaml.Marshal(secrets.Redacted(o.Secret))
	}
	root, bad := parse(o.Original)
	if bad != nil || root == nil || root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("render %s %s: its stored manifest cannot be parsed: apply it again", o.Kind, o.Key)
	}
	root = without(root, "status")
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value == "spec" {
			replaceURIs(root.Content[i+1], uris)
		}
	}
	if status != nil {
		var v yaml.Node
		if err := v.Encode(status); err != nil {
			return nil, fmt.Errorf("render %s %s: %w", o.Kind, o.Key, err)
		}
		root.Style &^= yaml.FlowStyle
		root.Content = append(root.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: "status"}, &v)
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil {
		return nil, fmt.Errorf("render %s %s: %w", o.Kind, o.Key, err)
	}
	return b.Bytes(), enc.Close()
}

// replaceURIs writes other URIs of model files below a node.
func replaceURIs(n *yaml.Node, uris map[string]string) {
	for i, child := range n.Content {
		replaceURIs(child, uris)
		if n.Kind != yaml.MappingNode || i%2 == 0 || !slices.Contains([]string{"uri", "storageUri", "modelUri"}, n.Content[i-1].Value) {
			continue
		}
		if child.Kind == yaml.AliasNode {
			if at, ok := uris[child.Alias.Value]; ok {
				n.Content[i] = &yaml.Node{Kind: yaml.ScalarNode, Value: at, LineComment: child.LineComment}
			}
		} else if at, ok := uris[child.Value]; ok {
			child.Value = at
		}
	}
}

// ReadStatus is the reverse of Status: it reads a status written in a dialect.
// Only our own has every field; the others leave out what they have no field
// for. What cannot be read, or was written by others in other shapes, is left
// out too: nothing is decided by a status.
func ReadStatus(origin service.Origin, status any) service.Status {
	switch origin.Dialect() {
	case service.DialectKServe:
		if origin.Kind == llmisvc.KindService {
			return llmisvc.ReadStatus(status)
		}
		return kserve.ReadStatus(status)
	case service.DialectOME:
		return ome.ReadStatus(status)
	case service.DialectSeldon:
		return seldon.ReadStatus(status)
	}
	return own.ReadStatus(status)
}

// GatewayController is who writes the status of Gateway API objects.
const GatewayController = gateway.Controller

// RoutingStatus is a routing object's status in the words of its own kind: what
// goes under "status:" of its manifest. The map is the caller's.
func RoutingStatus(o routing.Object, st routing.Status) map[string]any { return gateway.Status(o, st) }

// ReadRoutingStatus is the other way of RoutingStatus.
func ReadRoutingStatus(o routing.Object, status any) routing.Status {
	return gateway.ReadStatus(o, status)
}

// CacheStatus is a ModelCache's status in the words of its kind. The map is the caller's.
func CacheStatus(st service.CacheStatus) map[string]any { return kserve.CacheStatus(st) }

// ReadCacheStatus is the other way of CacheStatus.
func ReadCacheStatus(status any) service.CacheStatus { return kserve.ReadCacheStatus(status) }

// RenderCache is Render for a ModelCache.
func RenderCache(o Object, st service.CacheStatus) ([]byte, error) {
	return render(o, nil, kserve.CacheStatus(st))
}

// RenderRouting is Render for a routing object.
func RenderRouting(o manifest.Object, st routing.Status) ([]byte, error) {
	return render(o, nil, RoutingStatus(o.Routing, st))
}
