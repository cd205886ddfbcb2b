// Package kvevents subscribes to what engines publish of their prefix caches
// over ZeroMQ (vLLM's and SGLang's KV events), and asks engines for the tokens of
// prompts. What it learns goes to a Sink.
package kvevents

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"roundhouse.dev/roundhouse/internal/decide/kvblocks"
)

// Source is where an endpoint publishes its events.
type Source struct {
	ID      string // of the endpoint
	Address string // "host:port" of the publisher
	// Replay is the "host:port" where missed events can be asked for; "" for
	// none.
	Replay string
	Topic  string // prefix of the topics that are subscribed to
	// Service is the one whose replica the endpoint is, for metrics; "" for none.
	Service string
}

// Sink is told of events. Calls for one endpoint come one after the other, those
// for several at once. The event is valid within the call.
type Sink interface {
	// KVEvent is something that an endpoint's engine says of its cache.
	KVEvent(id string, e *kvblocks.Event)
	// KVReset tells that events were missed, so that nothing is known of the
	// endpoint's cache.
	KVReset(id string)
}

// Config configures a Subscriber. Sink is required.
type Config struct {
	Sink Sink
	Log  *slog.Logger
	// Dial connects; nil is a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Pause is the first pause after a failure; it doubles up to MaxPause.
	Pause, MaxPause time.Duration
}

// DefaultConfig pauses 200 ms to 15 s.
func DefaultConfig() Config { return Config{Pause: 200 * time.Millisecond, MaxPause: 15 * time.Second} }

// maxSources is how many endpoints one process follows.
const maxSources = 1024

// Subscriber follows endpoints. Its methods are safe for concurrent use.
type Subscriber struct {
	cfg     Config
	metrics metrics
	ctx     context.Context
	stop    context.CancelFunc
	done    sync.WaitGroup

	mu      sync.Mutex
	pools   map[string][]Source
	sources map[string]*subscription // by endpoint
}

// New returns a Subscriber that follows nothing yet.
func New(cfg Config) (*Subscriber, error) {
	if cfg.Sink == nil || cfg.Pause <= 0 || cfg.MaxPause < cfg.Pause {
		return nil, errors.New("kvevents: a Sink, and pauses above 0, are required")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext
	}
	s := &Subscriber{cfg: cfg, metrics: newMetrics(), pools: map[string][]Source{}, sources: map[string]*subscription{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// Close ends all subscriptions.
func (s *Subscriber) Close() {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.done.Wait()
}

// SetPool makes these the endpoints of a pool that are followed; none removes it.
// An endpoint may be in several pools.
func (s *Subscriber) SetPool(name string, sources []Source) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil
	}
	if s.pools[name] = sources; len(sources) == 0 {
		delete(s.pools, name)
	}
	want := map[string]Source{}
	for _, all := range s.pools {
		for _, one := range all {
			want[one.ID] = one
		}
	}
	for _, one := range sources { // the last one given for an ID counts
		want[one.ID] = one
	}
	for id, sub := range s.sources {
		if _, ok := want[id]; !ok {
			sub.stop()
			delete(s.sources, id)
		}
	}
	for id, source := range want {
		last := s.sources[id]
		if last != nil && last.source == source {
			continue
		}
		if last == nil && len(s.sources) >= maxSources {
			return fmt.Errorf("kvevents: endpoint %s is one more than can be followed (%d)", id, maxSources)
		}
		sub := &subscription{cfg: &s.cfg, source: source, counts: &counts{}, ended: make(chan struct{}), log: s.cfg.Log.With("endpoint", id, "address", source.Address)}
		if last != nil { // it publishes elsewhere now
			last.stop()
			sub.counts, sub.after = last.counts, last.ended
		}
		var ctx context.Context
		ctx, sub.stop = context.WithCancel(s.ctx)
		s.sources[id] = sub
		s.done.Go(func() { sub.run(ctx) })
	}
	return nil
}

// subscription follows one endpoint. All but stop, counts and ended is its
// goroutine's.
type subscription struct {
	cfg     *Config
	source  Source
	stop    context.CancelFunc
	counts  *counts
	after   <-chan struct{} // closed when the endpoint's last subscription has ended; nil for none
	ended   chan struct{}
	log     *slog.Logger
	next    uint64         // the sequence number that comes next
	known   bool           // next is known
	last    uint64         // hash of the batch before
	skipped map[int64]bool // groups of layers that do not keep whole prompts
	told    bool           // the log says that it fails
}

func (s *subscription) run(ctx context.Context) {
	defer close(s.ended)
	if s.after != nil {
		<-s.after // its last word is that nothing is known
	}
	pause := s.cfg.Pause
	for ctx.Err() == nil {
		begun := time.Now()
		err := s.follow(ctx)
		if ctx.Err() != nil {
			break
		}
		s.counts.failures[reasonOf(err)].Add(1)
		if !s.told {
			s.log.Warn("KV events cannot be followed; what was sent there counts instead", "error", err)
			s.told = true
		}
		if time.Since(begun) > s.cfg.MaxPause {
			pause = s.cfg.Pause
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause)):
		}
		pause = min(2*pause, s.cfg.MaxPause)
	}
	s.reset()
}

