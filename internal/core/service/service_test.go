package service

import (
	"maps"
	"testing"
)

func TestKeyText(t *testing.T) {
	iris := Key{Namespace: "ml", Name: "iris"}
	for text, k := range map[string]Key{"ml/iris": iris, "ml/iris~canary": iris.Canary()} {
		if got := k.String(); got != text {
			t.Errorf("%#v is written %q, want %q", k, got, text)
		}
		if got := ParseKey(text); got != k {
			t.Errorf("%q is read %#v, want %#v", text, got, k)
		}
		// Older records have the variant in the name.
		old := Key{Namespace: k.Namespace, Name: k.WorkloadName()}
		if got := ParseKey(old.String()); got != k {
			t.Errorf("%#v is read %#v, want %#v", old, got, k)
		}
		if k.Stable() != iris {
			t.Errorf("%s is of %s", k, k.Stable())
		}
	}
}

// TestStatedBeforeFound: a service's own attributes come before its BaseModel's,
// these before what the files show; a version belongs to the name beside it.
func TestStatedBeforeFound(t *testing.T) {
	found := Attributes{Format: NamedVersion{Name: "safetensors"}, Framework: NamedVersion{Name: "transformers", Version: "4.46.3"},
		Architecture: "DeepseekV3ForCausalLM", Quantization: "fp8", Parameters: 684_489_000_000, From: map[string]string{"parameters": "config.json (estimated)"}}
	declared := Attributes{Format: NamedVersion{Name: "safetensors", Version: "1.0.0"}, Framework: NamedVersion{Name: "tensorrt"}, Parameters: 685_000_000_000}
	got := Attributes{Quantization: "int4"}.Fill(declared, "ClusterBaseModel v3").Fill(found, "model files")
	want := map[string]string{"format": "ClusterBaseModel v3", "format.version": "ClusterBaseModel v3", "framework": "ClusterBaseModel v3",
		"parameters": "ClusterBaseModel v3", "architecture": "model files"}
	if got.Parameters != declared.Parameters || got.Quantization != "int4" || got.Format != declared.Format ||
		got.Framework != declared.Framework || got.Architecture != found.Architecture || !maps.Equal(got.From, want) {
		t.Errorf("%+v", got)
	}
	if got := (Attributes{}).Fill(found, "model files"); got.Parameters != found.Parameters || got.From["parameters"] != "config.json (estimated)" {
		t.Errorf("nothing declared: %+v", got)
	}
}
