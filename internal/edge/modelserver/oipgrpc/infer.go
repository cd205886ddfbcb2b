package oipgrpc

import (
	"context"
	"encoding/base64"
	"errors"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/edge/modelserver"
)

// handleInfer is the handler of ModelInfer.
func handleInfer(service any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
	in := &inferRequest{}
	if err := decode(in); err != nil {
		return nil, err
	}
	s := service.(*inference).server
	info := &grpc.UnaryServerInfo{Server: service, FullMethod: oip.GRPCInferenceService_ModelInfer_FullMethodName}
	return interceptor(ctx, in, info, func(ctx context.Context, _ any) (any, error) { return s.infer(ctx, in) })
}

// infer answers one request.
func (s *Server) infer(ctx context.Context, in *inferRequest) (*inferResponse, error) {
	if in.err != nil {
		return nil, in.err
	}
	modelserver.SetHeaders(&in.Request, requestHeaders(ctx))
	shared, err := s.takeShared(ctx, in)
	if err != nil {
		return nil, err
	}
	response, err := s.service.Infer(ctx, in.ModelName, in.ModelVersion, &in.Request)
	if err != nil {
		return nil, err
	}
	if response, err = shared.Place(response); err != nil {
		return nil, err
	}
	trailer := make(metadata.MD, trailerSize)
	s.addTrailer(trailer, response)
	if err := grpc.SetTrailer(ctx, trailer); err != nil {
		return nil, err
	}
	return encode(response, in.raw)
}

// trailerSize is how many headers a response has by itself.
const trailerSize = 8

// handleStream is the handler of ModelStreamInfer.
func handleStream(service any, stream grpc.ServerStream) error {
	s := service.(*inference).server
	if wantsTriton(stream.Context()) {
		return s.tritonStream(stream)
	}
	return s.inferStream(stream)
}

// inferStream answers a stream of requests. The first names the
// model and whether the outputs are raw.
func (s *Server) inferStream(stream grpc.ServerStream) error {
	first := &inferRequest{}
	if err := stream.RecvMsg(first); errors.Is(err, io.EOF) {
		return tensor.Errorf(tensor.KindInvalid, "the stream has no request")
	} else if err != nil {
		return err
	}
	if first.err != nil {
		return first.err
	}
	// Every request gets headers of its own: a model may change them.
	requests := func(yield func(*tensor.Request, error) bool) {
		for next := first; ; next = new(inferRequest) {
			if next != first {
				if err := stream.RecvMsg(next); errors.Is(err, io.EOF) {
					return
				} else if err != nil {
					next.err = err
				}
			}
			if next.err != nil {
				yield(nil, next.err)
				return
			}
			modelserver.SetHeaders(&next.Request, requestHeaders(stream.Context()))
			if err := s.takeInputs(stream.Context(), next); err != nil {
				yield(nil, err)
				return
			}
			if !yield(&next.Request, nil) {
				return
			}
		}
	}
	trailer := metadata.MD{}
	err := s.service.InferStream(stream.Context(), first.ModelName, first.ModelVersion, requests, func(r *tensor.Response) error {
		s.addTrailer(trailer, r)
		out, err := encode(r, first.raw)
		if err != nil {
			return err
		}
		return s.send(stream, out)
	})
	if len(trailer) > 0 {
		stream.SetTrailer(trailer)
	}
	return err
}

// send sends a message of a stream within the time for it. After an error the
// stream is to end, which lets go of a message that could not be sent.
func (s *Server) send(stream grpc.ServerStream, out *inferResponse) error {
	sent := make(chan error, 1)
	go func() { sent <- stream.SendMsg(out) }()
	timer := time.NewTimer(s.config.WriteTimeout)
	defer timer.Stop()
	select {
	case err := <-sent:
		return err
	case <-timer.C:
		return status.Errorf(codes.DeadlineExceeded, "the client took no message within %v", s.config.WriteTimeout)
	}
}

// binarySuffix ends the names of metadata that hold any bytes.
const binarySuffix = "-bin"

// requestHeaders are the metadata of a call; binary ones in base64, as they are
// on the wire.
func requestHeaders(ctx context.Context) map[string]any {
	md, _ := metadata.FromIncomingContext(ctx)
	headers := make(map[string]any, len(md))
	for name, values := range md {
		if strings.HasSuffix(name, binarySuffix) {
			for i, v := range values {
				values[i] = base64.StdEncoding.EncodeToString([]byte(v))
			}
		}
		if len(values) == 1 {
			headers[name] = values[0]
		} else {
			headers[name] = strings.Join(values, ", ")
		}
	}
	return headers
}

// addTrailer adds the headers that a response asks for to the trailing
// metadata, by lower-case name, over those of earlier ones, and those of
// CloudEvents. A name or value that metadata cannot hold, or that gRPC keeps for
// itself, is left out.
func (s *Server) addTrailer(trailer metadata.MD, r *tensor.Response) {
	for name, value := range modelserver.TakeHeaders(r) {
		name = strings.ToLower(name)
		if !validName(name) {
			continue
		}
		if strings.HasSuffix(name, binarySuffix) {
			decoded, err := base64.StdEncoding.DecodeString(value)
			if err != nil {
				continue
			}
			value = string(decoded)
		} else if !printable(value) {
			continue
		}
		trailer[name] = []string{value}
	}
	s.service.AddCloudEvents(trailer, r)
}

// validName reports whether a model may set the metadata of a name.
func validName(name string) bool {
	if name == "" || strings.HasPrefix(name, "grpc-") || framing[name] {
		return false
	}
	return strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == "" // Trim leaves what is between
}

// framing are the names of metadata of the transport.
var framing = map[string]bool{"connection": true, "content-encoding": true, "content-length": true, "content-type": true, "host": true,
	"keep-alive": true, "proxy-connection": true, "te": true, "trailer": true, "transfer-encoding": true, "upgrade": true}

// printable reports whether a value is ASCII without control characters.
func printable(value string) bool {
	for i := range len(value) {
		if c := value[i]; c < ' ' || c > '~' {
			return false
		}
	}
	return true
}
