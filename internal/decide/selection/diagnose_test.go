package selection

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestDiagnose: formats of a runtime that fare alike are told together, and what is
// lacking with what mends it.
func TestDiagnose(t *testing.T) {
	format := func(names ...string) (out []service.SupportedFormat) {
		for _, n := range names {
			out = append(out, service.SupportedFormat{Format: service.NamedVersion{Name: n}})
		}
		return out
	}
	engine := func(l *service.Local, gpus string) service.Components {
		c := &service.Component{Local: l}
		if gpus != "" {
			c.Pod.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(gpus)}}}}
		}
		return service.Components{Engine: c}
	}
	python := &service.Local{Command: []string{"roundhouse", "serve"}, Requires: []service.Requirement{{Formats: []string{"sklearn"}, Python: []string{"sklearn"}, Install: "pip install scikit-learn"}}}
	runtimes := []service.Runtime{
		{Meta: service.Meta{Key: service.Key{Name: "several"}}, Formats: format("xgboost", "sklearn", "lightgbm"), Components: engine(python, "")},
		{Meta: service.Meta{Key: service.Key{Name: "large"}}, Formats: format("safetensors"), Components: engine(&service.Local{Command: []string{"vllm", "serve"}, Install: "pip install vllm"}, "4")},
		{Meta: service.Meta{Key: service.Key{Name: "image"}}, Formats: format("x"), Components: service.Components{Engine: &service.Component{}}},
		{Meta: service.Meta{Key: service.Key{Name: "off"}}, Disabled: true, Components: engine(python, "")},
	}
	host := Host{Programs: map[string]bool{"roundhouse": true}, Accelerators: 1}
	asked := CheckAll(runtimes, host)
	if len(asked) != 1 || asked[0].Modules != "sklearn" {
		t.Fatalf("%+v", asked)
	}
	host.Answers = map[Check]Answer{asked[0]: {Program: "/usr/bin/python3", Lacks: "lacks sklearn"}}
	got, images := Diagnose(runtimes, host)
	want := []Diagnosis{
		{Runtime: "several", Formats: []string{"xgboost", "lightgbm"}, Runs: true, Why: "runs on this machine"},
		{Runtime: "several", Formats: []string{"sklearn"}, Why: "/usr/bin/python3 lacks sklearn: /usr/bin/python3 -m pip install scikit-learn"},
		{Runtime: "large", Formats: []string{"safetensors"}, Why: "vllm is not on PATH: pip install vllm; it needs 4 GPUs, this machine has 1", TooSmall: true},
	}
	if !reflect.DeepEqual(got, want) || images != 1 {
		t.Errorf("%+v, %d images", got, images)
	}
}
