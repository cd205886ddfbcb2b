package kserve

import (
	"reflect"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
)

// The types of this file are KServe's kinds as its users write them: v1beta1
// InferenceService, v1alpha1 ServingRuntime and ClusterServingRuntime. Fields
// that are refused or without effect keep no shape (any); Notes says so.

type inferenceService struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta    `json:"metadata"`
	Spec            inferenceServiceSpec `json:"spec"`
}

type inferenceServiceSpec struct {
	Predictor   *predictor   `json:"predictor"`
	Transformer *transformer `json:"transformer"`
	Explainer   any          `json:"explainer"`
	Canary      any          `json:"canary"`
}

type predictor struct {
	corev1.PodSpec `json:",inline"`
	extension      `json:",inline"`
	legacy         `json:",inline"`

	Name                 string  `json:"name"`
	Model                *model  `json:"model"`
	WorkerSpec           *worker `json:"workerSpec"`
	StorageURIs          any     `json:"storageUris"`
	StorageContainerName any     `json:"storageContainerName"`
}

// legacy is the legacy schema: the framework is the key.
type legacy struct {
	SKLearn     *model `json:"sklearn"`
	XGBoost     *model `json:"xgboost"`
	LightGBM    *model `json:"lightgbm"`
	TensorFlow  *model `json:"tensorflow"`
	PyTorch     *model `json:"pytorch"`
	ONNX        *model `json:"onnx"`
	Triton      *model `json:"triton"`
	PMML        *model `json:"pmml"`
	Paddle      *model `json:"paddle"`
	HuggingFace *model `json:"huggingface"`
	MLflow      *model `json:"mlflow"`
}

// model is a predictor's model, with the serving container's fields.
type model struct {
	corev1.Container `json:",inline"`

	ModelFormat     *modelFormat `json:"modelFormat"`
	Runtime         string       `json:"runtime"`
	StorageURI      string       `json:"storageUri"`
	Storage         *storage     `json:"storage"`
	RuntimeVersion  string       `json:"runtimeVersion"`
	ProtocolVersion string       `json:"protocolVersion"`
	Confidential    any          `json:"confidential"`
}

type modelFormat struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

type storage struct {
	Key        string            `json:"key"`
	Path       string            `json:"path"`
	Parameters map[string]string `json:"parameters"`
	SchemaPath string            `json:"schemaPath"`
}

type worker struct {
	corev1.PodSpec `json:",inline"`
	parallel       `json:",inline"`
}

type parallel struct {
	PipelineParallelSize *int `json:"pipelineParallelSize"`
	TensorParallelSize   *int `json:"tensorParallelSize"`
}

type transformer struct {
	corev1.PodSpec `json:",inline"`
	extension      `json:",inline"`
}

// extension is what predictor and transformer have in common.
type extension struct {
	MinReplicas          *int              `json:"minReplicas"`
	MaxReplicas          *int              `json:"maxReplicas"`
	ScaleTarget          *int              `json:"scaleTarget"`
	ScaleMetric          string            `json:"scaleMetric"`
	ContainerConcurrency *int              `json:"containerConcurrency"`
	CanaryTrafficPercent *int              `json:"canaryTrafficPercent"`
	Labels               map[string]string `json:"labels"`
	Annotations          map[string]string `json:"annotations"`
	Timeout              *int              `json:"timeout"`
	ScaleMetricType      string            `json:"scaleMetricType"`
	AutoScaling          *autoScaling      `json:"autoScaling"`
	Logger               any               `json:"logger"`
	Batcher              any               `json:"batcher"`
	DeploymentStrategy   any               `json:"deploymentStrategy"`
}

type servingRuntime struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta  `json:"metadata"`
	Spec            servingRuntimeSpec `json:"spec"`
}

