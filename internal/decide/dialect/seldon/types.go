package seldon

import (
	"reflect"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
)

// The types of this file are Seldon Core 1's SeldonDeployment as its users
// write it; v1, v1alpha2 and v1alpha3 have the same fields. Fields that are
// refused or without effect keep no shape (any); Notes says so.

type deployment struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            deploymentSpec    `json:"spec"`
}

type deploymentSpec struct {
	Name        any               `json:"name"`
	Predictors  []predictor       `json:"predictors"`
	OAuthKey    any               `json:"oauth_key"`
	OAuthSecret any               `json:"oauth_secret"`
	Annotations map[string]string `json:"annotations"`
	Protocol    string            `json:"protocol"`
	Transport   any               `json:"transport"`
	Replicas    *int              `json:"replicas"`
	ServerType  string            `json:"serverType"`
}

type predictor struct {
	Name                    string            `json:"name"`
	Graph                   unit              `json:"graph"`
	ComponentSpecs          []pod             `json:"componentSpecs"`
	Replicas                *int              `json:"replicas"`
	Annotations             map[string]string `json:"annotations"`
	EngineResources         any               `json:"engineResources"`
	Labels                  map[string]string `json:"labels"`
	SvcOrchSpec             any               `json:"svcOrchSpec"`
	Traffic                 int               `json:"traffic"`
	Explainer               any               `json:"explainer"`
	Shadow                  bool              `json:"shadow"`
	SSL                     any               `json:"ssl"`
	ProgressDeadlineSeconds *int              `json:"progressDeadlineSeconds"`
}

// unit is one node of a predictor's graph.
type unit struct {
	Name                    string      `json:"name"`
	Children                []unit      `json:"children"`
	Type                    string      `json:"type"`
	Implementation          string      `json:"implementation"`
	Methods                 []string    `json:"methods"`
	Endpoint                *endpoint   `json:"endpoint"`
	Parameters              []parameter `json:"parameters"`
	ModelURI                string      `json:"modelUri"`
	ServiceAccountName      any         `json:"serviceAccountName"`
	EnvSecretRefName        any         `json:"envSecretRefName"`
	StorageInitializerImage any         `json:"storageInitializerImage"`
	Logger                  any         `json:"logger"`
}

type endpoint struct {
	ServiceHost string `json:"service_host"`
	ServicePort any    `json:"service_port"`
	Type        any    `json:"type"`
	HTTPPort    int32  `json:"httpPort"`
	GRPCPort    int32  `json:"grpcPort"`
}

// parameter is handed to the server as it is written.
type parameter struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	Type  string `json:"type"`
}

// pod is an entry of componentSpecs.
type pod struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     corev1.PodSpec    `json:"spec"`
	HPA      *hpa              `json:"hpaSpec"`
	Replicas *int              `json:"replicas"`
	KEDA     *keda             `json:"kedaSpec"`
	PDB      *pdb              `json:"pdbSpec"`
}

type pdb struct {
	MinAvailable   *intstr.IntOrString `json:"minAvailable"`
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable"`
}

type hpa struct {
	MinReplicas *int     `json:"minReplicas"`
	MaxReplicas *int     `json:"maxReplicas"`
	Metrics     []metric `json:"metrics"`
	MetricsV2   []metric `json:"metricsv2"`
}

// metric is a metric of autoscaling/v2beta1 or v2, which differ in how
// a resource states its target.
type metric struct {
	Type              string    `json:"type"`
	Resource          *resource `json:"resource"`
	Object            any       `json:"object"`
	Pods              any       `json:"pods"`
	External          any       `json:"external"`
	ContainerResource any       `json:"containerResource"`
}

type resource struct {
	Name                     string  `json:"name"`
	TargetAverageUtilization *int    `json:"targetAverageUtilization"`
	TargetAverageValue       any     `json:"targetAverageValue"`
	Target                   *target `json:"target"`
}

type target struct {
	Type               string `json:"type"`
	AverageUtilization *int   `json:"averageUtilization"`
	AverageValue       any    `json:"averageValue"`
	Value              any    `json:"value"`
}

type keda struct {
	PollingInterval  any  `json:"pollingInterval"`
	CooldownPeriod   *int `json:"cooldownPeriod"`
	MinReplicaCount  *int `json:"minReplicaCount"`
	MaxReplicaCount  *int `json:"maxReplicaCount"`
	IdleReplicaCount *int `json:"idleReplicaCount"`
	Advanced         any  `json:"advanced"`
	Triggers         any  `json:"triggers"`
	Fallback         any  `json:"fallback"`
}

// Notes are those of this dialect's types.
var Notes = manifest.Notes{
	reflect.TypeFor[deploymentSpec](): {
		"name":         manifest.Never("has no effect: metadata.name names the service"),
		"oauth_key":    manifest.Never("has no effect, as in Seldon Core 1: guard the gateway"),
		"oauth_secret": manifest.Never("has no effect, as in Seldon Core 1: guard the gateway"),
		"transport":    manifest.Never(bothTransports),
	},
	reflect.TypeFor[predictor](): {
		"engineResources": manifest.Never(noOrchestrator),
		"svcOrchSpec":     manifest.Never(noOrchestrator),
		"explainer":       manifest.Refused("is not served yet: remove it, or serve the explainer as a service of its own"),
		"ssl":             manifest.Refused("is not supported: remove it, and give the gateway the certificate"),
	},
	reflect.TypeFor[unit](): {
		"serviceAccountName":      manifest.OnProcess(manifest.NoAccount),
		"envSecretRefName":        manifest.Never("has no effect: give credentials to this program's own environment"),
		"storageInitializerImage": manifest.Never("has no effect: models are fetched by Roundhouse itself"),
		"logger":                  manifest.Refused("is not supported yet: remove it; requests are logged by the gateway"),
	},
	reflect.TypeFor[endpoint](): {
		"type":         manifest.Never(bothTransports),
		"service_port": manifest.Never("has no effect: write httpPort or grpcPort"),
	},
	reflect.TypeFor[pod](): {
		"pdbSpec": manifest.OnProcess("has no effect on one machine: nothing is evicted from it"),
	},
	reflect.TypeFor[keda](): {
		"pollingInterval": manifest.Never(noTriggers), "advanced": manifest.Never(noTriggers),
		"triggers": manifest.Never(noTriggers), "fallback": manifest.Never(noTriggers),
	},
}

const (
	noTriggers     = "has no effect: a service is scaled on the requests it has in flight"
	noOrchestrator = "has no effect: there is no service orchestrator, the gateway does its work"
	bothTransports = "has no effect: HTTP and gRPC are both served"
)
