package artifact

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"roundhouse.dev/roundhouse/internal/edge/hubcache/hubtest"
)

// newHub is a Hub with one model, and the store's environment pointing at it.
func newHub(t *testing.T) (*hubtest.Hub, *hubtest.Repo, map[string][]byte) {
	t.Helper()
	hub := hubtest.New()
	t.Cleanup(hub.Close)
	t.Setenv("HF_ENDPOINT", hub.URL)
	t.Setenv("HF_TOKEN", "")
	t.Setenv("HUGGING_FACE_HUB_TOKEN", "")
	t.Setenv("HF_HOME", t.TempDir())
	t.Setenv("HF_TOKEN_PATH", "")
	files := map[string][]byte{
		"config.json": []byte(llama), "model.safetensors": randomBytes(300<<10, 50), "sub dir/é+.txt": []byte("odd"), "empty.txt": {},
		"pytorch_model.bin": []byte("again"), ".gitattributes": []byte("x"), "original/consolidated.00.pth": []byte("and again"),
	}
	repo := hub.Add("models", "org/m")
	repo.Commit("main", files, "model.safetensors", "pytorch_model.bin")
	return hub, repo, files
}

func TestFetchHF(t *testing.T) {
	hub, repo, files := newHub(t)
	s := newStore(t, nil)
	uri := Request{URI: "hf://org/m"}
	path, err := s.Fetch(t.Context(), uri, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		got, err := os.ReadFile(filepath.Join(path, filepath.FromSlash(name)))
		needed := name == "config.json" || name == "model.safetensors" || strings.HasSuffix(name, ".txt")
		if needed && (err != nil || !bytes.Equal(got, content)) || !needed && err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	hub.Forget()
	if again, err := s.Fetch(t.Context(), uri, nil); err != nil || again != path {
		t.Error(again, err)
	}
	for _, r := range hub.Requests() {
		if strings.Contains(r.URI, "/resolve/") {
			t.Errorf("asked for %s though nothing has changed", r.URI)
		}
	}
	old := repo.Commit("main", files)
	repo.Commit("main", map[string][]byte{"config.json": []byte(`{"model_type":"new"}`)})
	if path, err = s.Fetch(t.Context(), uri, nil); err != nil || mustRead(t, filepath.Join(path, "config.json")) != `{"model_type":"new"}` {
		t.Error(path, err)
	}
	for _, uri := range []string{"hf://org/m@" + old + "/config.json", "hf://org/m:" + old + "/config.json", "hf://models/org/m@" + old + "/config.json"} {
		if path, err = s.Fetch(t.Context(), Request{URI: uri}, nil); err != nil || mustRead(t, path) != llama {
			t.Error(uri, path, err)
		}
	}
	if path, err = s.Fetch(t.Context(), Request{URI: "hf://org/m@" + old + "/sub dir"}, nil); err != nil || mustRead(t, filepath.Join(path, "é+.txt")) != "odd" {
		t.Error(path, err)
	}
	hub.Close()
	if again, err := s.Fetch(t.Context(), Request{URI: "hf://org/m@" + old + "/sub dir"}, nil); err != nil || again != path {
		t.Error("with the Hub gone:", again, err)
	}
}

func TestPeekHF(t *testing.T) {
	hub, repo, files := newHub(t)
	header := `{"w":{"dtype":"BF16","shape":[1000],"data_offsets":[0,2000]}}`
	files["model.safetensors"] = []byte(safetensorsOf(header, 2000))
	repo.Commit("main", files, "model.safetensors")
	f, err := newStore(t, nil).Peek(t.Context(), Request{URI: "hf://org/m"})
	if err != nil || f.Architecture != "LlamaForCausalLM" || f.Parameters != 1000 || f.Format != "safetensors" {
		t.Errorf("%+v %v", f, err)
	}
	_ = hub
}

func TestFetchHFPages(t *testing.T) {
	hub, repo, files := newHub(t)
	for i := range 250 {
		files["many/"+digest(string(rune(i)))] = nil
	}
	repo.Commit("main", files)
	s := newStore(t, nil)
	loc, err := parse(Request{URI: "hf://org/m"})
	if err != nil {
		t.Fatal(err)
	}
	l, err := s.sources.of(nil)["hf"].list(t.Context(), loc, nil)
	if err != nil || len(l.objects) != 254 {
		t.Error(len(l.objects), err)
	}
	hub.Fail(hubtest.Faults{Link: `<http://elsewhere.invalid/api>; rel="next"`})
	if _, err = s.sources.of(nil)["hf"].list(t.Context(), loc, nil); err == nil || !strings.Contains(err.Error(), "another host") {
		t.Error(err)
	}
}

// TestHFToken: gated repositories are read with the user's token, which goes
// to the Hub and nowhere else.
func TestHFToken(t *testing.T) {
	hub, repo, _ := newHub(t)
	hub.Token("hf_secret")
	repo.Gate("hf_secret")
	token := filepath.Join(os.Getenv("HF_HOME"), "token")
	if err := os.WriteFile(token, []byte("hf_secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	s, err := New(Config{Dir: t.TempDir()}, nil, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		t.Fatal(err)
	}
	path, err := s.Fetch(t.Context(), Request{URI: "hf://org/m"}, nil)
	if err != nil {
		t.Fatal(path, err)
	}
	storage := 0
	for _, r := range hub.Requests() {
		if r.Storage {
			storage++
		}
		if want := "Bearer hf_secret"; r.Storage != (r.Authorization == "") || !r.Storage && r.Authorization != want {
			t.Errorf("%s: authorization %q, storage %v", r.URI, r.Authorization, r.Storage)
		}
	}
	if storage == 0 || strings.Contains(log.String(), "hf_secret") {
		t.Error(storage, log.String())
	}
	// Afterwards: of a fetch that fails requests may still be under way.
	if err := os.Remove(token); err != nil {
		t.Fatal(err)
	}
	_, err = newStore(t, nil).Fetch(t.Context(), Request{URI: "hf://org/m"}, nil)
	wantError(t, err, "HF_TOKEN")
}

func TestFetchHFFaults(t *testing.T) {
	hub, _, files := newHub(t)
	t.Run("wrong bytes", func(t *testing.T) {
		hub.Fail(hubtest.Faults{Corrupt: true})
		_, err := newStore(t, nil).Fetch(t.Context(), Request{URI: "hf://org/m"}, nil)
		wantError(t, err, "digest")
	})
	t.Run("a body that is cut", func(t *testing.T) {
		hub.Fail(hubtest.Faults{CutAfter: 100 << 10, Cuts: 2})
		path, err := newStore(t, nil).Fetch(t.Context(), Request{URI: "hf://org/m/model.safetensors"}, nil)
		if err != nil || mustRead(t, path) != string(files["model.safetensors"]) {
			t.Error(path, err)
		}
	})
	hub.Fail(hubtest.Faults{})
	for uri, want := range map[string]string{"hf://org/none": "Repository not found", "hf://org/m@none": "404", "hf://org/m/none": "no such file", "hf://org/../x": "write hf://",
		"hf://org/m@": "revision"} {
		if _, err := newStore(t, nil).Fetch(t.Context(), Request{URI: uri}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", uri, err, want)
		}
	}
}

// TestHFCacheFaults: the error says what a cache in front of the Hub says, the same
// at every try, and repeats neither the token nor a signature.
func TestHFCacheFaults(t *testing.T) {
	t.Setenv("HF_TOKEN", "hf_secret")
	tries := 4710
	for _, c := range []struct {
		status     int
		kind, body string
		want       string
	}{
		{502, "text/plain; charset=utf-8", "the Hub cannot be reached: dial tcp: lookup huggingface.co: no such host\n",
			"502 Bad Gateway (the Hub cannot be reached: dial tcp: lookup huggingface.co: no such host)"},
		{504, "text/plain", "the cache is offline and does not have it", "504 Gateway Timeout (the cache is offline and does not have it)"},
		{502, "text/plain", "read udp 10.0.0.1:PORT->10.0.0.53:53: i/o timeout\x1b[31m\nat https://storage/x?Signature=abc for hf_secret",
			"502 Bad Gateway (read udp 10.0.0.53:53: i/o timeout[31m at https://storage/x for …)"},
		{502, "text/plain", strings.Repeat("word ", 1000), "word word)"},
		{502, "text/html", "<html>bad gateway</html>", "502 Bad Gateway"},
	} {
		cache := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			tries++
			w.Header().Set("Content-Type", c.kind)
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, strings.ReplaceAll(c.body, "PORT", strconv.Itoa(tries)))
		}))
		t.Setenv("HF_ENDPOINT", cache.URL)
		_, err := newStore(t, nil).Fetch(t.Context(), Request{URI: "hf://org/m"}, nil)
		cache.Close()
		if err == nil || !strings.HasSuffix(err.Error(), c.want) || len(err.Error()) > 300 {
			t.Errorf("%d %s: %v; want it to end with %q", c.status, c.kind, err, c.want)
		}
	}
}

// TestResumeHFAfterKill: what a killed process has is not asked for again.
func TestResumeHFAfterKill(t *testing.T) {
	hub, _, files := newHub(t)
	hold := make(chan struct{})
	hub.Fail(hubtest.Faults{Hold: hold, HoldAfter: 180 << 10})
	s := newStore(t, nil)
	uri := "hf://org/m/model.safetensors"
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "ARTIFACT_TEST_DIR="+s.cfg.Dir, "ARTIFACT_TEST_URI="+uri)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the process was not killed: %v\n%s", err, out)
	}
	close(hold)
	hub.Fail(hubtest.Faults{})
	hub.Forget()
	path, err := s.Fetch(context.Background(), Request{URI: uri}, nil)
	if err != nil || mustRead(t, path) != string(files["model.safetensors"]) {
		t.Fatal(path, err)
	}
	last := hub.Requests()[len(hub.Requests())-1]
	if !last.Storage || !strings.HasPrefix(last.Range, "bytes=") || last.Range == "bytes=0-" {
		t.Errorf("resumed with range %q", last.Range)
	}
}
