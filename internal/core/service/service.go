// Package service is the hub: the words every dialect's manifests are read
// into (Service, Runtime, Model) and every decision is made from. It holds no
// behaviour beyond its own invariants; pod-shaped parts are k8s.io/api types,
// because they are the field's words for them.
package service

import (
	"path"
	"reflect"
	"strings"
	"time"
)

// DefaultNamespace holds objects whose manifest names none.
const DefaultNamespace = "default"

// Key identifies a namespaced object of one kind, or what runs for a service:
// the workload of one of its variants.
type Key struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Variant is set for what runs for a service beside its stable workload;
	// objects have none.
	Variant Variant `json:"variant,omitempty"`
}

// Variant tells the workloads of one service apart. The stable one is "".
type Variant string

// VariantCanary is the workload of a changed manifest that takes a share of
// the traffic while the stable one goes on serving.
const VariantCanary Variant = "canary"

// variantSeparator stands in no name that a manifest may give.
const variantSeparator = "~"

// String is "namespace/name", followed by "~variant" for a variant.
func (k Key) String() string { return k.Namespace + "/" + k.WorkloadName() }

// Short is the key as commands read it: the name alone in DefaultNamespace.
func (k Key) Short() string { return strings.TrimPrefix(k.String(), DefaultNamespace+"/") }

// WorkloadName is the name with the variant ("iris~canary"): unique among the
// workloads of a namespace.
func (k Key) WorkloadName() string {
	if k.Variant == "" {
		return k.Name
	}
	return k.Name + variantSeparator + string(k.Variant)
}

// Canary is the key of the service's canary.
func (k Key) Canary() Key {
	k.Variant = VariantCanary
	return k
}

// IsCanary reports whether k is a service's canary.
func (k Key) IsCanary() bool { return k.Variant == VariantCanary }

// Stable is the key of the service that k is a workload of.
func (k Key) Stable() Key {
	k.Variant = ""
	return k
}

// ParseKey reads "name" (in DefaultNamespace) or "namespace/name", either with
// "~variant", as String writes it.
func ParseKey(s string) Key {
	ns, name, ok := strings.Cut(s, "/")
	if !ok {
		ns, name = DefaultNamespace, s
	}
	return WorkloadKey(ns, name)
}

// WorkloadKey is the key of a workload whose WorkloadName is name.
func WorkloadKey(namespace, name string) Key {
	name, variant, _ := strings.Cut(name, variantSeparator)
	return Key{Namespace: namespace, Name: name, Variant: Variant(variant)}
}

// Origin is where an object was read, so that messages and status can use its
// author's terms and field paths.
type Origin struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
	File       string `json:"file,omitempty"` // as the user named it; "" when it did not come from a file
	Line       int    `json:"line,omitempty"` // 1-based line of the document's start
}

// Dialect names the family of an API version.
type Dialect string

// The dialects the hub is read from.
const (
	DialectRoundhouse Dialect = "roundhouse"
	DialectKServe     Dialect = "kserve"
	DialectOME        Dialect = "ome"
	DialectSeldon     Dialect = "seldon"
	DialectGateway    Dialect = "gateway" // the Gateway API, its inference extension, and llm-d's kinds for it
)

// Dialect is the family of the API version the object was written in.
func (o Origin) Dialect() Dialect {
	switch group, _, _ := strings.Cut(o.APIVersion, "/"); group {
	case "serving.kserve.io", "serving.kubeflow.org":
		return DialectKServe
	case "ome.io":
		return DialectOME
	case "machinelearning.seldon.io":
		return DialectSeldon
	case "inference.networking.x-k8s.io", "inference.networking.k8s.io", "llm-d.ai", "gateway.networking.k8s.io":
		return DialectGateway
	default:
		return DialectRoundhouse
	}
}

