package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
)

// processing is one conversation of Envoy's external processing.
type processing = grpc.BidiStreamingClient[extprocv3.ProcessingRequest, extprocv3.ProcessingResponse]

// converse does with a request what Envoy does: it leads a conversation of external
// processing with a picker, has send send what the picker makes of the request, and
// shows the picker the answer as it comes.
func converse(ctx context.Context, conn *grpc.ClientConn, path, body string, header http.Header, send func(*http.Request) (*http.Response, error)) (answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := extprocv3.NewExternalProcessorClient(conn).Process(ctx)
	if err != nil {
		return answer{}, err
	}
	head := map[string]string{":method": "POST", ":path": path, ":authority": "gw", "content-type": "application/json", "content-length": strconv.Itoa(len(body))}
	for name := range header {
		head[strings.ToLower(name)] = header.Get(name)
	}
	half := len(body) / 2
	for _, m := range []*extprocv3.ProcessingRequest{
		{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: headerMap(head)}}},
		{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte(body[:half])}}},
		{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte(body[half:]), EndOfStream: true}}},
	} {
		if err := stream.Send(m); err != nil {
			return answer{}, err
		}
	}
	request, refused, err := directed(ctx, stream, head)
	if err != nil || request == nil {
		return refused, err
	}
	resp, err := send(request)
	if err != nil { // Envoy answers itself
		resp = &http.Response{StatusCode: http.StatusServiceUnavailable, Body: http.NoBody}
	}
	defer func() { _ = resp.Body.Close() }()
	return shown(stream, resp, err == nil)
}

func headerMap(pairs map[string]string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for key, value := range pairs {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: key, RawValue: []byte(value)})
	}
	return m
}

// directed reads what a picker makes of a request; the request is nil where the picker
// answers it.
func directed(ctx context.Context, stream processing, head map[string]string) (request *http.Request, refused answer, err error) {
	var body bytes.Buffer
	for ended := false; !ended; {
		r, err := stream.Recv()
		if err != nil {
			return nil, answer{}, err
		}
		if i := r.GetImmediateResponse(); i != nil {
			return nil, answer{int(i.GetStatus().GetCode()), nil, string(i.GetBody())}, nil
		}
		m := r.GetRequestHeaders().GetResponse().GetHeaderMutation()
		for _, h := range m.GetSetHeaders() {
			head[h.GetHeader().GetKey()] = string(h.GetHeader().GetRawValue())
		}
		for _, name := range m.GetRemoveHeaders() {
			delete(head, name)
		}
		piece := r.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		_, _ = body.Write(piece.GetBody()) // it never fails
		ended = piece.GetEndOfStream()
	}
	if length := head["content-length"]; length != strconv.Itoa(body.Len()) {
		return nil, answer{}, fmt.Errorf("the picker says content-length %s of %d bytes", length, body.Len())
	}
	to := head["x-gateway-destination-endpoint"]
	if request, err = http.NewRequestWithContext(ctx, head[":method"], "http://"+to+head[":path"], &body); err != nil {
		return nil, answer{}, err
	}
	for name, value := range head {
		if name[0] != ':' {
			request.Header.Set(name, value)
		}
	}
	return request, answer{}, nil
}

// shown shows a picker an answer, and returns it as the client gets it.
func shown(stream processing, resp *http.Response, upstream bool) (got answer, err error) {
	head := map[string]string{":status": strconv.Itoa(resp.StatusCode)}
	if upstream {
		head["x-envoy-upstream-service-time"] = "1"
	}
	for name := range resp.Header {
		head[strings.ToLower(name)] = resp.Header.Get(name)
	}
	if err := stream.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{Headers: headerMap(head)}}}); err != nil {
		return got, err
	}
	if r, err := stream.Recv(); err != nil || r.GetResponseHeaders() == nil {
		return got, fmt.Errorf("of the answer's headers the picker says %v: %w", r, err)
	}
	got = answer{resp.StatusCode, resp.Header, ""}
	buf := make([]byte, 4096)
	for ended := false; !ended; {
		n, err := resp.Body.Read(buf)
		if ended = errors.Is(err, io.EOF); err != nil && !ended {
			return got, err
		}
		if err := stream.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: buf[:n], EndOfStream: ended}}}); err != nil {
			return got, err
		}
		r, err := stream.Recv()
		if err != nil {
			return got, err
		}
		piece := r.GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if piece.GetEndOfStream() != ended {
			return got, fmt.Errorf("the picker says %v of %d bytes of an answer", r, n)
		}
		got.body += string(piece.GetBody())
	}
	return got, nil
}
