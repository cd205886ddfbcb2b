package artifact

import (
	"math"
	"testing"
)

// TestEstimatesArePublishedCounts: of dimensions as the models' authors publish
// them, the count that they publish beside them, in billions.
func TestEstimatesArePublishedCounts(t *testing.T) {
	for name, c := range map[string]struct {
		config string
		want   float64
	}{
		"Llama 3.1 8B":     {`{"model_type":"llama","hidden_size":4096,"num_hidden_layers":32,"intermediate_size":14336,"vocab_size":128256,"num_attention_heads":32,"num_key_value_heads":8,"tie_word_embeddings":false}`, 8.03},
		"Llama 3.1 405B":   {`{"model_type":"llama","hidden_size":16384,"num_hidden_layers":126,"intermediate_size":53248,"vocab_size":128256,"num_attention_heads":128,"num_key_value_heads":8}`, 405.9},
		"Llama 3.2 1B":     {`{"model_type":"llama","hidden_size":2048,"num_hidden_layers":16,"intermediate_size":8192,"vocab_size":128256,"num_attention_heads":32,"num_key_value_heads":8,"head_dim":64,"tie_word_embeddings":true}`, 1.24},
		"Mistral 7B":       {`{"model_type":"mistral","hidden_size":4096,"num_hidden_layers":32,"intermediate_size":14336,"vocab_size":32000,"num_attention_heads":32,"num_key_value_heads":8,"head_dim":null}`, 7.24},
		"Qwen 7B":          {`{"model_type":"qwen","hidden_size":4096,"num_hidden_layers":32,"intermediate_size":22016,"vocab_size":151936,"num_attention_heads":32,"kv_channels":128}`, 7.72},
		"Qwen2.5 0.5B":     {`{"model_type":"qwen2","hidden_size":896,"num_hidden_layers":24,"intermediate_size":4864,"vocab_size":151936,"num_attention_heads":14,"num_key_value_heads":2,"tie_word_embeddings":true}`, 0.494},
		"Gemma 2 9B":       {`{"model_type":"gemma2","hidden_size":3584,"num_hidden_layers":42,"intermediate_size":14336,"vocab_size":256000,"num_attention_heads":16,"num_key_value_heads":8,"head_dim":256}`, 9.24},
		"Command R":        {`{"model_type":"cohere","hidden_size":8192,"num_hidden_layers":40,"intermediate_size":22528,"vocab_size":256000,"num_attention_heads":64,"num_key_value_heads":64}`, 34.98},
		"ChatGLM3 6B":      {`{"model_type":"chatglm","hidden_size":4096,"num_layers":28,"ffn_hidden_size":13696,"padded_vocab_size":65024,"num_attention_heads":32,"multi_query_group_num":2,"kv_channels":128}`, 6.24},
		"BGE large":        {`{"model_type":"bert","hidden_size":1024,"num_hidden_layers":24,"intermediate_size":4096,"vocab_size":30522,"num_attention_heads":16}`, 0.335},
		"Mixtral 8x7B":     {`{"model_type":"mixtral","hidden_size":4096,"num_hidden_layers":32,"intermediate_size":14336,"vocab_size":32000,"num_attention_heads":32,"num_key_value_heads":8,"num_local_experts":8}`, 46.7},
		"Phi 3.5 MoE":      {`{"model_type":"phimoe","hidden_size":4096,"num_hidden_layers":32,"intermediate_size":6400,"vocab_size":32064,"num_attention_heads":32,"num_key_value_heads":8,"num_local_experts":16}`, 41.9},
		"DBRX":             {`{"model_type":"dbrx","d_model":6144,"n_layers":40,"n_heads":48,"vocab_size":100352,"attn_config":{"kv_n_heads":8,"clip_qkv":8},"ffn_config":{"ffn_hidden_size":10752,"moe_num_experts":16,"moe_top_k":4}}`, 131.6},
		"gpt-oss 120b":     {`{"model_type":"gpt_oss","hidden_size":2880,"num_hidden_layers":36,"intermediate_size":2880,"vocab_size":201088,"num_attention_heads":64,"num_key_value_heads":8,"head_dim":64,"num_local_experts":128}`, 116.8},
		"Qwen1.5 MoE":      {`{"model_type":"qwen2_moe","hidden_size":2048,"num_hidden_layers":24,"intermediate_size":5632,"vocab_size":151936,"num_attention_heads":16,"num_key_value_heads":16,"num_experts":60,"moe_intermediate_size":1408,"shared_expert_intermediate_size":5632,"decoder_sparse_step":1}`, 14.3},
		"Qwen2 57B":        {`{"model_type":"qwen2_moe","hidden_size":3584,"num_hidden_layers":28,"intermediate_size":18944,"vocab_size":151936,"num_attention_heads":28,"num_key_value_heads":4,"num_experts":64,"moe_intermediate_size":2560,"shared_expert_intermediate_size":20480,"decoder_sparse_step":1,"mlp_only_layers":[]}`, 57.4},
		"Qwen3 30B":        {`{"model_type":"qwen3_moe","hidden_size":2048,"num_hidden_layers":48,"intermediate_size":6144,"vocab_size":151936,"num_attention_heads":32,"num_key_value_heads":4,"head_dim":128,"num_experts":128,"moe_intermediate_size":768,"decoder_sparse_step":1,"mlp_only_layers":[]}`, 30.5},
		"Qwen3 VL 235B":    {`{"model_type":"qwen3_vl_moe","tie_word_embeddings":false,"text_config":{"model_type":"qwen3_vl_moe_text","hidden_size":4096,"num_hidden_layers":94,"intermediate_size":12288,"vocab_size":151936,"num_attention_heads":64,"num_key_value_heads":4,"head_dim":128,"num_experts":128,"moe_intermediate_size":1536,"decoder_sparse_step":1}}`, 235.1},
		"Qwen3 Next 80B":   {`{"model_type":"qwen3_next","hidden_size":2048,"num_hidden_layers":48,"intermediate_size":5120,"vocab_size":151936,"num_attention_heads":16,"num_key_value_heads":2,"head_dim":256,"num_experts":512,"moe_intermediate_size":512,"shared_expert_intermediate_size":512,"decoder_sparse_step":1,"full_attention_interval":4,"linear_num_key_heads":16,"linear_key_head_dim":128,"linear_num_value_heads":32,"linear_value_head_dim":128}`, 79.7},
		"DeepSeek V2 16B":  {`{"model_type":"deepseek_v2","hidden_size":2048,"num_hidden_layers":27,"intermediate_size":10944,"vocab_size":102400,"num_attention_heads":16,"num_key_value_heads":16,"q_lora_rank":null,"kv_lora_rank":512,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"n_routed_experts":64,"n_shared_experts":2,"moe_intermediate_size":1408,"first_k_dense_replace":1,"moe_layer_freq":1}`, 15.7},
		"DeepSeek V3":      {`{"model_type":"deepseek_v3","hidden_size":7168,"num_hidden_layers":61,"intermediate_size":18432,"vocab_size":129280,"tie_word_embeddings":false,"num_nextn_predict_layers":1,"num_attention_heads":128,"num_key_value_heads":128,"q_lora_rank":1536,"kv_lora_rank":512,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"n_routed_experts":256,"moe_intermediate_size":2048,"n_shared_experts":1,"first_k_dense_replace":3,"moe_layer_freq":1}`, 684.5},
		"Kimi K2":          {`{"model_type":"kimi_k2","hidden_size":7168,"num_hidden_layers":61,"intermediate_size":18432,"vocab_size":163840,"tie_word_embeddings":false,"num_nextn_predict_layers":0,"num_attention_heads":64,"num_key_value_heads":64,"q_lora_rank":1536,"kv_lora_rank":512,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"n_routed_experts":384,"moe_intermediate_size":2048,"n_shared_experts":1,"first_k_dense_replace":1,"moe_layer_freq":1}`, 1026},
		"GLM 4.5":          {`{"model_type":"glm4_moe","hidden_size":5120,"num_hidden_layers":92,"intermediate_size":12288,"vocab_size":151552,"num_attention_heads":96,"num_key_value_heads":8,"head_dim":128,"n_routed_experts":160,"n_shared_experts":1,"moe_intermediate_size":1536,"first_k_dense_replace":3,"num_nextn_predict_layers":1}`, 358.3},
		"Llama 4 Scout":    {`{"model_type":"llama4","text_config":{"model_type":"llama4_text","hidden_size":5120,"num_hidden_layers":48,"intermediate_size":8192,"vocab_size":202048,"num_attention_heads":40,"num_key_value_heads":8,"head_dim":128,"num_local_experts":16,"interleave_moe_layer_step":1,"intermediate_size_mlp":16384}}`, 108.6},
		"Llama 4 Maverick": {`{"model_type":"llama4","text_config":{"model_type":"llama4_text","hidden_size":5120,"num_hidden_layers":48,"intermediate_size":8192,"vocab_size":202048,"num_attention_heads":40,"num_key_value_heads":8,"head_dim":128,"num_local_experts":128,"interleave_moe_layer_step":2,"moe_layers":[1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31,33,35,37,39,41,43,45,47],"intermediate_size_mlp":16384}}`, 401.6},
	} {
		config, known, err := parseConfig([]byte(c.config))
		if err != nil || !known {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := float64(config.estimate()) / 1e9; math.Abs(got-c.want) > c.want/50 {
			t.Errorf("%s: %.3f billion, published are %g", name, got, c.want)
		}
	}
}

// TestEstimatesOfNonsense: what is no decoder's dimensions gives no count, and
// gives it soon.
func TestEstimatesOfNonsense(t *testing.T) {
	const rest = `,"intermediate_size":8,"vocab_size":8,"num_attention_heads":2}`
	for _, config := range []string{
		`{"model_type":"a"}`,
		`{"model_type":"a","hidden_size":"wide","num_hidden_layers":2` + rest,
		`{"model_type":"a","hidden_size":8,"num_hidden_layers":[2]` + rest,
		`{"model_type":"a","hidden_size":8,"num_hidden_layers":1e18` + rest,
		`{"model_type":"a","hidden_size":1e18,"num_hidden_layers":2` + rest,
		`{"model_type":"a","hidden_size":-8,"num_hidden_layers":2` + rest,
		`{"model_type":"a","hidden_size":8,"num_hidden_layers":0.5` + rest,
		`{"model_type":"a","hidden_size":8,"num_hidden_layers":2,"num_experts":1e300` + rest,
	} {
		c, _, err := parseConfig([]byte(config))
		if err != nil {
			t.Errorf("%s: %v", config, err)
		}
		if n := c.estimate(); n != 0 {
			t.Errorf("%s: %d weights", config, n)
		}
	}
}
