package extproc

import (
	"strconv"

	pb "roundhouse.dev/roundhouse/api/extproc"
)

// sendHeaders answers a request without body.
func (c *conversation) sendHeaders(p *placed) error {
	c.phase = forwarded
	return c.send(&pb.ProcessingResponse{
		Response:        &pb.ProcessingResponse_RequestHeaders{RequestHeaders: &pb.HeadersResponse{Response: directed(p, -1)}},
		DynamicMetadata: metadataOf(p),
	})
}

// sendBuffered answers a whole body. Envoy refuses a changed one whose length is
// not that of the header.
func (c *conversation) sendBuffered(p *placed) error {
	c.phase = forwarded
	length := -1
	if p.changed {
		length = len(p.head) + len(p.tail)
	}
	r := directed(p, length)
	if p.changed {
		r.BodyMutation = &pb.BodyMutation{Mutation: &pb.BodyMutation_Body{Body: append(p.head, p.tail...)}}
	}
	c.release()
	return c.send(&pb.ProcessingResponse{
		Response:        &pb.ProcessingResponse_RequestBody{RequestBody: &pb.BodyResponse{Response: r}},
		DynamicMetadata: metadataOf(p),
	})
}

// sendStreamed answers the headers, and then gives the body in pieces; ended says
// that no trailers follow.
func (c *conversation) sendStreamed(p *placed, ended bool) error {
	c.phase = forwarded
	err := c.send(&pb.ProcessingResponse{
		Response:        &pb.ProcessingResponse_RequestHeaders{RequestHeaders: &pb.HeadersResponse{Response: directed(p, len(p.head)+len(p.tail))}},
		DynamicMetadata: metadataOf(p),
	})
	if err != nil {
		return err
	}
	stream := &pb.StreamedBodyResponse{}
	r := &pb.ProcessingResponse{Response: &pb.ProcessingResponse_RequestBody{RequestBody: &pb.BodyResponse{Response: streamed(stream)}}}
	err = pieces(p.head, p.tail, func(piece []byte, last bool) error {
		stream.Body, stream.EndOfStream = piece, last && ended
		return c.send(r)
	})
	c.release()
	return err
}

// pieces gives head and tail in pieces of at most maxPiece, at least one.
func pieces(head, tail []byte, give func(piece []byte, last bool) error) error {
	for len(head) > maxPiece {
		if err := give(head[:maxPiece], false); err != nil {
			return err
		}
		head = head[maxPiece:]
	}
	if len(head) > 0 { // what is left of it goes with what follows
		n := min(maxPiece-len(head), len(tail))
		first := append(head, tail[:n]...)
		if tail = tail[n:]; len(tail) == 0 {
			return give(first, true)
		}
		if err := give(first, false); err != nil {
			return err
		}
	}
	for len(tail) > maxPiece {
		if err := give(tail[:maxPiece], false); err != nil {
			return err
		}
		tail = tail[maxPiece:]
	}
	return give(tail, true)
}

func streamed(s *pb.StreamedBodyResponse) *pb.CommonResponse {
	return &pb.CommonResponse{BodyMutation: &pb.BodyMutation{Mutation: &pb.BodyMutation_StreamedResponse{StreamedResponse: s}}}
}

// directed sends a request to its endpoint; length is that of its body, -1 for
// one that is as it was.
func directed(p *placed, length int) *pb.CommonResponse {
	set := []*pb.HeaderValueOption{header(destination, p.destination)}
	if length >= 0 {
		set = append(set, header("content-length", strconv.Itoa(length)))
	}
	if p.saysJSON {
		set = append(set, header("content-type", "application/json"))
	}
	return &pb.CommonResponse{HeaderMutation: &pb.HeaderMutation{SetHeaders: set}, ClearRouteCache: true}
}

// header replaces a header.
func header(name, value string) *pb.HeaderValueOption {
	return &pb.HeaderValueOption{
		Header:       &pb.HeaderValue{Key: name, RawValue: []byte(value)},
		AppendAction: pb.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

// metadataOf says the same as the header, for gateways that go by metadata.
func metadataOf(p *placed) *pb.Struct {
	inner := &pb.Struct{Fields: map[string]*pb.Value{destination: {Kind: &pb.Value_StringValue{StringValue: p.destination}}}}
	return &pb.Struct{Fields: map[string]*pb.Value{metadataNamespace: {Kind: &pb.Value_StructValue{StructValue: inner}}}}
}
