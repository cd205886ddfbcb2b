package service

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Component is one part of a service (engine, decoder, router, transformer):
// what runs and how many of it.
type Component struct {
	// Pod holds the containers and everything else of the pod; containers may
	// be partial in a service, since they are laid over the runtime's by name.
	Pod corev1.PodSpec `json:"pod,omitzero"`
	// Main is the name of the container that serves ("kserve-container",
	// "ome-container"). In a service it may name a container the runtime has.
	Main        string            `json:"main,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Scaling     Scaling           `json:"scaling,omitzero"`
	// Strategy is how new replicas take over, Budget how many pods of a cluster may be
	// evicted at a time; nil leaves either to the platform.
	Strategy *Strategy `json:"strategy,omitempty"`
	Budget   *Budget   `json:"budget,omitempty"`
	// Leader and Worker are set for a multi-node component.
	Leader *Node `json:"leader,omitempty"`
	Worker *Node `json:"worker,omitempty"`
	// Parts are the URIs of the files that a transformer or an explainer has of its own,
	// each with its place; nil for none.
	Parts Parts `json:"parts,omitempty"`
	// Storage names what these are fetched with, as a model's does.
	Storage *Storage `json:"storage,omitempty"`
	// Subcommand reports that a word among the arguments of its container may be a
	// subcommand: the arguments that say what it explains stand before all others.
	Subcommand bool `json:"subcommand,omitempty"`
	// Config is OME's routerConfig.config: free settings handed to the router.
	Config map[string]string `json:"config,omitempty"`
	// Metrics is where it exports its metrics.
	Metrics Metrics `json:"metrics,omitzero"`
	// Logger and Batcher are what the gateway does with its requests; nil for
	// nothing.
	Logger  *Logger  `json:"logger,omitempty"`
	Batcher *Batcher `json:"batcher,omitempty"`
	// Local is how the component runs as a process; nil means derive it.
	Local *Local `json:"local,omitempty"`
	// LocalDerived reports that nobody wrote Local: it was found for the present
	// host, and is no part of what the object says.
	LocalDerived bool `json:"-"`
}

// Metrics is where a component exports its metrics: the port of its pods, and
// the path.
type Metrics struct {
	Port int32  `json:"port,omitempty"` // 0 means that of its requests
	Path string `json:"path,omitempty"` // "" means the engine's own
}

// KVEvents is where engines publish which blocks of KV they hold.
type KVEvents struct {
	Port int32 `json:"port,omitempty"` // 0 means nowhere
	// ReplayPort is where missed events are asked for; 0 means nowhere.
	ReplayPort int32  `json:"replayPort,omitempty"`
	Topic      string `json:"topic,omitempty"`
}

// KVEventsOf reads that from an engine's command line: the --kv-events-config of
// vLLM and SGLang. It is zero where the engine publishes nothing over TCP.
func KVEventsOf(command []string) KVEvents {
	text := ""
	for i, word := range command {
		if value, ok := strings.CutPrefix(word, "--kv-events-config="); ok {
			text = value
		} else if word == "--kv-events-config" && i+1 < len(command) {
			text = command[i+1]
		}
	}
	var c struct {
		Enable    *bool  `json:"enable_kv_cache_events"`
		Publisher string `json:"publisher"`
		Endpoint  string `json:"endpoint"`
		Replay    string `json:"replay_endpoint"`
		Topic     string `json:"topic"`
	}
	c.Endpoint = "tcp://*:5557" // what the engines take without one
	if text == "" || json.Unmarshal([]byte(text), &c) != nil || c.Publisher != "zmq" && c.Publisher != "" {
		return KVEvents{}
	}
	if c.Enable == nil && c.Publisher == "" || c.Enable != nil && !*c.Enable {
		return KVEvents{}
	}
	if portOf(c.Endpoint) == 0 {
		return KVEvents{}
	}
	return KVEvents{Port: portOf(c.Endpoint), ReplayPort: portOf(c.Replay), Topic: c.Topic}
}

// portOf is the port of "tcp://HOST:PORT"; 0 for anything else.
func portOf(endpoint string) int32 {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	n, err := strconv.ParseUint(rest[strings.LastIndexByte(rest, ':')+1:], 10, 16)
	if !ok || err != nil {
		return 0
	}
	return int32(n)
}

// DataParallel is how the data-parallel ranks of an engine are reached, each of which
// has a queue and a KV memory of its own. The zero value is an engine without.
type DataParallel struct {
	// Size is how many ranks the engine's server has, at least 2.
	Size int `json:"size,omitempty"`
	// Local is how many of them run at the server's host, the first ones.
	Local int `json:"local,omitempty"`
	// Ports: each rank answers at a port of its own, from the server's on. Otherwise
	// all answer at the server's, and a header names the rank.
	Ports bool `json:"ports,omitempty"`
}

// MaxDataParallelSize is how many ranks an engine may have that are endpoints. Among
// more it chooses itself.
const MaxDataParallelSize = 256

// DataParallelOf reads that from an engine's command line: the flags of vLLM and
// SGLang. A word may be a shell's script. It is zero where the server answers for one
// rank, where it chooses among the ranks of one host of several (vLLM's hybrid load
// balancing, which numbers them otherwise in its metrics), and where it is not stated
// in digits.
func DataParallelOf(command []string) (out DataParallel) {
	var words []string
	for _, word := range command {
		words = append(words, strings.Fields(word)...)
	}
	for i, word := range words {
		flag, value, joined := strings.Cut(word, "=")
		if !joined && i+1 < len(words) {
			value = words[i+1]
		}
		n, err := strconv.Atoi(strings.Trim(value, `"'`))
		switch flag {
		case "--data-parallel-size", "-dp", "--dp-size", "--dp":
			if err == nil {
				out.Size = n
			}
		case "--data-parallel-size-local", "-dpl":
			if err == nil {
				out.Local = n
			}
		case "--data-parallel-multi-port-external-lb":
			out.Ports = true
		case "--data-parallel-external-lb", "-dpe", "--data-parallel-hybrid-lb", "-dph", "--data-parallel-rank", "-dpn", "--headless":
			return DataParallel{}
		}
	}
	if out.Local < 1 || out.Local > out.Size {
		out.Local = out.Size
	}
	if out.Ports { // those of other hosts answer there
		out.Size = out.Local
	}
	if out.Size < 2 || out.Size > MaxDataParallelSize {
		return DataParallel{}
	}
	return out
}

