// Package workload renders a revision: what to run for a service, from the
// service, the runtime chosen for it and its model. Pure: the same inputs give
// the same revision and the same hash.
package workload

import (
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/residency"
)

// Ref names one scalable thing: a role of a service.
type Ref struct {
	Service service.Key  `json:"service"`
	Role    service.Role `json:"role"`
}

// String is "namespace/name/role".
func (r Ref) String() string { return r.Service.String() + "/" + string(r.Role) }

// Revision is what to run for one service. It is a durable decision: stored
// as rendered and rendered anew only when an input changes.
type Revision struct {
	Service service.Key `json:"service"`
	// Name is the service's name and the hash's first characters.
	Name string `json:"name"`
	// Hash covers every input: the service's spec, the runtime's spec, the
	// model. Scaling is not part of it: a change of counts restarts nothing.
	Hash     string                `json:"hash"`
	Runtime  service.RuntimeChoice `json:"runtime,omitzero"`
	Protocol service.Protocol      `json:"protocol"`
	// Protocols are all that it speaks; none where that is not known.
	Protocols []service.Protocol `json:"protocols,omitempty"`
	Model     Model              `json:"model,omitzero"`
	// Image is this program's own when the revision was rendered, for pods; ""
	// on one machine. It is no input of the hash: a newer program restarts nothing.
	Image string `json:"image,omitempty"`
	// Delivery is how pods get the model, as the image's program can bring it. It
	// is no input of the hash either.
	Delivery Delivery `json:"delivery,omitzero"`
	// Brought are the containers that fetch what this program does not, by URI, on a
	// cluster alone.
	Brought map[string]corev1.Container `json:"brought,omitempty"`
	// Kept is where the nodes of a cluster have the model before a pod needs it; nil where
	// pods fetch it.
	Kept *Kept `json:"kept,omitempty"`
	// Disaggregation is the service's, else the runtime's.
	Disaggregation service.Disaggregation `json:"disaggregation,omitempty"`
	// Access is how requests reach it. Of it the name by which replicas serve the
	// model alone is an input of the hash.
	Access service.Access `json:"access,omitzero"`
	// Scheduling is how requests find a replica; nil leaves it to the gateway. It is no
	// input of the hash.
	Scheduling *service.Scheduling `json:"scheduling,omitempty"`
	// Components in the order of service.Roles.
	Components []Component `json:"components"`
	// Before is the revision that serves while no replica of this one has been
	// ready yet; nil for none, and on a cluster, whose Deployments know it. It is
	// no input of the hash.
	Before *Revision `json:"before,omitempty"`
	// Guests are the models of other services that its replicas load, where they serve
	// a repository. They are no input of the hash.
	Guests []Guest `json:"guests,omitempty"`
	// Host is the service whose replicas load the model; zero for a model with replicas
	// of its own. Such a revision is the host's in all else, and no platform is given it.
	Host        service.Key       `json:"host,omitzero"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Delivery is how the pods of a cluster get their models. The zero value fetches
// a model into a volume of the pod, before the image of the server is pulled.
type Delivery struct {
	// Beside fetches the model while the image is pulled.
	Beside bool `json:"beside,omitempty"`
	// Store is a folder of each node in which the pods of a namespace share the
	// files of models; "" for none.
	Store string `json:"store,omitempty"`
	// StoreSize is the most that one namespace's may take there: a size, or a share
	// of the disk such as 80%.
	StoreSize string `json:"storeSize,omitempty"`
}

// Kept is a model that nodes keep in a folder ahead of its use.
type Kept struct {
	// Name is that of its copies, and Folder the nodes'.
	Name   string `json:"name"`
	Folder string `json:"folder"`
	// Sub is the path of the model in what is kept; "" for all of it.
	Sub string `json:"sub,omitempty"`
	// Nodes selects those that keep it; nil is all.
	Nodes *corev1.NodeSelector `json:"nodes,omitempty"`
}

// Component returns the component of a role, nil when absent.
func (r *Revision) Component(role service.Role) *Component {
	for i := range r.Components {
		if r.Components[i].Role == role {
			return &r.Components[i]
		}
	}
	return nil
}

// ModelOf is the model that a role's replicas have: the revision's, or the role's own
// files.
func (r *Revision) ModelOf(role service.Role) Model {
	if c := r.Component(role); c != nil && c.Files != nil {
		return *c.Files
	}
	return r.Model
}

// Models are the revision's model, and the files that roles have of their own.
func (r *Revision) Models() []Model {
	out := []Model{r.Model}
	for i := range r.Components {
		if own := r.Components[i].Files; own != nil {
			out = append(out, *own)
		}
	}
	return out
}

// Scaled is r with the limits of next, a rendering of the same inputs, its strategies
// and budgets, its names of the model and of adapters, and its scheduling: what runs
// stays as it was first rendered, whatever this program renders by now. Pods
// keep the time they get to start, which stands in them.
func (r Revision) Scaled(next Revision) Revision {
	r.Components, r.Model.Adapters, r.Access, r.Scheduling = slices.Clone(r.Components), next.Model.Adapters, next.Access, next.Scheduling
	for i := range r.Components {
		c := &r.Components[i]
		n := next.Component(c.Role)
		if n == nil {
			continue
		}
		c.Strategy, c.Budget = n.Strategy, n.Budget
		startup := c.Limits.StartupTimeout
		if c.Limits = n.Limits; c.Process == nil {
			c.Limits.StartupTimeout = startup
		}
	}
	return r
}

// Model is where a replica's model comes from.
type Model struct {
	// URI is "" when there is no model to fetch.
	URI string `json:"uri,omitempty"`
	// Verbatim: the URI is handed to the runtime as {{.ModelPath}} and nothing
	// is fetched (storageHelper.disabled).
	Verbatim bool   `json:"verbatim,omitempty"`
	Format   string `json:"format,omitempty"`
	// Storage is the secret that it is fetched by, on a cluster alone.
	Storage *service.Storage `json:"storage,omitempty"`
	// Secret opens its own files, on a cluster: of the service's namespace, and of a hub
	// the key that has the token; nil for none.
	Secret *service.SecretKey `json:"secret,omitempty"`
	// Credentials name what it and its adapters are fetched with, on one machine. They
	// are no input of the hash.
	Credentials service.Credentials `json:"credentials,omitzero"`
	// Parts are the URIs that its files come from, the first of them URI; nil where
	// all come from URI. Each is fetched, and lies at its place.
	Parts service.Parts `json:"parts,omitempty"`
	// Adapters are fetched, or handed on, as the model is.
	Adapters []Adapter `json:"adapters,omitempty"`
	// Fingerprint identifies the files that the revision serves, its adapters'
	// included, from those that take their place later; "" where that is not
	// known.
	Fingerprint string `json:"fingerprint,omitempty"`
}

// Others are the URIs of its files besides URI: of its further parts and its adapters.
func (m Model) Others() (out []string) {
	for i, p := range m.Parts {
		if i > 0 {
			out = append(out, p.URI)
		}
	}
	for _, a := range m.Adapters {
		out = append(out, a.URI)
	}
	return out
}

// Fingerprints joins the fingerprints that of gives the files of the model, its further
// parts and each adapter. A part is empty while it is not known; "" when none is.
func (m Model) Fingerprints(of func(uri string) string) string {
	if m.Verbatim {
		return ""
	}
	parts := []string{of(m.URI)}
	for _, uri := range m.Others() {
		parts = append(parts, of(uri))
	}
	if out := strings.Join(parts, "+"); strings.Trim(out, "+") != "" {
		return out
	}
	return ""
}

// SameFiles reports whether two fingerprints of one model may be of the same
// files: a part that one of them does not know differs from nothing.
func SameFiles(a, b string) bool {
	of, other := strings.Split(a, "+"), strings.Split(b, "+")
	if len(of) != len(other) { // an older version left out the adapters that it did not know
		of, other = of[:1], other[:1]
	}
	for i := range of {
		if of[i] != "" && other[i] != "" && of[i] != other[i] {
			return false
		}
	}
	return true
}

// Component is one role of a revision.
type Component struct {
	Role service.Role `json:"role"`
	// Pod is the merged pod, object templates resolved. Main is its serving
	// container.
	Pod         corev1.PodSpec    `json:"pod,omitzero"`
	Main        string            `json:"main,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Leader      *Node             `json:"leader,omitempty"`
	Worker      *Node             `json:"worker,omitempty"`
	Config      map[string]string `json:"config,omitempty"`
	// Files are a transformer's or an explainer's own, which it has in place of the
	// revision's model; nil for none. They have Parts, and no adapters.
	Files *Model `json:"files,omitempty"`
	// Subcommand is an explainer's whose own arguments may have one.
	Subcommand bool `json:"subcommand,omitempty"`
	// Metrics is what its runtime and its service state in a field; Exports
	// knows their annotations too.
	Metrics service.Metrics `json:"metrics,omitzero"`
	// Process is how the component runs on one machine; nil on a cluster.
	Process *Process `json:"process,omitempty"`
	// Repository is how the server of its pods finds the models of other services that
	// it loads; "" for one with a model of its own.
	Repository Layout `json:"repository,omitempty"`
	// Limits is the settled scaling; not part of the hash.
	Limits service.Limits `json:"limits"`
	// Strategy and Budget are no inputs of the hash either: they say how replicas
	// come and go, and not what runs. Budget is a cluster's.
	Strategy *service.Strategy `json:"strategy,omitempty"`
	Budget   *service.Budget   `json:"budget,omitempty"`
}

