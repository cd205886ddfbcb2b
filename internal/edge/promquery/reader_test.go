package promquery

import (
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

const one = `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"a":"b"},"value":[1.5,"42.5"]}]}}`

func TestParse(t *testing.T) {
	for _, c := range []struct {
		text string
		want float64
		err  string
	}{
		{one, 42.5, ""},
		{`{"status":"success","data":{"resultType":"scalar","result":[1,"-3"]}}`, -3, ""},
		{`{"status":"success","data":{"resultType":"scalar","result":[1,"+Inf"]}}`, math.Inf(1), ""},
		{`{"status":"success","data":{"resultType":"vector","result":[]}}`, 0, "no result"},
		{`{"status":"success","data":{"resultType":"vector","result":[{"value":[1,"1"]},{"value":[1,"2"]}]}}`, 0, "2 results: write one with a single result"},
		{`{"status":"success","data":{"resultType":"matrix","result":[]}}`, 0, `type "matrix"`},
		{`{"status":"success","data":{"resultType":"scalar","result":[1,2]}}`, 0, "no string"},
		{`{"status":"success","data":{"resultType":"scalar","result":[1,"two"]}}`, 0, `"two" is no number`},
		{`{"status":"success","data":{"resultType":"scalar","result":[1]}}`, 0, "no pair"},
		{`{"status":"error","errorType":"bad_data","error":"parse error at char 4"}`, 0, "refuses the query: parse error at char 4"},
		{`{}`, 0, "no status"},
		{`<html>`, 0, "no JSON"},
	} {
		got, err := parse([]byte(c.text))
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) || got != c.want {
			t.Errorf("%s: %v, %v; want %v, %q", c.text, got, err, c.want, c.err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(one))
	f.Add([]byte(`{"status":"success","data":{"resultType":"vector","result":[{"value":[1,"1e999"]}]}}`))
	f.Add([]byte(`{"status":"error","error":"x"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := parse(b); err != nil && len(err.Error()) > 1000 {
			t.Fatalf("an error of %d bytes", len(err.Error()))
		}
	})
}

// TestOnce: what servers may answer, and where they may lead.
func TestOnce(t *testing.T) {
	var reached atomic.Bool
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
	defer other.Close()
	hang := make(chan struct{})
	defer close(hang)
	mux := http.NewServeMux()
	mux.HandleFunc("/api/v1/query", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("query") != `sum(a{b="c"})` || r.Header.Get("Authorization") != "" {
			t.Errorf("asked %s with %v", r.URL, r.Header)
		}
		_, _ = w.Write([]byte(one))
	})
	mux.HandleFunc("/elsewhere/", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, http.StatusFound) })
	mux.HandleFunc("/here/", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/api/v1/query?"+r.URL.RawQuery, http.StatusFound)
	})
	mux.HandleFunc("/round/", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.String(), http.StatusFound) })
	mux.HandleFunc("/long/", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 2<<20)) })
	mux.HandleFunc("/secret/", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "the password is x", http.StatusForbidden) })
	mux.HandleFunc("/bad/", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"status":"error","error":"parse error"}`))
	})
	mux.HandleFunc("/hang/", func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	cfg := DefaultConfig()
	cfg.Timeout = 300 * time.Millisecond
	cfg.Refuse = func(u *url.URL) string {
		if u.Host == "refused:1" {
			return "this server is not asked"
		}
		return ""
	}
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, c := range []struct{ url, err string }{
		{server.URL, ""}, {server.URL + "/", ""}, {server.URL + "/here", ""},
		{server.URL + "/elsewhere", "redirects to another host"},
		{server.URL + "/round", "more than 3 times"},
		{server.URL + "/long", "longer than 1048576 bytes"},
		{server.URL + "/secret", "answers 403: not an answer of Prometheus' API"},
		{server.URL + "/bad", "answers 400: the server refuses the query: parse error"},
		{server.URL + "/hang", "ask "},
		{server.URL + "/none", "answers 404"},
		{"http://refused:1", "this server is not asked"},
		{"::", "cannot be read"},
	} {
		x, err := r.once(service.ExternalMetric{URL: c.url, Query: `sum(a{b="c"})`})
		if (err == nil) != (c.err == "") || err == nil && x != 42.5 || err != nil && (!strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "password")) {
			t.Errorf("%s: %v, %v; want %q", c.url, x, err, c.err)
		}
	}
	if reached.Load() {
		t.Error("the other host was asked")
	}
}

// TestReadsWhileWanted: a query is asked while somebody wants it, and no more than the
// limit are.
func TestReadsWhileWanted(t *testing.T) {
	asked := make(chan struct{}, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(one))
		asked <- struct{}{}
	}))
	defer server.Close()
	cfg := DefaultConfig()
	cfg.Interval, cfg.Unwanted, cfg.MaxQueries = 10*time.Millisecond, 50*time.Millisecond, 1
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	m := service.ExternalMetric{URL: server.URL, Query: "q"}
	if got := r.Read(m); !got.At.IsZero() {
		t.Errorf("before the answer: %+v", got)
	}
	if got := r.Read(service.ExternalMetric{URL: server.URL, Query: "r"}); !strings.Contains(got.Problem, "the most at a time") {
		t.Errorf("beyond the limit: %+v", got)
	}
	<-asked
	<-asked // the first answer has been taken
	if got := r.Read(m); got.Value != 42.5 || got.At.IsZero() || got.Problem != "" {
		t.Errorf("%+v", got)
	}
	r.asking.Wait() // ends by itself, since nobody wants it
	if len(r.queries) != 0 {
		t.Errorf("still asks %v", r.queries)
	}
	if bad := (Config{}); bad.Validate() == nil {
		t.Error("an empty Config is valid")
	}
}
