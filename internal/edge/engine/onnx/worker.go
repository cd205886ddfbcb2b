package onnx

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"bytes"
	"strconv"

	"roundhouse.dev/roundhouse/internal/edge/engine/onnx/ort"
)

// Config is how a worker runs.
type Config struct {
	Socket  string        // the unix socket on which the server listens
	Token   string        // what the server knows the worker by
	Version string        // of this program
	Grace   time.Duration // what a stop leaves to requests in flight
	// Threads is how many threads all models share, and how many requests run
	// at a time; more wait. 0 is one per processor.
	Threads int
	Search  ort.Search // for the library, when the first model is loaded
}

// DefaultConfig returns the defaults; the socket and the token are the caller's to set.
func DefaultConfig() Config { return Config{Grace: 30 * time.Second} }

// Validate returns an error that names the first invalid field.
func (c Config) Validate() error {
	switch {
	case c.Socket == "":
		return errors.New("onnx: socket: is empty; name the server's socket")
	case c.Grace < 0:
		return fmt.Errorf("onnx: grace: is %s; it must be 0 or above", c.Grace)
	case c.Threads < 0 || c.Threads > 4096:
		return fmt.Errorf("onnx: threads: is %d; 0 to 4096", c.Threads)
	}
	return nil
}

func (c Config) threads() int {
	if c.Threads > 0 {
		return c.Threads
	}
	return runtime.GOMAXPROCS(0)
}

// The waits of the protocol.
const (
	handshakeWait = 10 * time.Second
	cancelWait    = 5 * time.Second // for requests that were cancelled
	goodbyeWait   = time.Second
)

// Run connects to the server and serves until the server sends stop, the
// connection ends, or ctx ends, which counts as stop. It returns a
// *ProtocolError if the server broke the protocol.
func Run(ctx context.Context, c Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	conn, err := (&net.Dialer{Timeout: handshakeWait}).DialContext(ctx, "unix", c.Socket)
	if err != nil {
		return fmt.Errorf("onnx: %w", err)
	}
	return serve(ctx, conn, c)
}

// worker serves one connection.
type worker struct {
	config Config
	wire   *wire
	slots  chan struct{} // one for each request that may run
	most   int           // requests in flight
	work   sync.WaitGroup

	loading sync.Mutex // loads run one after another
	library *ort.Library

	mu struct {
		sync.Mutex
		models   map[string]*entry
		calls    map[uint64]context.CancelFunc
		inFlight int // inference requests
		stopping bool
		done     bool // the goodbye is said
	}
}

// entry is a model under its key.
type entry struct {
	model  *model // nil while it is loading; guarded by worker.mu
	active sync.WaitGroup
	ctx    context.Context // ends with the model
	cancel context.CancelFunc
}

// serve shakes hands and serves. It closes conn.
func serve(ctx context.Context, conn net.Conn, c Config) error {
	w := &worker{config: c, wire: newWire(conn), slots: make(chan struct{}, c.threads())}
	w.mu.models, w.mu.calls = map[string]*entry{}, map[uint64]context.CancelFunc{}
	defer func() { _ = conn.Close() }()
	if err := w.greet(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { w.stop(c.Grace) })
	defer stop()
	err := w.listen()
	w.mu.Lock()
	done := w.mu.done
	w.mu.Unlock()
	var broken *ProtocolError
	switch {
	case done:
		return nil
	case errors.As(err, &broken):
		_ = conn.SetWriteDeadline(time.Now().Add(goodbyeWait))
		_ = w.wire.write(map[string]string{"kind": "goodbye", "reason": broken.what}, payload{})
	default:
		err = nil // the server has gone
	}
	_ = conn.Close() // ends writes
	w.end(0)
	return err
}

// greet sends hello and reads the welcome.
func (w *worker) greet() error {
	_ = w.wire.conn.SetDeadline(time.Now().Add(handshakeWait))
	executable, _ := os.Executable() // only for logs
	if err := w.wire.write(map[string]any{
		"kind": "hello", "protocols": []int{1}, "token": w.config.Token, "pid": os.Getpid(),
		"worker": map[string]string{"language": "go", "version": runtime.Version(), "implementation": "roundhouse-onnx",
			"platform": runtime.GOOS + "-" + runtime.GOARCH, "executable": executable},
		"packages": map[string]string{"roundhouse": w.config.Version}, "features": []string{},
	}, payload{}); err != nil {
		return fmt.Errorf("onnx: hello: %w", err)
	}
	m, _, err := w.wire.read()
	switch {
	case err != nil:
		return fmt.Errorf("onnx: no welcome: %w", err)
	case m.Kind == "goodbye":
		return fmt.Errorf("onnx: the server refused: %s", m.Reason)
	case m.Kind != "welcome" || m.Protocol != 1:
		return violation("%q of protocol %d in place of welcome of protocol 1", m.Kind, m.Protocol)
	}
	if w.most = m.Limits.MaxInFlight; w.most <= 0 {
		w.most = 1024
	}
	if w.wire.limit = m.Limits.MaxFrameBytes; w.wire.limit <= 0 {
		w.wire.limit = 1 << 30
	}
	return w.wire.conn.SetDeadline(time.Time{})
}

// listen takes messages until the connection ends. It returns nil at an orderly end,
// else the network's error.
func (w *worker) listen() error {
	for {
		m, payload, err := w.wire.read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if m.Kind == "goodbye" {
			return nil
		}
		if err := w.take(m, payload); err != nil {
			return err
		}
	}
}

