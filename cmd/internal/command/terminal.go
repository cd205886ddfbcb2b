package command

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// Visible is w for what objects, replicas and other people's programs say of
// themselves: it must not move the cursor, set the title or hide a line of
// whoever reads it. Control characters, and those that turn the direction of
// writing, are written as \uXXXX, which JSON and YAML read as the same.
func Visible(w io.Writer) io.Writer { return &visible{to: w} }

type visible struct {
	to   io.Writer
	rest []byte // the beginning of a character
}

// Write implements io.Writer.
func (v *visible) Write(p []byte) (int, error) {
	in := append(v.rest, p...)
	out := make([]byte, 0, len(in))
	for len(in) > 0 && utf8.FullRune(in) {
		r, n := utf8.DecodeRune(in)
		switch {
		case r == utf8.RuneError && n == 1:
			out = utf8.AppendRune(out, r)
		case r != '\n' && r != '\t' && unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r):
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			out = append(out, in[:n]...)
		}
		in = in[n:]
	}
	v.rest = append(v.rest[:0:0], in...)
	if _, err := v.to.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Colours is where to write colours to that w, which may be Visible, does not take away,
// and whether there are any: on a terminal, unless NO_COLOR is set. Who writes there what
// others say makes it Harmless first.
func Colours(w io.Writer) (io.Writer, bool) {
	f, ok := Screen(w)
	if !ok || os.Getenv("NO_COLOR") != "" {
		return w, false
	}
	return f, true
}

// Screen is the Terminal that w is written to, if it is one that can do more than append
// lines.
func Screen(w io.Writer) (*os.File, bool) {
	f, ok := Terminal(w)
	return f, ok && os.Getenv("TERM") != "dumb"
}

// Width is how many characters a line has on the terminal that w is written to; 0 where it
// is none, or not known.
func Width(w io.Writer) int {
	f, ok := Terminal(w)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return max(width, 0)
}

// Folded is text whose lines are broken between words where they have more than width
// characters; what follows a break is indented. With 0 it is text.
func Folded(text string, width, indent int) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		for width > indent && utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > width {
			head := string([]rune(line)[:width+1])
			at := strings.LastIndexByte(head, ' ')
			if at < 0 || strings.TrimSpace(head[:at]) == "" {
				break // a word that fits nowhere
			}
			b.WriteString(strings.TrimRight(line[:at], " ") + "\n")
			line = strings.Repeat(" ", indent) + line[at+1:]
		}
		b.WriteString(line)
	}
	return b.String()
}

// Terminal is the terminal that w, which may be Visible, is written to, if it is one.
func Terminal(w io.Writer) (*os.File, bool) {
	if v, ok := w.(*visible); ok {
		w = v.to
	}
	f, ok := w.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd()))
}

// Harmless is a text as Visible writes it.
func Harmless(s string) string { return visibly(s) }

// visibly is a text for people, without what Write replaces.
func visibly(s string) string {
	out := make([]byte, 0, len(s))
	_, _ = (&visible{to: (*appender)(&out)}).Write([]byte(s)) // it never fails
	return string(out)
}

type appender []byte

func (a *appender) Write(p []byte) (int, error) {
	*a = append(*a, p...)
	return len(p), nil
}

// OneLine keeps a message from looking like other lines of a table.
func OneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// Stdin is the command's standard input. A signal ends a read of it, which would
// otherwise wait for as long as nobody writes.
func Stdin(cmd *cobra.Command) io.Reader {
	return Interruptible(cmd.Context(), cmd.InOrStdin())
}

// Interruptible is in, whose reads end when ctx does.
func Interruptible(ctx context.Context, in io.Reader) io.Reader { return interruptible{ctx, in} }

type interruptible struct {
	ctx context.Context
	in  io.Reader
}

// Read implements io.Reader. What is read after ctx has ended is lost.
func (r interruptible) Read(p []byte) (int, error) {
	type result struct {
		raw []byte
		err error
	}
	done := make(chan result, 1)
	go func() {
		raw := make([]byte, len(p))
		n, err := r.in.Read(raw)
		done <- result{raw[:n], err}
	}()
	select {
	case got := <-done:
		return copy(p, got.raw), got.err
	case <-r.ctx.Done():
		return 0, r.ctx.Err()
	}
}

// IsTerminal reports whether in is a terminal.
func IsTerminal(in io.Reader) bool {
	if r, ok := in.(interruptible); ok {
		in = r.in
	}
	f, ok := in.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Conversing reports whether a person types what the command reads and reads what it
// writes: only then are lines edited on the screen.
func Conversing(cmd *cobra.Command) bool {
	_, screen := Terminal(cmd.OutOrStdout())
	return screen && IsTerminal(Stdin(cmd))
}
