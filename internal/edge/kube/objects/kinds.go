package objects

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// Form is the shape of a kind's status.
type Form int

// The forms.
const (
	NoStatus      Form = iota
	ServiceStatus      // what dialect.Status prints
	RoutingStatus      // what dialect.RoutingStatus prints
)

// Kind is one kind of manifest that may be watched.
type Kind struct {
	schema.GroupKind
	// Plural names its resource, and with the group its CRD.
	Plural string
	// Versions are those that are read, the preferred first. Of one object all
	// are the same, so that one is watched.
	Versions []string
	// ID is the kind of its fleet.ID.
	ID     string
	Status Form
}

// CRD is the name of the kind's CustomResourceDefinition.
func (k *Kind) CRD() string { return k.Plural + "." + k.Group }

// Dialect is the family of the kind.
func (k *Kind) Dialect() service.Dialect {
	return service.Origin{APIVersion: k.Group + "/" + k.Versions[0]}.Dialect()
}

const (
	serviceID = "service"
	runtimeID = "runtime"
	modelID   = "model"
)

func kind(group, name, plural, id string, status Form, versions ...string) *Kind {
	return &Kind{schema.GroupKind{Group: group, Kind: name}, plural, versions, id, status}
}

func routed(group, name, plural string, kind routing.Kind, versions ...string) *Kind {
	return &Kind{schema.GroupKind{Group: group, Kind: name}, plural, versions, strings.ToLower(string(kind)), RoutingStatus}
}

// Kinds is every kind of manifest that is read.
var Kinds = []*Kind{
	kind("roundhouse.dev", "ModelService", "modelservices", serviceID, ServiceStatus, "v1alpha1"),
	kind("roundhouse.dev", "ServingRuntime", "servingruntimes", runtimeID, NoStatus, "v1alpha1"),
	kind("roundhouse.dev", "ClusterServingRuntime", "clusterservingruntimes", runtimeID, NoStatus, "v1alpha1"),
	routed("roundhouse.dev", "Route", "routes", routing.KindRoute, "v1alpha1"),
	routed("roundhouse.dev", "Pool", "pools", routing.KindPool, "v1alpha1"),

	kind("serving.kserve.io", "InferenceService", "inferenceservices", serviceID, ServiceStatus, "v1beta1"),
	kind("serving.kserve.io", "ServingRuntime", "servingruntimes", runtimeID, NoStatus, "v1alpha1"),
	kind("serving.kserve.io", "ClusterServingRuntime", "clusterservingruntimes", runtimeID, NoStatus, "v1alpha1"),

	kind("ome.io", "InferenceService", "inferenceservices", serviceID, ServiceStatus, "v1beta1"),
	kind("ome.io", "ServingRuntime", "servingruntimes", runtimeID, NoStatus, "v1beta1"),
	kind("ome.io", "ClusterServingRuntime", "clusterservingruntimes", runtimeID, NoStatus, "v1beta1"),
	kind("ome.io", "BaseModel", "basemodels", modelID, NoStatus, "v1beta1"),
	kind("ome.io", "ClusterBaseModel", "clusterbasemodels", modelID, NoStatus, "v1beta1"),

	kind("machinelearning.seldon.io", "SeldonDeployment", "seldondeployments", serviceID, ServiceStatus, "v1", "v1alpha3", "v1alpha2"),

	routed("inference.networking.k8s.io", "InferencePool", "inferencepools", routing.KindPool, "v1"),
	routed("inference.networking.x-k8s.io", "InferencePool", "inferencepools", routing.KindPool, "v1alpha2"),
	routed("inference.networking.x-k8s.io", "InferenceModel", "inferencemodels", routing.KindModel, "v1alpha2"),
	routed("inference.networking.x-k8s.io", "InferenceObjective", "inferenceobjectives", routing.KindObjective, "v1alpha2"),
	routed("inference.networking.x-k8s.io", "InferenceModelRewrite", "inferencemodelrewrites", routing.KindRewrite, "v1alpha2"),
	routed("gateway.networking.k8s.io", "HTTPRoute", "httproutes", routing.KindHTTPRoute, "v1", "v1beta1"),
}

// KindOf finds a kind; nil where it is none that is read.
func KindOf(gk schema.GroupKind) *Kind {
	for _, k := range Kinds {
		if k.GroupKind == gk {
			return k
		}
	}
	return nil
}
