package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/fleet/platformtest"
)

// repositoryVariable has this test's program be a server of the models in the folder
// that it names.
const repositoryVariable = "PROCESS_TEST_REPOSITORY"

// runRepository is a server with the repository extension. A model's files are one file:
// "bad …" is refused in these words, "raise …" by a traceback, "hang" is loading until the client has gone, "forget"
// is lost when the server sleeps.
func runRepository(folder string) {
	var mu sync.Mutex
	loaded, loads := map[string]string{}, 0
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v2/health/ready", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /v2/repository/models/{name}/load", func(w http.ResponseWriter, r *http.Request) {
		var s struct{ Parameters struct{ URI string } }
		b, err := os.ReadFile(filepath.Join(folder, r.PathValue("name"), "model-settings.json"))
		if err == nil {
			err = json.Unmarshal(b, &s)
		}
		text, err2 := os.ReadFile(s.Parameters.URI)
		mu.Lock()
		loads++
		mu.Unlock()
		switch words := string(text); {
		case err != nil || err2 != nil:
			http.Error(w, fmt.Sprint(err, err2), http.StatusInternalServerError)
		case strings.HasPrefix(words, "bad"):
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(map[string]string{"error": words})
		case strings.HasPrefix(words, "raise"):
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = fmt.Fprintf(w, "Traceback (most recent call last):\n  File \"a.py\", line 1, in load\n    x()\nOSError: %s\n", words)
		case words == "hang":
			<-r.Context().Done()
		default:
			mu.Lock()
			loaded[r.PathValue("name")] = words
			mu.Unlock()
		}
	})
	mux.HandleFunc("POST /v2/repository/models/{name}/unload", func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		delete(loaded, r.PathValue("name"))
		mu.Unlock()
	})
	mux.HandleFunc("GET /v2/models/{name}/ready", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if _, ok := loaded[r.PathValue("name")]; !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("POST /sleep", func(http.ResponseWriter, *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		for name, words := range loaded {
			if words == "forget" {
				delete(loaded, name)
			}
		}
	})
	mux.HandleFunc("POST /wake", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = fmt.Fprint(w, loads, " ", loaded)
	})
	l, err := net.Listen("tcp", "127.0.0.1:"+os.Getenv("PORT"))
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() { <-stop; os.Exit(0) }()
	_ = http.Serve(l, mux)
}

// hall is a service whose replicas hold models, and its files.
type hall struct {
	platformtest.Subject
	t   *testing.T
	dir string
	rev workload.Revision
}

func newHall(t *testing.T, p *Platform, files string) *hall {
	k := platformtest.Key("hall")
	c := workload.Component{Role: service.RoleEngine, Process: &workload.Process{Command: []string{"roundhouse"}, Repository: workload.LayoutRoundhouse,
		Env:       []corev1.EnvVar{{Name: repositoryVariable, Value: "{{.ModelPath}}"}, {Name: "GORACE", Value: "atexit_sleep_ms=0"}},
		Readiness: httpProbe("/v2/health/ready"), Standby: platformtest.Server{Sleeps: true}.Standby()}}
	return &hall{platformtest.On(t, p), t, files, workload.Revision{Service: k, Name: "hall-1", Hash: "1", Components: []workload.Component{c}}}
}

// folder is a Fetcher of the files in it; "slow" of them comes when it is closed.
type folder struct {
	path string
	slow chan struct{}
}

