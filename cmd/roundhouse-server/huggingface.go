package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
)

// huggingFace is what the command line says of Hugging Face models whose settings
// do not.
type huggingFace struct {
	task string // of a pipeline; "" for that of the checkpoint's architecture
	// stated: --format says that all models are such. Then settings that lie among
	// downloaded files say nothing about what of these files is run.
	stated bool

	dtype           string
	maxModelLen     int
	trustRemoteCode bool
	probabilities   bool
	logits          bool
	plain           bool // without the tokens that mark a text's ends
	backend         string
	alias           string // another name of the model
}

// addFlags adds the arguments of KServe's server.
func (h *huggingFace) addFlags(f *pflag.FlagSet) {
	f.StringVar(&h.task, "task", "", "task of Hugging Face models that state none: text-generation … (default: by its architecture)")
	f.StringVar(&h.dtype, "dtype", "auto", "type of a Hugging Face model's weights: float32, float16, bfloat16; auto is float32 on a CPU, else as they are saved")
	f.IntVar(&h.maxModelLen, "max-model-len", 0, "longest sequence of a Hugging Face model, in tokens (default: the model's own, up to 8192)")
	f.BoolVar(&h.trustRemoteCode, "trust-remote-code", false, "run code that comes with a Hugging Face model")
	f.BoolVar(&h.probabilities, "return-probabilities", false, "answer with the probability of each class, not with the likeliest class")
	f.BoolVar(&h.logits, "return-raw-logits", false, "answer with the logits of each class")
	f.BoolVar(&h.plain, "disable-special-tokens", false, "do not mark the ends of a Hugging Face model's texts")
	f.StringVar(&h.backend, "backend", "auto", "as KServe's server has it: auto and huggingface; vllm is a runtime of its own")
}

// check refuses what has no meaning here.
func (h *huggingFace) check() error {
	if h.backend != "auto" && h.backend != "huggingface" {
		return fmt.Errorf("--backend is %q: auto and huggingface are served here; for vllm choose the runtime vllm", h.backend)
	}
	if h.maxModelLen < 0 {
		return fmt.Errorf("--max-model-len is %d: it must be above 0", h.maxModelLen)
	}
	return nil
}

// own is what our runtime reads in parameters.extra.
func (h *huggingFace) own(extra map[string]any, uri string) map[string]any {
	if extra == nil || h.stated {
		extra = map[string]any{}
	}
	put := func(name string, value any, given bool) {
		if _, said := extra[name]; given && !said {
			extra[name] = value
		}
	}
	put("pretrained_model", uri, true)
	task := h.task
	if folder, ok := extra["pretrained_model"].(string); ok && task == "" {
		task = checkpointTask(folder)
	}
	if said, ok := extra["task"].(string); ok {
		extra["task"] = pipelineTask(said)
	}
	put("task", pipelineTask(task), task != "")
	put("dtype", h.dtype, h.dtype != "")
	put("max_model_len", h.maxModelLen, h.maxModelLen > 0)
	put("trust_remote_code", true, h.trustRemoteCode)
	put("return_probabilities", true, h.probabilities)
	put("return_raw_logits", true, h.logits)
	put("disable_special_tokens", true, h.plain)
	put("alias", h.alias, h.alias != "")
	return extra
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

// sentenceFile is in the folders of models that are for embeddings, whatever their
// architecture is.
const sentenceFile = "modules.json"

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
	if fileAt(filepath.Join(folder, sentenceFile)) {
		return "feature-extraction"
	}
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
