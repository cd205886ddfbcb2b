package main

import (
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"roundhouse.dev/roundhouse/api/oip"
)

// TestServeGRPC asks a served model over gRPC.
func TestServeGRPC(t *testing.T) {
	port := servePort(t)
	iris := filepath.Join(serveModels, "iris.ubj")
	url, _ := startServe(t, iris, "--name", "iris", "--grpc-port", port)
	askServe(t, url+"/v2/models/iris/infer", serveRow) // waits for the model
	conn, err := grpc.NewClient("127.0.0.1:"+port, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	r, err := oip.NewGRPCInferenceServiceClient(conn).ModelInfer(t.Context(), &oip.ModelInferRequest{ModelName: "iris", Id: "1",
		Inputs: []*oip.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "FP32", Shape: []int64{1, 4}, Contents: &oip.InferTensorContents{Fp32Contents: []float32{5.1, 3.5, 1.4, 0.2}}}}})
	if err != nil || r.GetId() != "1" || len(r.GetOutputs()) != 1 || len(r.GetOutputs()[0].GetContents().GetFp32Contents()) != 3 {
		t.Errorf("%v %v", r, err)
	}
	// Servers with only HTTP's port do not meet on gRPC's.
	startServe(t, iris, "--name", "iris")
	startServe(t, iris, "--name", "iris")
}
