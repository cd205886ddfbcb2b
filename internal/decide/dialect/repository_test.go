package dialect

import "testing"

// TestRepositoryOfModels: as KServe has it, a predictor without files may load those of
// TrainedModels, but not one for Hugging Face, nor containers.
func TestRepositoryOfModels(t *testing.T) {
	for predictor, want := range map[string]bool{
		`model: {modelFormat: {name: sklearn}}`:                                                true,
		`sklearn: {protocolVersion: v2}`:                                                       true,
		`model: {modelFormat: {name: sklearn}, storageUri: "s3://b/m"}`:                        false,
		`model: {modelFormat: {name: sklearn}, storage: {key: k, path: p}}`:                    false,
		`{model: {modelFormat: {name: sklearn}}, storageUris: [{uri: "s3://b/m"}]}`:            false,
		`model: {modelFormat: {name: huggingface}, args: [--model_id, x]}`:                     false,
		`huggingface: {args: [--model_id, x]}`:                                                 false,
		`containers: [{name: kserve-container, image: example/x:1, args: ["--http_port=80"]}]`: false,
	} {
		r := Read("x.yaml", []byte("apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: x}\nspec: {predictor: {"+trimmed(predictor)+"}}\n"))
		if bad := r.Errors(Process); len(bad) > 0 || len(r.Objects) != 1 {
			t.Errorf("%s: %v", predictor, bad)
			continue
		}
		if got := r.Objects[0].Service.Repository; got != want {
			t.Errorf("%s: %v", predictor, got)
		}
	}
}

// trimmed is a flow mapping without its braces.
func trimmed(s string) string {
	if s[0] == '{' {
		return s[1 : len(s)-1]
	}
	return s
}
