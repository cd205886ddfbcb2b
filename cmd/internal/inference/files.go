package inference

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/progress"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// Validate names what is wrong.
func (b *Batch) Validate() error {
	for _, wrong := range []struct {
		is   bool
		says string
	}{
		{b.Input == "" || b.Output == "", "-i and -o go together"},
		{b.Workers < 1 || b.Workers > 1000, "--workers must be 1 to 1000"},
		{b.Size < 1 || b.Size > 10_000, "--batch-size must be 1 to 10000"},
		{b.Retries < 1, "--retries must be at least 1: the first try counts"},
	} {
		if wrong.is {
			return command.Usagef("%s", wrong.says)
		}
	}
	for _, h := range b.Headers {
		if name, _, found := strings.Cut(h, ":"); !found || strings.TrimSpace(name) == "" {
			return command.Usagef("--request-headers %q: write 'NAME: VALUE'", h)
		}
	}
	return nil
}

// Streams are the standard ones of a command.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Run sends every line of the input to model k and writes the answers.
func (b *Batch) Run(ctx context.Context, gateway Gateway, k service.Key, std Streams) (err error) {
	if err := b.Validate(); err != nil {
		return err
	}
	in, size, err := b.openInput(std.In)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // only read from
	out, err := b.openOutput(in, std.Out)
	if err != nil {
		return err
	}
	p := progress.New(std.Err)
	p.Start(k.Name, size)
	var mu sync.Mutex
	a := asker{key: k, model: k.Short(), gateway: gateway, headers: b.Headers, timeout: b.Timeout, retries: b.Retries, client: b.client(gateway.Transport)}
	a.log = func(level int, format string, args ...any) {
		if level <= b.Verbose {
			mu.Lock()
			defer mu.Unlock()
			_, _ = fmt.Fprintf(std.Err, format+"\n", args...)
		}
	}
	began := time.Now()
	r, err := b.run(ctx, a, in, out, p)
	p.Done()
	a.client.CloseIdleConnections()
	if e := out.Close(); err == nil && e != nil {
		err = e
	}
	switch {
	case errors.Is(err, context.Canceled):
		_, _ = fmt.Fprintf(std.Err, "Interrupted: %s has the answers to the first %s.\n", b.Output, command.Count(r.lines, "request"))
		return err
	case err != nil:
		return err
	case r.failures > 0:
		return fmt.Errorf("%d of %s failed, the first at line %d: %w", r.failures, command.Count(r.lines, "request"), r.first.index+1, r.first.failed)
	}
	_, err = fmt.Fprintf(std.Err, "Answered %s in %v.\n", command.Count(r.lines, "request"), time.Since(began).Round(time.Millisecond))
	return err
}

// openInput opens the requests and returns their size in bytes, -1 where it is
// unknown.
func (b *Batch) openInput(stdin io.Reader) (io.ReadCloser, int64, error) {
	if b.Input == "-" {
		return io.NopCloser(stdin), -1, nil
	}
	f, err := os.Open(b.Input)
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", b.Input, command.Cause(err))
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case info.IsDir():
		err = fmt.Errorf("%s is a folder", b.Input)
	case !info.Mode().IsRegular():
		return f, -1, nil
	default:
		return f, info.Size(), nil
	}
	_ = f.Close()
	return nil, 0, err
}

// openOutput creates the file of answers, which must not be that of requests.
func (b *Batch) openOutput(in io.Reader, stdout io.Writer) (io.WriteCloser, error) {
	if b.Output == "-" {
		return nopCloser{stdout}, nil
	}
	if f, ok := in.(*os.File); ok {
		from, err := f.Stat()
		if err != nil {
			return nil, err
		}
		if to, err := os.Stat(b.Output); err == nil && os.SameFile(from, to) {
			return nil, command.Usagef("%s cannot be both -i and -o", b.Output)
		}
	}
	f, err := os.Create(b.Output)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", b.Output, command.Cause(err))
	}
	return f, nil
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }
