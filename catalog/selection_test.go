package catalog_test

import (
	"slices"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/catalog"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/selection"
)

// cluster runs any image; bare has this program alone; gpus has eight GPUs and
// the programs named.
var (
	cluster = selection.Host{Cluster: true}
	bare    = selection.Host{Programs: map[string]bool{"roundhouse": true, "python3": true, "sh": true}, MemoryBytes: 16 << 30}
)

func gpus(programs ...string) selection.Host {
	h := selection.Host{Programs: map[string]bool{"roundhouse": true, "python3": true}, Accelerators: 8, MemoryBytes: 2 << 40}
	for _, p := range programs {
		h.Programs[p] = true
	}
	return h
}

// hf is what config.json and the safetensors index say of a model.
func hf(architecture, version string, parameters string, quantization ...string) service.Attributes {
	n, err := service.ParseParameters(parameters)
	if err != nil {
		panic(err)
	}
	return service.Attributes{Format: service.NamedVersion{Name: "safetensors"},
		Framework:    service.NamedVersion{Name: "transformers", Version: version},
		Architecture: architecture, Parameters: n, Quantization: strings.Join(quantization, "")}
}

func format(name, version string) service.Attributes {
	return service.Attributes{Format: service.NamedVersion{Name: name, Version: version}}
}

// The shapes a service can ask for.
type shape int

const (
	plain shape = iota
	apart
	nodes
	nodesApart
)

func request(a service.Attributes, p service.Protocol, s shape) selection.Request {
	c := service.Components{Engine: &service.Component{}}
	if s == nodes || s == nodesApart {
		c.Engine.Leader, c.Engine.Worker = &service.Node{}, &service.Node{Size: 1}
	}
	if s == apart || s == nodesApart {
		c.Decoder = &service.Component{}
	}
	svc := &service.Service{Meta: service.Meta{Key: service.Key{Namespace: "default", Name: "m"}}, Protocol: p, Components: c}
	return selection.Request{Service: svc, Attributes: a}
}

