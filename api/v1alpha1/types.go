// Package v1alpha1 holds Roundhouse's own kinds, group roundhouse.dev: small
// on purpose. A ModelService is a model and how to serve it; a ServingRuntime
// or ClusterServingRuntime is what a server can serve and how it runs. The
// types carry json tags and no behaviour; internal/decide/dialect reads them
// into the hub.
package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// APIVersion is the group and version of every kind in this package.
const APIVersion = "roundhouse.dev/v1alpha1"

// The kinds of this package.
const (
	KindModelService          = "ModelService"
	KindServingRuntime        = "ServingRuntime"
	KindClusterServingRuntime = "ClusterServingRuntime"
)

// ModelService serves one model under one name. An absent
// metadata.namespace means "default".
type ModelService struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta  `json:"metadata"`
	Spec            ModelServiceSpec   `json:"spec"`
	Status          ModelServiceStatus `json:"status,omitzero"`
}

// ModelServiceSpec is the desired state of a service.
type ModelServiceSpec struct {
	// Model to serve; optional if the engine's containers contain their own.
	Model *Model `json:"model,omitempty"`
	// Runtime names a runtime; without it the best is chosen.
	Runtime *ObjectRef `json:"runtime,omitempty"`
	// RuntimeVersion replaces the tag of the serving container's image.
	RuntimeVersion string `json:"runtimeVersion,omitempty"`
	// Protocol is v1, v2, grpc-v1, grpc-v2, openAI or cohere; "" takes the
	// runtime's best.
	Protocol string `json:"protocol,omitempty"`
	// Scaling of the engine; engine.scaling overrides it field by field.
	Scaling *Scaling `json:"scaling,omitempty"`
	// Engine, Decoder and Router are merged over the runtime's components of
	// the same name. A decoder asks for prefill and decode apart.
	Engine  *Component `json:"engine,omitempty"`
	Decoder *Component `json:"decoder,omitempty"`
	Router  *Component `json:"router,omitempty"`
	// Disaggregation is how engines and decoders are connected: header, vllm or
	// sglang; default: the runtime's.
	Disaggregation string `json:"disaggregation,omitempty"`
	// CanaryTrafficPercent is the share of requests, 0 to 100, that a changed
	// manifest's revision gets once it is ready; the current revision serves
	// the rest. Absent or 100: the new revision replaces the current one.
	CanaryTrafficPercent *int `json:"canaryTrafficPercent,omitempty"`
	// Stopped switches the service off without deleting it.
	Stopped bool `json:"stopped,omitempty"`
	// Residency is how the service shares the GPUs and the memory of one machine
	// with others. On a cluster it has no effect.
	Residency *Residency `json:"residency,omitempty"`
	// KVCache has the engine keep what it has computed of prompts in another
	// memory than its GPU's, which its replicas may share.
	KVCache *KVCache `json:"kvCache,omitempty"`
}

// KVCache is where an engine keeps the keys and values of prompts besides its GPU.
type KVCache struct {
	// Connector is lmcache (vLLM, SGLang) or hicache (SGLang). Its package must be
	// in the engine's image.
	Connector string `json:"connector"`
	// Remote is what all replicas share: with lmcache the URL of a store, such as
	// redis://HOST:PORT or lm://HOST:PORT; with hicache the name of a storage
	// backend, such as mooncake or hf3fs. Without it each replica has a cache of its
	// own. With it requests are sent by load more than by prompt.
	Remote string `json:"remote,omitempty"`
	// Memory is what a replica may take of its machine's memory, such as 20Gi;
	// default: the connector's own.
	Memory *resource.Quantity `json:"memory,omitempty"`
}

// Residency is how a service shares one machine with others.
type Residency struct {
	// Pin keeps its replicas from being stopped to make room for another service.
	Pin bool `json:"pin,omitempty"`
	// Priority, -1000 to 1000: where several services wait for room, the higher one
	// is served first, and it is stopped after those of lower priority. Default 0.
	Priority int `json:"priority,omitempty"`
	// GPUMemory is what one replica takes of each of its GPUs, such as 8Gi: other
	// services may have the rest. Without a limit nvidia.com/gpu it takes one GPU.
	// Default: its GPUs are its own.
	GPUMemory *resource.Quantity `json:"gpuMemory,omitempty"`
	// GPUPercent is the same in percent of the memory of each, 1 to 100, such as 40.
	GPUPercent int `json:"gpuPercent,omitempty"`
	// ShareGPU is for where gpuMemory is not known: a replica takes of each of its GPUs
	// what the size of its model's files lets expect, and once one was measured what
	// that took. Without a limit nvidia.com/gpu it takes one GPU.
	ShareGPU bool `json:"shareGPU,omitempty"`
	// Preload starts a replica when `roundhouse up` starts, or when the service is
	// first applied, if it fits beside what runs. Higher priorities come first.
	Preload bool `json:"preload,omitempty"`
	// Group is the name of services that may run together. An exclusive service
	// leaves the others of its group running.
	Group string `json:"group,omitempty"`
	// Exclusive: before it starts, idle services outside of its group are stopped,
	// and busy ones are waited for. Those that are pinned or have minReplicas stay.
	Exclusive bool `json:"exclusive,omitempty"`
	// OneOf is the name of alternatives, of which one runs at a time: one that is
	// asked takes the place of the one that runs.
	OneOf string `json:"oneOf,omitempty"`
}

