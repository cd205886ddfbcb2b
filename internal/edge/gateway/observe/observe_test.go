package observe

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/openai"
)

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
	l.Write(Entry{})
	<-w.inside
	for range maxLogLines + 10 {
		l.Write(Entry{Model: strings.Repeat("\x00\"", 1000), Path: "\xff"})
	}
	if n := l.Dropped(); n != 10 {
		t.Errorf("%d lines dropped", n)
	}
	close(w.release)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	full := NewAccessLog(failing{})
	full.Write(Entry{})
	if err := full.Close(); err != nil || full.Dropped() != 1 {
		t.Errorf("%v, %d dropped by a writer that fails", err, full.Dropped())
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func FuzzLogEntry(f *testing.F) {
	f.Add("a", "b\xff", "\x00\"\\")
	f.Fuzz(func(t *testing.T, model, path, why string) {
		e := Entry{Time: time.Unix(0, 0), Model: model, Path: path, Retried: why, Replica: "r", FirstByte: 1, Usage: &openai.Usage{PromptTokens: 1}}
		line := e.append(nil)
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