func (s *subscription) reset() {
	s.counts.exact.Store(false)
	s.cfg.Sink.KVReset(s.source.ID)
}

// unreached is an error before there was a connection.
type unreached struct{ error }

func (u *unreached) Unwrap() error { return u.error }

// reasonOf is why a connection was given up: what is wrong with neither reaching
// the publisher nor reading from it is wrong with what it sent.
func reasonOf(err error) reason {
	if _, ok := errors.AsType[*unreached](err); ok {
		return unreachable
	}
	if _, ok := errors.AsType[net.Error](err); ok || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return lost
	}
	return malformed
}

// follow subscribes and reads until something fails.
func (s *subscription) follow(ctx context.Context) error {
	c, release, err := s.dial(ctx, s.source.Address, "SUB")
	if err != nil {
		return err
	}
	defer release()
	// A subscription is a message of its own in ZMTP 3.0.
	if err := c.send(append([]byte{1}, s.source.Topic...)); err != nil {
		return err
	}
	s.catchUp(ctx)
	for {
		frames, err := c.message()
		if err != nil {
			return err
		}
		if len(frames) != 3 || len(frames[1]) != 8 || !strings.HasPrefix(string(frames[0]), s.source.Topic) {
			return fmt.Errorf("a message is no topic, sequence number and batch: it has %d frames", len(frames))
		}
		if s.told {
			s.log.Info("KV events are followed again")
			s.told = false
		}
		if err := s.take(ctx, binary.BigEndian.Uint64(frames[1]), frames[2]); err != nil {
			return err
		}
	}
}

// dial connects to a socket. release ends the connection; so does ctx.
func (s *subscription) dial(ctx context.Context, address, kind string) (c *conn, release func(), err error) {
	raw, err := s.cfg.Dial(ctx, "tcp", address)
	if err != nil {
		return nil, nil, &unreached{err}
	}
	unhook := context.AfterFunc(ctx, func() { _ = raw.Close() }) // its reader fails
	release = func() {
		unhook()
		_ = raw.Close() // nothing was written that could be lost
	}
	if c, err = handshake(raw, kind); err != nil {
		release()
		return nil, nil, &unreached{fmt.Errorf("%s: %w", address, err)}
	}
	return c, release, nil
}

// catchUp takes what was published before the connection. What comes meanwhile
// waits in the connection.
func (s *subscription) catchUp(ctx context.Context) {
	if s.known && (s.source.Replay == "" || s.ask(ctx, true, s.next) != nil) {
		s.forget() // it may be another process, and began to count anew
	}
	if s.source.Replay != "" && !s.known {
		_ = s.ask(ctx, false, 0) // is logged
	}
}

// ask asks for the batches from the next on, at least to the one before until,
// and counts what comes of it. verify is as in replay.
func (s *subscription) ask(ctx context.Context, verify bool, until uint64) error {
	whole, err := s.replay(ctx, verify)
	if err != nil {
		s.log.Debug("missed KV events cannot be asked for", "error", err)
	}
	came := complete
	switch {
	case errors.Is(err, errOther):
		came = stale
	case err != nil:
		if came = failed; reasonOf(err) == malformed {
			s.counts.failures[malformed].Add(1)
		}
	case !whole || s.next < until:
		came = partial
	}
	s.counts.replays[came].Add(1)
	return err
}

