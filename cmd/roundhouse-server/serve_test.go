package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/edge/engine/trees"
	"roundhouse.dev/roundhouse/internal/edge/modelserver"
	"roundhouse.dev/roundhouse/test/loopback"
)

const serveModels = "../../examples/quickstart/models"

// servePort is a port that `serve` alone gets.
func servePort(t *testing.T) string {
	t.Helper()
	_, port, err := net.SplitHostPort(loopback.Reserve(t))
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// askServe asks until the server answers at all, and returns the answer.
func askServe(t *testing.T, url, body string) string {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		response, err := http.Post(url, "application/json", strings.NewReader(body))
		if err == nil {
			text, err := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			if answer := string(text); !strings.Contains(answer, "LOADING") && !strings.Contains(answer, "not found") {
				return answer
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: no answer: %v", url, err)
		}
	}
}

// startServe runs `serve` with arguments and a port, and returns its URL and how to
// stop it and read its end.
func startServe(t *testing.T, args ...string) (url string, stop func() error) {
	t.Helper()
	port := servePort(t)
	cmd := newServerCommand()
	cmd.SetErr(io.Discard)
	cmd.SetOut(io.Discard)
	cmd.SetArgs(append(args, "--http-port", port))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(ctx) }()
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-done
	}
	t.Cleanup(func() { _ = stop() })
	return "http://127.0.0.1:" + port, stop
}

const serveRow = `{"id":"1","inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[5.1,3.5,1.4,0.2]}]}`

func TestServeFile(t *testing.T) {
	url, stop := startServe(t, filepath.Join(serveModels, "iris.ubj"), "--name", "flowers", "--format", "xgboost")
	if got := askServe(t, url+"/v2/models/flowers/infer", serveRow); !strings.Contains(got, `"name":"predict","shape":[1,3],"datatype":"FP32","data":[0.9918`) {
		t.Errorf("infer: %s", got)
	}
	if got := askServe(t, url+"/v1/models/flowers:predict", `{"instances":[[5.1,3.5,1.4,0.2]]}`); !strings.HasPrefix(got, `{"predictions":[[0.9918`) {
		t.Errorf("predict: %s", got)
	}
	if err := stop(); err != nil {
		t.Errorf("end: %v", err)
	}
}

