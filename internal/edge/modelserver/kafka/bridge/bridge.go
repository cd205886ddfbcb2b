// Package bridge reads inference requests from a Kafka topic and writes their
// answers to another. It is a process of its own beside the model server, which
// answers over a pipe each way (package wire).
//
// A record's offset is committed once its answer is in the output topic, and
// those of all records before it in its partition: a record is answered at least
// once. Records of a partition are worked on side by side, and one that cannot
// be answered has an error for an answer, so that none holds up those behind it.
package bridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"roundhouse.dev/roundhouse/internal/edge/modelserver/kafka/wire"
)

// Config is which topics are read and written.
type Config struct {
	Servers              []string
	Input, Output, Group string
	Earliest             bool // where a new group begins; else at the end
	MaxInFlight          int
	MaxMessageBytes      int
}

// Validate reports what is missing.
func (c Config) Validate() error {
	if len(c.Servers) == 0 || c.Input == "" || c.Output == "" || c.Group == "" || c.MaxInFlight <= 0 || c.MaxMessageBytes <= 0 {
		return errors.New("servers, input, output, group, in-flight and max-bytes are required")
	}
	return nil
}

// The bounds of the client.
const (
	fetchBytes     = 16 << 20         // of one fetch from a broker
	fetches        = 2                // that wait to be worked on
	commitEvery    = time.Second      // of what was answered
	leaveTimeout   = 5 * time.Second  // for the last commit and the good-bye
	session        = 10 * time.Second // without a sign of life until a member's partitions go to others
	heartbeat      = 3 * time.Second
	revokeWait     = 20 * time.Second // for answers of partitions that another takes over
	minProduceWait = 250 * time.Millisecond
	maxProduceWait = 10 * time.Second // between two tries to write an answer
)

// asker gives the answer of a record.
type asker interface {
	ask(ctx context.Context, m wire.Message) (wire.Message, error)
}

// Run bridges until in says stop or ends, or ctx ends: records under way are
// then cut off and read again by whoever comes next.
func Run(ctx context.Context, c Config, in io.Reader, out io.Writer, log *slog.Logger) error {
	if err := c.Validate(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := newServer(in, out, c.MaxMessageBytes)
	go func() { cancel(s.read()) }()
	b, err := newBridge(c, s, log)
	if err != nil {
		return err
	}
	polling, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-s.stopped:
			stop()
		case <-ctx.Done():
		}
	}()
	log.Info("kafka requests are read", "servers", c.Servers, "topic", c.Input, "group", c.Group)
	b.poll(polling, ctx)
	b.end()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, io.EOF) {
		return cause
	}
	return nil
}

// bridge is a consumer and a producer.
type bridge struct {
	config  Config
	client  *kgo.Client
	asker   asker
	log     *slog.Logger
	free    chan struct{} // holds a token for every record under way
	working sync.WaitGroup

	mu struct {
		sync.Mutex
		changed    chan struct{} // closed and replaced when a window empties
		partitions map[partition]*window
	}
}

type partition struct {
	topic  string
	number int32
}

func newBridge(c Config, a asker, log *slog.Logger) (*bridge, error) {
	b := &bridge{config: c, asker: a, log: log, free: make(chan struct{}, c.MaxInFlight)}
	b.mu.partitions, b.mu.changed = map[partition]*window{}, make(chan struct{})
	begin := kgo.NewOffset().AtEnd()
	if c.Earliest {
		begin = kgo.NewOffset().AtStart()
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(c.Servers...),
		kgo.ClientID("roundhouse"),
		kgo.ConsumerGroup(c.Group),
		kgo.SessionTimeout(session),
		kgo.HeartbeatInterval(heartbeat),
		kgo.ConsumeTopics(c.Input),
		kgo.ConsumeResetOffset(begin),
		kgo.FetchMaxBytes(fetchBytes),
		kgo.MaxConcurrentFetches(fetches),
		kgo.BlockRebalanceOnPoll(),
		kgo.AutoCommitMarks(),
		kgo.AutoCommitInterval(commitEvery),
		kgo.OnPartitionsRevoked(b.revoked),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) { b.forget(lost) }),
		kgo.AllowAutoTopicCreation(),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.WithLogger(clientLog{log}),
	)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	b.client = client
	return b, nil
}

