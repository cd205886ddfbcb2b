package payloads

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestBounds: a copy over a bound is lost and gives back its memory; events beyond the
// queue's are dropped.
func TestBounds(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer server.Close()
	cfg := Config{MaxEvents: 2, MaxBytes: 100, MaxPayload: 10, Senders: 1, Timeout: time.Minute}
	q, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	long := q.Copy()
	long.Write([]byte("12345678"))
	if long.Write([]byte("90abc")); !long.lost || q.held.Load() != 0 {
		t.Errorf("lost %v, %d bytes held", long.lost, q.held.Load())
	}
	for range 10 {
		c := q.Copy()
		c.Write([]byte("x"))
		q.Put(Event{URL: server.URL, Data: c})
	}
	if held := q.held.Load(); held > 3 {
		t.Errorf("%d bytes held by at most 3 events", held)
	}
	short, cancel := context.WithCancel(t.Context())
	cancel()
	q.Close(short) // it does not wait for ever
	close(release)
	q.Close(t.Context())
	if q.held.Load() != 0 {
		t.Errorf("%d bytes held by nothing", q.held.Load())
	}
	var nothing *Copy
	nothing.Write([]byte("x"))
	nothing.Drop()
	if (Config{}).Validate() == nil {
		t.Error("no bounds are valid")
	}
}

// TestAttributesCount: what an event says of itself is held too, and its id is short.
func TestAttributesCount(t *testing.T) {
	ids, release := make(chan int, 100), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		ids <- len(r.Header.Get("Ce-Id"))
		<-release
	}))
	defer server.Close()
	q, err := New(Config{MaxEvents: 1000, MaxBytes: 100_000, MaxPayload: 10, Senders: 1, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		q.Put(Event{URL: server.URL, ID: strings.Repeat("i", 60_000), Attributes: map[string]string{"Metadata": strings.Repeat("m", 30_000)}, Data: q.Copy()})
	}
	if held := q.held.Load(); held < 3*30_000 || held > 100_000 {
		t.Errorf("%d bytes held", held)
	}
	close(release)
	q.Close(t.Context())
	if len(ids) != 3 || <-ids != MaxID || q.held.Load() != 0 {
		t.Errorf("3 events fit, %d more were sent; %d bytes held by nothing", len(ids), q.held.Load())
	}
}

// TestFailures are told.
func TestFailures(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Redirect(w, &http.Request{}, "http://elsewhere", http.StatusFound)
	}))
	defer server.Close()
	cfg := DefaultConfig()
	failed := make(chan error, 2)
	cfg.Failed = func(_ string, err error) { failed <- err }
	q, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	q.Put(Event{URL: server.URL, Data: q.Copy()})
	if err := <-failed; !strings.Contains(err.Error(), "302") {
		t.Error(err)
	}
	q.Put(Event{URL: "no URL\x00", Data: q.Copy()})
	if err := <-failed; err == nil {
		t.Error("no error")
	}
}

func TestJSONIsASCII(t *testing.T) {
	in := map[string][]string{"X": {"grün \U0001f600 \n\x7f"}}
	out := JSON(in)
	for _, c := range []byte(out) {
		if c < 0x20 || c > 0x7e {
			t.Errorf("%q has the byte %x", out, c)
		}
	}
	var back map[string][]string
	if err := json.Unmarshal([]byte(out), &back); err != nil || back["X"][0] != in["X"][0] {
		t.Errorf("%q: %q %v", out, back, err)
	}
}

// TestReach: events are sent where their URL is said to lead, with its own host as the
// name, and otherwise to public addresses alone.
func TestReach(t *testing.T) {
	hosts, failures := make(chan string, 10), make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { hosts <- r.Host + r.URL.Path }))
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "http://")
	cfg := DefaultConfig()
	cfg.Failed = func(url string, err error) { failures <- url + ": " + err.Error() }
	cfg.Reach = func(namespace, url string) (string, error) {
		switch {
		case url == "http://sink/path" && namespace == "team":
			return address, nil
		case url == "http://sink/path":
			return "", errors.New("not its own")
		}
		return "", nil
	}
	q, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	put := func(url, namespace string) {
		q.Put(Event{URL: url, Namespace: namespace, Data: q.Copy()})
		q.Close(t.Context())
	}
	put("http://sink/path", "team")
	if got := <-hosts; got != "sink/path" {
		t.Errorf("it was sent to %s", got)
	}
	for url, want := range map[string]string{"http://sink/path": "not its own", server.URL + "/": "is an internal address"} {
		put(url, "other")
		if got := <-failures; !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", url, got, want)
		}
	}
	if len(hosts) > 0 {
		t.Errorf("something was sent to %s", <-hosts)
	}
}
