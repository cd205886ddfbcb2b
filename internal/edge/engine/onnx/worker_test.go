package onnx_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/edge/engine/onnx"
	"roundhouse.dev/roundhouse/internal/edge/engine/onnx/onnxtest"
)

// asWorker has the test binary be a worker.
const asWorker = "ROUNDHOUSE_ONNX_TEST_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(asWorker) == "" {
		os.Exit(m.Run())
	}
	c := onnx.DefaultConfig()
	c.Token, c.Threads, c.Search = os.Getenv(onnx.TokenVariable), 2, onnxtest.Search()
	flag.StringVar(&c.Socket, "socket", "", "")
	flag.StringVar(&c.Search.Explicit, "library", c.Search.Explicit, "")
	flag.Parse()
	if err := onnx.Run(context.Background(), c); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(0)
}

const slow = "slow.onnx"

func testdata(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// loaded starts a worker with models.
func loaded(t *testing.T, files ...string) *onnxtest.Server {
	t.Helper()
	onnxtest.Library(t)
	s := onnxtest.Start(t)
	load(t, s, files...)
	return s
}

func load(t *testing.T, s *onnxtest.Server, files ...string) {
	t.Helper()
	for _, f := range files {
		if a := s.Load(testdata(t), f); a.Kind != "result" {
			t.Fatalf("load %s: %+v", f, a.Error)
		}
	}
}

// ask is a request of one input.
func ask(in tensor.Tensor) *tensor.Request { return &tensor.Request{Inputs: []tensor.Tensor{in}} }

// rows is n rows for linear.onnx.
func rows(n int64) tensor.Tensor {
	return tensor.Tensor{Name: "x", Datatype: tensor.FP32, Shape: []int64{n, 4}, Data: tensor.Values{Float32: make([]float32, 4*n)}}
}

func times(n int64) tensor.Tensor {
	return tensor.Tensor{Name: "times", Datatype: tensor.Int64, Data: tensor.Values{Int64: []int64{n}}}
}

// wantError checks an answer.
func wantError(t *testing.T, a onnxtest.Answer, kind, message string) {
	t.Helper()
	if a.Kind != "error" || a.Error.Kind != kind || !strings.Contains(a.Error.Message, message) {
		t.Errorf("got %s %+v, want the error %s: …%s…", a.Kind, a.Error, kind, message)
	}
}

func TestMetadata(t *testing.T) {
	s := loaded(t)
	for file, want := range map[string]string{
		"linear.onnx":         "[{x FP32 [-1 4] map[]}] [{label INT64 [-1] map[]} {probabilities FP32 [-1 3] map[]}]",
		"scalar.onnx":         "[{x FP64 [-1 -1] map[]} {factor FP64 [] map[]}] [{y FP64 [] map[]}]",
		"bfloat16.onnx":       "[{x BF16 [-1] map[]}] [{y BF16 [-1] map[]}]",
		"zipmap_names.onnx":   "[{X FP32 [-1 4] map[]}] [{output_label BYTES [-1] map[]} {output_probability FP32 [-1 -1] map[]}]",
		"zipmap_numbers.onnx": "[{X FP32 [-1 4] map[]}] [{output_label INT64 [-1] map[]} {output_probability FP32 [-1 -1] map[]}]",
		"sequence.onnx":       "[{x FP32 [-1 2] map[]}] [{rows FP32 [-1] map[]}]",
	} {
		a := s.Load(testdata(t), file)
		if a.Kind != "result" {
			t.Fatalf("%s: %+v", file, a.Error)
		}
		again := s.Ask(map[string]any{"kind": "metadata", "model": file}, nil)
		for _, m := range []*tensor.ModelMetadata{a.Metadata, again.Metadata} {
			if got := fmt.Sprint(m.Inputs, m.Outputs); got != want || m.Name != "m" || m.Platform != "onnxruntime_onnx" {
				t.Errorf("%s: got %s %s %s, want %s", file, m.Name, m.Platform, got, want)
			}
		}
	}
}

func TestBadRequests(t *testing.T) {
	s := loaded(t, "linear.onnx", "types.onnx", "reshape.onnx")
	text := func(name string, elements ...string) tensor.Tensor {
		in := tensor.Tensor{Name: name, Datatype: tensor.Bytes, Shape: []int64{int64(len(elements))}}
		for _, e := range elements {
			in.Data.Bytes = append(in.Data.Bytes, []byte(e))
		}
		return in
	}
	named, typed, flat := rows(1), rows(1), rows(1)
	named.Name, flat.Shape = "z", []int64{4}
	typed.Datatype, typed.Data = tensor.FP64, tensor.Values{Float64: make([]float64, 4)}
	wide := tensor.Tensor{Name: "x", Datatype: tensor.FP32, Shape: []int64{1, 5}, Data: tensor.Values{Float32: make([]float32, 5)}}
	for _, c := range []struct {
		model   string
		request tensor.Request
		message string
	}{
		{"linear.onnx", tensor.Request{}, `also needs the input "x"`},
		{"linear.onnx", *ask(named), `has no input "z": it has "x"`},
		{"linear.onnx", *ask(typed), `input "x" is FP64; the model takes FP32`},
		{"linear.onnx", *ask(flat), `shape [4] does not fit the model's [-1 4]`},
		{"linear.onnx", *ask(wide), `shape [1 5] does not fit the model's [-1 4]`},
		{"linear.onnx", tensor.Request{Inputs: []tensor.Tensor{rows(1), rows(1)}}, `"x" is given twice`},
		{"linear.onnx", tensor.Request{Inputs: []tensor.Tensor{rows(1)}, Outputs: []tensor.RequestedOutput{{Name: "nope"}}}, `has no output "nope": it has "label", "probabilities"`},
		{"linear.onnx", tensor.Request{Inputs: []tensor.Tensor{rows(1)}, Outputs: []tensor.RequestedOutput{{Name: "label"}, {Name: "label"}}}, `"label" is asked for twice`},
		{"linear.onnx", tensor.Request{Inputs: []tensor.Tensor{rows(1)}, Outputs: []tensor.RequestedOutput{{Name: "label", Parameters: tensor.Parameters{"classification": 2}}}}, `classification 2`},
		{"types.onnx", *ask(text("in_BYTES", "a", "b\x00c")), `element 1 holds a zero byte`},
		{"types.onnx", *ask(text("in_BOOL", "a")), `"in_BOOL" is BYTES; the model takes BOOL`},
	} {
		wantError(t, s.Infer(c.model, &c.request), "invalid", c.message)
	}
	wantError(t, s.Infer("other", ask(rows(1))), "not_found", `"other"`)
	// What ONNX Runtime alone can find out: 2 elements are no [3].
	a := s.Infer("reshape.onnx", &tensor.Request{Inputs: []tensor.Tensor{
		{Name: "x", Datatype: tensor.FP32, Shape: []int64{2}, Data: tensor.Values{Float32: []float32{1, 2}}},
		{Name: "shape", Datatype: tensor.Int64, Shape: []int64{1}, Data: tensor.Values{Int64: []int64{3}}}}})
	wantError(t, a, "failed", "cannot be reshaped")
	a = s.Infer("linear.onnx", ask(rows(2)))
	if out := a.Outputs(t); len(out) != 2 {
		t.Errorf("afterwards: %+v", a)
	}
}

// TestBadFrames sends what no proper server does.
func TestBadFrames(t *testing.T) {
	s := loaded(t, "linear.onnx", "types.onnx")
	x := func(fields map[string]any) map[string]any {
		in := map[string]any{"name": "x", "datatype": "FP32", "shape": []int64{1, 4}}
		for k, v := range fields {
			in[k] = v
		}
		return map[string]any{"kind": "infer", "model": "linear.onnx", "request": map[string]any{"inputs": []any{in}}}
	}
	kind := func(name string, length int, payload []byte) (map[string]any, []byte) {
		in := map[string]any{"name": name, "datatype": strings.TrimPrefix(name, "in_"), "shape": []int64{1}, "offset": 0, "length": length}
		return map[string]any{"kind": "infer", "model": "types.onnx", "request": map[string]any{"inputs": []any{in}}}, payload
	}
	check := func(header map[string]any, payload []byte, kind, message string) {
		t.Helper()
		wantError(t, s.Ask(header, payload), kind, message)
	}
	bytes16 := make([]byte, 16)
	check(x(map[string]any{"offset": 0, "length": 16}), nil, "invalid", "not in the payload")
	check(x(map[string]any{"offset": 3, "length": 16}), make([]byte, 24), "invalid", "not in the payload")
	check(x(map[string]any{"offset": 8, "length": uint64(math.MaxUint64)}), bytes16, "invalid", "not in the payload")
	check(x(map[string]any{"offset": 0, "length": 15}), bytes16, "invalid", "does not hold 15 bytes")
	check(x(map[string]any{"offset": 0, "length": 16, "region": map[string]any{}}), bytes16, "unsupported", "shared memory")
	check(x(map[string]any{"shape": []int64{-1, 4}, "offset": 0, "length": 16}), bytes16, "invalid", "does not hold")
	check(x(map[string]any{"shape": []int64{math.MaxInt64, 4}, "offset": 0, "length": 16}), bytes16, "invalid", "does not hold")
	check(x(map[string]any{"shape": make([]int64, 33)}), nil, "invalid", "does not fit")
	check(x(nil), nil, "invalid", "does not hold 0 bytes")
	check(x(map[string]any{"datatype": "FP8"}), nil, "invalid", "no datatype")
	check(x(map[string]any{"data": []any{1, 2, "three", 4}}), nil, "invalid", "three")
	check(x(map[string]any{"data": []any{1, 2, 3}}), nil, "invalid", "holds 4 elements, data has 3")
	header, payload := kind("in_BOOL", 1, []byte{2})
	check(header, payload, "invalid", "a BOOL is 0 or 1")
	for message, raw := range map[string][]byte{
		"holds null":             {255, 255, 255, 255},
		"takes 9 bytes":          {9, 0, 0, 0, 'a'},
		"after its 1 elements":   {1, 0, 0, 0, 'a', 'b'},
		"does not hold 2 bytes":  {1, 0},
		"takes 4294967294 bytes": {254, 255, 255, 255},
	} {
		header, payload := kind("in_BYTES", len(raw), raw)
		check(header, payload, "invalid", message)
	}
	check(map[string]any{"kind": "stream", "model": "linear.onnx"}, nil, "unsupported", "stream")
	check(map[string]any{"kind": "custom", "model": "linear.onnx"}, nil, "not_found", "handlers")
	check(map[string]any{"kind": "unload", "model": "nope"}, nil, "not_found", "nope")
	check(map[string]any{"kind": "load", "model": "linear.onnx"}, nil, "invalid", "loaded already")
	a := s.Ask(x(map[string]any{"data": [][]float64{{1, 2, 3, 4}}}), nil)
	if out := a.Outputs(t); len(out) != 2 || out[1].Len() != 3 {
		t.Errorf("data as JSON: %+v", out)
	}
}

func TestProtocolViolations(t *testing.T) {
	for name, frame := range map[string][]byte{
		"a frame over the limit": {255, 255, 255, 255, 8, 0, 0, 0},
		"a header too long":      {12, 0, 0, 0, 16, 0, 0, 0},
		"a header off the grid":  {12, 0, 0, 0, 7, 0, 0, 0},
		"a header of no JSON":    append([]byte{12, 0, 0, 0, 8, 0, 0, 0}, "not JSON"...),
	} {
		t.Run(name, func(t *testing.T) {
			s := onnxtest.Start(t)
			s.SendBytes(frame)
			if reason := s.Goodbye(); reason == "" {
				t.Error("the worker gave no reason")
			}
		})
	}
}

// TestV1 asks a model with one input under the name that KServe's v1 gives.
func TestV1(t *testing.T) {
	s := loaded(t, "linear.onnx", slow)
	v1 := func(shape []int64, values ...float64) *tensor.Request {
		return ask(tensor.Tensor{Name: tensor.InputV1, Datatype: tensor.FP64, Shape: shape, Data: tensor.Values{Float64: values}})
	}
	exact := rows(1)
	exact.Data.Float32 = []float32{5.1, 3.5, 1.4, 0.2}
	want := s.Infer("linear.onnx", ask(exact))
	got := s.Infer("linear.onnx", v1([]int64{1, 4}, 5.1, 3.5, 1.4, 0.2))
	if a, b := fmt.Sprint(got.Outputs(t)), fmt.Sprint(want.Outputs(t)); a != b {
		t.Errorf("got %s, want %s", a, b)
	}
	wantError(t, s.Infer("linear.onnx", v1([]int64{1, 4}, 1e300, 0, 0, 0)), "invalid", "does not fit FP32")
	zero := s.Infer(slow, v1(nil, 0))
	if out := zero.Outputs(t); out[0].Data.Float32[0] != 1000 {
		t.Errorf("got %v", out)
	}
	for _, bad := range []float64{0.5, math.NaN(), 1e19, math.Inf(-1)} {
		wantError(t, s.Infer(slow, v1(nil, bad)), "invalid", "is no INT64")
	}
}

func TestBF16(t *testing.T) {
	s := loaded(t, "bfloat16.onnx")
	in := tensor.Tensor{Name: "x", Datatype: tensor.BF16, Shape: []int64{3}, Data: tensor.Values{Float32: []float32{-1.5, 0, 3.140625}}}
	a := s.Infer("bfloat16.onnx", ask(in))
	if out := a.Outputs(t); out[0].Datatype != tensor.BF16 || fmt.Sprint(out[0].Data.Float32) != "[-1.5 0 3.140625]" {
		t.Errorf("got %+v", out)
	}
}

func TestLoadErrors(t *testing.T) {
	onnxtest.Library(t)
	s := onnxtest.Start(t)
	dir := t.TempDir()
	good, err := os.ReadFile("testdata/linear.onnx")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"two/a.onnx": "", "two/b.onnx": "", "one/x.onnx": string(good), "one/notes.txt": "",
		"named/model.onnx": string(good), "named/other.onnx": "", "empty.onnx": "", "garbage.onnx": "no model", "cut.onnx": string(good[:len(good)/2]), "none/x": ""} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for file, message := range map[string]string{"missing.onnx": "no such file", "two": "has 2 files *.onnx", "none": "has 0 files",
		"empty.onnx": "empty.onnx", "garbage.onnx": "is not an ONNX model", "cut.onnx": "cut.onnx"} {
		wantError(t, s.Load(dir, file), "unprocessable", message)
	}
	wantError(t, s.Load(testdata(t), "sequence_input.onnx"), "unprocessable", `input "x" is a sequence of tensor of FP32`)
	for _, file := range []string{"one", "named", "one/x.onnx"} {
		if a := s.Load(dir, file); a.Kind != "result" {
			t.Errorf("%s: %+v", file, a.Error)
		}
	}
}

