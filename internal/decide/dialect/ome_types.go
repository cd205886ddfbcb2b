package dialect

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The types of this file are OME's v1beta1 kinds as its users write them.
// Fields that are refused or without effect keep no shape (any); fieldNotes
// says so. Fields that describe a model and are acted on by nobody, in OME
// either, are any too.

type omeService struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            omeServiceSpec    `json:"spec"`
}

type omeServiceSpec struct {
	Model               *omeModelRef    `json:"model"`
	Runtime             *omeRuntimeRef  `json:"runtime"`
	Engine              *omeComponent   `json:"engine"`
	Decoder             *omeComponent   `json:"decoder"`
	Router              *omeRouter      `json:"router"`
	AcceleratorSelector *omeAccelerator `json:"acceleratorSelector"`
	KedaConfig          any             `json:"kedaConfig"`
	// Predictor is the legacy schema.
	Predictor *omePredictor `json:"predictor"`
}

type omeModelRef struct {
	Name             string   `json:"name"`
	Kind             string   `json:"kind"`
	APIGroup         string   `json:"apiGroup"`
	FineTunedWeights []string `json:"fineTunedWeights"`
}

type omeRuntimeRef struct {
	Name     string `json:"name"`
	Kind     string `json:"kind"`
	APIGroup string `json:"apiGroup"`
}

type omeAccelerator struct {
	AcceleratorClass string `json:"acceleratorClass"`
	Constraints      any    `json:"constraints"`
	Policy           string `json:"policy"`
}

// omeComponent is an engine or a decoder, of a service or of a runtime.
type omeComponent struct {
	corev1.PodSpec `json:",inline"`
	omeExtension   `json:",inline"`

	Runner              *corev1.Container `json:"runner"`
	Leader              *omeNode          `json:"leader"`
	Worker              *omeNode          `json:"worker"`
	AcceleratorOverride *omeAccelerator   `json:"acceleratorOverride"`
}

type omeNode struct {
	corev1.PodSpec `json:",inline"`

	Runner *corev1.Container `json:"runner"`
	Size   *int              `json:"size"`
}

type omeRouter struct {
	corev1.PodSpec `json:",inline"`
	omeExtension   `json:",inline"`

	Runner *corev1.Container `json:"runner"`
	Config map[string]string `json:"config"`
}

// omeExtension is what every component has.
type omeExtension struct {
	MinReplicas          *int              `json:"minReplicas"`
	MaxReplicas          *int              `json:"maxReplicas"`
	ScaleTarget          *int              `json:"scaleTarget"`
	ScaleMetric          string            `json:"scaleMetric"`
	ContainerConcurrency *int              `json:"containerConcurrency"`
	CanaryTrafficPercent *int              `json:"canaryTrafficPercent"`
	Labels               map[string]string `json:"labels"`
	Annotations          map[string]string `json:"annotations"`
	TimeoutSeconds       *int              `json:"timeoutSeconds"`
	MinAvailable         any               `json:"minAvailable"`
	MaxUnavailable       any               `json:"maxUnavailable"`
	DeploymentStrategy   any               `json:"deploymentStrategy"`
	KedaConfig           any               `json:"kedaConfig"`
}

// omePredictor is the legacy schema of a service.
type omePredictor struct {
	corev1.PodSpec `json:",inline"`
	omeExtension   `json:",inline"`

	Model      *omeModel `json:"model"`
	WorkerSpec *omeNode  `json:"workerSpec"`
}

type omeModel struct {
	corev1.Container `json:",inline"`

	BaseModel        string   `json:"baseModel"`
	Runtime          string   `json:"runtime"`
	StorageURI       string   `json:"storageUri"`
	RuntimeVersion   string   `json:"runtimeVersion"`
	ProtocolVersion  string   `json:"protocolVersion"`
	FineTunedWeights []string `json:"fineTunedWeights"`
}

type omeRuntime struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            omeRuntimeSpec    `json:"spec"`
}

type omeRuntimeSpec struct {
	omeRuntimePod `json:",inline"`

	SupportedModelFormats   []omeSupportedFormat `json:"supportedModelFormats"`
	ModelSizeRange          *omeSizeRange        `json:"modelSizeRange"`
	Disabled                bool                 `json:"disabled"`
	ProtocolVersions        []string             `json:"protocolVersions"`
	EngineConfig            *omeComponent        `json:"engineConfig"`
	DecoderConfig           *omeComponent        `json:"decoderConfig"`
	RouterConfig            *omeRouter           `json:"routerConfig"`
	AcceleratorRequirements *omeRequirements     `json:"acceleratorRequirements"`
	Workers                 *omeWorkers          `json:"workers"`
}

type omeSupportedFormat struct {
	Name              string        `json:"name"`
	Version           string        `json:"version"`
	ModelFormat       *omeVersioned `json:"modelFormat"`
	ModelFramework    *omeVersioned `json:"modelFramework"`
	ModelArchitecture string        `json:"modelArchitecture"`
	Quantization      string        `json:"quantization"`
	AutoSelect        bool          `json:"autoSelect"`
	Priority          *int          `json:"priority"`
	ModelType         any           `json:"modelType"`
	DiffusionPipeline any           `json:"diffusionPipeline"`
	AcceleratorConfig any           `json:"acceleratorConfig"`
}