// metricsAnnotations are the pairs, port and path, that people tell Prometheus
// by: KServe's on its runtimes and services, and the usual one of pods.
var metricsAnnotations = [...][2]string{
	{"prometheus.kserve.io/port", "prometheus.kserve.io/path"},
	{"prometheus.io/port", "prometheus.io/path"},
}

// Or is m, with what it leaves open as other has it.
func (m Metrics) Or(other Metrics) Metrics {
	return Metrics{Port: cmp.Or(m.Port, other.Port), Path: cmp.Or(m.Path, other.Path)}
}

// Over is m, filled up with what annotations say. A value that is no port is
// none.
func (m Metrics) Over(annotations map[string]string) Metrics {
	for _, pair := range metricsAnnotations {
		if n, err := strconv.ParseUint(annotations[pair[0]], 10, 16); err == nil && m.Port == 0 {
			m.Port = int32(n)
		}
		if path := annotations[pair[1]]; path != "" && m.Path == "" {
			m.Path = "/" + strings.TrimLeft(path, "/")
		}
	}
	return m
}

// Node is one side of a multi-node component.
type Node struct {
	Pod  corev1.PodSpec `json:"pod,omitzero"`
	Main string         `json:"main,omitempty"`
	// Size is how many nodes of this side one replica has; 0 means 1.
	Size int `json:"size,omitempty"`
}