// TestHostileModels damages a model in many ways. A worker may refuse it, load
// it, or die; never may it hang or be left in disorder.
func TestHostileModels(t *testing.T) {
	onnxtest.Library(t)
	good, err := os.ReadFile("testdata/zipmap_names.onnx")
	if err != nil {
		t.Fatal(err)
	}
	s := worker(t)
	dir, random, deaths := t.TempDir(), rand.New(rand.NewPCG(1, 2)), 0
	for i := range 200 {
		bad := bytes.Clone(good)
		for range 1 + random.IntN(4) {
			bad[random.IntN(len(bad))] = byte(random.Uint32())
		}
		file := fmt.Sprint(i, ".onnx")
		if err := os.WriteFile(filepath.Join(dir, file), bad, 0o600); err != nil {
			t.Fatal(err)
		}
		_, c := s.Begin(map[string]any{"kind": "load", "model": file, "folder": dir,
			"settings": map[string]any{"parameters": map[string]any{"uri": file}}}, nil)
		if _, ok := s.Await(c); !ok {
			deaths++
			s = worker(t)
		}
	}
	t.Logf("%d of 200 damaged models took the worker down", deaths)
	load(t, s, "linear.onnx")
	answer := s.Infer("linear.onnx", ask(rows(1)))
	answer.Outputs(t)
}

