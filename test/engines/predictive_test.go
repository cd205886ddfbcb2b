package engines

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"roundhouse.dev/roundhouse/api/oip"
)

// models makes the models of Triton, MLServer and scikit-learn.
func models(t *testing.T, bin string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	python(t, bin, "repository.py", folder)
	return folder
}

// predictor is an InferenceService of KServe with a model.
func predictor(name, scaling, model string) string {
	return `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: ` + name + `}
spec:
  predictor:
    ` + scaling + `
    ` + model + "\n"
}

func tritonService(name, repository, more string) string {
	return predictor(name, "minReplicas: 1\n    maxReplicas: 1", `model: {modelFormat: {name: triton}, protocolVersion: v2, storageUri: "file://`+repository+`"`+more+`}`)
}

// vector asks double for twice 1, 2 and 3.
const vector = `{"id":"7","inputs":[{"name":"X","datatype":"FP32","shape":[3],"data":[1,2,3]}]}`

// doubles fails unless a body has twice 1, 2 and 3.
func doubles(t *testing.T, a answer) {
	t.Helper()
	if body := strings.ReplaceAll(a.body, " ", ""); a.status != 200 || !strings.Contains(body, `"data":[2.0,4.0,6.0]`) {
		t.Errorf("twice [1, 2, 3] is %s", a)
	}
}

// overGRPC is a client of the gateway's gRPC port.
func (n *node) overGRPC() oip.GRPCInferenceServiceClient {
	n.t.Helper()
	conn, err := grpc.NewClient(n.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = conn.Close() })
	return oip.NewGRPCInferenceServiceClient(conn)
}

// overGRPCDoubles asks double over gRPC.
func (n *node) overGRPCDoubles() {
	n.t.Helper()
	a, err := n.overGRPC().ModelInfer(n.t.Context(), &oip.ModelInferRequest{ModelName: "double", Id: "7",
		Inputs: []*oip.ModelInferRequest_InferInputTensor{{Name: "X", Datatype: "FP32", Shape: []int64{3}}},
		// 1, 2 and 3 as FP32, the lowest byte first.
		RawInputContents: [][]byte{{0, 0, 128, 63, 0, 0, 0, 64, 0, 0, 64, 64}}})
	if err != nil {
		n.t.Fatal(err)
	}
	var got []byte
	if raw := a.GetRawOutputContents(); len(raw) == 1 {
		got = raw[0]
	}
	if want := "\x00\x00\x00\x40\x00\x00\x80\x40\x00\x00\xc0\x40"; a.GetId() != "7" || string(got) != want {
		n.t.Errorf("twice 1, 2, 3 over gRPC is %v", a)
	}
}

// TestTriton asks Triton's Python backend over REST and gRPC, awake and from
// zero, and leaves streams.
func TestTriton(t *testing.T) {
	t.Parallel()
	bin := small.needs(t, "tritonserver", "python")
	n, folder := startNode(t, bin), models(t, bin)
	n.apply(strings.ReplaceAll(tritonService("double", folder+"/triton/double", ""), "minReplicas: 1", "minReplicas: 0") + "---\n" +
		tritonService("count", folder+"/triton/count", ""))
	doubles(t, n.post("/v2/models/double/infer", vector))
	if got := n.service("double").Status.Runtime.Name; got != "kserve-tritonserver" {
		t.Errorf("the runtime is %q, want the catalog's kserve-tritonserver", got)
	}
	n.overGRPCDoubles()
	head := `{"inputs":[{"name":"X","datatype":"FP32","shape":[3],"parameters":{"binary_data_size":12}}]}`
	doubles(t, n.post("/v2/models/double/infer", head+"\x00\x00\x80\x3f\x00\x00\x00\x40\x00\x00\x40\x40",
		"Content-Type", "application/octet-stream", "Inference-Header-Content-Length", strconv.Itoa(len(head))))
	if a := n.post("/v2/models/double/infer", `{"inputs":[{"name":"Z","datatype":"FP32","shape":[1],"data":[1]}]}`); a.status != 400 || !strings.Contains(a.body, "unexpected inference input 'Z'") {
		t.Errorf("Triton's own refusal comes as %s", a)
	}
	if a := n.post("/v2/models/count/generate_stream", `{"N":3}`); a.status != 200 || strings.Count(a.body, "data: {") != 3 {
		t.Errorf("a stream of three: %s", a)
	}

	// Ten thousand numbers take minutes, unless the engine learns that nobody
	// reads them.
	page := n.ready("count", 1)[0].metrics()
	n.figure(page, "nv_inference_request_success", 1) // the stream of three, which is counted a moment later
	s := n.stream("/v2/models/count/generate_stream", `{"N":10000}`)
	s.cancel()
	n.figure(page, "nv_inference_request_success", 2)
	n.reads("triton", page)
	n.scraped()
	n.leaveOverGRPC("count")
	n.figure(page, "nv_inference_request_success", 3)

	s = n.stream("/v2/models/count/generate_stream", `{"N":10000}`)
	n.edited("count", tritonService("count", folder+"/triton/count", ", args: [--log-verbose=0]"), s)
}

// leaveOverGRPC begins a stream of ten thousand numbers and leaves it.
func (n *node) leaveOverGRPC(model string) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(n.t.Context())
	defer cancel()
	stream, err := n.overGRPC().ModelStreamInfer(ctx)
	if err != nil {
		n.t.Fatal(err)
	}
	err = stream.Send(&oip.ModelInferRequest{ModelName: model, Inputs: []*oip.ModelInferRequest_InferInputTensor{{Name: "N", Datatype: "INT32",
		Shape: []int64{1}, Contents: &oip.InferTensorContents{IntContents: []int32{10000}}}}})
	if err != nil {
		n.t.Fatal(err)
	}
	for range 2 {
		if _, err := stream.Recv(); err != nil {
			n.t.Fatal(err)
		}
	}
	cancel()
	for {
		if _, err := stream.Recv(); err != nil {
			if status.Code(err) != codes.Canceled {
				n.t.Errorf("a stream that was left ends with %v", err)
			}
			return
		}
	}
}

