package pickerconfig

// slot is where a configuration may refer to a plugin.
type slot int

// The slots. builtIn is of what is always so here, and needs no reference.
const (
	builtIn slot = iota
	scorer
	picker
	handler
	decider
	detector
)

// counterpart is what a type of plugin is here.
type counterpart struct {
	slot slot
	// name is that of the scorer, or of the picker's choice.
	name string
	// lacks is why there is none, and what to do; "" where there is one.
	lacks string
	// scale is the parameter that is the scorer's scale; "" for none.
	scale string
	// note is said of every use.
	note string
	// reads are the parameters that have an effect.
	reads []string
	// ignores are parameters without an effect, and what is said of them.
	ignores map[string]string
	// free: parameters are not looked at.
	free bool
}

const (
	ownIndex   = "has no effect: what an endpoint holds is followed by its reported KV memory and, with kvEvents of a Pool, block by block"
	ownMetrics = "has no effect: which metrics are read is metrics of a Pool"
	ownLoad    = "has no effect: a request counts on its endpoint until it ends"
	ownLatency = "has no effect: latencies are learned in this process"
	ownAge     = "has no effect: a load counts in full for 5 seconds, and from 10 on not at all"
	oneAddress = "has no effect: --fallbacks says how many more endpoints are named"
	rolesKnown = "label selectors are not read in a picker: select the pods in the pool, by selector.matchLabels, and remove this"
)

var (
	index     = map[string]string{"autoTune": ownIndex, "blockSizeTokens": ownIndex, "blockSize": ownIndex, "hashBlockSize": ownIndex, "maxPrefixBlocksToMatch": ownIndex, "maxPrefixTokensToMatch": ownIndex, "lruCapacityPerServer": ownIndex, "tokenProcessorConfig": ownIndex, "indexerConfig": ownIndex, "kvEventsConfig": ownIndex, "mode": ownIndex, "prefixMatchInfoProducerName": ownIndex}
	addresses = map[string]string{"maxNumOfEndpoints": oneAddress}
	profiles  = []string{"profiles", "deciders", "decodeProfile", "prefillProfile", "encodeProfile", "deciderPluginName", "prefillDeciderPluginName", "encodeDeciderPluginName"}
)

