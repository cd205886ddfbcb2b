package ome

import (
	"reflect"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
)

// The types of this file are OME's v1beta1 kinds as its users write them.
// Fields that are refused or without effect keep no shape (any); fieldNotes
// says so. Fields that describe a model and are acted on by nobody, in OME
// either, are any too.

type inferenceService struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta    `json:"metadata"`
	Spec            inferenceServiceSpec `json:"spec"`
}

type inferenceServiceSpec struct {
	Model               *modelRef   `json:"model"`
	Runtime             *runtimeRef `json:"runtime"`
	Engine              *component  `json:"engine"`
	Decoder             *component  `json:"decoder"`
	Router              *router     `json:"router"`
	AcceleratorSelector *selector   `json:"acceleratorSelector"`
	KedaConfig          any         `json:"kedaConfig"`
	// Predictor is the legacy schema.
	Predictor *predictor `json:"predictor"`
}

type modelRef struct {
	Name             string   `json:"name"`
	Kind             string   `json:"kind"`
	APIGroup         string   `json:"apiGroup"`
	FineTunedWeights []string `json:"fineTunedWeights"`
}

type runtimeRef struct {
	Name     string `json:"name"`
	Kind     string `json:"kind"`
	APIGroup string `json:"apiGroup"`
}

// component is an engine or a decoder, of a service or of a runtime.
type component struct {
	corev1.PodSpec `json:",inline"`
	extension      `json:",inline"`

	Runner              *corev1.Container `json:"runner"`
	Leader              *node             `json:"leader"`
	Worker              *node             `json:"worker"`
	AcceleratorOverride *selector         `json:"acceleratorOverride"`
}

type node struct {
	corev1.PodSpec `json:",inline"`

	Runner *corev1.Container `json:"runner"`
	Size   *int              `json:"size"`
}

type router struct {
	corev1.PodSpec `json:",inline"`
	extension      `json:",inline"`

	Runner *corev1.Container `json:"runner"`
	Config map[string]string `json:"config"`
}

// extension is what every component has.
type extension struct {
	MinReplicas          *int                       `json:"minReplicas"`
	MaxReplicas          *int                       `json:"maxReplicas"`
	ScaleTarget          *int                       `json:"scaleTarget"`
	ScaleMetric          string                     `json:"scaleMetric"`
	ContainerConcurrency *int                       `json:"containerConcurrency"`
	CanaryTrafficPercent *int                       `json:"canaryTrafficPercent"`
	Labels               map[string]string          `json:"labels"`
	Annotations          map[string]string          `json:"annotations"`
	TimeoutSeconds       *int                       `json:"timeoutSeconds"`
	MinAvailable         *intstr.IntOrString        `json:"minAvailable"`
	MaxUnavailable       *intstr.IntOrString        `json:"maxUnavailable"`
	DeploymentStrategy   *appsv1.DeploymentStrategy `json:"deploymentStrategy"`
	KedaConfig           any                        `json:"kedaConfig"`
}

// predictor is the legacy schema of a service.
type predictor struct {
	corev1.PodSpec `json:",inline"`
	extension      `json:",inline"`

	Model      *legacyModel `json:"model"`
	WorkerSpec *node        `json:"workerSpec"`
}

type legacyModel struct {
	corev1.Container `json:",inline"`

	BaseModel        string   `json:"baseModel"`
	Runtime          string   `json:"runtime"`
	StorageURI       string   `json:"storageUri"`
	RuntimeVersion   string   `json:"runtimeVersion"`
	ProtocolVersion  string   `json:"protocolVersion"`
	FineTunedWeights []string `json:"fineTunedWeights"`
}

type servingRuntime struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta  `json:"metadata"`
	Spec            servingRuntimeSpec `json:"spec"`
}

type servingRuntimeSpec struct {
	runtimePod `json:",inline"`

	SupportedModelFormats   []supportedFormat `json:"supportedModelFormats"`
	ModelSizeRange          *sizeRange        `json:"modelSizeRange"`
	Disabled                bool              `json:"disabled"`
	ProtocolVersions        []string          `json:"protocolVersions"`
	EngineConfig            *component        `json:"engineConfig"`
	DecoderConfig           *component        `json:"decoderConfig"`
	RouterConfig            *router           `json:"routerConfig"`
	AcceleratorRequirements *requirements     `json:"acceleratorRequirements"`
	Workers                 *workers          `json:"workers"`
}

type supportedFormat struct {
	Name              string     `json:"name"`
	Version           string     `json:"version"`
	ModelFormat       *versioned `json:"modelFormat"`
	ModelFramework    *versioned `json:"modelFramework"`
	ModelArchitecture string     `json:"modelArchitecture"`
	Quantization      string     `json:"quantization"`
	AutoSelect        bool       `json:"autoSelect"`
	Priority          *int       `json:"priority"`
	ModelType         any        `json:"modelType"`
	DiffusionPipeline *pipeline  `json:"diffusionPipeline"`
	// AcceleratorConfig is by the names of classes.
	AcceleratorConfig map[string]*acceleratorConfig `json:"acceleratorConfig"`
}

type versioned struct {
	Name     string `json:"name"`
	Version  string `json:"version"`
	Operator string `json:"operator"`
	Weight   *int   `json:"weight"`
}

type sizeRange struct {
	Min string `json:"min"`
	Max string `json:"max"`
}

