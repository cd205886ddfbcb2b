package extproc

import (
	"fmt"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "roundhouse.dev/roundhouse/api/extproc"
)

// codec is gRPC's codec for protobuf, except that bodies, nearly all of the
// bytes, are copied once on their way in and not at all on their way out:
// pieces that come go from the transport's buffers to the conversation's body,
// those that go are written from where they are. gRPC's own copies twice, with
// a buffer of 1 MiB, cleared, for each piece over 32 KiB.
//
// So the bytes of a piece that was sent must not change any more.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(encodingproto.Name)} }

// inbound is a message to receive.
type inbound struct {
	pb.ProcessingRequest
	// to takes the piece of a request's body instead of the message. err is
	// why it did not.
	to  *conversation
	err error
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(*inbound)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	if r.to != nil && r.to.phase == collecting && r.requestBody(data) {
		return nil
	}
	b := make([]byte, data.Len())
	data.CopyTo(b)
	if r.headers(b) {
		return nil
	}
	return proto.Unmarshal(b, &r.ProcessingRequest)
}

// maxAround is what a piece of a body has before it, and behind it.
const maxAround = 24

// requestBody takes a message that is a piece of a request's body and nothing
// else, written as every encoder writes it: {request_body 4: {body 1,
// end_of_stream 2}}. ok is false for any other; nothing is taken then.
func (r *inbound) requestBody(data mem.BufferSlice) (ok bool) {
	total := data.Len()
	var around [maxAround]byte
	head := around[:copyAt(around[:], data, 0)]
	at, size, ok := field(head, 0, 4)
	if !ok || at+size != total {
		return false
	}
	at, size, ok = field(head, at, 1)
	if !ok || total-at-size > 2 || at+size > total {
		return false
	}
	end := false
	if total > at+size {
		var tail [2]byte
		if copyAt(tail[:], data, at+size) != 2 || tail[0] != 2<<3 || tail[1] > 1 {
			return false
		}
		end = tail[1] == 1
	}
	var dst []byte
	if dst, r.err = r.to.extend(size); r.err == nil {
		copyAt(dst, data, at)
	}
	r.Request = &pb.ProcessingRequest_RequestBody{RequestBody: &pb.HttpBody{EndOfStream: end}}
	return true
}

// headers takes a message that has the headers of a request or an answer, since each
// conversation has both, and to read them by reflection makes a fifth of its allocations.
// ok is false for any other, and for one that has a field twice, or one that is not known.
func (r *inbound) headers(b []byte) (ok bool) {
	var m pb.ProcessingRequest
	var seen uint
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 || number > fieldProtocolConfig || seen&(1<<number) != 0 {
			return false
		}
		seen |= 1 << number
		if number == fieldObservability && kind == protowire.VarintType {
			v, size := protowire.ConsumeVarint(b[n:])
			if size < 0 {
				return false
			}
			m.ObservabilityMode, b = v != 0, b[n+size:]
			continue
		}
		value, size := protowire.ConsumeBytes(b[n:])
		if kind != protowire.BytesType || size < 0 {
			return false
		}
		b = b[n+size:]
		var err error
		switch number {
		case fieldRequestHeaders, fieldResponseHeaders:
			h := readHeaders(value)
			switch {
			case h == nil || m.Request != nil:
				return false
			case number == fieldRequestHeaders:
				m.Request = &pb.ProcessingRequest_RequestHeaders{RequestHeaders: h}
			default:
				m.Request = &pb.ProcessingRequest_ResponseHeaders{ResponseHeaders: h}
			}
		case fieldMetadata:
			m.MetadataContext = &pb.Metadata{}
			err = proto.Unmarshal(value, m.MetadataContext)
		case fieldProtocolConfig:
			m.ProtocolConfig = &pb.ProtocolConfiguration{}
			err = proto.Unmarshal(value, m.ProtocolConfig)
		default:
			return false
		}
		if err != nil {
			return false
		}
	}
	if m.Request == nil {
		return false
	}
	r.Request, r.MetadataContext, r.ObservabilityMode, r.ProtocolConfig = m.Request, m.MetadataContext, m.ObservabilityMode, m.ProtocolConfig
	return true
}

// The fields of a pb.ProcessingRequest that headers reads.
const (
	fieldRequestHeaders  = 2
	fieldResponseHeaders = 3
	fieldMetadata        = 8
	fieldObservability   = 10
	fieldProtocolConfig  = 11
)

// readHeaders reads {headers 1: {headers 1: {key 1, value 2, raw_value 3}…},
// end_of_stream 3}; nil for anything else. The texts share one copy.
func readHeaders(b []byte) *pb.HttpHeaders {
	out := &pb.HttpHeaders{}
	if at, size, ok := field(b, 0, 1); ok && at+size <= len(b) {
		if out.Headers = readHeaderMap(b[at : at+size]); out.Headers == nil {
			return nil
		}
		b = b[at+size:]
	}
	switch {
	case len(b) == 0:
	case len(b) == 2 && b[0] == 3<<3 && b[1] <= 1:
		out.EndOfStream = b[1] == 1
	default:
		return nil
	}
	return out
}

