package epp

import (
	"bytes"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	pb "roundhouse.dev/roundhouse/api/extproc"
)

// answer is what a picker says of a request, as it comes.
type answer struct {
	destination string // as it was written
	headed      bool   // the answer to the header is here
	request     changes
	body        body
	to          []string
}

func (a *answer) whole() bool { return a.headed && a.body.over }

// take takes one message.
func (a *answer) take(m *pb.ProcessingResponse) *Failure {
	if at := m.GetDynamicMetadata().GetFields()[pb.MetadataNamespace].GetStructValue().GetFields()[pb.Destination]; at != nil {
		if text := at.GetStringValue(); text != "" {
			a.destination = text
		}
	}
	switch r := m.Response.(type) {
	case *pb.ProcessingResponse_RequestHeaders:
		a.headed = true
		return a.common(r.RequestHeaders.GetResponse())
	case *pb.ProcessingResponse_RequestBody:
		a.headed = true // a picker of buffered bodies answers here
		if f := a.common(r.RequestBody.GetResponse()); f != nil {
			return f
		}
		return a.body.take(r.RequestBody.GetResponse().GetBodyMutation())
	case *pb.ProcessingResponse_ResponseHeaders, *pb.ProcessingResponse_ResponseBody, *pb.ProcessingResponse_ResponseTrailers:
		return &Failure{Broken, "answered about a response that has not begun"}
	}
	return nil // of trailers, which there are none of, or of a kind that is not known
}

func (a *answer) common(r *pb.CommonResponse) *Failure {
	for _, o := range r.GetHeaderMutation().GetSetHeaders() {
		if strings.EqualFold(o.GetHeader().GetKey(), pb.Destination) && a.destination == "" {
			a.destination = o.GetHeader().Text()
		}
	}
	return a.request.add(r.GetHeaderMutation())
}

// endpoints are the addresses that the picker named, as they are written in the
// pool.
func (a *answer) endpoints() (out []string) {
	for one := range strings.SplitSeq(a.destination, ",") {
		at, err := netip.ParseAddrPort(strings.TrimSpace(one))
		if err != nil {
			continue
		}
		if out = append(out, netip.AddrPortFrom(at.Addr().Unmap(), at.Port()).String()); len(out) == maxEndpoints {
			break
		}
	}
	return out
}

// body puts together the body that a picker gives a request, and notices if it
// is the one that it was given.
type body struct {
	was   []byte
	same  int    // so many bytes came that are those of was
	now   []byte // all that came, once something differed
	other bool
	over  bool
	hold  func(int64) bool
	limit int64
}

func (b *body) changed() bool { return b.other || b.same != len(b.was) }

func (b *body) take(m *pb.BodyMutation) *Failure {
	if b.over {
		return &Failure{Broken, "gave the body more than once"}
	}
	var err *Failure
	switch m := m.GetMutation().(type) {
	case *pb.BodyMutation_StreamedResponse:
		err = b.add(m.StreamedResponse.GetBody())
		b.over = m.StreamedResponse.GetEndOfStream()
		if b.over && !b.other && b.same < len(b.was) { // it ends early
			b.other, b.now = true, b.was[:b.same:b.same]
		}
	case *pb.BodyMutation_Body:
		b.over, b.same = true, 0
		if err = b.add(m.Body); err == nil && !b.other && b.same < len(b.was) {
			b.other, b.now = true, b.was[:b.same:b.same]
		}
	case *pb.BodyMutation_ClearBody:
		b.over, b.other, b.now = true, m.ClearBody, nil
		b.same = len(b.was)
	default: // as it was
		b.over, b.same = true, len(b.was)
	}
	return err
}

// add takes a piece.
func (b *body) add(piece []byte) *Failure {
	if !b.other {
		if n := b.same + len(piece); n <= len(b.was) && bytes.Equal(piece, b.was[b.same:n]) {
			b.same = n
			return nil
		}
		if len(piece) == 0 {
			return nil
		}
		b.other = true
		if err := b.grow(b.same + len(piece)); err != nil {
			return err
		}
		b.now = append(b.now, b.was[:b.same]...)
	}
	if err := b.grow(len(b.now) + len(piece)); err != nil {
		return err
	}
	b.now = append(b.now, piece...)
	return nil
}

// grow makes room for a body of n bytes.
func (b *body) grow(n int) *Failure {
	if int64(n) > b.limit {
		return &Failure{TooLarge, fmt.Sprintf("gave the request a body over %d bytes", b.limit)}
	}
	if n <= cap(b.now) {
		return nil
	}
	size := max(n, 2*cap(b.now), min(len(b.was)+len(b.was)/8, int(b.limit)))
	if b.hold != nil && !b.hold(int64(size-cap(b.now))) {
		return &Failure{TooLarge, "gave the request another body, for which there is no memory: the gateway holds as many request bytes as it may"}
	}
	b.now = append(make([]byte, 0, size), b.now...)
	return nil
}

// immediate is the picker's own answer.
func immediate(m *pb.ImmediateResponse) error {
	out := &Immediate{Status: int(m.GetStatus().GetCode()), Header: http.Header{}, Body: m.GetBody()}
	if out.Status < 200 || out.Status > 599 {
		out.Status = http.StatusInternalServerError
	}
	if len(out.Body) > maxImmediate {
		out.Body = out.Body[:maxImmediate]
	}
	var c changes
	if c.add(m.GetHeaders()) == nil {
		c.apply(out.Header, ownedAnswer)
	}
	return out
}
