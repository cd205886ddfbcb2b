package hfconfig

import (
	"cmp"
	"strings"
)

// parts are what a model has besides its language model.
type parts struct {
	Vision     part `json:"vision_config"`
	Audio      part `json:"audio_config"`
	Generation part `json:"gen_vision_config"`
	Processor  part `json:"img_processor"`
}

// part is an encoder of images or sounds, under the names that its authors give
// its dimensions.
type part struct {
	ModelType  string   `json:"model_type"`
	Hidden     number   `json:"hidden_size"`
	Width      number   `json:"width"`
	Embedding  number   `json:"embed_dim"` // beside it, hidden_size is the language model's
	Model      number   `json:"d_model"`
	Layers     number   `json:"num_hidden_layers"`
	Depth      number   `json:"depth"`
	Stack      number   `json:"layers"`
	Encoder    number   `json:"encoder_layers"`
	Global     number   `json:"num_global_layers"`
	Inner      number   `json:"intermediate_size"`
	InnerAudio number   `json:"encoder_ffn_dim"`
	Ratio      number   `json:"mlp_ratio"`
	Patch      number   `json:"patch_size"`
	Frames     number   `json:"temporal_patch_size"`
	Image      number   `json:"image_size"`
	Positions  number   `json:"num_position_embeddings"`
	Merge      number   `json:"spatial_merge_size"`
	Taps       []number `json:"intermediate_layers_indices"` // layers whose outputs go to the language model beside the last
	Deep       []number `json:"deepstack_visual_indexes"`    // the same, each by a projector of its own
	Out        number   `json:"projection_dim"`

	Class  string `json:"cls"`
	Name   string `json:"model_name"`
	Params struct {
		Name string `json:"model_name"`
	} `json:"params"`
}

// weights counts a part and what projects it into a language model of this
// width. It returns 0 for a part that is not known.
func (p *part) weights(out number, gated bool) number {
	hidden := cmp.Or(p.Embedding, p.Width, p.Hidden, p.Model)
	layers := cmp.Or(p.Layers, p.Depth, p.Stack, p.Encoder) + p.Global
	if hidden == 0 || layers == 0 {
		return p.byName()
	}
	matrices := number(2)
	if gated || families[p.ModelType].gatedVision {
		matrices = 3
	}
	inner := cmp.Or(p.Inner, p.InnerAudio, p.Ratio*hidden, 4*hidden)
	positions := p.Positions
	if positions == 0 && p.Patch > 0 {
		positions = p.Image * p.Image / (p.Patch * p.Patch)
	}
	const colors = 3
	n := layers*hidden*(4*hidden+matrices*inner) + hidden*(colors*p.Patch*p.Patch*max(p.Frames, 1)+positions)

	width := hidden * (1 + number(len(p.Taps)))
	middle := out
	if p.Merge > 1 {
		width *= p.Merge * p.Merge
		middle = width
	}
	return n + (1+number(len(p.Deep)))*middle*(width+out)
}

// byName counts a part that is named only.
func (p *part) byName() number {
	name := strings.ReplaceAll(strings.ToLower(p.Name+" "+p.Params.Name+" "+p.Class), "-", "_")
	for _, e := range encoders {
		if strings.Contains(name, e.name) {
			return e.weights
		}
	}
	return 0
}

// besides counts the parts beside a language model of this width.
func (c *Config) besides(width number) number {
	var n number
	for _, p := range []*part{&c.Vision, &c.Audio, &c.Generation, &c.Processor} {
		n += p.weights(width, families[c.ModelType].gatedVision)
	}
	return n
}
