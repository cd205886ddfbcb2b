package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The kinds that route requests.
const (
	KindRoute = "Route"
	KindPool  = "Pool"
)

// Route gives model names to targets: services and pools, by weight.
type Route struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            RouteSpec         `json:"spec"`
	Status          RoutingStatus     `json:"status,omitzero"`
}

// RouteSpec maps model names to targets.
type RouteSpec struct {
	// Models are the names that requests use; default: metadata.name.
	Models []string `json:"models,omitempty"`
	// Targets are 1 to 16, all in the route's namespace. All of them state a
	// weight or none does.
	Targets []RouteTarget `json:"targets"`
	// Criticality is Critical, Standard or Sheddable: priority 1, 0 or -1.
	Criticality string `json:"criticality,omitempty"`
	// Priority is any number: above 0 is critical, below 0 is shed first.
	Priority *int32 `json:"priority,omitempty"`
	// Latency is how long answers may take. It needs streamed answers.
	Latency *RouteLatency `json:"latency,omitempty"`
	// Timeouts bound how long answers may take; a client whose request takes longer
	// gets 504.
	Timeouts *RouteTimeouts `json:"timeouts,omitempty"`
	// Mirrors are at most 4 services and pools that get copies of requests, whose
	// answers nobody sees.
	Mirrors []RouteMirror `json:"mirrors,omitempty"`
	// RequestHeaders change the header that a replica gets, ResponseHeaders the one
	// that the client gets.
	RequestHeaders  *RouteHeaders `json:"requestHeaders,omitempty"`
	ResponseHeaders *RouteHeaders `json:"responseHeaders,omitempty"`
	// Retry is which answers are asked for again from another replica.
	Retry *RouteRetry `json:"retry,omitempty"`
	// Hedge sends a request to a second replica where the first is slow to begin its
	// answer.
	Hedge *RouteHedge `json:"hedge,omitempty"`
	// RetryBudget bounds retries and hedges together.
	RetryBudget *RouteRetryBudget `json:"retryBudget,omitempty"`
}

// RouteHeaders are changes of a header. Each name is in one of them.
type RouteHeaders struct {
	// Set puts a value in the place of all, Add another one after them; each has at
	// most 16 names.
	Set map[string]string `json:"set,omitempty"`
	Add map[string]string `json:"add,omitempty"`
	// Remove are at most 16 names.
	Remove []string `json:"remove,omitempty"`
}

// RouteRetry is when a request is sent to another replica because of the answer of
// one.
type RouteRetry struct {
	// Codes are at most 16 statuses, 400 to 599; default: 429, and 5xx except 501 and
	// 505.
	Codes []int `json:"codes,omitempty"`
	// Attempts is how many replicas are tried after the first, 0 to 10; default 2.
	Attempts *int `json:"attempts,omitempty"`
	// Backoff is the wait before the first, at most 1m; it doubles.
	Backoff *metav1.Duration `json:"backoff,omitempty"`
}

// RouteHedge is when the second replica is asked, one of them.
type RouteHedge struct {
	// After is a time since the request was sent.
	After *metav1.Duration `json:"after,omitempty"`
	// Percentile is 50 to 99, of the times to the first byte of the route's latest
	// answers.
	Percentile *int `json:"percentile,omitempty"`
}

// RouteRetryBudget allows so many retries and hedges in 10 seconds.
type RouteRetryBudget struct {
	// Percent of the route's requests in that time, 0 to 100; default 20.
	Percent *int `json:"percent,omitempty"`
	// PerSecond are allowed besides, 0 to 1000; default 10.
	PerSecond *int `json:"perSecond,omitempty"`
}

// RouteTimeouts are the bounds of one request.
type RouteTimeouts struct {
	// Request is for the whole answer, with the wait for an endpoint.
	Request *metav1.Duration `json:"request,omitempty"`
	// BackendRequest is for each endpoint that is tried to begin its answer; at most
	// request.
	BackendRequest *metav1.Duration `json:"backendRequest,omitempty"`
}