// TestTritonFails kills Triton and the process of its model within streams, and
// names why it does not start.
func TestTritonFails(t *testing.T) {
	t.Parallel()
	bin := small.needs(t, "tritonserver", "python")
	n, folder := startNode(t, bin), models(t, bin)
	model := filepath.Join(folder, "triton/double/double/1/model.py")
	if err := os.WriteFile(model, []byte("import no_such_module\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.apply(tritonService("count", folder+"/triton/count", "") + "---\n" + tritonService("double", folder+"/triton/double", "") + "---\n" +
		strings.Replace(tritonService("count", folder+"/triton/count", `, args: [--no-such-flag]`), "name: count", "name: flag", 1) + "---\n" +
		strings.Replace(tritonService("count", "/no/such/repository", ""), "name: count", "name: absent", 1))
	n.killedUnanswered("count", func() answer { return n.post("/v2/models/count/generate_stream", `{"N":3}`) })
	was := n.ready("count", 1)[0]
	s := n.stream("/v2/models/count/generate_stream", `{"N":10000}`)
	for _, stub := range children(t, was.PID, "triton_python_b") {
		kill(t, stub)
	}
	events := s.rest()
	contains(t, events[len(events)-1], "Stub process 'count_0_", "is not healthy") // Triton's own error, which it answers from then on
	for _, path := range []string{"/v2/health/live", "/v2/health/ready", "/v2/models/count/ready"} {
		// It may have been ended by now. Where it tells by itself, the catalog's probe can ask it.
		if resp, err := begin(t.Context(), "GET", "http://"+was.HTTP+path, ""); err == nil {
			if _ = resp.Body.Close(); resp.StatusCode != http.StatusOK && n.service("count").Replicas[0].PID == was.PID {
				t.Errorf("%s tells of the dead process: %d", path, resp.StatusCode)
			}
		}
	}
	n.restarted("count", was.PID) // by the liveness probe
	if a := n.post("/v2/models/count/generate_stream", `{"N":3}`); a.status != 200 || strings.Count(a.body, "data: {") != 3 || strings.Contains(a.body, "error") {
		t.Errorf("after the process of the model died: %s", a)
	}
	was = n.ready("count", 1)[0]
	s = n.stream("/v2/models/count/generate_stream", `{"N":10000}`)
	kill(t, was.PID)
	events = s.rest()
	contains(t, events[len(events)-1], "event: error\ndata: {\"error\":")
	n.restarted("count", was.PID)
	if a := n.post("/v2/models/count/generate_stream", `{"N":3}`); a.status != 200 {
		t.Errorf("after the restart: %s", a)
	}
	for name, cause := range map[string]string{"double": "No module named 'no_such_module'", "flag": "no-such-flag", "absent": "/no/such/repository"} {
		n.eventually("get names the cause for "+name, func() (bool, string) {
			out := n.do("get", name)
			return strings.Contains(out, cause), out
		})
		t.Log(n.do("get", name))
	}
}

// kserveService is a custom predictor on KServe's Python server.
func kserveService(t *testing.T, name, scaling, more string) string {
	t.Helper()
	script, err := filepath.Abs("kserve_model.py")
	if err != nil {
		t.Fatal(err)
	}
	return predictor(name, scaling, `containers:
      - name: kserve-container
        image: example.com/`+name+`
        command: [python, `+script+`]
        args: [--model_name=`+name+`, --http_port=8080, --enable_grpc=false`+more+`]
        ports: [{containerPort: 8080}]`)
}

// TestKServe asks a custom predictor on KServe's Python server.
func TestKServe(t *testing.T) {
	t.Parallel()
	bin := small.needs(t, "python")
	n := startNode(t, bin)
	n.apply(kserveService(t, "double", "minReplicas: 0", "") + "---\n" +
		kserveService(t, "count", "minReplicas: 1\n    maxReplicas: 1", "") + "---\n" +
		kserveService(t, "flag", "minReplicas: 1", ", --http_port=none"))
	if a := n.post("/v1/models/double:predict", `{"instances":[1,2,3]}`); a.status != 200 || !strings.Contains(strings.ReplaceAll(a.body, " ", ""), `[2,4,6]`) {
		t.Errorf("twice [1, 2, 3] over v1: %s", a)
	}
	doubles(t, n.post("/v2/models/double/infer", vector))
	was := n.ready("count", 1)[0]
	const ask = `{"instances":[10000]}`
	s := n.stream("/v1/models/count:predict", ask)
	n.figure(was.metrics(), "count_streams", 1)
	s.cancel()
	n.figure(was.metrics(), "count_streams", 0)

	s = n.stream("/v1/models/count:predict", ask)
	kill(t, was.PID)
	if raw, err := io.ReadAll(s.from); err == nil {
		t.Errorf("an answer that its replica broke off ends as if it were whole: %q", raw)
	}
	n.restarted("count", was.PID)
	n.killedUnanswered("count", func() answer { return n.post("/v1/models/count:predict", `{"instances":[3]}`) })
	s = n.stream("/v1/models/count:predict", ask)
	n.edited("count", kserveService(t, "count", "minReplicas: 1\n    maxReplicas: 1", ", --workers=1"), s)
	n.eventually("get names the cause", func() (bool, string) {
		out := n.do("get", "flag")
		return strings.Contains(out, "argument --http_port: invalid int value: 'none'"), out
	})
}
