package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// realPython is an interpreter that can run the roundhouse package.
func realPython(t testing.TB) string {
	t.Helper()
	name := os.Getenv("ROUNDHOUSE_PYTHON")
	if name == "" {
		name = "python3"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("no %s: %v; set ROUNDHOUSE_PYTHON", name, err)
	}
	if out, err := exec.Command(path, "-c", "import numpy, pydantic").CombinedOutput(); err != nil {
		t.Skipf("%s lacks numpy or pydantic; set ROUNDHOUSE_PYTHON to one that has them: %s", path, out)
	}
	return path
}

// newRealRig is an engine of Python workers.
func newRealRig(t *testing.T, change func(*Config)) *rig {
	t.Helper()
	return newProgramRig(t, pythonProgram(realPython(t)), change)
}

// pythonProgram runs the repository's roundhouse package.
func pythonProgram(interpreter string) Program {
	dir, err := filepath.Abs(filepath.Join("..", "..", "..", "..", "python"))
	if err != nil {
		panic(err)
	}
	return Program{Command: []string{interpreter, "-m", "roundhouse.worker"}, ForkServer: []string{interpreter, "-m", "roundhouse.forkserver"},
		Env: append(os.Environ(), "PYTHONPATH="+dir, "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1")}
}

// code writes models.py into a folder of its own and gives the settings of its
// class Model.
func code(t *testing.T, name, text string) Settings {
	t.Helper()
	folder := t.TempDir()
	write(t, folder, text)
	document, err := json.Marshal(map[string]any{"name": name, "implementation": "models.Model", "parameters": map[string]any{"uri": folder, "version": "v1", "extra": map[string]any{"factor": 3}}})
	if err != nil {
		t.Fatal(err)
	}
	return Settings{Name: name, Version: "v1", Document: document, Folder: folder}
}