type servingRuntimeSpec struct {
	runtimePod `json:",inline"`

	SupportedModelFormats []supportedFormat `json:"supportedModelFormats"`
	ProtocolVersions      []string          `json:"protocolVersions"`
	MultiModel            bool              `json:"multiModel"`
	Disabled              bool              `json:"disabled"`
	StorageHelper         *storageHelper    `json:"storageHelper"`
	WorkerSpec            *runtimeWorker    `json:"workerSpec"`

	GRPCEndpoint     any `json:"grpcEndpoint"`
	GRPCDataEndpoint any `json:"grpcDataEndpoint"`
	HTTPDataEndpoint any `json:"httpDataEndpoint"`
	Replicas         any `json:"replicas"`
	BuiltInAdapter   any `json:"builtInAdapter"`
}

type supportedFormat struct {
	Name       string `json:"name"`
	Version    string `json:"version"`
	AutoSelect bool   `json:"autoSelect"`
	Priority   *int   `json:"priority"`
}

type storageHelper struct {
	Disabled bool `json:"disabled"`
}

type runtimeWorker struct {
	runtimePod `json:",inline"`
	parallel   `json:",inline"`
}

// runtimePod is the part of a pod that a KServe runtime may state.
type runtimePod struct {
	Containers       []corev1.Container            `json:"containers"`
	Volumes          []corev1.Volume               `json:"volumes"`
	NodeSelector     map[string]string             `json:"nodeSelector"`
	Affinity         *corev1.Affinity              `json:"affinity"`
	Tolerations      []corev1.Toleration           `json:"tolerations"`
	Labels           map[string]string             `json:"labels"`
	Annotations      map[string]string             `json:"annotations"`
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets"`
	HostIPC          bool                          `json:"hostIPC"`
	SchedulerName    string                        `json:"schedulerName"`
	ResourceClaims   []corev1.PodResourceClaim     `json:"resourceClaims"`
}

func (p *runtimePod) spec() corev1.PodSpec {
	return corev1.PodSpec{Containers: p.Containers, Volumes: p.Volumes, NodeSelector: p.NodeSelector,
		Affinity: p.Affinity, Tolerations: p.Tolerations, ImagePullSecrets: p.ImagePullSecrets,
		HostIPC: p.HostIPC, SchedulerName: p.SchedulerName, ResourceClaims: p.ResourceClaims}
}

// Notes are those of this dialect's types.
var Notes = manifest.Notes{
	reflect.TypeFor[inferenceServiceSpec](): {
		"explainer": manifest.Refused("is not served yet: remove it, or serve the explainer as a service of its own"),
		"canary":    manifest.Refused("is not served yet: remove it, or apply the canary as a service of its own"),
	},
	reflect.TypeFor[predictor](): {
		"name":                 manifest.OnProcess(manifest.NoPod),
		"storageUris":          manifest.Refused("is not supported: write one storageUri"),
		"storageContainerName": manifest.Never("has no effect: models are fetched by Roundhouse itself"),
	},
	reflect.TypeFor[model](): {
		"confidential": manifest.Refused("is not supported: the model would be served without it"),
	},
	reflect.TypeFor[storage](): {
		"schemaPath": manifest.Never(noMesh),
	},
	reflect.TypeFor[extension](): {
		"logger":             manifest.Refused("is not supported yet: remove it; requests are logged by the gateway"),
		"batcher":            manifest.Refused("is not supported yet: remove it, or batch in the model server's own settings"),
		"scaleMetricType":    manifest.Never("has no effect: a target is always an average per replica"),
		"deploymentStrategy": manifest.OnProcess(manifest.NoPod),
	},
	reflect.TypeFor[autoScaling](): {
		"behavior": manifest.Never("has no effect: Roundhouse's own autoscaler decides how fast the count changes"),
	},
	reflect.TypeFor[servingRuntimeSpec](): {
		"grpcEndpoint": manifest.Never(noMesh), "grpcDataEndpoint": manifest.Never(noMesh),
		"httpDataEndpoint": manifest.Never(noMesh), "builtInAdapter": manifest.Never(noMesh), "replicas": manifest.Never(noMesh),
	},
	reflect.TypeFor[runtimePod](): manifest.Only(manifest.PodNotes, "volumes", "nodeSelector", "affinity",
		"tolerations", "imagePullSecrets", "hostIPC", "schedulerName", "resourceClaims"),
}

const noMesh = "has no effect: it is ModelMesh's"