// take starts the work that a message asks for.
func (w *worker) take(m *message, raw []byte) error {
	switch {
	case m.Kind == "stop":
		grace := w.config.Grace
		if m.Grace != nil {
			grace = seconds(*m.Grace)
		}
		go w.stop(grace)
		return nil
	case m.ID == nil:
		return nil // of a newer protocol
	}
	switch m.Kind {
	case "ping":
		w.pong(*m.ID)
	case "cancel":
		w.mu.Lock()
		if cancel := w.mu.calls[*m.ID]; cancel != nil {
			cancel()
		}
		w.mu.Unlock()
	case "infer":
		return w.beginInfer(m, raw)
	case "load":
		_, err := w.begin(m, false, func(ctx context.Context) { w.load(ctx, m) })
		return err
	case "unload":
		_, err := w.begin(m, false, func(context.Context) { w.unload(m) })
		return err
	case "metadata":
		_, err := w.begin(m, false, func(context.Context) { w.describe(m) })
		return err
	case "custom":
		w.refuse(*m.ID, fault(kindNotFound, "an ONNX model has no handlers of its own"))
	case "item", "credit", "end": // of a stream that was refused
	default:
		w.refuse(*m.ID, fault(kindUnsupported, "this worker knows no %q", m.Kind))
	}
	return nil
}

// seconds is a duration, of at most an hour.
func seconds(s float64) time.Duration {
	return time.Duration(min(max(s, 0), 3600) * float64(time.Second))
}

// begin runs f in a goroutine of its own, under a context that a cancel of the
// message's id ends. It returns false if it did not: the worker is stopping or
// full, and the message has been answered; or the id is in use, and the error
// is not nil.
func (w *worker) begin(m *message, inference bool, f func(context.Context)) (bool, error) {
	ctx, cancel := context.WithCancel(context.Background())
	id := *m.ID
	w.mu.Lock()
	_, twice := w.mu.calls[id]
	full, stopping := inference && w.mu.inFlight >= w.most, w.mu.stopping
	if !twice && !full && !stopping {
		w.mu.calls[id] = cancel
		if inference {
			w.mu.inFlight++
		}
		w.work.Add(1)
	}
	w.mu.Unlock()
	switch {
	case twice:
		cancel()
		return false, violation("the id %d is in flight", id)
	case stopping:
		w.refuse(id, fault(kindUnavailable, "the worker is stopping"))
	case full:
		w.refuse(id, fault(kindUnavailable, "the worker has %d requests in flight and takes no more", w.most))
	}
	if stopping || full {
		cancel()
		return false, nil
	}
	go func() {
		defer w.work.Done()
		defer cancel()
		f(ctx)
	}()
	return true, nil
}

// reply answers a call and forgets it first: its id is free once the server
// has the answer.
func (w *worker) reply(m *message, header any, p payload) {
	w.mu.Lock()
	delete(w.mu.calls, *m.ID)
	if m.Kind == "infer" {
		w.mu.inFlight--
	}
	w.mu.Unlock()
	err := w.wire.write(header, p)
	if errors.Is(err, errTooLarge) {
		w.refuse(*m.ID, err)
	}
	// Other failures are the end of the connection, which listen sees.
}

// fail answers a call with an error.
func (w *worker) fail(m *message, err error) { w.reply(m, failure(*m.ID, err), payload{}) }

// refuse answers a message that is not a running call.
func (w *worker) refuse(id uint64, err error) { _ = w.wire.write(failure(id, err), payload{}) }

func failure(id uint64, err error) any {
	return map[string]any{"kind": "error", "id": id, "error": described(err)}
}

func (w *worker) pong(id uint64) {
	w.mu.Lock()
	inFlight, models := w.mu.inFlight, len(w.mu.models)
	w.mu.Unlock()
	_ = w.wire.write(map[string]any{"kind": "pong", "id": id, "in_flight": inFlight, "models": models, "rss_bytes": residentBytes()}, payload{})
}

// stop accepts no more work, waits for the running work, sends the goodbye and closes
// the connection.
func (w *worker) stop(grace time.Duration) {
	w.mu.Lock()
	again := w.mu.stopping
	w.mu.stopping = true
	w.mu.Unlock()
	if again {
		return
	}
	w.end(grace)
	w.mu.Lock()
	w.mu.done = true
	w.mu.Unlock()
	_ = w.wire.conn.SetWriteDeadline(time.Now().Add(goodbyeWait))
	_ = w.wire.write(map[string]string{"kind": "goodbye", "reason": ""}, payload{})
	_ = w.wire.conn.Close()
}

// end waits for the requests in flight, cancels what is left after grace, and
// gives the models' memory back where nothing uses it any more.
func (w *worker) end(grace time.Duration) {
	w.mu.Lock()
	w.mu.stopping = true
	w.mu.Unlock()
	idle := make(chan struct{})
	go func() { w.work.Wait(); close(idle) }()
	if !within(idle, grace) {
		w.mu.Lock()
		for _, cancel := range w.mu.calls {
			cancel()
		}
		w.mu.Unlock()
		if !within(idle, cancelWait) {
			return // native code is stuck; the end of the process ends it
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, e := range w.mu.models {
		e.cancel()
		if e.model != nil {
			e.model.session.Close()
		}
		delete(w.mu.models, key)
	}
}

// within reports whether the channel is closed in that time.
func within(done <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
}

// TokenVariable holds the token in the environment of a worker.
const TokenVariable = "ROUNDHOUSE_WORKER_TOKEN"

// residentBytes is the memory the process has, by /proc; 0 where there is none.
func residentBytes() int64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := bytes.Fields(text)
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
