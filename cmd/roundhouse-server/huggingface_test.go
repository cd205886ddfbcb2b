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

// TestHuggingFaceOwn: what our runtime is told, and that settings among the files of a
// model say nothing where --format states what it is.
func TestHuggingFaceOwn(t *testing.T) {
	folder := files(t, map[string]string{"config.json": `{"architectures":["BertForSequenceClassification"]}`})
	sentences := files(t, map[string]string{"config.json": `{"architectures":["Qwen3ForCausalLM"]}`, "modules.json": "[]"})
	for _, c := range []struct {
		h     huggingFace
		extra string
		uri   string
		want  string
	}{
		{huggingFace{dtype: "auto"}, `null`, folder, `{"dtype":"auto","pretrained_model":"` + folder + `","task":"text-classification"}`},
		{huggingFace{}, `null`, sentences, `{"pretrained_model":"` + sentences + `","task":"feature-extraction"}`},
		{huggingFace{task: "text_embedding", maxModelLen: 9, trustRemoteCode: true, probabilities: true, logits: true, plain: true, alias: "b"}, `null`, "/m",
			`{"alias":"b","disable_special_tokens":true,"max_model_len":9,"pretrained_model":"/m","return_probabilities":true,"return_raw_logits":true,"task":"feature-extraction","trust_remote_code":true}`},
		{huggingFace{dtype: "auto"}, `{"task":"fill_mask","pretrained_model":"/x","dtype":"float16","trust_remote_code":true}`, folder, `{"dtype":"float16","pretrained_model":"/x","task":"fill-mask","trust_remote_code":true}`},
		{huggingFace{stated: true}, `{"task":"fill_mask","pretrained_model":"/x","use_safetensors":false,"trust_remote_code":true}`, folder, `{"pretrained_model":"` + folder + `","task":"text-classification"}`},
	} {
		var extra map[string]any
		if err := json.Unmarshal([]byte(c.extra), &extra); err != nil {
			t.Fatal(err)
		}
		if got, err := json.Marshal(c.h.own(extra, c.uri)); err != nil || string(got) != c.want {
			t.Errorf("%s, %v\nwant %s", got, err, c.want)
		}
	}
	for says, h := range map[string]huggingFace{"for vllm choose the runtime vllm": {backend: "vllm"}, "--max-model-len is -1": {backend: "auto", maxModelLen: -1}, "": {backend: "huggingface"}} {
		if err := h.check(); (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, want %q", h, err, says)
		}
	}
}

// TestServeFlagsOfKServe reads the arguments of KServe's runtime as they are.
func TestServeFlagsOfKServe(t *testing.T) {
	cmd := newServerCommand()
	if err := cmd.ParseFlags([]string{"--model_name=bert", "--model_dir=/mnt/models", "--task=fill_mask", "--http_port=8080"}); err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]string{"model-name": "bert", "model-dir": "/mnt/models", "task": "fill_mask", "http-port": "8080"} {
		if got := cmd.Flags().Lookup(flag).Value.String(); got != want {
			t.Errorf("--%s: %q, want %q", flag, got, want)
		}
	}
}
