package scrape

// Metric is where one figure is found.
type Metric struct {
	Name string
	// Label and Equals restrict the series, where Label is not "".
	Label, Equals string
	// Value names the label whose value is the figure; "": the sample's value.
	Value string
}

// Engine says under which names an engine tells its load. Of each list the
// first metric that an answer has counts, so newer names come first.
type Engine struct {
	// Name is how a target states its engine.
	Name string
	// Path is that of the metrics, where the target's URL has none.
	Path string
	// Series of Waiting, Running and Blocks add up, those of KV and
	// BlockTokens are averaged: an engine may be several in one server.
	Waiting, Running, KV, Blocks, BlockTokens []Metric
	// Adapters is vLLM's metric of LoRA adapters: of its series the one with
	// the largest value, a time, is the present one. "": none.
	Adapters string
	// AdapterSlots is how many adapters fit into a batch, where Adapters does
	// not say.
	AdapterSlots []Metric
	// Batches: what waits is gathered into batches.
	Batches bool
	// Total are labels that break a figure down: only series that lack them, or
	// have "", count.
	Total []string
	// First are labels that number ranks which all tell the same: only series
	// that lack them, or have "0", count.
	First []string
}

// Engines are those that are known. An engine is data: to know another, add it
// here.
var Engines = []Engine{
	{
		// Also the engine simulator.
		Name:        "vllm",
		Path:        "/metrics",
		Waiting:     []Metric{{Name: "vllm:num_requests_waiting"}},
		Running:     []Metric{{Name: "vllm:num_requests_running"}},
		KV:          []Metric{{Name: "vllm:kv_cache_usage_perc"}, {Name: "vllm:gpu_cache_usage_perc"}},
		Blocks:      []Metric{{Name: "vllm:cache_config_info", Value: "num_gpu_blocks"}},
		BlockTokens: []Metric{{Name: "vllm:cache_config_info", Value: "block_size"}},
		Adapters:    "vllm:lora_requests_info",
	},
	{
		Name:        "sglang",
		Path:        "/metrics",
		Waiting:     []Metric{{Name: "sglang:num_queue_reqs"}},
		Running:     []Metric{{Name: "sglang:num_running_reqs"}},
		KV:          []Metric{{Name: "sglang:token_usage"}},
		Blocks:      []Metric{{Name: "sglang:num_pages"}, {Name: "sglang:cache_config_info", Value: "num_pages"}}, // the latter before 0.5.11
		BlockTokens: []Metric{{Name: "sglang:page_size"}, {Name: "sglang:cache_config_info", Value: "page_size"}},
		// It has no metric that names the adapters.
		AdapterSlots: []Metric{{Name: "sglang:lora_pool_slots_total"}},
		Total:        []string{"priority"}, // with priority scheduling
		First:        []string{"tp_rank", "pp_rank"},
	},
	{
		Name:        "trtllm-serve",
		Path:        "/prometheus/metrics", // /metrics is JSON of its iterations
		Waiting:     []Metric{{Name: "trtllm_num_requests_waiting"}},
		Running:     []Metric{{Name: "trtllm_num_requests_running"}},
		KV:          []Metric{{Name: "trtllm_kv_cache_utilization"}},
		Blocks:      []Metric{{Name: "trtllm_kv_cache_max_blocks"}},
		BlockTokens: []Metric{{Name: "trtllm_kv_cache_tokens_per_block"}},
	},
	{
		Name:        "triton-trtllm",
		Path:        "/metrics",
		Waiting:     []Metric{{Name: "nv_trt_llm_request_metrics", Label: "request_type", Equals: "waiting"}},
		Running:     []Metric{{Name: "nv_trt_llm_request_metrics", Label: "request_type", Equals: "scheduled"}},
		KV:          []Metric{{Name: "nv_trt_llm_kv_cache_block_metrics", Label: "kv_cache_block_type", Equals: "fraction"}},
		Blocks:      []Metric{{Name: "nv_trt_llm_kv_cache_block_metrics", Label: "kv_cache_block_type", Equals: "max"}},
		BlockTokens: []Metric{{Name: "nv_trt_llm_kv_cache_block_metrics", Label: "kv_cache_block_type", Equals: "tokens_per"}},
	},
	{
		// Triton with any other backend, which does not tell what it works on.
		Name:    "triton",
		Path:    "/metrics",
		Waiting: []Metric{{Name: "nv_inference_pending_request_count"}},
		Batches: true,
	},
	{
		// llama-server, which tells with --metrics alone.
		Name:    "llamacpp",
		Path:    "/metrics",
		Waiting: []Metric{{Name: "llamacpp:requests_deferred"}},
		Running: []Metric{{Name: "llamacpp:requests_processing"}},
		KV:      []Metric{{Name: "llamacpp:kv_cache_usage_ratio"}}, // until the middle of 2025
	},
	{
		// roundhouse serve, and MLServer, which tells only of REST.
		Name:    "roundhouse",
		Path:    "/metrics",
		Waiting: []Metric{{Name: "roundhouse_requests_waiting"}},
		Running: []Metric{{Name: "roundhouse_requests_running"}, {Name: "rest_server_requests_in_progress"}},
	},
}
