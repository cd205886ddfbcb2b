// Command generate writes the CRDs of roundhouse.dev from the Go types of
// api/v1alpha1: their fields by reflection, their descriptions from the types'
// doc comments, and what values they take from the tables that `roundhouse
// validate` reads with, so that the two agree. docs/design/crds.md explains why
// it is not controller-gen.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
)

// revision orders the CRDs of different releases: the greater is the newer.
// Raise it with the first change after a release.
const revision = "1"

// kind is one of ours.
type kind struct {
	name, plural, short string
	cluster             bool
	typ                 reflect.Type
	columns             []apiext.CustomResourceColumnDefinition
}

func column(name, path, typ string, priority int32) apiext.CustomResourceColumnDefinition {
	return apiext.CustomResourceColumnDefinition{Name: name, JSONPath: path, Type: typ, Priority: priority}
}

const (
	ready  = `.status.conditions[?(@.type=="Ready")]`
	engine = `.status.components[?(@.role=="engine")]`
	born   = ".metadata.creationTimestamp"
)

var age = column("Age", born, "date", 0)

var runtimeColumns = []apiext.CustomResourceColumnDefinition{
	column("Formats", ".spec.supportedModelFormats[*].name", "string", 0),
	column("Protocols", ".spec.protocolVersions", "string", 0),
	column("Disabled", ".spec.disabled", "boolean", 0),
	age,
}

var kinds = []kind{
	{api.KindModelService, "modelservices", "msvc", false, reflect.TypeFor[api.ModelService](), []apiext.CustomResourceColumnDefinition{
		column("Ready", ready+".status", "string", 0),
		column("Reason", ready+".reason", "string", 0),
		column("Runtime", ".status.runtime.name", "string", 0),
		column("Replicas", engine+".ready", "integer", 0),
		column("Desired", engine+".desired", "integer", 1),
		column("Revision", ".status.revision", "string", 1),
		column("URL", ".status.url", "string", 0),
		age,
	}},
	{api.KindServingRuntime, "servingruntimes", "rhsr", false, reflect.TypeFor[api.ServingRuntime](), runtimeColumns},
	{api.KindClusterServingRuntime, "clusterservingruntimes", "rhcsr", true, reflect.TypeFor[api.ClusterServingRuntime](), runtimeColumns},
	{api.KindRoute, "routes", "rhroute", false, reflect.TypeFor[api.Route](), []apiext.CustomResourceColumnDefinition{
		column("Ready", ready+".status", "string", 0),
		column("Reason", ready+".reason", "string", 0),
		column("Models", ".spec.models", "string", 0),
		column("Targets", ".spec.targets[*]['service','pool']", "string", 0),
		age,
	}},
	{api.KindPool, "pools", "rhpool", false, reflect.TypeFor[api.Pool](), []apiext.CustomResourceColumnDefinition{
		column("Ready", ready+".status", "string", 0),
		column("Reason", ready+".reason", "string", 0),
		column("Protocol", ".spec.protocol", "string", 0),
		column("Policy", ".spec.picker.preset", "string", 0),
		age,
	}},
	{api.KindReserve, "reserves", "rhreserve", false, reflect.TypeFor[api.Reserve](), []apiext.CustomResourceColumnDefinition{
		column("Ready", ready+".status", "string", 0),
		column("Reason", ready+".reason", "string", 0),
		column("Nodes", ".status.nodes", "integer", 0),
		column("Wanted", ".status.placeholders.wanted", "integer", 0),
		column("Running", ".status.placeholders.running", "integer", 0),
		column("Images", ".status.images.wanted", "integer", 1),
		column("Present", ".status.images.present", "integer", 1),
		age,
	}},
}

func main() {
	log.SetFlags(0)
	types := flag.String("types", "../../../../api/v1alpha1", "the folder of the Go `types`")
	out := flag.String("out", "../../../../deploy/crds", "the `folder` to write to")
	flag.Parse()
	if err := run(*types, *out); err != nil {
		log.Fatal(err)
	}
}