// worker starts one as a process.
func worker(t *testing.T, args ...string) *onnxtest.Server {
	t.Helper()
	t.Setenv(asWorker, "1")
	s, _ := onnxtest.Command(t, os.Args[0], args...)
	return s
}

func TestCancel(t *testing.T) {
	s := loaded(t, slow, "linear.onnx")
	var answers []<-chan onnxtest.Answer
	for range 4 { // two run, two wait
		header, payload := onnxtest.InferHeader(t, slow, ask(times(math.MaxInt32)))
		id, c := s.Begin(header, payload)
		answers = append(answers, c)
		defer s.Send(map[string]any{"kind": "cancel", "id": id}, nil)
	}
	if a := s.Ask(map[string]any{"kind": "ping"}, nil); a.InFlight != 4 || a.Models != 2 || a.RSS == 0 {
		t.Errorf("got %+v", a)
	}
	for id := range uint64(16) { // of all, the loads' numbers too
		s.Send(map[string]any{"kind": "cancel", "id": id}, nil)
	}
	for _, c := range answers {
		a, _ := s.Await(c)
		wantError(t, a, "cancelled", "cancelled")
	}
	a := s.Infer("linear.onnx", ask(rows(1)))
	a.Outputs(t)
}

func TestUnload(t *testing.T) {
	s := loaded(t, slow)
	header, payload := onnxtest.InferHeader(t, slow, ask(times(math.MaxInt32)))
	_, running := s.Begin(header, payload)
	if a := s.Ask(map[string]any{"kind": "unload", "model": slow, "grace": 0.05}, nil); a.Kind != "result" {
		t.Errorf("unload: %+v", a.Error)
	}
	a, _ := s.Await(running)
	wantError(t, a, "cancelled", "")
	wantError(t, s.Infer(slow, ask(times(0))), "not_found", slow)
	load(t, s, slow)
}

