package dialect

import (
	"bytes"
	"fmt"

	"go.yaml.in/yaml/v3"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/gateway"
	"roundhouse.dev/roundhouse/internal/decide/dialect/kserve"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/ome"
	"roundhouse.dev/roundhouse/internal/decide/dialect/own"
	"roundhouse.dev/roundhouse/internal/decide/dialect/seldon"
)

// Status is a service's status in the words of the dialect it was written in:
// what goes under "status:" of its manifest. The map is the caller's.
func Status(origin service.Origin, st service.Status) map[string]any {
	switch origin.Dialect() {
	case service.DialectKServe:
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
func Render(o Object, st *service.Status) ([]byte, error) {
	if st == nil {
		return render(o, nil)
	}
	return render(o, Status(o.Origin, *st))
}

// render is Render with the status as it is to stand there, nil for none.
func render(o Object, status map[string]any) ([]byte, error) {
	root, bad := parse(o.Original)
	if bad != nil || root == nil || root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("render %s %s: its stored manifest cannot be parsed: apply it again", o.Kind, o.Key)
	}
	root = without(root, "status")
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

// ReadStatus is the other way of Status: what a status in the words of a
// dialect says. Our own says all; the others' leave out what they have no words
// for. What cannot be read, or was written by others in other shapes, is left
// out too: nothing is decided by a status.
func ReadStatus(origin service.Origin, status any) service.Status {
	switch origin.Dialect() {
	case service.DialectKServe:
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

// RenderRouting is Render for a routing object.
func RenderRouting(o manifest.Object, st routing.Status) ([]byte, error) {
	return render(o, RoutingStatus(o.Routing, st))
}
