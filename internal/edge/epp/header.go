package epp

import (
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	pb "roundhouse.dev/roundhouse/api/extproc"
)

// changes are what a picker changes of a header, in its order.
type changes struct {
	sets    []*pb.HeaderValueOption
	removes []string
	bytes   int
}

// add takes changes, as long as there are not too many.
func (c *changes) add(m *pb.HeaderMutation) *Failure {
	for _, o := range m.GetSetHeaders() {
		c.bytes += len(o.GetHeader().GetKey()) + len(o.GetHeader().GetValue()) + len(o.GetHeader().GetRawValue())
	}
	for _, name := range m.GetRemoveHeaders() {
		c.bytes += len(name)
	}
	c.sets, c.removes = append(c.sets, m.GetSetHeaders()...), append(c.removes, m.GetRemoveHeaders()...)
	if len(c.sets)+len(c.removes) > maxChanges || c.bytes > maxChangedBytes {
		return &Failure{TooLarge, fmt.Sprintf("changes more than %d headers, or %d bytes of them", maxChanges, maxChangedBytes)}
	}
	return nil
}

// apply makes the changes, but for names that are not the picker's to change,
// and values that no header may have. An action that is not stated replaces:
// on the wire it cannot be told from appending, and all pickers mean that.
func (c *changes) apply(h http.Header, owned func(name string) bool) {
	for _, name := range c.removes {
		if name = textproto.CanonicalMIMEHeaderKey(name); !owned(name) {
			delete(h, name)
		}
	}
	for _, o := range c.sets {
		key, value := o.GetHeader().GetKey(), o.GetHeader().Text()
		if !httpguts.ValidHeaderFieldName(key) || !httpguts.ValidHeaderFieldValue(value) {
			continue
		}
		name := textproto.CanonicalMIMEHeaderKey(key)
		if owned(name) {
			continue
		}
		_, there := h[name]
		switch o.GetAppendAction() {
		case pb.HeaderValueOption_ADD_IF_ABSENT:
			if there {
				continue
			}
		case pb.HeaderValueOption_OVERWRITE_IF_EXISTS:
			if !there {
				continue
			}
		case pb.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD, pb.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD:
		}
		h[name] = []string{value}
	}
}

// ofConnection reports whether a field belongs to one connection, or to the form
// of a message: whoever sends the message writes it.
func ofConnection(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Expect", "Host", "Content-Length":
		return true
	}
	return false
}

// ownedRequest are the fields of a request that the gateway writes: who has
// sent it, and where it goes.
func ownedRequest(name string) bool {
	switch name {
	case "X-Request-Id", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Traceparent", "X-Gateway-Destination-Endpoint":
		return true
	}
	return ofConnection(name)
}

// ownedAnswer are those of an answer.
func ownedAnswer(name string) bool { return name == "X-Request-Id" || ofConnection(name) }

// requestHeaders is the header of a request, as Envoy writes it.
func requestHeaders(r *Request) *pb.HeaderMap {
	out := make([]*pb.HeaderValue, 0, len(r.Header)+6)
	out = append(out, value(":method", r.Method), value(":scheme", r.Scheme), value(":authority", r.Authority), value(":path", r.Path))
	if len(r.Body) > 0 {
		out = append(out, value("content-length", strconv.Itoa(len(r.Body))))
	}
	return &pb.HeaderMap{Headers: fields(out, r.Header)}
}

// answerHeaders is the header of an answer.
func answerHeaders(status int, h http.Header) *pb.HeaderMap {
	return &pb.HeaderMap{Headers: fields([]*pb.HeaderValue{value(":status", strconv.Itoa(status))}, h)}
}

// fields appends those of h that are not of one connection.
func fields(out []*pb.HeaderValue, h http.Header) []*pb.HeaderValue {
	dropped := h["Connection"]
	for name, values := range h {
		if ofConnection(name) || slices.ContainsFunc(dropped, func(list string) bool { return lists(list, name) }) {
			continue
		}
		lower := strings.ToLower(name)
		for _, v := range values {
			out = append(out, value(lower, v))
		}
	}
	return out
}

// lists reports whether a list with commas has a name.
func lists(list, name string) bool {
	for one := range strings.SplitSeq(list, ",") {
		if strings.EqualFold(textproto.TrimString(one), name) {
			return true
		}
	}
	return false
}

func value(name, v string) *pb.HeaderValue { return &pb.HeaderValue{Key: name, RawValue: []byte(v)} }

// servedBy returns which endpoint has answered.
func servedBy(address string) *pb.Metadata {
	inner := &pb.Struct{Fields: map[string]*pb.Value{pb.Served: {Kind: &pb.Value_StringValue{StringValue: address}}}}
	return &pb.Metadata{FilterMetadata: map[string]*pb.Struct{pb.MetadataNamespace: inner}}
}
