package main

import (
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"roundhouse.dev/roundhouse/api/oip"
)

//go:embed servers.py
var serversScript string

// The request of many elements: rows of the model "wide", as servers.py has it.
const wideRows, wideFeatures = 100, 1500

const (
	serverConnections = 8
	serverTime        = 400 * time.Millisecond // of each side, each round
)

// modelServer is one of those compared, over the same models.
type modelServer struct {
	*process
	name       string
	http, grpc string // "host:port"; no gRPC: ""
	connection *grpc.ClientConn
}

// work is one request in the form that a server gets it.
type work struct {
	what   string
	server *modelServer
	send   func(context.Context, *modelServer) (answers int, err error)
	cpu    []float64 // microseconds an answer, a value a round
}

// servers measures what requests cost the model server, MLServer and a server
// written with FastAPI. All three are one process: MLServer's worker processes
// would add to what it uses.
func servers(ctx context.Context, b *bench) error {
	python := os.Getenv("ROUNDHOUSE_MLSERVER_PYTHON")
	if python == "" {
		return errors.New("ROUNDHOUSE_MLSERVER_PYTHON names no Python with mlserver: `make bench` sets it")
	}
	folder := filepath.Join(b.scratch, "servers")
	if said, err := exec.CommandContext(ctx, python, "-c", serversScript, "repository", folder).CombinedOutput(); err != nil {
		return fmt.Errorf("python: %w: %s", err, said)
	}
	ours, err1 := startServer(ctx, "ours", folder, func(int) *exec.Cmd { return exec.CommandContext(ctx, b.binary, "serve", folder) })
	mlserver, err2 := startServer(ctx, "MLServer", folder, func(int) *exec.Cmd {
		return exec.CommandContext(ctx, filepath.Join(filepath.Dir(python), "mlserver"), "start", folder)
	})
	fastAPI, err3 := startServer(ctx, "FastAPI", folder, func(port int) *exec.Cmd {
		return exec.CommandContext(ctx, python, "-c", serversScript, "serve", folder, strconv.Itoa(port))
	})
	err := errors.Join(err1, err2, err3)
	if err == nil {
		err = compareServers(ctx, b, folder, ours, mlserver, fastAPI)
	}
	for _, s := range []*modelServer{ours, mlserver, fastAPI} {
		if s != nil {
			err = errors.Join(err, s.close())
		}
	}
	return err
}

// startServer starts a server that takes its ports from MLServer's variables,
// or its HTTP port as it is given to command, and waits until it is ready.
func startServer(ctx context.Context, name, folder string, command func(port int) *exec.Cmd) (*modelServer, error) {
	var ports [3]int
	for i := range ports {
		var err error
		if ports[i], err = freePort(); err != nil {
			return nil, err
		}
	}
	cmd := command(ports[0])
	cmd.Dir = folder
	// Threads of xgboost's that spin while they wait would cost MLServer and
	// FastAPI ten times what they need.
	cmd.Env = append(os.Environ(), "MLSERVER_HOST=127.0.0.1", "OMP_WAIT_POLICY=passive")
	for i, what := range []string{"HTTP", "GRPC", "METRICS"} {
		cmd.Env = append(cmd.Env, fmt.Sprintf("MLSERVER_%s_PORT=%d", what, ports[i]))
	}
	p, err := launch(cmd)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s := &modelServer{process: p, name: name, http: loopback(ports[0]), grpc: loopback(ports[1])}
	err = s.until(ctx, readyPause, func() error { return get(ctx, "http://"+s.http+"/v2/health/ready") })
	if err == nil {
		s.connection, err = connect(s.grpc)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), s.stop())
	}
	return s, nil
}

// readyPause is the time between two looks at whether a server is ready.
const readyPause = 20 * time.Millisecond

