package extproc

import (
	"net/url"
	"strconv"
	"strings"

	pb "roundhouse.dev/roundhouse/api/extproc"
	"roundhouse.dev/roundhouse/internal/core/routing"
)

// What a gateway says of a request besides the names of package api/extproc.
const (
	// subsetNamespace and subsetKey are the metadata with the allowed
	// endpoints.
	subsetNamespace = "envoy.lb.subset_hint"
	subsetKey       = "x-gateway-destination-endpoint-subset"
)

// prefillHeader tells the sidecar of the endpoint which server computes the prompt.
const prefillHeader = "x-prefiller-host-port"

// encodersHeader tells it which servers compute the pictures, sounds and videos, with
// commas between them.
const encodersHeader = "x-encoder-hosts-ports"

// rankHeader tells the endpoint's engine which of its data-parallel ranks serves.
var rankHeader = strings.ToLower(routing.HeaderRank)

// wishes are the headers by which a request says how it wants to be routed.
var wishes = [wishCount][]string{
	wishObjective: routing.HeaderObjective, wishFairness: routing.HeaderFairness, wishRewrite: routing.HeaderRewrite,
	wishFirst: routing.HeaderFirst, wishEach: routing.HeaderEach,
}

// The wishes by their place.
const (
	wishObjective = iota
	wishFairness
	wishRewrite
	wishFirst
	wishEach
	wishCount
)

// wishOf finds wishes by the names of their headers in lower case. rank is the place
// of the name among those of the wish.
var wishOf = func() map[string]struct{ wish, rank int } {
	out := map[string]struct{ wish, rank int }{}
	for wish, names := range wishes {
		for rank, name := range names {
			out[strings.ToLower(name)] = struct{ wish, rank int }{wish, rank}
		}
	}
	return out
}()

// head is what is of interest in a request's headers.
type head struct {
	headers       *pb.HeaderMap
	method, host  string
	path, query   string
	contentType   string
	contentLength int64 // as promised; 0 when not
	wished        [wishCount]string
	// forged are headers by which a client could have the endpoint's sidecar call any
	// address.
	forged []string
}

func (h *head) read(m *pb.HeaderMap) {
	h.headers = m
	for _, v := range m.GetHeaders() {
		switch v.Key {
		case ":authority", "host":
			if h.host == "" {
				h.host = v.Text()
			}
		case ":path":
			h.path, h.query, _ = strings.Cut(v.Text(), "?")
			if clean, err := url.PathUnescape(h.path); err == nil {
				h.path = clean
			}
		case ":method":
			h.method = v.Text()
		case "content-type":
			h.contentType = v.Text()
		case "content-length":
			if n, err := strconv.ParseInt(v.Text(), 10, 64); err == nil && n > 0 {
				h.contentLength = n
			}
		case prefillHeader, encodersHeader, "x-data-parallel-host-port":
			h.forged = append(h.forged, v.Key)
		default:
			if len(v.Key) > 2 && v.Key[:2] == "x-" {
				h.wish(v.Key, v.Text())
			}
		}
	}
}

// wish notes the value of a header, unless a newer name of it has one.
func (h *head) wish(key, value string) {
	at, ok := wishOf[key]
	if !ok || value == "" {
		return
	}
	if at.rank == 0 || h.wished[at.wish] == "" {
		h.wished[at.wish] = value
	}
}

// latency is how long the answer may take.
func (h *head) latency() routing.LatencyTarget {
	return routing.LatencyTarget{First: routing.Milliseconds(h.wished[wishFirst]), Each: routing.Milliseconds(h.wished[wishEach])}
}

func (h *head) get(name string) string { return find(h.headers, name) }

// find is the first value of a header by its canonical name. Envoy's names are
// in lower case.
func find(m *pb.HeaderMap, name string) string {
	for _, v := range m.GetHeaders() {
		if strings.EqualFold(v.Key, name) {
			return v.Text()
		}
	}
	return ""
}

// json reports whether the body is to be read as JSON. Forms hold files, and their
// model is not looked for.
func (h *head) json() bool {
	return !strings.HasPrefix(strings.ToLower(strings.TrimSpace(h.contentType)), "multipart/")
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
