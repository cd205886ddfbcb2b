package command

import (
	"fmt"
	"io"
	"unicode"
	"unicode/utf8"
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