// counterparts are the types of plugins that llm-d's router and the Inference
// Extension have.
var counterparts = map[string]counterpart{
	"queue-scorer":                 {slot: scorer, name: "queue"},
	"load-aware-scorer":            {slot: scorer, name: "queue", scale: "threshold"},
	"kv-cache-utilization-scorer":  {slot: scorer, name: "kv"},
	"kv-cache-scorer":              {slot: scorer, name: "kv"},
	"running-requests-size-scorer": {slot: scorer, name: "running"},
	"active-request-scorer": {slot: scorer, name: "running",
		ignores: map[string]string{"requestTimeout": ownLoad, "idleThreshold": ownLoad, "maxBusyScore": ownLoad}},
	"token-load-scorer":           {slot: scorer, name: "tokens", scale: "queueThresholdTokens"},
	"prefix-cache-scorer":         {slot: scorer, name: "prefix", ignores: index},
	"precise-prefix-cache-scorer": {slot: scorer, name: "prefix", ignores: index},
	"lora-affinity-scorer":        {slot: scorer, name: "lora"},
	"session-affinity-scorer": {slot: scorer, name: "session",
		note: "counts for requests with the header that --session-header names; no header of the answer names the endpoint"},
	"latency-scorer":       {slot: scorer, name: "latency", free: true},
	"context-length-aware": {slot: scorer, lacks: "endpoints are not told apart by the length of contexts: make a pool of each kind and route between them"},

	"no-hit-lru-scorer": {slot: builtIn,
		note: "is built in with prefix-cache-scorer, without a weight: a prompt that no endpoint holds goes, of those that score nearly alike, to one that holds few prompts"},
	"decode-filter":                {slot: builtIn},
	"prefill-filter":               {slot: builtIn},
	"encode-filter":                {slot: builtIn},
	"by-label":                     {lacks: rolesKnown},
	"by-label-selector":            {lacks: rolesKnown},
	"label-selector-filter":        {lacks: rolesKnown},
	"prefix-cache-affinity-filter": {lacks: "affinity is a scorer here, bounded by balance of a Pool's picker: write prefix-cache-scorer, and remove this"},
	"slo-headroom-tier-filter":     {slot: builtIn, free: true, note: "is always so, with other thresholds: endpoints that are predicted to miss a request's target are left out where another meets it that has no more of the prompt to compute"},

	"max-score-picker": {slot: picker, name: "best", ignores: addresses},
	"random-picker":    {slot: picker, name: "random", ignores: addresses},
	"weighted-random-picker": {slot: picker, name: "best", ignores: addresses,
		lacks: "endpoints are not drawn by score: write max-score-picker, which breaks ties at random, or random-picker"},

	"single-profile-handler": {slot: handler, free: true},
	"data-parallel-profile-handler": {slot: handler,
		ignores: map[string]string{"primaryPort": "has no effect: each of a pool's targetPorts is an endpoint, which the picker names itself"}},
	"disagg-profile-handler": {slot: handler, reads: profiles},
	"pd-profile-handler": {slot: handler, reads: append([]string{"threshold"}, profiles...),
		ignores: map[string]string{"prefixPluginType": ownIndex, "prefixPluginName": ownIndex, "hashBlockSize": ownIndex, "primaryPort": "has no effect: each of a pool's targetPorts is an endpoint, which the picker names itself"}},
	"prefill-header-handler": {slot: builtIn, free: true},
	"disagg-headers-handler": {slot: builtIn, free: true},

	"prefix-based-pd-decider":          {slot: decider, reads: []string{"nonCachedTokens"}},
	"always-disagg-pd-decider":         {slot: decider},
	"always-disagg-multimodal-decider": {slot: decider, note: "is always so where a pool has encoders"},

	"utilization-detector": {slot: detector, reads: []string{"queueDepthThreshold", "kvCacheUtilThreshold"},
		ignores: map[string]string{"metricsStalenessThreshold": ownAge, "headroom": "has no effect: thresholds hold as they are"}},
	"concurrency-detector": {slot: detector, reads: []string{"maxConcurrency", "concurrencyMode"},
		ignores: map[string]string{"headroom": "has no effect: maxConcurrency holds as it is", "maxTokenConcurrency": "has no effect: requests are counted"}},

	"approx-prefix-cache-producer":             {slot: builtIn, ignores: index},
	"inflight-load-producer":                   {slot: builtIn, free: true},
	"token-producer":                           {slot: builtIn, free: true, note: "is built in: the tokens of prompts are asked of the endpoints where they publish KV events"},
	"tokenizer":                                {slot: builtIn, free: true, note: "is built in: the tokens of prompts are asked of the endpoints where they publish KV events"},
	"predicted-latency-producer":               {slot: builtIn, free: true, note: ownLatency},
	"metrics-data-source":                      {slot: builtIn, free: true},
	"core-metrics-extractor":                   {slot: builtIn, free: true},
	"models-data-source":                       {slot: builtIn, free: true},
	"models-data-extractor":                    {slot: builtIn, free: true},
	"endpoint-notification-source":             {slot: builtIn, free: true},
	"k8s-notification-source":                  {slot: builtIn, free: true},
	"openai-parser":                            {slot: builtIn},
	"passthrough-parser":                       {lacks: "bodies are read as what their path says: remove it; --allow-path hands other paths on"},
	"vllmgrpc-parser":                          {lacks: "vLLM's own gRPC is not read: have clients speak HTTP, and remove it"},
	"vertexai-parser":                          {lacks: "Vertex AI's paths are not read: remove it; --allow-path hands other paths on"},
	"round-robin-fairness-policy":              {slot: builtIn},
	"global-strict-fairness-policy":            {slot: builtIn, note: "has no effect: fairness ids of one priority take turns"},
	"fcfs-ordering-policy":                     {slot: builtIn},
	"edf-ordering-policy":                      {lacks: "requests of one id go in the order they came: remove it"},
	"slo-deadline-ordering-policy":             {lacks: "requests of one id go in the order they came, those that would be late are deferred: remove it"},
	"static-usage-limit-policy":                {lacks: "the thresholds are those of the utilization-detector: write them there, and remove this"},
	"latency-slo-admitter":                     {slot: builtIn, free: true, note: "is always so: a request that no endpoint is predicted to answer in time is shed if its priority is below 0, else deferred"},
	"probabilistic-admitter":                   {lacks: "requests are shed by priority, not by chance: remove it"},
	"sheddable-eviction-filter":                {lacks: "requests that run are not ended for others: remove it"},
	"priority-then-time-eviction-order-policy": {lacks: "requests that run are not ended for others: remove it"},
	"request-attribute-reporter":               {lacks: "the picker's metrics and its log have what it reports: remove it"},
	"destination-endpoint-served-verifier":     {lacks: "is for tests of the protocol: remove it"},
	"header-based-testing-filter":              {lacks: "is for tests of the protocol: remove it"},
}
