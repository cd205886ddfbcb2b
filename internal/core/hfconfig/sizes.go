package hfconfig

import (
	"cmp"
	"encoding/json"
	"strings"
)

// number is a dimension in config.json. Files hold it in every notation; what
// is not a number, or below 0, is 0.
type number float64

// UnmarshalJSON implements json.Unmarshaler.
func (n *number) UnmarshalJSON(raw []byte) error {
	var f float64
	if json.Unmarshal(raw, &f) == nil {
		*n = number(max(f, 0))
	}
	return nil
}

// layerSet is a list of layers, empty for anything else.
type layerSet map[int]bool

// UnmarshalJSON implements json.Unmarshaler.
func (s *layerSet) UnmarshalJSON(raw []byte) error {
	var list []int
	if json.Unmarshal(raw, &list) == nil && len(list) > 0 {
		*s = layerSet{}
		for _, i := range list {
			(*s)[i] = true
		}
	}
	return nil
}

// sizes are the dimensions of a language model, under the names that its authors
// give them.
type sizes struct {
	Hidden       number `json:"hidden_size"`
	Model        number `json:"d_model"`
	Embedding    number `json:"n_embd"`
	Layers       number `json:"num_hidden_layers"`
	Blocks       number `json:"n_layers"`
	Block        number `json:"n_layer"`
	Stack        number `json:"num_layers"`
	Intermediate number `json:"intermediate_size"`
	Inner        number `json:"ffn_hidden_size"`
	Small        number `json:"ff_intermediate_size"`
	Vocabulary   number `json:"vocab_size"`
	Padded       number `json:"padded_vocab_size"`
	Tied         *bool  `json:"tie_word_embeddings"`
	Ahead        number `json:"num_nextn_predict_layers"` // layers for tokens after the next, with embeddings of their own
	AheadShared  number `json:"mtp_num_hidden_layers"`    // the same, with the model's embeddings

	attention
	experts
	linear
}

// attention is what attention is made of: heads, or DeepSeek's latent vectors.
type attention struct {
	Heads       number `json:"num_attention_heads"`
	HeadCount   number `json:"n_heads"`
	HeadNumber  number `json:"n_head"`
	KVHeads     number `json:"num_key_value_heads"`
	KVCount     number `json:"num_kv_heads"`
	QueryGroups number `json:"multi_query_group_num"`
	MultiQuery  bool   `json:"multi_query"` // one head of keys, but in Falcon's new layout
	NewLayout   bool   `json:"new_decoder_architecture"`
	HeadDim     number `json:"head_dim"`
	Channels    number `json:"kv_channels"`
	Gate        bool   `json:"attn_output_gate"`
	QRank       number `json:"q_lora_rank"`
	KVRank      number `json:"kv_lora_rank"`
	NopeDim     number `json:"qk_nope_head_dim"`
	RopeDim     number `json:"qk_rope_head_dim"`
	ValueDim    number `json:"v_head_dim"`
	InAttention struct {
		KVHeads number `json:"kv_n_heads"`
	} `json:"attn_config"`
}

// experts is what a mixture of experts is made of, and in which layers.
type experts struct {
	Local       number `json:"num_local_experts"`
	All         number `json:"num_experts"`
	Routed      number `json:"n_routed_experts"`
	Mixed       number `json:"moe_num_experts"`
	PerToken    number `json:"num_experts_per_tok"`
	EachToken   number `json:"experts_per_token"`
	Top         number `json:"moe_k"`
	TopK        number `json:"moe_topk"`
	Width       number `json:"moe_intermediate_size"`
	Shared      number `json:"n_shared_experts"`
	SharedCount number `json:"num_shared_experts"`
	SharedMixed number `json:"moe_num_shared_experts"`
	SharedWidth number `json:"shared_expert_intermediate_size"`

	DenseFirst number   `json:"first_k_dense_replace"`
	MixedFrom  number   `json:"moe_layer_start_index"`
	MixedEvery number   `json:"moe_layer_interval"`
	Frequency  number   `json:"moe_layer_freq"`
	Step       number   `json:"decoder_sparse_step"`
	DenseAt    layerSet `json:"mlp_only_layers"`
	Interleave number   `json:"interleave_moe_layer_step"`
	MixedAt    layerSet `json:"moe_layers"`
	DenseWidth number   `json:"intermediate_size_mlp"` // of Llama 4, whose intermediate_size is an expert's

	InFeed struct {
		Width    number `json:"ffn_hidden_size"`
		Experts  number `json:"moe_num_experts"`
		PerToken number `json:"moe_top_k"`
	} `json:"ffn_config"`
}

