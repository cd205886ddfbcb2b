// Package replica holds the words for one running copy of a component: its
// identity, its addresses and where it is in its life.
package replica

import (
	"cmp"
	"math"
	"strconv"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Phase is where a replica is in its life.
type Phase string

// The phases. A replica goes Pending → Fetching → Starting → Ready, then
// Draining and away; a process that exits goes to Failed and, after a backoff,
// to Starting again.
const (
	Pending  Phase = "Pending"  // waits for something: an accelerator, a program; Message is what
	Fetching Phase = "Fetching" // its model files are being fetched
	Starting Phase = "Starting" // runs, not yet ready
	Ready    Phase = "Ready"    // passes its readiness probe
	Asleep   Phase = "Asleep"   // runs, and is to be woken before it takes requests
	Draining Phase = "Draining" // takes no new requests; ends when idle or at its deadline
	Failed   Phase = "Failed"   // ended or never started; Restart is when it is tried again
)

// Replica is one running copy. Values are snapshots: the owner replaces them,
// nobody changes one in place.
type Replica struct {
	ID       string       `json:"id"` // unique within a data directory or namespace
	Service  service.Key  `json:"service"`
	Role     service.Role `json:"role"`
	Revision string       `json:"revision"` // workload.Revision.Hash
	Phase    Phase        `json:"phase"`
	// Reason is one CamelCase word, Message one line a person can act on.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// HTTP and GRPC are "host:port"; "" when not served.
	HTTP string `json:"http,omitempty"`
	GRPC string `json:"grpc,omitempty"`
	// Metrics is the "host:port/path" of its metrics where its manifest or its
	// command line says; "" means the HTTP address, and the engine's own path.
	Metrics string `json:"metrics,omitempty"`
	// KVEvents is where its engine publishes what its prefix cache holds, where
	// its command line says.
	KVEvents service.KVEvents `json:"kvEvents,omitzero"`
	// DataParallel are its engine's ranks, where its command line says.
	DataParallel service.DataParallel `json:"dataParallel,omitzero"`
	// Encodes: besides what its role is, it computes pictures, sounds and videos for
	// other replicas.
	Encodes bool `json:"encodes,omitempty"`
	// PID is the process's id on one machine, 0 in a cluster.
	PID      int       `json:"pid,omitempty"`
	Created  time.Time `json:"created,omitzero"`
	Started  time.Time `json:"started,omitzero"` // of the present process
	ReadyAt  time.Time `json:"readyAt,omitzero"`
	Restarts int       `json:"restarts,omitempty"`
	ExitCode int       `json:"exitCode,omitempty"` // of the last process that ended
	// Files is the fingerprint of the files that it was started with, on one
	// machine; "" while that is not known.
	Files string `json:"-"`
	// FailedStarts counts, on one machine, the processes in a row that ended
	// before they were ready.
	FailedStarts int `json:"failedStarts,omitempty"`
	// Memory is the most main memory that its processes were seen to use, and
	// GPUMemory the most of one of its GPUs, in bytes; 0 while neither was measured.
	Memory    int64 `json:"memory,omitempty"`
	GPUMemory int64 `json:"gpuMemory,omitempty"`
	// GPUs are the indexes of the accelerators it holds.
	GPUs     []int     `json:"gpus,omitempty"`
	Progress *Progress `json:"progress,omitempty"` // of the fetch, while Fetching
	Restart  time.Time `json:"restart,omitzero"`   // when a Failed replica is tried again
	// Standby is the level at which it sleeps, or from which it is being woken, and
	// AsleepSince since when; 0 while awake.
	Standby     int       `json:"standby,omitempty"`
	AsleepSince time.Time `json:"asleepSince,omitzero"`
	Woke        *Woke     `json:"woke,omitempty"` // its last waking; nil without one
	// Guests are the models of other services that its server was to load, by the
	// names of the services; nil where it has a model of its own. The map is replaced,
	// never changed in place.
	Guests map[string]Guest `json:"guests,omitempty"`
}

// Guest is a model that a server which runs already loads beside others.
type Guest struct {
	Loaded bool `json:"loaded,omitempty"`
	// Message is why it is not loaded, or what it waits for, and Failures how often in
	// a row loading it has failed; Retry is when that is tried again.
	Message  string    `json:"message,omitempty"`
	Failures int       `json:"failures,omitempty"`
	Retry    time.Time `json:"retry,omitzero"`
	Progress *Progress `json:"progress,omitempty"` // of the fetch of its files
}

// Woke is a waking that made a replica ready.
type Woke struct {
	Level   int       `json:"level"` // from which
	Seconds float64   `json:"seconds"`
	At      time.Time `json:"at"`
}

// Progress counts bytes of a transfer; Total is 0 while unknown.
type Progress struct {
	Done  int64 `json:"done"`
	Total int64 `json:"total"`
}

// MetricsAt is where a replica at r's addresses exports what m says, as Metrics
// has it; "" where m says nothing.
func (r Replica) MetricsAt(m service.Metrics) string {
	at := r.HTTP
	if m.Port > 0 {
		at = cmp.Or(at, r.GRPC)
		at = at[:strings.LastIndexByte(at, ':')+1]
		if at != "" {
			at += strconv.Itoa(int(m.Port))
		}
	}
	if at == "" || m == (service.Metrics{}) {
		return ""
	}
	return at + m.Path
}

// RankID is the ID of a data-parallel rank of a replica.
func RankID(id string, rank int) string { return id + "@" + strconv.Itoa(rank) }

// Ranks are the IDs of the data-parallel ranks of the replica's engine; none without.
func (r *Replica) Ranks() (ids []string) {
	for n := range r.DataParallel.Size {
		ids = append(ids, RankID(r.ID, n))
	}
	return ids
}

// OfRank is the ID of the replica that an ID is of, itself or one of its ranks, and
// the rank; 0 of itself.
func OfRank(id string) (replicaID string, rank int) {
	at := strings.LastIndexByte(id, '@')
	if at < 0 {
		return id, 0
	}
	n, err := strconv.ParseUint(id[at+1:], 10, 16)
	if err != nil {
		return id, 0
	}
	return id[:at], int(n)
}

// OffsetPort is a "host:port" with its port higher by n; "" for what is none.
func OffsetPort(hostport string, n int) string {
	at := strings.LastIndexByte(hostport, ':') + 1
	port, err := strconv.ParseUint(hostport[at:], 10, 16)
	if at == 0 || err != nil || int(port)+n > math.MaxUint16 {
		return ""
	}
	return hostport[:at] + strconv.Itoa(int(port)+n)
}

// Serving reports whether new requests may be sent to the replica.
func (r Replica) Serving() bool { return r.Phase == Ready }

// Alive reports whether the replica counts against the wanted number: it runs,
// or will as soon as what it waits for is there.
func (r Replica) Alive() bool { return r.Phase != Draining && r.Phase != Asleep }

// Reasons that others than the platform act on.
const (
	ReasonWaking         = "Waking"         // is being woken
	ReasonProgramMissing = "ProgramMissing" // the command is not on PATH; Message has the install line
	ReasonCannotExecute  = "CannotExecute"  // the command is there, and the machine does not run it
	ReasonModelChanged   = "ModelChanged"   // the model's files are no longer those of the revision
	// Other services have what it needs.
	ReasonInsufficientGPUs   = "InsufficientGPUs"
	ReasonInsufficientMemory = "InsufficientMemory"
	// It does not run with another service, which has not stopped yet.
	ReasonNotTogether = "NotTogether"
	// The machine is too small for it, or what pinned services leave of it is.
	ReasonNoRoom = "NoRoom"

	ReasonUnschedulable  = "Unschedulable"  // no place can take it as it is; one may come
	ReasonQuotaExceeded  = "QuotaExceeded"  // the namespace may have no more
	ReasonPodRefused     = "PodRefused"     // the cluster does not let its pod be made
	ReasonStartupTimeout = "StartupTimeout" // not ready within Limits.StartupTimeout
)

// Load is what a replica last said of itself. A value is a snapshot: nobody
// changes one, so it may be shared.
type Load struct {
	// At is when it was said.
	At time.Time
	// Waiting and Running count requests: in the replica's queue, and being
	// computed.
	Waiting, Running int
	// Batches: what waits there is gathered into batches, so that the number
	// tells which replica has less to do, not that one is full.
	Batches bool
	// KV is the part of the memory for keys and values that is in use, 0 to 1.
	KV float64
	// Blocks is how many blocks of BlockTokens tokens that memory has; 0 when
	// the replica does not report it.
	Blocks, BlockTokens int
	// Adapters are LoRA's; nil when the replica has none or does not report
	// them.
	Adapters *Adapters
	// Tells are the figures that the replica reports: of others the zero means
	// nothing.
	Tells Figures
}

// Sum is what several engines of one server say together; nil where none says
// anything. What one alone says is not copied.
func Sum(loads []*Load) *Load {
	var out *Load
	n := 0
	for _, l := range loads {
		switch n++; {
		case l == nil:
			n--
		case n == 1:
			out = l
		default:
			if n == 2 {
				first := *out
				out = &first
			}
			out.add(l, n)
		}
	}
	return out
}

// add takes in the nth engine of the server.
func (l *Load) add(other *Load, n int) {
	if other.At.Before(l.At) {
		l.At = other.At
	}
	l.Waiting += other.Waiting
	l.Running += other.Running
	l.Blocks += other.Blocks
	l.KV += (other.KV - l.KV) / float64(n)
	l.Tells = Figures{l.Tells.Queue || other.Tells.Queue, l.Tells.KV || other.Tells.KV}
	if l.Adapters == nil {
		l.Adapters = other.Adapters
	}
}

// Figures are which figures of a Load a replica reports.
type Figures struct{ Queue, KV bool }

// Use is what a replica takes of a machine, in percent of its limits, or of what
// the machine has where there is none; in a cluster, of its requests.
type Use struct {
	At          time.Time
	CPU, Memory float64
	// Problem is why there is no newer one, "" where that is not known.
	Problem string
}

// Adapters are the LoRA adapters a replica works with now. An adapter that is
// loaded and idle is in neither list.
type Adapters struct {
	Running, Waiting []string
	// Max is how many can be active at once; 0 when unknown.
	Max int
}
