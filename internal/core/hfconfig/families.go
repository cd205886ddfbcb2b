package hfconfig

// family is what transformers' class of a model_type does that its config.json
// does not say.
type family struct {
	plain        bool   // feed-forward layers without a gate: two matrices, not three
	tied         bool   // one matrix is both embeddings, unless config.json says otherwise
	double       bool   // intermediate_size counts gate and input together
	headed       bool   // a class that is called …Model has the output embedding too
	gatedVision  bool   // its encoder of images has gates
	architecture string // that runtimes ask for, where config.json names none
	defaults     sizes  // of a language model that is a part
}

var families = map[string]family{
	"bert":            {plain: true, tied: true},
	"bloom":           {plain: true, tied: true},
	"camembert":       {plain: true, tied: true},
	"chatglm":         {headed: true},
	"clip_text_model": {plain: true, tied: true},
	"cohere":          {tied: true},
	"cohere2":         {tied: true},
	"deepseek_vl_v2":  {architecture: "DeepseekVLV2ForCausalLM"},
	"electra":         {plain: true, tied: true},
	"ernie4_5_moe":    {tied: true},
	"falcon":          {plain: true, tied: true},
	"gemma":           {tied: true},
	"gemma2":          {tied: true},
	"gemma3":          {tied: true},
	"gemma3_text":     {tied: true, defaults: sizes{Hidden: 2304, Layers: 26, Intermediate: 9216, Vocabulary: 262_208, attention: attention{Heads: 8, KVHeads: 4, HeadDim: 256}}},
	"gpt2":            {plain: true, tied: true},
	"gpt_bigcode":     {plain: true, tied: true},
	"gpt_neox":        {plain: true},
	"gptj":            {plain: true},
	"llama":           {defaults: sizes{Hidden: 4096, Layers: 32, Intermediate: 11_008, Vocabulary: 32_000, attention: attention{Heads: 32}}},
	"minicpm":         {tied: true},
	"minicpm3":        {tied: true},
	"mistral":         {defaults: sizes{Hidden: 4096, Layers: 32, Intermediate: 14_336, Vocabulary: 32_000, attention: attention{Heads: 32, KVHeads: 8}}},
	"mpnet":           {plain: true, tied: true},
	"mpt":             {plain: true, tied: true},
	"multi_modality":  {architecture: "JanusMultiModalityCausalLM"},
	"opt":             {plain: true, tied: true},
	"phi":             {plain: true},
	"phi3small":       {tied: true},
	"pixtral":         {gatedVision: true},
	"qwen":            {double: true},
	"qwen2_5_vl":      {gatedVision: true},
	"roberta":         {plain: true, tied: true},
	"starcoder2":      {plain: true, tied: true},
	"xlm-roberta":     {plain: true, tied: true},
}

// encoders are the parts that files know by name alone; the name contains this.
var encoders = []struct {
	name    string
	weights number
}{
	{"clip_vit_large", 303.5e6},
	{"siglip_large", 316e6},
	{"siglip_so400m", 428e6},
	{"vq_16", 72e6}, // LlamaGen's tokenizer of images
}
