package artifact

import (
	"cmp"
	"encoding/json"
	"slices"
)

// number is a dimension in config.json. Files hold it in every notation, and
// some hold a list or an object where others hold a number: that is 0.
type number float64

// UnmarshalJSON implements json.Unmarshaler.
func (n *number) UnmarshalJSON(raw []byte) error {
	var f float64
	if json.Unmarshal(raw, &f) == nil {
		*n = number(f)
	}
	return nil
}

// numbers is a list of layers, empty for anything else.
type numbers []int

// UnmarshalJSON implements json.Unmarshaler.
func (n *numbers) UnmarshalJSON(raw []byte) error {
	var list []int
	if json.Unmarshal(raw, &list) == nil {
		*n = list
	}
	return nil
}

// hfSizes are the dimensions of a decoder, under the names that its authors
// give them.
type hfSizes struct {
	Hidden       number `json:"hidden_size"`
	Model        number `json:"d_model"`
	Embedding    number `json:"n_embd"`
	Layers       number `json:"num_hidden_layers"`
	Blocks       number `json:"n_layers"`
	Stack        number `json:"num_layers"`
	Intermediate number `json:"intermediate_size"`
	Inner        number `json:"ffn_hidden_size"`
	Vocabulary   number `json:"vocab_size"`
	Padded       number `json:"padded_vocab_size"`
	Tied         *bool  `json:"tie_word_embeddings"`
	Ahead        number `json:"num_nextn_predict_layers"` // layers for tokens after the next, with embeddings of their own

	hfAttention
	hfExperts
	hfLinear
}

// hfAttention is what attention is made of: heads, or DeepSeek's latent vectors.
type hfAttention struct {
	Heads       number `json:"num_attention_heads"`
	HeadCount   number `json:"n_heads"`
	KVHeads     number `json:"num_key_value_heads"`
	QueryGroups number `json:"multi_query_group_num"`
	HeadDim     number `json:"head_dim"`
	Channels    number `json:"kv_channels"`
	Gate        bool   `json:"attn_output_gate"`
	QRank       number `json:"q_lora_rank"`
	KVRank      number `json:"kv_lora_rank"`
	NopeDim     number `json:"qk_nope_head_dim"`
	RopeDim     number `json:"qk_rope_head_dim"`
	ValueDim    number `json:"v_head_dim"`
	Parts       struct {
		KVHeads number `json:"kv_n_heads"`
	} `json:"attn_config"`
}

// hfExperts is what a mixture of experts is made of, and in which layers.
type hfExperts struct {
	Local       number `json:"num_local_experts"`
	All         number `json:"num_experts"`
	Routed      number `json:"n_routed_experts"`
	Width       number `json:"moe_intermediate_size"`
	Shared      number `json:"n_shared_experts"`
	SharedWidth number `json:"shared_expert_intermediate_size"`

	DenseFirst number  `json:"first_k_dense_replace"`
	Frequency  number  `json:"moe_layer_freq"`
	Step       number  `json:"decoder_sparse_step"`
	DenseAt    numbers `json:"mlp_only_layers"`
	Interleave number  `json:"interleave_moe_layer_step"`
	MixedAt    numbers `json:"moe_layers"`
	DenseWidth number  `json:"intermediate_size_mlp"` // of Llama 4, whose intermediate_size is an expert's

	Parts struct {
		Width   number `json:"ffn_hidden_size"`
		Experts number `json:"moe_num_experts"`
	} `json:"ffn_config"`
}

// hfLinear is what linear attention is made of, and in which layers attention
// is a full one.
type hfLinear struct {
	KeyHeads  number   `json:"linear_num_key_heads"`
	KeyDim    number   `json:"linear_key_head_dim"`
	Values    number   `json:"linear_num_value_heads"`
	ValueSize number   `json:"linear_value_head_dim"`
	Interval  number   `json:"full_attention_interval"`
	Kinds     []string `json:"layer_types"`
}

