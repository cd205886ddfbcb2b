package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/history"
	"roundhouse.dev/roundhouse/internal/decide/residency"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/admin/console"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// someModels has two copies, of which one is in use.
type someModels struct {
	mu   sync.Mutex
	pins map[string]bool
	gone map[string]bool
	// steps are what a pull waits for: a nil one ends it.
	steps chan error
}

const usedModel, otherModel = "s3://models/used", "s3://models/other"

func (m *someModels) Copies() ([]artifact.Copy, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []artifact.Copy
	for _, uri := range []string{otherModel, usedModel} {
		if !m.gone[uri] {
			out = append(out, artifact.Copy{Source: uri, Path: "/secret/place", Bytes: 7, Pinned: m.pins[uri], FileCount: 1, Files: []artifact.CopyFile{{Name: "m.bin", Bytes: 7}}})
		}
	}
	return out, nil
}

func (m *someModels) SetPin(uri string, on bool) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if uri != usedModel && uri != otherModel {
		return false, fs.ErrNotExist
	}
	changed := m.pins[uri] != on
	m.pins[uri] = on
	return changed, nil
}

func (m *someModels) Remove(uri string) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case uri != otherModel:
		return 0, errors.New("it must not come here")
	case m.pins[uri]:
		return 0, errors.New("it is pinned")
	case m.gone[uri]:
		return 0, fs.ErrNotExist
	}
	m.gone[uri] = true
	return 7, nil
}

