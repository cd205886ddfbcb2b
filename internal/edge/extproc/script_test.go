package extproc

import (
	"bufio"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "roundhouse.dev/roundhouse/api/extproc"
	"roundhouse.dev/roundhouse/internal/core/orca"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/route"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/test/golden"
)

// TestScripts holds conversations in testdata against what they should be. Of
// a script, lines that begin with "<" or a blank are written by the test;
// -update writes them anew.
//
//	grant ADDRESS[,ALTERNATIVE…] [MODEL] [prefill=ADDRESS] [encoders=ADDRESS,…] [rank=N]  what the next request is given
//	refuse NAME                            or how it is refused
//	limit BYTES | full                     smaller bounds
//	new [request=MODE response=MODE observe]  a new stream
//	> request_headers NAME=VALUE … [end]   Envoy's messages; subset=A,B or
//	> request_body TEXT [end]              subset-list=A,B among the words are
//	…                                      metadata, as is served=ADDRESS
//	end                                    Envoy ends the stream
func TestScripts(t *testing.T) { golden.Scripts(t, runScript) }

// script is a script as it runs.
type script struct {
	t     *testing.T
	out   strings.Builder
	fake  *fake
	s     *Server
	c     *conversation
	modes *pb.ProtocolConfiguration
}

func runScript(t *testing.T, text string) string {
	sc := &script{t: t, fake: newFake()}
	cfg := DefaultConfig()
	cfg.AllowPaths = []string{"/own", "/tools/*"}
	cfg.SessionHeader = "X-Session"
	cfg.Heard = func(replica string, r orca.Report) { sc.fake.note(fmt.Sprintf("heard of %s: %+v", replica, r)) }
	var err error
	if sc.s, err = New(cfg, sc.fake, nil); err != nil {
		t.Fatal(err)
	}
	sc.open(nil)
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "<") || strings.HasPrefix(line, "  ") {
			continue
		}
		fmt.Fprintln(&sc.out, line)
		if line != "" && !strings.HasPrefix(line, "#") {
			sc.do(strings.Fields(line))
		}
	}
	sc.c.end()
	if sc.fake.open != 0 {
		t.Errorf("%d grants are not settled", sc.fake.open)
	}
	if n := sc.s.buffered.Load(); n != 0 {
		t.Errorf("%d bytes are still counted", n)
	}
	return sc.out.String()
}

// open begins a stream.
func (sc *script) open(words []string) {
	if sc.c != nil {
		sc.c.end()
	}
	sc.c = &conversation{s: sc.s, pool: service.Key{Namespace: "default", Name: "llama"}, send: func(r *pb.ProcessingResponse) error {
		fmt.Fprintln(&sc.out, "< "+shown(r))
		return nil
	}}
	sc.modes = &pb.ProtocolConfiguration{RequestBodyMode: pb.BodySendMode_FULL_DUPLEX_STREAMED, ResponseBodyMode: pb.BodySendMode_FULL_DUPLEX_STREAMED}
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		switch name {
		case "request":
			sc.modes.RequestBodyMode = pb.BodySendMode(pb.BodySendMode_value[value])
		case "response":
			sc.modes.ResponseBodyMode = pb.BodySendMode(pb.BodySendMode_value[value])
		case "full":
			sc.c.full = true
		}
	}
}

func (sc *script) do(words []string) {
	switch words[0] {
	case "new":
		sc.open(words[1:])
	case "grant":
		addresses := strings.Split(words[1], ",")
		g := grant{address: addresses[0], alternatives: addresses[1:]}
		for _, word := range words[2:] {
			if prefill, ok := strings.CutPrefix(word, "prefill="); ok {
				g.prefill = prefill
			} else if encoders, ok := strings.CutPrefix(word, "encoders="); ok {
				g.encoders = strings.Split(encoders, ",")
			} else if rank, ok := strings.CutPrefix(word, "rank="); ok {
				g.rank = rank
			} else {
				g.model = word
			}
		}
		sc.fake.answer = func(service.Key, dispatch.Request) (*grant, error) { given := g; return &given, nil }
	case "refuse":
		sc.fake.answer = func(_ service.Key, r dispatch.Request) (*grant, error) {
			var missing *route.MissingModelError
			if errors.As(named[words[1]], &missing) && r.Model != "" {
				return &grant{address: "10.0.0.1:8000", model: "not-asked-for"}, nil
			}
			return nil, named[words[1]]
		}
	case "limit":
		sc.s.cfg.MaxBodyBytes, _ = strconv.ParseInt(words[1], 10, 64)
	case "end":
		sc.c.end()
		sc.notes()
	case ">":
		r := message(words[1:])
		if sc.c.phase == beginning {
			r.ProtocolConfig = sc.modes
			r.ObservabilityMode = words[len(words)-1] == "observed"
		}
		if err := sc.c.take(sc.t.Context(), r); err != nil {
			fmt.Fprintf(&sc.out, "  error: %s: %s\n", status.Code(err), status.Convert(err).Message())
			if status.Code(err) == codes.Unknown {
				sc.t.Errorf("an error that is none of gRPC's: %v", err)
			}
		}
		sc.notes()
	default:
		sc.t.Fatalf("%q is no command", words)
	}
}

