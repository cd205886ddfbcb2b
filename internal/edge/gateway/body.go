package gateway

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"roundhouse.dev/roundhouse/internal/core/network"
	"roundhouse.dev/roundhouse/internal/edge/gateway/http1"
	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
)

// Why a body is not read into memory.
var (
	// errNoMemory: the bodies in memory reach MaxBufferedBytes.
	errNoMemory = errors.New("the gateway's buffer for request bodies is full: send the request again later")
	// errNoShare: those of one client reach its share.
	errNoShare = errors.New("the bodies of this client's requests, and answers that graphs hold for it, fill its share of the gateway's buffer: send fewer at a time")
)

// body is a request's body: what has been read of it, and what follows.
type body struct {
	head   []byte
	tail   *tailReader // nil when head is everything
	length int64       // -1 when unknown
	stated int64       // by the request
	budget *ingress.Budget
	held   int64 // taken from the budget
	shared int64 // of it, counted as client's
	client string
	from   *patientReader
	spent  bool    // some of the tail was sent
	pooled *[]byte // what head is a part of; nil when it is its own
	grown  bool    // it was sent with a longer name, which made it long
	lent   bool    // a hedge that lost may still read it
}

// long reports whether sending the body on may outlast the answer.
func (b *body) long() bool {
	return b.tail != nil || b.length < 0 || b.length > http1.InlineBytes || b.grown || b.lent
}

// substitution replaces the bytes [start, end) of a body by name. The zero
// substitution changes nothing.
type substitution struct {
	start, end int
	name       []byte
}

// unread reports whether some of r's body was not read.
func (b *body) unread(r *http.Request) bool {
	if b.from == nil {
		return r.ContentLength != 0
	}
	return !b.from.ended.Load()
}

// replayable reports whether the body can be sent from its start.
func (b *body) replayable() bool {
	return b.tail == nil || !b.spent && !b.tail.begun.Load()
}

// release gives back what is held, when it will not be sent any more.
func (b *body) release() {
	if b.budget != nil {
		b.budget.Give(b.held)
		b.budget.Unshare(b.client, b.shared)
	}
	if b.pooled != nil && !b.long() { // else it may still be read
		putBuffer(b.pooled)
	}
	b.head, b.held, b.shared, b.pooled = nil, 0, 0, nil
}

// tailReader reads the part of a body that is not held, once. It remembers
// the client's failures, which would otherwise look like the replica's.
type tailReader struct {
	from  io.Reader
	begun atomic.Bool
	err   atomic.Pointer[error]
}

func (t *tailReader) Read(p []byte) (int, error) {
	t.begun.Store(true)
	n, err := t.from.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		t.err.Store(&err)
	}
	return n, err
}

// clientError is what went wrong while reading the tail from the client.
func (b *body) clientError() error {
	if b.tail == nil {
		return nil
	}
	if err := b.tail.err.Load(); err != nil {
		return *err
	}
	return nil
}

// leastRate is how many bytes a second must come of a body that is held in
// memory, on average and beyond ClientTimeout: slow clients keep no memory.
const leastRate = 4 << 10

// patientReader gives every read its own deadline.
type patientReader struct {
	rc      *http.ResponseController
	from    io.Reader
	http2   bool
	timeout time.Duration
	ended   atomic.Bool // the end was read
	// began is when the first byte was waited for, got how many have come.
	// While held, leastRate counts.
	began time.Time
	got   int64
	held  bool

	mu   sync.Mutex
	over bool // the handler is about to return
}

// stop sees that no later Read touches the connection, which is then the next
// request's: whoever sends a body on may outlast its answer.
func (p *patientReader) stop() {
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
}

// wait gives the next read its deadline; false after stop.
func (p *patientReader) wait() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over {
		by := time.Now().Add(p.timeout)
		if p.held {
			if slowest := p.began.Add(p.timeout + time.Duration(p.got)*time.Second/leastRate); slowest.Before(by) {
				by = slowest
			}
		}
		// Not every ResponseWriter has deadlines (HTTP servers' do).
		_ = p.rc.SetReadDeadline(by)
	}
	return !p.over
}

