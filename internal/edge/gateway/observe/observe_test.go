package observe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/state/journal"
)

// TestWarnings: a warning that every request causes is written once in warnEvery
// for each subject, and the next line counts those left out.
func TestWarnings(t *testing.T) {
	var out bytes.Buffer
	w := NewWarnings(slog.New(slog.NewTextHandler(&out, nil)))
	begin := time.Unix(1000, 0)
	for i := range 100 {
		w.Warn(begin.Add(time.Duration(i)*time.Millisecond), "failed", "iris-0", "request", i)
	}
	w.Warn(begin, "failed", "iris-1", "request", "other")
	w.Warn(begin, "slow", "iris-0", "request", "late")
	w.Warn(begin.Add(warnEvery), "failed", "iris-0", "request", "next")
	w.Warn(begin.Add(2*warnEvery), "failed", "iris-0", "request", "last")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range []string{"msg=failed request=0", "msg=failed request=other", "msg=slow request=late", "msg=failed request=next omitted=99", "msg=failed request=last"} {
		if i >= len(lines) || !strings.HasSuffix(lines[i], want) {
			t.Fatalf("line %d: want %q:\n%s", i, want, &out)
		}
	}
	if len(lines) != 5 {
		t.Errorf("%d lines:\n%s", len(lines), &out)
	}
	for i := range 10 * maxWarned {
		w.Warn(begin.Add(time.Duration(i)*warnEvery), "failed", fmt.Sprint("gone-", i))
	}
	if n := len(w.past); n > maxWarned {
		t.Errorf("%d replicas are remembered, want at most %d", n, maxWarned)
	}
}

// stuck is a writer that takes nothing until it is let go.
type stuck struct{ inside, release chan struct{} }

func (s stuck) Write(p []byte) (int, error) {
	select {
	case s.inside <- struct{}{}:
	default:
	}
	<-s.release
	return len(p), nil
}

// TestAccessLogNeverStalls: a writer that is stuck costs lines, not requests.
func TestAccessLogNeverStalls(t *testing.T) {
	w := stuck{make(chan struct{}, 1), make(chan struct{})}
	l := NewAccessLog(w)
	l.Write(journal.Request{})
	<-w.inside
	for range maxLogLines + 10 {
		l.Write(journal.Request{Model: strings.Repeat("\x00\"", 1000), Path: "\xff"})
	}
	if n := l.Dropped(); n != 10 {
		t.Errorf("%d lines dropped", n)
	}
	close(w.release)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	full := NewAccessLog(failing{})
	full.Write(journal.Request{})
	if err := full.Close(); err != nil || full.Dropped() != 1 {
		t.Errorf("%v, %d dropped by a writer that fails", err, full.Dropped())
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func FuzzLogEntry(f *testing.F) {
	f.Add("a", "b\xff", "\x00\"\\")
	f.Fuzz(func(t *testing.T, model, path, why string) {
		e := journal.Request{Time: time.Unix(0, 0), Model: model, Path: path, Retried: why, Replica: "r", FirstByte: 1, Usage: &openai.Usage{PromptTokens: 1}}
		line := appendLine(nil, &e)
		if !json.Valid(line) || bytes.Count(line, []byte("\n")) != 1 {
			t.Fatalf("%q", line)
		}
	})
}

func TestParseTraceparent(t *testing.T) {
	const id, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for v, valid := range map[string]bool{
		"00-" + id + "-" + span + "-01": true, "00-" + id + "-" + span + "-00": true, "01-" + id + "-" + span + "-01-more": true,
		"00-" + id + "-" + span + "-01-more": false, "ff-" + id + "-" + span + "-01": false, "": false, "00-1-2-01": false,
		"00-" + strings.Repeat("0", 32) + "-" + span + "-01": false, "00-" + id + "-" + strings.Repeat("0", 16) + "-01": false,
		"00-" + strings.ToUpper(id) + "-" + span + "-01": false, "00-" + id + "-" + span + "-xx": false,
	} {
		if c := parseTraceparent(v); c.IsValid() != valid || valid && c.IsSampled() == strings.HasSuffix(v, "-00") {
			t.Errorf("%s: %+v", v, c)
		}
	}
}
