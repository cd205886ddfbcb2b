package artifact

import (
	"context"
	"encoding/json"
	"fmt"
)

// adapterConfig names what describes an adapter, as PEFT writes it.
const adapterConfig = "adapter_config.json"

// maxAdapterRank is far above any rank there is: what is above it is no rank.
const maxAdapterRank = 1 << 16

// adapter reads the rank of a LoRA adapter. The format is the weights' own.
func (in *inspector) adapter(ctx context.Context) error {
	f, ok := in.find(adapterConfig)
	if !ok {
		return nil
	}
	raw, err := in.read(ctx, f, maxConfig)
	if err != nil {
		return err
	}
	var c struct {
		Base string             `json:"base_model_name_or_path"`
		Type string             `json:"peft_type"`
		Rank float64            `json:"r"`
		More map[string]float64 `json:"rank_pattern"`
	}
	if err := json.Unmarshal(jsonLike(raw), &c); err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	for _, r := range c.More {
		c.Rank = max(c.Rank, r)
	}
	if c.Rank >= 1 && c.Rank <= maxAdapterRank {
		in.facts.AdapterRank = int(c.Rank)
	}
	in.facts.detail("peft_type", c.Type)
	in.facts.detail("base_model", c.Base)
	return nil
}
