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

// bare is an interpreter without packages.
func bare(t *testing.T) (interpreter, packages string) {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "bare")
	if out, err := exec.Command("python3", "-m", "venv", "--without-pip", folder).CombinedOutput(); err != nil {
		t.Skipf("python3 makes no environments: %v: %s", err, out)
	}
	found, err := filepath.Glob(filepath.Join(folder, "lib", "python*", "site-packages"))
	if err != nil || len(found) != 1 {
		t.Fatalf("packages of %s: %v, %v", folder, found, err)
	}
	return filepath.Join(folder, "bin", "python"), found[0]
}

// TestSklearnLacking: of an interpreter without the packages, apply, the
// status, explain and a request's answer have the line that installs them. Once
// they are there, the service has its runtime.
func TestSklearnLacking(t *testing.T) {
	t.Parallel()
	interpreter, packages := bare(t)
	folder := t.TempDir()
	model := write(t, folder, "model.joblib", "no model either")
	n := startNode(t)
	want := "roundhouse-sklearn could serve it (and 1 more), but " + interpreter + " lacks numpy, pydantic, sklearn, joblib: " + interpreter + " -m pip install numpy pydantic scikit-learn"
	contains(t, n.do("apply", "-f", write(t, folder, "sklearn.yaml", sklearnManifest("lacking", model, interpreter))), "service default/lacking created: not ready: "+want)
	if status := n.status("lacking"); !strings.Contains(status, want) || strings.Count(status, "\n") != 0 {
		t.Errorf("status: %s", status)
	}
	contains(t, n.do("explain", "lacking"), "FAIL  host         "+interpreter+" lacks numpy")
	if a := n.post("/v1/models/lacking:predict", `{"instances":[[1,2,3,4]]}`); a.status != 503 || !strings.Contains(a.body, "pip install numpy pydantic scikit-learn") {
		t.Errorf("want 503 with the line that installs, got %s", a)
	}
	for _, module := range []string{"numpy", "pydantic", "sklearn", "joblib"} {
		write(t, packages, module+".py", "raise ImportError('not the real one')")
	}
	eventually(t, "the runtime is chosen", func() (bool, string) {
		name := n.service("default/lacking").Status.Runtime.Name
		return name == "roundhouse-sklearn", name + n.status("lacking")
	})
}

// TestModelBringsItsEnvironment: what a model's own environment holds, the
// machine's interpreter need not have; the model is loaded in that environment.
func TestModelBringsItsEnvironment(t *testing.T) {
	t.Parallel()
	interpreter, _ := bare(t)
	model := t.TempDir()
	write(t, model, "model.joblib", "no model")
	write(t, model, "model-settings.json", `{"implementation": "mlserver_sklearn.SKLearnModel", "parameters": {"uri": "./model.joblib", "environment_tarball": "./environment.tar.gz"}}`)
	if out, err := exec.Command("tar", "-czf", filepath.Join(model, "environment.tar.gz"), "-C", filepath.Dir(filepath.Dir(interpreter)), "--exclude=lib64", "bin/python", "pyvenv.cfg", "lib").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n := startNode(t)
	n.do("apply", "-f", write(t, t.TempDir(), "sklearn.yaml", sklearnManifest("packed", model, interpreter)))
	if chosen := n.service("default/packed").Status.Runtime.Name; chosen != "roundhouse-sklearn" {
		t.Errorf("runtime %q: %s", chosen, n.status("packed"))
	}
	eventually(t, "the model is loaded in its environment", func() (bool, string) {
		out := n.do("logs", "packed")
		return strings.Contains(out, "unpacking the environment"), out
	})
}

// TestSelectionFallsToWhatCanRun: of two runtimes of a format the one comes
// first whose interpreter lacks its packages; the other, whose program is
// there, is chosen.
func TestSelectionFallsToWhatCanRun(t *testing.T) {
	t.Parallel()
	interpreter, _ := bare(t)
	folder := t.TempDir()
	write(t, folder, "model.joblib", "no model")
	if err := os.Symlink("/bin/true", filepath.Join(folder, "mlserver")); err != nil {
		t.Fatal(err)
	}
	n := newNode(t)
	n.env = []string{"PATH=" + folder + ":" + filepath.Dir(interpreter), "ROUNDHOUSE_PYTHON=" + interpreter}
	manifest := strings.Replace(sklearnManifest("flowers", folder, interpreter), "    model:\n", "    model:\n      protocolVersion: v2\n", 1)
	out := n.do("explain", "-f", write(t, folder, "sklearn.yaml", manifest), "--all")
	contains(t, out, "chosen    kserve-mlserver", "FAIL  host         "+interpreter+" lacks numpy")
}

