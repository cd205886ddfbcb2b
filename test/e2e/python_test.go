package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// sklearnManifest is a KServe service of a scikit-learn model, served with an
// interpreter.
func sklearnManifest(name, model, interpreter string) string {
	return `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: ` + name + `}
spec:
  predictor:
    minReplicas: 1
    model:
      modelFormat: {name: sklearn}
      storageUri: "file://` + model + `"
      env: [{name: ROUNDHOUSE_PYTHON, value: "` + interpreter + `"}]
`
}

// TestSklearnLacking: an interpreter without the packages is one status line
// with the line that installs them, and so is a request's answer.
func TestSklearnLacking(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	if out, err := exec.Command("python3", "-m", "venv", "--without-pip", filepath.Join(folder, "bare")).CombinedOutput(); err != nil {
		t.Skipf("python3 makes no environments: %v: %s", err, out)
	}
	interpreter := filepath.Join(folder, "bare", "bin", "python")
	model := write(t, folder, "model.joblib", "no model either")
	n := startNode(t)
	matches(t, n.do("apply", "-f", write(t, folder, "sklearn.yaml", sklearnManifest("lacking", model, interpreter))), `service default/lacking created: on roundhouse-sklearn`)
	want := interpreter + " lacks packages that sklearn models need: " + interpreter + " -m pip install numpy pydantic scikit-learn"
	eventually(t, "the status says what to install", func() (bool, string) {
		status := n.status("lacking")
		return strings.Contains(status, want) && strings.Count(status, "\n") == 0, status
	})
	if a := n.post("/v1/models/lacking:predict", `{"instances":[[1,2,3,4]]}`); a.status != 503 || !strings.Contains(a.body, "pip install numpy pydantic scikit-learn") {
		t.Errorf("want 503 with the line that installs, got %s", a)
	}
}

// TestSklearn serves a model that scikit-learn trained, over both protocols,
// from KServe's new schema and the legacy one.
func TestSklearn(t *testing.T) {
	t.Parallel()
	interpreter := pythonWith(t, "numpy, pydantic, sklearn, joblib")
	folder := t.TempDir()
	model := filepath.Join(folder, "model.joblib")
	train := exec.Command(interpreter, "-c", `
import joblib, sys, sklearn.datasets, sklearn.linear_model
m = sklearn.linear_model.LogisticRegression(max_iter=500).fit(*sklearn.datasets.load_iris(return_X_y=True))
joblib.dump(m, sys.argv[1])`, model)
	if out, err := train.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n := startNode(t)
	legacy := strings.Replace(strings.Replace(sklearnManifest("legacy", folder, interpreter), "    model:\n", "    sklearn:\n", 1), "      modelFormat: {name: sklearn}\n", "", 1)
	out := n.do("apply", "-f", write(t, folder, "sklearn.yaml", sklearnManifest("flowers", model, interpreter)+"---\n"+legacy))
	matches(t, out, `service default/flowers created: on roundhouse-sklearn`)
	matches(t, out, `service default/legacy created: on kserve-sklearnserver`)
	for _, name := range []string{"flowers", "legacy"} {
		if a := n.post("/v1/models/"+name+":predict", `{"instances":[[5.1,3.5,1.4,0.2],[6.7,3.0,5.2,2.3]]}`); a.status != 200 || a.body != `{"predictions":[0,2]}` {
			t.Errorf("%s: %s", name, a)
		}
		if a := n.post("/v2/models/"+name+"/infer", irisTensor); a.status != 200 || !strings.Contains(a.body, `"name":"predict","shape":[1,1],"datatype":"INT64"`) {
			t.Errorf("%s: %s", name, a)
		}
	}
}

// pythonWith is an interpreter that imports modules; without one the test is
// skipped.
func pythonWith(t *testing.T, modules string) string {
	t.Helper()
	for _, name := range []string{os.Getenv("ROUNDHOUSE_PYTHON"), os.Getenv("ROUNDHOUSE_MLSERVER_PYTHON"), "python3"} {
		if path, err := exec.LookPath(name); err == nil && exec.Command(path, "-c", "import "+modules).Run() == nil {
			return path
		}
	}
	t.Skipf("no Python has %s; set ROUNDHOUSE_PYTHON", modules)
	return ""
}
