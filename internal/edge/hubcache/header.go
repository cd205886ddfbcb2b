package hubcache

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// normalETag strips a weak mark and quotes.
func normalETag(s string) string {
	return strings.Trim(strings.TrimPrefix(strings.TrimSpace(s), "W/"), `"`)
}

// span is a part of a file: bytes from up to, and without, to.
type span struct{ from, to int64 }

var errRange = errors.New("range not satisfiable")

// parseRange reads a Range header for a file of size bytes. ok is false when
// the whole file is to be sent: there is none, it is of many parts, or it is
// not understood, all of which RFC 9110 (14.2) lets a server ignore.
func parseRange(header string, size int64) (s span, ok bool, err error) {
	whole := span{0, size}
	spec, found := strings.CutPrefix(header, "bytes=")
	first, last, dash := strings.Cut(strings.TrimSpace(spec), "-")
	if !found || !dash || strings.Contains(spec, ",") {
		return whole, false, nil
	}
	if first == "" { // the last bytes
		n, err := strconv.ParseInt(last, 10, 64)
		if err != nil || n < 0 {
			return whole, false, nil
		}
		if n == 0 || size == 0 {
			return whole, false, errRange
		}
		return span{max(size-n, 0), size}, true, nil
	}
	from, err := strconv.ParseInt(first, 10, 64)
	if err != nil || from < 0 {
		return whole, false, nil
	}
	to := size
	if last != "" {
		end, err := strconv.ParseInt(last, 10, 64)
		if err != nil || end < from {
			return whole, false, nil
		}
		if end < size-1 {
			to = end + 1
		}
	}
	if from >= size {
		return whole, false, errRange
	}
	return span{from, to}, true, nil
}

// parseContentRange reads "bytes 5-9/10"; what is absent or malformed is -1.
func parseContentRange(h string) (from, total int64) {
	rest, ok := strings.CutPrefix(h, "bytes ")
	if !ok {
		return -1, -1
	}
	part, size, _ := strings.Cut(rest, "/")
	first, _, _ := strings.Cut(part, "-")
	return parseSize(first), parseSize(size)
}

func parseSize(s string) int64 {
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v < 0 {
		return -1
	}
	return v
}

// link is one value of a Link header (RFC 8288): where to, and the rest of it.
type link struct{ to, params string }

// parseLinks reads Link headers; what is malformed is left out.
func parseLinks(headers []string) (out []link) {
	for _, h := range headers {
		for len(h) > 0 && len(out) < maxLinks {
			_, after, open := strings.Cut(h, "<")
			to, rest, closed := strings.Cut(after, ">")
			if !open || !closed {
				break
			}
			// A comma ends the value unless it is inside of quotes.
			quoted, end := false, len(rest)
			for i := range len(rest) {
				if rest[i] == '"' {
					quoted = !quoted
				} else if rest[i] == ',' && !quoted {
					end = i
					break
				}
			}
			out = append(out, link{to, rest[:end]})
			h = rest[min(end+1, len(rest)):]
		}
	}
	return out
}

// maxLinks is how many links of an answer are looked at.
const maxLinks = 16

// rel reports whether the link is of a relation.
func (l link) rel(name string) bool {
	for _, p := range strings.Split(l.params, ";") {
		k, v, _ := strings.Cut(strings.TrimSpace(p), "=")
		if strings.EqualFold(k, "rel") && strings.EqualFold(strings.Trim(v, `"`), name) {
			return true
		}
	}
	return false
}

// within is the path and query of a link to the Hub, "" of any other.
func within(base *url.URL, to string) string {
	u, err := base.Parse(to)
	if err != nil || !sameOrigin(u, base) || strings.ContainsFunc(to, func(r rune) bool { return r <= ' ' || r == '<' || r == '>' || r == 0x7f }) {
		return ""
	}
	// A path that begins with two slashes would be read as another host.
	if uri := u.RequestURI(); !strings.HasPrefix(uri, "//") {
		return uri
	}
	return ""
}

// sameOrigin compares scheme, host and port.
func sameOrigin(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Host, b.Host) && a.User == nil
}

// nextPage is the path and query of the page after an answer, "" for none.
func nextPage(base *url.URL, h http.Header) string {
	for _, l := range parseLinks(h.Values("Link")) {
		if l.rel("next") {
			return within(base, l.to)
		}
	}
	return ""
}

// isXet reports whether a header leads clients past the cache, to Xet storage.
func isXet(name string) bool { return strings.HasPrefix(strings.ToLower(name), "x-xet-") }

// xetOnly is the size above which a file is not to be had but over Xet, on the
// Hub and in its clients.
const xetOnly = 50_000_000_000

// stripXet removes the member xetHash from every object of a JSON document,
// unless it speaks of a file that only Xet can give.
func stripXet(doc []byte) ([]byte, error) {
	if !bytes.Contains(doc, []byte(`xetHash`)) {
		return doc, nil
	}
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	withoutXet(v)
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), err
}

func withoutXet(v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			withoutXet(e)
		}
	case map[string]any:
		size, _ := v["size"].(json.Number)
		if n, err := size.Int64(); err != nil || n <= xetOnly {
			delete(v, "xetHash")
		}
		for _, e := range v {
			withoutXet(e)
		}
	}
}
