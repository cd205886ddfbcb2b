package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// journal is a logger's output that a test can wait for.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
	grew chan struct{}
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	select {
	case j.grew <- struct{}{}:
	default:
	}
	return j.text.Write(p)
}

// String is all that was written until now.
func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

func (j *journal) has(want string) bool { return strings.Contains(j.String(), want) }

// await waits until the log has want.
func (j *journal) await(t *testing.T, want string) {
	t.Helper()
	timeout := time.After(testWait)
	for !j.has(want) {
		select {
		case <-j.grew:
		case <-timeout:
			t.Fatalf("the log has no %q:\n%s", want, j)
		}
	}
}

// observations is a Metrics that hands on what it is told.
type observations chan string

func (o observations) Register(_, _, _, _ string) {}

func (o observations) Observe(model, _, name string, value float64) {
	o <- fmt.Sprintf("%s %s %v", model, name, value)
}

// await waits for a measurement whose text begins so.
func (o observations) await(t *testing.T, prefix string) string {
	t.Helper()
	timeout := time.After(testWait)
	for {
		select {
		case got := <-o:
			if strings.HasPrefix(got, prefix) {
				return got
			}
		case <-timeout:
			t.Fatalf("no observation %q", prefix)
		}
	}
}

const testWait = time.Minute

// rig is an engine of fake workers.
type rig struct {
	*Engine
	log *journal
	saw observations
}

func newRig(t *testing.T, how string, change func(*Config)) *rig {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := Program{Command: []string{self}, ForkServer: []string{self},
		Env: []string{fakeVariable + "=" + how, "GORACE=atexit_sleep_ms=0"}, // the race detector waits a second
		Explain: func(line string) *Error {
			if strings.Contains(line, "No module named") {
				return NewError(KindMissing, "install it")
			}
			return nil
		}}
	return newProgramRig(t, p, func(c *Config) {
		c.ForkWorkers = false
		c.Limits.PingInterval = 20 * time.Millisecond
		if change != nil {
			change(c)
		}
	})
}

// newProgramRig is an engine of workers of a program.
func newProgramRig(t *testing.T, p Program, change func(*Config)) *rig {
	t.Helper()
	c := DefaultConfig()
	c.Limits.MinBackoff, c.Limits.MaxBackoff = time.Millisecond, 10*time.Millisecond
	if change != nil {
		change(&c)
	}
	programs := func(context.Context, Environment) (*Program, error) { return &p, nil }
	var err error
	r := &rig{log: &journal{grew: make(chan struct{}, 1)}, saw: make(observations, 1024)}
	if r.Engine, err = New(c, programs, r.saw, slog.New(slog.NewTextHandler(r.log, nil))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testWait)
		defer cancel()
		if err := r.Close(ctx); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(r.log)
		}
	})
	return r
}

func settings(name, implementation string) Settings {
	document, err := json.Marshal(map[string]string{"name": name, "implementation": implementation})
	if err != nil {
		panic(err)
	}
	return Settings{Name: name, Document: document}
}

