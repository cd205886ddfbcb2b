package dialect

import (
	"slices"
	"strings"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/dialect/kserve"
	"roundhouse.dev/roundhouse/internal/decide/dialect/llmisvc"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/ome"
)

// StatusForm is the shape of a kind's status.
type StatusForm int

// The forms.
const (
	WithoutStatus StatusForm = iota
	OfService                // what Status prints
	OfRouting                // what RoutingStatus prints
	OfRuntime                // conditions, of one that is refused
	OfBenchmark              // state and failureMessage
)

// Resource is how an API server keeps a kind of manifest.
type Resource struct {
	Group, Kind string
	// Plural is its name in paths, and with the group that of its CRD.
	Plural string
	// Versions are those that are read, the preferred first. Of one object all
	// are the same.
	Versions []string
	// ID is the kind in an object's identity: "service", "runtime", "model",
	// "weight", [BaseID], [AcceleratorID], [CacheID], [NodeGroupID], [StorageContainerID], [BenchmarkID], [ReserveID], or a routing kind in lower case.
	ID     string
	Status StatusForm
}

// ClusterScoped reports whether its objects have no namespace.
func (r *Resource) ClusterScoped() bool {
	switch r.Kind {
	case manifest.KindFineTunedWeight, manifest.KindAcceleratorClass, kserve.KindModelCache, kserve.KindNodeGroup:
		return true
	}
	return strings.HasPrefix(r.Kind, "Cluster")
}

// LLMService is KServe's kind of services for language models.
const LLMService = llmisvc.KindService

const (
	serviceID = "service"
	runtimeID = "runtime"
	modelID   = "model"
	weightID  = "weight"
	// BaseID is that of what services are laid over.
	BaseID = "base"
	// AcceleratorID is that of classes of accelerators.
	AcceleratorID = "acceleratorclass"
	// ConfigMapID is that of ConfigMaps that services name. Of those in an API server
	// nothing else is read.
	ConfigMapID = "configmap"
	// CacheID and NodeGroupID are those of models that are fetched ahead of their use,
	// and of the nodes that keep them.
	CacheID     = "localmodelcache"
	NodeGroupID = "localmodelnodegroup"
	// StorageContainerID is that of containers that fetch models.
	StorageContainerID = "clusterstoragecontainer"
	// BenchmarkID is that of benchmarks, which are run once.
	BenchmarkID = "benchmarkjob"
	// ReserveID is that of Reserves, which are no part of the desired state of
	// services.
	ReserveID = "reserve"
)

func kept(group, kind, plural, id string, status StatusForm, versions ...string) Resource {
	return Resource{group, kind, plural, versions, id, status}
}

func keptRoute(group, name, plural string, kind routing.Kind, versions ...string) Resource {
	return Resource{group, name, plural, versions, strings.ToLower(string(kind)), OfRouting}
}

