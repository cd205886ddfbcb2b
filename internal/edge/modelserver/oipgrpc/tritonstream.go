package oipgrpc

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"

	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/edge/modelserver"
)

// This file answers streams as Triton's clients read them: each response is in a
// ModelStreamInferResponse, and a request that fails is answered with a message, after
// which the stream goes on. The protocol has the responses bare, and a stream cannot tell
// by its bytes which of the two its client reads.

// keyTriton is the metadata by which a client asks for it.
const keyTriton = "x-triton-stream"

func wantsTriton(ctx context.Context) bool {
	values := metadata.ValueFromIncomingContext(ctx, keyTriton)
	return len(values) > 0 && values[0] == "true"
}

// The parameters by which clients of models with any number of responses learn which is
// the last.
const (
	wantsFinal = "triton_enable_empty_final_response"
	isFinal    = "triton_final_response"
)

// tritonStream answers every request of a stream by itself, in their order.
func (s *Server) tritonStream(stream grpc.ServerStream) error {
	for {
		in := &inferRequest{}
		if err := stream.RecvMsg(in); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		err := in.err
		if err == nil {
			err = s.tritonRequest(stream, in)
		}
		if gone := stream.Context().Err(); gone != nil {
			return gone
		}
		if err == nil {
			continue
		}
		if err := s.send(stream, inTriton(&inferResponse{}, statusOf(stream.Context(), err).Message(), in.ID)); err != nil {
			return err
		}
	}
}

// tritonRequest answers one request with what the model sends.
func (s *Server) tritonRequest(stream grpc.ServerStream, in *inferRequest) error {
	final, _ := in.Parameters[wantsFinal].(bool)
	delete(in.Parameters, wantsFinal)
	modelserver.SetHeaders(&in.Request, requestHeaders(stream.Context()))
	shared, err := s.takeShared(stream.Context(), in)
	if err != nil {
		return err
	}
	once := func(yield func(*tensor.Request, error) bool) { yield(&in.Request, nil) }
	put := func(r *tensor.Response) error {
		modelserver.TakeHeaders(r) // a stream's trailer is of all of its requests
		r, err := shared.Place(r)
		if err != nil {
			return err
		}
		out, err := encode(r, in.raw)
		if err != nil {
			return err
		}
		return s.send(stream, inTriton(out, "", ""))
	}
	err = s.service.InferStream(stream.Context(), in.ModelName, in.ModelVersion, once, put)
	if err != nil || !final {
		return err
	}
	return put(&tensor.Response{ModelName: in.ModelName, ModelVersion: in.ModelVersion, ID: in.ID, Parameters: tensor.Parameters{isFinal: true}})
}

// The fields of ModelStreamInferResponse.
const (
	streamError = iota + 1
	streamResponse
)

// inTriton is a response in Triton's message. One with an error is empty but for the
// request's id.
func inTriton(r *inferResponse, failed, id string) *inferResponse {
	if failed != "" {
		inner := appendString(nil, responseID, id)
		out := appendText(nil, streamError, failed)
		return &inferResponse{mem.BufferSlice{mem.SliceBuffer(protowire.AppendBytes(protowire.AppendTag(out, streamResponse, protowire.BytesType), inner))}}
	}
	head := protowire.AppendVarint(protowire.AppendTag(nil, streamResponse, protowire.BytesType), uint64(r.parts.Len()))
	return &inferResponse{append(mem.BufferSlice{mem.SliceBuffer(head)}, r.parts...)}
}
