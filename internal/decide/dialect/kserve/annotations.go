package kserve

import (
	"maps"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// accelerator names the GPUs of the nodes on Google's clusters that a service's pods
// run on.
const (
	accelerator      = manifest.KServePrefix + "gke-accelerator"
	acceleratorLabel = "cloud.google.com/gke-accelerator"
)

// Annotations are KServe's for an InferenceService, as its pkg/constants has them,
// and for each that has no effect here why; "" for one that is read. docs/manifests.md
// has the same table.
var Annotations = map[string]string{
	accelerator:                  "",
	mode:                         "",
	"prometheus.kserve.io/path":  "",
	"prometheus.kserve.io/port":  "",
	service.AnnotationKServeStop: "",
	manifest.KServePrefix + "autoscalerClass":             "",
	manifest.KServePrefix + "metrics":                     "",
	manifest.KServePrefix + "targetUtilizationPercentage": "",
	manifest.KServePrefix + "s3-cabundle-configmap":       "",
	manifest.KServePrefix + "storageSecretName":           "",
	service.AnnotationNoModelCache:                        "",
	manifest.KServePrefix + "nodegroup":                   "a model is kept on every node of its LocalModelCache's groups",
	manifest.KServePrefix + "enable-metric-aggregation":   "the metrics of a replica are at its own port",
	manifest.KServePrefix + "enable-prometheus-scraping":  "the metrics of a replica are at its own port",
	manifest.KServePrefix + "enable-tag-routing":          "a canary is reached by its share of the traffic alone",
	manifest.KServePrefix + "gpu-resource-types":          "the container's resources name its GPUs",
	"storage.kserve.io/readonly":                          "a container cannot write to its model",
	"serving.knative.dev/rollout-duration":                "a rollout goes on as soon as the new replicas are ready",
	"serving.knative.openshift.io/enablePassthrough":      "it is of OpenShift's Knative",
}

// checkAnnotations warns of those of KServe's that have no effect, and of names with
// its prefix that KServe does not have.
func checkAnnotations(r *manifest.Reader, at string, annotations map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		switch lacks, known := Annotations[name]; {
		case lacks != "":
			r.Warnf(strict.Key(at, name), "has no effect: %s", lacks)
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
