package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestHuggingFaceFill(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "config.json"), []byte(`{"architectures":["BertForSequenceClassification"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	const auto = `"model_kwargs":{"torch_dtype":"auto"}`
	for _, c := range []struct {
		h      huggingFace
		extra  string
		uri    string
		single bool
		env    string
		want   string
	}{
		{huggingFace{}, `{}`, "FOLDER", false, "", `{` + auto + `,"pretrained_model":"FOLDER","task":"text-classification"}`},
		{huggingFace{task: "sequence_classification"}, `{}`, "/none", true, "", `{` + auto + `,"pretrained_model":"/none","task":"text-classification"}`},
		{huggingFace{task: "text_generation"}, `{"model_kwargs":{"torch_dtype":null}}`, "/none", false, "", `{"model_kwargs":{"torch_dtype":null},"task":"text-generation"}`},
		{huggingFace{task: "fill-mask"}, `{"task":"summarization","pretrained_model":"t5-small"}`, "FOLDER", false, "", `{` + auto + `,"pretrained_model":"t5-small","task":"summarization"}`},
		{huggingFace{}, `{"model_kwargs":{"torch_dtype":"float32","a":1}}`, "FOLDER", false, "", `{"model_kwargs":{"a":1,"torch_dtype":"float32"},"pretrained_model":"FOLDER","task":"text-classification"}`},
		{huggingFace{}, `{"optimum_model":true,"task":"x"}`, "", false, "", `{"optimum_model":true,"task":"x"}`},
		{huggingFace{}, `{"framework":"tf","task":"x"}`, "", false, "", `{"framework":"tf","task":"x"}`},
		{huggingFace{}, `{}`, "FOLDER", false, "fill-mask", `{` + auto + `,"pretrained_model":"FOLDER"}`},
	} {
		t.Run(c.want, func(t *testing.T) {
			t.Setenv("MLSERVER_MODEL_HUGGINGFACE_TASK", c.env)
			var extra map[string]any
			if err := json.Unmarshal([]byte(c.extra), &extra); err != nil {
				t.Fatal(err)
			}
			at := func(s string) string { return strings.ReplaceAll(s, "FOLDER", folder) }
			got, err := json.Marshal(c.h.fill(extra, at(c.uri), c.single))
			if err != nil || string(got) != at(c.want) {
				t.Errorf("%s, %v\nwant %s", got, err, at(c.want))
			}
		})
	}
}

// TestServeFlagsOfKServe reads the arguments of KServe's runtime as they are.
func TestServeFlagsOfKServe(t *testing.T) {
	cmd := newServerCommand()
	if err := cmd.ParseFlags([]string{"--model_name=bert", "--model_dir=/mnt/models", "--task=fill_mask", "--http_port=8080"}); err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]string{"name": "bert", "model-dir": "/mnt/models", "task": "fill_mask", "http-port": "8080"} {
		if got := cmd.Flags().Lookup(flag).Value.String(); got != want {
			t.Errorf("--%s: %q, want %q", flag, got, want)
		}
	}
}
