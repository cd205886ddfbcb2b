package hfconfig

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

// TestPublishedCounts: of dimensions as the models' authors publish them, the
// count that they publish beside them, in billions.
func TestPublishedCounts(t *testing.T) {
	for name, c := range map[string]struct {
		config string
		want   float64
	}{
		"Qwen1.5 MoE":     {`{"model_type":"qwen2_moe","hidden_size":2048,"num_hidden_layers":24,"intermediate_size":5632,"vocab_size":151936,"num_attention_heads":16,"num_key_value_heads":16,"num_experts":60,"moe_intermediate_size":1408,"shared_expert_intermediate_size":5632,"decoder_sparse_step":1}`, 14.3},
		"Qwen2 57B":       {`{"model_type":"qwen2_moe","hidden_size":3584,"num_hidden_layers":28,"intermediate_size":18944,"vocab_size":151936,"num_attention_heads":28,"num_key_value_heads":4,"num_experts":64,"moe_intermediate_size":2560,"shared_expert_intermediate_size":20480,"decoder_sparse_step":1,"mlp_only_layers":[]}`, 57.4},
		"Qwen3 Next 80B":  {`{"model_type":"qwen3_next","hidden_size":2048,"num_hidden_layers":48,"intermediate_size":5120,"vocab_size":151936,"num_attention_heads":16,"num_key_value_heads":2,"head_dim":256,"num_experts":512,"moe_intermediate_size":512,"shared_expert_intermediate_size":512,"decoder_sparse_step":1,"full_attention_interval":4,"linear_num_key_heads":16,"linear_key_head_dim":128,"linear_num_value_heads":32,"linear_value_head_dim":128}`, 79.7},
		"DeepSeek V2 16B": {`{"model_type":"deepseek_v2","hidden_size":2048,"num_hidden_layers":27,"intermediate_size":10944,"vocab_size":102400,"num_attention_heads":16,"num_key_value_heads":16,"q_lora_rank":null,"kv_lora_rank":512,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"n_routed_experts":64,"n_shared_experts":2,"moe_intermediate_size":1408,"first_k_dense_replace":1,"moe_layer_freq":1}`, 15.7},
		"GLM 4.5":         {`{"model_type":"glm4_moe","hidden_size":5120,"num_hidden_layers":92,"intermediate_size":12288,"vocab_size":151552,"num_attention_heads":96,"num_key_value_heads":8,"head_dim":128,"n_routed_experts":160,"n_shared_experts":1,"moe_intermediate_size":1536,"first_k_dense_replace":3,"num_nextn_predict_layers":1}`, 358.3},
		"ERNIE 4.5 300B":  {`{"model_type":"ernie4_5_moe","hidden_size":8192,"num_hidden_layers":54,"intermediate_size":28672,"vocab_size":103424,"num_attention_heads":64,"num_key_value_heads":8,"moe_num_experts":64,"moe_k":8,"moe_intermediate_size":3584,"moe_layer_start_index":3,"moe_layer_interval":1,"moe_num_shared_experts":0,"tie_word_embeddings":false}`, 300},
		"ERNIE 4.5 21B":   {`{"model_type":"ernie4_5_moe","hidden_size":2560,"num_hidden_layers":28,"intermediate_size":12288,"vocab_size":103424,"num_attention_heads":20,"num_key_value_heads":4,"moe_num_experts":64,"moe_k":6,"moe_intermediate_size":1536,"moe_layer_start_index":1,"moe_layer_interval":1,"moe_num_shared_experts":2}`, 21.8},
		"MiniMax M2":      {`{"model_type":"minimax_m2","hidden_size":3072,"num_hidden_layers":62,"intermediate_size":1536,"vocab_size":200064,"num_attention_heads":48,"num_key_value_heads":8,"head_dim":128,"num_local_experts":256,"num_experts_per_tok":8,"tie_word_embeddings":false}`, 229},
		"Hunyuan A13B":    {`{"model_type":"hunyuan_v1_moe","hidden_size":4096,"num_hidden_layers":32,"intermediate_size":3072,"vocab_size":128167,"num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"num_experts":64,"moe_topk":[8,8],"num_shared_expert":[1,1],"moe_intermediate_size":[3072,3072],"tie_word_embeddings":true}`, 80.4},
		"GPT-2":           {`{"model_type":"gpt2","architectures":["GPT2LMHeadModel"],"n_embd":768,"n_layer":12,"n_head":12,"vocab_size":50257}`, 0.124},
		"OPT 1.3B":        {`{"model_type":"opt","hidden_size":2048,"num_hidden_layers":24,"ffn_dim":8192,"num_attention_heads":32,"vocab_size":50272}`, 1.316},
		"Falcon 7B":       {`{"model_type":"falcon","hidden_size":4544,"num_hidden_layers":32,"num_attention_heads":71,"multi_query":true,"new_decoder_architecture":false,"vocab_size":65024}`, 6.92},
		"Falcon 40B":      {`{"model_type":"falcon","hidden_size":8192,"num_hidden_layers":60,"num_attention_heads":128,"num_kv_heads":8,"multi_query":true,"new_decoder_architecture":true,"vocab_size":65024}`, 41.3},
		"Gemma 3 4B":      {`{"model_type":"gemma3","text_config":{"model_type":"gemma3_text","hidden_size":2560,"intermediate_size":10240,"num_hidden_layers":34},"vision_config":{"model_type":"siglip_vision_model","hidden_size":1152,"intermediate_size":4304,"num_hidden_layers":27,"image_size":896,"patch_size":14}}`, 4.3},
		"Qwen2 Audio 7B":  {`{"model_type":"qwen2_audio","text_config":{"model_type":"qwen2","hidden_size":4096,"intermediate_size":11008,"num_hidden_layers":32,"num_attention_heads":32,"vocab_size":156032},"audio_config":{"model_type":"qwen2_audio_encoder","d_model":1280,"encoder_layers":32,"encoder_ffn_dim":5120}}`, 8.4},
		"Pixtral 12B":     {`{"model_type":"llava","text_config":{"model_type":"mistral","hidden_size":5120,"head_dim":128,"num_hidden_layers":40,"vocab_size":131072},"vision_config":{"model_type":"pixtral","hidden_size":1024,"intermediate_size":4096,"num_hidden_layers":24,"num_attention_heads":16,"patch_size":16}}`, 12.68},
	} {
		config, known, err := Parse([]byte(c.config))
		if err != nil || !known {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := float64(config.Parameters().Total) / 1e9; math.Abs(got-c.want) > c.want/50 {
			t.Errorf("%s: %.4g billion, published are %g", name, got, c.want)
		}
	}
}

// TestNonsense: what is no model's dimensions gives no count, and gives it soon.
func TestNonsense(t *testing.T) {
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
		`{"model_type":"a","hidden_size":8,"num_hidden_layers":2,"vision_config":{"hidden_size":1e200,"num_hidden_layers":1e200}` + rest,
		`{"model_type":"a","hidden_size":8,"num_hidden_layers":2,"num_experts":1e308,"num_experts_per_tok":1,"moe_intermediate_size":1e308` + rest,
		`{"model_type":"a","patch_size":14,"hidden_size":1e300,"num_hidden_layers":2}`,
		`{"model_type":"a","text_config":{"hidden_size":0},"patch_size":1}`,
	} {
		c, _, err := Parse([]byte(config))
		if err != nil {
			t.Errorf("%s: %v", config, err)
		}
		if n := c.Parameters(); n != (Parameters{}) {
			t.Errorf("%s: %+v", config, n)
		}
	}
}

