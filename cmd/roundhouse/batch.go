package main

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
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// Bounds on a batch of lines.
const (
	// maxBatchBytes bounds the lines that are read and not yet written.
	maxBatchBytes = 256 << 20
	// maxAnswerBytes bounds one answer.
	maxAnswerBytes = 256 << 20
	// linesAhead is how many groups of lines per worker may wait for an
	// earlier one, so that answers come out in the order of the requests.
	linesAhead = 4
)

// batchInfer is the batch form of infer: a file of requests, one a line. The
// flags and variables are those of `mlserver infer`.
type batchInfer struct {
	input, output string
	model, url    string
	workers       int
	retries       int
	size          int
	interval      seconds
	jitter        seconds
	headers       []string
	tls           struct{ use, insecure bool }
	via           http.RoundTripper // of a cluster, nil for none
	verbose       int
	unsupported   struct {
		transport string
		binary    bool
		verbose   bool
	}
}

func (b *batchInfer) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&b.input, "input-data-path", "i", "", "file of requests, one a line; - for standard input")
	f.StringVarP(&b.output, "output-data-path", "o", "", "file for the answers, one a line, in order; - for standard output")
	f.StringVarP(&b.model, "model-name", "m", "", "name of the model, as NAME")
	f.StringVarP(&b.url, "url", "u", "", "HOST:PORT of the server to ask, instead of --gateway")
	f.IntVarP(&b.workers, "workers", "w", 10, "requests under way at once, with -i")
	f.IntVarP(&b.retries, "retries", "r", 3, "times a request is tried, with -i")
	f.IntVarP(&b.size, "batch-size", "s", 1, "lines that go as one request where they fit together, with -i")
	f.Var(&b.interval, "batch-interval", "least time between two requests of a worker, with -i")
	f.Var(&b.jitter, "batch-jitter", "most random time added to it, with -i")
	f.StringArrayVarP(&b.headers, "request-headers", "H", nil, "header of every request, 'NAME: VALUE', with -i")
	f.BoolVar(&b.tls.use, "use-ssl", false, "speak TLS to --url")
	f.BoolVar(&b.tls.insecure, "insecure", false, "take any certificate, with -i")
	f.CountVarP(&b.verbose, "verbose", "v", "say what is tried again and what fails; twice: every request, with -i")
	f.BoolVar(&b.unsupported.verbose, "extra-verbose", false, "as -vv")
	f.StringVarP(&b.unsupported.transport, "transport", "t", "rest", "rest; grpc is not for files of JSON")
	f.BoolVarP(&b.unsupported.binary, "binary-data", "b", false, "not for files of JSON")
}

// on says whether the command line asks for a batch.
func (b *batchInfer) on() bool { return b.input != "" || b.output != "" }

// batchOnly are flags that say nothing of one request.
var batchOnly = []string{"workers", "retries", "batch-size", "batch-interval", "batch-jitter", "request-headers",
	"insecure", "verbose", "extra-verbose", "transport", "binary-data"}

// subject is the model that a command line names. Where it names a server,
// too, r has that.
func (b *batchInfer) subject(cmd *cobra.Command, args []string, r *remote, n namespaced) (service.Key, error) {
	given := slices.IndexFunc(batchOnly, cmd.Flags().Changed)
	if err := b.environment(cmd.Flags()); err != nil {
		return service.Key{}, err
	}
	if !b.on() && given >= 0 {
		return service.Key{}, command.Usagef("--%s goes with -i and -o", batchOnly[given])
	}
	base, err := b.base()
	if err != nil {
		return service.Key{}, err
	}
	if base != "" {
		r.gateway = base
	}
	r.gateway = strings.TrimSuffix(r.gateway, "/")
	name := b.model
	switch {
	case len(args) == 1 && name != "" && cmd.Flags().Changed("model-name"):
		return service.Key{}, command.Usagef("name the model once: %s, or --model-name %s", args[0], name)
	case len(args) == 1:
		name = args[0]
	case name == "":
		return service.Key{}, command.Usagef("accepts 1 arg: the name of the model")
	}
	return n.key(name), nil
}

// environment reads the variables that stand for flags not given, as
// MLServer's command does.
func (b *batchInfer) environment(f *pflag.FlagSet) error {
	var err error
	f.VisitAll(func(flag *pflag.Flag) {
		name := strings.ReplaceAll(strings.ToUpper(flag.Name), "-", "_")
		if name == "TIMEOUT" {
			name = "CONNECTION_TIMEOUT"
		}
		value := os.Getenv("MLSERVER_INFER_" + name)
		if flag.Changed || value == "" {
			return
		}
		values := []string{value}
		switch on, isBool := strconv.ParseBool(value); {
		case name == "REQUEST_HEADERS":
			values = strings.Fields(value)
		case name == "VERBOSE" && isBool == nil && on:
			values = []string{"+1"}
		case name == "VERBOSE":
			return
		}
		for _, v := range values {
			if e := f.Set(flag.Name, v); e != nil {
				err = command.Usagef("MLSERVER_INFER_%s: %w", name, e)
			}
		}
	})
	return err
}