// forget begins anew with an engine of which nothing is known.
func (s *subscription) forget() {
	s.next, s.known, s.skipped = 0, false, nil
	s.reset()
}

// take takes a batch from the publisher. One that was replayed already is
// dropped; those that are missing are asked for.
func (s *subscription) take(ctx context.Context, seq uint64, payload []byte) error {
	if s.known && seq > s.next {
		s.counts.gaps.Add(1)
		if s.source.Replay != "" {
			_ = s.ask(ctx, false, seq) // is logged
		}
	}
	if s.known && seq < s.next {
		return nil
	}
	return s.apply(seq, payload)
}

// apply takes the next batch, or a later one where those before it are lost.
func (s *subscription) apply(seq uint64, payload []byte) error {
	if seq != s.next {
		s.forget()
	}
	s.next, s.known, s.last = seq+1, true, xxhash.Sum64(payload)
	return decode(payload, s.event)
}

// event tells the sink of an event, unless its blocks do not count.
func (s *subscription) event(m *message) {
	if m.kind == "BlockStored" && m.spec != "" && !strings.Contains(m.spec, "full") && !strings.Contains(m.spec, "mla") {
		if s.skipped == nil {
			s.skipped = map[int64]bool{}
		}
		if len(s.skipped) < maxGroups {
			s.skipped[m.group] = true
		}
		s.counts.events[ignored].Add(1)
		return
	}
	known := m.kind == "BlockStored" || m.kind == "BlockRemoved" || m.kind == "AllBlocksCleared"
	// Blocks in other memory than the GPU's are slow to use.
	if onGPU := m.medium == "" || strings.EqualFold(m.medium, "gpu"); !known || !onGPU || s.skipped[m.group] {
		s.counts.events[ignored].Add(1)
		return
	}
	s.cfg.Sink.KVEvent(s.source.ID, &m.Event)
	// The metrics never say more than the sink knows.
	if m.Kind != kvblocks.Cleared {
		s.counts.blocks[m.Kind].Add(uint64(len(m.Blocks)))
	}
	s.counts.events[m.Kind].Add(1)
	s.counts.exact.Store(true)
}

// maxGroups is how many groups of layers of an engine are told apart.
const maxGroups = 64

const (
	// maxReplay is how many batches are taken of one replay. Engines keep 10,000
	// unless told otherwise.
	maxReplay = 100_000
	// replayTimeout bounds one replay.
	replayTimeout = 30 * time.Second
)

// errOther: the publisher does not have the batch that came last.
var errOther = errors.New("the publisher is another process than before")

// replay asks for the batches from the next on. With verify it asks for the one
// before too, which must be the one that came. It reports whether none was missing
// before one that came.
func (s *subscription) replay(ctx context.Context, verify bool) (whole bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, replayTimeout)
	defer cancel()
	c, release, err := s.dial(ctx, s.source.Replay, "DEALER")
	if err != nil {
		return false, err
	}
	defer release()
	from := s.next
	if verify {
		from--
	}
	if err := c.send(nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return false, err
	}
	whole = true
	for range maxReplay {
		frames, err := c.message()
		if err != nil {
			return false, err
		}
		// An empty frame, since vLLM 0.32 the topic, the number and the batch.
		n := len(frames)
		if n != 3 && n != 4 || len(frames[n-2]) != 8 {
			return false, fmt.Errorf("an answer is no sequence number and batch: it has %d frames", n)
		}
		seq, payload := binary.BigEndian.Uint64(frames[n-2]), frames[n-1]
		if verify {
			if seq != from || xxhash.Sum64(payload) != s.last {
				return false, errOther
			}
			verify = false
			continue
		}
		if seq == endOfReplay {
			return whole, nil
		}
		if seq < s.next {
			continue
		}
		whole = whole && seq == s.next
		if err := s.apply(seq, payload); err != nil {
			return false, err
		}
	}
	return false, fmt.Errorf("more than %d batches were replayed", maxReplay)
}

// endOfReplay is the sequence number behind the last batch: -1.
const endOfReplay = 1<<64 - 1
