package inference

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"roundhouse.dev/roundhouse/cmd/internal/progress"
)

const (
	// maxBatchBytes bounds the lines that are read and not yet written.
	maxBatchBytes = 256 << 20
	// maxAnswerBytes bounds one answer.
	maxAnswerBytes = 256 << 20
	// linesAhead is how many groups of lines per worker may wait for an
	// earlier one, so that answers come out in the order of the requests.
	linesAhead = 4
)

// Batch is a file of requests, one a line, that is answered into another file. Its
// fields are the flags of `mlserver infer`.
type Batch struct {
	Input, Output    string // paths; - for the standard ones
	Workers          int    // requests under way at once
	Retries          int    // times a request is tried
	Size             int    // lines that are sent as one request where they fit together
	Interval, Jitter time.Duration
	Timeout          time.Duration // of one try
	Headers          []string      // "NAME: VALUE"
	Insecure         bool          // accept any certificate
	Verbose          int           // 1: retries and failures; 2: every request
}

// line is one request of the input and what becomes of it.
type line struct {
	index  int // from 0
	body   []byte
	answer []byte // without the line's end
	failed error
}

// group is the lines that one worker takes at a time.
type group struct {
	lines  []*line
	size   int64 // bytes of the input, blank lines included
	memory int64 // of them in memory
	done   chan struct{}
}

// batchRun is a batch under way.
type batchRun struct {
	*Batch
	asker    asker
	memory   *semaphore.Weighted
	progress *progress.Bar
	lines    int
	failures int
	first    *line // that failed
}

// run asks about every line of the input. The answers are in its order, and
// what was written when it ends early are the answers to a beginning of it.
func (b *Batch) run(ctx context.Context, asker asker, in io.Reader, out io.Writer, p *progress.Bar) (*batchRun, error) {
	r := &batchRun{Batch: b, asker: asker, memory: semaphore.NewWeighted(maxBatchBytes), progress: p}
	tasks, ctx := errgroup.WithContext(ctx)
	order := make(chan *group, b.Workers*linesAhead)
	work, ended := make(chan *group), make(chan error, 1)
	// Nobody waits for the reader: it may be waiting for a terminal.
	go func() {
		err := r.read(ctx, in, func(g *group) error {
			for _, c := range []chan *group{order, work} {
				select {
				case c <- g:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		})
		close(order)
		close(work)
		ended <- err
	}()
	for range b.Workers {
		tasks.Go(func() error { return r.work(ctx, work) })
	}
	tasks.Go(func() error { return r.write(ctx, out, order) })
	if err := tasks.Wait(); err != nil {
		return r, err
	}
	return r, <-ended
}

// work answers groups.
func (r *batchRun) work(ctx context.Context, groups <-chan *group) error {
	for {
		g, more := receive(ctx, groups)
		if !more {
			return ctx.Err()
		}
		began := time.Now()
		r.answer(ctx, g.lines)
		if ctx.Err() != nil {
			return ctx.Err() // what was answered is no answer
		}
		close(g.done)
		if err := wait(ctx, r.pause()-time.Since(began)); err != nil {
			return err
		}
	}
}

// receive waits for a group, false if there will be none.
func receive(ctx context.Context, groups <-chan *group) (*group, bool) {
	select {
	case g, more := <-groups:
		return g, more
	case <-ctx.Done():
		return nil, false
	}
}

// pause is the time from a request of a worker to its next.
func (b *Batch) pause() time.Duration {
	d := b.Interval
	if b.Jitter > 0 {
		d += rand.N(b.Jitter)
	}
	return d
}

func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// read cuts the input into groups. Blank lines are none, but count.
func (r *batchRun) read(ctx context.Context, in io.Reader, give func(*group) error) error {
	lines := bufio.NewReaderSize(in, 64<<10)
	g := &group{done: make(chan struct{})}
	for index := 0; ; index++ {
		body, size, err := readLine(lines, MaxRequestBytes)
		tooLong := errors.Is(err, errLongLine)
		if err != nil && !errors.Is(err, io.EOF) && !tooLong {
			return fmt.Errorf("%s: line %d: %w", r.Input, index+1, err)
		}
		g.size += size
		if body = bytes.TrimSpace(body); len(body) > 0 || tooLong {
			if e := r.memory.Acquire(ctx, int64(len(body))); e != nil {
				return e
			}
			g.memory += int64(len(body))
			l := &line{index: index, body: body}
			if tooLong {
				l.failed = fmt.Errorf("the line is over %d bytes", MaxRequestBytes)
			}
			g.lines = append(g.lines, l)
		}
		// Hand the group on before it takes memory that other groups wait for.
		if end := errors.Is(err, io.EOF); len(g.lines) == r.Size || g.memory > maxBatchBytes/2-MaxRequestBytes || end && g.size > 0 {
			if e := give(g); e != nil || end {
				return e
			}
			g = &group{done: make(chan struct{})}
		} else if end {
			return nil
		}
	}
}

var errLongLine = errors.New("line too long")

// readLine returns the next line without its end, and the number of bytes read.
// Nothing of a line over limit bytes is kept.
func readLine(r *bufio.Reader, limit int) (body []byte, size int64, err error) {
	for {
		part, err := r.ReadSlice('\n')
		size += int64(len(part))
		if size <= int64(limit)+1 {
			body = append(body, part...)
		} else {
			body = nil
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err == nil && size > int64(limit)+1, errors.Is(err, io.EOF) && size > int64(limit): // the last may have no end
			return nil, size, errLongLine
		}
		return bytes.TrimSuffix(body, []byte("\n")), size, err
	}
}

// write writes the answers in order.
func (r *batchRun) write(ctx context.Context, out io.Writer, order <-chan *group) (err error) {
	w := bufio.NewWriterSize(out, 64<<10)
	defer func() {
		if e := w.Flush(); err == nil || errors.Is(err, context.Canceled) {
			err = errors.Join(err, e)
		}
	}()
	for {
		g, more := receive(ctx, order)
		if !more {
			return ctx.Err()
		}
		// What is answered may be wanted by who reads along.
		select {
		case <-g.done:
		default:
			if err := w.Flush(); err != nil {
				return err
			}
		}
		select {
		case <-g.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		for _, l := range g.lines {
			r.count(l)
			if _, err := w.Write(append(l.answer, '\n')); err != nil {
				return err
			}
		}
		r.memory.Release(g.memory)
		r.progress.Add(g.size)
	}
}

func (r *batchRun) count(l *line) {
	r.lines++
	if l.failed == nil {
		return
	}
	if r.failures++; r.first == nil {
		r.first = l
	}
}

// client makes one for as many requests at once as there are workers.
func (b *Batch) client(via http.RoundTripper) *http.Client {
	if via != nil {
		return &http.Client{Transport: via}
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost, t.MaxIdleConns = b.Workers, b.Workers
	if b.Insecure {
		t.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} // asked for by --insecure
	}
	return &http.Client{Transport: t}
}
