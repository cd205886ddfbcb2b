package worker

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
)

// conn is the connection to a worker after the handshake: it numbers requests,
// writes them, and hands each answer to its call.
type conn struct {
	nc     net.Conn
	frames *frameReader
	limits Limits
	push   func(*message) // takes what belongs to no call, on the reader
	out    outbox

	inFlight atomic.Int64 // inference requests and streams
	done     chan struct{}
	err      error // why; valid after done

	mu struct {
		sync.Mutex
		calls  map[uint64]*call
		last   uint64
		closed bool // no new calls
	}
}

// call is one request that has not been answered yet.
type call struct {
	id       uint64
	kind     string
	frame    *frame        // set once it is queued
	limit    time.Duration // for an answer; 0: none of its own
	touched  atomic.Int64  // unix nanoseconds of the last message about it
	expired  bool          // guarded by conn.mu
	counted  bool          // in inFlight
	messages chan *message // the answer; where that is items, up to their credit, and its end
	credit   chan struct{} // of a stream: tokens to send items, at most streamCredit
	owed     atomic.Int64  // items the worker may still send
}

func newConn(nc net.Conn, frames *frameReader, l Limits, push func(*message)) *conn {
	c := &conn{nc: nc, frames: frames, limits: l, push: push, done: make(chan struct{})}
	c.mu.calls = map[uint64]*call{}
	c.out.wake = make(chan struct{}, 1)
	frames.limit.Store(l.MaxFrameBytes)
	return c
}

func newCall(kind string, limit time.Duration) *call {
	c := &call{kind: kind, limit: limit, counted: kind == kindInfer || kind == kindStream || kind == kindCustom}
	if kind != kindStream && kind != kindCustom {
		c.messages = make(chan *message, 1)
		return c
	}
	c.messages = make(chan *message, streamCredit+1)
	c.owed.Store(streamCredit)
	if kind == kindStream {
		c.credit = make(chan struct{}, streamCredit)
		for range streamCredit {
			c.credit <- struct{}{}
		}
	}
	return c
}

// start numbers the call, adds it to the calls in flight, makes its frame with
// build and queues the frame. Its errors are build's, errGone and errFull.
func (c *conn) start(call *call, build func(id uint64) (*frame, error)) error {
	c.mu.Lock()
	switch {
	case c.mu.closed:
		c.mu.Unlock()
		return errGone
	case call.counted && c.inFlight.Load() >= int64(c.limits.MaxInFlight):
		c.mu.Unlock()
		return errFull
	}
	c.mu.last++
	call.id = c.mu.last
	call.touched.Store(time.Now().UnixNano())
	c.mu.calls[call.id] = call
	if call.counted {
		c.inFlight.Add(1)
	}
	c.mu.Unlock()
	f, err := build(call.id)
	if err == nil {
		err = f.seal(c.limits.MaxFrameBytes)
	}
	if err != nil {
		c.drop(call)
		return err
	}
	call.frame = f
	c.out.send(f)
	return nil
}

// drop forgets a call that is answered or was never sent.
func (c *conn) drop(call *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.calls[call.id] != call {
		return
	}
	delete(c.mu.calls, call.id)
	if call.counted {
		c.inFlight.Add(-1)
	}
}

// wait waits for the next message of a call. errNotSent means that the worker
// never saw the request. When ctx ends first the call is cancelled.
func (c *conn) wait(ctx context.Context, call *call) (*message, error) {
	select {
	case m := <-call.messages:
		return m, m.err
	case <-ctx.Done():
		c.cancel(call)
		return nil, ctx.Err()
	case <-c.done:
	}
	select { // the answer may have come before the end
	case m := <-call.messages:
		return m, m.err
	default:
	}
	if call.frame.claim(frameWithdrawn) {
		return nil, errNotSent
	}
	return nil, c.err
}

// cancel abandons a call. It withdraws a call that was not sent yet. For any
// other it sends a cancellation; the id stays in use until the worker answers.
func (c *conn) cancel(call *call) {
	if call.frame.claim(frameWithdrawn) {
		c.drop(call)
		return
	}
	c.send(control(kindCancel, "id", call.id))
}

// send queues a small message of our own.
func (c *conn) send(f *frame) {
	if f.seal(c.limits.MaxFrameBytes) == nil {
		c.out.send(f)
	}
}

// read dispatches the worker's messages until the connection ends. It returns
// why it ended, nil after a goodbye.
func (c *conn) read() error {
	for {
		header, payload, err := c.frames.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		m, err := decode(header, payload)
		if err != nil {
			return err
		}
		if m.Kind == kindGoodbye {
			if m.Reason != "" {
				return &goodbyeError{excerpt.Of(m.Reason, maxMessage)}
			}
			return nil
		}
		if err := c.dispatch(m); err != nil {
			return err
		}
	}
}

// goodbyeError is the reason a worker gave for its end.
type goodbyeError struct{ reason string }

func (e *goodbyeError) Error() string { return "said goodbye: " + e.reason }

