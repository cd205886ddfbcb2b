package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// command runs the batch that a command line asks for.
func (b *batchInfer) command(cmd *cobra.Command, k service.Key, gateway string, timeout time.Duration) (err error) {
	if err := b.check(); err != nil {
		return err
	}
	in, size, err := b.openInput(stdin(cmd))
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // only read from
	out, err := b.openOutput(in, cmd.OutOrStdout())
	if err != nil {
		return err
	}
	p := newProgress(os.Stderr)
	if p.on {
		p.start(k.Name, size)
	}
	says := cmd.ErrOrStderr()
	var mu sync.Mutex
	a := asker{key: k, model: modelName(k), base: gateway, headers: b.headers, timeout: timeout, retries: b.retries, client: b.client()}
	a.log = func(level int, format string, args ...any) {
		if level <= b.verbose {
			mu.Lock()
			defer mu.Unlock()
			_, _ = fmt.Fprintf(says, format+"\n", args...)
		}
	}
	began := time.Now()
	r, err := b.run(cmd.Context(), a, in, out, p)
	p.done()
	a.client.CloseIdleConnections()
	if e := out.Close(); err == nil && e != nil {
		err = e
	}
	switch {
	case errors.Is(err, context.Canceled):
		_, _ = fmt.Fprintf(says, "Interrupted: %s has the answers to the first %s.\n", b.output, plural(r.lines, "request"))
		return err
	case err != nil:
		return err
	case r.failures > 0:
		return fmt.Errorf("%d of %s failed, first that of line %d: %w", r.failures, plural(r.lines, "request"), r.first.index+1, r.first.failed)
	}
	_, err = fmt.Fprintf(says, "Answered %s in %v.\n", plural(r.lines, "request"), time.Since(began).Round(time.Millisecond))
	return err
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// openInput opens the requests, and says how many bytes they are, -1 if nobody
// knows.
func (b *batchInfer) openInput(stdin io.Reader) (io.ReadCloser, int64, error) {
	if b.input == "-" {
		return io.NopCloser(stdin), -1, nil
	}
	f, err := os.Open(b.input)
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", b.input, bare(err))
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case info.IsDir():
		err = fmt.Errorf("%s is a folder", b.input)
	case !info.Mode().IsRegular():
		return f, -1, nil
	default:
		return f, info.Size(), nil
	}
	_ = f.Close()
	return nil, 0, err
}

// openOutput creates the file of answers, which must not be that of requests.
func (b *batchInfer) openOutput(in io.Reader, stdout io.Writer) (io.WriteCloser, error) {
	if b.output == "-" {
		return nopCloser{stdout}, nil
	}
	if f, ok := in.(*os.File); ok {
		from, err := f.Stat()
		if err != nil {
			return nil, err
		}
		if to, err := os.Stat(b.output); err == nil && os.SameFile(from, to) {
			return nil, command.Usagef("%s cannot be both -i and -o", b.output)
		}
	}
	f, err := os.Create(b.output)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", b.output, bare(err))
	}
	return f, nil
}