func (f folder) Fetch(ctx context.Context, files service.Files, _ func(done, total int64)) (string, error) {
	name := strings.TrimPrefix(files.URI, "test://")
	if name == "slow" {
		select {
		case <-f.slow:
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	path := filepath.Join(f.path, name)
	if _, err := os.Stat(path); err != nil {
		return "", errors.New("no files at " + files.URI)
	}
	return path, nil
}

// holds has the service hold models, whose files are named like them; "name@2" are
// other files of the same place.
func (h *hall) holds(names ...string) {
	h.t.Helper()
	h.rev.Guests = nil
	for _, name := range names {
		name, version, _ := strings.Cut(name, "@")
		h.rev.Guests = append(h.rev.Guests, workload.Guest{Name: name, Model: workload.Model{URI: "test://" + name, Format: "xgboost", Fingerprint: version}})
	}
	h.MustApply(h.rev)
}

func (h *hall) write(name, text string) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.dir, name), []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// await waits until a replica says of a model what ok wants.
func (h *hall) await(name, what string, ok func(g replica.Guest, known bool) bool) replica.Replica {
	h.t.Helper()
	return h.Await(h.rev.Service, name+" "+what, func(rs []replica.Replica) bool {
		if len(rs) != 1 || rs[0].Phase != replica.Ready {
			return false
		}
		g, known := rs[0].Guests[name]
		return ok(g, known)
	})[0]
}

func isLoaded(g replica.Guest, _ bool) bool { return g.Loaded && g.Failures == 0 }

// says is what the server has: how often it has loaded, and what is loaded.
func says(t *testing.T, r replica.Replica) string {
	t.Helper()
	resp, err := http.Get("http://" + r.HTTP + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestGuests: each model is fetched and loaded by itself, told of in the server's own
// words, replaced, and unloaded again, all in one process.
func TestGuests(t *testing.T) {
	files := folder{t.TempDir(), make(chan struct{})}
	p := open(t, Config{Fetcher: files})
	h := newHall(t, p, files.path)
	for name, text := range map[string]string{"a": "one", "slow": "two", "hang": "hang", "bad": "bad wood"} {
		h.write(name, text)
	}
	h.holds("hang", "slow", "bad", "gone", "a")
	h.MustScale(h.rev.Service, 1)
	pid := h.await("a", "is loaded", isLoaded).PID
	h.await("bad", "is refused twice", func(g replica.Guest, _ bool) bool {
		return !g.Loaded && g.Message == "bad wood" && g.Failures > 1 && !g.Retry.IsZero()
	})
	h.await("gone", "has no files", func(g replica.Guest, _ bool) bool { return g.Message == "no files at test://gone" })
	h.write("bad", "raise hell")
	h.await("bad", "fails with a traceback", func(g replica.Guest, _ bool) bool {
		return g.Message == "the server's answer to load is 500 Internal Server Error: OSError: raise hell"
	})
	close(files.slow)
	r := h.await("slow", "is loaded", isLoaded)
	if g := r.Guests["hang"]; g.Loaded || g.Failures > 0 {
		t.Errorf("what is still loading: %+v", g)
	}
	h.write("bad", "good")
	h.await("bad", "is loaded at the next try", isLoaded)

	// Other files: loaded in place. Those that are refused leave what was there.
	h.write("a", "three")
	h.holds("slow", "a@2")
	r = h.Await(h.rev.Service, "others are gone", func(rs []replica.Replica) bool { return len(rs[0].Guests) == 2 && isLoaded(rs[0].Guests["a"], true) })[0]
	eventuallySays(t, r, "map[a:three slow:two]")
	h.write("a", "bad steel")
	h.holds("slow", "a@3")
	h.await("a", "keeps what it had", func(g replica.Guest, _ bool) bool { return g.Loaded && g.Failures > 0 && g.Message == "bad steel" })
	eventuallySays(t, r, "map[a:three slow:two]")

	h.holds()
	r = h.Await(h.rev.Service, "none is left", func(rs []replica.Replica) bool { return len(rs[0].Guests) == 0 })[0]
	eventuallySays(t, r, "map[]")
	if left, _ := os.ReadDir(p.layout(r.ID)); len(left) > 0 {
		t.Errorf("left in the repository: %v", left)
	}
	if r.PID != pid || r.Restarts > 0 {
		t.Errorf("it was started anew: %+v", r)
	}
	h.MustScale(h.rev.Service, 0)
	h.AwaitNone(h.rev.Service)
	if _, err := os.Stat(p.layout(r.ID)); err == nil {
		t.Error("the repository is left")
	}
}

func eventuallySays(t *testing.T, r replica.Replica, want string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		got := says(t, r)
		if strings.HasSuffix(got, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server has %s, want %s", got, want)
		}
	}
}

// TestGuestsOfOthers: a process that was adopted, or woken, loads what it lacks alone; one
// that is started anew loads all.
func TestGuestsOfOthers(t *testing.T) {
	files := folder{t.TempDir(), nil}
	cfg := Config{Dir: t.TempDir(), Fetcher: files}
	p := open(t, cfg)
	h := newHall(t, p, files.path)
	h.write("a", "one")
	h.write("b", "forget")
	h.holds("a", "b")
	h.MustScale(h.rev.Service, 1)
	h.await("a", "is loaded", isLoaded)
	r := h.await("b", "is loaded", isLoaded)
	if err := p.Close(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	p = open(t, cfg)
	h.Subject = platformtest.On(t, p)
	h.MustApply(h.rev)
	h.await("a", "is known", isLoaded)
	if now := h.await("b", "is known", isLoaded); now.PID != r.PID {
		t.Errorf("it was not adopted: %+v", now)
	}
	if got := says(t, r); !strings.HasPrefix(got, "2 ") {
		t.Errorf("loads and models: %s", got)
	}
	h.MustSleep(h.rev.Service, 1)
	h.AwaitAsleep(h.rev.Service, 1)
	h.MustScale(h.rev.Service, 1)
	h.await("b", "is loaded again", isLoaded)
	eventuallySays(t, r, "3 map[a:one b:forget]")
	if err := syscall.Kill(r.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	h.Await(h.rev.Service, "another process has both", func(rs []replica.Replica) bool {
		return len(rs) == 1 && rs[0].PID != r.PID && isLoaded(rs[0].Guests["a"], true) && isLoaded(rs[0].Guests["b"], true)
	})
}

// TestGuestsBeforeRollout: replicas of the revision before stay until those of the next
// have loaded what these have, as far as they can, and not for a model that nobody has yet.
func TestGuestsBeforeRollout(t *testing.T) {
	files := folder{t.TempDir(), make(chan struct{})}
	var drained atomic.Bool
	p := open(t, Config{Fetcher: files, Drain: func(context.Context, string) error { drained.Store(true); return nil }})
	h := newHall(t, p, files.path)
	h.write("a", "one")
	h.write("bad", "bad wood")
	h.write("slow", "two")
	h.holds("a", "bad")
	h.MustScale(h.rev.Service, 1)
	old := h.await("a", "is loaded", isLoaded)
	h.rev.Hash, h.rev.Name = "2", "hall-2"
	h.holds("a", "bad", "slow")
	h.Await(h.rev.Service, "the new one alone goes on, with what the old one had", func(rs []replica.Replica) bool {
		if drained.Load() && !slices.ContainsFunc(rs, func(v replica.Replica) bool { return v.ID != old.ID && isLoaded(v.Guests["a"], true) }) {
			t.Error("the old one was drained before the new one had what it has")
		}
		return len(rs) == 1 && rs[0].ID != old.ID && isLoaded(rs[0].Guests["a"], true)
	})
	if !drained.Load() {
		t.Error("the old one was not drained")
	}
	close(files.slow)
	if now := h.await("slow", "is loaded", isLoaded); now.ID == old.ID {
		t.Error("the old one stayed")
	}
}
