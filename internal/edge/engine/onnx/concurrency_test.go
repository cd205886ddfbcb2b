package onnx_test

import (
	"fmt"
	"math"
	"os"
	"sync"
	"testing"

	"roundhouse.dev/roundhouse/internal/edge/engine/onnx/onnxtest"
)

// TestThreads bounds the threads of a worker whatever it has loaded.
func TestThreads(t *testing.T) {
	onnxtest.Library(t)
	t.Setenv(asWorker, "1")
	s, cmd := onnxtest.Command(t, os.Args[0])
	count := func() int {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", cmd.Process.Pid))
		if err != nil {
			t.Skipf("threads cannot be counted here: %v", err)
		}
		return len(tasks)
	}
	load(t, s, "linear.onnx")
	before := count()
	for i := range 30 {
		a := s.Ask(map[string]any{"kind": "load", "model": fmt.Sprint(i), "folder": testdata(t),
			"settings": map[string]any{"parameters": map[string]any{"uri": "linear.onnx"}}}, nil)
		if a.Kind != "result" {
			t.Fatalf("%+v", a.Error)
		}
	}
	if after := count(); after > before+4 {
		t.Errorf("%d threads with 31 models, %d with one", after, before)
	}
}

// TestConcurrent loads, asks, cancels and unloads all at once.
func TestConcurrent(t *testing.T) {
	s := loaded(t, "linear.onnx", slow)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 20 {
				switch i {
				case 0:
					key := fmt.Sprint("k", j)
					s.Ask(map[string]any{"kind": "load", "model": key, "folder": testdata(t),
						"settings": map[string]any{"parameters": map[string]any{"uri": "linear.onnx"}}}, nil)
					s.Ask(map[string]any{"kind": "unload", "model": key}, nil)
				case 1:
					header, payload := onnxtest.InferHeader(t, slow, ask(times(math.MaxInt32)))
					id, c := s.Begin(header, payload)
					s.Send(map[string]any{"kind": "cancel", "id": id}, nil)
					if a, _ := s.Await(c); a.Kind != "error" || a.Error.Kind != "cancelled" {
						t.Errorf("got %+v", a)
					}
				default:
					n := int64(1 + (i*31+j)%17)
					a := s.Infer("linear.onnx", ask(rows(n)))
					if a.Kind != "result" || a.Outputs(t)[0].Len() != int(n) {
						t.Errorf("got %+v", a)
					}
				}
			}
		})
	}
	wg.Wait()
}
