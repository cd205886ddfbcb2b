package hubcache

import (
	"encoding/json"
	"net/http"
	"net/url"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/edge/blobs"
)

// FuzzTarget: what is read of a path names the same path again, and leads to no
// file outside of the store.
func FuzzTarget(f *testing.F) {
	for _, p := range []string{"/gpt2/resolve/main/config.json", "/org/m/resolve/refs%2Fpr%2F1/a/b", "/datasets/o/d/resolve/main/x", "/api/models/gpt2",
		"/api/models/o/m/tree/main/sub", "/api/models/o/m/revision/main", "/api/spaces/x/refs", "/../../etc/passwd", "/o/m/resolve/main/..%2f..%2fx",
		"/o/..%2F/resolve/main/x", "/%2e%2e/m/resolve/main/x", "/o/m/resolve/main//x", "/o/m/resolve/main/%00", "/o/m/resolve/%2E%2E/x", "//", "/", "", "/a/resolve/resolve/x/y"} {
		f.Add(p, "download=true")
	}
	f.Add("/o/m/resolve/main/"+strings.Repeat("[", 4000), "")
	store := At("/store")
	f.Fuzz(func(t *testing.T, path, query string) {
		got, err := parseTarget(path, query)
		if err != nil || got.route == "" {
			return
		}
		again, err := parseTarget(got.path(), query)
		if err != nil || again != got {
			t.Fatalf("%q is %+v, and its path %q is %+v (%v)", path, got, got.path(), again, err)
		}
		base := &url.URL{Scheme: "https", Host: "hub.example"}
		at, err := base.Parse(got.path())
		if err != nil || at.Host != base.Host || at.EscapedPath() != got.path() {
			t.Fatalf("%q would be asked for at %v (%v)", got.path(), at, err)
		}
		commit := strings.Repeat("a", 40)
		for _, p := range []string{store.records.filePath(got.repo, commit, got.file), store.records.refPath(got.repo, got.revision), store.records.answerPath(got.repo, path), store.records.publicPath(got.repo)} {
			if p != filepath.Clean(p) || !strings.HasPrefix(p, "/store/repos/") || strings.Contains(p, "..") {
				t.Fatalf("%q is kept at %q", path, p)
			}
		}
	})
}

// FuzzHeaders: no ETag that is taken for a hash is anything else, and no link
// leads elsewhere than to the Hub.
func FuzzHeaders(f *testing.F) {
	f.Add(`W/"abc"`, `<https://hub.example/api?cursor=1>; rel="next"`, "bytes=0-9", int64(100))
	f.Add(`"../../x"`, `<https://hub.example@evil/>; rel="next", <x>; rel=xet-auth`, "bytes=-5", int64(0))
	f.Add("", `<https://evil.example>; title="a,b"; rel=next`, "bytes=5-", int64(5))
	f.Add("", `<.//0>rel=neXt`, "", int64(0))
	base := &url.URL{Scheme: "https", Host: "hub.example"}
	f.Fuzz(func(t *testing.T, etag, links, rng string, size int64) {
		if e := normalETag(etag); blobs.IsHash(e) && strings.Trim(e, "0123456789abcdef") != "" {
			t.Fatalf("%q is taken for a hash", e)
		}
		if next := nextPage(base, http.Header{"Link": {links}}); next != "" {
			u, err := base.Parse(next)
			if err != nil || !strings.HasPrefix(next, "/") || strings.HasPrefix(next, "//") && u.Host != base.Host || strings.ContainsAny(next, "\r\n<> ") {
				t.Fatalf("%q leads to %q", links, next)
			}
			if at, err := url.Parse("http://ours" + next); err != nil || at.Host != "ours" {
				t.Fatalf("%q leads to %v", links, at)
			}
		}
		if size < 0 {
			return
		}
		s, ok, err := parseRange(rng, size)
		if err == nil && (s.from < 0 || s.to > size || s.from > s.to) || ok && s.from >= s.to {
			t.Fatalf("%q of %d bytes is %+v (%v)", rng, size, s, ok)
		}
	})
}

// FuzzStripXet: nothing but the members called xetHash goes, compared with a
// second way to take them out.
func FuzzStripXet(f *testing.F) {
	for _, doc := range []string{`[{"path":"a","xetHash":"b","lfs":{"oid":"c"},"size":5}]`, `{"xetHash":1,"x":"xetHash","size":60000000000}`,
		`[{"xetHash":"k","size":60000000000,"s":"<&>"}]`, `{"a":1e400,"xetHash":null}`, `"xetHash"`, `{"a":"\"xetHash\":\"x\""}`, `{"xetHash":{}} 1`} {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		got, err := stripXet(doc)
		var in any
		if json.Unmarshal(doc, &in) != nil {
			return
		}
		if err != nil {
			t.Fatalf("%s: %v", doc, err)
		}
		var out any
		if err := json.Unmarshal(got, &out); err != nil || !reflect.DeepEqual(out, naive(in)) {
			t.Fatalf("%s became %s", doc, got)
		}
	})
}

func naive(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = naive(v[i])
		}
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			size, _ := v["size"].(float64)
			if k != "xetHash" || size > xetOnly && size == float64(int64(size)) {
				out[k] = naive(e)
			}
		}
		return out
	}
	return v
}

// FuzzSource: what a node is told to fetch from is an address that is followed
// from the Hub too, or a file of a commit.
func FuzzSource(f *testing.F) {
	for _, s := range []string{"", "https://h/x?y", "http://h", "/o/m/resolve/0123456789012345678901234567890123456789/f", "//h/x", "/../x", "https://u@h/", "\x00"} {
		f.Add(s)
	}
	c := &Cache{base: &url.URL{Scheme: "https", Host: "hub.example"}}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := c.parseSource(s)
		switch {
		case err != nil:
		case got.at != nil && (got.at.Scheme != "https" || got.at.Host == "" || got.at.User != nil || len(s) > maxSource):
			t.Errorf("%q: %v", s, got.at)
		case got.at == nil && s != "" && (!isCommit(got.t.revision) || got.t.file == "" || got.t.route != "resolve" || got.authorization != ""):
			t.Errorf("%q: %+v", s, got.t)
		}
	})
}
