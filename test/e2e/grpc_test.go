package e2e

import (
	"errors"
	"io"
	"strings"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"roundhouse.dev/roundhouse/api/oip"
)

// overGRPC is a client of the node's gRPC port.
func (n *node) overGRPC() oip.GRPCInferenceServiceClient {
	n.t.Helper()
	address := after(n.out.String(), "gRPC                   ")
	if address == "" {
		n.t.Fatalf("up does not say where gRPC is:\n%s", n.out)
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = conn.Close() })
	return oip.NewGRPCInferenceServiceClient(conn)
}

func irisRequest(id string) *oip.ModelInferRequest {
	return &oip.ModelInferRequest{ModelName: "iris", Id: id, Inputs: []*oip.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "FP32",
		Shape: []int64{1, 4}, Contents: &oip.InferTensorContents{Fp32Contents: []float32{5.1, 3.5, 1.4, 0.2}}}}}
}

// TestGRPC asks a model over gRPC: asleep, awake, put to sleep again and woken
// by a stream.
func TestGRPC(t *testing.T) {
	t.Parallel()
	n := startNode(t, "-f", "examples/quickstart")
	client := n.overGRPC()
	ctx := t.Context()
	state := func() string {
		t.Helper()
		index, err := client.RepositoryIndex(ctx, &oip.RepositoryIndexRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range index.GetModels() {
			if m.GetName() == "iris" {
				return m.GetState()
			}
		}
		return "absent"
	}
	eventually(t, "iris is ready to be woken", func() (bool, string) {
		ready, err := client.ModelReady(ctx, &oip.ModelReadyRequest{Name: "iris"})
		return err == nil && ready.GetReady(), n.run("describe", "iris").out
	})
	if s := state(); s != "UNAVAILABLE" {
		t.Errorf("before the first request the index says %s", s)
	}
	answer, err := client.ModelInfer(ctx, irisRequest("7"))
	if err != nil || answer.GetId() != "7" || len(answer.GetOutputs()) != 1 || len(answer.GetOutputs()[0].GetContents().GetFp32Contents()) != 3 {
		t.Fatalf("%v %v", answer, err)
	}
	if s := state(); s != "READY" {
		t.Errorf("after a request the index says %s", s)
	}
	if m, err := client.ModelMetadata(ctx, &oip.ModelMetadataRequest{Name: "iris"}); err != nil || m.GetPlatform() != "xgboost" {
		t.Errorf("%v %v", m, err)
	}
	pid := n.pid("iris")
	if _, err := client.RepositoryModelUnload(ctx, &oip.RepositoryModelUnloadRequest{ModelName: "iris"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the replica is gone", func() (bool, string) {
		return syscall.Kill(pid, 0) != nil, n.run("describe", "iris").out
	})

	stream, err := client.ModelStreamInfer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"1", "2", "3"} {
		if err := stream.Send(irisRequest(id)); err != nil {
			t.Fatal(err)
		}
		if m, err := stream.Recv(); err != nil || len(m.GetOutputs()) != 1 {
			t.Fatalf("%s: %v %v", id, m, err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}

	_, err = client.ModelInfer(ctx, &oip.ModelInferRequest{ModelName: "nope"})
	if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "iris") {
		t.Error(err)
	}
	_, err = client.ModelInfer(ctx, &oip.ModelInferRequest{ModelName: "chat"})
	if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "HTTP alone") {
		t.Error(err)
	}
	_, err = client.ModelInfer(ctx, &oip.ModelInferRequest{ModelName: "iris", Inputs: []*oip.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "FP32", Shape: []int64{-5}}}})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a bad tensor: %v", err)
	}
	if v := n.get(n.admin + "/metrics").body; !strings.Contains(v, `roundhouse_gateway_grpc_calls_total{code="OK",method="ModelInfer",service="default/iris"} 1`) {
		t.Errorf("the metrics do not count the call")
	}
}

// TestGRPCReplicaKilled kills a replica under a stream and under calls: the
// stream ends with a sentence, calls move or fail cleanly, and it is started
// again.
func TestGRPCReplicaKilled(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "iris.yaml", irisManifest("iris", "{minReplicas: 1, maxReplicas: 1}")))
	client, ctx := n.overGRPC(), t.Context()
	pid := n.pid("iris")
	stream, err := client.ModelStreamInfer(ctx)
	if err == nil {
		err = stream.Send(irisRequest("1"))
	}
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	var load sync.WaitGroup
	stop, failed := make(chan struct{}), make(chan error, 10_000)
	for range 4 {
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := client.ModelInfer(ctx, irisRequest("2")); err != nil {
					failed <- err
				}
			}
		})
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "the replica failed within its answer") {
		t.Errorf("the stream ends with %v", err)
	}
	eventually(t, "another process is ready", func() (bool, string) {
		s := n.service("default/iris")
		return len(s.Replicas) == 1 && s.Replicas[0].Phase == "Ready" && s.Replicas[0].PID != pid, n.run("describe", "iris").out
	})
	if _, err := client.ModelInfer(ctx, irisRequest("3")); err != nil {
		t.Error(err)
	}
	close(stop)
	load.Wait()
	close(failed)
	count := 0
	for err := range failed {
		count++
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "default/iris") {
			t.Errorf("not a clean error: %v", err)
		}
	}
	if count > 4 {
		t.Errorf("%d calls failed, at most the 4 in flight may", count)
	}
	t.Logf("%d calls failed", count)
}
