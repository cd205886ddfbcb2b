package artifact

import (
	"os"
	"path/filepath"
	"testing"
)

func TestInspectAdapter(t *testing.T) {
	for name, tc := range map[string]struct {
		config string
		rank   int
		fails  bool
	}{
		"LoRA":             {`{"peft_type": "LORA", "r": 16, "base_model_name_or_path": "org/base", "lora_alpha": 32}`, 16, false},
		"some layers more": {`{"peft_type": "LORA", "r": 8, "rank_pattern": {"q_proj": 64, "v_proj": 4}}`, 64, false},
		"no rank":          {`{"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 20}`, 0, false},
		"no rank at all":   {`{"r": -3}`, 0, false},
		"too high":         {`{"r": 1e12}`, 0, false},
		"NaN":              {`{"r": 16, "lora_dropout": NaN}`, 16, false},
		"not JSON":         {`r: 16`, 0, true},
		"a text":           {`{"r": "16"}`, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, data := range map[string]string{adapterConfig: tc.config, "adapter_model.safetensors": "\x02\x00\x00\x00\x00\x00\x00\x00{}"} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(data), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			f, err := Inspect(t.Context(), dir)
			if (err != nil) != tc.fails || f.AdapterRank != tc.rank {
				t.Errorf("rank %d, want %d; %v", f.AdapterRank, tc.rank, err)
			}
			if !tc.fails && f.Format != "safetensors" {
				t.Errorf("format %q", f.Format)
			}
		})
	}
}
