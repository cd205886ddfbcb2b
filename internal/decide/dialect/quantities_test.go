package dialect

import (
	"strings"
	"testing"
)

// TestWhatNoMachineHas: quantities that cannot be counted, and variables that no program
// is started with, are refused by their path, and none of what is just possible is.
func TestWhatNoMachineHas(t *testing.T) {
	const kserve = "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: x}\nspec: {predictor: {model: {modelFormat: {name: sklearn}, storageUri: s3://b/m, %}}}\n"
	const trained = "apiVersion: serving.kserve.io/v1alpha1\nkind: TrainedModel\nmetadata: {name: x}\nspec: {inferenceService: p, model: {framework: sklearn, storageUri: s3://b/m, %}}\n"
	for _, tt := range []struct{ manifest, field, want string }{
		{kserve, "resources: {limits: {memory: 9e30}}", "spec.predictor.model.resources.limits[memory]: 9e+30 is more than can be counted"},
		{kserve, "resources: {requests: {memory: 8Ei}}", ""}, // as Kubernetes reads it, the largest number
		{kserve, "resources: {requests: {cpu: 1e19}}", "spec.predictor.model.resources.requests[cpu]: 10e18 is more than can be counted"},
		{kserve, "resources: {limits: {memory: -1}}", "spec.predictor.model.resources.limits[memory]: -1 is negative"},
		{kserve, "resources: {limits: {memory: 7Ei}}", ""},
		{trained, "memory: 9e30", "spec.model.memory: 9e+30 is more than can be counted"},
		{trained, "memory: -1", "spec.model.memory: -1 is negative"},
		{kserve, "env: [{name: A, value: b}, {name: LONG, value: " + strings.Repeat("x", 131067) + "}]", "spec.predictor.model.env[1].value: LONG has 131072 bytes with its name"},
		{kserve, "env: [{name: LONG, value: " + strings.Repeat("x", 131066) + "}]", ""},
	} {
		res := Read("x.yaml", []byte(strings.Replace(tt.manifest, "%", tt.field, 1)))
		var got []string
		for _, p := range res.Problems {
			if !p.Warning {
				got = append(got, p.Path+": "+p.Message)
			}
		}
		if said := strings.Join(got, "; "); (tt.want == "") != (said == "") || !strings.Contains(said, tt.want) {
			t.Errorf("%.60s: %q, want %q", tt.field, said, tt.want)
		}
	}
}