// Exports is where the component's pods export their metrics. Annotations are
// read here, and not when the revision is rendered, for revisions of before.
func (c *Component) Exports() service.Metrics { return c.Metrics.Over(c.Annotations) }

// KVEvents is where the component's pods publish what their prefix caches hold.
func (c *Component) KVEvents() service.KVEvents { return service.KVEventsOf(c.podCommand()) }

// DataParallel are the ranks of the engine of the component's pods.
func (c *Component) DataParallel() service.DataParallel {
	return service.DataParallelOf(c.podCommand())
}

// podCommand is the command line of the container that serves; nil where there is none.
func (c *Component) podCommand() []string {
	pod, main := &c.Pod, c.Main
	if c.Leader != nil {
		pod, main = &c.Leader.Pod, c.Leader.Main
	}
	for i := range pod.Containers {
		if m := &pod.Containers[i]; main == "" || m.Name == main {
			return slices.Concat(m.Command, m.Args)
		}
	}
	return nil
}

// Node is one side of a multi-node component.
type Node struct {
	Pod  corev1.PodSpec `json:"pod"`
	Main string         `json:"main"`
	Size int            `json:"size"`
}

// Process is a component as a child process, or as a container of one machine. Object templates are resolved;
// {{.Port}}, {{.GRPCPort}}, {{.MetricsPort}}, {{.KVEventsPort}}, {{.ModelPath}} and
// {{.AdapterPaths}} remain, since they are the replica's: Process.Resolve fills
// them.
type Process struct {
	Command []string        `json:"command"`
	Env     []corev1.EnvVar `json:"env,omitempty"`
	// EnvFrom are ConfigMaps and secrets of the namespace whose entries are variables,
	// which those of Env take the place of.
	EnvFrom    []corev1.EnvFromSource `json:"envFrom,omitempty"`
	WorkingDir string                 `json:"workingDir,omitempty"`
	Install    string                 `json:"install,omitempty"`
	// Repository is the layout of the repository of models that it serves, which is its
	// {{.ModelPath}}; "" for a process with a model of its own.
	Repository Layout `json:"repository,omitempty"`
	// Container is what it runs in; nil for a process of this machine's programs.
	Container *Container    `json:"container,omitempty"`
	Readiness *corev1.Probe `json:"readiness,omitempty"` // nil: TCP connect to the port
	Liveness  *corev1.Probe `json:"liveness,omitempty"`
	// Startup holds the other two off until it has passed, and bounds how long that may
	// take; nil for none. Containers alone have one.
	Startup *corev1.Probe `json:"startup,omitempty"`
	// Standby are the levels at which a replica may be put to sleep; nil for none.
	Standby *service.Standby `json:"standby,omitempty"`
	// GPUs is how many accelerators one replica holds: exclusively, or GPUMemory
	// bytes or GPUPercent of each.
	GPUs      int   `json:"gpus,omitempty"`
	GPUMemory int64 `json:"gpuMemory,omitempty"`
	// GPUPercent takes the place of GPUMemory.
	GPUPercent int `json:"gpuPercent,omitempty"`
	// ShareGPU: GPUMemory is not stated, but expected. GPUMemoryFrom is where it
	// comes from; "" while nothing is known of it, and the GPUs are taken whole.
	ShareGPU      bool   `json:"shareGPU,omitempty"`
	GPUMemoryFrom string `json:"gpuMemoryFrom,omitempty"`
	// ReservedMemory is the main memory that the service states for one replica,
	// in bytes: its request, else its limit.
	ReservedMemory int64 `json:"reservedMemory,omitempty"`
	// ExpectedMemory is what one replica is expected to take where the service
	// states nothing, in bytes, and MemoryFrom where that comes from.
	ExpectedMemory int64  `json:"expectedMemory,omitempty"`
	MemoryFrom     string `json:"memoryFrom,omitempty"`
	// Permit: a replica starts only once a plan for the machine starts it.
	Permit bool `json:"permit,omitempty"`
	// MemoryBytes limits one replica's memory; 0 is no limit.
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	// TerminationGrace is SIGTERM to SIGKILL; nil means 30 s, and 0 ends the process at
	// once. Drain is for how long before SIGTERM the requests in flight may go on; 0
	// means as long.
	TerminationGrace *time.Duration `json:"terminationGrace,omitempty"`
	Drain            time.Duration  `json:"drain,omitempty"`
}