// dispatch hands m to its call, or to push when it belongs to none.
func (c *conn) dispatch(m *message) error {
	if m.ID == nil {
		c.push(m)
		return nil
	}
	c.mu.Lock()
	call := c.mu.calls[*m.ID]
	c.mu.Unlock()
	final := false
	switch m.Kind {
	case kindResult, kindPong, kindError, kindEnd:
		final = true
	case kindItem, kindCredit:
	default:
		c.send(control(kindError, "id", *m.ID, "error", map[string]string{"kind": kindUnsupported, "message": "the server knows no such kind"}))
		return nil
	}
	if call == nil {
		return violation("%s for %d, which is not in flight", m.Kind, *m.ID)
	}
	if !call.takes(m.Kind) {
		return violation("%s in answer to %s", m.Kind, call.kind)
	}
	call.touched.Store(time.Now().UnixNano())
	switch m.Kind {
	case kindCredit:
		return call.addCredit(m.N)
	case kindItem:
		if call.owed.Add(-1) < 0 {
			return violation("more items of %s %d than its credit", call.kind, *m.ID)
		}
	case kindError:
		m.err = m.Error.err()
	}
	if final {
		c.drop(call)
	}
	select {
	case call.messages <- m:
	default: // nothing waits for it: the call timed out
	}
	return nil
}

// takes reports whether the worker may send a message of this kind for the call.
func (c *call) takes(kind string) bool {
	switch kind {
	case kindError:
		return true
	case kindPong:
		return c.kind == kindPing
	case kindResult:
		return c.kind != kindStream && c.kind != kindPing
	case kindItem, kindEnd:
		return c.kind == kindStream || c.kind == kindCustom
	}
	return c.kind == kindStream
}

// addCredit lets the call send n more messages.
func (c *call) addCredit(n int64) error {
	for range n {
		select {
		case c.credit <- struct{}{}:
		default:
			return violation("more credit for stream %d than was used", c.id)
		}
	}
	return nil
}

// consumed gives credit for n items back to the worker.
func (c *conn) consumed(call *call, n int64) {
	call.owed.Add(n)
	c.send(control(kindCredit, "id", call.id, "n", n))
}

// close refuses further calls and closes the connection.
func (c *conn) close() {
	c.mu.Lock()
	c.mu.closed = true
	c.mu.Unlock()
	c.out.close()
	_ = c.nc.Close()
}

// fail ends every call with err. Call close before it.
func (c *conn) fail(err error) {
	c.err = err
	close(c.done)
}

// oldest reports whether there are calls in flight, whether a load is among them,
// and whether one has waited beyond its limit. Calls without a limit of their
// own have fallback.
func (c *conn) oldest(now time.Time, fallback time.Duration) (busy, loading, late bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.mu.calls {
		if call.kind == kindPing {
			continue
		}
		busy = true
		limit := call.limit
		if limit == 0 {
			limit = fallback
		}
		over := now.UnixNano()-call.touched.Load() > int64(limit)
		if call.kind == kindLoad && !over {
			loading = true
		}
		late = late || over
	}
	return busy, loading, late
}

// expire cancels the calls that are beyond their own limit and ends them with
// err. The worker answers heartbeats, so its other calls go on.
func (c *conn) expire(now time.Time, err func(*call) error) {
	c.mu.Lock()
	var over []*call
	for _, call := range c.mu.calls {
		if call.limit > 0 && !call.expired && now.UnixNano()-call.touched.Load() > int64(call.limit) {
			call.expired = true
			over = append(over, call)
		}
	}
	c.mu.Unlock()
	for _, call := range over {
		select {
		case call.messages <- &message{err: err(call)}:
		default: // the answer came just now
		}
		c.send(control(kindCancel, "id", call.id))
	}
}

// outbox holds the frames that wait to be written. The bound of requests in
// flight bounds it too: each has one frame, its credits and a cancellation.
type outbox struct {
	mu     sync.Mutex
	queue  []*frame
	closed bool
	wake   chan struct{} // holds a token while there may be something
}

func (o *outbox) send(f *frame) {
	o.mu.Lock()
	if !o.closed {
		o.queue = append(o.queue, f)
	}
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *outbox) close() {
	o.mu.Lock()
	o.closed, o.queue = true, nil
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// take returns all frames that wait; ok is false after close.
func (o *outbox) take(into []*frame) (batch []*frame, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	batch = append(into, o.queue...)
	clear(o.queue)
	o.queue = o.queue[:0]
	return batch, !o.closed
}

// maxBatch bounds the bytes written by one call, so that a frame still queued
// can be withdrawn.
const maxBatch = 1 << 20

// write writes queued frames until close. A failed write closes the connection,
// which ends read.
func (c *conn) write() {
	var batch []*frame
	var buffers net.Buffers
	for range c.out.wake {
		var ok bool
		if batch, ok = c.out.take(batch[:0]); !ok {
			return
		}
		for at := 0; at < len(batch); {
			buffers = buffers[:0]
			n := 0
			for ; at < len(batch) && n < maxBatch; at++ {
				f := batch[at]
				if f.claim(frameSent) {
					buffers = append(append(buffers, f.head), f.parts...)
					n += len(f.head) + int(f.size)
				}
			}
			sending := buffers
			if _, err := sending.WriteTo(c.nc); err != nil {
				_ = c.nc.Close()
				return
			}
			clear(buffers)
		}
		clear(batch)
	}
}

// ended reports whether the connection refuses further calls.
func (c *conn) ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.closed
}