// TestSelection: models people serve, as their files describe them, and the
// runtime of the catalog they get. No choice may hang on a name.
func TestSelection(t *testing.T) {
	const v1, v2, openAI = service.ProtocolV1, service.ProtocolV2, service.ProtocolOpenAI
	llama := func(version, size string, q ...string) service.Attributes {
		return hf("LlamaForCausalLM", version, size, q...)
	}
	versioned := hf("MistralForCausalLM", "4.36.2", "7.24B")
	versioned.Format.Version = "1.0.0"
	for _, c := range []struct {
		what     string
		model    service.Attributes
		protocol service.Protocol
		shape    shape
		host     selection.Host
		want     string // "" for none
	}{
		{"mistral 7b v0.2", hf("MistralForCausalLM", "4.36.0", "7.24B"), openAI, plain, cluster, "srt-mistral-7b-instruct"},
		{"mistral 7b v0.3", hf("MistralForCausalLM", "4.42.0.dev0", "7.25B"), openAI, plain, cluster, "srt-mistral-7b-instruct"},
		{"the guide's mistral 7b", versioned, openAI, plain, cluster, "srt-mistral-7b-instruct"},
		{"mistral 7b apart", hf("MistralForCausalLM", "4.42.0.dev0", "7.25B"), openAI, apart, cluster, "srt-mistral-7b-instruct-pd"},
		{"mistral 7b, vLLM alone", hf("MistralForCausalLM", "4.42.0.dev0", "7.25B"), openAI, plain, gpus("vllm"), "vllm-mistral-7b-instruct"},
		{"mistral 7b, SGLang and vLLM", hf("MistralForCausalLM", "4.42.0.dev0", "7.25B"), openAI, plain, gpus("vllm", "sglang"), "srt-mistral-7b-instruct"},
		{"mistral nemo 12b", hf("MistralForCausalLM", "4.43.0.dev0", "12.2B"), openAI, plain, cluster, "vllm"},
		{"e5 mistral", hf("MistralModel", "4.34.0", "7.11B"), openAI, plain, cluster, "srt-e5-mistral-7b-instruct"},
		{"mixtral 8x7b", hf("MixtralForCausalLM", "4.36.0.dev0", "46.7B"), openAI, plain, cluster, "srt-mixtral-8x7b-instruct"},
		{"mixtral 8x7b apart", hf("MixtralForCausalLM", "4.36.0.dev0", "46.7B"), openAI, apart, cluster, "srt-mixtral-8x7b-instruct-pd"},
		{"mixtral 8x22b", hf("MixtralForCausalLM", "4.38.0", "141B"), openAI, plain, cluster, ""},
		{"llama 3.2 1b", llama("4.45.0.dev0", "1.24B"), openAI, plain, cluster, "srt-llama-3-2-1b-instruct"},
		{"llama 3.2 1b apart", llama("4.45.0.dev0", "1.24B"), openAI, apart, cluster, "srt-llama-3-2-1b-instruct-pd"},
		{"llama 3.2 1b, vLLM alone", llama("4.45.0.dev0", "1.24B"), openAI, plain, gpus("vllm"), "vllm-llama-3-2-1b-instruct"},
		{"llama 3.2 3b", llama("4.45.0.dev0", "3.21B"), openAI, plain, cluster, "srt-llama-3-2-3b-instruct"},
		{"llama 3.2 3b apart", llama("4.45.0.dev0", "3.21B"), openAI, apart, cluster, "srt-llama-3-2-3b-instruct-pd"},
		{"llama 3.1 8b", llama("4.43.0.dev0", "8.03B"), openAI, plain, cluster, "vllm"},
		{"llama 3.1 8b, SGLang alone", llama("4.43.0.dev0", "8.03B"), openAI, plain, gpus("sglang"), "sglang"},
		{"nemotron nano 8b", llama("4.47.1", "8.03B"), openAI, plain, cluster, "vllm-llama-3-1-nemotron-nano-8b-v1"},
		{"llama 3.1 70b", llama("4.42.3", "70.6B"), openAI, plain, cluster, "srt-llama-3-1-70b-instruct"},
		{"llama 3.1 70b apart", llama("4.42.3", "70.6B"), openAI, apart, cluster, "srt-llama-3-1-70b-instruct-pd"},
		{"llama 3.1 70b, vLLM alone", llama("4.42.3", "70.6B"), openAI, plain, gpus("vllm"), "vllm-llama-3-3-70b-instruct"},
		{"llama 3.3 70b", llama("4.47.0.dev0", "70.6B"), openAI, plain, cluster, "srt-llama-3-3-70b-instruct"},
		{"llama 3.3 70b apart", llama("4.47.0.dev0", "70.6B"), openAI, apart, cluster, "srt-llama-3-3-70b-instruct-pd"},
		{"llama 3.1 405b fp8", llama("4.43.0.dev0", "406B", "fbgemm_fp8"), openAI, plain, cluster, "vllm-llama-3-1-405b-instruct-fp8"},
		{"llama 3.1 405b", llama("4.43.0.dev0", "406B"), openAI, plain, cluster, ""},
		{"nemotron super 49b", hf("DeciLMForCausalLM", "4.48.3", "49.9B"), openAI, plain, cluster, "vllm-llama-3-3-nemotron-super-49b-v1"},
		{"nemotron ultra 253b", hf("DeciLMForCausalLM", "4.48.3", "253B"), openAI, plain, cluster, "vllm-llama-3-1-nemotron-ultra-253b-v1"},
		{"llama 3.2 11b vision", hf("MllamaForConditionalGeneration", "4.45.0.dev0", "10.7B"), openAI, plain, cluster, "srt-llama-3-2-11b-vision-instruct"},
		{"llama 3.2 90b vision", hf("MllamaForConditionalGeneration", "4.45.0.dev0", "88.6B"), openAI, plain, cluster, "srt-llama-3-2-90b-vision-instruct"},
		{"llama 4 scout", hf("Llama4ForConditionalGeneration", "4.51.0.dev0", "109B"), openAI, plain, cluster, "srt-llama-4-scout-17b-16e-instruct"},
		{"llama 4 scout apart", hf("Llama4ForConditionalGeneration", "4.51.0.dev0", "109B"), openAI, apart, cluster, "srt-llama-4-scout-17b-16e-instruct-pd"},
		{"llama 4 maverick fp8", hf("Llama4ForConditionalGeneration", "4.51.0.dev0", "402B", "compressed-tensors"), openAI, plain, cluster, "srt-llama-4-maverick-17b-128e-instruct-fp8"},
		{"llama 4 maverick fp8 apart", hf("Llama4ForConditionalGeneration", "4.51.0.dev0", "402B", "fp8"), openAI, apart, cluster, "srt-llama-4-maverick-17b-128e-instruct-fp8-pd"},
		{"deepseek v3", hf("DeepseekV3ForCausalLM", "4.33.1", "685B", "fp8"), openAI, nodes, cluster, "srt-deepseek-rdma"},
		{"deepseek v3 apart", hf("DeepseekV3ForCausalLM", "4.33.1", "671B", "fp8"), openAI, nodesApart, cluster, "srt-deepseek-rdma-pd"},
		{"deepseek v3 on one node", hf("DeepseekV3ForCausalLM", "4.33.1", "671B", "fp8"), openAI, plain, cluster, ""},
		// OME's own manifests give these two to runtimes of other models.
		{"qwen 2.5 72b", hf("Qwen2ForCausalLM", "4.43.1", "72.7B"), openAI, plain, cluster, "vllm"},
		{"gpt-oss 20b", hf("GptOssForCausalLM", "4.55.0.dev0", "21.5B", "mxfp4"), openAI, plain, cluster, "vllm"},
		{"a Hugging Face service", format("huggingface", ""), openAI, plain, gpus("sglang"), "sglang"},
		{"a Hugging Face service with vLLM and SGLang", format("huggingface", ""), openAI, plain, gpus("vllm", "sglang"), "vllm"},
		{"a Hugging Face service of known size", service.Attributes{Format: service.NamedVersion{Name: "huggingface"}, Parameters: 7e9}, openAI, plain, gpus("vllm"), "vllm"},
		{"a Hugging Face service on a bare machine", format("huggingface", ""), openAI, plain, bare, "roundhouse-huggingface"},
		{"a Hugging Face service over v2", format("huggingface", "1"), v2, plain, bare, "roundhouse-huggingface"},
		{"a Hugging Face service over v1, with vLLM", format("huggingface", "1"), v1, plain, gpus("vllm"), "roundhouse-huggingface"},
		{"a Hugging Face service in pods", format("huggingface", ""), v2, plain, cluster, "kserve-huggingfaceserver"},
		{"a Hugging Face service in pods over openAI", format("huggingface", ""), openAI, plain, cluster, "vllm"},
		{"gguf", service.Attributes{Format: service.NamedVersion{Name: "gguf"}, Architecture: "llama", Quantization: "Q4_K_M", Parameters: 8e9}, openAI, plain, gpus("llama-server", "vllm"), "llama-cpp"},

		{"sklearn", format("sklearn", ""), v1, plain, cluster, "kserve-sklearnserver"},
		{"sklearn 1", format("sklearn", "1"), v1, plain, cluster, "kserve-sklearnserver"},
		{"sklearn 0", format("sklearn", "0"), v1, plain, cluster, ""},
		{"sklearn over v2", format("sklearn", "1"), v2, plain, cluster, "kserve-mlserver"},
		{"sklearn 0 over v2", format("sklearn", "0"), v2, plain, cluster, "kserve-mlserver"},
		{"xgboost", format("xgboost", ""), v1, plain, bare, "roundhouse-xgboost"},
		{"xgboost over v2", format("xgboost", "1"), v2, plain, bare, "roundhouse-xgboost"},
		{"xgboost 2 with MLServer", format("xgboost", "2"), v2, plain, gpus("mlserver"), "roundhouse-xgboost"},
		{"lightgbm", format("lightgbm", ""), v1, plain, bare, "roundhouse-lightgbm"},
		{"xgboost in pods", format("xgboost", ""), v1, plain, cluster, "roundhouse-xgboost"},
		{"lightgbm in pods", format("lightgbm", "4"), v2, plain, cluster, "roundhouse-lightgbm"},
		{"catboost in pods", format("catboost", ""), v2, plain, cluster, ""},
		{"the simulator in pods", format("simulator", ""), openAI, plain, cluster, "roundhouse-simulator"},
		{"lightgbm 3 over v2", format("lightgbm", "3"), v2, plain, bare, "roundhouse-lightgbm"},
		{"mlflow", format("mlflow", ""), v2, plain, cluster, "kserve-mlserver"},
		{"paddle", format("paddle", ""), v1, plain, cluster, "kserve-paddleserver"},
		{"pmml", format("pmml", ""), v1, plain, cluster, "kserve-pmmlserver"},
		{"tensorflow", format("tensorflow", ""), v1, plain, cluster, "kserve-tensorflow-serving"},
		{"tensorflow over v2", format("tensorflow", "2"), v2, plain, cluster, "kserve-tritonserver"},
		{"pytorch", format("pytorch", "1"), v1, plain, cluster, "kserve-torchserve"},
		{"onnx", format("onnx", ""), v2, plain, cluster, "roundhouse-onnx"},
		{"tensorrt", format("tensorrt", ""), v2, plain, cluster, "kserve-tritonserver"},
		{"triton", format("triton", "2"), v2, plain, cluster, "kserve-tritonserver"},
		{"the simulator", format("simulator", ""), openAI, plain, bare, "roundhouse-simulator"},
		{"sklearn on a bare machine", format("sklearn", ""), v1, plain, bare, "roundhouse-sklearn"},
		{"sklearn 1 over v2 with MLServer", format("sklearn", "1"), v2, plain, gpus("mlserver"), "roundhouse-sklearn"},
		{"mlflow on a bare machine", format("mlflow", "2"), v2, plain, bare, "roundhouse-mlflow"},
		{"catboost", format("catboost", ""), v2, plain, bare, "roundhouse-catboost"},
		{"paddle on a bare machine", format("paddle", "2"), v1, plain, bare, "roundhouse-paddle"},
		{"pmml on a bare machine", format("pmml", ""), v1, plain, bare, "roundhouse-pmml"},
		{"tensorflow on a bare machine", format("tensorflow", "2"), v1, plain, bare, "roundhouse-tensorflow"},
		{"tensorflow with its own server", format("tensorflow", ""), v1, plain, gpus("tensorflow_model_server"), "kserve-tensorflow-serving"},
		{"pytorch on a bare machine", format("pytorch", ""), v1, plain, bare, ""},
	} {
		all, err := catalog.Runtimes()
		if err != nil {
			t.Fatal(err)
		}
		res := selection.Choose(request(c.model, c.protocol, c.shape), all, c.host)
		got, why := "", res.Message
		if res.Chosen != nil {
			got, why = res.Chosen.Name, res.Chosen.Why
		}
		if got != c.want {
			t.Errorf("%s: got %q (%s), want %q", c.what, got, why, c.want)
		}
		if strings.HasPrefix(why, "name,") {
			t.Errorf("%s: %s was chosen by its name alone", c.what, got)
		}
	}
}