func TestLimits(t *testing.T) {
	onnxtest.Library(t)
	s := (&onnxtest.Server{MaxFrame: 64 << 10, MaxInFlight: 1}).Start(t)
	load(t, s, slow, "linear.onnx")
	// 16 bytes a row in, 20 bytes a row out.
	wantError(t, s.Infer("linear.onnx", ask(rows(4000))), "too_large", "65536 are allowed")
	header, payload := onnxtest.InferHeader(t, slow, ask(times(math.MaxInt32)))
	id, running := s.Begin(header, payload)
	wantError(t, s.Infer("linear.onnx", ask(rows(1))), "unavailable", "1 requests in flight")
	s.Send(map[string]any{"kind": "cancel", "id": id}, nil)
	a, _ := s.Await(running)
	wantError(t, a, "cancelled", "")
	a = s.Infer("linear.onnx", ask(rows(1)))
	a.Outputs(t)
}

// TestStop lets a request finish, and refuses new ones meanwhile.
func TestStop(t *testing.T) {
	s := loaded(t, slow)
	header, payload := onnxtest.InferHeader(t, slow, ask(times(20_000)))
	_, running := s.Begin(header, payload)
	s.Send(map[string]any{"kind": "stop", "grace": 20}, nil)
	a, ok := s.Await(running)
	if !ok || a.Kind != "result" {
		t.Errorf("got %s %+v", a.Kind, a.Error)
	}
	if reason := s.Goodbye(); reason != "" {
		t.Errorf("goodbye: %s", reason)
	}
}

