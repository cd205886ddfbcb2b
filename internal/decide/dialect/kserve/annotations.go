package kserve

import (
	"maps"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/credentials"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// accelerator names the GPUs of the nodes on Google's clusters that a service's pods
// run on.
const (
	accelerator      = manifest.KServePrefix + "gke-accelerator"
	acceleratorLabel = "cloud.google.com/gke-accelerator"
)

// Kinds are those of KServe's that an annotation may stand on, with their components.
type Kinds uint8

// The kinds.
const (
	OnService Kinds = 1 << iota
	OnLLM
	OnRuntime
	OnGraph
)

var kindNames = []string{"InferenceService", "LLMInferenceService", "runtimes", "InferenceGraph"}

// String lists them as docs/manifests.md does.
func (k Kinds) String() string {
	var names []string
	for i, name := range kindNames {
		if k&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// Annotation is one of KServe's.
type Annotation struct {
	// On are the kinds that may have it.
	On Kinds
	// Lacks is why it has no effect here; "" for one that is read, or needs no effect.
	Lacks string
}

// Annotations are KServe's, as its packages constants, credentials and llmisvc have
// them, but for those that its controller alone writes with the prefix
// "internal.serving.kserve.io/". docs/manifests.md has the same table.
var Annotations = func() map[string]Annotation {
	const (
		ports   = "the metrics of a replica are at its own port"
		noStore = "a logger sends to its `url`, and needs no secret"
		claims  = "write `resourceClaims` into the pod, which name a ResourceClaimTemplate of yours"
	)
	const both = OnService | OnLLM
	out := map[string]Annotation{
		"prometheus.kserve.io/path":                      {both | OnRuntime, ""},
		"prometheus.kserve.io/port":                      {both | OnRuntime, ""},
		"storage.kserve.io/readonly":                     {OnService, "a container cannot write to its model"},
		"serving.knative.dev/rollout-duration":           {OnService, "a rollout goes on as soon as the new replicas are ready"},
		"serving.knative.openshift.io/enablePassthrough": {OnService, "it is of OpenShift's Knative"},
	}
	for name, a := range map[string]Annotation{
		"autoscalerClass":             {both | OnRuntime, ""},
		"deploymentMode":              {OnService | OnGraph, ""},
		"disable-auto-update":         {OnService, "a service follows the changes of its runtime"},
		"disable-localmodel":          {both, ""},
		"enable-metric-aggregation":   {OnService | OnRuntime, ports},
		"enable-prometheus-scraping":  {OnService | OnRuntime, ports},
		"enable-served-by-header":     {OnLLM, "answers do not name the service"},
		"enable-tag-routing":          {OnService, "a canary is reached by its share of the traffic alone"},
		"exp-dra-cel-selector":        {OnLLM, claims},
		"exp-dra-container-name":      {OnLLM, claims},
		"exp-dra-device-class":        {OnLLM, claims},
		"exp-dra-device-count":        {OnLLM, claims},
		"gke-accelerator":             {OnService, ""},
		"gpu-resource-types":          {OnService, "the container's resources name its GPUs"},
		"inference-pool-migrated":     {OnLLM, ""},
		"inferencepool-migrated":      {OnLLM, ""},
		"logger-secret-file":          {OnService, noStore},
		"logger-secret-name":          {OnService, noStore},
		"logger-secret-path":          {OnService, noStore},
		"metrics":                     {OnService, ""},
		"model-based-routing-enabled": {OnLLM, ""},
		"nodegroup":                   {both, ""},
		"s3-cabundle":                 {both, "it is a path in KServe's containers: name a ConfigMap by `s3-cabundle-configmap`"},
		"s3-cabundle-configmap":       {both, ""},
		"s3-useaccelerate":            {both, "S3 is asked without transfer acceleration"},
		"s3-verifyssl":                {both, "certificates are always checked"},
		"server-type":                 {OnRuntime, ""},
		"stop":                        {both, ""},
		"storage-initializer-uid":     {OnService, "models are fetched as the pod's own user"},
		"storageSecretName":           {both, ""},
		"targetUtilizationPercentage": {OnService, ""},
	} {
		out[manifest.KServePrefix+name] = a
	}
	for name := range credentials.Annotated {
		out[name] = Annotation{both, ""}
	}
	return out
}()

// CheckAnnotations warns of those of KServe's that have no effect, or none on a kind,
// and of names with its prefix that KServe does not have.
func CheckAnnotations(r *manifest.Reader, at string, annotations map[string]string, on Kinds) {
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		switch a, known := Annotations[name]; {
		case known && a.On&on == 0:
			r.Warnf(strict.Key(at, name), "has no effect here: KServe reads it on %s", a.On)
		case a.Lacks != "":
			r.Warnf(strict.Key(at, name), "has no effect: %s", a.Lacks)
		case name == service.AnnotationNodeGroup:
			r.OneMachine(strict.Key(at, name), true, manifest.NoPlacement)
		case !known && strings.HasPrefix(name, manifest.KServePrefix):
			r.Warnf(strict.Key(at, name), "is none of KServe's annotations and has no effect%s", meant(name))
		}
	}
}

// meant asks whether a similar annotation was meant.
func meant(name string) string {
	var known []string
	for full := range Annotations {
		known = append(known, strings.TrimPrefix(full, manifest.KServePrefix))
	}
	slices.Sort(known)
	if near := strict.Nearest(strings.TrimPrefix(name, manifest.KServePrefix), known); near != "" {
		return `; did you mean "` + manifest.KServePrefix + near + `"?`
	}
	return ""
}

// selectAccelerator has the pods of all components run on nodes with the GPUs that
// the service's annotation names.
func selectAccelerator(r *manifest.Reader, s *service.Service) {
	gpus := s.Annotations[accelerator]
	if gpus == "" {
		return
	}
	r.OneMachine(strict.Key("metadata.annotations", accelerator), true, manifest.NoPlacement)
	for _, role := range service.Roles {
		if c := s.Components.Get(role); c != nil {
			c.Pod.NodeSelector = maps.Clone(c.Pod.NodeSelector)
			if c.Pod.NodeSelector == nil {
				c.Pod.NodeSelector = map[string]string{}
			}
			c.Pod.NodeSelector[acceleratorLabel] = gpus
		}
	}
}