// Meta is what every object carries, whatever dialect it came from.
// Namespace is empty for cluster-scoped objects.
type Meta struct {
	Key         `json:",inline"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	// Created is when the object was first applied; it survives re-apply and
	// restart. Zero for an object still in a file.
	Created time.Time `json:"created,omitzero"`
	Origin  Origin    `json:"origin,omitzero"`
}

// Service is what every dialect's service kind is read into: one logical
// model name and how to serve it.
type Service struct {
	Meta `json:",inline"`
	// Model is nil when the service brings its own containers and no model.
	Model *ModelSource `json:"model,omitempty"`
	// Runtime is the runtime asked for by name; nil means choose one.
	Runtime *ObjectRef `json:"runtime,omitempty"`
	// RuntimeYields: where Runtime cannot run and another can, that is chosen.
	RuntimeYields bool `json:"runtimeYields,omitempty"`
	// RuntimeVersion replaces the tag of the serving container's image.
	RuntimeVersion string `json:"runtimeVersion,omitempty"`
	// Protocol is the protocol asked for; "" when the manifest states none.
	Protocol Protocol `json:"protocol,omitempty"`
	// ProtocolDefault is what "unset" means in the manifest's dialect: v1 for
	// KServe, openAI for OME, "" (the runtime's best) for ours.
	ProtocolDefault Protocol `json:"protocolDefault,omitempty"`
	// MultiModel asks for a runtime that holds several models.
	MultiModel bool `json:"multiModel,omitempty"`
	// Custom reports that the engine's containers are complete and no runtime is
	// to be selected (KServe's predictor with only containers).
	Custom bool `json:"custom,omitempty"`
	// Parent is a service of the namespace at whose host it answers too, by its name;
	// "" for none. Where that is a Repository, its replicas load the model.
	Parent string `json:"parent,omitempty"`
	// Repository: it has no model of its own. Where its server can, its replicas load
	// those of the services that name it as their Parent.
	Repository bool `json:"repository,omitempty"`
	// AcceleratorClass names required accelerator classes (OME).
	AcceleratorClass []string `json:"acceleratorClass,omitempty"`
	// Accelerators are which class each role asks for. Those of AcceleratorClass are
	// among them.
	Accelerators map[Role]AcceleratorSelector `json:"accelerators,omitempty"`
	// Disaggregation overrides the runtime's; "" leaves it.
	Disaggregation Disaggregation `json:"disaggregation,omitempty"`
	// CanaryPercent is how much of the traffic a changed manifest is to take
	// while the revision before it goes on serving; nil, or 100, replaces that.
	CanaryPercent *int `json:"canaryPercent,omitempty"`
	// Stopped is a service its owner has switched off: by AnnotationStop, KServe's
	// force-stop, or a field.
	Stopped bool `json:"stopped,omitempty"`
	// Residency is how it shares one machine with others.
	Residency Residency `json:"residency,omitzero"`
	// KeepBodies is how many bytes are kept in memory of the bodies of each of its last
	// requests, and of their answers; 0 keeps none.
	KeepBodies int        `json:"keepBodies,omitempty"`
	KVCache    *KVCache   `json:"kvCache,omitempty"`
	Components Components `json:"components,omitzero"`
	// Access is how requests reach it, besides by its name and its host.
	Access Access `json:"access,omitzero"`
	// Scheduling is how requests find a replica; nil leaves it to the gateway.
	Scheduling *Scheduling `json:"scheduling,omitempty"`
	// SchedulingFrom is the ConfigMap that has the Scheduling; nil where none is named.
	SchedulingFrom *ConfigMapKey `json:"schedulingFrom,omitempty"`
	// Bases name the Bases that its manifest is laid over, each over the one before.
	Bases []string `json:"bases,omitempty"`
}

// Access is how requests reach a service besides by its name and its host.
type Access struct {
	// Names are names of the model for requests; replicas serve it by the first.
	Names []string `json:"names,omitempty"`
	// ByPath: below /NAMESPACE/NAME, and below each of Paths, are the service's own
	// paths.
	ByPath bool     `json:"byPath,omitempty"`
	Paths  []string `json:"paths,omitempty"`
	// Group names services of the namespace that share the requests for their Names,
	// each by its Weight.
	Group  string `json:"group,omitempty"`
	Weight uint32 `json:"weight,omitempty"`
	// Priority is that of requests which ask for none: above 0 critical, below 0
	// sheddable.
	Priority int32 `json:"priority,omitempty"`
}

// Equal reports whether a and o are the same.
func (a Access) Equal(o Access) bool { return reflect.DeepEqual(a, o) }

// ServedName is the name by which replicas serve the model.
func (s *Service) ServedName() string {
	if len(s.Access.Names) > 0 {
		return s.Access.Names[0]
	}
	return s.Name
}

// Base is what manifests of services are laid over (KServe's
// LLMInferenceServiceConfig). What it says is in its manifest alone: it has no
// meaning before it is merged.
type Base struct {
	Meta `json:",inline"`
	// SchedulingFrom is what it says of that: whoever fetches ConfigMaps needs to know
	// of it before services are laid over it.
	SchedulingFrom *ConfigMapKey `json:"schedulingFrom,omitempty"`
}

// KVCache is where engines keep the keys and values of prompts besides the GPU.
type KVCache struct {
	Connector string `json:"connector"`
	// Remote is what all replicas share; "" for a cache of each replica's own.
	Remote string `json:"remote,omitempty"`
	// Memory is what a replica may take, in bytes; 0 is the connector's own default.
	Memory int64 `json:"memory,omitempty"`
}

// The connectors of a KVCache.
const (
	ConnectorLMCache = "lmcache"
	ConnectorHiCache = "hicache"
)

// Connectors lists them.
var Connectors = []string{ConnectorLMCache, ConnectorHiCache}

// SharesPrefixes reports whether what one replica has computed of a prompt is
// there for all.
func (s *Service) SharesPrefixes() bool {
	return s != nil && s.KVCache != nil && s.KVCache.Remote != ""
}

// AnnotationModelStore is the annotation of a service for the folder of each node
// in which its pods share the files of models: an absolute path, or
// [NoModelStore] where the operator's choice is not wanted.
const AnnotationModelStore = "roundhouse.dev/model-store"

// AnnotationStop is the annotation of a service that is switched off: "true".
// KServe's kinds have one of their own as well.
const (
	AnnotationStop       = "roundhouse.dev/stop"
	AnnotationKServeStop = "serving.kserve.io/stop"
)

// AnnotationRestarted is the annotation of a service for when all its replicas were
// last to be replaced. Whatever changes there makes a new revision.
const AnnotationRestarted = "roundhouse.dev/restarted-at"

// AnnotationKeepBodies is the annotation of a service for KeepBodies, which is at most
// MaxKeptBody.
const (
	AnnotationKeepBodies = "roundhouse.dev/keep-bodies"
	MaxKeptBody          = 64 << 10
)

// NoModelStore as a model store: every pod has its own copy.
const NoModelStore = "none"

// ModelStoreError returns what is wrong with a model store; "" is nothing.
func ModelStoreError(store string) string {
	switch {
	case store == NoModelStore:
		return ""
	case !path.IsAbs(store), path.Clean(store) != store, store == "/", strings.ContainsAny(store, ":\x00"):
		return "write the absolute path of a folder of the nodes, such as /var/lib/roundhouse/models, or " + NoModelStore
	}
	return ""
}

// AnnotationResidency begins the annotations by which manifests of other kinds
// than Roundhouse's state Residency.
const AnnotationResidency = "roundhouse.dev/residency-"

// Residency is how a service shares one machine's GPUs and memory with others.
type Residency struct {
	// Pin: it is never stopped to make room for another.
	Pin bool `json:"pin,omitempty"`
	// Priority puts it before services of lower priority where several wait for
	// room, and has it stopped after them.
	Priority int `json:"priority,omitempty"`
	// GPUMemory is what one replica takes of each of its GPUs, in bytes: the rest
	// is left to others. 0 takes them whole.
	GPUMemory int64 `json:"gpuMemory,omitempty"`
	// GPUPercent is the same in percent of the memory of each; 0 where GPUMemory counts.
	GPUPercent int `json:"gpuPercent,omitempty"`
	// ShareGPU: it takes what its files let expect, then what was measured.
	ShareGPU bool `json:"shareGPU,omitempty"`
	// Preload: it is started with the machine's owner, if it fits.
	Preload bool `json:"preload,omitempty"`
	// Group names services that an exclusive one of them leaves alone. Exclusive: it
	// starts once no service outside of its group runs.
	Group     string `json:"group,omitempty"`
	Exclusive bool   `json:"exclusive,omitempty"`
	// OneOf names alternatives, of which one runs at a time.
	OneOf string `json:"oneOf,omitempty"`
}

// ObjectRef names another object. An empty Kind means "the namespaced kind
// first, then the cluster-scoped one".
type ObjectRef struct {
	Name string `json:"name"`
	Kind string `json:"kind,omitempty"`
	// Implied: the manifest names it by what it means alone, as KServe's legacy schema
	// does. One machine may take another in its place, so it is no part of a revision.
	Implied bool `json:"-"`
}

// In is the reference as d means it. OME's kind narrows nothing: it looks in the
// namespace and then in the cluster whatever the kind is, and its definition
// writes the cluster's kind where the manifest states none.
func (r ObjectRef) In(d Dialect) ObjectRef {
	if d == DialectOME {
		r.Kind = ""
	}
	return r
}

// Role is the part a component plays in a service.
type Role string

// The roles. A service without disaggregation has an engine alone; a
// predictor (KServe) is an engine.
const (
	RoleEngine      Role = "engine"
	RoleDecoder     Role = "decoder"
	RoleRouter      Role = "router"
	RoleTransformer Role = "transformer"
	RoleExplainer   Role = "explainer"
)

// RolePrefill and RoleEncode are roles of servers that no service of ours has: they
// compute prompts, or pictures, for the others of their pool.
const (
	RolePrefill Role = "prefill"
	RoleEncode  Role = "encode"
)

// Roles lists every role of a service in the order components start and are printed.
var Roles = []Role{RoleEngine, RoleDecoder, RoleRouter, RoleTransformer, RoleExplainer}

// Components are the parts of a service or the defaults a runtime gives them.
// A nil component is absent.
type Components struct {
	Engine      *Component `json:"engine,omitempty"`
	Decoder     *Component `json:"decoder,omitempty"`
	Router      *Component `json:"router,omitempty"`
	Transformer *Component `json:"transformer,omitempty"`
	// Explainer answers the calls that ask for explanations; it asks the others.
	Explainer *Component `json:"explainer,omitempty"`
}

// Get returns the component of a role, nil when absent.
func (c Components) Get(r Role) *Component {
	switch r {
	case RoleEngine:
		return c.Engine
	case RoleDecoder:
		return c.Decoder
	case RoleRouter:
		return c.Router
	case RoleTransformer:
		return c.Transformer
	case RoleExplainer:
		return c.Explainer
	}
	return nil
}

// Set puts a component in its role's place.
func (c *Components) Set(r Role, v *Component) {
	switch r {
	case RoleEngine:
		c.Engine = v
	case RoleDecoder:
		c.Decoder = v
	case RoleRouter:
		c.Router = v
	case RoleTransformer:
		c.Transformer = v
	case RoleExplainer:
		c.Explainer = v
	}
}