// TestMissingProgram: what a machine lacks is said, with the line that helps.
func TestMissingProgram(t *testing.T) {
	all, err := catalog.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		model service.Attributes
		p     service.Protocol
		want  string
	}{
		{hf("MistralForCausalLM", "4.42.0.dev0", "7.25B"), service.ProtocolOpenAI, `sglang is not on PATH: pip install "sglang[all]"`},
		{hf("Qwen2ForCausalLM", "4.43.1", "7.6B"), service.ProtocolOpenAI, "vllm is not on PATH: pip install vllm"},
		{format("gguf", ""), service.ProtocolOpenAI, "llama-server is not on PATH: brew install llama.cpp"},
		{format("tensorrt", ""), service.ProtocolV2, "tritonserver is not on PATH: NVIDIA ships Triton in its image"},
		{format("pytorch", ""), service.ProtocolV1, "no command for image docker.io/pytorch/torchserve-kfs on this machine"},
	} {
		res := selection.Choose(request(c.model, c.p, plain), all, gpus())
		if res.Chosen != nil || !strings.Contains(res.Message, c.want) {
			t.Errorf("%v: got %q, want %q", c.model.Format, res.Message, c.want)
		}
	}
}

// TestOneMachinesRuntimesOnACluster: what runs on one machine alone is no pod's,
// and the words say what is.
func TestOneMachinesRuntimesOnACluster(t *testing.T) {
	all, err := catalog.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	all = catalog.WithImage(all, "roundhouse-onnx", "") // as where there is no image with ONNX Runtime
	for _, c := range []struct {
		format, runtime string
		p               service.Protocol
		want            string
	}{
		{"onnx", "", service.ProtocolV1, "roundhouse-onnx could serve it, but its engine is a command for one machine and has no container: ask for a protocol of kserve-tritonserver, which speaks v2, grpc-v2, not v1 (asked for), or apply a runtime with an image"},
		{"onnx", "roundhouse-onnx", service.ProtocolV2, "roundhouse-onnx could serve it, but its engine is a command for one machine and has no container: name one with an image, or leave the runtime out"},
		{"catboost", "", service.ProtocolV2, "roundhouse-catboost could serve it, but its engine is a command for one machine and has no container: apply a runtime with an image"},
	} {
		req := request(format(c.format, ""), c.p, plain)
		if c.runtime != "" {
			req.Service.Runtime = &service.ObjectRef{Name: c.runtime}
		}
		if res := selection.Choose(req, all, cluster); res.Chosen != nil || res.Message != c.want {
			t.Errorf("%s over %s: got %q, want %q", c.format, c.p, res.Message, c.want)
		}
	}
}

// TestWithImage: a word's image takes its place, the shared runtimes stay as they are,
// and those without the word do.
func TestWithImage(t *testing.T) {
	all, err := catalog.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	images := func(list []service.Runtime) (out []string) {
		for _, rt := range list {
			if e := rt.Components.Engine; e != nil && strings.HasPrefix(rt.Name, "roundhouse-") {
				for _, c := range e.Pod.Containers {
					out = append(out, rt.Name+" "+c.Image)
				}
			}
		}
		return out
	}
	before := images(all)
	got := images(catalog.WithImage(all, "roundhouse-onnx", "registry.example/onnx:1"))
	if !slices.Contains(got, "roundhouse-onnx registry.example/onnx:1") || !slices.Contains(got, "roundhouse-xgboost roundhouse") || len(got) != len(before) {
		t.Errorf("%v", got)
	}
	if without := images(catalog.WithImage(all, "roundhouse-onnx", "")); len(without) != len(before)-1 {
		t.Errorf("without an image: %v", without)
	}
	if after := images(all); !slices.Equal(after, before) {
		t.Errorf("changed: %v", after)
	}
}
