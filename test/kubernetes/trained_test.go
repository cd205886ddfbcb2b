//go:build kubernetes && linux

package kubernetes

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"roundhouse.dev/roundhouse/internal/edge/hubcache/hubtest"
	"roundhouse.dev/roundhouse/test/kubernetes/node"
)

var trainedKind = schema.GroupVersionKind{Group: "serving.kserve.io", Version: "v1alpha1", Kind: "TrainedModel"}

// trainedModels has a pod that runs load and unload models: it stays, and so do those of
// its models that are well.
func trainedModels(ctx context.Context, p *product) {
	iris, err := os.ReadFile("../../examples/quickstart/models/iris.ubj")
	p.do(err)
	hub, err := hubtest.NewAt(node.Address)
	p.do(err)
	defer hub.Close()
	hub.Add("models", "org/iris").Commit("main", map[string][]byte{"iris.ubj": iris}, "iris.ubj")
	hub.Add("models", "org/broken").Commit("main", map[string][]byte{"broken.ubj": []byte("no tree")}, "broken.ubj")
	hall := `
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: hall, namespace: shapes}
spec:
  predictor:
    minReplicas: 1
    maxReplicas: 1
    model:
      modelFormat: {name: xgboost}
      protocolVersion: v2
      resources: {limits: {memory: 256Mi}}
      env: [{name: HF_ENDPOINT, value: "` + hub.URL + `"}]
`
	trained := func(name, repository string) string {
		return fmt.Sprintf("---\napiVersion: serving.kserve.io/v1alpha1\nkind: TrainedModel\nmetadata: {name: %s, namespace: shapes}\nspec: {inferenceService: hall, model: {framework: xgboost, storageUri: \"hf://org/%s\", memory: 16Mi}}\n", name, repository)
	}
	predicted := func(name string) {
		p.t.Helper()
		u := p.awaitReady(ctx, trainedKind, shapes, name)
		request{p.address, p.host(u), "/v2/models/" + name + "/infer", irisTensor, predicts(irisClass, 3)}.must(p.t)
	}
	p.do(p.ApplyYAML(ctx, hall+trained("oak", "iris")))
	predicted("oak")
	first := p.awaitReplicas(ctx, shapes, "hall", 1)[0]

	// One more, and one that is no model: in seconds, in the same pod.
	began := time.Now()
	p.do(p.ApplyYAML(ctx, trained("elm", "iris")+trained("ash", "broken")))
	predicted("elm")
	p.t.Logf("loaded %.1f s after it was applied", time.Since(began).Seconds())
	p.await(ctx, trainedKind, shapes, "ash", "refused", func(u *unstructured.Unstructured) bool {
		message, _ := condition(u, "Ready")["message"].(string)
		return condition(u, "Ready")["status"] == "False" && strings.Contains(message, "no model file of a known format")
	})
	u := p.awaitReady(ctx, trainedKind, shapes, "elm")
	for _, kind := range []string{"IsMMSPredictor", "FrameworkSupported", "MemoryResourceAvailable", "InferenceServiceReady"} {
		if got := condition(u, kind)["status"]; got != "True" {
			p.t.Errorf("%s is %v", kind, got)
		}
	}
	host := p.host(p.awaitReady(ctx, kserveService, shapes, "hall"))
	status := func(host, model string, want int, says string) request {
		return request{p.address, host, "/v2/models/" + model + "/infer", irisTensor, func(status int, body []byte) error {
			if status != want || !strings.Contains(string(body), says) {
				return fmt.Errorf("%s: status %d: %.300s", model, status, body)
			}
			return nil
		}}
	}
	p.gets(ctx, status(host, "oak", http.StatusOK, "outputs"))
	p.gets(ctx, status(host, "nobody", http.StatusNotFound, "is not served by service shapes/hall"))

	// One that is deleted is unloaded, and none of the others.
	_, err = p.Kubectl(ctx, "delete", "trainedmodels.serving.kserve.io/elm", "-n", shapes)
	p.do(err)
	p.gets(ctx, status("", "elm", http.StatusNotFound, "elm"))
	predicted("oak")
	if now := p.awaitReplicas(ctx, shapes, "hall", 1)[0]; now.UID != first.UID || now.Status.ContainerStatuses[0].RestartCount != 0 {
		p.t.Errorf("pod %s took the place of %s, or its server was started again", now.Name, first.Name)
	}
	p.do(p.DeleteYAML(ctx, hall+trained("oak", "")+trained("ash", "")))
	p.nothingLeft(ctx)
}
