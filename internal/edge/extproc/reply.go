package extproc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	pb "roundhouse.dev/roundhouse/api/extproc"
	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/decide/route"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// sendHeaders answers a request without body.
func (c *conversation) sendHeaders(p *admitted) error {
	c.phase = forwarded
	return c.send(&pb.ProcessingResponse{
		Response:        &pb.ProcessingResponse_RequestHeaders{RequestHeaders: &pb.HeadersResponse{Response: directed(p, -1)}},
		DynamicMetadata: metadataOf(p),
	})
}

// sendBuffered answers a whole body. Envoy refuses a changed one whose length is
// not that of the header.
func (c *conversation) sendBuffered(p *admitted) error {
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
func (c *conversation) sendStreamed(p *admitted, ended bool) error {
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
func directed(p *admitted, length int) *pb.CommonResponse {
	set := []*pb.HeaderValueOption{header(pb.Destination, p.destination)}
	if length >= 0 {
		set = append(set, header("content-length", strconv.Itoa(length)))
	}
	if p.saysJSON {
		set = append(set, header("content-type", "application/json"))
	}
	if p.rank != "" {
		set = append(set, header(rankHeader, p.rank))
	}
	remove := p.forged
	for _, h := range [...]struct{ name, value string }{{prefillHeader, p.prefill}, {encodersHeader, p.encoders}} {
		if h.value != "" {
			set = append(set, header(h.name, h.value))
			remove = slices.DeleteFunc(slices.Clone(remove), func(name string) bool { return name == h.name })
		}
	}
	return &pb.CommonResponse{HeaderMutation: &pb.HeaderMutation{SetHeaders: set, RemoveHeaders: remove}, ClearRouteCache: true}
}

// header replaces a header.
func header(name, value string) *pb.HeaderValueOption {
	return &pb.HeaderValueOption{
		Header:       &pb.HeaderValue{Key: name, RawValue: []byte(value)},
		AppendAction: pb.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

// metadataOf returns the header's value as dynamic metadata, for gateways that
// read that.
func metadataOf(p *admitted) *pb.Struct {
	inner := &pb.Struct{Fields: map[string]*pb.Value{pb.Destination: {Kind: &pb.Value_StringValue{StringValue: p.destination}}}}
	return &pb.Struct{Fields: map[string]*pb.Value{pb.MetadataNamespace: {Kind: &pb.Value_StructValue{StructValue: inner}}}}
}

// refusal is an answer in the endpoint's place. It is an error.
type refusal struct {
	status     int
	message    string
	kind       string // OpenAI's type
	param      string
	code       string
	retryAfter time.Duration // 0: none
}

// Error is the message.
func (r *refusal) Error() string { return r.message }

// errUnseen is a request whose model is to be read or replaced in a body that
// is not sent here.
var errUnseen = &refusal{http.StatusInternalServerError,
	"request_body_mode is NONE, and the pool goes by the models that bodies name: set FULL_DUPLEX_STREAMED or BUFFERED in the filter's processing_mode",
	openai.TypeServer, "", "", 0}

func tooLarge(limit int64) error {
	return &refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("body is longer than %d bytes", limit), openai.TypeInvalidRequest, "", "request_too_large", 0}
}

func tooMany(what string) error {
	return &refusal{http.StatusTooManyRequests, "too many " + what + "; try again", openai.TypeRateLimit, "", "overloaded", time.Second}
}

// refusalOf maps an error of a body, of routing or of admission.
func refusalOf(err error) *refusal {
	var own *refusal
	var body *openai.BodyError
	var notFound *route.NotFoundError
	var ambiguous *route.AmbiguousError
	var missing *route.MissingModelError
	var refused *dispatch.Error
	message := err.Error()
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &body):
		param, code := body.Code()
		return &refusal{http.StatusBadRequest, message, openai.TypeInvalidRequest, param, code, 0}
	case errors.As(err, &missing):
		return &refusal{http.StatusBadRequest, message, openai.TypeInvalidRequest, "model", "missing_required_parameter", 0}
	case errors.As(err, &notFound), errors.As(err, &ambiguous):
		return &refusal{http.StatusNotFound, message, openai.TypeNotFound, "model", "model_not_found", 0}
	case errors.As(err, &refused) && errors.Is(err, dispatch.ErrBusy):
		return &refusal{http.StatusTooManyRequests, message, openai.TypeRateLimit, "", "queue_full", refused.RetryAfter}
	case errors.As(err, &refused):
		return &refusal{http.StatusServiceUnavailable, message, openai.TypeServer, "", "model_unavailable", refused.RetryAfter}
	case errors.Is(err, context.DeadlineExceeded):
		return &refusal{http.StatusServiceUnavailable, "no endpoint was free in time", openai.TypeServer, "", "model_unavailable", time.Second}
	}
	return &refusal{http.StatusInternalServerError, message, openai.TypeServer, "", "", 0}
}

// response has Envoy answer.
func (r *refusal) response() *pb.ProcessingResponse {
	set := []*pb.HeaderValueOption{header("content-type", "application/json")}
	if r.retryAfter > 0 {
		set = append(set, header("retry-after", strconv.Itoa(int(math.Ceil(r.retryAfter.Seconds())))))
	}
	code := r.code
	if code == "" {
		code = "refused"
	}
	return &pb.ProcessingResponse{Response: &pb.ProcessingResponse_ImmediateResponse{ImmediateResponse: &pb.ImmediateResponse{
		Status:  &pb.HttpStatus{Code: int32(r.status)},
		Headers: &pb.HeaderMutation{SetHeaders: set},
		Body:    openai.ErrorJSON(r.message, r.kind, r.param, r.code),
		Details: "endpoint_picker_" + code,
	}}}
}