// RouteMirror is a service or a pool, one of them, in the route's namespace.
type RouteMirror struct {
	Service string `json:"service,omitempty"`
	Pool    string `json:"pool,omitempty"`
	// Model is the name that the replica gets, as of targets.
	Model string `json:"model,omitempty"`
	// Percent of the requests are copied; absent means all.
	Percent *int32 `json:"percent,omitempty"`
}

// RouteLatency is a target: a request that no endpoint is predicted to answer in time
// lets others go first, and is refused if its priority is below 0.
type RouteLatency struct {
	// TTFT is the time to the first token.
	TTFT *metav1.Duration `json:"ttft,omitempty"`
	// TPOT is the mean time of each further token.
	TPOT *metav1.Duration `json:"tpot,omitempty"`
}

// RouteTarget is a service or a pool, one of them.
type RouteTarget struct {
	Service string `json:"service,omitempty"`
	Pool    string `json:"pool,omitempty"`
	// Model is the name that the replica gets, such as a LoRA adapter's.
	// Default: a service's own name, or for a pool the name in the request.
	Model string `json:"model,omitempty"`
	// Weight is 0 to 1,000,000; if no target states one, all are equal.
	Weight *int32 `json:"weight,omitempty"`
}

// Pool is a set of endpoints that requests are balanced over: the replicas of
// the services that Selector finds, and the servers at Addresses.
type Pool struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            PoolSpec          `json:"spec"`
	Status          RoutingStatus     `json:"status,omitzero"`
}

// PoolSpec selects endpoints and configures how one is picked.
type PoolSpec struct {
	// Selector is compared with the labels of services, and of the pods they
	// would have, in the pool's namespace.
	Selector map[string]string `json:"selector,omitempty"`
	// Addresses are "host:port" of servers that run already; every address of a
	// name is an endpoint.
	Addresses []string `json:"addresses,omitempty"`
	// PrefillAddresses are "IP:port" of servers that compute prompts for those at
	// Addresses, which llm-d's sidecar brings together.
	PrefillAddresses []string `json:"prefillAddresses,omitempty"`
	// EncodeAddresses are "IP:port" of servers that compute pictures, sounds and videos
	// for those at Addresses, which llm-d's sidecar brings together.
	EncodeAddresses []string `json:"encodeAddresses,omitempty"`
	// Protocol the servers speak: v1, v2, grpc-v2, openAI or cohere; absent is
	// openAI.
	Protocol string       `json:"protocol,omitempty"`
	Metrics  *PoolMetrics `json:"metrics,omitempty"`
	// KVEvents is where endpoints publish what their prefix caches hold.
	KVEvents *PoolKVEvents `json:"kvEvents,omitempty"`
	// DataParallelSize is how many data-parallel ranks the engine at each address has
	// (vLLM's --data-parallel-size, SGLang's --dp-size); each is an endpoint.
	DataParallelSize *int             `json:"dataParallelSize,omitempty"`
	HealthCheck      *PoolHealthCheck `json:"healthCheck,omitempty"`
	Picker           *PoolPicker      `json:"picker,omitempty"`
	Queue            *Queue           `json:"queue,omitempty"`
	// MaxConcurrency limits requests in flight per endpoint; 0 is no limit.
	MaxConcurrency *int `json:"maxConcurrency,omitempty"`
	// AnswerTimeout is how long an endpoint may take to begin an answer; absent
	// means its service's, or the gateway's.
	AnswerTimeout *metav1.Duration `json:"answerTimeout,omitempty"`
}

// PoolMetrics is where the load of endpoints is read.
type PoolMetrics struct {
	// Engine is vllm, sglang, trtllm-serve, triton-trtllm, triton, llamacpp or
	// roundhouse; by default it is detected.
	Engine string `json:"engine,omitempty"`
	// Path of the metrics; default: the engine's own.
	Path string `json:"path,omitempty"`
	// Port of the metrics, if it is not the endpoint's own: 8082 of roundhouse
	// serve and MLServer, 8002 of Triton.
	Port *int32 `json:"port,omitempty"`
}