// linear is what linear attention is made of, and in which layers attention is
// a full one.
type linear struct {
	KeyHeads  number   `json:"linear_num_key_heads"`
	KeyDim    number   `json:"linear_key_head_dim"`
	Values    number   `json:"linear_num_value_heads"`
	ValueSize number   `json:"linear_value_head_dim"`
	Interval  number   `json:"full_attention_interval"`
	Kinds     []string `json:"layer_types"`
}

const (
	mostLayers  = 10_000 // far above any model's
	mostWeights = 1e15
)

// Parameters are the weights of a model, 0 where they are not known.
type Parameters struct {
	Total  int64
	Active int64 // those that one token passes: fewer in a mixture of experts
}

// Parameters counts the weights of a model of these dimensions: embeddings,
// attention and feed-forward layers with every expert, and the encoders of
// images and sounds. Norms and biases are left out: they are no hundredth.
func (c *Config) Parameters() Parameters {
	model := c
	if c.hidden() == 0 && c.text() != nil {
		text := *c.text()
		text.Tied = cmp.Or(text.Tied, c.Tied)
		if len(c.Architectures) > 0 {
			text.Architectures = c.Architectures
		}
		model = &text
	}
	total, idle := model.language()
	if total > 0 {
		total += c.besides(model.hidden())
	} else if c.vocabulary() == 0 && c.text() == nil && c.itself.Patch > 0 {
		total = c.itself.weights(c.itself.Out, false)
	}
	if !(total >= 1 && total < mostWeights && idle >= 0 && idle < total) {
		return Parameters{}
	}
	return Parameters{Total: int64(total), Active: int64(total - idle)}
}

// language counts a language model, and of it the weights that one token does
// not pass. It returns 0 when a size is missing or absurd.
func (c *Config) language() (total, idle number) {
	hidden, layers, vocabulary := c.hidden(), cmp.Or(c.Layers, c.Blocks, c.Block, c.Stack), c.vocabulary()
	if hidden == 0 || !(layers >= 1 && layers <= mostLayers) || vocabulary == 0 || c.heads() == 0 {
		return 0, 0
	}
	total = vocabulary * hidden
	if !c.oneEmbedding() {
		total *= 2
	}
	for i := range int(layers) {
		feed, unused := c.feed(i, hidden)
		if feed == 0 {
			return 0, 0
		}
		total += feed + c.attend(i, hidden)
		idle += unused
	}
	last := int(layers) - 1
	feed, _ := c.feed(last, hidden)
	block := feed + c.attend(last, hidden) + 2*hidden*hidden
	ahead := min(c.Ahead, layers)*(block+2*vocabulary*hidden) + min(c.AheadShared, layers)*block
	return total + ahead, idle + ahead
}

func (c *Config) hidden() number     { return cmp.Or(c.Hidden, c.Model, c.Embedding) }
func (c *Config) vocabulary() number { return cmp.Or(c.Padded, c.Vocabulary) }
func (c *Config) heads() number      { return cmp.Or(c.Heads, c.HeadCount, c.HeadNumber) }