// Local is how a runtime's component runs as a process on one machine.
// Strings are templates over {{.Port}}, {{.GRPCPort}}, {{.MetricsPort}}, {{.KVEventsPort}},
// {{.ModelPath}}, {{.Name}} and the object's metadata.
type Local struct {
	// Command is the program and its arguments; the program is looked up on
	// PATH, and "roundhouse" is this binary.
	Command    []string        `json:"command"`
	Env        []corev1.EnvVar `json:"env,omitempty"`
	WorkingDir string          `json:"workingDir,omitempty"`
	// Install is the line a person types to get a missing program, for
	// example "pip install vllm".
	Install        string        `json:"install,omitempty"`
	ReadinessProbe *corev1.Probe `json:"readinessProbe,omitempty"`
	LivenessProbe  *corev1.Probe `json:"livenessProbe,omitempty"`
	// Standby is how the engine sleeps; nil where it cannot.
	Standby *Standby `json:"standby,omitempty"`
	// Requires is what the command needs besides its program. It decides
	// whether it can run, not what runs, and so is no part of a revision.
	Requires []Requirement `json:"-"`
	// Fallback runs in place of this command where its program is missing.
	Fallback *Local `json:"-"`
	// FallbackOf is set in a Fallback that was taken: the command in whose
	// place it runs on the present host.
	FallbackOf *Local `json:"-"`
}

// NeedsNoGPU reports whether the command computes without GPUs where a machine has
// none, whatever it is given elsewhere: this program's own server does.
func (l *Local) NeedsNoGPU() bool {
	return l != nil && len(l.Command) > 1 && l.Command[0] == "roundhouse" && l.Command[1] == "serve"
}

// Standby is how an engine is put to sleep, and woken, by calls to its port.
type Standby struct {
	// Args are for the command of a replica with GPUs, Env for every one that may
	// be put to sleep.
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
	Level int    `json:"level"` // from 1
	Sleep Call   `json:"sleep"`
	Wake  []Call `json:"wake"` // in this order
}

// Call is a POST to a replica.
type Call struct {
	Path string `json:"path"` // with its query
	Body string `json:"body,omitempty"`
}

// Find returns the level of a number; nil without it.
func (s *Standby) Find(level int) *StandbyLevel {
	if s != nil {
		for i := range s.Levels {
			if s.Levels[i].Level == level {
				return &s.Levels[i]
			}
		}
	}
	return nil
}

// LevelSuspended is the number of the level at which no engine takes part: the
// processes are stopped (SIGSTOP) and their memory is in swap. It is deeper than
// those of engines.
const LevelSuspended = 10

// AsleepAt is a level at which a replica sleeps, for people.
func AsleepAt(level int) string {
	if level == LevelSuspended {
		return "suspended"
	}
	return fmt.Sprintf("asleep at level %d", level)
}

// StandbyPolicy is what becomes of the last replica of a component that is idle.
type StandbyPolicy string

// The policies. Those of one level are StandbyLevelPrefix and its number.
const (
	StandbyNever       StandbyPolicy = "never"   // it stops
	StandbyAuto        StandbyPolicy = "auto"    // it sleeps at the first level whose memory is there
	StandbySuspend     StandbyPolicy = "suspend" // its processes stop, and their memory goes to swap
	StandbyLevelPrefix               = "level"
)

// ParseStandby reads a policy; level is 0 but for those of one level.
func ParseStandby(s string) (p StandbyPolicy, level int, ok bool) {
	switch p = StandbyPolicy(s); p {
	case "", StandbyNever, StandbyAuto:
		return p, 0, true
	case StandbySuspend:
		return p, LevelSuspended, true
	}
	digits, found := strings.CutPrefix(s, StandbyLevelPrefix)
	level, err := strconv.Atoi(digits)
	return p, level, found && err == nil && level >= 1 && level <= 9 && len(digits) == 1
}

// Requirement is something a command needs besides its program.
type Requirement struct {
	// Formats are the formats of the models that need it; none means all.
	Formats []string
	// Python are modules of the interpreter that ROUNDHOUSE_PYTHON names, else
	// of python3.
	Python []string
	// Command is a program that has to be here; with arguments, it has to
	// succeed.
	Command []string
	// Install is the line a person types to get it; empty means Local's.
	Install string
}

// MaxVariable is how many bytes of NAME=value Linux gives a program in one variable:
// MAX_ARG_STRLEN less the NUL that ends it.
const MaxVariable = 128<<10 - 1