func (r *rig) load(t *testing.T, name, implementation string) *Model {
	t.Helper()
	m, err := r.Load(t.Context(), settings(name, implementation))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func floats(values ...float32) tensor.Tensor {
	return tensor.Tensor{Name: "x", Datatype: tensor.FP32, Shape: []int64{int64(len(values))}, Data: tensor.Values{Float32: values}}
}

func do(what string) *tensor.Request {
	return &tensor.Request{ID: "1", Parameters: tensor.Parameters{"do": what}, Inputs: []tensor.Tensor{floats(1, 2, 3)}}
}

func wantError(t *testing.T, err error, kind string, status int, says string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Kind != kind || e.Status != status || !strings.Contains(e.Message, says) {
		t.Errorf("error %#v, want %s (%d) that says %q", err, kind, status, says)
	}
}

// pid asks which process answers.
func pid(t *testing.T, m *Model) string {
	t.Helper()
	r, err := m.Infer(t.Context(), do(""))
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(r.Parameters["pid"])
}

// awaitReady waits until a model is ready, or no more.
func (r *rig) awaitReady(t *testing.T, m *Model, want bool) {
	t.Helper()
	deadline := time.Now().Add(testWait)
	for m.Ready() != want {
		if time.Now().After(deadline) {
			t.Fatalf("ready is not %v", want)
		}
		select {
		case <-r.log.grew:
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func TestInferEveryDatatype(t *testing.T) {
	r := newRig(t, "good", nil)
	m := r.load(t, "echo", "")
	v := tensor.Values{}
	inputs := []tensor.Tensor{
		{Datatype: tensor.Bool, Data: tensor.Values{Bool: []bool{true, false, true}}},
		{Datatype: tensor.Uint8, Data: tensor.Values{Uint8: []uint8{0, 255, 3}}},
		{Datatype: tensor.Uint16, Data: tensor.Values{Uint16: []uint16{0, 65535, 3}}},
		{Datatype: tensor.Uint32, Data: tensor.Values{Uint32: []uint32{0, math.MaxUint32, 3}}},
		{Datatype: tensor.Uint64, Data: tensor.Values{Uint64: []uint64{0, math.MaxUint64, 3}}},
		{Datatype: tensor.Int8, Data: tensor.Values{Int8: []int8{-128, 127, 3}}},
		{Datatype: tensor.Int16, Data: tensor.Values{Int16: []int16{-32768, 32767, 3}}},
		{Datatype: tensor.Int32, Data: tensor.Values{Int32: []int32{math.MinInt32, math.MaxInt32, 3}}},
		{Datatype: tensor.Int64, Data: tensor.Values{Int64: []int64{math.MinInt64, math.MaxInt64, 3}}},
		{Datatype: tensor.FP16, Data: tensor.Values{Float32: []float32{0.5, -2, 65504}}},
		{Datatype: tensor.BF16, Data: tensor.Values{Float32: []float32{0.5, -2, 1 << 100}}},
		{Datatype: tensor.FP32, Data: tensor.Values{Float32: []float32{0.1, -2, math.MaxFloat32}}},
		{Datatype: tensor.FP64, Data: tensor.Values{Float64: []float64{0.1, -2, math.MaxFloat64}}},
		{Datatype: tensor.Bytes, Text: true, Data: tensor.Values{Bytes: [][]byte{[]byte("é"), nil, {}}}},
		{Datatype: tensor.Bytes, Data: tensor.Values{Bytes: [][]byte{{0, 255}, nil, {}}}},
	}
	for i := range inputs {
		inputs[i].Name, inputs[i].Shape = fmt.Sprint("in-", i), []int64{3, 1}
	}
	inputs = append(inputs, tensor.Tensor{Name: "none", Datatype: tensor.FP32, Shape: []int64{0, 4}, Data: v},
		tensor.Tensor{Name: "scalar", Datatype: tensor.Int64, Shape: []int64{}, Data: tensor.Values{Int64: []int64{7}}})
	inputs[0].Parameters = tensor.Parameters{"content_type": "np", "big": json.Number("9007199254740993")}
	got, err := m.Infer(t.Context(), &tensor.Request{ID: "a\"b", Inputs: inputs, Outputs: []tensor.RequestedOutput{{Name: "y", Parameters: tensor.Parameters{"a": "b"}}}})
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != "a\"b" || len(got.Outputs) != len(inputs) {
		t.Fatalf("id %q, %d outputs", got.ID, len(got.Outputs))
	}
	for i, out := range got.Outputs {
		in := inputs[i]
		if in.Name == "none" {
			in.Data.Float32 = []float32{}
		}
		if i == 0 { // the fake reads numbers as float64
			out.Parameters, in.Parameters = nil, nil
		}
		if !reflect.DeepEqual(out, in) {
			t.Errorf("sent %+v\n got %+v", in, out)
		}
	}
	asked := fmt.Sprint(got.Parameters["request"].(map[string]any)["outputs"])
	if asked != "[map[name:y parameters:map[a:b]]]" {
		t.Errorf("requested outputs %s", asked)
	}
}

func TestMetadata(t *testing.T) {
	r := newRig(t, "good", nil)
	s := settings("m", "")
	s.Version = "v2"
	m, err := r.Load(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	want := tensor.ModelMetadata{Name: "m", Versions: []string{"v2"}, Platform: "fake", Parameters: tensor.Parameters{}, Outputs: []tensor.TensorMetadata{},
		Inputs: []tensor.TensorMetadata{{Name: "x", Datatype: tensor.FP32, Shape: []int64{-1}}}}
	if got := m.Metadata(); !reflect.DeepEqual(got, want) {
		t.Errorf("metadata %+v", got)
	}
}

func TestAnswers(t *testing.T) {
	r := newRig(t, "good", nil)
	m := r.load(t, "m", "")
	before := pid(t, m)
	t.Run("data as JSON", func(t *testing.T) {
		got, err := m.Infer(t.Context(), do("json"))
		if err != nil || !reflect.DeepEqual(got.Outputs[0].Data.Int32, []int32{1, 2, 3, 4}) {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("a range outside the payload", func(t *testing.T) {
		_, err := m.Infer(t.Context(), do("bad-range"))
		wantError(t, err, kindFailed, 500, "not in the payload")
	})
	t.Run("an unknown kind", func(t *testing.T) {
		if _, err := m.Infer(t.Context(), do("unknown-kind")); err != nil {
			t.Error(err)
		}
	})
	t.Run("too many inputs", func(t *testing.T) {
		_, err := m.Infer(t.Context(), &tensor.Request{Inputs: make([]tensor.Tensor, maxTensors+1)})
		if e, ok := errors.AsType[*tensor.Error](err); !ok || e.Kind != tensor.KindInvalid {
			t.Error(err)
		}
	})
	for _, test := range []struct {
		sent   object
		kind   string
		status int
		tensor bool
	}{
		{object{"kind": "invalid", "message": "bad x"}, "invalid", 400, true},
		{object{"kind": "failed", "message": "boom", "type": "ValueError", "traceback": "Traceback: line 1"}, "failed", 500, false},
		{object{"kind": "failed", "message": "its own", "status": 400}, "failed", 400, true},
		{object{"kind": "not_found", "message": "none"}, "not_found", 404, true},
		{object{"kind": "unavailable", "message": "later"}, "unavailable", 503, false},
		{object{"kind": "new_kind", "message": "odd", "status": 7}, "new_kind", 500, false},
		{object{"kind": "too_large", "message": "big"}, "too_large", 500, false},
	} {
		t.Run(fmt.Sprint(test.sent["kind"], test.status), func(t *testing.T) {
			request := do("error")
			request.Parameters["error"] = test.sent
			_, err := m.Infer(t.Context(), request)
			wantError(t, err, test.kind, test.status, test.sent["message"].(string))
			if _, ok := errors.AsType[*tensor.Error](err); ok != test.tensor {
				t.Errorf("is a tensor error: %v", ok)
			}
		})
	}
	r.log.await(t, "Traceback: line 1")
	if after := pid(t, m); after != before {
		t.Error("an error cost the worker")
	}
}

func TestPushed(t *testing.T) {
	r := newRig(t, "good", nil)
	m := r.load(t, "m", "")
	if _, err := m.Infer(t.Context(), do("log")); err != nil {
		t.Fatal(err)
	}
	r.log.await(t, `level=WARN msg=careful`)
	r.log.await(t, `model=m`)
	r.log.await(t, "records=3")
	if _, err := m.Infer(t.Context(), do("print")); err != nil {
		t.Fatal(err)
	}
	r.log.await(t, `msg="printed by the model"`)
	if _, err := m.Infer(t.Context(), do("unready")); err != nil {
		t.Fatal(err)
	}
	if m.Ready() { // it was said before the answer
		t.Error("ready, though its code says that it is not")
	}
	_, err := m.Infer(t.Context(), do(""))
	wantError(t, err, kindUnavailable, 503, "its code says so")
}

func TestPlacement(t *testing.T) {
	r := newRig(t, "good", func(c *Config) { c.ParallelWorkers = 3 })
	all := r.load(t, "all", "")
	pids := map[string]bool{}
	for range 9 {
		pids[pid(t, all)] = true
	}
	if len(pids) != 3 {
		t.Errorf("answers of %d workers, want 3", len(pids))
	}
	seen := map[string]int{}
	for i := range 3 {
		s := settings(fmt.Sprint("one-", i), "")
		s.Workers = 1
		m, err := r.Load(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		own := pid(t, m)
		for range 5 {
			if pid(t, m) != own {
				t.Error("a model of one worker is in two")
			}
		}
		seen[own]++
	}
	if len(seen) != 3 {
		t.Errorf("three models of one worker each share workers: %v", seen)
	}
	// Ready as long as one worker has it.
	if _, err := all.Infer(t.Context(), do("die")); err == nil || !all.Ready() {
		t.Errorf("ready %v after one of three died (%v)", all.Ready(), err)
	}
	pid(t, all)
}

func TestWorkersSetting(t *testing.T) {
	for document, want := range map[string]struct {
		workers int
		rest    string
		says    string
	}{
		`{"parameters":{"parallel_workers":2,"uri":"x"}}`: {2, `{"parameters":{"uri":"x"}}`, ""},
		`{"parameters":{"parallel_workers":null}}`:        {0, `{"parameters":{}}`, ""},
		`{"name":"m"}`:                              {0, `{"name":"m"}`, ""},
		`{"parameters":{"parallel_workers":0}}`:     {says: "is 0; it must be above 0"},
		`{"parameters":{"parallel_workers":-1}}`:    {says: "is -1"},
		`{"parameters":{"parallel_workers":"two"}}`: {says: "parameters.parallel_workers"},
		`{"parameters":[]}`:                         {says: "parameters"},
		`[]`:                                        {says: "not a JSON object"},
	} {
		s := Settings{Document: json.RawMessage(document)}
		err := s.takeWorkers()
		if want.says != "" {
			if err == nil || !strings.Contains(err.Error(), want.says) {
				t.Errorf("%s: error %v does not say %q", document, err, want.says)
			}
			continue
		}
		if err != nil || s.Workers != want.workers || string(s.Document) != want.rest {
			t.Errorf("%s: %d workers, %s, %v", document, s.Workers, s.Document, err)
		}
	}
}

func TestPools(t *testing.T) {
	r := newRig(t, "good", nil)
	a := r.load(t, "a", "")
	group := settings("b", "")
	group.InferencePoolGID = "g"
	b, err := r.Load(t.Context(), group)
	if err != nil {
		t.Fatal(err)
	}
	group.Name = "c"
	c, err := r.Load(t.Context(), group)
	if err != nil {
		t.Fatal(err)
	}
	own := settings("d", "")
	own.AutogenerateInferencePoolGID = true
	d, err := r.Load(t.Context(), own)
	if err != nil {
		t.Fatal(err)
	}
	if pid(t, a) == pid(t, b) || pid(t, b) != pid(t, c) || pid(t, d) == pid(t, a) || pid(t, d) == pid(t, b) {
		t.Errorf("workers %s %s %s %s", pid(t, a), pid(t, b), pid(t, c), pid(t, d))
	}
	if n := len(r.Status()); n != 3 {
		t.Errorf("%d workers", n)
	}
	for _, m := range []*Model{b, c, d} {
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if list := r.Status(); len(list) != 1 || list[0].Models != 1 {
		t.Errorf("workers %+v, want that of a", list)
	}
	pid(t, a)
}

// TestKeep: the worker of a pool without models stays while that is wanted, and loads
// the next one.
func TestKeep(t *testing.T) {
	r := newRig(t, "good", nil)
	a := r.load(t, "a", "")
	first := pid(t, a)
	r.Keep(true)
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if list := r.Status(); len(list) != 1 || list[0].Models != 0 {
		t.Errorf("workers %+v, want one without models", list)
	}
	a = r.load(t, "a", "")
	if again := pid(t, a); again != first {
		t.Errorf("worker %s, was %s", again, first)
	}
	r.Keep(false)
	if n := len(r.Status()); n != 1 {
		t.Errorf("%d workers, want that of a", n)
	}
	r.Keep(true)
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.Keep(false)
	if list := r.Status(); len(list) != 0 {
		t.Errorf("workers %+v, want none", list)
	}
}

func TestRoutes(t *testing.T) {
	r := newRig(t, "good", nil)
	m := r.load(t, "m", "")
	routes := m.Routes()
	if len(routes) != 1 || routes[0].Method != "GET" || routes[0].Path != "/things/{thing}" {
		t.Fatalf("routes %+v", routes)
	}
	mux := http.NewServeMux()
	mux.Handle(routes[0].Method+" "+routes[0].Path, routes[0].Handler)
	request := httptest.NewRequest("GET", "/things/7?a=1&b=2", strings.NewReader("12345"))
	request.Header.Set("X-Thing", "yes")
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, request)
	if w.Code != 201 || w.Header().Get("X-Model") != "fake" || w.Header().Get("Content-Length") != "" {
		t.Errorf("status %d, headers %v", w.Code, w.Header())
	}
	for _, want := range []string{`"handler":"ping"`, `"method":"GET"`, `"path":"/things/7"`, `"thing":"7"`, `"query":"a=1\u0026b=2"`, `["x-thing","yes"]`, `"length":5`} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s lacks %s", w.Body, want)
		}
	}
}
