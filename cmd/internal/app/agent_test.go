package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// podServer is a model server with the repository extension, which reads the folder
// that an agent keeps. A model whose file says "bad" is refused.
type podServer struct {
	*httptest.Server
	repository string
	mu         sync.Mutex
	down       bool
	loads      int
	has        map[string]string // what is in the files of those that are loaded
}

func newPodServer(t *testing.T) *podServer {
	s := &podServer{repository: t.TempDir(), has: map[string]string{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v2/health/ready", func(w http.ResponseWriter, _ *http.Request) {
		if s.down {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /v2/models/{name}/ready", func(w http.ResponseWriter, r *http.Request) {
		if _, ok := s.has[r.PathValue("name")]; !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("POST /v2/repository/models/{name}/unload", func(_ http.ResponseWriter, r *http.Request) {
		delete(s.has, r.PathValue("name"))
	})
	mux.HandleFunc("POST /v2/repository/models/{name}/load", func(w http.ResponseWriter, r *http.Request) {
		s.loads++
		text, err := s.read(r.PathValue("name"))
		if err != nil || strings.HasSuffix(text, "bad") {
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(map[string]string{"error": fmt.Sprint("no tree: ", text, err)})
			return
		}
		s.has[r.PathValue("name")] = text
	})
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// read is what is in a model's one file, by its settings.
func (s *podServer) read(name string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(s.repository, name, "model-settings.json"))
	if err != nil {
		return "", err
	}
	var settings struct{ Parameters struct{ URI, Format string } }
	if err := json.Unmarshal(raw, &settings); err != nil {
		return "", err
	}
	files, err := filepath.Glob(filepath.Join(settings.Parameters.URI, "[^.]*"))
	if err != nil || len(files) != 1 {
		return "", fmt.Errorf("files %q, %w", files, err)
	}
	b, err := os.ReadFile(files[0])
	return settings.Parameters.Format + " " + string(b), err
}

// loaded is what the server has, and how often it has loaded.
func (s *podServer) loaded() (string, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, name := range slices.Sorted(maps.Keys(s.has)) {
		out = append(out, name+"="+s.has[name])
	}
	return strings.Join(out, " "), s.loads
}

// TestAgent: what is listed is fetched and loaded, what is listed no more is unloaded and
// its files go, what the server refuses is told of in its words, and a server or an agent
// that is started anew has all again.
func TestAgent(t *testing.T) {
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/gone") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = io.WriteString(w, strings.TrimPrefix(r.URL.Path, "/"))
	}))
	t.Cleanup(store.Close)
	server := newPodServer(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	dir := t.TempDir()
	c := &Agent{List: filepath.Join(dir, "models.json"), Repository: server.repository, Files: filepath.Join(dir, "files"),
		Server: strings.TrimPrefix(server.URL, "http://"), Listen: address}
	list := func(models ...string) {
		t.Helper()
		all := []shape.ListedModel{}
		for _, m := range models {
			name, path, _ := strings.Cut(m, "=")
			all = append(all, shape.ListedModel{Name: name, Spec: shape.ListedModelSpec{StorageURI: store.URL + "/" + path, Framework: "xgboost"}})
		}
		raw, err := json.Marshal(all)
		if err == nil {
			err = os.WriteFile(c.List+".new", raw, 0o600)
		}
		if err == nil {
			err = os.Rename(c.List+".new", c.List)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	begin := func() (end func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx, io.Discard) }()
		return func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	eventually := func(what string, ok func() (bool, string)) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			done, is := ok()
			if done {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: it is %s", what, is)
			}
		}
	}
	has := func(want string) {
		t.Helper()
		eventually("the server has "+want, func() (bool, string) { got, _ := server.loaded(); return got == want, got })
	}
	says := func(name string, ok func(replica.Guest) bool) {
		t.Helper()
		eventually("the agent tells of "+name, func() (bool, string) {
			resp, err := http.Get("http://" + address + shape.AgentModels)
			if err != nil {
				return false, err.Error()
			}
			defer func() { _ = resp.Body.Close() }()
			var all map[string]replica.Guest
			if err := json.NewDecoder(resp.Body).Decode(&all); err != nil {
				return false, err.Error()
			}
			return ok(all[name]), fmt.Sprintf("%+v", all[name])
		})
	}

	end := begin() // before there is a list
	list("oak=oak-1", "ash=bad", "elm=gone")
	has("oak=xgboost oak-1")
	says("oak", func(g replica.Guest) bool { return g.Loaded })
	says("ash", func(g replica.Guest) bool {
		return !g.Loaded && g.Failures > 0 && g.Message == "no tree: xgboost bad<nil>"
	})
	says("elm", func(g replica.Guest) bool { return !g.Loaded && g.Failures > 0 && strings.Contains(g.Message, "404") })

	// Other files replace those that were there.
	list("oak=oak-2", "fir=fir")
	has("fir=xgboost fir oak=xgboost oak-2")
	eventually("one folder of files for each", func() (bool, string) {
		found, _ := filepath.Glob(filepath.Join(c.Files, "*", "*"))
		return len(found) == 2, fmt.Sprint(found)
	})

	// A server that was started anew, and is ready without its models.
	server.mu.Lock()
	server.down = true
	server.mu.Unlock()
	eventually("the agent sees that", func() (bool, string) {
		time.Sleep(2 * agentEvery)
		return true, ""
	})
	server.mu.Lock()
	server.down, server.has = false, map[string]string{}
	server.mu.Unlock()
	has("fir=xgboost fir oak=xgboost oak-2")

	// An agent that is started anew loads nothing twice, and unloads what left the list.
	end()
	_, before := server.loaded()
	list("oak=oak-2")
	end = begin()
	has("oak=xgboost oak-2")
	says("oak", func(g replica.Guest) bool { return g.Loaded })
	if _, now := server.loaded(); now != before {
		t.Errorf("it has loaded %d more", now-before)
	}
	eventually("no more files than needed", func() (bool, string) {
		found, _ := filepath.Glob(filepath.Join(c.Files, "*"))
		return len(found) == 1, fmt.Sprint(found)
	})

	// A list that cannot be read, and one that is gone for a moment, unload nothing.
	if err := os.WriteFile(c.List, []byte("["), 0o600); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * agentEvery)
	if err := os.Remove(c.List); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * agentEvery)
	has("oak=xgboost oak-2")
	list()
	has("")
	end()
}