// Model is a model by its files (URI) or by reference (Ref), not both. What
// it does not state is read from its files, if they contain it.
type Model struct {
	// URI is where the files are; a relative file:// URI is resolved against
	// the manifest's folder.
	URI          string        `json:"uri,omitempty"`
	Format       *NamedVersion `json:"format,omitempty"`
	Framework    *NamedVersion `json:"framework,omitempty"`
	Architecture string        `json:"architecture,omitempty"`
	Quantization string        `json:"quantization,omitempty"`
	// Parameters is the parameter count: "7B", "350M" or a plain number in
	// quotes.
	Parameters string `json:"parameters,omitempty"`
	// Ref names a BaseModel or ClusterBaseModel.
	Ref *ObjectRef `json:"ref,omitempty"`
	// Adapters are LoRA adapters that the same replicas serve, each under its
	// own name; at most 64.
	Adapters []Adapter `json:"adapters,omitempty"`
}

// Adapter is a LoRA adapter.
type Adapter struct {
	// Name that requests use; unique among the service's adapters.
	Name string `json:"name"`
	// URI is where its files are; a relative file:// URI is resolved against the
	// manifest's folder.
	URI string `json:"uri"`
	// Rank of its matrices; by default it is read from adapter_config.json.
	Rank *int `json:"rank,omitempty"`
}

// NamedVersion is a name with an optional version.
type NamedVersion struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
}

// ObjectRef names another object. Without a kind the namespaced kind is
// looked for first, then the cluster-scoped one.
type ObjectRef struct {
	Name string `json:"name"`
	Kind string `json:"kind,omitempty"`
}

// Scaling bounds and controls a replica count. Absent fields come from the
// runtime, then from the defaults in docs/limits.md.
type Scaling struct {
	// MinReplicas of 0 lets the component stop while it has no requests.
	MinReplicas *int `json:"minReplicas,omitempty"`
	MaxReplicas *int `json:"maxReplicas,omitempty"`
	// TargetConcurrency is short for scaleTarget with scaleMetric concurrency.
	TargetConcurrency *float64 `json:"targetConcurrency,omitempty"`
	// ScaleTarget is the wanted value of ScaleMetric per replica.
	ScaleTarget *float64 `json:"scaleTarget,omitempty"`
	// ScaleMetric is concurrency, rps, cpu, memory, queue, kv, tokens or external.
	ScaleMetric string `json:"scaleMetric,omitempty"`
	// External is what scaleMetric external reads.
	External *External `json:"external,omitempty"`
	// Metrics are measurements to scale on besides scaleMetric. The highest count
	// wins.
	Metrics []ScaleMetric `json:"metrics,omitempty"`
	// Ratio keeps the number of replicas in a ratio to another component's.
	Ratio *Ratio `json:"ratio,omitempty"`
	// MaxConcurrency limits requests in flight per replica; 0 is no limit.
	MaxConcurrency *int `json:"maxConcurrency,omitempty"`
	// ScaleToZeroAfter is how long a service stays idle before it stops.
	ScaleToZeroAfter *metav1.Duration `json:"scaleToZeroAfter,omitempty"`
	// StartupTimeout is how long a replica may take from start to ready.
	StartupTimeout *metav1.Duration `json:"startupTimeout,omitempty"`
	// AnswerTimeout is how long a replica may take to begin an answer; after
	// that the client gets 504, or DEADLINE_EXCEEDED. The value of the component
	// that takes requests counts; default: the gateway's.
	AnswerTimeout *metav1.Duration `json:"answerTimeout,omitempty"`
	// Queue bounds the requests that wait for a replica. That of the component
	// that takes requests counts; default: the gateway's.
	Queue *Queue `json:"queue,omitempty"`
	// Standby is what becomes of the last replica of an idle component on one
	// machine: never (default) stops it; auto, or level1, level2, … puts it to
	// sleep, if its engine can sleep.
	Standby string `json:"standby,omitempty"`
	// StandbyFor is how long it sleeps before it stops; default: 1h.
	StandbyFor *metav1.Duration `json:"standbyFor,omitempty"`
	// Schedule are times at which other bounds hold. Of several open windows the
	// largest minReplicas and the largest maxReplicas hold.
	Schedule []ScheduleWindow `json:"schedule,omitempty"`
	// Prewarm auto learns how long the service is idle, and starts a replica ahead
	// of the usual return of requests where that pays; default: off.
	Prewarm string `json:"prewarm,omitempty"`
	// Preset is who decides the count: ours (default), or knative for the decision of
	// Knative's autoscaler.
	Preset string `json:"preset,omitempty"`
	// Knative are the settings of preset knative.
	Knative *Knative `json:"knative,omitempty"`
}