// runtimePod is the part of a pod that an OME runtime may state beside its
// components.
type runtimePod struct {
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

type workers struct {
	runtimePod `json:",inline"`

	Size *int `json:"size"`
}

func (p *runtimePod) spec() corev1.PodSpec {
	return corev1.PodSpec{Containers: p.Containers, Volumes: p.Volumes, NodeSelector: p.NodeSelector,
		Affinity: p.Affinity, Tolerations: p.Tolerations, ImagePullSecrets: p.ImagePullSecrets,
		SchedulerName: p.SchedulerName, HostIPC: p.HostIPC, DNSPolicy: p.DNSPolicy, HostNetwork: p.HostNetwork}
}

type baseModel struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            baseModelSpec     `json:"spec"`
}

type baseModelSpec struct {
	description `json:",inline"`

	ModelFormat        *versioned `json:"modelFormat"`
	ModelFramework     *versioned `json:"modelFramework"`
	ModelArchitecture  string     `json:"modelArchitecture"`
	Quantization       string     `json:"quantization"`
	ModelParameterSize string     `json:"modelParameterSize"`
	Storage            *storage   `json:"storage"`
	Disabled           bool       `json:"disabled"`
	DisplayName        string     `json:"displayName"`
	DiffusionPipeline  *pipeline  `json:"diffusionPipeline"`
}

// description is what only describes a model.
type description struct {
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

type storage struct {
	StorageURI     string               `json:"storageUri"`
	Path           string               `json:"path"`
	SchemaPath     string               `json:"schemaPath"`
	Parameters     map[string]string    `json:"parameters"`
	Key            string               `json:"key"`
	StorageKey     string               `json:"storageKey"`
	NodeSelector   map[string]string    `json:"nodeSelector"`
	NodeAffinity   *corev1.NodeAffinity `json:"nodeAffinity"`
	DownloadPolicy string               `json:"downloadPolicy"`
}

type fineTunedWeight struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta   `json:"metadata"`
	Spec            fineTunedWeightSpec `json:"spec"`
}

type fineTunedWeightSpec struct {
	BaseModelRef    *objectRef `json:"baseModelRef"`
	ModelType       string     `json:"modelType"`
	HyperParameters any        `json:"hyperParameters"`
	Configuration   any        `json:"configuration"`
	Storage         *storage   `json:"storage"`
	TrainingJobRef  *objectRef `json:"trainingJobRef"`
	DisplayName     string     `json:"displayName"`
	Version         string     `json:"version"`
	Disabled        bool       `json:"disabled"`
	Vendor          string     `json:"vendor"`
	CompartmentID   string     `json:"compartmentID"`
}

type objectRef struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

// Notes are those of this dialect's types.
var Notes = manifest.Notes{
	reflect.TypeFor[inferenceServiceSpec](): {"kedaConfig": manifest.Never(noKEDA)},
	reflect.TypeFor[extension]():            {"kedaConfig": manifest.Never(noKEDA)},
	reflect.TypeFor[supportedFormat](): {
		"modelType": manifest.Never("has no effect: runtimes are matched by format, framework, architecture, quantization and diffusion pipeline"),
	},
	reflect.TypeFor[acceleratorClassSpec](): {"integration": manifest.Never("has no effect: nothing is told to Kueue or Volcano")},
	reflect.TypeFor[discovery](): {
		"affinity":    manifest.OnProcess(manifest.NoPlacement),
		"pciVendorID": {Message: noBus, Warning: true, Platform: manifest.Kubernetes},
		"deviceIDs":   {Message: noBus, Warning: true, Platform: manifest.Kubernetes},
	},
	reflect.TypeFor[capabilities](): {
		"levelZeroVersion": manifest.Never(noPolicy), "clockSpeedMHz": manifest.Never(noPolicy),
	},
	reflect.TypeFor[performance]():         {"latency": manifest.Never(noPolicy)},
	reflect.TypeFor[acceleratorResource](): {"divisible": manifest.Never("has no effect: replicas get whole resources")},
	reflect.TypeFor[storage](): {
		"path":           manifest.OnProcess("has no effect on one machine: models are kept in its own cache"),
		"schemaPath":     manifest.Never("has no effect"),
		"nodeSelector":   manifest.OnProcess(manifest.NoPlacement),
		"nodeAffinity":   manifest.OnProcess(manifest.NoPlacement),
		"downloadPolicy": manifest.Never("has no effect: a model is fetched anew only when its source has changed"),
	},
	reflect.TypeFor[benchmarkJobSpec](): benchmarkNotes,
	reflect.TypeFor[benchmarkStorage](): benchmarkStorageNotes,
	reflect.TypeFor[podOverride]():      podOverrideNotes,
	reflect.TypeFor[runtimePod](): manifest.Only(manifest.PodNotes, "volumes", "nodeSelector", "affinity", "tolerations",
		"imagePullSecrets", "schedulerName", "hostIPC", "dnsPolicy", "hostNetwork"),
}

const (
	noKey    = "has no effect on a cluster but for services of the namespace ome, where the secret is: give the service account of other pods a secret of their own namespace, or write a BaseModel"
	noKEDA   = "has no effect: write scaleMetric and scaleTarget"
	noPolicy = "has no effect: no policy goes by it"
	noBus    = "has no effect on a cluster: nodeSelector and affinity lead pods to nodes"
)
