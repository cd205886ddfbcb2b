package onnxtest

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/edge/engine/onnx"
	"roundhouse.dev/roundhouse/internal/edge/engine/onnx/ort"
)

// Python names the variable with the interpreter of the peers' tests.
const Python = "ROUNDHOUSE_PEERS_PYTHON"

// Search is where tests look for the library: the variable
// ROUNDHOUSE_ONNXRUNTIME, the system, and the onnxruntime package of the
// peers' interpreter, or of python3.
func Search() ort.Search {
	s := ort.Search{Explicit: os.Getenv("ROUNDHOUSE_ONNXRUNTIME"), Python: os.Getenv(Python)}
	if s.Python == "" {
		s.Python = "python3"
	}
	return s
}

var library = sync.OnceValues(func() (*ort.Library, error) { return Search().Open(context.Background(), 2) })

// Library loads ONNX Runtime, or skips the test with the reason.
func Library(t *testing.T) *ort.Library {
	t.Helper()
	l, err := library()
	if err != nil {
		t.Skipf("ONNX models are not tested: %v", err)
	}
	return l
}

// Start starts a worker inside the test.
func Start(t *testing.T) *Server { return (&Server{MaxFrame: 1 << 24, MaxInFlight: 64}).Start(t) }

// Start is the function of that name, with the limits of s.
func (s *Server) Start(t *testing.T) *Server {
	t.Helper()
	ended := make(chan error, 1)
	s.Listen(t, func(socket string) {
		c := onnx.DefaultConfig()
		c.Socket, c.Token, c.Version, c.Threads, c.Search = socket, Token, "test", 2, Search()
		go func() { ended <- onnx.Run(t.Context(), c) }()
	})
	t.Cleanup(func() {
		s.Close()
		if err := <-ended; err != nil {
			t.Logf("the worker ended with %v", err)
		}
	})
	return s
}

// Command starts a worker as a process of its own.
func Command(t *testing.T, name string, args ...string) (*Server, *exec.Cmd) {
	t.Helper()
	cmd := exec.Command(name)
	s := Listen(t, func(socket string) {
		cmd.Args = append(append(cmd.Args, args...), "--socket", socket)
		cmd.Env = append(os.Environ(), onnx.TokenVariable+"="+Token)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return s, cmd
}

type testCase struct {
	Name     string          `json:"name"`
	Model    string          `json:"model"`
	Request  json.RawMessage `json:"request"`
	Response json.RawMessage `json:"response"`
	// Tolerance is the largest relative difference of a number; 0 is 1e-6.
	Tolerance float64 `json:"tolerance"`
}

// Run asks a worker for every case of dir's cases.json, whose models lie
// beside it.
func Run(t *testing.T, dir string) {
	Library(t)
	dir, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "cases.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []testCase
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) == 0 {
		t.Fatal("there are no cases")
	}
	s := Start(t)
	have := map[string]bool{}
	for _, c := range cases {
		if !have[c.Model] {
			have[c.Model] = true
			if a := s.Load(dir, c.Model); a.Kind != "result" || !a.Ready {
				t.Fatalf("load %s: %+v", c.Model, a.Error)
			}
		}
		t.Run(strings.ReplaceAll(c.Name, "/", "_"), func(t *testing.T) { c.run(t, s) })
	}
}

func (c *testCase) run(t *testing.T, s *Server) {
	r, err := tensor.DecodeRequest(c.Request)
	if err != nil {
		t.Fatal(err)
	}
	want, err := tensor.DecodeResponse(c.Response)
	if err != nil {
		t.Fatal(err)
	}
	if c.Tolerance == 0 {
		c.Tolerance = 1e-6
	}
	answer := s.Infer(c.Model, r)
	got := answer.Outputs(t)
	if len(got) != len(want.Outputs) {
		t.Fatalf("got %d outputs, want %d", len(got), len(want.Outputs))
	}
	for i := range got {
		if err := same(&got[i], &want.Outputs[i], c.Tolerance); err != nil {
			t.Errorf("output %d: %v\ngot  %+v\nwant %+v", i, err, got[i], want.Outputs[i])
		}
	}
}

// same compares tensors; numbers may differ by the tolerance.
func same(got, want *tensor.Tensor, tolerance float64) error {
	if got.Name != want.Name || got.Datatype != want.Datatype || fmt.Sprint(got.Shape) != fmt.Sprint(want.Shape) {
		return fmt.Errorf("got %s %s %v, want %s %s %v", got.Name, got.Datatype, got.Shape, want.Name, want.Datatype, want.Shape)
	}
	if a, b := fmt.Sprint(got.Parameters["classes"]), fmt.Sprint(want.Parameters["classes"]); a != b {
		return fmt.Errorf("classes %s, want %s", a, b)
	}
	if !got.Datatype.Floating() {
		if got.Len() > 0 && !reflect.DeepEqual(got.Data, want.Data) {
			return fmt.Errorf("the data differ")
		}
		return nil
	}
	a, _ := got.AppendFloat64(nil)
	b, _ := want.AppendFloat64(nil)
	for i := range a {
		if math.IsNaN(a[i]) != math.IsNaN(b[i]) || math.Abs(a[i]-b[i]) > tolerance*max(1, math.Abs(b[i])) {
			return fmt.Errorf("element %d is %v, want %v", i, a[i], b[i])
		}
	}
	return nil
}