// PoolKVEvents is where the engines of a pool publish which blocks of KV they
// hold (vLLM's and SGLang's --kv-events-config).
type PoolKVEvents struct {
	// Port of the publisher at each endpoint's host.
	Port int32 `json:"port"`
	// ReplayPort is where missed events can be asked for; absent means nowhere.
	ReplayPort *int32 `json:"replayPort,omitempty"`
	// Topic of the events; absent means all.
	Topic string `json:"topic,omitempty"`
}

// PoolHealthCheck is how the servers at Addresses are checked. An unhealthy
// server gets no requests until a check passes.
type PoolHealthCheck struct {
	// Path of the GET request, which a healthy server answers 2xx or 3xx;
	// default: the engine's own, or the protocol's.
	Path string `json:"path,omitempty"`
	// Port of the health check, if it is not the endpoint's own.
	Port *int32 `json:"port,omitempty"`
	// Interval between two checks; absent means 5s.
	Interval *metav1.Duration `json:"interval,omitempty"`
	// Timeout of one check; absent means 2s.
	Timeout *metav1.Duration `json:"timeout,omitempty"`
	// FailureThreshold is how many checks in a row must fail; absent means 2.
	FailureThreshold *int32 `json:"failureThreshold,omitempty"`
	// Disabled turns the checks off: the servers count as healthy.
	Disabled bool `json:"disabled,omitempty"`
}

// PoolPicker is how an endpoint is picked.
type PoolPicker struct {
	// Preset is default, predicted-latency, shared-prefixes, least-request, llm-d,
	// round-robin, seed-50 or v0.3-128.
	Preset string `json:"preset,omitempty"`
	// Filters replace the preset's. Each keeps some of the endpoints that the
	// filter before it kept.
	Filters []PoolFilter `json:"filters,omitempty"`
	// Scorers replace the preset's.
	Scorers []PoolScorer `json:"scorers,omitempty"`
	// Choice picks one of the remaining endpoints: best, random or round-robin;
	// default: the preset's.
	Choice string `json:"choice,omitempty"`
	// Balance bounds affinity of prompts and sessions. It counts in full while
	// an endpoint has at most the mean of requests, and not at all from Balance
	// times the mean on. Must be above 1.
	Balance float64 `json:"balance,omitempty"`
	// Fresh is the age up to which a load counts in full, Stale the age from
	// which on it does not count.
	Fresh *metav1.Duration `json:"fresh,omitempty"`
	Stale *metav1.Duration `json:"stale,omitempty"`
}

// PoolFilter keeps some of the endpoints it is given. If it keeps any, the
// filters in then continue with them; otherwise the filters in else continue
// with all that it was given.
type PoolFilter struct {
	Filter string `json:"filter"`
	// Waiting is the filter's bound on waiting requests, KV its bound on KV
	// memory in use, from 0 to 1.
	Waiting int     `json:"waiting,omitempty"`
	KV      float64 `json:"kv,omitempty"`
	// Probability with which lora-soft keeps the endpoints that have the adapter.
	Probability float64      `json:"probability,omitempty"`
	Then        []PoolFilter `json:"then,omitempty"`
	Else        []PoolFilter `json:"else,omitempty"`
}

// PoolScorer rates endpoints from 0 to 1, times a weight.
type PoolScorer struct {
	Name   string   `json:"name"`
	Weight *float64 `json:"weight,omitempty"`
	// Scale is the difference in load that counts in full.
	Scale float64 `json:"scale,omitempty"`
}

// Queue bounds the requests that wait for a replica or endpoint. Absent fields are
// the gateway's.
type Queue struct {
	MaxRequests *int               `json:"maxRequests,omitempty"`
	MaxBytes    *resource.Quantity `json:"maxBytes,omitempty"`
	MaxWait     *metav1.Duration   `json:"maxWait,omitempty"`
	// Fairness is what the fairness ids of a priority share: requests, or tokens.
	Fairness string `json:"fairness,omitempty"`
}

// RoutingStatus is the status of a Route or Pool. Roundhouse writes it and
// ignores it in manifests.
type RoutingStatus struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
