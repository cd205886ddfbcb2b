package service

// Disaggregation is how whoever passes a request on has one replica of a
// service compute the prompt and another the answer. It is the engines' to
// say: each has a protocol of its own.
type Disaggregation string

// The protocols of prefill and decode apart.
const (
	// DisaggregationHeader names the prefill replica in the header
	// x-prefiller-host-port, for llm-d's routing sidecar before the decode
	// replica. It is the default.
	DisaggregationHeader Disaggregation = "header"
	// DisaggregationVLLM asks the prefill replica for one token first and hands
	// the kv_transfer_params of its answer to the decode replica, as vLLM's
	// connectors that transfer after the prefill expect (NIXL).
	DisaggregationVLLM Disaggregation = "vllm"
	// DisaggregationSGLang sends every request to both at once, each naming
	// the bootstrap server of the prefill replica and one random room.
	DisaggregationSGLang Disaggregation = "sglang"
)

// Disaggregations lists every protocol, the default first.
var Disaggregations = []Disaggregation{DisaggregationHeader, DisaggregationVLLM, DisaggregationSGLang}