// Models whose feed-forward layers have no gate, and those whose class ties the
// two embeddings where config.json does not say.
var (
	ungated = []string{"bert", "bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "mpt", "opt", "phi", "roberta", "starcoder2", "xlm-roberta"}
	tied    = []string{"bert", "bloom", "cohere", "cohere2", "falcon", "gemma", "gemma2", "gemma3", "gemma3_text", "gpt2", "gpt_bigcode", "mpt", "opt", "roberta", "starcoder2", "xlm-roberta"}
)

// mostLayers is far above any decoder's.
const mostLayers = 10_000

// estimate counts the weights of a decoder of these sizes: embeddings,
// attention and feed-forward layers, every expert of them. It returns 0 when a
// size is missing or absurd.
func (c *hfConfig) estimate() int64 {
	hidden := cmp.Or(c.Hidden, c.Model, c.Embedding)
	if hidden <= 0 && c.Text != nil {
		text := *c.Text
		text.Tied = cmp.Or(text.Tied, c.Tied)
		return text.estimate()
	}
	layers := cmp.Or(c.Layers, c.Blocks, c.Stack)
	vocabulary := cmp.Or(c.Padded, c.Vocabulary)
	if hidden <= 0 || !(layers >= 1 && layers <= mostLayers) || vocabulary <= 0 || c.heads() <= 0 {
		return 0
	}
	total := vocabulary * hidden
	if tie := slices.Contains(tied, c.ModelType); !tie && c.Tied == nil || c.Tied != nil && !*c.Tied {
		total *= 2
	}
	for i := range int(layers) {
		feed := c.feed(i, hidden)
		if feed <= 0 {
			return 0
		}
		total += feed + c.attention(i, hidden)
	}
	if c.Ahead > 0 {
		last := int(layers) - 1
		total += min(c.Ahead, layers) * (c.feed(last, hidden) + c.attention(last, hidden) + 2*hidden*hidden + 2*vocabulary*hidden)
	}
	if !(total > 0 && total < 1e15) {
		return 0
	}
	return int64(total)
}

func (s *hfSizes) heads() number { return cmp.Or(s.Heads, s.HeadCount) }

// attention counts the projections of one layer.
func (s *hfSizes) attention(layer int, hidden number) number {
	if s.linear(layer) {
		keys, values := s.KeyHeads*s.KeyDim, s.Values*s.ValueSize
		return hidden*(2*keys+2*values+2*s.Values) + values*hidden
	}
	heads := s.heads()
	dim := cmp.Or(s.HeadDim, s.Channels, hidden/heads)
	if s.KVRank > 0 {
		query, value := s.NopeDim+s.RopeDim, cmp.Or(s.ValueDim, hidden/heads)
		n := hidden * heads * query
		if s.QRank > 0 {
			n = s.QRank * (hidden + heads*query)
		}
		return n + hidden*(s.KVRank+s.RopeDim) + s.KVRank*heads*(s.NopeDim+value) + heads*value*hidden
	}
	n := 2*hidden*heads*dim + 2*hidden*dim*cmp.Or(s.KVHeads, s.QueryGroups, s.hfAttention.Parts.KVHeads, heads)
	if s.Gate {
		n += hidden * heads * dim
	}
	return n
}

// linear reports whether a layer's attention is a linear one.
func (s *hfSizes) linear(layer int) bool {
	switch {
	case s.Values <= 0:
		return false
	case layer < len(s.Kinds):
		return s.Kinds[layer] == "linear_attention"
	}
	return s.Interval >= 1 && (layer+1)%int(s.Interval) != 0
}

// feed counts the feed-forward part of one layer: one network, or experts, those
// that every token passes, and what chooses among the others.
func (c *hfConfig) feed(layer int, hidden number) number {
	matrices := number(3)
	if slices.Contains(ungated, c.ModelType) {
		matrices = 2
	}
	width := cmp.Or(c.Intermediate, c.Inner, c.hfExperts.Parts.Width)
	if c.ModelType == "qwen" { // the first of them, which counts gate and input together
		width /= 2
	}
	experts := cmp.Or(c.Local, c.All, c.Routed, c.hfExperts.Parts.Experts)
	switch {
	case experts <= 1:
		if width == 0 && matrices == 2 {
			width = 4 * hidden
		}
		return matrices * hidden * width
	case !c.mixed(layer):
		return matrices * hidden * cmp.Or(c.DenseWidth, width)
	}
	expert := cmp.Or(c.Width, width)
	shared := c.Shared*expert + c.SharedWidth
	if c.DenseWidth > 0 {
		shared = expert
	}
	return matrices*hidden*(experts*expert+shared) + hidden*experts
}

// mixed reports whether a layer of a mixture of experts has some.
func (e *hfExperts) mixed(layer int) bool {
	if len(e.MixedAt) > 0 {
		return slices.Contains(e.MixedAt, layer)
	}
	every := func(n number, at int) bool { return n < 1 || n > mostLayers || at%int(n) == 0 }
	return number(layer) >= e.DenseFirst && !slices.Contains(e.DenseAt, layer) &&
		every(e.Frequency, layer) && every(e.Step, layer+1) && every(e.Interleave, layer+1)
}
