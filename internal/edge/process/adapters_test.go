package process

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/fleet"
	"roundhouse.dev/roundhouse/internal/state/fleet/platformtest"
)

// shelf is a Fetcher that has some files.
type shelf map[string]string

func (s shelf) Fetch(_ context.Context, f service.Files, _ func(done, total int64)) (string, error) {
	if path, ok := s[f.URI]; ok {
		return path, nil
	}
	return "", errors.New("404 for\n " + f.URI)
}

// TestAdaptersAreFetched: a replica starts once its model and all adapters are
// there, and is told where; a returning owner knows it, too.
func TestAdaptersAreFetched(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{Dir: dir, Fetcher: shelf{"test://m": "/store/m", "test://sql": "/store/1", "test://chat": "/store/2"}}
	p := open(t, cfg)
	sub, k := platformtest.On(t, p), platformtest.Key("lora")
	rev := revision(k, platformtest.Server{ModelURI: "test://m", Print: "at {{.ModelPath}} {{index .AdapterPaths `sql`}} {{index .AdapterPaths `chat`}}"})
	rev.Model.Adapters = []workload.Adapter{{Name: "sql", URI: "test://sql"}, {Name: "chat", URI: "test://chat"}}
	sub.MustApply(rev)
	sub.MustScale(k, 1)
	r := sub.AwaitReady(k, 1)[0]
	if log := sub.ReadLogs(r.ID, fleet.LogOptions{}); !strings.HasPrefix(log, "at /store/m /store/1 /store/2\n") {
		t.Errorf("it was started with %q", log)
	}
	want := []string{"/store/1", "/store/2", "/store/m"}
	if got := slices.Sorted(slices.Values(p.Models())); !slices.Equal(got, want) {
		t.Errorf("in use are %q", got)
	}
	if err := p.Close(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	q := open(t, cfg)
	sub = platformtest.On(t, q)
	sub.MustApply(rev)
	if now := sub.AwaitReady(k, 1)[0]; now.PID != r.PID {
		t.Errorf("adopted as %+v, was %+v", now, r)
	}
	if got := slices.Sorted(slices.Values(q.Models())); !slices.Equal(got, want) {
		t.Errorf("in use after adoption are %q", got)
	}
}

// TestAdapterCannotBeFetched: the failure names it, and the rest is tried again.
func TestAdapterCannotBeFetched(t *testing.T) {
	sub, k := platformtest.On(t, open(t, Config{Fetcher: shelf{"test://m": "/store/m", "test://sql": "/store/1"}})), platformtest.Key("lora")
	rev := revision(k, platformtest.Server{ModelURI: "test://m"})
	rev.Model.Adapters = []workload.Adapter{{Name: "sql", URI: "test://sql"}, {Name: "chat", URI: "test://chat"}}
	sub.MustApply(rev)
	sub.MustScale(k, 1)
	r := sub.Await(k, "failed", phase(replica.Failed, "ModelLoadFailed"))[0]
	if r.Message != `adapter "chat": 404 for test://chat` {
		t.Errorf("message: %q", r.Message)
	}
}

// TestAdaptersVerbatim: what a runtime fetches itself it is told by its URI.
func TestAdaptersVerbatim(t *testing.T) {
	sub, k := platformtest.On(t, open(t, Config{Fetcher: shelf{}})), platformtest.Key("lora")
	rev := revision(k, platformtest.Server{Print: "at {{index .AdapterPaths `sql`}}"})
	rev.Model = workload.Model{URI: "test://m", Verbatim: true, Adapters: []workload.Adapter{{Name: "sql", URI: "test://sql"}}}
	sub.MustApply(rev)
	sub.MustScale(k, 1)
	r := sub.AwaitReady(k, 1)[0]
	if log := sub.ReadLogs(r.ID, fleet.LogOptions{}); !strings.HasPrefix(log, "at test://sql\n") {
		t.Errorf("it was started with %q", log)
	}
}

// TestStartsWithTheFilesOfItsRevision: a replica is refused other files, those
// that take their place while it starts too; one that runs keeps what it has.
func TestStartsWithTheFilesOfItsRevision(t *testing.T) {
	var files atomic.Pointer[func() string]
	are := func(of func() string) { files.Store(&of) }
	always := func(s string) func() string { return func() string { return s } }
	dir := t.TempDir()
	cfg := Config{Dir: dir, Fetcher: shelf{"test://m": "/store/m"}, Restart: Restart{Min: 10 * time.Millisecond, Max: 10 * time.Millisecond},
		Fingerprint: func(context.Context, service.Files) string { return (*files.Load())() }}
	p := open(t, cfg)
	sub, k := platformtest.On(t, p), platformtest.Key("files")
	rev := revision(k, platformtest.Server{ModelURI: "test://m"})
	rev.Model.Fingerprint = "one"
	are(always("two"))
	sub.MustApply(rev)
	sub.MustScale(k, 1)
	r := sub.Await(k, "is refused", phase(replica.Failed, replica.ReasonModelChanged))[0]
	if !r.Started.IsZero() {
		t.Errorf("it was started: %+v", r)
	}
	asked := 0 // by one replica, one after the other
	are(func() string {
		if asked++; asked%2 == 1 {
			return "one" // as it starts
		}
		return "two" // as it is ready
	})
	sub.Await(k, "is ended", func(rs []replica.Replica) bool {
		return rs[0].Phase == replica.Failed && rs[0].Reason == replica.ReasonModelChanged && !rs[0].Started.IsZero()
	})
	are(always("one"))
	r = sub.AwaitReady(k, 1)[0]
	are(always("two"))
	if err := p.Close(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	sub = platformtest.On(t, open(t, cfg))
	sub.MustApply(rev)
	if now := sub.AwaitReady(k, 1)[0]; now.PID != r.PID {
		t.Errorf("adopted as %+v, was %+v", now, r)
	}
}

// TestReplicasStartWithTheSameFiles: a revision that was made before its files
// were known serves those of its first replica, also after an adoption.
func TestReplicasStartWithTheSameFiles(t *testing.T) {
	var files atomic.Value
	files.Store("one")
	cfg := Config{Dir: t.TempDir(), Fetcher: shelf{"test://m": "/store/m"}, Restart: Restart{Min: 10 * time.Millisecond, Max: 10 * time.Millisecond},
		Fingerprint: func(context.Context, service.Files) string { return files.Load().(string) }}
	p := open(t, cfg)
	sub, k := platformtest.On(t, p), platformtest.Key("files")
	rev := revision(k, platformtest.Server{ModelURI: "test://m"})
	sub.MustApply(rev)
	sub.MustScale(k, 1)
	if r := sub.AwaitReady(k, 1)[0]; r.Files != "one" {
		t.Errorf("it was started with files %q", r.Files)
	}
	refused := func(rs []replica.Replica) bool {
		return len(rs) == 2 && slices.ContainsFunc(rs, func(r replica.Replica) bool { return r.Reason == replica.ReasonModelChanged && r.Started.IsZero() })
	}
	files.Store("two")
	sub.MustScale(k, 2)
	sub.Await(k, "the second is refused", refused)
	sub.MustScale(k, 1)
	sub.AwaitReady(k, 1)
	if err := p.Close(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	sub = platformtest.On(t, open(t, cfg))
	sub.MustApply(rev)
	sub.MustScale(k, 2)
	sub.Await(k, "the second is refused beside the adopted one", refused)
	files.Store("one")
	sub.AwaitReady(k, 2)
}
