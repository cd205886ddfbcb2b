package printer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// Lines prints things as they happen, each as a line of a table or of JSON.
type Lines[T any] struct {
	w     io.Writer
	json  bool
	table *table
	none  string // printed where there was nothing
	line  func(T) string
	more  func(T) string // printed below the line; nil prints nothing
	begun bool
}

// Print prints one thing.
func (l *Lines[T]) Print(x T) error {
	l.begun = true
	if l.json {
		return json.NewEncoder(l.w).Encode(x)
	}
	if err := l.table.print(strings.Split(l.line(x), "\t")); err != nil || l.more == nil {
		return err
	}
	_, err := io.WriteString(l.w, l.more(x))
	return err
}

// End prints that there was nothing, where no line was printed.
func (l *Lines[T]) End() error {
	if l.begun || l.json {
		return nil
	}
	_, err := fmt.Fprintln(l.w, l.none)
	return err
}

// Events prints events as a table or as lines of JSON.
func Events(w io.Writer, output string, now func() time.Time) *Lines[admin.NumberedEvent] {
	return &Lines[admin.NumberedEvent]{w: w, json: output == "json", table: newTable(w, "TIME    \tSERVICE         \tREASON          \tMESSAGE"), none: "Nothing has happened yet.",
		line: func(e admin.NumberedEvent) string {
			name, text := "-", e.Message
			if e.Service != "" {
				name = e.Namespace + "/" + e.Service
			}
			if e.Object != "" {
				text = e.Object + ": " + text
			}
			return fmt.Sprintf("%s\t%s\t%s\t%s", clock(e.Time, now()), name, e.Reason, oneLine(text))
		}}
}

// Requests prints requests as a table or as lines of JSON.
func Requests(w io.Writer, output string) *Lines[admin.Request] {
	return &Lines[admin.Request]{w: w, json: output == "json", table: newTable(w, "TIME        \tMODEL           \tSTATUS\tQUEUE\tFIRST\tTOOK  \tTOKENS  \tRATE\tREPLICA         \tNOTE"), none: "There were no such requests.",
		more: func(r admin.Request) string { return body("request", r.RequestBody) + body("answer", r.AnswerBody) },
		line: func(r admin.Request) string {
			tokens, rate := "-", "-"
			if r.PromptTokens+r.CompletionTokens > 0 {
				tokens = fmt.Sprintf("%d+%d", r.PromptTokens, r.CompletionTokens)
			}
			if r.TokensPerSecond > 0 {
				rate = fmt.Sprintf("%.0f/s", r.TokensPerSecond)
			}
			var notes []string
			if name := cmp.Or(r.KeyName, r.Key); name != "" {
				notes = append(notes, "key "+name)
			}
			if r.Reason != "" {
				notes = append(notes, r.Reason)
			}
			if r.Cut != "" {
				notes = append(notes, "cut: "+r.Cut)
			}
			if r.Tries > 1 {
				notes = append(notes, fmt.Sprintf("%d tries: %s", r.Tries, r.Retried))
			}
			return fmt.Sprintf("%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s", r.Time.Local().Format("15:04:05.000"), orDash(oneLine(r.Model)), r.Status,
				millis(r.QueuedMS), millis(r.FirstByteMS), millis(r.DurationMS), tokens, rate, orDash(r.Replica), oneLine(strings.Join(notes, "; ")))
		}}
}

// body is what is kept of a body, on lines of its own; "" where none is.
func body(what string, b *admin.Body) string {
	switch {
	case b == nil:
		return ""
	case b.Forgotten:
		return "    " + what + ": no longer kept\n"
	}
	text := strings.ReplaceAll(strings.TrimSpace(command.Harmless(b.Text)), "\n", "\n      ")
	if b.Cut {
		text += " … (cut)"
	}
	return "    " + what + ": " + text + "\n"
}

// clock is a time of today, or a date with a time.
func clock(t, now time.Time) string {
	if t.Local().Format(time.DateOnly) == now.Local().Format(time.DateOnly) {
		return t.Local().Format(time.TimeOnly)
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

// millis is a time in milliseconds, in the unit that suits it.
func millis(ms float64) string {
	switch {
	case ms == 0:
		return "-"
	case ms < 10:
		return fmt.Sprintf("%.1fms", ms)
	case ms < 1000:
		return fmt.Sprintf("%.0fms", ms)
	case ms < 60_000:
		return fmt.Sprintf("%.1fs", ms/1000)
	}
	return (time.Duration(ms) * time.Millisecond).Round(time.Second).String()
}

// oneLine is text without what would break a line or a column.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r == '\r' {
			return ' '
		}
		return r
	}, text)
}