func write(t *testing.T, folder, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(folder, "models.py"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) loadCode(t *testing.T, name, text string) *Model {
	t.Helper()
	m, err := r.Load(t.Context(), code(t, name, text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

const echoModel = `
import os, signal, mlserver
from mlserver import MLModel, types
from mlserver.handlers import custom_handler
from mlserver.rest.responses import Response

class Model(MLModel):
    async def load(self):
        mlserver.register("my_metric", "A test's")
        self.factor = self.settings.parameters.extra["factor"]
        return True

    async def predict(self, payload):
        what = payload.inputs[0].name
        if what == "raise":
            raise ValueError("the model is not well")
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        mlserver.log(my_metric=0.25)
        return types.InferenceResponse(
            model_name=self.name, id=payload.id,
            parameters=types.Parameters(pid=os.getpid(), kind=type(payload.inputs[0].data[0]).__name__),
            outputs=[types.ResponseOutput(name=i.name, shape=i.shape, datatype=i.datatype, data=i.data) for i in payload.inputs])

    @custom_handler(rest_path="/factor/{n}", rest_method="GET")
    async def times(self, n) -> Response:
        return Response(content=int(n) * self.factor, status_code=202)
`

// TestRealCodeSeesWhatWasWritten: raw data are as a client's JSON has them.
func TestRealCodeSeesWhatWasWritten(t *testing.T) {
	r := newRealRig(t, nil)
	m := r.loadCode(t, "raw", `
import json
from mlserver import MLModel, types

class Model(MLModel):
    async def predict(self, payload):
        texts = [json.dumps(i.data.root) for i in payload.inputs]
        return types.InferenceResponse(model_name=self.name, id=payload.id,
            outputs=[types.ResponseOutput(name="raw", shape=[len(texts[0])], datatype="BYTES", data=texts)])
`)
	for _, data := range []string{
		`"shape": [1, 2, 2], "datatype": "FP32", "data": [[[1, 2], [3, 4.5]]]`,
		`"shape": [4], "datatype": "FP64", "data": [1, null, 2.5, -7]`,
		`"shape": [2, 1], "datatype": "INT32", "data": [[1], [2]]`,
		`"shape": [59], "datatype": "BYTES", "data": ["{}"]`,
		`"shape": [3], "datatype": "BYTES", "data": [{"a": [1, "x"]}, 5, "5"]`,
		`"shape": [2, 1], "datatype": "BYTES", "data": [["a"], [null]]`,
	} {
		request, err := tensor.DecodeRequest([]byte(`{"inputs":[{"name":"x",` + data + `}]}`))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := m.Infer(t.Context(), request)
		if err != nil {
			t.Errorf("%s: %v", data, err)
			continue
		}
		_, want, _ := strings.Cut(data, `"data": `)
		if got := string(answer.Outputs[0].Data.Bytes[0]); got != want {
			t.Errorf("code sees %s of %s", got, want)
		}
	}
}

func TestRealEcho(t *testing.T) {
	r := newRealRig(t, nil)
	m := r.loadCode(t, "echo", echoModel)
	inputs := []tensor.Tensor{
		floats(0.5, -2, 1<<100),
		{Name: "i", Datatype: tensor.Int64, Shape: []int64{2, 1}, Data: tensor.Values{Int64: []int64{1 << 62, -1}}},
		{Name: "b", Datatype: tensor.Bool, Shape: []int64{2}, Data: tensor.Values{Bool: []bool{true, false}}},
		{Name: "s", Datatype: tensor.Bytes, Shape: []int64{3}, Text: true, Data: tensor.Values{Bytes: [][]byte{[]byte("é"), nil, {}}}},
		{Name: "raw", Datatype: tensor.Bytes, Shape: []int64{1}, Data: tensor.Values{Bytes: [][]byte{{0, 255}}}},
	}
	got, err := m.Infer(t.Context(), &tensor.Request{ID: "7", Inputs: inputs})
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != "7" || len(got.Outputs) != len(inputs) {
		t.Fatalf("%+v", got)
	}
	for i := range inputs {
		if !reflect.DeepEqual(got.Outputs[i], inputs[i]) {
			t.Errorf("sent %+v\n got %+v", inputs[i], got.Outputs[i])
		}
	}
	r.saw.await(t, "echo my_metric 0.25")
	for i, want := range map[int]string{3: "str", 4: "bytes"} {
		one, err := m.Infer(t.Context(), &tensor.Request{Inputs: inputs[i : i+1]})
		if err != nil || one.Parameters["kind"] != want {
			t.Errorf("elements of %s came as %v, want %s (%v)", inputs[i].Name, one.Parameters["kind"], want, err)
		}
	}
	bad := floats(1)
	bad.Name = "raise"
	_, err = m.Infer(t.Context(), &tensor.Request{Inputs: []tensor.Tensor{bad}})
	wantError(t, err, kindFailed, 500, "the model is not well")
	r.log.await(t, "Traceback")
	routes := m.Routes()
	if len(routes) != 1 {
		t.Fatalf("routes %+v", routes)
	}
	mux := http.NewServeMux()
	mux.Handle(routes[0].Method+" "+routes[0].Path, routes[0].Handler)
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest("GET", "/factor/14", nil))
	if w.Code != 202 || w.Body.String() != "42" {
		t.Errorf("custom handler: %d %s", w.Code, w.Body)
	}
}

// TestRealKilled kills the worker with requests in flight: those alone fail.
func TestRealKilled(t *testing.T) {
	r := newRealRig(t, func(c *Config) { c.ParallelWorkers = 2 })
	m := r.loadCode(t, "echo", echoModel)
	before := r.Status()
	bad := floats(1)
	bad.Name = "die"
	_, err := m.Infer(t.Context(), &tensor.Request{Inputs: []tensor.Tensor{bad}})
	wantError(t, err, kindDied, 500, "ended by signal 9")
	if !m.Ready() {
		t.Error("not ready with a second worker")
	}
	for range 10 {
		if _, err := m.Infer(t.Context(), &tensor.Request{Inputs: []tensor.Tensor{floats(1)}}); err != nil {
			t.Error(err)
		}
	}
	r.log.await(t, "model reloaded")
	if err := syscall.Kill(before[0].PID, 0); err == nil {
		err = syscall.Kill(before[1].PID, 0)
		if err == nil {
			t.Error("both of the first workers live")
		}
	}
}

func TestRealDecodeArgs(t *testing.T) {
	r := newRealRig(t, nil)
	m := r.loadCode(t, "sum", `
import numpy as np
from typing import List
from mlserver import MLModel
from mlserver.codecs import decode_args

class Model(MLModel):
    @decode_args
    async def predict(self, a: np.ndarray, names: List[str]) -> np.ndarray:
        return a * len(names)
`)
	got, err := m.Infer(t.Context(), &tensor.Request{Inputs: []tensor.Tensor{
		{Name: "a", Datatype: tensor.FP64, Shape: []int64{2, 2}, Data: tensor.Values{Float64: []float64{1, 2, 3, 4}}},
		{Name: "names", Datatype: tensor.Bytes, Shape: []int64{2, 1}, Text: true, Data: tensor.Values{Bytes: [][]byte{[]byte("x"), []byte("y")}}},
	}})
	if err != nil || !reflect.DeepEqual(got.Outputs[0].Data.Float64, []float64{2, 4, 6, 8}) || fmt.Sprint(got.Outputs[0].Shape) != "[2 2]" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestRealStream(t *testing.T) {
	r := newRealRig(t, nil)
	m := r.loadCode(t, "words", `
from mlserver import MLModel, types
from mlserver.codecs import StringCodec

class Model(MLModel):
    async def predict_stream(self, payloads):
        async for payload in payloads:
            for word in StringCodec.decode_input(payload.inputs[0])[0].split():
                yield types.InferenceResponse(model_name=self.name, outputs=[StringCodec.encode_output("word", [word])])
`)
	text := strings.TrimSpace(strings.Repeat("to be or not to be ", 20))
	ask := func(text string) *tensor.Request {
		return &tensor.Request{Inputs: []tensor.Tensor{{Name: "text", Datatype: tensor.Bytes, Shape: []int64{1}, Text: true, Data: tensor.Values{Bytes: [][]byte{[]byte(text)}}}}}
	}
	var words []string
	err := m.Stream(t.Context(), given(ask(text), ask("that is"), ask("the question")), func(got *tensor.Response) error {
		words = append(words, string(got.Outputs[0].Data.Bytes[0]))
		return nil
	})
	if got := strings.Join(words, " "); err != nil || got != text+" that is the question" {
		t.Errorf("%q, %v", got, err)
	}
	gone := errors.New("gone")
	if err := m.Stream(t.Context(), given(ask(text)), func(*tensor.Response) error { return gone }); !errors.Is(err, gone) {
		t.Error(err)
	}
	if err := m.Stream(t.Context(), given(ask("still here")), func(*tensor.Response) error { return nil }); err != nil {
		t.Error(err)
	}
}

// TestRealReload has two models with modules of one name, of which one is
// changed and loaded again while it serves.
func TestRealReload(t *testing.T) {
	r := newRealRig(t, nil)
	says := func(what string) string {
		return fmt.Sprintf(`
from mlserver import MLModel, types
class Model(MLModel):
    async def predict(self, payload):
        return types.InferenceResponse(model_name=self.name, parameters=types.Parameters(says=%q), outputs=[])
`, what)
	}
	one := code(t, "one", says("one"))
	first, err := r.Load(t.Context(), one)
	if err != nil {
		t.Fatal(err)
	}
	two := r.loadCode(t, "two", says("two"))
	write(t, one.Folder, says("new"))
	second, err := r.Load(t.Context(), one)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		m    *Model
		says string
	}{{first, "one"}, {two, "two"}, {second, "new"}, {first, "one"}} {
		got, err := want.m.Infer(t.Context(), &tensor.Request{Inputs: []tensor.Tensor{floats(1)}})
		if err != nil || got.Parameters["says"] != want.says {
			t.Errorf("%+v says %v, want %s", got, err, want.says)
		}
	}
	if err := first.Close(t.Context()); err != nil {
		t.Error(err)
	}
	_, err = first.Infer(t.Context(), do(""))
	wantError(t, err, kindUnavailable, 503, "")
	if _, err := second.Infer(t.Context(), &tensor.Request{Inputs: []tensor.Tensor{floats(1)}}); err != nil {
		t.Error(err)
	}
	if n := len(r.Status()); n != 1 {
		t.Errorf("%d workers", n)
	}
}

// TestRealBad loads what cannot be loaded.
func TestRealBad(t *testing.T) {
	r := newRealRig(t, nil)
	good := r.loadCode(t, "echo", echoModel)
	for text, says := range map[string]string{
		"import nothing_of_the_kind":     "nothing_of_the_kind",
		"this is no Python":              "models.py",
		"class Other: pass":              "Model",
		"import os\nos._exit(7)":         "exited with code 7",
		"raise SystemExit('I will not')": "I will not",
	} {
		_, err := r.Load(t.Context(), code(t, "bad", text))
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: error %v does not say %q", text, err, says)
		}
	}
	r.awaitReady(t, good, true)
	if _, err := good.Infer(t.Context(), &tensor.Request{Inputs: []tensor.Tensor{floats(1)}}); err != nil {
		t.Error(err)
	}
}

// TestRealTogether has many clients at once, some of whom leave early.
func TestRealTogether(t *testing.T) {
	r := newRealRig(t, func(c *Config) { c.ParallelWorkers = 2 })
	m := r.loadCode(t, "echo", echoModel)
	var wg sync.WaitGroup
	for c := range 16 {
		wg.Go(func() {
			for i := range 50 {
				ctx, cancel := context.WithCancel(t.Context())
				if (c+i)%5 == 0 {
					cancel()
				}
				value := float32(c*1000 + i)
				got, err := m.Infer(ctx, &tensor.Request{Inputs: []tensor.Tensor{floats(value)}})
				cancel()
				switch {
				case errors.Is(err, context.Canceled) && (c+i)%5 == 0:
				case err != nil:
					t.Error(err)
				case got.Outputs[0].Data.Float32[0] != value:
					t.Errorf("sent %v, got %v", value, got.Outputs[0].Data.Float32[0])
				}
			}
		})
	}
	wg.Wait()
}
