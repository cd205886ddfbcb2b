package kvevents

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/decide/kvblocks"
)

// counts are those of one endpoint, whose subscriptions follow one another.
type counts struct {
	events   [len(eventLabels)]atomic.Uint64
	blocks   [2]atomic.Uint64 // stored, removed
	replays  [len(outcomeLabels)]atomic.Uint64
	failures [len(reasonLabels)]atomic.Uint64
	gaps     atomic.Uint64
	exact    atomic.Bool // the sink follows what the events say
}

// What is counted of events. The first three are those of kvblocks.Kind.
const ignored = kvblocks.Cleared + 1

var eventLabels = [...]string{kvblocks.Stored: "stored", kvblocks.Removed: "removed", kvblocks.Cleared: "cleared", ignored: "ignored"}

// outcome is what came of asking for a replay.
type outcome uint8

const (
	complete outcome = iota // all that was asked for came
	partial                 // some of it is no longer there
	stale                   // the batch that came last is not there: nothing of before counts
	failed                  // there was no answer, or not to the end
)

var outcomeLabels = [...]string{complete: "complete", partial: "partial", stale: "stale", failed: "failed"}

// reason is why a connection was given up.
type reason uint8

const (
	unreachable reason = iota // it did not come about
	lost                      // it ended
	malformed                 // a message was refused
)

var reasonLabels = [...]string{unreachable: "unreachable", lost: "lost", malformed: "malformed"}

// The outcomes of asking for a prompt's tokens.
const (
	tokenized = iota
	refused   // the engine has no such call
	unanswered
	unsupported // engines tokenize no such prompt
	skipped     // too many waited
)

var promptLabels = [...]string{tokenized: "tokenized", refused: "refused", unanswered: "failed", unsupported: "unsupported", skipped: "skipped"}

// metrics describe what is counted. Series name endpoints, of which there are at
// most maxSources; they go with the endpoint.
type metrics struct {
	events, blocks, gaps, replays, failures, exact *prometheus.Desc
}

func newMetrics() metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("roundhouse_kv_events_"+name, help, append([]string{"service", "endpoint"}, labels...), nil)
	}
	return metrics{
		events:   desc("read_total", "KV events that were read of an endpoint: stored, removed, cleared, or ignored because their blocks do not count.", "event"),
		blocks:   desc("blocks_total", "Blocks in these events: stored, removed.", "event"),
		gaps:     desc("gaps_total", "Times that batches of events were missing between two."),
		replays:  desc("replays_total", "Times that missed events were asked for: complete, partial because the engine no longer has all, stale because it does not have what came last (another process), or failed.", "outcome"),
		failures: desc("failures_total", "Connections to a publisher that did not come about (unreachable), ended (lost), or were given up because a message was refused (malformed).", "reason"),
		exact:    desc("exact", "1 while an endpoint's events say what its cache holds, 0 while that is estimated by what was sent there."),
	}
}

// Describe implements prometheus.Collector.
func (s *Subscriber) Describe(c chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{s.metrics.events, s.metrics.blocks, s.metrics.gaps, s.metrics.replays, s.metrics.failures, s.metrics.exact} {
		c <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Subscriber) Collect(c chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.sources {
		count := func(d *prometheus.Desc, of *atomic.Uint64, label ...string) {
			c <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(of.Load()), append([]string{sub.source.Service, sub.source.ID}, label...)...)
		}
		n := sub.counts
		for i, label := range eventLabels {
			count(s.metrics.events, &n.events[i], label)
		}
		for i := range n.blocks {
			count(s.metrics.blocks, &n.blocks[i], eventLabels[i])
		}
		for i, label := range outcomeLabels {
			count(s.metrics.replays, &n.replays[i], label)
		}
		for i, label := range reasonLabels {
			count(s.metrics.failures, &n.failures[i], label)
		}
		count(s.metrics.gaps, &n.gaps)
		exact := 0.
		if n.exact.Load() {
			exact = 1
		}
		c <- prometheus.MustNewConstMetric(s.metrics.exact, prometheus.GaugeValue, exact, sub.source.Service, sub.source.ID)
	}
}

func newPromptCounts() *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "roundhouse_kv_events_prompts_total",
		Help: "Prompts whose tokens an engine was to tell, so that its events can be understood: tokenized, refused by an engine without such a call, failed, unsupported because it is no plain chat, or skipped because too many waited."}, []string{"outcome"})
	for _, label := range promptLabels {
		v.WithLabelValues(label)
	}
	return v
}

// Describe implements prometheus.Collector.
func (t *Tokenizer) Describe(c chan<- *prometheus.Desc) { t.prompts.Describe(c) }

// Collect implements prometheus.Collector.
func (t *Tokenizer) Collect(c chan<- prometheus.Metric) { t.prompts.Collect(c) }

func (t *Tokenizer) count(outcome int) { t.prompts.WithLabelValues(promptLabels[outcome]).Inc() }
