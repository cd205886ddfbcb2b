package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// props is a schema; rule adds to one.
type (
	props = apiext.JSONSchemaProps
	rule  func(*props)
)

// generator makes schemas of Go types.
type generator struct {
	docs  map[string]string // "Type" or "Type.Field" → its comment
	rules map[string][]rule // "Type" or "Type.jsonName"
	used  map[string]bool
	// inside are the types whose schema is being made: one within itself has no
	// schema, since a definition cannot refer to itself.
	inside map[reflect.Type]bool
}

// readDocs reads the comments of a package's types and their fields. A field
// without one takes that of the field above, if that names it.
func readDocs(dir string) (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, errors.New("no Go files in " + dir)
	}
	out := map[string]string{}
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, src, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			d, ok := n.(*ast.GenDecl)
			if !ok || d.Tok != token.TYPE {
				return true
			}
			for _, s := range d.Specs {
				spec := s.(*ast.TypeSpec)
				out[spec.Name.Name] = sentence(d.Doc)
				if st, ok := spec.Type.(*ast.StructType); ok {
					fieldDocs(spec.Name.Name, st, out)
				}
			}
			return false
		})
	}
	return out, nil
}

func fieldDocs(owner string, st *ast.StructType, out map[string]string) {
	var above string
	for _, f := range st.Fields.List {
		for _, name := range f.Names {
			text := sentence(f.Doc)
			if text == "" && names(above, name.Name) {
				text = above
			}
			above = text
			out[owner+"."+name.Name] = text
		}
	}
}

// names reports whether a comment speaks of a field.
func names(text, field string) bool {
	for _, w := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" ,.;:", r) }) {
		if w == field {
			return true
		}
	}
	return false
}

func sentence(c *ast.CommentGroup) string { return strings.Join(strings.Fields(c.Text()), " ") }

var (
	preserve = true
	podSpec  = reflect.TypeFor[corev1.PodSpec]()
)

// free is an object of any fields: Kubernetes's own, which its own objects
// check when they are made, and the controller reads before.
func free() props { return props{Type: "object", XPreserveUnknownFields: &preserve} }

func list(items props) props {
	return props{Type: "array", Items: &apiext.JSONSchemaPropsOrArray{Schema: &items}}
}

// known are the types that are not taken apart.
var known = map[reflect.Type]func() props{
	reflect.TypeFor[metav1.Time]():                 func() props { return props{Type: "string", Format: "date-time"} },
	reflect.TypeFor[metav1.Duration]():             func() props { return props{Type: "string"} },
	reflect.TypeFor[resource.Quantity]():           func() props { return props{XIntOrString: true} },
	reflect.TypeFor[corev1.Probe]():                free,
	reflect.TypeFor[corev1.ResourceRequirements](): free,
	reflect.TypeFor[corev1.EnvVar]():               variable,
	reflect.TypeFor[metav1.Condition]():            condition,
}

// schema is that of a value of type t.
func (g *generator) schema(t reflect.Type) props {
	if t.Kind() == reflect.Pointer {
		return g.schema(t.Elem())
	}
	if f, ok := known[t]; ok {
		return f()
	}
	switch t.Kind() {
	case reflect.Struct:
		return g.object(t)
	case reflect.Slice:
		return list(g.schema(t.Elem()))
	case reflect.Map:
		value := g.schema(t.Elem())
		return props{Type: "object", AdditionalProperties: &apiext.JSONSchemaPropsOrBool{Allows: true, Schema: &value}}
	case reflect.String:
		return props{Type: "string"}
	case reflect.Bool:
		return props{Type: "boolean"}
	case reflect.Int, reflect.Int64:
		return props{Type: "integer", Format: "int64"}
	case reflect.Int32:
		return props{Type: "integer", Format: "int32"}
	case reflect.Float64:
		return props{Type: "number"}
	}
	panic(fmt.Sprintf("no schema for %s", t))
}

// object is a struct's schema, rules applied to its fields and then to itself.
func (g *generator) object(t reflect.Type) props {
	if g.inside[t] {
		return free()
	}
	g.inside[t] = true
	defer delete(g.inside, t)
	out := props{Type: "object", Description: g.docs[t.Name()], Properties: map[string]props{}}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Type == podSpec && t.Name() == "Node":
			// One side of a component: what a pod has is checked when one is made.
			out.XPreserveUnknownFields = &preserve
			out.Properties["containers"] = containers()
			continue
		case f.Type == podSpec:
			podFields(out.Properties)
			continue
		case name == "", name == "metadata":
			continue
		}
		p := g.schema(f.Type)
		if doc := g.docs[t.Name()+"."+f.Name]; doc != "" {
			p.Description = doc
		}
		g.apply(t.Name()+"."+name, &p)
		out.Properties[name] = p
	}
	g.apply(t.Name(), &out)
	return out
}

func (g *generator) apply(name string, p *props) {
	g.used[name] = true
	for _, r := range g.rules[name] {
		r(p)
	}
}

// podFields adds a pod's fields by name and type alone.
func podFields(into map[string]props) {
	for i := range podSpec.NumField() {
		f := podSpec.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		t := f.Type
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		switch t.Kind() {
		case reflect.Struct, reflect.Map:
			into[name] = free()
		case reflect.Slice:
			into[name] = list(free())
		case reflect.Bool:
			into[name] = props{Type: "boolean"}
		case reflect.String:
			into[name] = props{Type: "string"}
		default:
			into[name] = props{Type: "integer"}
		}
	}
	into["containers"] = containers()
}

// containers is a list of containers, as much of them as rules ask for.
func containers() props {
	port := free()
	port.Properties = map[string]props{"containerPort": {Type: "integer", Minimum: number(1), Maximum: number(65535)}}
	port.Required = []string{"containerPort"}
	c := free()
	c.Properties = map[string]props{
		"name":    {Type: "string", MaxLength: count(maxName)},
		"image":   {Type: "string"},
		"command": list(props{Type: "string"}),
		"args":    list(props{Type: "string"}),
		"env":     list(variable()),
		"ports":   list(port),
	}
	out := list(c)
	for _, r := range containerRules {
		r(&out)
	}
	return out
}

// variable is a corev1.EnvVar.
func variable() props {
	out := free()
	out.Properties = map[string]props{"name": {Type: "string", Pattern: `^[^=\x00]+$`}}
	out.Required = []string{"name"}
	return out
}

// condition is a metav1.Condition.
func condition() props {
	str := props{Type: "string"}
	return props{Type: "object", Properties: map[string]props{
		"type": str, "status": str, "reason": str, "message": str,
		"lastTransitionTime": {Type: "string", Format: "date-time"},
		"observedGeneration": {Type: "integer", Format: "int64"},
	}, Required: []string{"type", "status"}}
}

func number(n float64) *float64 { return &n }

func count(n int64) *int64 { return &n }