// TestOtherTypes: a field of a type that transformers does not give it is not
// stated, and does not hide the others.
func TestOtherTypes(t *testing.T) {
	c, known, err := Parse([]byte(`{"architectures":"Odd","torch_dtype":{"a":1},"vision_config":"large","layer_types":7,"attn_config":[],"moe_layers":{"a":1},"tie_word_embeddings":"no","attn_output_gate":3,
		"model_type":"a","hidden_size":8,"num_hidden_layers":2,"intermediate_size":8,"vocab_size":8,"num_attention_heads":2}`))
	if err != nil || !known || c.Architecture() != "" || c.WeightType() != "" || c.Parameters().Total == 0 {
		t.Errorf("%+v, known %t, %v", c.Parameters(), known, err)
	}
	for config, broken := range map[string]bool{`[1]`: false, `7`: false, `{"model_type"`: true, ``: true} {
		if _, known, err := Parse([]byte(config)); known || (err != nil) != broken {
			t.Errorf("%s: known %t, %v", config, known, err)
		}
	}
}

// TestWeightBits: the width of a stored weight, from wherever a library states it.
func TestWeightBits(t *testing.T) {
	for config, want := range map[string]int64{
		`{}`: 0,
		`{"quantization_config":{"quant_method":"gptq","bits":4}}`:                    4,
		`{"quantization_config":{"quant_method":"bitsandbytes","load_in_4bit":true}}`: 4,
		`{"text_config":{"quantization_config":{"quant_method":"compressed-tensors","config_groups":{"group_0":{"weights":{"num_bits":8}},"group_1":{"weights":{"num_bits":4}},"group_2":{"weights":null}}}}}`: 4,
		`{"compression_config":{"config_groups":{"group_0":{"weights":{"num_bits":1e300}}}}}`:                                                                                                                  0,
		`{"quantization_config":{"bits":-4}}`: 0,
	} {
		c, _, err := Parse([]byte(config))
		if got := c.StoredAs().WeightBits(); err != nil || got != want {
			t.Errorf("%s: %d bits, want %d; %v", config, got, want, err)
		}
	}
}

// TestLongLists: a layout of a million layers is looked up, not searched, in
// each of ten thousand.
func TestLongLists(t *testing.T) {
	list := "[" + strings.Repeat("20000,", 600_000) + "1]"
	start := time.Now()
	c, _, err := Parse(fmt.Appendf(nil, `{"model_type":"a","hidden_size":8,"num_hidden_layers":10000,"num_experts":2,"intermediate_size":8,"vocab_size":8,"num_attention_heads":2,"mlp_only_layers":%s}`, list))
	if n := c.Parameters().Total; err != nil || n == 0 {
		t.Errorf("%d weights, %v", n, err)
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("it took %v", d)
	}
}

// FuzzParameters: no configuration panics, or gives a count below 0, or more
// weights that a token passes than there are.
func FuzzParameters(f *testing.F) {
	for _, model := range fixtures {
		f.Add([]byte(model.config))
	}
	f.Add([]byte(`{"model_type":"a","text_config":{"text_config":{"hidden_size":1}},"full_attention_interval":1e300,"moe_layer_freq":1e300}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, _, err := Parse(raw)
		if err != nil {
			return
		}
		if n := c.Parameters(); n.Active < 0 || n.Active > n.Total || n.Total > mostWeights {
			t.Errorf("%+v", n)
		}
		_, _, _ = c.Architecture(), c.StoredAs().WeightBits(), c.WeightType()
	})
}
