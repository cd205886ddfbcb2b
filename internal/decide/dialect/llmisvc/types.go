package llmisvc

import (
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
)

// object is an LLMInferenceService, or its Config.
type object struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            spec              `json:"spec"`
}

type spec struct {
	workload `json:",inline"`

	Model              model                         `json:"model"`
	StorageInitializer *storageInitializer           `json:"storageInitializer,omitempty"`
	Router             *router                       `json:"router,omitempty"`
	Prefill            *workload                     `json:"prefill,omitempty"`
	Tracing            any                           `json:"tracing,omitempty"`
	BaseRefs           []corev1.LocalObjectReference `json:"baseRefs,omitempty"`

	// Workload is no field of KServe's. One of its samples has it.
	Workload any `json:"workload,omitempty"`
}

// workload is what decode and prefill have in common.
type workload struct {
	Replicas          *int              `json:"replicas,omitempty"`
	Scaling           *scaling          `json:"scaling,omitempty"`
	Parallelism       *parallelism      `json:"parallelism,omitempty"`
	Labels            map[string]string `json:"labels,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
	Template          *corev1.PodSpec   `json:"template,omitempty"`
	Worker            *corev1.PodSpec   `json:"worker,omitempty"`
	KVCacheOffloading *offloading       `json:"kvCacheOffloading,omitempty"`
	RolloutStrategy   any               `json:"rolloutStrategy,omitempty"`
}

type offloading struct {
	CPU            resource.Quantity `json:"cpu"`
	EvictionPolicy string            `json:"evictionPolicy,omitempty"`
	Secondary      []secondaryTier   `json:"secondary,omitempty"`
}

type secondaryTier struct {
	FileSystem any `json:"fileSystem,omitempty"`
}

type model struct {
	URI          string      `json:"uri"`
	Name         string      `json:"name"`
	Criticality  string      `json:"criticality,omitempty"` // of v1alpha1
	LoRA         *lora       `json:"lora,omitempty"`
	Confidential *enablement `json:"confidential,omitempty"`
}

type enablement struct {
	Enabled    bool   `json:"enabled"`
	ResourceID string `json:"resourceId,omitempty"`
}

type lora struct {
	Adapters       []adapter `json:"adapters,omitempty"`
	MaxRank        *int      `json:"maxRank,omitempty"`
	MaxAdapters    *int      `json:"maxAdapters,omitempty"`
	MaxCPUAdapters *int      `json:"maxCpuAdapters,omitempty"`
}

// adapter is a model of KServe's within a model.
type adapter struct {
	URI          string `json:"uri"`
	Name         string `json:"name"`
	Criticality  string `json:"criticality,omitempty"`
	LoRA         any    `json:"lora,omitempty"`
	Confidential any    `json:"confidential,omitempty"`
}

type storageInitializer struct {
	Enabled *bool `json:"enabled,omitempty"`
}

type router struct {
	Route     *route     `json:"route,omitempty"`
	Gateway   *gateway   `json:"gateway,omitempty"`
	Ingress   *gateway   `json:"ingress,omitempty"`
	Scheduler *scheduler `json:"scheduler,omitempty"`
}

type route struct {
	HTTP   *httpRoute `json:"http,omitempty"`
	Group  string     `json:"group,omitempty"`
	Weight *int       `json:"weight,omitempty"`
}

type httpRoute struct {
	Refs []corev1.LocalObjectReference `json:"refs,omitempty"`
	Spec any                           `json:"spec,omitempty"`
}

type gateway struct {
	Refs []gatewayRef `json:"refs,omitempty"`
}

type gatewayRef struct {
	Name        string `json:"name"`
	Namespace   string `json:"namespace,omitempty"`
	SectionName string `json:"sectionName,omitempty"`
}

type scheduler struct {
	Pool        any               `json:"pool,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Template    *corev1.PodSpec   `json:"template,omitempty"`
	Config      *schedulerConfig  `json:"config,omitempty"`
	Replicas    *int              `json:"replicas,omitempty"`
	Tokenizer   *tokenizer        `json:"tokenizer,omitempty"`
}

type schedulerConfig struct {
	Inline any              `json:"inline,omitempty"`
	Ref    *configMapKeyRef `json:"ref,omitempty"`
}

// configMapKeyRef is Kubernetes' ConfigMapKeySelector.
type configMapKeyRef struct {
	Name     string `json:"name"`
	Key      string `json:"key,omitempty"`
	Optional *bool  `json:"optional,omitempty"`
}

