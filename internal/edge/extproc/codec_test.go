package extproc

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	pb "roundhouse.dev/roundhouse/api/extproc"
)

// FuzzUnmarshal compares with the generated code, whatever comes.
func FuzzUnmarshal(f *testing.F) {
	for _, r := range []*pb.ProcessingRequest{
		message([]string{"request_body", "x", "end"}), message([]string{"response_body", "xyz"}), message([]string{"response_body", "end"}),
		message([]string{"request_body", "x", "subset=a"}), message([]string{"request_headers", ":path=/", "end"}),
		message([]string{"response_headers", ":status=200", "a=", "b=c"}), message([]string{"request_headers", "x=y", "subset=a"}), {ObservabilityMode: true,
			ProtocolConfig: &pb.ProtocolConfiguration{RequestBodyMode: pb.BodySendMode_FULL_DUPLEX_STREAMED}, Request: &pb.ProcessingRequest_RequestHeaders{RequestHeaders: &pb.HttpHeaders{
				Headers: &pb.HeaderMap{Headers: []*pb.HeaderValue{{Key: "k", RawValue: []byte("\xff")}, {}, {Key: "é", Value: "v", RawValue: []byte("r")}}}}}},
	} {
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(append(b, b...)) // the last counts, or they merge
	}
	f.Add([]byte("\x22\x04\x10\x00\x10\x01"))
	f.Add([]byte("\x22\x04\x0a\x05\x10\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var want pb.ProcessingRequest
		wantErr := proto.Unmarshal(b, &want)
		for _, phase := range []phase{beginning, collecting} {
			c := &conversation{s: &Server{cfg: DefaultConfig()}, phase: phase}
			got := &inbound{to: c}
			half := len(b) / 2
			err := newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(b[:half]), mem.SliceBuffer(b[half:])}, got)
			if body := got.GetRequestBody(); len(c.body) > 0 && len(body.GetBody()) == 0 {
				body.Body = c.body
			}
			if (err == nil) != (wantErr == nil) || (err == nil && !proto.Equal(&got.ProcessingRequest, &want)) {
				t.Fatalf("%v, %v; want %v, %v", got, err, &want, wantErr)
			}
		}
	})
}

// FuzzMarshal has the generated code read what was written.
func FuzzMarshal(f *testing.F) {
	f.Add([]byte("x"), true, true)
	f.Add([]byte(nil), true, false)
	f.Add([]byte(nil), false, false)
	f.Add(bytes.Repeat([]byte("x"), shortBody+1), false, true)
	f.Fuzz(func(t *testing.T, body []byte, end, answer bool) {
		r := &pb.BodyResponse{Response: streamed(&pb.StreamedBodyResponse{Body: body, EndOfStream: end})}
		want := &pb.ProcessingResponse{Response: &pb.ProcessingResponse_RequestBody{RequestBody: r}}
		if answer {
			want = &pb.ProcessingResponse{Response: &pb.ProcessingResponse_ResponseBody{ResponseBody: r}}
		}
		b, err := newCodec().Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got pb.ProcessingResponse
		if err := proto.Unmarshal(b.Materialize(), &got); err != nil || !proto.Equal(&got, want) {
			t.Fatalf("%v, %v; want %v", &got, err, want)
		}
	})
}
