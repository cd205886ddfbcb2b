package dialect

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The types of this file are KServe's kinds as its users write them: v1beta1
// InferenceService, v1alpha1 ServingRuntime and ClusterServingRuntime. Fields
// that are refused or without effect keep no shape (any); fieldNotes says so.

type kserveService struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            kserveServiceSpec `json:"spec"`
}

type kserveServiceSpec struct {
	Predictor   *kservePredictor   `json:"predictor"`
	Transformer *kserveTransformer `json:"transformer"`
	Explainer   any                `json:"explainer"`
	Canary      any                `json:"canary"`
}

type kservePredictor struct {
	corev1.PodSpec  `json:",inline"`
	kserveExtension `json:",inline"`
	kserveLegacy    `json:",inline"`

	Name                 string        `json:"name"`
	Model                *kserveModel  `json:"model"`
	WorkerSpec           *kserveWorker `json:"workerSpec"`
	StorageURIs          any           `json:"storageUris"`
	StorageContainerName any           `json:"storageContainerName"`
}

// kserveLegacy is the legacy schema: the framework is the key.
type kserveLegacy struct {
	SKLearn     *kserveModel `json:"sklearn"`
	XGBoost     *kserveModel `json:"xgboost"`
	LightGBM    *kserveModel `json:"lightgbm"`
	TensorFlow  *kserveModel `json:"tensorflow"`
	PyTorch     *kserveModel `json:"pytorch"`
	ONNX        *kserveModel `json:"onnx"`
	Triton      *kserveModel `json:"triton"`
	PMML        *kserveModel `json:"pmml"`
	Paddle      *kserveModel `json:"paddle"`
	HuggingFace *kserveModel `json:"huggingface"`
	MLflow      *kserveModel `json:"mlflow"`
}

// kserveModel is a predictor's model, with the serving container's fields.
type kserveModel struct {
	corev1.Container `json:",inline"`

	ModelFormat     *kserveFormat  `json:"modelFormat"`
	Runtime         string         `json:"runtime"`
	StorageURI      string         `json:"storageUri"`
	Storage         *kserveStorage `json:"storage"`
	RuntimeVersion  string         `json:"runtimeVersion"`
	ProtocolVersion string         `json:"protocolVersion"`
	Confidential    any            `json:"confidential"`
}

type kserveFormat struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

type kserveStorage struct {
	Key        string            `json:"key"`
	Path       string            `json:"path"`
	Parameters map[string]string `json:"parameters"`
	SchemaPath string            `json:"schemaPath"`
}

type kserveWorker struct {
	corev1.PodSpec `json:",inline"`
	kserveParallel `json:",inline"`
}

type kserveParallel struct {
	PipelineParallelSize *int `json:"pipelineParallelSize"`
	TensorParallelSize   *int `json:"tensorParallelSize"`
}

type kserveTransformer struct {
	corev1.PodSpec  `json:",inline"`
	kserveExtension `json:",inline"`
}

// kserveExtension is what predictor and transformer have in common.
type kserveExtension struct {
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
	AutoScaling          any               `json:"autoScaling"`
	Logger               any               `json:"logger"`
	Batcher              any               `json:"batcher"`
	DeploymentStrategy   any               `json:"deploymentStrategy"`
}

type kserveRuntime struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            kserveRuntimeSpec `json:"spec"`
}

type kserveRuntimeSpec struct {
	kserveRuntimePod `json:",inline"`

	SupportedModelFormats []kserveSupportedFormat `json:"supportedModelFormats"`
	ProtocolVersions      []string                `json:"protocolVersions"`
	MultiModel            bool                    `json:"multiModel"`
	Disabled              bool                    `json:"disabled"`
	StorageHelper         *kserveStorageHelper    `json:"storageHelper"`
	WorkerSpec            *kserveRuntimeWorker    `json:"workerSpec"`

	GRPCEndpoint     any `json:"grpcEndpoint"`
	GRPCDataEndpoint any `json:"grpcDataEndpoint"`
	HTTPDataEndpoint any `json:"httpDataEndpoint"`
	Replicas         any `json:"replicas"`
	BuiltInAdapter   any `json:"builtInAdapter"`
}

type kserveSupportedFormat struct {
	Name       string `json:"name"`
	Version    string `json:"version"`
	AutoSelect bool   `json:"autoSelect"`
	Priority   *int   `json:"priority"`
}

type kserveStorageHelper struct {
	Disabled bool `json:"disabled"`
}

type kserveRuntimeWorker struct {
	kserveRuntimePod `json:",inline"`
	kserveParallel   `json:",inline"`
}

// kserveRuntimePod is the part of a pod that a KServe runtime may state.
type kserveRuntimePod struct {
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

func (p *kserveRuntimePod) spec() corev1.PodSpec {
	return corev1.PodSpec{Containers: p.Containers, Volumes: p.Volumes, NodeSelector: p.NodeSelector,
		Affinity: p.Affinity, Tolerations: p.Tolerations, ImagePullSecrets: p.ImagePullSecrets,
		HostIPC: p.HostIPC, SchedulerName: p.SchedulerName, ResourceClaims: p.ResourceClaims}
}
