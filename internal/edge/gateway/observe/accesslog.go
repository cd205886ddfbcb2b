package observe

import (
	"errors"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/state/journal"
)

// Bounds of an access log.
const (
	// maxLogLines is how many lines may wait to be written; beyond them lines
	// are dropped and counted.
	maxLogLines = 4096
	// maxLogWord is how much of a client's word is repeated, in bytes.
	maxLogWord = 256
	// logClose is how long Close waits for a writer that is stuck.
	logClose = 2 * time.Second
)

// Sinks are told of each request when it has ended. Either may be nil.
type Sinks struct {
	AccessLog *AccessLog
	Requests  *journal.Requests
}

// Any reports whether anything is told.
func (s Sinks) Any() bool { return s.AccessLog != nil || s.Requests != nil }

// Write tells of a request that has ended. It never blocks.
func (s Sinks) Write(q journal.Request) {
	if s.AccessLog != nil {
		s.AccessLog.Write(q)
	}
	if s.Requests != nil {
		s.Requests.Add(q)
	}
}

// AccessLog writes one line of JSON per request, and never makes a request wait
// for it: lines that a slow writer leaves waiting are dropped and counted.
type AccessLog struct {
	w       io.Writer
	lines   chan []byte
	dropped atomic.Int64
	stop    chan struct{}
	done    chan struct{}
	once    sync.Once
}

// NewAccessLog writes to w, from a goroutine of its own until Close.
func NewAccessLog(w io.Writer) *AccessLog {
	l := &AccessLog{w: w, lines: make(chan []byte, maxLogLines), stop: make(chan struct{}), done: make(chan struct{})}
	go l.run()
	return l
}

// Write queues a request's line. It never blocks.
func (l *AccessLog) Write(q journal.Request) {
	select {
	case l.lines <- appendLine(nil, &q):
	default:
		l.dropped.Add(1)
	}
}

// Dropped is how many lines were not written.
func (l *AccessLog) Dropped() int64 { return l.dropped.Load() }

// Close writes the queued lines. It fails when the writer is stuck.
func (l *AccessLog) Close() error {
	l.once.Do(func() { close(l.stop) })
	select {
	case <-l.done:
		return nil
	case <-time.After(logClose):
		return errors.New("access log: the last lines could not be written in time")
	}
}

// logBuffer is how much is written at once at most, in bytes.
const logBuffer = 64 << 10

func (l *AccessLog) run() {
	defer close(l.done)
	buf := make([]byte, 0, logBuffer)
	for {
		var line []byte
		select {
		case line = <-l.lines:
		case <-l.stop:
			select {
			case line = <-l.lines:
			default:
				return
			}
		}
		buf, n := append(buf[:0], line...), int64(1)
		for more := true; more && len(buf) < logBuffer; {
			select {
			case line = <-l.lines:
				buf, n = append(buf, line...), n+1
			default:
				more = false
			}
		}
		if _, err := l.w.Write(buf); err != nil {
			l.dropped.Add(n)
		}
	}
}

// appendLine writes a request as one line of JSON. Fields without a value are left
// out.
func appendLine(b []byte, e *journal.Request) []byte {
	text := func(name, value string) {
		if value == "" {
			return
		}
		b = append(append(append(b, `,"`...), name...), `":`...)
		b = openai.AppendQuoted(b, value[:min(len(value), maxLogWord)])
	}
	number := func(name string, n int64) {
		b = append(append(append(b, `,"`...), name...), `":`...)
		b = strconv.AppendInt(b, n, 10)
	}
	millis := func(name string, d time.Duration) {
		b = append(append(append(b, `,"`...), name...), `":`...)
		b = strconv.AppendFloat(b, float64(d.Microseconds())/1000, 'f', -1, 64)
	}
	b = append(b, `{"time":"`...)
	b = append(e.Time.UTC().AppendFormat(b, "2006-01-02T15:04:05.000Z07:00"), '"')
	text("request_id", e.ID)
	text("trace_id", e.Trace)
	text("key", e.Key)
	text("client", e.Client)
	text("method", e.Method)
	text("path", e.Path)
	text("model", e.Model)
	text("target", e.Service)
	text("replica", e.Replica)
	number("status", int64(e.Status))
	if e.Replica != "" {
		millis("queue_ms", e.Queued)
	}
	if e.FirstByte > 0 {
		millis("ttft_ms", e.FirstByte)
	}
	millis("duration_ms", e.Duration)
	if e.Usage != nil {
		number("prompt_tokens", e.Usage.PromptTokens)
		number("completion_tokens", e.Usage.CompletionTokens)
		number("cached_tokens", e.Usage.CachedTokens)
	}
	number("bytes_in", e.Received)
	number("bytes_out", e.Sent)
	if e.Tries > 1 || e.Retried != "" {
		number("tries", int64(e.Tries))
		text("retried", e.Retried)
	}
	text("cut", e.Cut)
	text("reason", e.Reason)
	return append(b, "}\n"...)
}