// TestModuleOfACommandIsAskedFor: a runtime that is started as a Python module
// is not chosen where the interpreter has no such module.
func TestModuleOfACommandIsAskedFor(t *testing.T) {
	t.Parallel()
	interpreter, packages := bare(t)
	folder := t.TempDir()
	n := newNode(t)
	n.env = []string{"PATH=" + filepath.Dir(interpreter)}
	manifest := write(t, folder, "engine.yaml", `apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {name: engine}
spec:
  supportedModelFormats: [{name: acme, version: "1", autoSelect: true}]
  containers:
    - name: kserve-container
      image: example.com/engine:1
      command: [python3, -m, acme.server]
      args: [--port, "8080", --model, /mnt/models]
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: acme}
spec:
  predictor: {model: {modelFormat: {name: acme, version: "1"}, storageUri: "file://`+folder+`"}}
`)
	contains(t, n.do("explain", "-f", manifest), "engine could serve it, but "+interpreter+"3 lacks acme")
	if err := os.Mkdir(filepath.Join(packages, "acme"), 0o755); err != nil {
		t.Fatal(err)
	}
	contains(t, n.do("explain", "-f", manifest), "chosen    engine")
}

// TestServesForMLServer: the guide's manifests that mean KServe's MLServer
// runtime are served where MLServer is not installed, and it is said by what.
func TestServesForMLServer(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.env = []string{"PATH=/usr/bin:/bin"} // no mlserver there
	n.up()
	folder := t.TempDir()
	manifest := func(name, predictor string) string {
		return "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: " + name + "}\nspec:\n  predictor:\n    minReplicas: 0\n" + predictor
	}
	n.do("apply", "-f", write(t, folder, "mlserver.yaml", manifest("legacy", `    xgboost:
      protocolVersion: v2
      storageUri: "`+modelURI("iris.ubj")+`"
`)+"---\n"+manifest("named", `    model:
      modelFormat: {name: xgboost}
      protocolVersion: v2
      runtime: kserve-mlserver
      storageUri: "`+modelURI("iris.ubj")+`"
`)))
	for _, name := range []string{"legacy", "named"} {
		if a := n.post("/v2/models/"+name+"/infer", irisTensor); a.status != 200 || !strings.Contains(a.body, `"predict"`) {
			t.Errorf("%s: %s", name, a)
		}
		contains(t, n.do("describe", name), "Runtime:   kserve-mlserver (catalog): named by the service; runs roundhouse in place of mlserver, which is not on PATH")
	}
}

// TestCredentialsStayWithUp: replicas do not see with what up fetches models,
// unless their manifest asks.
func TestCredentialsStayWithUp(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	secrets := []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN", "AZURE_STORAGE_KEY", "models.example.com-headers"}
	for _, name := range secrets {
		n.env = append(n.env, name+"=secret-"+name)
	}
	n.env = append(n.env, "PLAIN=as it was")
	n.up()
	folder := t.TempDir()
	asks := strings.Replace(irisManifest("asks", "{minReplicas: 1}"), "spec:\n", "spec:\n  engine:\n    env: [{name: HF_TOKEN}, {name: AWS_ACCESS_KEY_ID, value: its own}]\n", 1)
	n.do("apply", "--wait", "-f", write(t, folder, "iris.yaml", irisManifest("plain", "{minReplicas: 1}")+"---\n"+asks))
	for _, name := range secrets {
		if v := n.variable("plain", name); v != "" {
			t.Errorf("a replica sees %s=%s", name, v)
		}
	}
	for name, want := range map[string]string{"HF_TOKEN": "secret-HF_TOKEN", "AWS_ACCESS_KEY_ID": "its own", "AWS_SECRET_ACCESS_KEY": "", "PLAIN": "as it was"} {
		if v := n.variable("asks", name); v != want {
			t.Errorf("%s=%q in a replica whose manifest asks, want %q", name, v, want)
		}
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
