package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/modelserver"
)

// servePython is an interpreter with numpy, pydantic and more packages; without
// one the test is skipped.
func servePython(t *testing.T, packages ...string) string {
	t.Helper()
	var lacks string
	for _, name := range []string{os.Getenv("ROUNDHOUSE_PYTHON"), os.Getenv("ROUNDHOUSE_MLSERVER_PYTHON"), "python3"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		out, err := exec.Command(path, "-c", "import "+strings.Join(append(packages, "numpy", "pydantic"), ", ")).CombinedOutput()
		if err == nil {
			return path
		}
		lacks = string(out)
	}
	t.Skipf("no Python with %v, numpy and pydantic; set ROUNDHOUSE_PYTHON: %s", packages, lacks)
	return ""
}

// files writes a repository.
func files(t *testing.T, list map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range list {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// call makes a request and returns the status and the answer.
func call(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

const customModel = `
import mlserver, shared
from mlserver import MLModel, types
from mlserver.handlers import custom_handler
from mlserver.logging import logger

class Model(MLModel):
    async def load(self):
        mlserver.register("rows_seen", "Rows of a batch")
        self.requests = 0
        return True

    async def predict(self, payload):
        self.requests += 1
        x = payload.inputs[0]
        mlserver.log(rows_seen=x.shape[0])
        logger.warning("predicting %d rows", x.shape[0])
        if 13 in x.data:
            raise ValueError("13 is not served")
        kept = x.parameters.model_extra if x.parameters else None
        output = types.ResponseOutput(name="y", shape=x.shape, datatype=x.datatype, data=[shared.FACTOR * v for v in x.data])
        output.parameters = types.Parameters(seen=(kept or {}).get("custom-param"))
        return types.InferenceResponse(model_name=self.name, outputs=[output])

    async def predict_stream(self, payloads):
        async for payload in payloads:
            for n in range(3):
                yield types.InferenceResponse(model_name=self.name, outputs=[types.ResponseOutput(name="n", shape=[1], datatype="INT64", data=[n])])

    @custom_handler(rest_path="/requests/{unit}", rest_method="GET")
    async def count(self, unit: str) -> str:
        return f"{self.requests} {unit}"
`

// TestServeCustom serves MLServer code unchanged: inference in batches, a
// stream, a route of its own, metrics, logs, and modules the models share.
func TestServeCustom(t *testing.T) {
	interpreter := servePython(t)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	root := files(t, map[string]string{
		"settings.json":                `{"parallel_workers":1}`,
		"shared.py":                    "FACTOR = 2\n",
		"custom/model-settings.json":   `{"implementation":"models.Model","max_batch_size":16,"max_batch_time":0.2}`,
		"custom/models.py":             customModel,
		"absent/model-settings.json":   `{"implementation":"nowhere.Model"}`,
		"unlisted/model-settings.json": `{"parameters":{"format":"custom"}}`,
	})
	url, stop := startServe(t, root, "--python", interpreter)
	row := func(x, parameters string) string {
		return `{"id":"r` + x + `","inputs":[{"name":"x","shape":[1],"datatype":"INT64","parameters":{` + parameters + `},"data":[` + x + `]}]}`
	}
	want := `{"model_name":"custom","id":"r4","parameters":{},"outputs":[{"name":"y","shape":[1],"datatype":"INT64","parameters":{"seen":"value"},"data":[8]}]}`
	if got := askServe(t, url+"/v2/models/custom/infer", row("4", `"custom-param":"value"`)); got != want {
		t.Errorf("infer: %s\nwant %s", got, want)
	}
	var clients sync.WaitGroup
	for _, x := range []string{"1", "2", "13", "3", "5", "6", "7", "8"} {
		clients.Go(func() {
			status, got := call(t, "POST", url+"/v2/models/custom/infer", row(x, `"custom-param":"p`+x+`"`))
			if x == "13" && (status != 500 || !strings.Contains(got, "13 is not served")) || x != "13" && (status != 200 || !strings.Contains(got, `"seen":"p`+x+`"`) || !strings.Contains(got, `"id":"r`+x+`"`)) {
				t.Errorf("%s: %d %s", x, status, got)
			}
		})
	}
	clients.Wait()
	for _, c := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"POST", "/v2/models/custom/infer_stream", row("1", ""), 200, `"data":[2]}]}`},
		{"GET", "/requests/done", "", 200, " done"},
		{"GET", "/v2/models/custom/ready", "", 200, `"ready":true`},
		{"GET", "/metrics", "", 200, `rows_seen_bucket{model_name="custom",model_version="",model="custom",version="",le="1"}`},
		{"GET", "/metrics", "", 200, `parallel_request_queue_bucket{le="+Inf"} `},
		{"GET", "/metrics", "", 200, `batch_request_queue_bucket{model_name="custom",model_version="",le="+Inf"} `},
		{"POST", "/v2/repository/index", "", 200, `{"name":"absent","state":"UNAVAILABLE","reason":"implementation 'nowhere.Model': there is no module 'nowhere'`},
		{"POST", "/v2/repository/index", "", 200, `{"name":"unlisted","state":"UNAVAILABLE","reason":"model \"unlisted\": name the class that serves it`},
		{"POST", "/v2/repository/models/custom/unload", "", 200, ""},
		{"GET", "/requests/done", "", 404, "error"},
	} {
		if status, got := call(t, c.method, url+c.path, c.body); status != c.status || !strings.Contains(got, c.says) {
			t.Errorf("%s %s: %d %s\nwant %d with %s", c.method, c.path, status, got, c.status, c.says)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

const countingModel = `
import os
from mlserver import MLModel, types
from mlserver.metrics import REGISTRY
from prometheus_client import Counter, Gauge, Histogram, Summary

CALLS = Counter("my_calls", "Calls of mine.", ["kind"])
SIZE = Gauge("my_size", "Of each worker.")
SHARED = Gauge("my_shared", "Of all workers.", multiprocess_mode="livesum")
SECONDS = Histogram("my_seconds", "A histogram.", buckets=(1, 2))
PAIRS = Summary("my_pairs", "A summary.", registry=REGISTRY)
TAKEN = Counter("model_infer_request_success", "The server's own.")

class Model(MLModel):
    async def predict(self, payload):
        CALLS.labels('a"b').inc()
        SIZE.set(3)
        SHARED.set(2)
        SECONDS.observe(1.5)
        PAIRS.observe(2)
        TAKEN.inc(1000)
        if payload.inputs[0].data[0] == 13:
            os._exit(1)
        pid = types.ResponseOutput(name="pid", shape=[1], datatype="INT64", data=[os.getpid()])
        return types.InferenceResponse(model_name=self.name, outputs=[pid])
`

// TestServeShowsPrometheusClientsMetrics: what models' code keeps with
// prometheus_client is at the metrics' path, of all workers together as in its
// multiprocess mode, and does not fall when a worker ends.
func TestServeShowsPrometheusClientsMetrics(t *testing.T) {
	interpreter := servePython(t, "prometheus_client")
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	url, stop := startServe(t, files(t, map[string]string{
		"settings.json":              `{"parallel_workers":2}`,
		"counts/model-settings.json": `{"implementation":"models.Model"}`,
		"counts/models.py":           countingModel,
	}), "--python", interpreter)
	ask := func(x int) string {
		return askServe(t, url+"/v2/models/counts/infer", fmt.Sprintf(`{"inputs":[{"name":"x","shape":[1],"datatype":"INT64","data":[%d]}]}`, x))
	}
	pids := map[string]bool{}
	asked := 0
	for ; len(pids) < 2 && asked < 100; asked++ {
		if text := ask(1); strings.Contains(text, `"data":[`) {
			pids[strings.TrimSuffix(text[strings.LastIndex(text, "[")+1:], "]}]}")] = true
		}
	}
	want := []string{
		"# HELP my_calls_total Calls of mine.\n# TYPE my_calls_total counter\n" + `my_calls_total{kind="a\"b"} ` + fmt.Sprint(asked) + "\n",
		"my_shared 4\n",
		"# TYPE my_seconds histogram\n" + `my_seconds_bucket{le="1.0"} 0` + "\n" + `my_seconds_bucket{le="2.0"} ` + fmt.Sprint(asked) + "\n",
		fmt.Sprintf("my_seconds_sum %v\n", 1.5*float64(asked)),
		fmt.Sprintf("my_pairs_count %d\nmy_pairs_sum %d\n", asked, 2*asked),
		fmt.Sprintf(`model_infer_request_success_total{model_name="counts",model_version="",model="counts",version=""} %d`+"\n", asked),
	}
	for pid := range pids {
		want = append(want, `my_size{pid="`+pid+`"} 3`+"\n")
	}
	text := metricsWith(t, url, want...)
	if strings.Contains(text, "model_infer_request_success_total 1000") || strings.Contains(text, "_created") || strings.Contains(text, "python_info") {
		t.Errorf("names of the server's, or of Python's, are shown:\n%s", text)
	}
	if text := ask(13); !strings.Contains(text, "died while answering") {
		t.Fatalf("the worker lives: %s", text)
	}
	// What a worker counted and could not tell is lost with it.
	text = metricsWith(t, url, "my_shared 2\n")
	counted := 0
	if _, err := fmt.Sscanf(text[strings.Index(text, `my_calls_total{`):], `my_calls_total{kind="a\"b"} %d`, &counted); err != nil || counted < asked {
		t.Errorf("%d calls of %d are left of a worker that ended, %v", counted, asked, err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// metricsWith waits until the metrics have all of want, and returns them.
func metricsWith(t *testing.T, url string, want ...string) string {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		_, text := call(t, "GET", url+"/metrics", "")
		lacks := slices.IndexFunc(want, func(w string) bool { return !strings.Contains(text, w) })
		if lacks < 0 {
			return text
		}
		if time.Now().After(deadline) {
			t.Fatalf("no %s in\n%s", want[lacks], text)
		}
	}
}

// TestServeSklearn serves a scikit-learn model from its file, its folder, and
// by the names of MLServer.
func TestServeSklearn(t *testing.T) {
	interpreter := servePython(t, "sklearn", "joblib")
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	root := files(t, map[string]string{
		"named/model-settings.json":  `{"implementation":"mlserver_sklearn.SKLearnModel","parameters":{"uri":"../flowers.joblib","version":"v1"}}`,
		"format/model-settings.json": `{"parameters":{"format":"sklearn","uri":"../alone/model.joblib"}}`,
		"alone/README.md":            "",
	})
	train := exec.Command(interpreter, "-c", `
import joblib, sklearn.datasets, sklearn.linear_model
m = sklearn.linear_model.LogisticRegression(max_iter=500).fit(*sklearn.datasets.load_iris(return_X_y=True))
joblib.dump(m, "flowers.joblib"), joblib.dump(m, "alone/model.joblib")`)
	train.Dir = root
	if out, err := train.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	rows := `{"id":"1","inputs":[{"name":"x","shape":[2,4],"datatype":"FP32","data":[5.1,3.5,1.4,0.2,6.7,3.0,5.2,2.3]}]}`
	const says = `"outputs":[{"name":"predict","shape":[2,1],"datatype":"INT64"`
	for _, c := range []struct {
		path  string
		names []string
	}{
		{root, []string{"named", "format"}},
		{filepath.Join(root, "alone"), []string{"alone"}},
		{filepath.Join(root, "flowers.joblib"), []string{"flowers"}},
	} {
		url, stop := startServe(t, c.path, "--python", interpreter)
		for _, name := range c.names {
			if got := askServe(t, url+"/v2/models/"+name+"/infer", rows); !strings.Contains(got, says) || !strings.HasSuffix(got, `"data":[0,2]}]}`) {
				t.Errorf("%s: %s", name, got)
			}
			if got := askServe(t, url+"/v1/models/"+name+":predict", `{"instances":[[5.1,3.5,1.4,0.2]]}`); got != `{"predictions":[0]}` {
				t.Errorf("%s: %s", name, got)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}

// TestServeLacking: what is missing is said in one line that installs it all.
func TestServeLacking(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	empty := filepath.Join(t.TempDir(), "venv")
	if out, err := exec.Command("python3", "-m", "venv", "--without-pip", empty).CombinedOutput(); err != nil {
		t.Skipf("no python3 that makes environments: %v: %s", err, out)
	}
	interpreter := filepath.Join(empty, "bin", "python")
	root := files(t, map[string]string{"model.joblib": "x", "model.bin": "y"})
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{root, "--python", interpreter}, interpreter + " lacks packages that sklearn models need: " + interpreter + " -m pip install numpy pydantic scikit-learn"},
		{[]string{filepath.Join(root, "model.bin"), "--format", "catboost", "--python", interpreter}, "-m pip install numpy pydantic catboost"},
		{[]string{root, "--format", "huggingface", "--python", interpreter}, "-m pip install numpy pydantic torch transformers"},
		{[]string{root, "--python", "no-such-python"}, `no Python interpreter "no-such-python"`},
	} {
		cmd := newServerCommand()
		cmd.SetErr(io.Discard)
		cmd.SetOut(io.Discard)
		cmd.SetArgs(append(c.args, "--http-port", "0"))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: error %v does not say %q in a line", c.args, err, c.says)
		}
	}
}

// TestServeNativeAlone: without a model that needs it nothing of Python is
// started or written.
func TestServeNativeAlone(t *testing.T) {
	cache, temporary := t.TempDir(), t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("TMPDIR", temporary)
	url, stop := startServe(t, filepath.Join(serveModels, "iris.ubj"), "--name", "iris", "--python", "no-such-python")
	if got := askServe(t, url+"/v2/models/iris/infer", serveRow); !strings.Contains(got, `"outputs"`) {
		t.Errorf("infer: %s", got)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	for _, dir := range []string{cache, temporary} {
		if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
			t.Errorf("%s: %v (%v)", dir, list, err)
		}
	}
}

// TestPackageCache: without a cache folder of the user's own there is one of
// the process's.
func TestPackageCache(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	t.Setenv("XDG_CACHE_HOME", "/proc/none")
	dir, cleanup, err := packageCache()
	if err != nil || filepath.Dir(dir) != temporary {
		t.Errorf("%s (%v)", dir, err)
	}
	cleanup()
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is left", dir)
	}
	own := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", own)
	if dir, _, err := packageCache(); err != nil || dir != filepath.Join(own, "roundhouse") {
		t.Errorf("%s (%v)", dir, err)
	}
}

// TestServeWorkers: as many workers as settings.json says, and what a model
// logs is in the log.
func TestServeWorkers(t *testing.T) {
	interpreter := servePython(t)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	root := files(t, map[string]string{
		"settings.json":              `{"parallel_workers":2,"use_structured_logging":true,"http_port":` + servePort(t) + `,"grpc_port":0,"metrics_port":0}`,
		"shared.py":                  "FACTOR = 1\n",
		"custom/models.py":           customModel,
		"custom/model-settings.json": `{"implementation":"models.Model"}`,
	})
	reader, writer := io.Pipe()
	cmd := newServerCommand()
	cmd.SetErr(writer)
	cmd.SetOut(io.Discard)
	port := servePort(t)
	cmd.SetArgs([]string{root, "--python", interpreter, "--http-port", port})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- cmd.ExecuteContext(ctx)
		_ = writer.Close()
	}()
	var log bytes.Buffer
	lines := bufio.NewScanner(io.TeeReader(reader, &log))
	wait := func(what string) {
		t.Helper()
		timer := time.AfterFunc(time.Minute, func() { _ = reader.CloseWithError(os.ErrDeadlineExceeded) })
		defer timer.Stop()
		for lines.Scan() {
			if strings.Contains(lines.Text(), what) {
				return
			}
		}
		t.Fatalf("no %q in the log: %v\n%s", what, lines.Err(), log.String())
	}
	wait(`"msg":"model loaded","model":"custom"`)
	if n := strings.Count(log.String(), `"msg":"worker started"`); n != 2 {
		t.Errorf("%d workers started", n)
	}
	go func() {
		_, _ = call(t, "POST", "http://127.0.0.1:"+port+"/v2/models/custom/infer", `{"inputs":[{"name":"x","shape":[1],"datatype":"INT64","data":[1]}]}`)
	}()
	wait(`"msg":"predicting 1 rows"`)
	go func() { _, _ = io.Copy(io.Discard, reader) }()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestExpectedModels: those that Python's workers serve are expected there.
func TestExpectedModels(t *testing.T) {
	w := &workers{formats: pythonFormats}
	for _, implementation := range []string{"mlserver_sklearn.SKLearnModel", "roundhouse.runtimes.sklearn.SKLearn", "mlserver_xgboost.XGBoostModel", "models.Mine", ""} {
		w.expected = append(w.expected, modelserver.Entry{Settings: modelserver.Settings{Name: "m", Implementation: implementation, Source: "/models/m/model-settings.json"}})
	}
	w.expected = append(w.expected, modelserver.Entry{Settings: modelserver.Settings{Implementation: "models.Bad"}, Err: errors.New("bad")})
	var got []string
	for _, s := range w.expectedModels() {
		var document struct{ Implementation string }
		if err := json.Unmarshal(s.Document, &document); err != nil || s.Folder != "/models/m" {
			t.Fatal(s, err)
		}
		got = append(got, document.Implementation)
	}
	if want := []string{"mlserver_sklearn.SKLearnModel", "roundhouse.runtimes.sklearn.SKLearn", "models.Mine"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