type omeVersioned struct {
	Name     string `json:"name"`
	Version  string `json:"version"`
	Operator string `json:"operator"`
	Weight   *int   `json:"weight"`
}

type omeSizeRange struct {
	Min string `json:"min"`
	Max string `json:"max"`
}

type omeRequirements struct {
	AcceleratorClasses          []string `json:"acceleratorClasses"`
	MinMemory                   any      `json:"minMemory"`
	MinComputePerformanceTFLOPS any      `json:"minComputePerformanceTFLOPS"`
	MinArchitectureVersion      any      `json:"minArchitectureVersion"`
	RequiredFeatures            any      `json:"requiredFeatures"`
	PreferredPrecisions         any      `json:"preferredPrecisions"`
}

// omeRuntimePod is the part of a pod that an OME runtime may state beside its
// components.
type omeRuntimePod struct {
	Containers       []corev1.Container            `json:"containers"`
	Volumes          []corev1.Volume               `json:"volumes"`
	NodeSelector     map[string]string             `json:"nodeSelector"`
	Affinity         *corev1.Affinity              `json:"affinity"`
	Tolerations      []corev1.Toleration           `json:"tolerations"`
	Labels           map[string]string             `json:"labels"`
	Annotations      map[string]string             `json:"annotations"`
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets"`
	SchedulerName    string                        `json:"schedulerName"`
	HostIPC          bool                          `json:"hostIPC"`
	DNSPolicy        corev1.DNSPolicy              `json:"dnsPolicy"`
	HostNetwork      bool                          `json:"hostNetwork"`
}

type omeWorkers struct {
	omeRuntimePod `json:",inline"`

	Size *int `json:"size"`
}

func (p *omeRuntimePod) spec() corev1.PodSpec {
	return corev1.PodSpec{Containers: p.Containers, Volumes: p.Volumes, NodeSelector: p.NodeSelector,
		Affinity: p.Affinity, Tolerations: p.Tolerations, ImagePullSecrets: p.ImagePullSecrets,
		SchedulerName: p.SchedulerName, HostIPC: p.HostIPC, DNSPolicy: p.DNSPolicy, HostNetwork: p.HostNetwork}
}

type omeBaseModel struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            omeBaseModelSpec  `json:"spec"`
}

type omeBaseModelSpec struct {
	omeDescription `json:",inline"`

	ModelFormat        *omeVersioned `json:"modelFormat"`
	ModelFramework     *omeVersioned `json:"modelFramework"`
	ModelArchitecture  string        `json:"modelArchitecture"`
	Quantization       string        `json:"quantization"`
	ModelParameterSize string        `json:"modelParameterSize"`
	Storage            *omeStorage   `json:"storage"`
	Disabled           bool          `json:"disabled"`
	DisplayName        string        `json:"displayName"`
	DiffusionPipeline  any           `json:"diffusionPipeline"`
}

// omeDescription is what only describes a model.
type omeDescription struct {
	ModelType          string            `json:"modelType"`
	ModelCapabilities  []string          `json:"modelCapabilities"`
	APICapabilities    []string          `json:"apiCapabilities"`
	ModelConfiguration any               `json:"modelConfiguration"`
	ServingMode        []string          `json:"servingMode"`
	MaxTokens          *int              `json:"maxTokens"`
	AdditionalMetadata map[string]string `json:"additionalMetadata"`
	Version            string            `json:"version"`
	Vendor             string            `json:"vendor"`
	CompartmentID      string            `json:"compartmentID"`
}

type omeStorage struct {
	StorageURI     string               `json:"storageUri"`
	Path           string               `json:"path"`
	SchemaPath     string               `json:"schemaPath"`
	Parameters     map[string]string    `json:"parameters"`
	Key            string               `json:"key"`
	NodeSelector   map[string]string    `json:"nodeSelector"`
	NodeAffinity   *corev1.NodeAffinity `json:"nodeAffinity"`
	DownloadPolicy string               `json:"downloadPolicy"`
}

type omeFineTunedWeight struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta      `json:"metadata"`
	Spec            omeFineTunedWeightSpec `json:"spec"`
}

type omeFineTunedWeightSpec struct {
	BaseModelRef    *omeObjectRef `json:"baseModelRef"`
	ModelType       string        `json:"modelType"`
	HyperParameters any           `json:"hyperParameters"`
	Configuration   any           `json:"configuration"`
	Storage         *omeStorage   `json:"storage"`
	TrainingJobRef  *omeObjectRef `json:"trainingJobRef"`
	DisplayName     string        `json:"displayName"`
	Version         string        `json:"version"`
	Disabled        bool          `json:"disabled"`
	Vendor          string        `json:"vendor"`
	CompartmentID   string        `json:"compartmentID"`
}

type omeObjectRef struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}
