package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// telling are the commands that print what objects, replicas and other people's
// programs say of themselves: it must not move the cursor, set the title or
// hide a line of whoever reads it.
var telling = []string{"apply", "delete", "describe", "explain", "get", "validate"}

// tellVisibly has these commands print through a visible.
func tellVisibly(cmd *cobra.Command) {
	run := cmd.RunE
	if run == nil || !slices.Contains(telling, cmd.Name()) {
		return
	}
	cmd.RunE = func(c *cobra.Command, args []string) error {
		c.SetOut(&visible{to: c.OutOrStdout()})
		return run(c, args)
	}
}

// visible writes control characters, and those that turn the direction of
// writing, as \uXXXX, which JSON and YAML read as the same.
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

// oneLine keeps a message from looking like other lines of a table.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