// Resources is every kind of manifest that is read.
var Resources = []Resource{
	kept("roundhouse.dev", api.KindModelService, "modelservices", serviceID, OfService, "v1alpha1"),
	kept("roundhouse.dev", api.KindServingRuntime, "servingruntimes", runtimeID, OfRuntime, "v1alpha1"),
	kept("roundhouse.dev", api.KindClusterServingRuntime, "clusterservingruntimes", runtimeID, OfRuntime, "v1alpha1"),
	keptRoute("roundhouse.dev", api.KindRoute, "routes", routing.KindRoute, "v1alpha1"),
	keptRoute("roundhouse.dev", api.KindPool, "pools", routing.KindPool, "v1alpha1"),
	kept("roundhouse.dev", api.KindReserve, "reserves", ReserveID, WithoutStatus, "v1alpha1"),

	kept("serving.kserve.io", "InferenceService", "inferenceservices", serviceID, OfService, "v1beta1"),
	kept("serving.kserve.io", "ServingRuntime", "servingruntimes", runtimeID, WithoutStatus, "v1alpha1"),
	kept("serving.kserve.io", "ClusterServingRuntime", "clusterservingruntimes", runtimeID, WithoutStatus, "v1alpha1"),
	kept("serving.kserve.io", kserve.KindStorageContainer, "clusterstoragecontainers", StorageContainerID, WithoutStatus, "v1alpha1"),
	kept("serving.kserve.io", kserve.KindModelCache, "localmodelcaches", CacheID, WithoutStatus, "v1alpha1"),
	kept("serving.kserve.io", kserve.KindNamespaceModelCache, "localmodelnamespacecaches", CacheID, WithoutStatus, "v1alpha1"),
	kept("serving.kserve.io", kserve.KindNodeGroup, "localmodelnodegroups", NodeGroupID, WithoutStatus, "v1alpha1"),
	kept("serving.kserve.io", kserve.KindTrainedModel, "trainedmodels", serviceID, OfService, "v1alpha1"),
	keptRoute("serving.kserve.io", "InferenceGraph", "inferencegraphs", routing.KindGraph, "v1alpha1"),
	kept("serving.kserve.io", llmisvc.KindService, "llminferenceservices", serviceID, OfService, "v1alpha2", "v1alpha1"),
	kept("serving.kserve.io", llmisvc.KindConfig, "llminferenceserviceconfigs", BaseID, WithoutStatus, "v1alpha2", "v1alpha1"),

	kept("ome.io", "InferenceService", "inferenceservices", serviceID, OfService, "v1beta1"),
	kept("ome.io", "ServingRuntime", "servingruntimes", runtimeID, WithoutStatus, "v1beta1"),
	kept("ome.io", "ClusterServingRuntime", "clusterservingruntimes", runtimeID, WithoutStatus, "v1beta1"),
	kept("ome.io", "BaseModel", "basemodels", modelID, WithoutStatus, "v1beta1"),
	kept("ome.io", "ClusterBaseModel", "clusterbasemodels", modelID, WithoutStatus, "v1beta1"),
	kept("ome.io", manifest.KindFineTunedWeight, "finetunedweights", weightID, WithoutStatus, "v1beta1"),
	kept("ome.io", manifest.KindAcceleratorClass, "acceleratorclasses", AcceleratorID, WithoutStatus, "v1beta1"),
	kept("ome.io", ome.KindBenchmarkJob, "benchmarkjobs", BenchmarkID, OfBenchmark, "v1beta1"),

	kept("machinelearning.seldon.io", "SeldonDeployment", "seldondeployments", serviceID, OfService, "v1", "v1alpha3", "v1alpha2"),

	keptRoute("inference.networking.k8s.io", "InferencePool", "inferencepools", routing.KindPool, "v1"),
	keptRoute("inference.networking.x-k8s.io", "InferencePool", "inferencepools", routing.KindPool, "v1alpha2"),
	keptRoute("inference.networking.x-k8s.io", "InferencePoolImport", "inferencepoolimports", routing.KindPool, "v1alpha1"),
	keptRoute("inference.networking.x-k8s.io", "InferenceModel", "inferencemodels", routing.KindModel, "v1alpha2"),
	keptRoute("inference.networking.x-k8s.io", "InferenceObjective", "inferenceobjectives", routing.KindObjective, "v1alpha2"),
	keptRoute("inference.networking.x-k8s.io", "InferenceModelRewrite", "inferencemodelrewrites", routing.KindRewrite, "v1alpha2"),
	keptRoute("llm-d.ai", "InferenceObjective", "inferenceobjectives", routing.KindObjective, "v1alpha2"),
	keptRoute("llm-d.ai", "InferenceModelRewrite", "inferencemodelrewrites", routing.KindRewrite, "v1alpha2"),
	keptRoute("gateway.networking.k8s.io", "HTTPRoute", "httproutes", routing.KindHTTPRoute, "v1", "v1beta1"),
	keptRoute("gateway.networking.k8s.io", "GRPCRoute", "grpcroutes", routing.KindGRPCRoute, "v1"),
}

// ResourceOf finds how a kind of an API version is kept; nil where it is none
// that is read.
func ResourceOf(apiVersion, kind string) *Resource {
	group, version, _ := strings.Cut(apiVersion, "/")
	for i := range Resources {
		if r := &Resources[i]; r.Group == group && r.Kind == kind && slices.Contains(r.Versions, version) {
			return r
		}
	}
	return nil
}

// Authored is an object of an API server as its author wrote it, as far as the
// server keeps that: without status, without the metadata that servers and
// clients add, and without the defaults that schemas put in. drop are the
// annotations that are not the author's. What is given stays as it is, and the
// result shares parts of it.
func Authored(object map[string]any, drop ...string) map[string]any {
	out := map[string]any{}
	for k, v := range object {
		if k != "status" && k != "metadata" {
			out[k] = stated(v)
		}
	}
	meta := map[string]any{}
	given, _ := object["metadata"].(map[string]any)
	for _, k := range []string{"name", "namespace", "labels", "annotations"} {
		v := given[k]
		if m, ok := v.(map[string]any); ok {
			some := map[string]any{}
			for name, value := range m {
				if k != "annotations" || !slices.Contains(drop, name) {
					some[name] = value
				}
			}
			if v = some; len(some) == 0 {
				v = nil
			}
		}
		if v != nil && v != "" {
			meta[k] = v
		}
	}
	out["metadata"] = meta
	return out
}

// stated is v without what schemas of pods default: a port's protocol, and a
// gRPC probe's empty service. The value given stays as it is.
func stated(v any) any {
	switch v := v.(type) {
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = stated(v[i])
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		_, port := v["containerPort"]
		_, probe := v["port"]
		for k, e := range v {
			if port && k == "protocol" && e == "TCP" || probe && k == "service" && e == "" {
				continue
			}
			out[k] = stated(e)
		}
		return out
	}
	return v
}
