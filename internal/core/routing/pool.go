package routing

import (
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Pool is a set of endpoints that one picker chooses among: the replicas of
// services found by label (InferencePool, and ours), and servers that run
// already (ours alone).
type Pool struct {
	service.Meta `json:",inline"`
	// Selector matches the labels of services, or those their replicas would
	// have as pods, in the pool's namespace. nil selects none.
	Selector map[string]string `json:"selector,omitempty"`
	// Ports are those of a pod, each an endpoint of its own. A process's port
	// is its own whatever they say.
	Ports []int32 `json:"ports,omitempty"`
	// Addresses are "host:port"; a host that is a name is looked up, and each
	// address found is an endpoint.
	Addresses []string `json:"addresses,omitempty"`
	// Prefill are those of Addresses that compute prompts for the others, "ip:port".
	Prefill []string `json:"prefill,omitempty"`
	// Encode are those that compute pictures, sounds and videos for them, "ip:port".
	Encode   []string         `json:"encode,omitempty"`
	Protocol service.Protocol `json:"protocol,omitempty"`
	Metrics  Metrics          `json:"metrics,omitzero"`
	KVEvents service.KVEvents `json:"kvEvents,omitzero"`
	// DataParallelSize is how many ranks the engine of each server has that no service
	// owns; 0 means what its pod's command line says.
	DataParallelSize int         `json:"dataParallelSize,omitempty"`
	Health           HealthCheck `json:"healthCheck,omitzero"`
	Picker           Picker      `json:"picker,omitzero"`
	Bounds           Bounds      `json:"bounds,omitzero"`
	// Import: it stands for a pool of other clusters, an InferencePoolImport.
	Import bool `json:"import,omitempty"`
	// Extension is the endpoint picker that an InferencePool names.
	Extension Extension `json:"extension,omitzero"`
}

// Extension is the endpoint picker of an InferencePool, a Service of its
// namespace, that other gateways ask.
type Extension struct {
	Group string `json:"group,omitempty"`
	Kind  string `json:"kind,omitempty"` // "" is Service
	Name  string `json:"name"`
	Port  int32  `json:"port,omitempty"`
	// FailureMode is what a gateway does while the picker is away: FailClose,
	// which "" means too, refuses requests, FailOpen sends them anywhere.
	FailureMode string `json:"failureMode,omitempty"`
}

// The failure modes of an Extension; "" is FailClose.
const (
	FailOpen  = "FailOpen"
	FailClose = "FailClose"
)

// Engines are the names that Metrics.Engine may have.
var Engines = []string{"vllm", "sglang", "trtllm-serve", "triton-trtllm", "triton", "llamacpp", "roundhouse"}

// Metrics is which metrics a pool's endpoints export.
type Metrics struct {
	// Engine names the set of metrics ("vllm", "sglang", …); "" means find out.
	Engine string `json:"engine,omitempty"`
	Path   string `json:"path,omitempty"` // "" means the engine's own
	Port   int32  `json:"port,omitempty"` // 0 means the endpoint's own
}

// HealthCheck is how the servers at a pool's addresses are asked whether they
// are well. What is 0 or "" is the default.
type HealthCheck struct {
	Path             string        `json:"path,omitempty"`
	Port             int32         `json:"port,omitempty"`
	Interval         time.Duration `json:"interval,omitempty"`
	Timeout          time.Duration `json:"timeout,omitempty"`
	FailureThreshold int           `json:"failureThreshold,omitempty"` // checks in a row
	Disabled         bool          `json:"disabled,omitempty"`
}

// How an endpoint is chosen, which services state too.
type (
	Picker = service.Picker
	Filter = service.Filter
	Scorer = service.Scorer
)

// Bounds replace those that hold for every pool; 0 keeps them.
type Bounds struct {
	MaxQueue      int           `json:"maxQueue,omitempty"`
	MaxQueueBytes int64         `json:"maxQueueBytes,omitempty"`
	MaxWait       time.Duration `json:"maxWait,omitempty"`
	// Fairness is what the fairness ids of a priority share; "" is requests.
	Fairness service.Fairness `json:"fairness,omitempty"`
	// MaxConcurrency limits requests in flight per endpoint.
	MaxConcurrency int `json:"maxConcurrency,omitempty"`
	// AnswerTimeout is how long an endpoint may take to begin an answer.
	AnswerTimeout time.Duration `json:"answerTimeout,omitempty"`
	// Saturation is from when on an endpoint has no capacity.
	Saturation service.Saturation `json:"saturation,omitzero"`
	// PrefillTokens is how many tokens of a prompt must be new to an endpoint that
	// answers, for another to compute the prompt.
	PrefillTokens int64 `json:"prefillTokens,omitempty"`
}

// ImportLacks is what an InferencePoolImport without addresses lacks.
const ImportLacks = "the kind has no address to connect to: state those of the exporting clusters' gateways in the annotation roundhouse.dev/addresses, as host:port"

// RoutingKind is KindPool.
func (*Pool) RoutingKind() Kind { return KindPool }

// Common is the metadata.
func (o *Pool) Common() *service.Meta { return &o.Meta }
