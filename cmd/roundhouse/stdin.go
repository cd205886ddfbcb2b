package main

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// stdin is the command's standard input, of which a signal ends the reading: a
// read of a terminal or a pipe waits for as long as nobody writes.
func stdin(cmd *cobra.Command) io.Reader {
	return interruptible{cmd.Context(), cmd.InOrStdin()}
}

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

// isTerminal says whether somebody types what is read.
func isTerminal(in io.Reader) bool {
	if r, ok := in.(interruptible); ok {
		in = r.in
	}
	f, ok := in.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
