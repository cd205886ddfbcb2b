package extproc

import (
	"net/url"
	"strconv"
	"strings"

	pb "roundhouse.dev/roundhouse/api/extproc"
)

// The names of the protocol between gateways and endpoint pickers.
const (
	// destination is the header, and the key of the metadata, that says where a
	// request goes.
	destination = "x-gateway-destination-endpoint"
	// served is the key of the metadata that says who answered.
	served = "x-gateway-destination-endpoint-served"
	// metadataNamespace holds both keys.
	metadataNamespace = "envoy.lb"
	// subsetNamespace and subsetKey say which endpoints are allowed.
	subsetNamespace = "envoy.lb.subset_hint"
	subsetKey       = "x-gateway-destination-endpoint-subset"

	objectiveHeader = "x-gateway-inference-objective"
	fairnessHeader  = "x-gateway-inference-fairness-id"
	rewriteHeader   = "x-gateway-model-name-rewrite"
)

// head is what is of interest in a request's headers.
type head struct {
	headers       *pb.HeaderMap
	method, host  string
	path, query   string
	contentType   string
	contentLength int64 // as promised; 0 when not
	objective     string
	fairness      string
	rewrite       string
}

func (h *head) read(m *pb.HeaderMap) {
	h.headers = m
	for _, v := range m.GetHeaders() {
		switch v.Key {
		case ":authority", "host":
			if h.host == "" {
				h.host = text(v)
			}
		case ":path":
			h.path, h.query, _ = strings.Cut(text(v), "?")
			if clean, err := url.PathUnescape(h.path); err == nil {
				h.path = clean
			}
		case ":method":
			h.method = text(v)
		case "content-type":
			h.contentType = text(v)
		case "content-length":
			if n, err := strconv.ParseInt(text(v), 10, 64); err == nil && n > 0 {
				h.contentLength = n
			}
		case objectiveHeader:
			h.objective = text(v)
		case fairnessHeader:
			h.fairness = text(v)
		case rewriteHeader:
			h.rewrite = text(v)
		}
	}
}

func (h *head) get(name string) string { return find(h.headers, name) }

// find is the first value of a header by its canonical name. Envoy's names are
// in lower case.
func find(m *pb.HeaderMap, name string) string {
	for _, v := range m.GetHeaders() {
		if strings.EqualFold(v.Key, name) {
			return text(v)
		}
	}
	return ""
}

// json reports whether the body is to be read as JSON. Forms hold files, and their
// model is not looked for.
func (h *head) json() bool {
	return !strings.HasPrefix(strings.ToLower(strings.TrimSpace(h.contentType)), "multipart/")
}

// text is a header's value, in whichever of the two fields it is.
func text(v *pb.HeaderValue) string {
	if len(v.RawValue) > 0 {
		return string(v.RawValue)
	}
	return v.Value
}

// subset is the endpoints a gateway allows.
type subset struct {
	given     bool
	addresses []string
}

// read takes the hint from a message's metadata: a list, or text with commas.
func (s *subset) read(m *pb.Metadata) {
	if s.given {
		return
	}
	v := m.GetFilterMetadata()[subsetNamespace].GetFields()[subsetKey]
	if v == nil {
		return
	}
	s.given = true
	s.addresses = []string{}
	add := func(list string) {
		for a := range strings.SplitSeq(list, ",") {
			if a = strings.TrimSpace(a); a != "" && len(s.addresses) < maxSubset {
				s.addresses = append(s.addresses, a)
			}
		}
	}
	add(v.GetStringValue())
	for _, one := range v.GetListValue().GetValues() {
		add(one.GetStringValue())
	}
}