// Knative are the settings of Knative's autoscaler, with its defaults.
type Knative struct {
	// TargetUtilizationPercentage of the target is aimed at; default: 70.
	TargetUtilizationPercentage *float64 `json:"targetUtilizationPercentage,omitempty"`
	// Window is the stable window; default: 60s.
	Window *metav1.Duration `json:"window,omitempty"`
	// PanicWindowPercentage is the part of window that is the panic window; default: 10.
	PanicWindowPercentage *float64 `json:"panicWindowPercentage,omitempty"`
	// PanicThresholdPercentage of the ready replicas begins panic mode; default: 200.
	PanicThresholdPercentage *float64 `json:"panicThresholdPercentage,omitempty"`
	// ScaleDownDelay is how long fewer replicas must be wanted; default: 0s.
	ScaleDownDelay *metav1.Duration `json:"scaleDownDelay,omitempty"`
	// ScaleToZeroPodRetentionPeriod is for how long the last replica stays after
	// zero was decided; default: 0s.
	ScaleToZeroPodRetentionPeriod *metav1.Duration `json:"scaleToZeroPodRetentionPeriod,omitempty"`
	// InitialScale is how many start when the component starts for the first time;
	// default: 1.
	InitialScale *int `json:"initialScale,omitempty"`
	// ActivationScale is how many start from zero at least; default: 1.
	ActivationScale *int `json:"activationScale,omitempty"`
	// TargetBurstCapacity decides whether the last replica stays the grace period of
	// 30s longer: with 0, and where the ready replicas take so many requests more
	// than there are. -1 is never; default: 211.
	TargetBurstCapacity *float64 `json:"targetBurstCapacity,omitempty"`
}

// ScheduleWindow gives a count other bounds at some times. A bound that it does
// not state is the component's own.
type ScheduleWindow struct {
	// Name appears in the reason for a count.
	Name string `json:"name,omitempty"`
	// Start and End are cron expressions of five fields: minute, hour, day of the
	// month, month, day of the week. The window is open from each match of start
	// to the next match of end.
	Start string `json:"start"`
	End   string `json:"end"`
	// TimeZone is an IANA time zone such as Europe/Berlin; default: UTC.
	TimeZone    string `json:"timeZone,omitempty"`
	MinReplicas *int   `json:"minReplicas,omitempty"`
	MaxReplicas *int   `json:"maxReplicas,omitempty"`
}

// External is a query that a Prometheus server answers with one number.
type External struct {
	// URL is the server's, such as http://prometheus.monitoring:9090.
	URL string `json:"url"`
	// Query is an expression whose result is a scalar or a vector of one.
	Query string `json:"query"`
}

// ScaleMetric is a measurement to scale on.
type ScaleMetric struct {
	// Metric is cpu, memory, queue, kv, tokens or external.
	Metric string `json:"metric"`
	// Target is the wanted value per replica.
	Target *float64 `json:"target,omitempty"`
	// External is what metric external reads.
	External *External `json:"external,omitempty"`
}

// Ratio is how many replicas there are for each of another component.
type Ratio struct {
	// Component is the other one: engine, decoder, router or transformer.
	Component string `json:"component"`
	// Replicas for each replica of the other component.
	Replicas float64 `json:"replicas"`
}

