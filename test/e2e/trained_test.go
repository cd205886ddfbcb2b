package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// trainedModel is a KServe manifest of a model that plain is to load.
func trainedModel(name, uri, memory string) string {
	return `---
apiVersion: serving.kserve.io/v1alpha1
kind: TrainedModel
metadata: {name: ` + name + `}
spec:
  inferenceService: plain
  model: {framework: xgboost, storageUri: "` + uri + `", memory: ` + memory + `}
`
}

// holder is an InferenceService without a model of its own.
func holder(min int, memory string) string {
	return fmt.Sprintf(`apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: plain}
spec:
  predictor:
    minReplicas: %d
    maxReplicas: 2
    model:
      modelFormat: {name: xgboost}
      protocolVersion: v2
      resources: {limits: {memory: %s}}
`, min, memory)
}

const irisV1 = `{"instances":[[5.1,3.5,1.4,0.2]]}`

// answersAs waits until a model answers with a status, and says so.
func (n *node) answersAs(model, host string, status int, says string) {
	n.t.Helper()
	var header []string
	if host != "" {
		header = []string{"Host", host}
	}
	eventually(n.t, model+" answers", func() (bool, string) {
		a := n.post("/v1/models/"+model+":predict", irisV1, header...)
		return a.status == status && strings.Contains(a.body, says), a.String()
	})
}

// holds waits until plain's replicas are so many, and each has loaded these models alone.
func (n *node) holds(replicas int, models ...string) (all []listedReplica) {
	n.t.Helper()
	eventually(n.t, fmt.Sprintf("%d replicas with %q", replicas, models), func() (bool, string) {
		all = n.service("default/plain").Replicas
		ok := len(all) == replicas
		for _, r := range all {
			loaded := 0
			for _, g := range r.Guests {
				if g.Loaded {
					loaded++
				}
			}
			ok = ok && r.Phase == "Ready" && loaded == len(models)
			for _, m := range models {
				ok = ok && r.Guests[m].Loaded
			}
		}
		return ok, fmt.Sprintf("%+v", all)
	})
	return all
}

// TestTrainedModels: models are loaded into the running replicas of the
// InferenceService that they name, by name and at its host, and unloaded again.
func TestTrainedModels(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	dir := t.TempDir()
	iris := modelURI("iris.ubj")
	n.do("apply", "-f", write(t, dir, "all.yaml", holder(0, "512Mi")+trainedModel("one", iris, "64Mi")+trainedModel("two", iris, "64Mi")))
	// Asleep; a request for a model wakes the service, and there is no other replica.
	a := n.post("/v1/models/one:predict", irisV1)
	if a.status != http.StatusOK || !strings.Contains(a.body, `"predictions"`) {
		t.Fatalf("the first request: %s", a)
	}
	first := n.holds(1, "one", "two")[0]
	n.answersAs("two", "plain.default.localhost", http.StatusOK, `"predictions"`)
	n.answersAs("two", "two.default.localhost", http.StatusOK, `"predictions"`)
	n.answersAs("three", "plain.default.localhost", http.StatusNotFound, "three")
	if rs := n.service("default/one").Replicas; len(rs) != 1 || rs[0].ID != first.ID {
		t.Errorf("one has replicas of its own: %+v", rs)
	}
	contains(t, n.do("describe", "one"), "is loaded into the replicas of plain", "IsMMSPredictor", "MemoryResourceAvailable")
	contains(t, n.do("explain", "one"), "is loaded into the replicas of plain, which run on roundhouse-xgboost")

	// One more is loaded by the same process; one that is no model says why, and holds
	// up nobody; one too large is refused.
	broken := write(t, dir, "broken.ubj", "no model")
	n.do("apply", "-f", write(t, dir, "more.yaml", strings.TrimPrefix(trainedModel("bad", "file://"+broken, "64Mi"), "---\n")+
		trainedModel("three", iris, "64Mi")+trainedModel("wide", iris, "300Mi")))
	n.answersAs("three", "", http.StatusOK, `"predictions"`)
	n.answersAs("bad", "", http.StatusServiceUnavailable, "broken.ubj")
	n.answersAs("wide", "", http.StatusServiceUnavailable, "declares 300 MiB")
	for name, says := range map[string]string{"bad": "ModelLoadFailed", "wide": "MemoryResourceNotAvailable"} {
		contains(t, n.do("describe", name), says)
	}
	if now := n.holds(1, "one", "two", "three")[0]; now.PID != first.PID {
		t.Errorf("the process was started anew: %d, then %d", first.PID, now.PID)
	}

	// A process that is started anew, and a replica that is added, load all again.
	if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.answersAs("three", "", http.StatusOK, `"predictions"`)
	if now := n.holds(1, "one", "two", "three")[0]; now.PID == first.PID {
		t.Error("the process was not started anew")
	}
	n.do("apply", "-f", write(t, dir, "plain.yaml", holder(2, "512Mi")))
	n.holds(2, "one", "two", "three")

	// The next owner finds what they have loaded.
	before := n.holds(2, "one", "two", "three")
	n.signal(syscall.SIGKILL)
	n.up()
	n.answersAs("two", "", http.StatusOK, `"predictions"`)
	for _, r := range n.holds(2, "one", "two", "three") {
		if r.PID != before[0].PID && r.PID != before[1].PID {
			t.Errorf("%s was not adopted", r.ID)
		}
	}

	// What is deleted is unloaded, and its folder goes.
	n.do("delete", "trainedmodel", "two")
	n.holds(2, "one", "three", "wide") // which has the room now
	n.answersAs("wide", "", http.StatusOK, `"predictions"`)
	n.answersAs("two", "plain.default.localhost", http.StatusNotFound, "two")
	contains(t, n.do("describe", "plain"), "one, in 2 of 2 replicas", "bad, in 0 of 2 replicas: ")
	found, err := filepath.Glob(filepath.Join(n.dir, "processes", "*", "*", "two"))
	if err != nil || len(found) > 0 {
		t.Errorf("left behind: %q, %v", found, err)
	}

	// One that another service is named for leaves at once, without a request.
	moved := strings.TrimPrefix(trainedModel("three", iris, "64Mi"), "---\n")
	n.do("apply", "-f", write(t, dir, "moved.yaml", strings.Replace(moved, "inferenceService: plain", "inferenceService: nobody", 1)))
	n.holds(2, "one", "wide")

	// A service that serves a model of its own loads no other: the rest gets replicas.
	n.do("apply", "-f", write(t, dir, "own.yaml", strings.Replace(holder(0, "512Mi"), "modelFormat:", `storageUri: "`+iris+`"
      modelFormat:`, 1)))
	eventually(t, "one has replicas of its own", func() (bool, string) {
		a := n.post("/v1/models/one:predict", irisV1)
		rs := n.service("default/one").Replicas
		return a.status == http.StatusOK && len(rs) == 1 && strings.HasPrefix(rs[0].ID, "one-"), fmt.Sprintf("%s %+v", a, rs)
	})
	contains(t, n.do("explain", "one"), "has replicas of its own: plain serves a model of its own")
	contains(t, n.do("describe", "one"), "IsNotMMSPredictor")
}