// oneEmbedding reports whether the model has no output embedding of its own: it
// is the input's, or what the model puts out is no text.
func (c *Config) oneEmbedding() bool {
	f, class := families[c.ModelType], c.Architecture()
	bare := strings.HasSuffix(class, "Model") && !strings.HasSuffix(class, "LMHeadModel") && !f.headed
	if bare || strings.HasSuffix(class, "Classification") {
		return true
	}
	if c.Tied != nil {
		return *c.Tied
	}
	return f.tied
}

// attend counts the projections of one layer's attention.
func (c *Config) attend(layer int, hidden number) number {
	if c.isLinear(layer) {
		keys, values := c.KeyHeads*c.KeyDim, c.Values*c.ValueSize
		return hidden*(2*keys+2*values+2*c.Values) + values*hidden
	}
	heads := c.heads()
	dim := cmp.Or(c.HeadDim, c.Channels, hidden/heads)
	if c.KVRank > 0 {
		query, value := c.NopeDim+c.RopeDim, cmp.Or(c.ValueDim, hidden/heads)
		n := hidden * heads * query
		if c.QRank > 0 {
			n = c.QRank * (hidden + heads*query)
		}
		return n + hidden*(c.KVRank+c.RopeDim) + c.KVRank*heads*(c.NopeDim+value) + heads*value*hidden
	}
	kv := cmp.Or(c.KVHeads, c.KVCount, c.QueryGroups, c.InAttention.KVHeads, heads)
	if c.MultiQuery && !c.NewLayout {
		kv = 1
	}
	n := 2*hidden*heads*dim + 2*hidden*dim*kv
	if c.Gate {
		n += hidden * heads * dim
	}
	return n
}

// isLinear reports whether a layer's attention is a linear one.
func (l *linear) isLinear(layer int) bool {
	switch {
	case l.Values == 0:
		return false
	case layer < len(l.Kinds):
		return l.Kinds[layer] == "linear_attention"
	}
	return l.Interval >= 1 && !every(l.Interval, layer+1)
}

// feed counts the feed-forward part of one layer: one network, or experts, those
// that every token passes, and what chooses among the others; and of it, the
// experts that a token does not pass.
func (c *Config) feed(layer int, hidden number) (total, idle number) {
	family := families[c.ModelType]
	matrix := 3 * hidden
	if family.plain {
		matrix = 2 * hidden
	}
	width := cmp.Or(c.Intermediate, c.Inner, c.Small, c.InFeed.Width)
	if family.double {
		width /= 2
	}
	count := cmp.Or(c.Local, c.All, c.Routed, c.Mixed, c.InFeed.Experts)
	switch {
	case count <= 1:
		if width == 0 && family.plain {
			width = 4 * hidden
		}
		return matrix * width, 0
	case !c.mixed(layer):
		return matrix * cmp.Or(c.DenseWidth, width), 0
	}
	expert := cmp.Or(c.Width, width)
	shared := cmp.Or(c.Shared, c.SharedCount, c.SharedMixed)*expert + c.SharedWidth
	if c.DenseWidth > 0 {
		shared = expert
	}
	used := min(cmp.Or(c.PerToken, c.EachToken, c.Top, c.TopK, c.InFeed.PerToken, count), count)
	return matrix*(count*expert+shared) + hidden*count, matrix * (count - used) * expert
}

// mixed reports whether a layer of a mixture of experts has some.
func (e *experts) mixed(layer int) bool {
	if len(e.MixedAt) > 0 {
		return e.MixedAt[layer]
	}
	return number(layer) >= max(e.DenseFirst, e.MixedFrom) && !e.DenseAt[layer] &&
		(e.MixedEvery < 1 || every(e.MixedEvery, layer+1)) &&
		(e.Frequency < 1 || every(e.Frequency, layer)) &&
		(e.Step < 1 || every(e.Step, layer+1)) &&
		(e.Interleave < 1 || every(e.Interleave, layer+1))
}

// every reports whether layer is a multiple of n, which is at least 1. More
// layers than any model has are no layout: then it is every layer.
func every(n number, layer int) bool { return n > mostLayers || layer%int(n) == 0 }