// Component is one part of a service or of a runtime: a pod's fields, and
// Image, Command, Args, Env and Resources as a short way to write those of its
// serving container.
type Component struct {
	corev1.PodSpec `json:",inline"`
	Image          string          `json:"image,omitempty"`
	Command        []string        `json:"command,omitempty"`
	Args           []string        `json:"args,omitempty"`
	Env            []corev1.EnvVar `json:"env,omitempty"`
	// Resources are the serving container's, unlike a PodSpec's.
	Resources   *corev1.ResourceRequirements `json:"resources,omitempty"`
	Labels      map[string]string            `json:"labels,omitempty"`
	Annotations map[string]string            `json:"annotations,omitempty"`
	Scaling     *Scaling                     `json:"scaling,omitempty"`
	// Leader and Worker spread one replica over several nodes.
	Leader *Node `json:"leader,omitempty"`
	Worker *Node `json:"worker,omitempty"`
	// Config is passed to a router in its environment.
	Config map[string]string `json:"config,omitempty"`
	// Metrics is where the load of its pods is read. A process gets a port of
	// its own, {{.MetricsPort}}.
	Metrics *Metrics `json:"metrics,omitempty"`
	// Local is how the component runs as a process.
	Local *Local `json:"local,omitempty"`
}

// Node is the leader, or the workers, of a component that spans nodes.
type Node struct {
	corev1.PodSpec `json:",inline"`
	// Size is the number of these nodes in one replica; default: 1.
	Size *int `json:"size,omitempty"`
}

// Metrics is where a component's load is read.
type Metrics struct {
	// Path of the metrics; default: the engine's own.
	Path string `json:"path,omitempty"`
	// Port of the metrics, if it is not the port of requests: 8082 of roundhouse
	// serve and MLServer, 8002 of Triton.
	Port *int32 `json:"port,omitempty"`
}

// Local is how a component runs as a process on one machine. Strings are
// templates over {{.Port}}, {{.GRPCPort}}, {{.MetricsPort}}, {{.KVEventsPort}}, {{.ModelPath}},
// {{.Name}} and the service's metadata.
type Local struct {
	// Command is the program and its arguments; "roundhouse" is this binary.
	Command    []string        `json:"command"`
	Env        []corev1.EnvVar `json:"env,omitempty"`
	WorkingDir string          `json:"workingDir,omitempty"`
	// Install is the command that installs a missing program.
	Install        string        `json:"install,omitempty"`
	ReadinessProbe *corev1.Probe `json:"readinessProbe,omitempty"`
	LivenessProbe  *corev1.Probe `json:"livenessProbe,omitempty"`
	// Standby is how the engine is put to sleep and woken; default: that of the
	// catalog's runtime with the same program.
	Standby *Standby `json:"standby,omitempty"`
	// Requires lists what the command needs besides its program. A runtime is
	// not chosen on a machine that lacks it.
	Requires []Requirement `json:"requires,omitempty"`
	// Fallback runs instead of the command if its program is missing.
	Fallback *LocalFallback `json:"fallback,omitempty"`
}

// Standby is how an engine is put to sleep and woken, by calls to its port.
type Standby struct {
	// Args are added to the command of a replica with GPUs, Env to the environment
	// of every replica that may be put to sleep.
	Args []string        `json:"args,omitempty"`
	Env  []corev1.EnvVar `json:"env,omitempty"`
	// KeepsGPUs: asleep the engine keeps memory of its GPUs, so a replica that has
	// any is stopped instead.
	KeepsGPUs bool `json:"keepsGPUs,omitempty"`
	// Levels are in the order of their depth: from each the engine wakes later, and
	// takes less memory, than from the one before.
	Levels []StandbyLevel `json:"levels"`
}

// StandbyLevel is one way to sleep.
type StandbyLevel struct {
	// Level is its number, from 1 to 9.
	Level int `json:"level"`
	// Sleep puts the engine to sleep; the calls of Wake, one after the other, wake
	// it.
	Sleep StandbyCall   `json:"sleep"`
	Wake  []StandbyCall `json:"wake"`
}

// StandbyCall is a POST to the engine.
type StandbyCall struct {
	// Path may have a query.
	Path string `json:"path"`
	// Body is JSON; default: none.
	Body string `json:"body,omitempty"`
}

// Requirement is something that a command needs besides its program: modules
// of Python, or another command.
type Requirement struct {
	// Formats of the models that need it; default: all.
	Formats []string `json:"formats,omitempty"`
	// Python modules, of the interpreter that ROUNDHOUSE_PYTHON names, else of
	// python3.
	Python []string `json:"python,omitempty"`
	// Command is a program that must be on PATH; with arguments it must succeed.
	Command []string `json:"command,omitempty"`
	// Install is the command that installs it; default: local's.
	Install string `json:"install,omitempty"`
}

// LocalFallback is the command that runs if a program is missing. It has the
// probes and the working directory of the local command.
type LocalFallback struct {
	Command  []string        `json:"command"`
	Env      []corev1.EnvVar `json:"env,omitempty"`
	Install  string          `json:"install,omitempty"`
	Requires []Requirement   `json:"requires,omitempty"`
}