func run(types, out string) error {
	docs, err := readDocs(types)
	if err != nil {
		return err
	}
	g := &generator{docs: docs, rules: rules(), used: map[string]bool{}, inside: map[reflect.Type]bool{}}
	for _, k := range kinds {
		text, err := render(g.definition(k))
		if err != nil {
			return err
		}
		file := filepath.Join(out, strings.ToLower(k.name)+".yaml")
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return err
		}
	}
	for name := range g.rules {
		if !g.used[name] {
			return fmt.Errorf("a rule for %s, which no kind has", name)
		}
	}
	return nil
}

// definition is a kind's CRD.
func (g *generator) definition(k kind) *apiext.CustomResourceDefinition {
	group, version, _ := strings.Cut(api.APIVersion, "/")
	scope := apiext.NamespaceScoped
	if k.cluster {
		scope = apiext.ClusterScoped
	}
	root := g.object(k.typ)
	root.Properties["apiVersion"] = apiext.JSONSchemaProps{Type: "string"}
	root.Properties["kind"] = apiext.JSONSchemaProps{Type: "string"}
	if _, ruled := root.Properties["metadata"]; !ruled {
		root.Properties["metadata"] = apiext.JSONSchemaProps{Type: "object"}
	}
	root.Required = []string{"spec"}
	v := apiext.CustomResourceDefinitionVersion{
		Name: version, Served: true, Storage: true,
		AdditionalPrinterColumns: k.columns,
		Schema:                   &apiext.CustomResourceValidation{OpenAPIV3Schema: &root},
		Subresources:             &apiext.CustomResourceSubresources{Status: &apiext.CustomResourceSubresourceStatus{}},
	}
	return &apiext.CustomResourceDefinition{
		TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{
			Name:        k.plural + "." + group,
			Labels:      map[string]string{"app.kubernetes.io/name": "roundhouse", "app.kubernetes.io/part-of": "roundhouse"},
			Annotations: map[string]string{"roundhouse.dev/schema-revision": revision},
		},
		Spec: apiext.CustomResourceDefinitionSpec{
			Group: group, Scope: scope,
			Names: apiext.CustomResourceDefinitionNames{
				Kind: k.name, ListKind: k.name + "List", Plural: k.plural, Singular: strings.ToLower(k.name),
				ShortNames: []string{k.short}, Categories: []string{"roundhouse"},
			},
			Versions: []apiext.CustomResourceDefinitionVersion{v},
		},
	}
}

// render is a CRD's YAML, less the status that is the server's to write.
func render(crd *apiext.CustomResourceDefinition) ([]byte, error) {
	raw, err := json.Marshal(crd)
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, err
	}
	delete(fields, "status")
	delete(fields["metadata"].(map[string]any), "creationTimestamp")
	if raw, err = json.Marshal(fields); err != nil {
		return nil, err
	}
	var root yaml.Node // JSON is YAML, and keeps its order
	if err := yaml.Unmarshal(raw, &root); err != nil {
		return nil, err
	}
	fold(&root)
	var b bytes.Buffer
	b.WriteString("# Generated from api/v1alpha1 by go generate ./internal/edge/kube/crds; do not edit.\n")
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(&root); err != nil {
		return nil, err
	}
	return b.Bytes(), enc.Close()
}

// foldWidth is how long a mapping may be to stand on one line.
const foldWidth = 88

// fold makes block style of what JSON wrote, but for what is short. It returns
// about how long n is on one line.
func fold(n *yaml.Node) int {
	width := len(n.Value) + 2
	for _, c := range n.Content {
		width += fold(c)
	}
	n.Style = 0
	if width <= foldWidth && (n.Kind == yaml.MappingNode || n.Kind == yaml.SequenceNode) && len(n.Content) > 0 {
		n.Style = yaml.FlowStyle
	}
	return width
}
