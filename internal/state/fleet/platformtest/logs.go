package platformtest

import (
	"bufio"
	"io"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// ReadLogs returns what Logs gives.
func (s Subject) ReadLogs(id string, o fleet.LogOptions) string {
	s.t.Helper()
	l, err := s.Logs(s.t.Context(), id, o)
	if err != nil {
		s.t.Fatalf("Logs: %v", err)
	}
	defer func() { _ = l.Close() }()
	b, err := io.ReadAll(l)
	if err != nil {
		s.t.Fatalf("Logs: %v", err)
	}
	return string(b)
}

func testLogs(t *testing.T, h Harness) {
	s := On(t, h.New(t))
	k := Key("logs")
	s.MustApply(h.Revision(k, Server{Print: "one\ntwo\nthree"}))
	s.MustScale(k, 1)
	id := s.AwaitReady(k, 1)[0].ID
	all := s.ReadLogs(id, fleet.LogOptions{})
	if !strings.HasPrefix(all, "one\ntwo\nthree\nlistening on ") {
		t.Errorf("logs: %q", all)
	}
	if tail := s.ReadLogs(id, fleet.LogOptions{Tail: 2}); !strings.HasPrefix(tail, "three\nlistening") {
		t.Errorf("last 2 lines: %q", tail)
	}
	if tail := s.ReadLogs(id, fleet.LogOptions{Tail: 1000}); tail != all {
		t.Errorf("last 1000 lines: %q", tail)
	}
}

// testLogsKept wants the output of a replica that is gone.
func testLogsKept(t *testing.T, h Harness) {
	s := On(t, h.New(t))
	k := Key("kept")
	s.MustApply(h.Revision(k, Server{Print: "one\ntwo\nthree"}))
	s.MustScale(k, 1)
	id := s.AwaitReady(k, 1)[0].ID
	all := s.ReadLogs(id, fleet.LogOptions{})
	s.MustScale(k, 0)
	s.AwaitNone(k)
	if after := s.ReadLogs(id, fleet.LogOptions{}); !strings.HasPrefix(after, all) {
		t.Errorf("once the replica is gone: %q", after)
	}
}

func testLogsFollow(t *testing.T, h Harness) {
	s := On(t, h.New(t))
	k := Key("follow")
	s.MustApply(h.Revision(k, Server{Print: "begin", ReadyAfter: 100 * time.Millisecond}))
	s.MustScale(k, 1)
	id := s.Await(k, "started", func(rs []replica.Replica) bool { return len(rs) == 1 && !rs[0].Started.IsZero() })[0].ID
	l, err := s.Logs(t.Context(), id, fleet.LogOptions{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	lines := bufio.NewScanner(l)
	for _, want := range []string{"begin", "listening"} {
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), want) {
			t.Fatalf("followed %q, %v; want %s…", lines.Text(), lines.Err(), want)
		}
	}
	s.AwaitReady(k, 1)
	s.MustScale(k, 0)
	ended := make(chan bool)
	go func() { ended <- lines.Scan() }()
	select {
	case more := <-ended:
		if more {
			t.Errorf("more output than there was: %q", lines.Text())
		}
	case <-time.After(patience):
		t.Error("following does not end with the replica")
	}
}

func testLogsPrevious(t *testing.T, h Harness) {
	s := On(t, h.New(t))
	k := Key("previous")
	s.MustApply(h.Revision(k, Server{Print: "hello", CrashAfter: h.crash(), CrashCode: 1}))
	s.MustScale(k, 1)
	r := s.Await(k, "ready again", func(rs []replica.Replica) bool {
		return len(rs) == 1 && rs[0].Phase == replica.Ready && rs[0].Restarts > 0
	})[0]
	if got := s.ReadLogs(r.ID, fleet.LogOptions{Previous: true}); !strings.Contains(got, "told to crash") {
		t.Errorf("previous process: %q", got)
	}
}
