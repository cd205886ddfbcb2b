package kserve

import (
	"reflect"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
)

// The types of this file are KServe's kinds as its users write them:
// InferenceService, v1alpha1 ServingRuntime and ClusterServingRuntime. Fields
// that are refused or without effect keep no shape (any); Notes says so.

type inferenceService struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta    `json:"metadata"`
	Spec            inferenceServiceSpec `json:"spec"`
}

type inferenceServiceSpec struct {
	components `json:",inline"`

	Canary any `json:"canary"`
}

type components struct {
	Predictor   *predictor   `json:"predictor"`
	Transformer *transformer `json:"transformer"`
	Explainer   *explainer   `json:"explainer"`
}

// formerService is v1alpha2's InferenceService.
type formerService struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            formerSpec        `json:"spec"`
}

type formerSpec struct {
	Default              *components `json:"default"`
	Canary               any         `json:"canary"`
	CanaryTrafficPercent any         `json:"canaryTrafficPercent"`
}

// custom is a component that v1alpha2, and documents that come from there, have as
// one container.
type custom struct {
	Container *corev1.Container `json:"container"`
}

type predictor struct {
	corev1.PodSpec `json:",inline"`
	extension      `json:",inline"`
	legacy         `json:",inline"`

	Name                 string       `json:"name"`
	Model                *model       `json:"model"`
	WorkerSpec           *worker      `json:"workerSpec"`
	StorageURIs          []storageURI `json:"storageUris"`
	StorageContainerName any          `json:"storageContainerName"`
	Custom               *custom      `json:"custom"`
	Parallelism          *int         `json:"parallelism"`
}

type storageURI struct {
	URI       string `json:"uri"`
	MountPath string `json:"mountPath"`
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

	Custom      *custom      `json:"custom"`
	StorageURIs []storageURI `json:"storageUris"`
}

type explainer struct {
	corev1.PodSpec `json:",inline"`
	extension      `json:",inline"`

	Custom      *custom         `json:"custom"`
	ART         *knownExplainer `json:"art"`
	Alibi       *knownExplainer `json:"alibi"`
	AIX         *knownExplainer `json:"aix"`
	StorageURIs []storageURI    `json:"storageUris"`
}

// knownExplainer is an explainer of which KServe has, or had, an image.
type knownExplainer struct {
	corev1.Container `json:",inline"`

	Type           string            `json:"type"`
	Config         map[string]string `json:"config"`
	RuntimeVersion string            `json:"runtimeVersion"`
	StorageURI     string            `json:"storageUri"`
	Storage        *storage          `json:"storage"`
}

type logger struct {
	URL                 string   `json:"url"`
	Mode                string   `json:"mode"`
	MetadataHeaders     []string `json:"metadataHeaders"`
	MetadataAnnotations []string `json:"metadataAnnotations"`
	Storage             any      `json:"storage"`
	MarshallerURL       any      `json:"marshallerUrl"`
}

type batcher struct {
	MaxBatchSize *int `json:"maxBatchSize"`
	MaxLatency   *int `json:"maxLatency"` // milliseconds
	Timeout      any  `json:"timeout"`
}

// extension is what all components have in common.
type extension struct {
	MinReplicas          *int                       `json:"minReplicas"`
	MaxReplicas          *int                       `json:"maxReplicas"`
	ScaleTarget          *int                       `json:"scaleTarget"`
	ScaleMetric          string                     `json:"scaleMetric"`
	ContainerConcurrency *int                       `json:"containerConcurrency"`
	CanaryTrafficPercent *int                       `json:"canaryTrafficPercent"`
	Labels               map[string]string          `json:"labels"`
	Annotations          map[string]string          `json:"annotations"`
	Timeout              *int                       `json:"timeout"`
	ScaleMetricType      string                     `json:"scaleMetricType"`
	AutoScaling          *autoScaling               `json:"autoScaling"`
	Logger               *logger                    `json:"logger"`
	Batcher              *batcher                   `json:"batcher"`
	DeploymentStrategy   *appsv1.DeploymentStrategy `json:"deploymentStrategy"`
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
		"canary": manifest.Refused("is not served: write canaryTrafficPercent into the predictor, or apply the canary as a service of its own"),
	},
	reflect.TypeFor[formerSpec](): {
		"canary":               manifest.Refused("is not served: apply the canary as a service of its own"),
		"canaryTrafficPercent": manifest.Never("has no effect without spec.canary"),
	},
	reflect.TypeFor[predictor](): {
		"name":                 manifest.OnProcess(manifest.NoPod),
		"storageContainerName": manifest.Never("has no effect: models are fetched by Roundhouse itself"),
	},
	reflect.TypeFor[logger](): {
		"storage":       manifest.Refused("is not written to: give the logger the url of a server"),
		"marshallerUrl": manifest.Refused("is not asked: give the logger the url of a server"),
	},
	reflect.TypeFor[batcher](): {
		"timeout": manifest.Never("has no effect: the component's timeout holds for a batch too"),
	},
	reflect.TypeFor[model](): {
		"confidential": manifest.Refused("is not supported: the model would be served without it"),
	},
	reflect.TypeFor[storage](): {
		"schemaPath": manifest.Never(noMesh),
	},
	reflect.TypeFor[extension](): {
		"scaleMetricType": manifest.Never("has no effect: a target is always an average per replica"),
	},
	reflect.TypeFor[autoScaling](): {
		"behavior": manifest.Never("has no effect: Roundhouse's own autoscaler decides how fast the count changes"),
	},
	reflect.TypeFor[servingRuntimeSpec](): {
		"grpcEndpoint": manifest.Never(noMesh), "grpcDataEndpoint": manifest.Never(noMesh),
		"httpDataEndpoint": manifest.Never(noMesh), "builtInAdapter": manifest.Never(noMesh), "replicas": manifest.Never(noMesh),
	},
	reflect.TypeFor[graphSpec](): {
		"resources": manifest.Never(noRouter), "affinity": manifest.Never(noRouter), "tolerations": manifest.Never(noRouter),
		"nodeSelector": manifest.Never(noRouter), "nodeName": manifest.Never(noRouter), "serviceAccountName": manifest.Never(noRouter),
		"minReplicas": manifest.Never(noRouter), "maxReplicas": manifest.Never(noRouter),
		"scaleTarget": manifest.Never(noRouter), "scaleMetric": manifest.Never(noRouter),
	},
	reflect.TypeFor[routerTimeouts](): {
		"serverRead":  manifest.Never("has no effect: the gateway's own timeouts hold"),
		"serverWrite": manifest.Never("has no effect: the gateway's own timeouts hold"),
		"serverIdle":  manifest.Never("has no effect: the gateway's own timeouts hold"),
	},
	reflect.TypeFor[runtimePod](): manifest.Only(manifest.PodNotes, "volumes", "nodeSelector", "affinity",
		"tolerations", "imagePullSecrets", "hostIPC", "schedulerName", "resourceClaims"),
}

const (
	noMesh   = "has no effect: it is ModelMesh's"
	noRouter = "has no effect: the gateway runs the graph, and no pod of its own"
)