// check reports wrong usage.
func (b *batchInfer) check() error {
	if b.unsupported.verbose {
		b.verbose = 2
	}
	for _, wrong := range []struct {
		is   bool
		says string
	}{
		{b.input == "" || b.output == "", "-i and -o go together"},
		{b.workers < 1 || b.workers > 1000, "--workers is 1 to 1000"},
		{b.size < 1 || b.size > 10_000, "--batch-size is 1 to 10000"},
		{b.retries < 1, "--retries is at least 1: the first try counts"},
		{b.unsupported.transport != "rest", "--transport is rest: the lines are JSON"},
		{b.unsupported.binary, "--binary-data is not supported: lines are sent as they are, in JSON"},
	} {
		if wrong.is {
			return command.Usagef("%s", wrong.says)
		}
	}
	for _, h := range b.headers {
		if name, _, found := strings.Cut(h, ":"); !found || strings.TrimSpace(name) == "" {
			return command.Usagef("--request-headers %q: it is to be 'NAME: VALUE'", h)
		}
	}
	return nil
}

// base is the URL that --url means, "" for none.
func (b *batchInfer) base() (string, error) {
	if b.url == "" {
		return "", nil
	}
	base := b.url
	if !strings.Contains(base, "://") {
		scheme := "http"
		if b.tls.use {
			scheme = "https"
		}
		base = scheme + "://" + base
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", command.Usagef("--url %q is to be HOST:PORT", b.url)
	}
	return strings.TrimSuffix(base, "/"), nil
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
	lines []*line
	size  int64 // bytes of the input, blank lines included
	held  int64 // of them held in memory
	done  chan struct{}
}

// batchRun is a batch under way.
type batchRun struct {
	*batchInfer
	asker    asker
	held     *semaphore.Weighted
	progress *progress
	lines    int
	failures int
	first    *line // that failed
}

// run asks about every line of the input. The answers are in its order, and
// what was written when it ends early are the answers to a beginning of it.
func (b *batchInfer) run(ctx context.Context, asker asker, in io.Reader, out io.Writer, p *progress) (*batchRun, error) {
	r := &batchRun{batchInfer: b, asker: asker, held: semaphore.NewWeighted(maxBatchBytes), progress: p}
	tasks, ctx := errgroup.WithContext(ctx)
	order := make(chan *group, b.workers*linesAhead)
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
	for range b.workers {
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
func (b *batchInfer) pause() time.Duration {
	d := time.Duration(b.interval)
	if b.jitter > 0 {
		d += rand.N(time.Duration(b.jitter))
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
		body, size, err := readLine(lines, maxRequestBytes)
		tooLong := errors.Is(err, errLongLine)
		if err != nil && !errors.Is(err, io.EOF) && !tooLong {
			return fmt.Errorf("%s: line %d: %w", r.input, index+1, err)
		}
		g.size += size
		if body = bytes.TrimSpace(body); len(body) > 0 || tooLong {
			if e := r.held.Acquire(ctx, int64(len(body))); e != nil {
				return e
			}
			g.held += int64(len(body))
			l := &line{index: index, body: body}
			if tooLong {
				l.failed = fmt.Errorf("the line is over %d bytes", maxRequestBytes)
			}
			g.lines = append(g.lines, l)
		}
		// What is held must be on its way before more can be waited for.
		if end := errors.Is(err, io.EOF); len(g.lines) == r.size || g.held > maxBatchBytes/2-maxRequestBytes || end && g.size > 0 {
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

// readLine reads to the next line's end, which it leaves out, and says how
// many bytes that took. Of a line over limit bytes nothing is kept.
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
		case err == nil && size > int64(limit)+1:
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
		r.held.Release(g.held)
		r.progress.add(g.size)
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

// client is for as many requests at once as there are workers.
func (b *batchInfer) client() *http.Client {
	if b.via != nil {
		return &http.Client{Transport: b.via}
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost, t.MaxIdleConns = b.workers, b.workers
	if b.tls.insecure {
		t.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} // asked for by --insecure
	}
	return &http.Client{Transport: t}
}

// seconds is a time as MLServer's flags state it, "0.5", or as Go does,
// "500ms".
type seconds time.Duration

// String is the time as Go states it.
func (s *seconds) String() string { return time.Duration(*s).String() }

// Type names the kind of value in help texts.
func (s *seconds) Type() string { return "duration" }

// Set reads a time.
func (s *seconds) Set(text string) error {
	d, err := time.ParseDuration(text)
	if n, e := strconv.ParseFloat(text, 64); e == nil {
		d, err = time.Duration(n*float64(time.Second)), nil
	}
	if err != nil || d < 0 || d > 1000*time.Hour {
		return fmt.Errorf("%q is no time: 30, 0.5 (seconds) or 5m are", text)
	}
	*s = seconds(d)
	return nil
}
