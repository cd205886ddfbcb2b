// Package hfconfig reads the config.json of transformers' models: what a model
// is, and how many weights one of its dimensions has.
package hfconfig

import (
	"cmp"
	"encoding/json"
	"errors"
	"strings"
)

// Config is the part of config.json that is read here.
type Config struct {
	Architectures       []string      `json:"architectures"`
	ModelType           string        `json:"model_type"`
	TransformersVersion string        `json:"transformers_version"`
	TorchDtype          string        `json:"torch_dtype"`
	Dtype               string        `json:"dtype"`
	Quantization        *Quantization `json:"quantization_config"`
	Compression         *Quantization `json:"compression_config"`

	// The language model of a model of several parts.
	Text     *Config `json:"text_config"`
	Language *Config `json:"language_config"`
	LLM      *Config `json:"llm_config"`

	parts
	sizes
	itself part // of a model that is nothing but an encoder of images
}

// Quantization is how the weights are stored.
type Quantization struct {
	Method string  `json:"quant_method"`
	Bits   float64 `json:"bits"`
	In4Bit bool    `json:"load_in_4bit"`
	Groups map[string]struct {
		Weights struct {
			Bits float64 `json:"num_bits"`
		} `json:"weights"`
	} `json:"config_groups"`
}

// WeightBits is the width of a weight, the smallest where there are several; 0
// if unknown.
func (q Quantization) WeightBits() int64 {
	bits := q.Bits
	if q.In4Bit {
		bits = 4
	}
	for _, group := range q.Groups {
		if b := group.Weights.Bits; b > 0 && (bits == 0 || b < bits) {
			bits = b
		}
	}
	if !(bits >= 1 && bits <= 64) {
		return 0
	}
	return int64(bits)
}

// Parse reads a config.json. It reports false for the config.json of something
// else: many programs call theirs so. A field of another type than transformers
// gives it is not stated.
func Parse(raw []byte) (Config, bool, error) {
	var c Config
	if err := decode(raw, &c); err != nil {
		return c, false, err
	}
	if c.Text != nil {
		if f := families[c.Text.ModelType]; f.defaults.Hidden > 0 {
			// Of a part, transformers writes what differs from its class.
			c.Text = &Config{sizes: f.defaults}
			if err := decode(raw, &c); err != nil {
				return c, false, err
			}
		}
	}
	if err := decode(raw, &c.itself); err != nil {
		return c, false, err
	}
	return c, len(c.Architectures) > 0 || c.ModelType != "", nil
}

// decode skips fields of other types.
func decode(raw []byte, v any) error {
	var wrong *json.UnmarshalTypeError
	if err := json.Unmarshal(raw, v); err != nil && !errors.As(err, &wrong) {
		return err
	}
	return nil
}

// Architecture is transformers' class of the model, "" if unknown.
func (c *Config) Architecture() string {
	if len(c.Architectures) > 0 {
		return c.Architectures[0]
	}
	return families[c.ModelType].architecture
}

// StoredAs is the model's quantization, wherever the file keeps it.
func (c *Config) StoredAs() Quantization {
	if q := cmp.Or(c.Quantization, c.Compression); q != nil {
		return *q
	}
	if text := c.text(); text != nil {
		return text.StoredAs()
	}
	return Quantization{}
}

// WeightType is the type of the weights, "bfloat16", without torch's prefix.
func (c *Config) WeightType() string {
	if s := cmp.Or(c.Dtype, c.TorchDtype); s != "" {
		return strings.TrimPrefix(s, "torch.")
	}
	if text := c.text(); text != nil {
		return text.WeightType()
	}
	return ""
}

// text is the language model, where it is a part.
func (c *Config) text() *Config { return cmp.Or(c.Text, c.Language, c.LLM) }
