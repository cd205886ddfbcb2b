package peers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"
)

// The errors of other nodes. Errors of Get and of the body are one of these, or
// the caller's context's.
var (
	ErrDead    = errors.New("the node does not answer")
	ErrSlow    = errors.New("the node is too slow")
	ErrRefused = errors.New("the node does not know us: its secret, its clock, or the origin it is known by is another")
	ErrForged  = errors.New("the answer is not signed as the ring's nodes sign")
	ErrOdd     = errors.New("the node's answer is malformed")
)

// Question asks a node for bytes of a blob from From on, and without To.
type Question struct {
	Hash           string
	Size, From, To int64
	Source         string // see Request
}

// Answer is a node's answer. If Reason is not "" there is no body: the node is
// healthy and does not send it, for that reason.
type Answer struct {
	Reason string
	Body   io.ReadCloser // exactly the bytes asked for, if the node does not fail
}

// path is where nodes ask for a blob.
func (q Question) path() string {
	return Prefix + "blobs/" + q.Hash + "?size=" + strconv.FormatInt(q.Size, 10)
}

// Get asks a node. It waits for the start of the answer as long as the node
// sends signs of life, with at most StallTimeout between two of them; so does
// reading the body.
func (g *Group) Get(ctx context.Context, name string, q Question) (*Answer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, name+q.path(), nil)
	if err != nil {
		cancel(nil)
		return nil, fmt.Errorf("%w: %w", ErrOdd, err)
	}
	if q.From > 0 || q.To < q.Size {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", q.From, q.To-1))
	}
	if q.Source != "" {
		req.Header.Set(sourceHeader, q.Source)
	}
	v := &response{g: g, name: name, ctx: ctx, cancel: cancel, left: q.To - q.From}
	v.timer = time.AfterFunc(time.Hour, v.ask)
	v.timer.Stop()
	v.begin()
	resp, err := g.send(req, name)
	v.end(0)
	if err != nil {
		err = failure(ctx, err)
		v.stop()
		return nil, err
	}
	if reason := resp.Header.Get(reasonHeader); reason != "" {
		v.stop()
		return &Answer{Reason: reason}, resp.Body.Close()
	}
	ranged := req.Header.Get("Range") != ""
	want := fmt.Sprintf("bytes %d-%d/%d", q.From, q.To-1, q.Size)
	switch {
	case resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusPartialContent,
		resp.StatusCode == http.StatusPartialContent != ranged, ranged && resp.Header.Get("Content-Range") != want,
		resp.ContentLength != q.To-q.From, resp.Header.Get("Etag") != `"`+q.Hash+`"`:
		v.stop()
		return nil, errors.Join(fmt.Errorf("%w: status %d, %d bytes, Content-Range %.60q where %s of %s were asked for",
			ErrOdd, resp.StatusCode, resp.ContentLength, resp.Header.Get("Content-Range"), want, q.Hash), resp.Body.Close())
	}
	v.body = resp.Body
	return &Answer{Body: v}, nil
}

// send sends a request, signed, and checks that a node of the ring answers.
func (g *Group) send(req *http.Request, name string) (*http.Response, error) {
	req.Header.Set("User-Agent", "roundhouse-hub-cache")
	nonce := g.sign.sign(req, name, time.Now())
	resp, err := g.client.Do(req)
	if err != nil {
		return nil, err
	}
	if err := g.sign.checkAnswer(resp, nonce); err != nil {
		if resp.StatusCode == http.StatusUnauthorized {
			err = ErrRefused
		}
		return nil, errors.Join(err, resp.Body.Close())
	}
	return resp, nil
}

// ping asks a node whether it is there.
func (g *Group) ping(ctx context.Context, name string) error { return g.call(ctx, name, "ping") }

// ReportCorrupt tells a node that a blob it sent does not have its hash.
func (g *Group) ReportCorrupt(ctx context.Context, name, hash string) error {
	return g.call(ctx, name, "wrong/"+hash)
}

func (g *Group) call(ctx context.Context, name, path string) error {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.AnswerTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, name+Prefix+path, nil)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrOdd, err)
	}
	resp, err := g.send(req, name)
	if err != nil {
		return failure(ctx, err)
	}
	return resp.Body.Close()
}

// failure is the error of a request: the context's cause, an error of this
// package, or else that the node does not answer. The URL is left out.
func failure(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	for _, own := range []error{ErrRefused, ErrForged, ErrOdd} {
		if errors.Is(err, own) {
			return err
		}
	}
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	return fmt.Errorf("%w: %w", ErrDead, err)
}

// enough is how many bytes a node must send within StallTimeout.
const enough = 64 << 10

// response waits for a node: for its answer, then for each part of the body. A
// silent node is pinged; one that answers the ping and yet sends too little is
// too slow. Only the time spent waiting for the node counts, not the time that
// a client takes to read.
type response struct {
	g      *Group
	name   string
	ctx    context.Context
	cancel context.CancelCauseFunc
	body   io.ReadCloser
	timer  *time.Timer
	left   int64 // bytes that are still to come

	mu     sync.Mutex
	round  int           // counts the waits
	began  time.Time     // of this wait; zero: none
	waited time.Duration // for the last bytes, this wait left out
	got    int64         // bytes meanwhile
}

func (v *response) begin() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.round++
	v.began = time.Now()
	v.timer.Reset(v.g.cfg.AnswerTimeout)
}

func (v *response) end(n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.timer.Stop()
	v.waited += time.Since(v.began)
	v.began = time.Time{}
	if v.got += int64(n); v.got >= enough {
		v.got, v.waited = 0, 0
	} else if v.waited > v.g.cfg.StallTimeout {
		v.cancel(ErrSlow)
	}
}

// ask pings the node when a wait takes long.
func (v *response) ask() {
	v.mu.Lock()
	round, waiting := v.round, !v.began.IsZero()
	slow := waiting && v.waited+time.Since(v.began) > v.g.cfg.StallTimeout
	v.mu.Unlock()
	if !waiting {
		return
	}
	err := ErrSlow
	if !slow {
		err = v.g.ping(v.ctx, v.name)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.round != round || v.began.IsZero() {
		return // something came meanwhile
	}
	if err != nil {
		v.cancel(err)
		return
	}
	v.timer.Reset(v.g.cfg.AnswerTimeout)
}

// Read implements io.Reader over the body.
func (v *response) Read(p []byte) (int, error) {
	v.begin()
	n, err := v.body.Read(p)
	v.end(n)
	v.left -= int64(n)
	if err == nil || errors.Is(err, io.EOF) && v.left <= 0 {
		return n, err
	}
	return n, failure(v.ctx, err)
}

func (v *response) stop() {
	v.mu.Lock()
	v.timer.Stop()
	v.began = time.Time{}
	v.mu.Unlock()
	v.cancel(nil)
}

// Close implements io.Closer.
func (v *response) Close() error {
	v.stop()
	return v.body.Close()
}