// Need is what one replica takes of its machine; nothing where it is no process.
func (p *Process) Need() residency.Need {
	if p == nil {
		return residency.Need{}
	}
	n := residency.Need{GPUs: p.GPUs, GPUMemory: p.GPUMemory, GPUPercent: p.GPUPercent, GPUMemoryFrom: p.GPUMemoryFrom, Memory: p.ReservedMemory, Permit: p.Permit}
	if n.Memory == 0 && p.ExpectedMemory > 0 {
		n.Memory, n.MemoryFrom = p.ExpectedMemory, p.MemoryFrom
	}
	return n
}

// Location is what a replica alone knows and its command line may name.
type Location struct {
	Port, GRPCPort, MetricsPort, KVEventsPort int
	ModelPath                                 string
	AdapterPaths                              map[string]string // by the adapters' names
	// Mounted: the model and the adapters are files of this machine, which a
	// container has at paths of its own. Root is its path for the model; "" is ModelAt.
	Mounted bool
	Root    string
	// Addresses are the "host:port" at which the other roles of the service are
	// reached; nil where the replica is told none.
	Addresses map[service.Role]string
}

// Predictor is the role that a transformer and an explainer call: the router, else
// the decoder, else the engine.
func (r *Revision) Predictor() service.Role {
	for _, role := range []service.Role{service.RoleRouter, service.RoleDecoder} {
		if r.Component(role) != nil {
			return role
		}
	}
	return service.RoleEngine
}

// AddressVariable names the variable with which a component finds where another role
// of its service is reached.
func AddressVariable(role service.Role) string {
	return "ROUNDHOUSE_" + strings.ToUpper(string(role)) + "_ADDRESS"
}

func (pl Location) data() map[string]any {
	return map[string]any{"Port": strconv.Itoa(pl.Port), "GRPCPort": strconv.Itoa(pl.GRPCPort),
		"MetricsPort": strconv.Itoa(pl.MetricsPort), "KVEventsPort": strconv.Itoa(pl.KVEventsPort), "ModelPath": pl.ModelPath, "AdapterPaths": pl.AdapterPaths}
}