// TestServeFolder serves a repository as MLServer reads it, with its
// conventions.
func TestServeFolder(t *testing.T) {
	models, err := filepath.Abs(serveModels)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for name, text := range map[string]string{
		"iris/model-settings.json":   `{"implementation":"mlserver_xgboost.XGBoostModel","parameters":{"uri":"` + models + `/iris.ubj","version":"v0.1.0"}}`,
		"digits/model-settings.json": `{"implementation":"mlserver_lightgbm.LightGBMModel","parameters":{"uri":"` + models + `/digits.txt"}}`,
		"bad/model-settings.json":    `{"implementation":"mlserver_xgboost.XGBoostModel","parameters":{"uri":"none.ubj"}}`,
		"settings.json":              `{"server_name":"test","http_port":1}`,
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	url, _ := startServe(t, root)
	want := `{"model_name":"iris","model_version":"v0.1.0","id":"1","parameters":{},"outputs":[{"name":"predict","shape":[1,3],"datatype":"FP32","parameters":{"content_type":"np"},"data":[0.99185115,0.0054369653,0.0027118719]}]}`
	if got := askServe(t, url+"/v2/models/iris/infer", serveRow); got != want {
		t.Errorf("infer: %s\nwant %s", got, want)
	}
	row := `{"instances":[[` + strings.Repeat("0,", 63) + `0]]}`
	if got := askServe(t, url+"/v1/models/digits:predict", row); !strings.HasPrefix(got, `{"predictions":[[`) || strings.Count(got, ",") != 9 {
		t.Errorf("digits: %s", got)
	}
	if got := askServe(t, url+"/v2/repository/index", "{}"); !strings.Contains(got, `{"name":"bad","state":"UNAVAILABLE","reason":"stat `) {
		t.Errorf("index: %s", got)
	}
}

// TestServeEnsemble: a graph of models of both native engines answers as they do: what
// XGBoost says of classes goes on to a linear model, and LightGBM gets the same rows. The
// numbers are those of the libraries themselves, which made the files.
func TestServeEnsemble(t *testing.T) {
	file := func(engine, name string) (data []byte) {
		t.Helper()
		data, err := os.ReadFile(filepath.Join("../../internal/edge/engine", engine, "testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	type expected struct {
		Rows    [][]float32 `json:"rows"`
		Predict [][]float64 `json:"predict"`
	}
	var xgboost, lightgbm expected
	for name, to := range map[string]*expected{"xgboost/softprob": &xgboost, "lightgbm/multiclass": &lightgbm} {
		engine, name, _ := strings.Cut(name, "/")
		if err := json.Unmarshal(file(engine, name+".case.json"), to); err != nil {
			t.Fatal(err)
		}
	}
	root := t.TempDir()
	for name, text := range map[string]string{
		"classes/model-settings.json": `{"implementation":"mlserver_xgboost.XGBoostModel","parameters":{"uri":"model.json"}}`,
		"classes/model.json":          string(file("xgboost", "softprob.json")),
		"score/model-settings.json":   `{"implementation":"mlserver_xgboost.XGBoostModel","parameters":{"uri":"model.json"}}`,
		"score/model.json": `{"version":[3,2,0],"learner":{"attributes":{},"gradient_booster":{"name":"gblinear","model":{"weights":[1,10,100,0.5]}},
			"learner_model_param":{"base_score":"2E0","num_class":"0","num_feature":"3"},"objective":{"name":"reg:squarederror"}}}`,
		"forest/model-settings.json": `{"implementation":"mlserver_lightgbm.LightGBMModel","parameters":{"uri":"model.txt"}}`,
		"forest/model.txt":           string(file("lightgbm", "multiclass.txt")),
		"flowers/config.pbtxt": `platform: "ensemble"
input [ { name: "ROWS" data_type: TYPE_FP32 dims: [ -1, 4 ] }, { name: "WIDE" data_type: TYPE_FP64 dims: [ -1, 4 ] } ]
output [ { name: "SCORE" data_type: TYPE_FP32 dims: [ -1, 1 ] }, { name: "FOREST" data_type: TYPE_FP64 dims: [ -1, 3 ] } ]
ensemble_scheduling {
  step [
    { model_name: "score" input_map { key: "input-0" value: "CLASSES" } output_map { key: "predict" value: "SCORE" } },
    { model_name: "classes" input_map { key: "input-0" value: "ROWS" } output_map { key: "predict" value: "CLASSES" } },
    { model_name: "forest" input_map { key: "input-0" value: "WIDE" } output_map { key: "predict" value: "FOREST" } }
  ]
}
`,
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	url, _ := startServe(t, root)
	n := len(xgboost.Rows)
	rows, err := json.Marshal(xgboost.Rows)
	if err != nil {
		t.Fatal(err)
	}
	text := askServe(t, url+"/v2/models/flowers/infer", fmt.Sprintf(`{"inputs":[{"name":"ROWS","shape":[%d,4],"datatype":"FP32","data":%s},
		{"name":"WIDE","shape":[%[1]d,4],"datatype":"FP64","data":%[2]s}]}`, n, rows))
	var answer struct {
		Outputs []struct {
			Name  string    `json:"name"`
			Shape []int     `json:"shape"`
			Data  []float64 `json:"data"`
		} `json:"outputs"`
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil || len(answer.Outputs) != 2 {
		t.Fatalf("%v: %s", err, text)
	}
	score, forest := answer.Outputs[0], answer.Outputs[1]
	if score.Name != "SCORE" || !slices.Equal(score.Shape, []int{n, 1}) || forest.Name != "FOREST" || !slices.Equal(forest.Shape, []int{n, 3}) {
		t.Fatalf("%s", text)
	}
	for i := range n {
		p := xgboost.Predict[i]
		if want := p[0] + 10*p[1] + 100*p[2] + 0.5 + 2; math.Abs(score.Data[i]-want) > 1e-4 {
			t.Errorf("row %d: the score is %v, want %v", i, score.Data[i], want)
		}
		for j, want := range lightgbm.Predict[i] {
			if got := forest.Data[3*i+j]; math.Abs(got-want) > 1e-6 {
				t.Errorf("row %d: LightGBM says %v of class %d, want %v", i, got, j, want)
			}
		}
	}
}

// TestServeXGBoostAsItsServersDo gives a model of each kind to MLServer's class
// and to none, as KServe's server has it. MLServer's answers with classes only
// where an XGBClassifier saved the file; KServe's is Booster.predict's always.
func TestServeXGBoostAsItsServersDo(t *testing.T) {
	const values, labels = "FP32", "INT64"
	for _, test := range []struct {
		objective, estimator string
		margins              int
		mlserver, kserve     string // the datatype and shape of predict, for two rows
	}{
		{"binary:logistic", "", 1, values + "[2 1]", values + "[2]"},
		{"binary:logitraw", "", 1, values + "[2 1]", values + "[2]"},
		{"multi:softprob", "", 3, values + "[2 3]", values + "[2 3]"},
		{"multi:softmax", "", 3, values + "[2 1]", values + "[2]"},
		{"reg:squarederror", "", 1, values + "[2 1]", values + "[2]"},
		{"reg:logistic", "regressor", 1, values + "[2 1]", values + "[2]"},
		{"binary:logistic", "regressor", 1, values + "[2 1]", values + "[2]"},
		{"binary:logistic", "classifier", 1, labels + "[2 1]", values + "[2]"},
		{"multi:softprob", "classifier", 3, labels + "[2 1]", values + "[2 3]"},
	} {
		file := filepath.Join(t.TempDir(), "model.json")
		if err := os.WriteFile(file, linearXGBoost(t, test.objective, test.estimator, test.margins), 0o600); err != nil {
			t.Fatal(err)
		}
		for implementation, want := range map[string]string{trees.MLServerXGBoost: test.mlserver, "": test.kserve} {
			s := modelserver.Settings{Name: "m", Implementation: implementation}
			s.Parameters.URI = file
			m, err := nativeEngines()[0].Loader.Load(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := m.Infer(t.Context(), &tensor.Request{Inputs: []tensor.Tensor{{Name: "x", Datatype: tensor.FP32, Shape: []int64{2, 1},
				Data: tensor.Values{Float32: []float32{-1, 1}}}}})
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimPrefix(answer.Outputs[0].String(), `"predict" `); got != want {
				t.Errorf("%s of %q for implementation %q: %s, want %s", test.objective, test.estimator, implementation, got, want)
			}
			if got := m.Metadata().Outputs[0].Datatype.String(); !strings.HasPrefix(want, got) {
				t.Errorf("%s of %q for implementation %q: the metadata say %s, want %s", test.objective, test.estimator, implementation, got, want)
			}
		}
	}
}

// linearXGBoost is the file of a linear booster of one feature, as an estimator of
// scikit-learn's kind saves it, or xgboost.train's booster by itself.
func linearXGBoost(t *testing.T, objective, estimator string, margins int) []byte {
	t.Helper()
	attributes, classes := map[string]string{}, margins
	if estimator != "" {
		attributes["scikit_learn"] = `{"_estimator_type": "` + estimator + `"}`
	}
	if margins == 1 {
		classes = 0
	}
	weights := make([]float64, 2*margins)
	for i := range margins {
		weights[i] = float64(i) + 0.5
	}
	text, err := json.Marshal(map[string]any{"version": []int{3, 2, 0}, "learner": map[string]any{
		"attributes":          attributes,
		"gradient_booster":    map[string]any{"name": "gblinear", "model": map[string]any{"weights": weights}},
		"learner_model_param": map[string]string{"base_score": "5E-1", "num_class": strconv.Itoa(classes), "num_feature": "1"},
		"objective":           map[string]string{"name": objective},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// pipe makes a named pipe that nobody writes to: whoever opens it to read waits
// for ever.
func pipe(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestServeErrors(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	port := strconv.Itoa(taken.Addr().(*net.TCPAddr).Port)
	iris := filepath.Join(serveModels, "iris.ubj")
	tests := []struct {
		name string
		args []string
		says string
	}{
		{"a pipe", []string{pipe(t, "model.bin"), "--format", "xgboost", "--http-port", "0"}, "model.bin is neither a file nor a folder"},
		{"a pipe of Python's", []string{pipe(t, "model.joblib"), "--format", "sklearn", "--http-port", "0"}, "model.joblib is neither a file nor a folder"},
		{"a folder with a pipe", []string{filepath.Dir(pipe(t, "model.ubj")), "--http-port", "0"}, "model.ubj is neither a file nor a folder"},
		{"a folder with another pipe", []string{filepath.Dir(pipe(t, "mine.joblib")), "--http-port", "0"}, "mine.joblib is neither a file nor a folder"},
		{"port in use", []string{iris, "--http-port", port}, "127.0.0.1:" + port + " is in use: stop what listens there, or choose another with --http-port"},
		{"no file", []string{"none.ubj"}, "none.ubj"},
		{"another format", []string{iris, "--format", "caffe", "--http-port", "0"}, `no engine for format "caffe" (have xgboost, lightgbm, `},
		{"the wrong format", []string{iris, "--format", "lightgbm", "--http-port", "0"}, "iris.ubj"},
		{"no model", []string{"serve.go", "--http-port", "0"}, "not a model of a known format"},
		{"a folder without the model", []string{t.TempDir(), "--name", "iris", "--http-port", "0"}, "holds no model, and --name wants iris"},
		{"several models", []string{serveModels, "--http-port", "0"}, "several model files (digits.txt, iris.ubj)"},
		{"no port", []string{iris, "--http-port", "70000"}, "70000"},
		{"no argument", nil, "give a FOLDER or FILE, or set MLSERVER_MODELS_DIR to a folder"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cmd := newServerCommand()
			cmd.SetErr(io.Discard)
			cmd.SetOut(io.Discard)
			cmd.SetArgs(test.args)
			if test.args == nil {
				cmd.SetArgs([]string{})
			}
			if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("error %v does not say %q", err, test.says)
			}
		})
	}
}

// TestServeSettings checks what settings.json says of the ports and the log.
func TestServeSettings(t *testing.T) {
	root := t.TempDir()
	http, metrics := servePort(t), servePort(t)
	settings := `{"http_port":` + http + `,"grpc_port":0,"metrics_port":` + metrics + `,"use_structured_logging":true,"debug":true}`
	if err := os.WriteFile(filepath.Join(root, "settings.json"), []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	reader, writer := io.Pipe()
	cmd := newServerCommand()
	cmd.SetErr(writer)
	cmd.SetOut(io.Discard)
	cmd.SetArgs([]string{root})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		err := cmd.ExecuteContext(ctx)
		done <- err
		_ = writer.Close()
	}()
	first := make([]byte, 100)
	if _, err := reader.Read(first); err != nil || first[0] != '{' {
		t.Fatalf("the log begins %q (%v)", first, err)
	}
	go func() { _, _ = io.Copy(io.Discard, reader) }()
	askServe(t, "http://127.0.0.1:"+http+"/v2/repository/index", "")
	askServe(t, "http://127.0.0.1:"+metrics+"/metrics", "") // POST: 405, but an answer
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
