package route

import "testing"

// TestInference: what asks or describes a model is handed on; what administers
// its server is not, whichever server's it is.
func TestInference(t *testing.T) {
	for _, path := range []string{
		"/v1/chat/completions", "/openai/v1/chat/completions", "/v1/completions", "/v1/completions/", "/v1/responses", "/v1/responses/resp_1", "/v1/responses/resp_1/cancel",
		"/v1/embeddings", "/v1/rerank", "/v1/score", "/v1/messages", "/v1/messages/count_tokens", "/v1/chat", "/v1/embed", "/v2/chat", "/v2/embed", "/v2/rerank",
		"/v1/audio/transcriptions", "/v1/images/generations", "/v1/models", "/v1/models/iris", "/v1/models/iris:predict",
		"/v2", "/v2/", "/v2/health/live", "/v2/models/iris", "/v2/models/iris/ready", "/v2/models/iris/infer", "/v2/models/iris/versions/3/generate_stream",
		"/v2/models/iris/docs/dataplane.json", "/v2/models/iris/own handler", "/v2/models/load/infer", "/inference.GRPCInferenceService/ModelInfer",
		"/generate", "/tokenize", "/health",
	} {
		if !Inference(path) {
			t.Errorf("%s is none", path)
		}
	}
	for _, path := range []string{
		"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/openai/v1/load_lora_adapter", "/v1//load_lora_adapter", "/v1/load_lora_adapter/", "/v1/completions/../load_lora_adapter", "/v1/audio/../load_lora_adapter", `/v1/audio\..\load_lora_adapter`, "/v2/models/x/../../repository/models/x/load",
		"/load_lora_adapter", "/load_lora_adapter_from_tensors", "/unload_lora_adapter", "/v1/fine_tuning/jobs", "/v1/files", "/v1/loads", "/v1/",
		"/sleep", "/wake_up", "/is_sleeping", "/collective_rpc", "/flush_cache", "/clear_hicache_storage_backend", "/update_weights", "/update_weights_from_disk", "/init_weights_update_group",
		"/release_memory_occupation", "/resume_memory_occupation", "/start_profile", "/stop_profile", "/reset_prefix_cache", "/reset_mm_cache", "/scale_elastic_ep", "/pause", "/resume",
		"/server_info", "/get_server_info", "/get_load", "/set_internal_state", "/configure_logging", "/abort_request", "/open_session", "/kv_event_sources", "/slots/0", "/props", "/lora-adapters",
		"/metrics", "/metrics/x", "/docs", "/openapi.json", "/simulate/pin", "/api/pull", "/api/delete",
		"/v2/repository/index", "/v2/repository/models/iris/load", "/v2/repository/models/iris/unload", "/v2/trace/setting", "/v2/logging",
		"/v2/systemsharedmemory/region/x/register", "/v2/cudasharedmemory/status", "/v2/models", "/v2/models/iris/trace/setting", "/v2/models/iris//trace/setting", "/v2/models/iris/versions/1/trace/setting",
		"/v2/models/iris/LOAD", "/v2/models/iris/Unload", "/v2/models/iris/versions/1/LOAD", "/v2/models/iris/VERSIONS/1/load", "/v2/models/iris/load;x=1", "/v2/models/iris/load ", `/v2/models/iris/x\load`,
		"/v2/models/iris/%6Coad", "/v2/models/iris/%2e%2e/load", "/v1/audio/..;/load_lora_adapter", "/v1/audio/%2e%2e/load_lora_adapter",
		"/inference.GRPCInferenceService/RepositoryModelLoad", "/inference.GRPCInferenceService/TraceSetting", "/inference.model_repository.ModelRepositoryService/RepositoryModelLoad", "",
	} {
		if Inference(path) {
			t.Errorf("%s is one", path)
		}
	}
}
