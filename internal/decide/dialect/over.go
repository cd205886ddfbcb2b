package dialect

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/llmisvc"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// Over is what a service's manifest says once it is laid over its Bases, which find
// gives. The service's own is returned where it names none, and with an error where
// one is missing, or what comes of them is not valid.
func Over(o Object, find func(service.Key) (Object, bool), p Platform) (*service.Service, error) {
	if o.Service == nil || len(o.Service.Bases) == 0 {
		return o.Service, nil
	}
	var specs []map[string]any
	for i, name := range o.Service.Bases {
		base, err := named(o.Key.Namespace, name, find)
		if err != nil {
			return o.Service, fmt.Errorf("%s.name: %w", strict.Index("spec.baseRefs", i), err)
		}
		_, spec, err := sections(base)
		if err != nil {
			return o.Service, err
		}
		specs = append(specs, spec)
	}
	document, own, err := sections(o)
	if err != nil {
		return o.Service, err
	}
	merged, err := llmisvc.Merge(append(specs, own)...)
	if err != nil {
		return o.Service, err
	}
	delete(merged, "baseRefs")
	document["spec"] = merged
	raw, err := json.Marshal(document)
	if err != nil {
		return o.Service, fmt.Errorf("%s: %w", o.Key, err)
	}
	return reread(o, raw, p)
}

// reread reads a service's merged manifest.
func reread(o Object, raw []byte, p Platform) (*service.Service, error) {
	read := Read("", raw).Applied()
	var errs []error
	for _, bad := range read.Errors(p) {
		bad.Line = 0 // of a text that nobody has seen
		errs = append(errs, errors.New(bad.String()))
	}
	if len(errs) > 0 || len(read.Objects) != 1 || read.Objects[0].Service == nil {
		return o.Service, fmt.Errorf("laid over %s: %w", strings.Join(o.Service.Bases, ", "), errors.Join(errs...))
	}
	s := read.Objects[0].Service
	s.Meta, s.Bases = o.Service.Meta, o.Service.Bases
	return s, nil
}

// named finds the Base of a name for services of a namespace.
func named(namespace, name string, find func(service.Key) (Object, bool)) (Object, error) {
	var in []string
	for _, k := range BaseKeys(namespace, name) {
		if o, ok := find(k); ok {
			return o, nil
		}
		in = append(in, k.Namespace)
	}
	return Object{}, fmt.Errorf("no %s named %q in namespace %s: apply it", llmisvc.KindConfig, name, strings.Join(in, " or "))
}

// BaseKeys are those of the Bases that a service of a namespace may mean by a name,
// the first that there is.
func BaseKeys(namespace, name string) (out []service.Key) {
	for _, ns := range llmisvc.Namespaces(namespace) {
		out = append(out, service.Key{Namespace: ns, Name: name})
	}
	return out
}

// ConfigMapKeys are those of the ConfigMaps that a service of a namespace may mean by a
// name, the first that there is.
func ConfigMapKeys(namespace, name string) (out []service.Key) {
	for _, ns := range llmisvc.SchedulerNamespaces(namespace, name) {
		out = append(out, service.Key{Namespace: ns, Name: name})
	}
	return out
}

// sections is an object's document without its spec, and the spec.
func sections(o Object) (document, spec map[string]any, err error) {
	root, bad := parse(o.Original)
	if bad != nil || root == nil || root.Kind != yaml.MappingNode {
		return nil, nil, fmt.Errorf("%s %s: its stored manifest cannot be parsed: apply it again", o.Kind, o.Key)
	}
	var v map[string]any
	if err := without(root, "status").Decode(&v); err != nil {
		return nil, nil, fmt.Errorf("%s %s: %w", o.Kind, o.Key, err)
	}
	raw, err := json.Marshal(v) // numbers and lists as JSON has them
	if err == nil {
		err = json.Unmarshal(raw, &document)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s %s: %w", o.Kind, o.Key, err)
	}
	spec, _ = document["spec"].(map[string]any)
	delete(document, "spec")
	return document, spec, nil
}
