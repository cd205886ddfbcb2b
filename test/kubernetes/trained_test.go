//go:build kubernetes && linux

package kubernetes

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

var trainedKind = schema.GroupVersionKind{Group: "serving.kserve.io", Version: "v1alpha1", Kind: "TrainedModel"}

// trainedModels has a pod that runs load and unload models: it stays, and so do those of
// its models that are well.
func trainedModels(ctx context.Context, m *models) {
	trained := func(name, uri string) string {
		return fmt.Sprintf("---\napiVersion: serving.kserve.io/v1alpha1\nkind: TrainedModel\nmetadata: {name: %s, namespace: %s}\nspec: {inferenceService: hall, model: {framework: xgboost, storageUri: %q, memory: 16Mi}}\n", name, fetched, uri)
	}
	m.s3.put(m.t, "broken/broken.ubj", []byte("no tree"))
	const id, secret = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"
	hall := predictor("hall", "", ", serviceAccountName: hall", ", resources: {limits: {memory: 256Mi}}")
	m.do(m.ApplyYAML(ctx, s3Secret("hall", id, secret, s3SecretKey)+s3Account("hall", `serving.kserve.io/s3-endpoint: "`+m.s3.address+`", serving.kserve.io/s3-usehttps: "0"`)+
		hall+trained("oak", "s3://models/iris")))
	m.answers(ctx, trainedKind, "oak")
	first := m.awaitReplicas(ctx, fetched, "hall", 1)[0]

	// One more, and one that is no model: in seconds, in the same pod.
	began := time.Now()
	m.do(m.ApplyYAML(ctx, trained("elm", "s3://models/iris/iris.ubj")+trained("ash", "s3://models/broken")))
	m.answers(ctx, trainedKind, "elm")
	m.t.Logf("loaded %.1f s after it was applied", time.Since(began).Seconds())
	m.complains(ctx, trainedKind, "ash", "broken.ubj")
	for kind, want := range map[string]string{"IsMMSPredictor": "True", "FrameworkSupported": "True", "MemoryResourceAvailable": "True", "InferenceServiceReady": "True", "Ready": "True"} {
		u := m.awaitReady(ctx, trainedKind, fetched, "elm")
		if got := condition(u, kind)["status"]; got != want {
			m.t.Errorf("%s is %v, want %s", kind, got, want)
		}
	}
	request{m.address, "hall." + fetched + "." + domain, "/v2/models/oak/infer", irisTensor, predicts(irisClass, 3)}.must(m.t)
	request{m.address, "hall." + fetched + "." + domain, "/v2/models/nobody/infer", irisTensor, func(status int, body []byte) error {
		if status != http.StatusNotFound || !strings.Contains(string(body), "is not served by service "+fetched+"/hall") {
			return fmt.Errorf("status %d: %.300s", status, body)
		}
		return nil
	}}.must(m.t)

	// One that is deleted is unloaded.
	_, err := m.Kubectl(ctx, "delete", "trainedmodels.serving.kserve.io/elm", "-n", fetched)
	m.do(err)
	m.gets(ctx, request{m.address, "", "/v2/models/elm/infer", irisTensor, func(status int, body []byte) error {
		if status != http.StatusNotFound {
			return fmt.Errorf("status %d: %.300s", status, body)
		}
		return nil
	}})
	if now := m.awaitReplicas(ctx, fetched, "hall", 1)[0]; now.UID != first.UID || now.Status.ContainerStatuses[0].RestartCount != 0 {
		m.t.Errorf("pod %s took the place of %s, or its server was started again", now.Name, first.Name)
	}
	m.do(m.DeleteYAML(ctx, hall+trained("oak", "")+trained("ash", "")))
}
