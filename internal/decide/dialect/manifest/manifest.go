// Package manifest is what the dialects share: the document that is read, the
// hub object it becomes, the problems that are found on the way, and the checks
// of fields that several dialects have.
package manifest

import (
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/load"
)

// Kind is which of an Object's parts is set.
type Kind string

// The hub's kinds.
const (
	KindService Kind = "Service"
	KindRuntime Kind = "Runtime"
	KindModel   Kind = "Model"
	// KindRouting is every kind of package routing.
	KindRouting Kind = "Routing"
	// KindBase is what services are laid over.
	KindBase Kind = "Base"
	// KindAccelerator is a class of accelerators.
	KindAccelerator Kind = KindAcceleratorClass
	// KindConfigMap is a ConfigMap that services name.
	KindConfigMap Kind = "ConfigMap"
	// KindReserve is checked, and has no part of an Object.
	KindReserve Kind = "Reserve"
	// KindBenchmark is a benchmark to run.
	KindBenchmark Kind = "Benchmark"
	// KindModelCache is a model that is fetched ahead of its use, KindNodeGroup nodes
	// that keep such models.
	KindModelCache Kind = "ModelCache"
	KindNodeGroup  Kind = "NodeGroup"
	// KindStorageContainer is a container that fetches models.
	KindStorageContainer Kind = "StorageContainer"
	// KindSecret and KindAccount are what models are fetched with, on one machine.
	KindSecret  Kind = "Secret"
	KindAccount Kind = "ServiceAccount"
	// KindScheduling is an endpoint picker's configuration, which is no object: it
	// has no name.
	KindScheduling Kind = "EndpointPickerConfig"
)

// Object is one document read into the hub. Exactly one of Service, Runtime,
// Model, Base, Accelerator, ConfigMap, Routing, Benchmark, ModelCache, NodeGroup, StorageContainer, Secret, Account and Scheduling is set, or none for
// KindReserve.
type Object struct {
	Origin service.Origin
	// Key has no namespace for cluster-scoped objects.
	Key     service.Key
	Kind    Kind
	Service *service.Service
	Runtime *service.Runtime
	Model   *service.Model
	Base    *service.Base
	// Accelerator is a class of accelerators.
	Accelerator *service.AcceleratorClass
	// ConfigMap has configurations of endpoint pickers.
	ConfigMap *service.ConfigMap
	Routing   routing.Object
	// Benchmark is run once.
	Benchmark *load.Job
	// ModelCache is fetched ahead of its use, to the nodes of NodeGroups.
	ModelCache *service.ModelCache
	NodeGroup  *service.NodeGroup
	// StorageContainer fetches models that this program does not.
	StorageContainer *service.StorageContainer
	Secret           *service.Secret
	Account          *service.Account
	// Scheduling is nil if nothing of it could be read.
	Scheduling *service.Scheduling
	// Original is the document as written, without its separator. Its first
	// line is Origin.Line of the file. It is a slice of what Read was given.
	Original []byte
}

// Platform is where replicas run, as far as a problem depends on it.
type Platform string

// The platforms.
const (
	AnyPlatform Platform = ""
	Process     Platform = "process"    // replicas are processes of one machine
	Kubernetes  Platform = "kubernetes" // replicas are pods
)

// Problem is one thing wrong with a manifest, or worth a warning.
type Problem struct {
	File    string
	Line    int    // 1-based; 0 when the file as a whole is meant
	Column  int    // 1-based
	Path    string // "spec.predictor.model.modelFormat.name"; "" for the document
	Message string
	Warning bool
	// Platform is the only platform the problem exists on; "" is every one.
	Platform Platform
	// Readable: the object is read in spite of the error, so that one applied
	// before the error was known goes on.
	Readable bool
}

