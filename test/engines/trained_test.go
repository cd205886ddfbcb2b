package engines

import (
	"strings"
	"testing"
)

// trained is a TrainedModel of KServe's.
func trained(name, framework, folder string) string {
	return `---
apiVersion: serving.kserve.io/v1alpha1
kind: TrainedModel
metadata: {name: ` + name + `}
spec: {inferenceService: host, model: {framework: ` + framework + `, storageUri: "file://` + folder + `", memory: 64Mi}}
`
}

// TestMLServerLoads has a running MLServer load models by the names of others, and
// unload one.
func TestMLServerLoads(t *testing.T) {
	t.Parallel()
	bin := mlserver.needs(t, "mlserver", "python")
	n, folder := startNode(t, bin), models(t, bin)
	n.apply(predictor("host", "minReplicas: 0", `model: {modelFormat: {name: sklearn}, runtime: kserve-mlserver, protocolVersion: v2}`) +
		trained("sorted", "sklearn", folder+"/sklearn") + trained("absent", "sklearn", folder+"/triton"))
	n.loads("sorted", `{"inputs":[{"name":"x","datatype":"FP32","shape":[2,1],"data":[1,9]}]}`, `"data":[0,1]`)
	n.refused("absent", "Is a directory: '"+folder+"/triton'")
}

// TestTritonLoads has a running Triton do the same, in its explicit mode.
func TestTritonLoads(t *testing.T) {
	t.Parallel()
	bin := small.needs(t, "tritonserver", "python")
	n, folder := startNode(t, bin), models(t, bin)
	n.apply(predictor("host", "minReplicas: 0", `model: {modelFormat: {name: triton}, runtime: kserve-tritonserver, args: [--model-control-mode=explicit]}`) +
		trained("double", "triton", folder+"/triton/double/double") + trained("absent", "triton", folder+"/mlserver/double"))
	n.loads("double", vector, `"data":[2.0,4.0,6.0]`)
	n.refused("absent", "failed to load 'absent'")
}

// loads asks for a model that the replica of host loads, which is deleted then.
func (n *node) loads(model, ask, want string) {
	n.t.Helper()
	if a := n.post("/v2/models/"+model+"/infer", ask); a.status != 200 || !strings.Contains(a.body, want) {
		n.t.Errorf("%s: %s", model, a)
	}
	one, host := n.ready(model, 1)[0], n.ready("host", 1)[0]
	if one.ID != host.ID {
		n.t.Errorf("%s has a replica of its own: %s, not %s", model, one.ID, host.ID)
	}
	n.t.Cleanup(func() {
		n.do("delete", "trainedmodel", model)
		n.eventually(model+" is gone", func() (bool, string) {
			out := n.do("describe", "host")
			return !strings.Contains(out, model+", in"), out
		})
	})
}

// refused waits until a model says why its server does not load it.
func (n *node) refused(model, says string) {
	n.t.Helper()
	n.eventually(model+" says why", func() (bool, string) {
		out := n.do("describe", model)
		return strings.Contains(out, says), out
	})
}