func readHeaderMap(b []byte) *pb.HeaderMap {
	count := 0
	for at := 0; at < len(b); count++ {
		begin, size, ok := field(b, at, 1)
		if at = begin + size; !ok || at > len(b) {
			return nil
		}
	}
	out := &pb.HeaderMap{Headers: make([]*pb.HeaderValue, count)}
	values, text := make([]pb.HeaderValue, count), string(b)
	at := 0
	for i := range values {
		begin, size, _ := field(b, at, 1)
		at = begin + size
		if !readHeader(&values[i], b, text, begin, at) {
			return nil
		}
		out.Headers[i] = &values[i]
	}
	return out
}

// readHeader reads one from b, which is also text, its fields in order.
func readHeader(to *pb.HeaderValue, b []byte, text string, at, end int) (ok bool) {
	for number := protowire.Number(1); number <= 3 && at < end; number++ {
		begin, size, ok := field(b[:end], at, number)
		if !ok {
			continue // it is the next, or none
		}
		if at = begin + size; at > end || number < 3 && !utf8.ValidString(text[begin:at]) {
			return false
		}
		switch number {
		case 1:
			to.Key = text[begin:at]
		case 2:
			to.Value = text[begin:at]
		case 3:
			to.RawValue = b[begin:at:at]
		}
	}
	return at == end
}

// field reads the tag and the length of a field that must be there.
func field(b []byte, at int, number protowire.Number) (begin, size int, ok bool) {
	got, kind, n := protowire.ConsumeTag(b[at:])
	if n < 0 || got != number || kind != protowire.BytesType {
		return 0, 0, false
	}
	length, m := protowire.ConsumeVarint(b[at+n:])
	if m < 0 || length > 1<<40 {
		return 0, 0, false
	}
	return at + n + m, int(length), true
}

// copyAt copies from an offset of data and returns how much there was.
func copyAt(dst []byte, data mem.BufferSlice, offset int) (n int) {
	for _, b := range data {
		part := b.ReadOnlyData()
		if offset >= len(part) {
			offset -= len(part)
			continue
		}
		n += copy(dst[n:], part[offset:])
		if offset = 0; n == len(dst) {
			break
		}
	}
	return n
}

// shortBody is up to what length a piece is copied: a buffer of its own costs
// more.
const shortBody = 4 << 10

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	r, ok := v.(*pb.ProcessingResponse)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	var s *pb.StreamedBodyResponse
	field := protowire.Number(0)
	switch m := r.Response.(type) {
	case *pb.ProcessingResponse_RequestBody:
		field, s = 3, m.RequestBody.GetResponse().GetBodyMutation().GetStreamedResponse()
	case *pb.ProcessingResponse_ResponseBody:
		field, s = 4, m.ResponseBody.GetResponse().GetBodyMutation().GetStreamedResponse()
	}
	if s == nil {
		b, err := proto.Marshal(r)
		if err != nil {
			return nil, fmt.Errorf("extproc: %w", err)
		}
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	return marshalPiece(field, s), nil
}

// marshalPiece writes {field: {response 1: {body_mutation 3:
// {streamed_response 3: {end_of_stream 2, body 1}}}}}, the body last.
func marshalPiece(field protowire.Number, s *pb.StreamedBodyResponse) mem.BufferSlice {
	within := 0
	if s.EndOfStream {
		within += 2
	}
	if len(s.Body) > 0 {
		within += 1 + protowire.SizeBytes(len(s.Body))
	}
	mutation := 1 + protowire.SizeBytes(within)
	common := 1 + protowire.SizeBytes(mutation)
	response := 1 + protowire.SizeBytes(common)
	dst := 32
	if len(s.Body) <= shortBody {
		dst += len(s.Body)
	}
	b := make([]byte, 0, dst)
	for _, level := range []struct {
		field protowire.Number
		size  int
	}{{field, response}, {1, common}, {3, mutation}, {3, within}} {
		b = protowire.AppendTag(b, level.field, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(level.size))
	}
	if s.EndOfStream {
		b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), 1)
	}
	if len(s.Body) == 0 {
		return mem.BufferSlice{mem.SliceBuffer(b)}
	}
	b = protowire.AppendTag(b, 1, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(len(s.Body)))
	if len(s.Body) <= shortBody {
		return mem.BufferSlice{mem.SliceBuffer(append(b, s.Body...))}
	}
	return mem.BufferSlice{mem.SliceBuffer(b), mem.SliceBuffer(s.Body)}
}