// String is "file:line: path: message".
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		if p.File != "" {
			b.WriteString(":")
		}
		fmt.Fprintf(&b, "%d", p.Line)
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	if p.Warning {
		b.WriteString("warning: ")
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// ModelURIs are the URIs of files that an object names: its model's, its adapters' and
// those of its components.
func (o Object) ModelURIs() []string {
	var out []string
	add := func(uri string) {
		if uri != "" {
			out = append(out, uri)
		}
	}
	if o.Model != nil {
		add(o.Model.URI)
	}
	if o.Service == nil {
		return out
	}
	if m := o.Service.Model; m != nil {
		add(m.URI)
		for i, p := range m.Parts {
			if i > 0 { // the first is URI
				add(p.URI)
			}
		}
		for _, a := range m.Adapters {
			add(a.URI)
		}
	}
	for _, role := range service.Roles {
		if c := o.Service.Components.Get(role); c != nil {
			for _, p := range c.Parts {
				add(p.URI)
			}
		}
	}
	return out
}

// HubKind is the object's kind in the hub, routing kinds each by itself.
func (o Object) HubKind() string {
	switch {
	case o.Routing != nil:
		return string(o.Routing.RoutingKind())
	case o.Model != nil && o.Model.FineTuned != nil:
		return KindFineTunedWeight
	}
	return string(o.Kind)
}

// KindFineTunedWeight is OME's kind of adapters; its objects have no namespace.
const KindFineTunedWeight = "FineTunedWeight"

// KindAcceleratorClass is OME's kind of accelerators; its objects have no namespace.
const KindAcceleratorClass = "AcceleratorClass"

// Clip keeps a message to one line of bearable length.
func Clip(s string) string {
	return excerpt.Of(s, 80)
}

// Schema is one kind of manifest: the type it is decoded into, and how that is
// read into the hub.
type Schema struct {
	APIVersion, Kind string
	Shape            reflect.Type
	Read             func(r *Reader, manifest any, o *Object)
	// OneMachine is why no API server keeps it for the product; "" for what is served on
	// a cluster too.
	OneMachine string
}

// SchemaOf is the schema of a manifest type.
func SchemaOf[T any](apiVersion, kind string, read func(*Reader, *T, *Object)) Schema {
	return Schema{APIVersion: apiVersion, Kind: kind, Shape: reflect.TypeFor[T](), Read: func(r *Reader, m any, o *Object) { read(r, m.(*T), o) }}
}

// OneMachineSchema is the schema of a manifest type that one machine alone serves. why
// is said of it on a cluster.
func OneMachineSchema[T any](apiVersion, kind, why string, read func(*Reader, *T, *Object)) Schema {
	s := SchemaOf(apiVersion, kind, func(r *Reader, m *T, o *Object) {
		read(r, m, o)
		p := r.Problem("kind", why)
		p.Warning, p.Platform = true, Kubernetes
	})
	s.OneMachine = why
	return s
}

// OnProcess is a warning that a field has no effect on one machine.
func OnProcess(message string) Note { return Note{message, true, Process} }

// Never is a warning that a field has no effect anywhere.
func Never(message string) Note { return Note{message, true, AnyPlatform} }

// Refused is an error: the field would change what the service answers.
func Refused(message string) Note { return Note{message, false, AnyPlatform} }

// What is said of fields that mean nothing to processes.
const (
	NoPlacement = "has no effect on one machine: there is one node to place replicas on"
	NoPod       = "has no effect on one machine: replicas are processes, not pods"
	NoAccount   = "has no effect on one machine: a process runs as the user who started it"
	NoImage     = "has no effect on one machine where the replica runs as a process: no image is pulled"
	NoSecret    = "has no effect on one machine: images are pulled with the login of podman or Docker"
	NoMount     = "has no effect on one machine where the replica runs as a process: nothing is mounted, so paths must exist as they are"
	NoUser      = "has no effect on one machine where the replica runs as a process: it runs as the user who started it"
)

// PodNotes are the fields of a pod that mean nothing to a process.
var PodNotes = map[string]Note{
	"affinity": OnProcess(NoPlacement), "nodeSelector": OnProcess(NoPlacement),
	"tolerations": OnProcess(NoPlacement), "nodeName": OnProcess(NoPlacement),
	"schedulerName": OnProcess(NoPlacement), "priorityClassName": OnProcess(NoPlacement),
	"priority": OnProcess(NoPlacement), "preemptionPolicy": OnProcess(NoPlacement),
	"topologySpreadConstraints": OnProcess(NoPlacement), "schedulingGates": OnProcess(NoPlacement),

	"imagePullSecrets": OnProcess(NoSecret), "volumes": OnProcess(NoMount),

	"automountServiceAccountToken": OnProcess(NoAccount), "securityContext": OnProcess(NoUser),

	"activeDeadlineSeconds": OnProcess(NoPod), "dnsConfig": OnProcess(NoPod),
	"dnsPolicy": OnProcess(NoPod), "enableServiceLinks": OnProcess(NoPod),
	"ephemeralContainers": OnProcess(NoPod), "hostAliases": OnProcess(NoPod),
	"hostIPC": OnProcess(NoPod), "hostNetwork": OnProcess(NoPod), "hostPID": OnProcess(NoPod),
	"hostUsers": OnProcess(NoPod), "hostname": OnProcess(NoPod),
	"hostnameOverride": OnProcess(NoPod), "os": OnProcess(NoPod), "overhead": OnProcess(NoPod),
	"readinessGates": OnProcess(NoPod), "resourceClaims": OnProcess(NoPod),
	"resources": OnProcess(NoPod), "restartPolicy": OnProcess(NoPod),
	"runtimeClassName": OnProcess(NoPod), "setHostnameAsFQDN": OnProcess(NoPod),
	"shareProcessNamespace": OnProcess(NoPod), "subdomain": OnProcess(NoPod),
	"workloadRef": OnProcess(NoPod), "schedulingGroup": OnProcess(NoPod),

	"initContainers": OnProcess("does not run on one machine: do what it does before starting the service"),
}

// Notes are what a field amounts to that does not go into the hub or has no
// effect somewhere, by the struct that declares it and its json name.
type Notes map[reflect.Type]map[string]Note

// Note is what is said of a kind or a field that is not read into the hub.
type Note struct {
	Message  string
	Warning  bool
	Platform Platform
}

// KubernetesNotes are the notes of Kubernetes' own types. Fields not listed are
// read, or only describe.
var KubernetesNotes = Notes{
	reflect.TypeFor[corev1.PodSpec](): PodNotes,
	reflect.TypeFor[corev1.Container](): {
		"imagePullPolicy":          OnProcess(NoImage),
		"volumeMounts":             OnProcess(NoMount),
		"volumeDevices":            OnProcess(NoMount),
		"securityContext":          OnProcess(NoUser),
		"startupProbe":             OnProcess("has no effect on one machine where the replica runs as a process: startupTimeout bounds a start"),
		"lifecycle":                OnProcess(NoPod),
		"resizePolicy":             OnProcess(NoPod),
		"restartPolicy":            OnProcess(NoPod),
		"restartPolicyRules":       OnProcess(NoPod),
		"terminationMessagePath":   OnProcess(NoPod),
		"terminationMessagePolicy": OnProcess(NoPod),
		"stdin":                    OnProcess(NoPod),
		"stdinOnce":                OnProcess(NoPod),
		"tty":                      OnProcess(NoPod),
	},
}

// Only is the part of a table for the names given.
func Only(all map[string]Note, names ...string) map[string]Note {
	out := map[string]Note{}
	for _, n := range names {
		out[n] = all[n]
	}
	return out
}

// Note reports the stated fields that notes know something about.
func (r *Report) Note(notes Notes) {
	for _, f := range r.doc.Fields {
		if n, ok := notes[f.Owner][f.Name]; ok {
			r.problems = append(r.problems, Problem{Line: f.Line, Column: f.Column, Path: f.Path,
				Message: n.Message, Warning: n.Warning, Platform: n.Platform})
		}
	}
}
