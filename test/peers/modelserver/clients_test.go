//go:build peers

package modelserver

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestClients asks the server with the clients that people use. Each script
// checks what it gets and fails with what is wrong.
func TestClients(t *testing.T) {
	folder := repository(t)
	s := startRoundhouse(t, folder)
	for _, client := range []struct{ script, address string }{
		{"triton_http.py", s.http},
		{"triton_grpc.py", s.grpc},
		{"kserve_rest.py", s.http},
		{"kserve_grpc.py", s.grpc},
	} {
		t.Run(client.script, func(t *testing.T) { python(t, peersPython, client.script, client.address, folder) })
	}
	t.Run("mlserver infer", func(t *testing.T) {
		for _, options := range [][]string{nil, {"--binary-data"}, {"--batch-size", "4"}, {"--workers", "3"}} {
			batch(t, s, options...)
		}
	})
}

// TestSharedMemory has Triton's client pass tensors in shared memory.
func TestSharedMemory(t *testing.T) {
	folder := repository(t)
	prefix := fmt.Sprintf("/roundhouse-%d-", os.Getpid())
	s := startServe(t, folder, []string{"--system-shared-memory", prefix})
	python(t, peersPython, "triton_shm.py", s.http, s.grpc, folder, prefix)
}

// batch has MLServer's batch client send a file of requests.
func batch(t *testing.T, s *server, options ...string) {
	t.Helper()
	const requests = 20
	folder := t.TempDir()
	in, out := filepath.Join(folder, "in.jsonl"), filepath.Join(folder, "out.jsonl")
	var lines []byte
	for i := range requests {
		lines = fmt.Appendf(lines, `{"id":"r%d","inputs":[{"name":"input-0","shape":[1,4],"datatype":"FP32","data":[%d.5,3.5,%d,1.2]}]}`+"\n", i, i, i/4)
	}
	if err := os.WriteFile(in, lines, 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(filepath.Dir(interpreter(t, mlserverPython)), "mlserver")
	run(t, program, append([]string{"infer", "--url", s.http, "--model-name", "iris-xgboost", "--input-data-path", in, "--output-data-path", out}, options...)...)
	written, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = written.Close() }()
	answered := map[string]bool{}
	for lines := bufio.NewScanner(written); lines.Scan(); {
		var answer struct {
			ID         string         `json:"id"`
			Parameters map[string]any `json:"parameters"`
			Outputs    []struct {
				Name  string    `json:"name"`
				Shape []int     `json:"shape"`
				Data  []float64 `json:"data"`
			} `json:"outputs"`
		}
		if err := json.Unmarshal(lines.Bytes(), &answer); err != nil {
			t.Fatalf("%v: %v: %s", options, err, lines.Bytes())
		}
		if len(answer.Outputs) != 1 || answer.Outputs[0].Name != "predict" || len(answer.Outputs[0].Data) != 1 {
			t.Errorf("%v: %s", options, lines.Bytes())
		}
		answered[fmt.Sprint(answer.Parameters["batch_index"])] = true
	}
	if len(answered) != requests {
		t.Errorf("%v: %d of %d requests answered", options, len(answered), requests)
	}
}