// poll has records answered until ctx ends; work is the context of answers.
func (b *bridge) poll(ctx, work context.Context) {
	for ctx.Err() == nil {
		select { // no more is taken than can be worked on
		case b.free <- struct{}{}:
			<-b.free
		case <-ctx.Done():
			return
		}
		fetched := b.client.PollRecords(ctx, cap(b.free)-len(b.free))
		if fetched.IsClientClosed() {
			return
		}
		fetched.EachError(func(topic string, number int32, err error) {
			if !errors.Is(err, context.Canceled) {
				b.log.Warn("kafka records cannot be read", "topic", topic, "partition", number, "error", err)
			}
		})
		fetched.EachRecord(func(r *kgo.Record) {
			b.free <- struct{}{}
			w, e := b.begin(r)
			b.working.Go(func() {
				defer func() { <-b.free }()
				if b.answer(work, r) {
					b.finish(w, e)
				} else {
					b.abandon(w)
				}
			})
		})
		b.client.AllowRebalance()
	}
}

// answer has a record answered and the answer written; false if that was cut
// off.
func (b *bridge) answer(ctx context.Context, r *kgo.Record) bool {
	m := wire.Message{Key: r.Key, Value: r.Value}
	for _, h := range r.Headers {
		m.Headers = append(m.Headers, wire.Header{Name: h.Key, Value: h.Value})
	}
	answer, err := b.asker.ask(ctx, m)
	if err != nil || answer.Stop {
		return false
	}
	for pause := minProduceWait; ; pause = min(2*pause, maxProduceWait) {
		err := b.produce(ctx, answer)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		if final(err) {
			if answer.Failed {
				b.log.Error("kafka answer cannot be written; the request is passed over", "topic", r.Topic, "partition", r.Partition, "offset", r.Offset, "error", err)
				return true
			}
			answer = refused(answer, err)
			continue
		}
		b.log.Warn("kafka answer cannot be written; it is tried again", "topic", b.config.Output, "error", err)
		if !sleep(ctx, pause) {
			return false
		}
	}
}

// final reports whether a record can never be written.
func final(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge) || errors.Is(err, kerr.InvalidRecord)
}

// refused is the error in place of an answer that the broker does not take.
func refused(answer wire.Message, err error) wire.Message {
	return wire.Message{Failed: true, Key: answer.Key, Value: fmt.Appendf(nil, `{"error":%q}`, "the broker does not take the answer: "+err.Error()),
		Headers: []wire.Header{{Name: "roundhouse-status", Value: []byte("413")}}}
}

func (b *bridge) produce(ctx context.Context, m wire.Message) error {
	r := &kgo.Record{Topic: b.config.Output, Key: m.Key, Value: m.Value}
	for _, h := range m.Headers {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Name, Value: h.Value})
	}
	return b.client.ProduceSync(ctx, r).FirstErr()
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// end waits for the records under way, commits and leaves the group.
func (b *bridge) end() {
	b.working.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	if err := b.client.CommitMarkedOffsets(ctx); err != nil && !errors.Is(err, context.Canceled) {
		b.log.Warn("kafka offsets could not be committed; the last requests are answered again", "error", err)
	}
	_ = b.client.LeaveGroupContext(ctx) // the broker notices by itself, later
	b.client.CloseAllowingRebalance()
}

// clientLog logs what the client says.
type clientLog struct{ log *slog.Logger }

func (c clientLog) Level() kgo.LogLevel {
	if c.log.Enabled(context.Background(), slog.LevelDebug) {
		return kgo.LogLevelInfo
	}
	return kgo.LogLevelWarn
}

func (c clientLog) Log(level kgo.LogLevel, message string, args ...any) {
	to := slog.LevelDebug
	switch level {
	case kgo.LogLevelError:
		to = slog.LevelError
	case kgo.LogLevelWarn:
		to = slog.LevelWarn
	}
	c.log.Log(context.Background(), to, "kafka: "+message, args...)
}
