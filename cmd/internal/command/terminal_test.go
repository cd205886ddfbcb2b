package command

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
)

// TestVisible: a character may come in pieces, and what JSON says stays the same.
func TestVisible(t *testing.T) {
	const in = "ein\tSatz – 漢字 🙂\nred \x1b[31m, title \x1b]0;x\x07, C1 \u009b2J, bell \x7f, back\b\r, turned \u202e, broken \xff\x9b."
	const want = "ein\tSatz – 漢字 🙂\nred \\u001b[31m, title \\u001b]0;x\\u0007, C1 \\u009b2J, bell \\u007f, back\\u0008\\u000d, turned \\u202e, broken \ufffd\ufffd."
	for size := 1; size < len(in); size++ {
		var out bytes.Buffer
		v := &visible{to: &out}
		for at := 0; at < len(in); at += size {
			piece := in[at:min(at+size, len(in))]
			if n, err := v.Write([]byte(piece)); n != len(piece) || err != nil {
				t.Fatal(n, err)
			}
		}
		if out.String() != want {
			t.Fatalf("by %d bytes: %q", size, out.String())
		}
	}
	if got := visibly(in); got != want { // as errors are printed
		t.Errorf("at once: %q", got)
	}
}

// TestStandardInput: what is written is read, and a signal ends a read that
// nobody writes for.
func TestStandardInput(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	raw, err := io.ReadAll(interruptible{ctx, strings.NewReader("one\ntwo")})
	if err != nil || string(raw) != "one\ntwo" {
		t.Errorf("read %q, %v", raw, err)
	}
	r, w := io.Pipe()
	defer func() { _ = w.Close() }()
	ended := make(chan error, 1)
	go func() {
		_, err := io.ReadAll(interruptible{ctx, r})
		ended <- err
	}()
	if _, err := w.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("after the signal: %v", err)
	}
}

func TestFolded(t *testing.T) {
	text := "ok  name  one two three\n\nshort\na-word-that-fits-nowhere at all\n"
	for width, want := range map[int]string{
		0:  text,
		23: "ok  name  one two three\n\nshort\na-word-that-fits-nowhere at all\n",
		14: "ok  name  one\n  two three\n\nshort\na-word-that-fits-nowhere at all\n",
		10: "ok  name\n  one two\n  three\n\nshort\na-word-that-fits-nowhere at all\n",
	} {
		if got := Folded(text, width, 2); got != want {
			t.Errorf("%d characters: %q, want %q", width, got, want)
		}
	}
}
