package e2e

import (
	"bytes"
	"compress/gzip"
	littleendian "encoding/binary"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"roundhouse.dev/roundhouse/api/oip"
)

// differing are the headers in which the gateway and a replica rightly differ:
// of the connection, and of one answer.
var differing = []string{"Date", "Connection", "Keep-Alive", "X-Request-Id", "Ce-Id", "Ce-Requestid"}

// comparable is what two answers are compared by.
func comparable(h http.Header) string {
	var lines []string
	for name, values := range h {
		if !slices.Contains(differing, name) {
			lines = append(lines, name+": "+strings.Join(values, ", "))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// TestSameAsReplica asks the gateway and its replica the same, good and bad:
// the answers are the same in every byte.
func TestSameAsReplica(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	// Always awake, so that a replica can be asked beside the gateway.
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "iris.yaml", irisManifest("iris", "{minReplicas: 1, maxReplicas: 1}")))
	n.pid("iris")
	replica := n.service("default/iris").Replicas[0]
	if replica.HTTP == "" || replica.GRPC == "" {
		t.Fatalf("the replica has no addresses: %+v", replica)
	}
	row := []float32{5.1, 3.5, 1.4, 0.2}
	var raw []byte
	for _, v := range row {
		raw = littleendian.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	}
	input := func(more string) string {
		return `{"id":"1","inputs":[{"name":"input-0","shape":[1,4],"datatype":"FP32","data":[5.1,3.5,1.4,0.2]` + more
	}
	binaryHead := `{"id":"1","inputs":[{"name":"input-0","shape":[1,4],"datatype":"FP32","parameters":{"binary_data_size":16}}],"outputs":[{"name":"predict","parameters":{"binary_data":true}}]}`
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write([]byte(input(`}]}`)))
	_ = z.Close()
	const infer = "/v2/models/iris/infer"
	for _, c := range []struct {
		method, path, body string
		header             []string
	}{
		{"GET", "/v2/models/iris", "", nil},
		{"HEAD", "/v2/models/iris", "", nil},
		{"GET", "/v2/models/iris/versions/1", "", nil},
		{"POST", infer, input(`}]}`), nil},
		{"POST", infer, "\n\t " + input(`}]}`) + " \r\n", nil},
		{"POST", infer, input(`}],"unknown":{"n":123456789012345678901234567890,"s":"\ud83d\ude82<&>"},"parameters":{"a":1.0}}`), nil},
		{"POST", infer, input(`}],"outputs":[{"name":"predict"}]}`), nil},
		{"POST", infer, input(`}],"outputs":[{"name":"nope"}]}`), nil},
		{"POST", infer, strings.Replace(input(`}]}`), "[1,4]", "[1,3]", 1), nil},
		{"POST", infer, strings.Replace(input(`}]}`), "FP32", "FP8", 1), nil},
		{"POST", infer, strings.Replace(input(`}]}`), "5.1", "1e999", 1), nil},
		{"POST", infer, `{"inputs":`, nil},
		{"POST", infer, "", nil},
		{"POST", infer, "null", nil},
		{"POST", infer, "\x00\xff", nil},
		{"POST", infer, input(`}]}`), []string{"Accept-Encoding", "gzip"}},
		{"POST", infer, zipped.String(), []string{"Content-Encoding", "gzip"}},
		{"POST", infer, "no gzip", []string{"Content-Encoding", "gzip"}},
		{"POST", infer, input(`}]}`), []string{"Content-Encoding", "br"}},
		{"POST", infer, input(`}]}`), []string{"Content-Type", "text/plain; charset=utf-8"}},
		{"POST", infer, binaryHead + string(raw), []string{"Inference-Header-Content-Length", strconv.Itoa(len(binaryHead))}},
		{"POST", infer, binaryHead + string(raw[:7]), []string{"Inference-Header-Content-Length", strconv.Itoa(len(binaryHead))}},
		{"POST", infer, binaryHead, []string{"Inference-Header-Content-Length", "-1"}},
		{"POST", "/v2/models/iris/versions/9/infer", input(`}]}`), nil},
		{"POST", "/v2/models/iris/infer_stream", input(`}]}`), nil},
		{"POST", "/v2/models/iris/nothing", input(`}]}`), nil},
		{"GET", "/v2/models/iris/docs/dataplane.json", "", nil},
		{"POST", "/v1/models/iris:predict", irisRow, nil},
		{"POST", "/v1/models/iris:predict", `{"instances":"x"}`, nil},
		{"POST", "/v1/models/iris:explain", irisRow, nil},
	} {
		c.header = append(c.header, "X-Request-Id", "same", "Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
		through, direct := n.send(c.method, n.gateway+c.path, c.body, c.header...), n.send(c.method, "http://"+replica.HTTP+c.path, c.body, c.header...)
		what := fmt.Sprintf("%s %s %q", c.method, c.path, c.body[:min(len(c.body), 60)])
		t.Logf("%d, %d bytes: %s", direct.status, len(direct.body), what)
		if through.status != direct.status || through.body != direct.body {
			t.Errorf("%s:\nthe gateway answers %d %q\nthe replica        %d %q", what, through.status, through.body, direct.status, direct.body)
		}
		if a, b := comparable(through.header), comparable(direct.header); a != b {
			t.Errorf("%s: headers\n%s\nof the gateway, of the replica\n%s", what, a, b)
		}
	}
	sameOverGRPC(t, n, replica.GRPC, raw)
}

// sameOverGRPC does so over gRPC.
func sameOverGRPC(t *testing.T, n *node, replica string, raw []byte) {
	t.Helper()
	conn, err := grpc.NewClient(replica, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	clients := []oip.GRPCInferenceServiceClient{n.overGRPC(), oip.NewGRPCInferenceServiceClient(conn)}
	changed := func(f func(*oip.ModelInferRequest)) *oip.ModelInferRequest {
		r := irisRequest("1")
		f(r)
		return r
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-request-id", "same", "traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
	compare := func(what string, ask func(oip.GRPCInferenceServiceClient, ...grpc.CallOption) (proto.Message, error)) {
		t.Helper()
		var answers [2]proto.Message
		var errs [2]error
		var ends [2]string
		for i, c := range clients {
			var trailer metadata.MD
			answers[i], errs[i] = ask(c, grpc.Trailer(&trailer))
			for _, name := range []string{"ce-id", "ce-requestid", "content-type"} {
				delete(trailer, name)
			}
			ends[i] = fmt.Sprint(trailer)
		}
		if !proto.Equal(status.Convert(errs[0]).Proto(), status.Convert(errs[1]).Proto()) {
			t.Errorf("%s: the gateway says %v, the replica %v", what, errs[0], errs[1])
		}
		if errs[0] == nil && !proto.Equal(answers[0], answers[1]) {
			t.Errorf("%s: the gateway answers %v, the replica %v", what, answers[0], answers[1])
		}
		if ends[0] != ends[1] {
			t.Errorf("%s: trailers of the gateway %s, of the replica %s", what, ends[0], ends[1])
		}
	}
	for what, r := range map[string]*oip.ModelInferRequest{
		"typed": irisRequest("1"),
		"raw": changed(func(r *oip.ModelInferRequest) {
			r.Inputs[0].Contents, r.RawInputContents = nil, [][]byte{raw}
		}),
		"short raw": changed(func(r *oip.ModelInferRequest) {
			r.Inputs[0].Contents, r.RawInputContents = nil, [][]byte{raw[:5]}
		}),
		"shape":    changed(func(r *oip.ModelInferRequest) { r.Inputs[0].Shape = []int64{1, 3} }),
		"datatype": changed(func(r *oip.ModelInferRequest) { r.Inputs[0].Datatype = "FP8" }),
		"version":  changed(func(r *oip.ModelInferRequest) { r.ModelVersion = "9" }),
		"output": changed(func(r *oip.ModelInferRequest) {
			r.Outputs = []*oip.ModelInferRequest_InferRequestedOutputTensor{{Name: "nope"}}
		}),
		"too large": changed(func(r *oip.ModelInferRequest) {
			r.Inputs[0].Contents, r.RawInputContents = nil, [][]byte{make([]byte, 5<<20)}
		}),
	} {
		compare(what, func(c oip.GRPCInferenceServiceClient, o ...grpc.CallOption) (proto.Message, error) {
			return c.ModelInfer(ctx, r, o...)
		})
	}
	for _, version := range []string{"", "9"} {
		compare("metadata of version "+version, func(c oip.GRPCInferenceServiceClient, o ...grpc.CallOption) (proto.Message, error) {
			return c.ModelMetadata(ctx, &oip.ModelMetadataRequest{Name: "iris", Version: version}, o...)
		})
	}
}
