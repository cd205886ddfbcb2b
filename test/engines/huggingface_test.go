package engines

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// kserveCheckpoint is a service as KServe's samples write those of its Hugging Face
// server. It states no runtime and no protocol.
func kserveCheckpoint(name, folder string, args ...string) string {
	return fmt.Sprintf(`apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: %s}
spec:
  predictor:
    minReplicas: 1
    model:
      modelFormat: {name: huggingface}
      args: [%s]
      storageUri: "file://%s"
---
`, name, strings.Join(args, ", "), folder)
}

// TestHuggingFace serves checkpoints with transformers alone, where no vLLM is on PATH:
// every task against transformers itself, a client that leaves, and a folder of pickles.
func TestHuggingFace(t *testing.T) {
	bin := vllm.needs(t, "python")
	t.Setenv("ROUNDHOUSE_PYTHON", filepath.Join(bin, "python"))
	n, folder := startNode(t), t.TempDir()
	python(t, bin, "hf_model.py", folder)
	python(t, bin, "huggingface.py", "make", folder)
	manifest := kserveCheckpoint("tiny", folder+"/model", "--model_name=llama", "--model_dir=/mnt/models", "--dtype=float32", "--max_model_len=4096") +
		kserveCheckpoint("chances", folder+"/classify", "--return_probabilities", "--task=sequence_classification")
	for _, name := range []string{"ended", "embed", "rank", "classify", "tokens", "mask"} {
		manifest += kserveCheckpoint(name, filepath.Join(folder, name))
	}
	n.apply(manifest, "--wait", "--timeout", "5m")
	contains(t, n.do("describe", "tiny"), "roundhouse-huggingface")
	t.Log(python(t, bin, "sdks.py", n.gateway, "huggingface"))
	t.Log(python(t, bin, "huggingface.py", "ask", n.gateway, folder))
	// The name that the arguments give is answered at the service's own host.
	a := n.send("POST", n.gateway+"/openai/v1/completions", `{"model":"llama","prompt":"hello","max_tokens":2}`, "Host", "tiny.default.localhost")
	contains(t, a.String(), "200", `"model":"llama"`)

	was := n.ready("tiny", 1)[0]
	n.left(was.metrics(), vllmLong, "", func(want int) { n.figure(was.metrics(), "roundhouse_requests_running", float64(want)) })

	n.apply(kserveCheckpoint("pickled", folder+"/pickled"))
	n.eventually("get names the safetensors that are lacking", func() (bool, string) {
		out := n.do("get", "pickled")
		return strings.Contains(out, "safetensors"), out
	})
}
