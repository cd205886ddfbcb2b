package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// message is a record on its way to a model, or the record to produce for it.
type message struct {
	key     []byte
	headers []header
	value   []byte
	failed  bool // the value is an error, which no other record replaces
}

// header is one of a record's.
type header struct {
	name  string
	value []byte
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

// consumer reads requests from a topic and writes their answers to another. A
// record's offset is committed once its answer is in the output topic, and those of
// all records before it in its partition: a record is answered at least once.
// Records of a partition are worked on side by side, and one that cannot be
// answered has an error for an answer, so that none holds up those behind it.
type consumer struct {
	config  Config
	client  *kgo.Client
	answer  func(context.Context, message) (message, error)
	log     *slog.Logger
	free    chan struct{} // holds a token for every record under way
	working sync.WaitGroup

	mu struct {
		sync.Mutex
		changed    chan struct{} // closed and replaced when a window empties
		partitions map[partition]*window
	}
}

func newConsumer(cfg Config, answer func(context.Context, message) (message, error), log *slog.Logger) (*consumer, error) {
	c := &consumer{config: cfg, answer: answer, log: log, free: make(chan struct{}, cfg.Limits.MaxInFlight)}
	c.mu.partitions, c.mu.changed = map[partition]*window{}, make(chan struct{})
	begin := kgo.NewOffset().AtEnd()
	if cfg.Reset == ResetEarliest {
		begin = kgo.NewOffset().AtStart()
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(cfg.Servers...),
		kgo.ClientID("roundhouse"),
		kgo.ConsumerGroup(cfg.Group),
		kgo.SessionTimeout(session),
		kgo.HeartbeatInterval(heartbeat),
		kgo.ConsumeTopics(cfg.Input),
		kgo.ConsumeResetOffset(begin),
		kgo.FetchMaxBytes(fetchBytes),
		kgo.MaxConcurrentFetches(fetches),
		kgo.BlockRebalanceOnPoll(),
		kgo.AutoCommitMarks(),
		kgo.AutoCommitInterval(commitEvery),
		kgo.OnPartitionsRevoked(c.revoked),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) { c.forget(lost) }),
		kgo.AllowAutoTopicCreation(),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.WithLogger(clientLog{log}),
	)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	c.client = client
	return c, nil
}

// poll has records answered until ctx ends; work is the context of answers.
func (c *consumer) poll(ctx, work context.Context) {
	for ctx.Err() == nil {
		select { // no more is taken than can be worked on
		case c.free <- struct{}{}:
			<-c.free
		case <-ctx.Done():
			return
		}
		fetched := c.client.PollRecords(ctx, cap(c.free)-len(c.free))
		if fetched.IsClientClosed() {
			return
		}
		fetched.EachError(func(topic string, number int32, err error) {
			if !errors.Is(err, context.Canceled) {
				c.log.Warn("kafka records cannot be read", "topic", topic, "partition", number, "error", err)
			}
		})
		fetched.EachRecord(func(r *kgo.Record) {
			c.free <- struct{}{}
			w, e := c.begin(r)
			c.working.Go(func() {
				defer func() { <-c.free }()
				if c.reply(work, r) {
					c.finish(w, e)
				} else {
					c.abandon(w)
				}
			})
		})
		c.client.AllowRebalance()
	}
}

// reply has a record answered and the answer written; false if that was cut off.
func (c *consumer) reply(ctx context.Context, r *kgo.Record) bool {
	m := message{key: r.Key, value: r.Value}
	for _, h := range r.Headers {
		m.headers = append(m.headers, header{h.Key, h.Value})
	}
	answer, err := c.answer(ctx, m)
	if err != nil {
		return false
	}
	for pause := minProduceWait; ; pause = min(2*pause, maxProduceWait) {
		err := c.produce(ctx, answer)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		if final(err) {
			if answer.failed {
				c.log.Error("kafka answer cannot be written; the request is passed over", "topic", r.Topic, "partition", r.Partition, "offset", r.Offset, "error", err)
				return true
			}
			answer = refused(answer, err)
			continue
		}
		c.log.Warn("kafka answer cannot be written; it is retried", "topic", c.config.Output, "error", err)
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
func refused(answer message, err error) message {
	return message{failed: true, key: answer.key, value: fmt.Appendf(nil, `{"error":%q}`, "the broker does not take the answer: "+err.Error()),
		headers: []header{{headerStatus, []byte("413")}}}
}

func (c *consumer) produce(ctx context.Context, m message) error {
	r := &kgo.Record{Topic: c.config.Output, Key: m.key, Value: m.value}
	for _, h := range m.headers {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.name, Value: h.value})
	}
	return c.client.ProduceSync(ctx, r).FirstErr()
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
func (c *consumer) end() {
	c.working.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	if err := c.client.CommitMarkedOffsets(ctx); err != nil && !errors.Is(err, context.Canceled) {
		c.log.Warn("kafka offsets could not be committed; the last requests are answered again", "error", err)
	}
	_ = c.client.LeaveGroupContext(ctx) // the broker notices by itself, later
	c.client.CloseAllowingRebalance()
}

// clientLog passes the client's messages to the log.
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