// TestKill kills a worker with a request in flight: the server sees its
// connection end, and another worker serves.
func TestKill(t *testing.T) {
	onnxtest.Library(t)
	t.Setenv(asWorker, "1")
	s, cmd := onnxtest.Command(t, os.Args[0])
	load(t, s, slow)
	header, payload := onnxtest.InferHeader(t, slow, ask(times(math.MaxInt32)))
	_, running := s.Begin(header, payload)
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if a, ok := s.Await(running); ok {
		t.Errorf("got %+v", a)
	}
	next := worker(t)
	load(t, next, slow)
	a := next.Infer(slow, ask(times(1)))
	a.Outputs(t)
}

// TestServerGone has the process end by itself, even out of native code.
func TestServerGone(t *testing.T) {
	onnxtest.Library(t)
	t.Setenv(asWorker, "1")
	s, cmd := onnxtest.Command(t, os.Args[0])
	load(t, s, slow)
	header, payload := onnxtest.InferHeader(t, slow, ask(times(math.MaxInt32)))
	s.Begin(header, payload)
	s.Ask(map[string]any{"kind": "ping"}, nil)
	s.Close()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the worker exits with %v", err)
		}
	case <-time.After(onnxtest.Wait):
		t.Error("the worker does not end")
	}
}

// TestMissingLibrary has the load say what to do.
func TestMissingLibrary(t *testing.T) {
	s := worker(t, "--library", "/nowhere/libonnxruntime.so")
	a := s.Load(testdata(t), "linear.onnx")
	wantError(t, a, "missing_package", "/nowhere/libonnxruntime.so")
	if a.Error != nil && a.Error.Install != "pip install onnxruntime" {
		t.Errorf("install is %q", a.Error.Install)
	}
}