type tokenizer struct {
	Template *corev1.PodSpec `json:"template,omitempty"`
}

type scaling struct {
	MinReplicas *int  `json:"minReplicas,omitempty"`
	MaxReplicas *int  `json:"maxReplicas,omitempty"`
	WVA         *wva  `json:"wva,omitempty"`
	KEDA        *keda `json:"keda,omitempty"`
}

type wva struct {
	VariantCost string `json:"variantCost,omitempty"`
	HPA         any    `json:"hpa,omitempty"`
	KEDA        *keda  `json:"keda,omitempty"`
}

type keda struct {
	PollingInterval       *int `json:"pollingInterval,omitempty"`
	CooldownPeriod        *int `json:"cooldownPeriod,omitempty"`
	InitialCooldownPeriod *int `json:"initialCooldownPeriod,omitempty"`
	IdleReplicaCount      *int `json:"idleReplicaCount,omitempty"`
	Fallback              any  `json:"fallback,omitempty"`
	Advanced              any  `json:"advanced,omitempty"`
	Triggers              any  `json:"triggers,omitempty"`
}

type parallelism struct {
	Tensor      *int `json:"tensor,omitempty"`
	Pipeline    *int `json:"pipeline,omitempty"`
	Data        *int `json:"data,omitempty"`
	DataLocal   *int `json:"dataLocal,omitempty"`
	DataRPCPort *int `json:"dataRPCPort,omitempty"`
	Expert      bool `json:"expert,omitempty"`
}

const (
	ownPicker   = "has no effect: Roundhouse's gateway chooses the replica itself; a Pool states another picker"
	ownScaler   = "has no effect: Roundhouse's own autoscaler decides the count"
	noContainer = "has no effect: there is no container of this kind here"
	manyRoutes  = "has no effect: a route beyond the service's own paths is an HTTPRoute of its own"
)

// Notes are those of this dialect's types.
var Notes = manifest.Notes{
	reflect.TypeFor[spec](): {
		"tracing":  manifest.Never("has no effect: the gateway traces requests (--otlp-endpoint); give vLLM its own with --otlp-traces-endpoint"),
		"workload": manifest.Never("is no field of KServe's and has no effect: what it holds belongs below spec itself"),
	},
	reflect.TypeFor[workload](): {
		"rolloutStrategy": manifest.Never("has no effect: a revision is replaced as all services' are"),
	},
	reflect.TypeFor[offloading](): {
		"secondary": manifest.Never("has no effect: what falls out of main memory is computed again"),
	},
	reflect.TypeFor[adapter](): {
		"criticality":  manifest.Never("has no effect: requests have the service's own"),
		"lora":         manifest.Refused("an adapter has no adapters of its own: remove it"),
		"confidential": manifest.Refused("is not supported: the adapter would be served without it"),
	},
	reflect.TypeFor[storageInitializer](): {
		"enabled": manifest.Never("has no effect: Roundhouse fetches the model itself"),
	},
	reflect.TypeFor[router](): {
		"ingress": manifest.Never("has no effect: Roundhouse's gateway takes the requests; an Ingress may lead to it"),
	},
	reflect.TypeFor[httpRoute](): {
		"spec": manifest.Never(manyRoutes),
		"refs": manifest.OnProcess("has no effect on one machine, but for HTTPRoutes that are applied: they lead to the service where they name it"),
	},
	reflect.TypeFor[gateway](): {
		"refs": manifest.OnProcess("has no effect on one machine: up is the one gateway"),
	},
	reflect.TypeFor[scheduler](): {
		"pool": manifest.Never(ownPicker), "template": manifest.Never(noContainer),
		"labels": manifest.Never(noContainer), "annotations": manifest.Never(noContainer), "replicas": manifest.Never(noContainer),
		"tokenizer": manifest.Never(noContainer),
	},
	reflect.TypeFor[scaling](): {
		"wva": manifest.Never(ownScaler + "; of keda in it, idleReplicaCount and cooldownPeriod are read"),
	},
	reflect.TypeFor[keda](): {
		"pollingInterval": manifest.Never(ownScaler), "initialCooldownPeriod": manifest.Never(ownScaler),
		"fallback": manifest.Never(ownScaler), "advanced": manifest.Never(ownScaler), "triggers": manifest.Never(ownScaler),
	},
}