// TestAgentNames: a list with a name that leads out of a model's folder is no list: what the
// server has stays, and nothing else is deleted.
func TestAgentNames(t *testing.T) {
	dir := t.TempDir()
	a := &agent{c: &Agent{List: filepath.Join(dir, "models.json")}, log: slog.New(slog.DiscardHandler), states: map[string]replica.Guest{}}
	list := func(name string) {
		t.Helper()
		raw, err := json.Marshal([]shape.ListedModel{{Name: "oak"}, {Name: name}})
		if err == nil {
			err = os.WriteFile(a.c.List, raw, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if list("elm.1"); !a.read() || len(a.wanted) != 2 {
		t.Fatalf("a list is not read: %v", a.wanted)
	}
	for _, name := range []string{"", ".", "..", ".oak.json", "../oak", "a/b", `a\b`, "/etc"} {
		if list(name); a.read() || len(a.wanted) != 2 || a.wanted[1].Name != "elm.1" {
			t.Errorf("%q is taken: %v", name, a.wanted)
		}
	}
}

// TestAgentList: a list that cannot be read is told of once, until it is another one or has
// been read meanwhile.
func TestAgentList(t *testing.T) {
	var logs strings.Builder
	file := filepath.Join(t.TempDir(), "models.json")
	a := &agent{c: &Agent{List: file}, log: slog.New(slog.NewTextHandler(&logs, nil)), states: map[string]replica.Guest{}}
	const good = `[{"modelName": "one", "modelSpec": {"storageUri": "s3://b/one", "framework": "xgboost"}}]`
	warnings := 0
	for i, step := range []struct {
		list    string
		changed bool
		warns   int
	}{
		{"nonsense", false, 1},
		{"nonsense", false, 0},
		{`[{"modelName": "../up"}]`, false, 1},
		{`[{"modelName": "../up"}]`, false, 0},
		{"nonsense", false, 1},
		{good, true, 0},
		{good, false, 0},
		{"nonsense", false, 1},
		{good, false, 0},
		{"nonsense", false, 1},
		{strings.Repeat(" ", maxModelList+1), false, 1},
		{strings.Repeat(" ", maxModelList+1), false, 0},
	} {
		if err := os.WriteFile(file, []byte(step.list), 0o600); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if changed := a.read(); changed != step.changed {
				t.Errorf("step %d: changed is %v", i, changed)
			}
			step.changed = false // the second time nothing is new
		}
		now := strings.Count(logs.String(), "level=WARN")
		if now-warnings != step.warns {
			t.Errorf("step %d: %d warnings, want %d:\n%s", i, now-warnings, step.warns, logs.String())
		}
		warnings = now
	}
}