// notes writes what the admitter was asked.
func (sc *script) notes() {
	for _, line := range sc.fake.taken() {
		fmt.Fprintln(&sc.out, "  "+line)
	}
}

// message builds one of Envoy's from a line.
func message(words []string) *pb.ProcessingRequest {
	r := &pb.ProcessingRequest{}
	m := &pb.HeaderMap{}
	var body []string
	end := false
	put := func(namespace, key string, v *pb.Value) {
		if r.MetadataContext == nil {
			r.MetadataContext = &pb.Metadata{FilterMetadata: map[string]*pb.Struct{}}
		}
		r.MetadataContext.FilterMetadata[namespace] = &pb.Struct{Fields: map[string]*pb.Value{key: v}}
	}
	for _, w := range words[1:] {
		name, value, found := strings.Cut(w, "=")
		switch {
		case w == "end":
			end = true
		case w == "observed":
		case name == "subset":
			put(subsetNamespace, subsetKey, &pb.Value{Kind: &pb.Value_StringValue{StringValue: value}})
		case name == "subset-list":
			list := &pb.ListValue{}
			for a := range strings.SplitSeq(value, ",") {
				list.Values = append(list.Values, &pb.Value{Kind: &pb.Value_StringValue{StringValue: a}})
			}
			put(subsetNamespace, subsetKey, &pb.Value{Kind: &pb.Value_ListValue{ListValue: list}})
		case name == "served":
			put(pb.MetadataNamespace, pb.Served, &pb.Value{Kind: &pb.Value_StringValue{StringValue: value}})
		case found && !strings.HasSuffix(words[0], "body"):
			value, _ = strings.CutSuffix(value, "…")
			m.Headers = append(m.Headers, &pb.HeaderValue{Key: name, RawValue: []byte(strings.ReplaceAll(value, "·", " "))})
		default:
			body = append(body, strings.ReplaceAll(w, `\n`, "\n"))
		}
	}
	text := []byte(strings.Join(body, " "))
	switch words[0] {
	case "request_headers":
		r.Request = &pb.ProcessingRequest_RequestHeaders{RequestHeaders: &pb.HttpHeaders{Headers: m, EndOfStream: end}}
	case "request_body":
		r.Request = &pb.ProcessingRequest_RequestBody{RequestBody: &pb.HttpBody{Body: text, EndOfStream: end}}
	case "request_trailers":
		r.Request = &pb.ProcessingRequest_RequestTrailers{RequestTrailers: &pb.HttpTrailers{}}
	case "response_headers":
		r.Request = &pb.ProcessingRequest_ResponseHeaders{ResponseHeaders: &pb.HttpHeaders{Headers: m, EndOfStream: end}}
	case "response_body":
		r.Request = &pb.ProcessingRequest_ResponseBody{ResponseBody: &pb.HttpBody{Body: text, EndOfStream: end}}
	case "response_trailers":
		r.Request = &pb.ProcessingRequest_ResponseTrailers{ResponseTrailers: &pb.HttpTrailers{}}
	}
	return r
}

// shown is a message of ours in one line.
func shown(r *pb.ProcessingResponse) string {
	var out string
	switch m := r.Response.(type) {
	case *pb.ProcessingResponse_RequestHeaders:
		out = "request_headers" + common(m.RequestHeaders.Response)
	case *pb.ProcessingResponse_RequestBody:
		out = "request_body" + common(m.RequestBody.Response)
	case *pb.ProcessingResponse_RequestTrailers:
		out = "request_trailers"
	case *pb.ProcessingResponse_ResponseHeaders:
		out = "response_headers" + common(m.ResponseHeaders.Response)
	case *pb.ProcessingResponse_ResponseBody:
		out = "response_body" + common(m.ResponseBody.Response)
	case *pb.ProcessingResponse_ResponseTrailers:
		out = "response_trailers"
	case *pb.ProcessingResponse_ImmediateResponse:
		i := m.ImmediateResponse
		out = fmt.Sprintf("immediate %d%s details=%s %s", i.Status.Code, headers(i.Headers), i.Details, strings.TrimSpace(string(i.Body)))
	}
	if d := r.DynamicMetadata; d != nil {
		out += " metadata " + pb.MetadataNamespace + "/" + pb.Destination + "=" + d.Fields[pb.MetadataNamespace].GetStructValue().Fields[pb.Destination].GetStringValue()
	}
	return out
}

func common(r *pb.CommonResponse) string {
	out := headers(r.GetHeaderMutation())
	if r.GetClearRouteCache() {
		out += " clear_route_cache"
	}
	switch m := r.GetBodyMutation().GetMutation().(type) {
	case *pb.BodyMutation_Body:
		out += fmt.Sprintf(" body %q", m.Body)
	case *pb.BodyMutation_StreamedResponse:
		out += fmt.Sprintf(" streamed %q", m.StreamedResponse.Body)
		if m.StreamedResponse.EndOfStream {
			out += " end"
		}
	}
	return out
}

func headers(m *pb.HeaderMutation) (out string) {
	for _, h := range m.GetSetHeaders() {
		out += fmt.Sprintf(" %s=%s", h.Header.Key, h.Header.RawValue)
		if h.AppendAction != pb.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD {
			out += "(" + h.AppendAction.String() + ")"
		}
	}
	for _, name := range m.GetRemoveHeaders() {
		out += " -" + name
	}
	return out
}
