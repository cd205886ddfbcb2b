package app

import (
	"os"
	"path/filepath"
	"testing"

	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/edge/hubcache"
	"roundhouse.dev/roundhouse/internal/edge/hubcache/hubtest"
	"roundhouse.dev/roundhouse/test/loopback"
)

func TestHubChoice(t *testing.T) {
	for _, c := range []struct{ flag, env, listen, endpoint string }{
		{"auto", "", defaultHubAddress, ""},
		{"auto", "http://mirror", "", ""},
		{"on", "http://mirror", defaultHubAddress, ""},
		{"off", "", "", ""},
		{"127.0.0.1:0", "", "127.0.0.1:0", ""},
		{"https://cache.example/", "http://mirror", "", "https://cache.example"},
	} {
		t.Setenv(hubVariable, c.env)
		if listen, endpoint, err := hubChoice(c.flag); err != nil || listen != c.listen || endpoint != c.endpoint {
			t.Errorf("%s with %q: %q, %q, %v", c.flag, c.env, listen, endpoint, err)
		}
	}
	for _, bad := range []string{"yes", "ftp://x", "http://", "http://u:p@x"} {
		if _, _, err := hubChoice(bad); err == nil {
			t.Errorf("%s: taken", bad)
		}
	}
}

// TestListenHub: the address of an earlier `up` is taken again, one that is in
// use is not.
func TestListenHub(t *testing.T) {
	file := filepath.Join(t.TempDir(), "endpoint")
	first := loopback.Reserve(t)
	if err := rememberEndpoint(file, "http://"+first); err != nil {
		t.Fatal(err)
	}
	again, err := listenHub(defaultHubAddress, file)
	if err != nil || again.Addr().String() != first {
		t.Fatal(again.Addr(), err)
	}
	other, err := listenHub(defaultHubAddress, file)
	if err != nil || other.Addr().String() == first {
		t.Error(other.Addr(), err)
	}
	_, _ = again.Close(), other.Close()
	if _, err := listenHub("127.0.0.1:99999", file); err == nil {
		t.Error("taken")
	}
	if err := rememberEndpoint(file, ""); err != nil || readEndpoint(file) != "" {
		t.Error(err)
	}
}

// TestHubOfADataDirectory fills the cache of a data directory that no `up` has open.
func TestHubOfADataDirectory(t *testing.T) {
	hub := hubtest.New()
	defer hub.Close()
	hub.Add("models", "org/m").Commit("main", map[string][]byte{"w.bin": []byte("weights")}, "w.bin")
	t.Setenv(hubVariable, "")
	t.Setenv("HF_HOME", t.TempDir())
	dir := t.TempDir()
	cfg := hubConfig(dir, nil)
	cfg.Upstream = hub.URL
	for _, c := range []struct {
		models string
		sent   int64
	}{{"a", 7}, {"b", 0}} { // the second comes from the cache
		hub.Forget()
		endpoint, done, err := hubOf(dir, cfg)
		if err != nil {
			t.Fatal(err)
		}
		store, err := artifact.New(artifact.Config{Dir: filepath.Join(dir, c.models), HubEndpoint: endpoint}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		path, err := store.Fetch(t.Context(), artifact.Request{URI: "hf://org/m/w.bin"}, nil)
		if raw, _ := os.ReadFile(path); err != nil || string(raw) != "weights" {
			t.Errorf("%q %v", raw, err)
		}
		done()
		if hub.Sent() != c.sent {
			t.Errorf("%s: the Hub sent %d bytes, want %d", c.models, hub.Sent(), c.sent)
		}
	}
	t.Setenv(hubVariable, hub.URL)
	if endpoint, _, err := hubOf(dir, hubcache.Config{}); endpoint != "" || err != nil {
		t.Errorf("with HF_ENDPOINT: %q, %v", endpoint, err)
	}
}
