//go:build peers

package modelserver

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// torchPython names an interpreter with torch, transformers and
// mlserver-huggingface, which are gigabytes, and tensorflow, which the last
// imports. `make test-torch` needs it, other targets do without.
const torchPython = "ROUNDHOUSE_TORCH_PYTHON"

// TestTorch serves models of PyTorch and Hugging Face with the real libraries,
// through MLServer's unmodified runtime and ours.
func TestTorch(t *testing.T) {
	path := os.Getenv(torchPython)
	if path == "" {
		t.Skipf("%s is not set: it names a Python with torch, transformers and mlserver-huggingface", torchPython)
	}
	t.Setenv("USE_TF", "0") // transformers would import TensorFlow if it is there
	t.Setenv("HF_HUB_OFFLINE", "1")
	t.Setenv("ROUNDHOUSE_PYTHON", path)
	folder := filepath.Join(t.TempDir(), "models")
	var scores []float64
	said := strings.Split(strings.TrimSpace(run(t, path, "torch_repository.py", folder)), "\n")
	if err := json.Unmarshal([]byte(said[len(said)-1]), &scores); err != nil {
		t.Fatal(err)
	}
	s := startRoundhouse(t, folder)
	s.ready(t)
	t.Run("hugging face", func(t *testing.T) { torchText(t, s) })
	t.Run("dtypes", func(t *testing.T) { torchTypes(t, s) })
	t.Run("torchscript", func(t *testing.T) { torchScript(t, s, scores) })
	t.Run("checkpoint without settings", func(t *testing.T) {
		checkpoint := filepath.Join(filepath.Dir(folder), "checkpoints", "classifier")
		alone := startRoundhouse(t, checkpoint)
		a := alone.ask(t, textRequest("classifier", "infer", "a b c"))
		if a.status != http.StatusOK || !strings.Contains(a.String(), "INT64") {
			t.Errorf("%s", a)
		}
	})
}

// textRequest asks for texts. One is an argument of the pipeline, several are
// the list that it takes for one.
func textRequest(model, how string, texts ...string) request {
	name := "args"
	if len(texts) > 1 {
		name = "array_inputs"
	}
	list := make([]any, len(texts))
	for i, text := range texts {
		list[i] = text
	}
	body, err := json.Marshal(object{"id": "a", "inputs": []any{object{"name": name, "shape": []int{len(texts)}, "datatype": "BYTES", "data": list}}})
	if err != nil {
		panic(err) // it is made here
	}
	return request{kind: "torch", method: http.MethodPost, path: "/v2/models/" + model + "/" + how, body: string(body), header: map[string]string{"Content-Type": "application/json"}}
}

// torchText classifies and generates, alone and in batches, unary and streamed.
func torchText(t *testing.T, s *server) {
	if a := s.ask(t, textRequest("classify", "infer", "a b c", "z")); a.status != http.StatusOK || strings.Count(a.String(), "LABEL_") != 2 {
		t.Errorf("classify: %s", a)
	}
	// A format without a class is our own runtime's, whose classes are numbers.
	if a := s.ask(t, textRequest("format", "infer", "a b c", "z")); a.status != http.StatusOK || !strings.Contains(a.String(), "INT64") {
		t.Errorf("format: %s", a)
	}
	if a := s.ask(t, textRequest("generate", "infer", "a b c")); a.status != http.StatusOK || !strings.Contains(a.String(), "generated_text") {
		t.Errorf("generate: %s", a)
	}
	a := s.ask(t, textRequest("classify", "infer_stream", "a b c"))
	if events, ok := a.body.([]any); a.status != http.StatusOK || !ok || len(events) != 1 || !strings.Contains(a.String(), "LABEL_") {
		t.Errorf("stream: %s", a)
	}
	// Lists go through the pipeline together; arguments do not, and are answered
	// one by one.
	for _, more := range [][]string{{"y"}, nil} {
		var group, single []request
		for i := range batches {
			texts := append([]string{strings.Repeat("a b ", i+1)}, more...)
			group, single = append(group, textRequest("batched", "infer", texts...)), append(single, textRequest("classify", "infer", texts...))
		}
		for i, a := range askTogether(t, s, group) {
			alone := s.ask(t, single[i])
			if a.status != http.StatusOK || label(a) != label(alone) || label(a) == "" {
				t.Errorf("request %d in a batch: %s\nalone: %s", i, a, alone)
			}
		}
	}
}

// label is what a classifier said of its first text.
func label(a answer) string {
	_, rest, _ := strings.Cut(a.String(), "LABEL_")
	return rest[:min(1, len(rest))]
}

// torchTypes checks that checkpoints are loaded in their own types of numbers.
func torchTypes(t *testing.T, s *server) {
	for model, want := range map[string]string{"half": "torch.float16", "bfloat": "torch.bfloat16", "single": "torch.float32"} {
		a := s.ask(t, textRequest(model, "infer", "a"))
		if a.status != http.StatusOK || !strings.Contains(a.String(), want) || !strings.Contains(a.String(), "mlserver_huggingface.runtime") {
			t.Errorf("%s: %s", model, a)
		}
	}
}

// torchScript asks TorchScript models in their own types.
func torchScript(t *testing.T, s *server, scores []float64) {
	for model, c := range map[string]struct {
		datatype string
		within   float64
	}{"script": {"FP32", 1e-6}, "script-double": {"FP64", 1e-6}} {
		body := fmt.Sprintf(`{"inputs":[{"name":"input","shape":[2,4],"datatype":%q,"data":[0,1,2,3,4,5,6,7]}]}`, c.datatype)
		a := s.ask(t, request{method: http.MethodPost, path: "/v2/models/" + model + "/infer", body: body, header: map[string]string{"Content-Type": "application/json"}})
		got, ok := a.body.(object)
		if !ok || a.status != http.StatusOK {
			t.Errorf("%s: %s", model, a)
			continue
		}
		output := got["outputs"].([]any)[0].(object)
		data := output["data"].([]any)
		if output["datatype"] != c.datatype || len(data) != len(scores) {
			t.Errorf("%s: %s", model, a)
			continue
		}
		for i, want := range scores {
			if math.Abs(data[i].(float64)-want) > c.within {
				t.Errorf("%s: %v, want %v", model, data, scores)
				break
			}
		}
	}
}
