package crds

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// definition is another project's kind, as far as a stand-in needs to know.
// versions are served all, the first is stored: the one the project stores.
type definition struct {
	group, kind, plural string
	versions            []string
	short               string
	cluster             bool
}

const (
	kserve = "serving.kserve.io"
	ome    = "ome.io"
	gie    = "inference.networking.k8s.io"
	gieX   = "inference.networking.x-k8s.io"
	llmd   = "llm-d.ai"
)

// projects are the kinds that are read, by the name of their project.
var projects = map[string][]definition{
	"kserve": {
		{kserve, "InferenceService", "inferenceservices", []string{"v1beta1"}, "isvc", false},
		{kserve, "ServingRuntime", "servingruntimes", []string{"v1alpha1"}, "", false},
		{kserve, "ClusterServingRuntime", "clusterservingruntimes", []string{"v1alpha1"}, "", true},
		{kserve, "TrainedModel", "trainedmodels", []string{"v1alpha1"}, "tm", false},
		{kserve, "ClusterStorageContainer", "clusterstoragecontainers", []string{"v1alpha1"}, "", true},
		{kserve, "LocalModelCache", "localmodelcaches", []string{"v1alpha1"}, "", true},
		{kserve, "LocalModelNamespaceCache", "localmodelnamespacecaches", []string{"v1alpha1"}, "", false},
		{kserve, "LocalModelNodeGroup", "localmodelnodegroups", []string{"v1alpha1"}, "", true},
		{kserve, "InferenceGraph", "inferencegraphs", []string{"v1alpha1"}, "ig", false},
		{kserve, "LLMInferenceService", "llminferenceservices", []string{"v1alpha2", "v1alpha1"}, "llmisvc", false},
		{kserve, "LLMInferenceServiceConfig", "llminferenceserviceconfigs", []string{"v1alpha2", "v1alpha1"}, "", false},
	},
	"ome": {
		{ome, "InferenceService", "inferenceservices", []string{"v1beta1"}, "isvc", false},
		{ome, "ServingRuntime", "servingruntimes", []string{"v1beta1"}, "", false},
		{ome, "ClusterServingRuntime", "clusterservingruntimes", []string{"v1beta1"}, "", true},
		{ome, "BaseModel", "basemodels", []string{"v1beta1"}, "", false},
		{ome, "ClusterBaseModel", "clusterbasemodels", []string{"v1beta1"}, "", true},
		{ome, "FineTunedWeight", "finetunedweights", []string{"v1beta1"}, "", true},
		{ome, "AcceleratorClass", "acceleratorclasses", []string{"v1beta1"}, "", true},
		{ome, "BenchmarkJob", "benchmarkjobs", []string{"v1beta1"}, "", false},
	},
	"gie": {
		{gie, "InferencePool", "inferencepools", []string{"v1"}, "infpool", false},
		{gieX, "InferencePool", "inferencepools", []string{"v1alpha2"}, "xinfpool", false},
		{gieX, "InferencePoolImport", "inferencepoolimports", []string{"v1alpha1"}, "infpimp", false},
		{gieX, "InferenceModel", "inferencemodels", []string{"v1alpha2"}, "infmodel", false},
		{gieX, "InferenceObjective", "inferenceobjectives", []string{"v1alpha2"}, "", false},
		{gieX, "InferenceModelRewrite", "inferencemodelrewrites", []string{"v1alpha2"}, "", false},
	},
	"llm-d": {
		{llmd, "InferenceObjective", "inferenceobjectives", []string{"v1alpha2"}, "", false},
		{llmd, "InferenceModelRewrite", "inferencemodelrewrites", []string{"v1alpha2"}, "", false},
	},
	"seldon": {
		{"machinelearning.seldon.io", "SeldonDeployment", "seldondeployments", []string{"v1", "v1alpha2", "v1alpha3"}, "sdep", false},
	},
}

// Projects names the projects that there are stand-ins for.
func Projects() []string { return slices.Sorted(maps.Keys(projects)) }

// Foreign are the stand-ins for a project's definitions.
func Foreign(project string) ([]*unstructured.Unstructured, error) {
	ds, ok := projects[project]
	if !ok {
		return nil, fmt.Errorf("there are no CRDs for %q: write some of %s", project, strings.Join(Projects(), ", "))
	}
	var out []*unstructured.Unstructured
	for _, d := range ds {
		out = append(out, standIn(d))
	}
	return out, nil
}

// standInText tells a stand-in from the definition that took its place.
const standInText = "Any fields: a stand-in made by Roundhouse, which the project's own definition may replace."

// standIn is a definition that takes any fields.
func standIn(d definition) *unstructured.Unstructured {
	scope := "Namespaced"
	if d.cluster {
		scope = "Cluster"
	}
	names := map[string]any{"kind": d.kind, "listKind": d.kind + "List", "plural": d.plural, "singular": strings.ToLower(d.kind)}
	if d.short != "" {
		names["shortNames"] = []any{d.short}
	}
	anything := func() map[string]any {
		return map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	}
	var versions []any
	for i, v := range d.versions {
		root := map[string]any{"type": "object", "description": standInText,
			"properties": map[string]any{"spec": anything(), "status": anything()}}
		versions = append(versions, map[string]any{
			"name": v, "served": true, "storage": i == 0,
			"schema":       map[string]any{"openAPIV3Schema": root},
			"subresources": map[string]any{"status": map[string]any{}},
			"additionalPrinterColumns": []any{
				map[string]any{"name": "Ready", "type": "string", "jsonPath": `.status.conditions[?(@.type=="Ready")].status`},
				map[string]any{"name": "URL", "type": "string", "jsonPath": ".status.url"},
				map[string]any{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
			},
		})
	}
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"group": d.group, "scope": scope, "names": names, "versions": versions,
	}}}
	u.SetGroupVersionKind(gvk)
	u.SetName(d.plural + "." + d.group)
	u.SetLabels(map[string]string{LabelPermissive: "true"})
	notes := map[string]string{AnnotationRevision: "1"}
	if strings.HasSuffix(d.group, ".k8s.io") {
		// The API server asks it of every group of Kubernetes' own domain.
		notes["api-approved.kubernetes.io"] = "unapproved, a stand-in made by Roundhouse"
	}
	u.SetAnnotations(notes)
	return u
}

// Permissive reports whether a definition is a stand-in of ours still, and not
// the project's own, applied over it.
func Permissive(u *unstructured.Unstructured) bool {
	if u.GetLabels()[LabelPermissive] != "true" {
		return false
	}
	versions, _, _ := unstructured.NestedSlice(u.Object, "spec", "versions")
	for _, v := range versions {
		v, _ := v.(map[string]any)
		text, _, _ := unstructured.NestedString(v, "schema", "openAPIV3Schema", "description")
		if text != standInText {
			return false
		}
	}
	return len(versions) > 0
}