func (m *someModels) Pull(ctx context.Context, _ string, progress func(done, total int64)) error {
	for done := int64(1); ; done++ {
		progress(done, -1)
		select {
		case err, more := <-m.steps:
			if err != nil || !more {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func serveModels(t *testing.T) (*served, *someModels) {
	t.Helper()
	m := &someModels{pins: map[string]bool{}, gone: map[string]bool{}, steps: make(chan error)}
	s := serveConsole(t, func(c *Config) {
		c.Models = m
		c.Schemas = func() (map[string][]byte, error) {
			return map[string][]byte{"ModelService": []byte(`{"properties":{}}`)}, nil
		}
	})
	return s, m
}

func text(r *http.Response) string {
	data, _ := io.ReadAll(r.Body)
	return string(data)
}

func TestCopies(t *testing.T) {
	s, _ := serveModels(t)
	cookie, csrf := s.signIn(token)
	viewer, viewerCSRF := s.signIn("the-viewers")
	owner := []string{"Cookie", cookie, console.HeaderCSRF, csrf}
	for _, test := range []struct {
		name, method, body string
		want               int
		says               string
		headers            []string
	}{
		{"lists", "GET", "", 200, `"path":"/secret/place"`, owner},
		{"a viewer lists", "GET", "", 200, `"files":[{"name":"m.bin","bytes":7}]`, []string{"Cookie", viewer}},
		{"a viewer pins", "PATCH", `{"uri":"s3://models/other","pinned":true}`, 403, "needs the owner", []string{"Cookie", viewer, console.HeaderCSRF, viewerCSRF}},
		{"a viewer removes", "DELETE", `{"uri":"s3://models/other"}`, 403, "needs the owner", []string{"Cookie", viewer, console.HeaderCSRF, viewerCSRF}},
		{"removes without the token", "DELETE", `{"uri":"s3://models/other"}`, 403, "token", []string{"Cookie", cookie}},
		{"pins", "PATCH", `{"uri":"s3://models/other","pinned":true}`, 200, `"pinned"`, owner},
		{"pins again", "PATCH", `{"uri":"s3://models/other","pinned":true}`, 200, `"unchanged"`, owner},
		{"removes what is pinned", "DELETE", `{"uri":"s3://models/other"}`, 409, "it is pinned", owner},
		{"unpins", "PATCH", `{"uri":"s3://models/other","pinned":false}`, 200, `"unpinned"`, owner},
		{"pins nothing", "PATCH", `{"uri":"s3://models/other"}`, 422, "true or false", owner},
		{"pins what is not there", "PATCH", `{"uri":"s3://models/none","pinned":true}`, 404, "", owner},
		{"removes", "DELETE", `{"uri":"s3://models/other"}`, 200, `"deleted"`, owner},
		{"removes again", "DELETE", `{"uri":"s3://models/other"}`, 404, "", owner},
		{"of nothing", "DELETE", `{}`, 422, "uri", owner},
		{"of another field", "DELETE", `{"url":"x"}`, 422, "url", owner},
		{"of too much", "DELETE", `{"uri":"` + strings.Repeat("x", maxCopyBytes) + `"}`, 413, "limit", owner},
	} {
		resp := s.ask(test.method, "/api/v1/copies", test.body, test.headers...)
		if got := text(resp); resp.StatusCode != test.want || !strings.Contains(got, test.says) || test.name == "a viewer lists" && strings.Contains(got, "/secret/") {
			t.Errorf("%s: %s, want %d with %q: %s", test.name, resp.Status, test.want, test.says, got)
		}
	}
	for _, test := range []struct {
		kind string
		want int
	}{{"ModelService", 200}, {"Secret", 404}} {
		if resp := s.ask("GET", "/api/v1/schemas/"+test.kind, "", "Cookie", viewer); resp.StatusCode != test.want {
			t.Errorf("the schema of %s: %s", test.kind, resp.Status)
		}
	}
}

// TestUsers: what a service's revisions have is in use, without its secrets.
func TestUsers(t *testing.T) {
	before := &workload.Revision{}
	before.Model.URI = otherModel
	rev := &workload.Revision{Before: before}
	rev.Model.URI, rev.Model.Adapters = "https://user:hunter2@example.com/m", []workload.Adapter{{URI: usedModel}}
	got := usersOf([]fleet.ServiceState{{Object: fleet.Object{Object: dialect.Object{Key: service.Key{Namespace: "default", Name: "iris"}}}, Revision: rev}})
	for _, uri := range []string{usedModel, otherModel, artifact.Redact(rev.Model.URI)} {
		if fmt.Sprint(got[uri]) != "[default/iris]" {
			t.Errorf("%s: %v", uri, got)
		}
	}
}

func TestDownloads(t *testing.T) {
	s, m := serveModels(t)
	owner := []string{"Authorization", "Bearer " + token}
	uri := func(i int) string { return fmt.Sprintf(`{"uri":"https://user:hunter2@example.com/%d"}`, i) }
	for i := range maxPulls {
		if resp := s.ask("POST", "/api/v1/downloads", uri(i), owner...); resp.StatusCode != http.StatusAccepted || strings.Contains(text(resp), "hunter2") {
			t.Fatal(resp.Status)
		}
	}
	for name, test := range map[string]struct {
		body string
		want int
		as   []string
	}{
		"one more":  {uri(maxPulls), 429, owner},
		"again":     {uri(0), 409, owner},
		"a file":    {`{"uri":"file:///etc/passwd"}`, 422, owner},
		"a viewer":  {uri(9), 403, []string{"Authorization", "Bearer the-viewers"}},
		"an upload": {`{"uri":"upload://0000000000000000000000000000000000000000000000000000000000000000/x"}`, 422, owner},
	} {
		if resp := s.ask("POST", "/api/v1/downloads", test.body, test.as...); resp.StatusCode != test.want {
			t.Errorf("%s: %s, want %d: %s", name, resp.Status, test.want, text(resp))
		}
	}
	if resp := s.ask("DELETE", "/api/v1/downloads", uri(0), owner...); resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
	state := func(want string) {
		t.Helper()
		var all []Download
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
			all = nil
			changes, version, _ := s.live.board.Since(0)
			for _, c := range changes {
				var d Download
				if strings.HasPrefix(c.Key, "download/") && json.Unmarshal(c.Data, &d) == nil {
					all = append(all, d)
				}
				if d.State == want {
					return
				}
			}
			<-s.live.board.Changed(version)
		}
		t.Errorf("none is %s: %+v", want, all)
	}
	state("stopped")
	m.steps <- errors.New("the source is gone")
	state("failed")
	close(m.steps)
	state("done")
	got := blocks(t, s, "/api/v1/watch?kinds=download", `data: {"key":"download/`)
	if strings.Contains(got, "hunter2") || !strings.Contains(got, "event: download") {
		t.Error(got)
	}
	if resp := s.ask("DELETE", "/api/v1/downloads", uri(0), owner...); resp.StatusCode != 200 { // dismissed
		t.Error(resp.Status)
	}
	if resp := s.ask("DELETE", "/api/v1/downloads", uri(0), owner...); resp.StatusCode != 404 {
		t.Error(resp.Status)
	}
	for i := range keptPulls + maxPulls + 2 {
		if resp := s.ask("POST", "/api/v1/downloads", uri(100+i), owner...); resp.StatusCode != http.StatusAccepted && resp.StatusCode != http.StatusTooManyRequests {
			t.Fatal(resp.Status)
		}
	}
	if n := len(s.admin.pulls.mu.all); n > keptPulls+maxPulls {
		t.Errorf("%d downloads are kept", n)
	}
	s.admin.pulls.close()
	if resp := s.ask("POST", "/api/v1/downloads", uri(1), owner...); resp.StatusCode != http.StatusServiceUnavailable {
		t.Error(resp.Status)
	}
}

// TestLive: the stream has what each replica is asked and what its engine told, the
// last failure, and who would be stopped first.
func TestLive(t *testing.T) {
	now := time.Date(2026, 11, 26, 14, 0, 0, 0, time.UTC)
	s := serveConsole(t)
	key := service.Key{Namespace: "default", Name: "a"}
	live, err := NewLive(LiveConfig{Get: s.live.cfg.Get, Pace: s.live.cfg.Pace, Now: func() time.Time { return now }, Events: s.events,
		Demand: func(service.Key) autoscale.Demand { return autoscale.Demand{Queued: 2} },
		Machine: func(context.Context) Machine {
			return Machine{Standings: []residency.Standing{{Service: "default/a", Stops: true, Why: "cheap"}}}
		},
		InFlight: func(id string) int { return len(id) },
		Load: func(id string) *replica.Load {
			return map[string]*replica.Load{"r1": {At: now, Waiting: 4, KV: 0.41237, Tells: replica.Figures{Queue: true, KV: true}}, "old": {At: now.Add(-time.Hour), Tells: replica.Figures{Queue: true}}, "none": {At: now}}[id]
		}})
	if err != nil {
		t.Fatal(err)
	}
	s.events.Tell(history.Event{Namespace: "default", Service: "a", Object: history.ReplicaPrefix + "r0", Reason: history.ReplicaFailed, Message: "Crashed: exit code 3"})
	live.Observe(fleet.ServiceState{Object: fleet.Object{Object: dialect.Object{Key: key, Service: &service.Service{}}},
		Replicas: []replica.Replica{{ID: "r1", PID: 1, Phase: replica.Ready}, {ID: "old", PID: 2}, {ID: "none", PID: 3}, {ID: "waits", Phase: replica.Pending}}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { live.Run(ctx); close(done) }()
	for deadline := time.Now().Add(10 * time.Second); ; {
		all, version, _ := live.board.Since(0)
		told := map[string]string{}
		for _, c := range all {
			told[c.Key] = string(c.Data)
		}
		if told["traffic/default/a"] != "" && told["machine/"] != "" {
			want := `"replicas":{"none":{"inFlight":4},"old":{"inFlight":3},"r1":{"inFlight":2,"waiting":4,"running":0,"kv":0.412}}`
			if !strings.Contains(told["traffic/default/a"], want) || !strings.Contains(told["service/default/a"], `"lastFailure":{`) || !strings.Contains(told["service/default/a"], "exit code 3") || !strings.Contains(told["machine/"], `"standings":[{"service":"default/a","stops":true,"why":"cheap"}]`) {
				t.Errorf("%v", told)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v", told)
		}
		<-live.board.Changed(version)
	}
	cancel()
	<-done
	live.Forget(key)
	if f := live.failed.of(fleet.ServiceState{Object: fleet.Object{Object: dialect.Object{Key: key}}}); f != nil {
		t.Errorf("of a deleted service: %+v", f)
	}
}