func connect(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

func (s *modelServer) close() error { return errors.Join(s.connection.Close(), s.stop()) }

// compareServers runs the rounds, after one that is not counted, and prints.
func compareServers(ctx context.Context, b *bench, folder string, ours, mlserver, fastAPI *modelServer) error {
	rows, err := readFloats(filepath.Join(folder, "wide.f32"))
	if err != nil {
		return err
	}
	iris := []float32{5.1, 3.5, 1.4, 0.2}
	oneJSON, manyJSON := posted(post("/v2/models/iris/infer", jsonBody(iris, 1))), posted(post("/v2/models/wide/infer", jsonBody(rows, wideRows)))
	oneRaw, manyRaw := called("iris", iris, 1), called("wide", rows, wideRows)
	groups := [][]*work{
		{{what: "1 row, JSON: FastAPI", server: fastAPI, send: oneJSON}, {what: "1 row, JSON: MLServer", server: mlserver, send: oneJSON}, {what: "1 row, JSON: ours", server: ours, send: oneJSON}},
		{{what: "1 row, gRPC raw: MLServer", server: mlserver, send: oneRaw}, {what: "1 row, gRPC raw: ours", server: ours, send: oneRaw}},
		{{what: "150,000 FP32, JSON: FastAPI", server: fastAPI, send: manyJSON}, {what: "150,000 FP32, JSON: MLServer", server: mlserver, send: manyJSON}, {what: "150,000 FP32, JSON: ours", server: ours, send: manyJSON}},
		{{what: "150,000 FP32, JSON: MLServer", server: mlserver, send: manyJSON}, {what: "150,000 FP32, binary: ours", server: ours, send: posted(binaryPost("wide", rows, wideRows))}},
		{{what: "150,000 FP32, gRPC raw: MLServer", server: mlserver, send: manyRaw}, {what: "150,000 FP32, gRPC raw: ours", server: ours, send: manyRaw}},
	}
	// What the median of ours ÷ MLServer's may be, for each group.
	goals := []float64{1.0 / 20, 1.0 / 20, 1.0 / 8, 1.0 / 100, 1.0 / 3}
	for round := range b.rounds + 1 {
		for _, group := range groups {
			for _, w := range group {
				if err := w.measure(ctx, round > 0); err != nil {
					return fmt.Errorf("%s: %w", w.what, err)
				}
			}
		}
	}
	t := table{title: fmt.Sprintf("Model servers: CPU of the server a request, %d connections (%d paired rounds)", serverConnections, b.rounds)}
	for i, group := range groups {
		for _, w := range group {
			t.rows = append(t.rows, row{what: w.what, samples: w.cpu, unit: "µs"})
		}
		theirs, us := group[len(group)-2], group[len(group)-1]
		t.rows = append(t.rows, row{what: "  ours ÷ MLServer's", samples: pairwise(us.cpu, theirs.cpu, ratio), unit: "×", goal: goals[i]})
	}
	if err := addMemory(&t, ours, mlserver, fastAPI); err != nil {
		return err
	}
	t.print(b.out)
	return nil
}

// addMemory adds what the servers have in memory after all that.
func addMemory(t *table, all ...*modelServer) error {
	for _, s := range all {
		f, err := readFootprint(s.pid())
		if err != nil {
			return err
		}
		t.rows = append(t.rows, row{what: "resident at the end: " + s.name, samples: []float64{f.resident}, unit: "MB"})
	}
	return nil
}

// measure sends for a while and notes the server's CPU time an answer.
func (w *work) measure(ctx context.Context, counts bool) error {
	before, err1 := readCPU(w.server.pid())
	answers, err2 := w.send(ctx, w.server)
	after, err3 := readCPU(w.server.pid())
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	if counts {
		w.cpu = append(w.cpu, (after-before)*1e6/float64(answers))
	}
	return nil
}

// posted sends an HTTP request.
func posted(request []byte) func(context.Context, *modelServer) (int, error) {
	return func(ctx context.Context, s *modelServer) (int, error) {
		l, err := send(ctx, s.http, request, serverConnections, serverTime)
		return l.answers, err
	}
}

// jsonBody is a request of one tensor.
func jsonBody(values []float32, rows int) []byte {
	var b strings.Builder
	_, _ = fmt.Fprintf(&b, `{"inputs":[{"name":"input-0","shape":[%d,%d],"datatype":"FP32","data":[`, rows, len(values)/rows)
	for i, x := range values {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatFloat(float64(x), 'g', -1, 32))
	}
	b.WriteString("]}]}")
	return []byte(b.String())
}

// raw is a tensor's data as the protocol's binary form has it.
func raw(values []float32) []byte {
	var b []byte
	for _, x := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}

// binaryPost is a request of one tensor in the binary extension.
func binaryPost(model string, values []float32, rows int) []byte {
	data := raw(values)
	head := fmt.Sprintf(`{"inputs":[{"name":"input-0","shape":[%d,%d],"datatype":"FP32","parameters":{"binary_data_size":%d}}],"parameters":{"binary_data_output":true}}`,
		rows, len(values)/rows, len(data))
	request := fmt.Sprintf("POST /v2/models/%s/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n%s",
		model, len(head), len(head)+len(data), head)
	return append([]byte(request), data...)
}

// called sends a raw tensor over gRPC.
func called(model string, values []float32, rows int) func(context.Context, *modelServer) (int, error) {
	request := &oip.ModelInferRequest{ModelName: model, RawInputContents: [][]byte{raw(values)},
		Inputs: []*oip.ModelInferRequest_InferInputTensor{{Name: "input-0", Datatype: "FP32", Shape: []int64{int64(rows), int64(len(values) / rows)}}}}
	return func(ctx context.Context, s *modelServer) (int, error) {
		until := time.Now().Add(serverTime)
		answers, errs := make([]int, serverConnections), make([]error, serverConnections)
		var group sync.WaitGroup
		for i := range serverConnections {
			group.Go(func() {
				for errs[i] == nil && time.Now().Before(until) {
					call, cancel := context.WithTimeout(ctx, answerTimeout)
					_, errs[i] = oip.NewGRPCInferenceServiceClient(s.connection).ModelInfer(call, request)
					cancel()
					answers[i]++
				}
			})
		}
		group.Wait()
		all := 0
		for _, n := range answers {
			all += n
		}
		return all, errors.Join(errs...)
	}
}