func (p *patientReader) Read(b []byte) (int, error) {
	if !p.wait() {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := p.from.Read(b)
	p.got += int64(n)
	if errors.Is(err, io.EOF) {
		p.ended.Store(true)
		// The server goes on watching the connection for a client that leaves.
		// That of HTTP/1 lifts the deadline itself.
		if p.http2 {
			_ = p.rc.SetReadDeadline(time.Time{})
		}
	}
	return n, err
}

// read reads r's body: all of it, or, unless whole, at most MaxReplayBytes and
// leaves a longer one to be streamed through from.
func (b *body) read(x *response, r *http.Request, from *patientReader, cfg *Config, whole bool, begun time.Time) error {
	b.length = r.ContentLength
	if r.ContentLength == 0 || r.Body == nil || r.Body == http.NoBody {
		b.length = 0
		return nil
	}
	if r.ContentLength > cfg.MaxBodyBytes {
		return &http.MaxBytesError{Limit: cfg.MaxBodyBytes}
	}
	b.from = from
	from.rc, from.from, from.http2, from.timeout = &x.rc, r.Body, r.ProtoMajor != 1, cfg.ClientTimeout
	if r.ContentLength < 0 {
		from.from = http.MaxBytesReader(x.w, r.Body, cfg.MaxBodyBytes)
	}
	if !whole && r.ContentLength > cfg.MaxReplayBytes {
		b.tail = &tailReader{from: from}
		return nil
	}
	limit := cfg.MaxBodyBytes
	if !whole {
		limit = min(limit, cfg.MaxReplayBytes)
	}
	from.began, from.held = begun, true
	ended, err := b.fill(from, limit)
	from.held = false
	if err != nil {
		return err
	}
	if ended {
		b.length = int64(len(b.head))
		return nil
	}
	b.tail = &tailReader{from: from}
	return nil
}

// readRest reads what is left of a body that would be streamed, up to limit
// bytes of it all.
func (b *body) readRest(limit int64) error {
	if b.tail == nil {
		return nil
	}
	ended, err := b.fill(b.tail.from, limit)
	switch {
	case err != nil:
		return err
	case !ended:
		return &http.MaxBytesError{Limit: limit}
	}
	b.tail, b.length = nil, int64(len(b.head))
	return nil
}

// The buffer a body is read into begins with firstBuffer bytes at most, and
// grows bufferGrowth times as large as what has come: a stated length by itself
// takes no memory.
const (
	firstBuffer  = 16 << 10
	bufferGrowth = 4
)

// bufferSizes are those of buffers that are used again. Longer bodies may still
// be read when their answer is there.
var bufferSizes = [...]int64{4 << 10, 16 << 10, http1.InlineBytes + 1}

var bufferPools [len(bufferSizes)]sync.Pool

// getBuffer returns a buffer of at least n bytes; pooled is what to give to
// putBuffer, nil when it is too long for that.
func getBuffer(n int64) (b []byte, pooled *[]byte) {
	for i, size := range bufferSizes {
		if n > size {
			continue
		}
		if p, ok := bufferPools[i].Get().(*[]byte); ok {
			return (*p)[:0], p
		}
		b = make([]byte, 0, size)
		return b, &b
	}
	return make([]byte, 0, n), nil
}

func putBuffer(p *[]byte) {
	for i, size := range bufferSizes {
		if int64(cap(*p)) == size {
			bufferPools[i].Put(p)
		}
	}
}

// fill reads on into the body's head until the end or limit bytes. ended
// reports whether the end was seen.
func (b *body) fill(from io.Reader, limit int64) (ended bool, err error) {
	most := limit + 1
	if n := b.stated; n > 0 {
		most = min(most, n+1) // one more, to see the end without growing
	}
	buf, size := b.head, min(firstBuffer, most)
	for {
		if int64(len(buf)) >= limit+1 {
			b.head = buf
			return false, nil
		}
		if len(buf) == cap(buf) {
			if len(buf) > 0 {
				size = bufferGrowth * int64(cap(buf))
			}
			if buf, err = b.grow(buf, min(size, most)); err != nil {
				return false, err
			}
		}
		n, err := from.Read(buf[len(buf):min(int64(cap(buf)), limit+1)])
		buf = buf[:len(buf)+n]
		if errors.Is(err, io.EOF) {
			b.head = buf
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
}

// grow moves buf to a buffer of size bytes or more.
func (b *body) grow(buf []byte, size int64) ([]byte, error) {
	bigger, pooled := getBuffer(size)
	if err := b.hold(int64(cap(bigger)-cap(buf)), pooled == nil); err != nil {
		return nil, err
	}
	bigger = append(bigger, buf...)
	if b.pooled != nil {
		putBuffer(b.pooled)
	}
	b.pooled = pooled
	return bigger, nil
}

// hold takes n bytes of memory for the body; those of a long one are counted as
// its client's.
func (b *body) hold(n int64, long bool) error {
	if !b.budget.Take(n) {
		return errNoMemory
	}
	b.held += n
	if !long {
		return nil
	}
	if !b.budget.Share(b.client, n) {
		return errNoShare
	}
	b.shared += n
	return nil
}

// client names the client whose share of the budget the request's body takes: its
// API key, or its address; of a graph's step, that of the graph's request.
func (x *exchange) client() string {
	if w, ok := x.w.(*whole); ok && w.client != "" {
		return w.client
	}
	if x.pass != nil {
		return x.pass.Key()
	}
	return network.WithoutPort(x.req.r.RemoteAddr)
}

// parts appends to dst the parts of the body that are in memory, with the
// substitution, and returns the length of the whole body, -1 when it is not known.
func (b *body) parts(dst [][]byte, s substitution) ([][]byte, int64) {
	length := b.length
	if length >= 0 {
		length += int64(len(s.name) - (s.end - s.start))
		b.grown = b.grown || length > http1.InlineBytes
	}
	if s.end > 0 {
		dst = append(dst, b.head[:s.start], s.name)
	}
	return append(dst, b.head[s.end:]), length
}
