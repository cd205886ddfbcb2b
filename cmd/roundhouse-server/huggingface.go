package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
)

// huggingFace is what the command line says of Hugging Face models whose settings
// do not.
type huggingFace struct {
	task string // of a pipeline; "" for that of the checkpoint's architecture
}

// kserveTasks are the tasks that KServe's server has other names for than
// pipelines have; of the rest only the underscores differ.
var kserveTasks = map[string]string{
	"sequence-classification": "text-classification",
	"text-embedding":          "feature-extraction",
}

// architectureTasks are the tasks of architectures, by how their names end.
var architectureTasks = []struct{ suffix, task string }{
	{"ForSequenceClassification", "text-classification"},
	{"ForTokenClassification", "token-classification"},
	{"ForQuestionAnswering", "question-answering"},
	{"ForMaskedLM", "fill-mask"},
	{"ForCausalLM", "text-generation"},
	{"LMHeadModel", "text-generation"},
	{"ForConditionalGeneration", "text2text-generation"},
	{"ForImageClassification", "image-classification"},
	{"ForAudioClassification", "audio-classification"},
	{"Model", "feature-extraction"},
}

// pipelineTask is a task in the words of pipelines.
func pipelineTask(task string) string {
	task = strings.ReplaceAll(task, "_", "-")
	if known, ok := kserveTasks[task]; ok {
		return known
	}
	return task
}

// maxCheckpointConfig bounds config.json of a checkpoint, in bytes.
const maxCheckpointConfig = 4 << 20

// checkpointTask is the task that a checkpoint's architecture is for; "" where
// there is none.
func checkpointTask(folder string) string {
	path := filepath.Join(folder, "config.json")
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() || info.Size() > maxCheckpointConfig {
		return ""
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	var config struct {
		Architectures []string `json:"architectures"`
	}
	if json.Unmarshal(text, &config) != nil || len(config.Architectures) == 0 {
		return ""
	}
	for _, a := range architectureTasks {
		if strings.HasSuffix(config.Architectures[0], a.suffix) {
			return a.task
		}
	}
	return ""
}

// fill completes what MLServer's runtime reads in parameters.extra: the
// checkpoint at uri, its task, and that it is loaded in its own type of numbers,
// which transformers before 5 would make FP32 (and does, with a torch_dtype of
// null). What settings or the runtime's own
// variables say stays. single: the model has no settings.
func (h huggingFace) fill(extra map[string]any, uri string, single bool) map[string]any {
	if extra == nil {
		extra = map[string]any{}
	}
	said := func(name string) bool {
		return extra[name] != nil || os.Getenv("MLSERVER_MODEL_HUGGINGFACE_"+strings.ToUpper(name)) != ""
	}
	if !said("pretrained_model") && uri != "" && (single || fileAt(filepath.Join(uri, "config.json"))) {
		extra["pretrained_model"] = uri
	}
	if !said("task") {
		task := pipelineTask(h.task)
		if checkpoint, ok := extra["pretrained_model"].(string); ok && task == "" {
			task = checkpointTask(checkpoint)
		}
		if task != "" {
			extra["task"] = task
		}
	}
	if extra["framework"] == nil && said("framework") || extra["model_kwargs"] == nil && said("model_kwargs") {
		return extra
	}
	keepType(extra)
	return extra
}

// keepType has torch load a checkpoint in its own type of numbers, unless a type
// is said or something else than torch loads it.
func keepType(extra map[string]any) {
	if optimum, _ := extra["optimum_model"].(bool); optimum || extra["framework"] == "tf" {
		return
	}
	kwargs, _ := extra["model_kwargs"].(map[string]any)
	if kwargs == nil {
		kwargs = map[string]any{}
	}
	_, older := kwargs["torch_dtype"]
	if _, newer := kwargs["dtype"]; !older && !newer {
		kwargs["torch_dtype"] = "auto"
	}
	extra["model_kwargs"] = kwargs
}
