package worker

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// processTime is the CPU time of this process so far, workers not counted.
func processTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkInfer is the round trip of one request to an echoing Python model:
// wall time, and the server's own share of it as cpu-ns/op.
func BenchmarkInfer(b *testing.B) {
	p := pythonProgram(realPython(b))
	e, err := New(DefaultConfig(), func(context.Context, Environment) (*Program, error) { return &p, nil }, nil, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = e.Close(context.Background()) }()
	folder := b.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "models.py"), []byte(`
from mlserver import MLModel, types
class Model(MLModel):
    async def predict(self, payload):
        return types.InferenceResponse(model_name=self.name, outputs=[
            types.ResponseOutput(name=i.name, shape=i.shape, datatype=i.datatype, data=i.data) for i in payload.inputs])
`), 0o600); err != nil {
		b.Fatal(err)
	}
	s := settings("echo", "models.Model")
	s.Folder = folder
	m, err := e.Load(b.Context(), s)
	if err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{4, 150_000} {
		for _, clients := range []int{1, 16} {
			b.Run(fmt.Sprintf("elements=%d/clients=%d", size, clients), func(b *testing.B) {
				r := &tensor.Request{ID: "1", Inputs: []tensor.Tensor{floats(make([]float32, size)...)}}
				b.SetBytes(int64(8 * size))
				b.ReportAllocs()
				began := processTime()
				var wg sync.WaitGroup
				for c := range clients {
					wg.Go(func() {
						for i := c; i < b.N; i += clients {
							if _, err := m.Infer(context.Background(), r); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(processTime()-began)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}
