package dialect

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The types of this file are Seldon Core 1's SeldonDeployment as its users
// write it; v1, v1alpha2 and v1alpha3 have the same fields. Fields that are
// refused or without effect keep no shape (any); fieldNotes says so.

type seldonDeployment struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            seldonSpec        `json:"spec"`
}

type seldonSpec struct {
	Name        any               `json:"name"`
	Predictors  []seldonPredictor `json:"predictors"`
	OAuthKey    any               `json:"oauth_key"`
	OAuthSecret any               `json:"oauth_secret"`
	Annotations map[string]string `json:"annotations"`
	Protocol    string            `json:"protocol"`
	Transport   any               `json:"transport"`
	Replicas    *int              `json:"replicas"`
	ServerType  string            `json:"serverType"`
}

type seldonPredictor struct {
	Name                    string            `json:"name"`
	Graph                   seldonUnit        `json:"graph"`
	ComponentSpecs          []seldonPod       `json:"componentSpecs"`
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

// seldonUnit is one node of a predictor's graph.
type seldonUnit struct {
	Name                    string            `json:"name"`
	Children                []seldonUnit      `json:"children"`
	Type                    string            `json:"type"`
	Implementation          string            `json:"implementation"`
	Methods                 []string          `json:"methods"`
	Endpoint                *seldonEndpoint   `json:"endpoint"`
	Parameters              []seldonParameter `json:"parameters"`
	ModelURI                string            `json:"modelUri"`
	ServiceAccountName      any               `json:"serviceAccountName"`
	EnvSecretRefName        any               `json:"envSecretRefName"`
	StorageInitializerImage any               `json:"storageInitializerImage"`
	Logger                  any               `json:"logger"`
}

type seldonEndpoint struct {
	ServiceHost string `json:"service_host"`
	ServicePort any    `json:"service_port"`
	Type        any    `json:"type"`
	HTTPPort    int32  `json:"httpPort"`
	GRPCPort    int32  `json:"grpcPort"`
}

// seldonParameter is handed to the server as it is written.
type seldonParameter struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	Type  string `json:"type"`
}

// seldonPod is an entry of componentSpecs.
type seldonPod struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     corev1.PodSpec    `json:"spec"`
	HPA      *seldonHPA        `json:"hpaSpec"`
	Replicas *int              `json:"replicas"`
	KEDA     *seldonKEDA       `json:"kedaSpec"`
	PDB      any               `json:"pdbSpec"`
}

type seldonHPA struct {
	MinReplicas *int           `json:"minReplicas"`
	MaxReplicas *int           `json:"maxReplicas"`
	Metrics     []seldonMetric `json:"metrics"`
	MetricsV2   []seldonMetric `json:"metricsv2"`
}

// seldonMetric is a metric of autoscaling/v2beta1 or v2, which differ in how
// a resource states its target.
type seldonMetric struct {
	Type              string          `json:"type"`
	Resource          *seldonResource `json:"resource"`
	Object            any             `json:"object"`
	Pods              any             `json:"pods"`
	External          any             `json:"external"`
	ContainerResource any             `json:"containerResource"`
}

type seldonResource struct {
	Name                     string        `json:"name"`
	TargetAverageUtilization *int          `json:"targetAverageUtilization"`
	TargetAverageValue       any           `json:"targetAverageValue"`
	Target                   *seldonTarget `json:"target"`
}

type seldonTarget struct {
	Type               string `json:"type"`
	AverageUtilization *int   `json:"averageUtilization"`
	AverageValue       any    `json:"averageValue"`
	Value              any    `json:"value"`
}

type seldonKEDA struct {
	PollingInterval  any  `json:"pollingInterval"`
	CooldownPeriod   *int `json:"cooldownPeriod"`
	MinReplicaCount  *int `json:"minReplicaCount"`
	MaxReplicaCount  *int `json:"maxReplicaCount"`
	IdleReplicaCount *int `json:"idleReplicaCount"`
	Advanced         any  `json:"advanced"`
	Triggers         any  `json:"triggers"`
	Fallback         any  `json:"fallback"`
}
