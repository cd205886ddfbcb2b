package catalog_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"roundhouse.dev/roundhouse/catalog"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// TestImplied: a runtime that KServe's legacy schema implies is taken where it runs;
// one machine without its server takes another of the format, or is told of the server.
func TestImplied(t *testing.T) {
	all, err := catalog.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		format, runtime string
		implied         bool
		host            selection.Host
		want, message   string
	}{
		{"tensorflow", "kserve-tensorflow-serving", true, cluster, "kserve-tensorflow-serving", ""},
		{"tensorflow", "kserve-tensorflow-serving", true, gpus("tensorflow_model_server"), "kserve-tensorflow-serving", ""},
		{"tensorflow", "kserve-tensorflow-serving", true, bare, "roundhouse-tensorflow", ""},
		{"tensorflow", "kserve-tensorflow-serving", false, bare, "", "tensorflow_model_server"},
		{"pytorch", "kserve-torchserve", true, bare, "", "kserve-torchserve"},
		{"onnx", "kserve-tritonserver", true, bare, "roundhouse-onnx", ""},
		{"onnx", "kserve-tritonserver", true, cluster, "kserve-tritonserver", ""},
		{"onnx", "kserve-tritonserver", false, bare, "", "tritonserver is not on PATH"},
		{"triton", "kserve-tritonserver", true, bare, "", "tritonserver is not on PATH"},
		{"mlflow", "kserve-mlserver", true, bare, "kserve-mlserver", ""},
		{"sklearn", "kserve-sklearnserver", true, bare, "kserve-sklearnserver", ""},
		{"xgboost", "kserve-xgbserver", true, bare, "kserve-xgbserver", ""},
		{"paddle", "kserve-paddleserver", true, bare, "kserve-paddleserver", ""},
		{"huggingface", "kserve-huggingfaceserver", true, bare, "kserve-huggingfaceserver", ""},
		{"huggingface", "kserve-huggingfaceserver", false, bare, "kserve-huggingfaceserver", ""},
		{"huggingface", "kserve-huggingfaceserver", true, cluster, "kserve-huggingfaceserver", ""},
	} {
		host := tt.host
		protocol := service.ProtocolV1
		if tt.format == "onnx" || tt.format == "triton" || tt.format == "mlflow" {
			protocol = service.ProtocolV2
		}
		r := request(format(tt.format, ""), protocol, plain)
		r.Service.Runtime = &service.ObjectRef{Name: tt.runtime, Implied: tt.implied}
		here := make([]service.Runtime, len(all))
		for i := range all {
			here[i] = workload.Localize(all[i], all, host)
		}
		host.Answers = map[selection.Check]selection.Answer{}
		for _, c := range selection.Checks(r, here, host) {
			host.Answers[c] = selection.Answer{Program: "python3"}
		}
		got, name := selection.Choose(r, here, host), ""
		if got.Chosen != nil {
			name = got.Chosen.Runtime.Name
		}
		if name != tt.want || tt.message != "" && !strings.Contains(got.Message, tt.message) {
			t.Errorf("%s, implied %v: %q %s, want %q %s", tt.runtime, tt.implied, name, got.Message, tt.want, tt.message)
		}
	}
}

// TestWithoutGPUs: what asks for a GPU, as KServe's samples of language models do, runs
// on this program's own server where the machine has none, and its choice says so. Any
// other server is not given fewer than it asks for.
func TestWithoutGPUs(t *testing.T) {
	all, err := catalog.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		format, runtime string
		host            selection.Host
		want, why       string
	}{
		{"huggingface", "", bare, "roundhouse-huggingface", "runs without GPUs, since this machine has none"},
		{"sklearn", "kserve-sklearnserver", bare, "kserve-sklearnserver", "runs without GPUs"},
		{"huggingface", "", gpus(), "roundhouse-huggingface", ""},
		{"huggingface", "vllm", bare, "", "it needs 1 GPUs, this machine has 0"},
		{"huggingface", "", selection.Host{Programs: bare.Programs, MemoryBytes: bare.MemoryBytes, Accelerators: 1}, "roundhouse-huggingface", ""},
	} {
		protocol := service.ProtocolV1
		if tt.runtime == "vllm" {
			protocol = service.ProtocolOpenAI
		}
		r := request(format(tt.format, ""), protocol, plain)
		r.Service.Components.Engine.Pod.Containers = []corev1.Container{{Name: "kserve-container", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}}}}
		r.Service.Components.Engine.Main = "kserve-container"
		if tt.runtime != "" {
			r.Service.Runtime = &service.ObjectRef{Name: tt.runtime}
		}
		got, name := selection.Choose(r, all, tt.host), ""
		if got.Chosen != nil {
			name, got.Message = got.Chosen.Name, got.Chosen.Why
		}
		if name != tt.want || !strings.Contains(got.Message, tt.why) || tt.why == "" && strings.Contains(got.Message, "without GPUs") {
			t.Errorf("%s %s: %q %s, want %q %s", tt.format, tt.runtime, name, got.Message, tt.want, tt.why)
		}
	}
}
