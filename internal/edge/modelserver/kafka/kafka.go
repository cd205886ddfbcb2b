// Package kafka answers inference requests that come as Kafka records, with
// MLServer's settings and headers.
//
// A record's value is the JSON of an inference request. Its headers
// mlserver-model and mlserver-version name the model, its key is the request's
// id; all headers are in the request's parameters. The answer's record has the
// id as key and the response's headers. A request that fails is answered with
// {"error": …} and the header roundhouse-status.
package kafka

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// Config is which topics are served and how.
type Config struct {
	// Servers are brokers, "host:port".
	Servers []string
	// Input is the topic of requests, Output that of answers.
	Input, Output string
	// Group is the consumer group. Servers of one group share the requests.
	Group string
	// Reset is where a group that is new begins: "latest" or "earliest".
	Reset string
	// Tracer records a span for every record; nil: none.
	Tracer trace.Tracer

	Limits Limits
}

// Limits bound what records may use.
type Limits struct {
	// MaxInFlight is how many records are worked on at once; others wait in
	// their topic.
	MaxInFlight int
	// MaxMessageBytes bounds a record's value either way.
	MaxMessageBytes int
}

// retryFor is how long a request is retried while its model is not loaded or has
// too many others. Then it fails.
const retryFor = 30 * time.Second

// The places where a new group may begin.
const (
	ResetLatest   = "latest"
	ResetEarliest = "earliest"
)

// DefaultConfig is MLServer's.
func DefaultConfig() Config {
	return Config{
		Servers: []string{"localhost:9092"}, Input: "mlserver-input", Output: "mlserver-output", Group: "mlserver", Reset: ResetLatest,
		Limits: Limits{MaxInFlight: 64, MaxMessageBytes: 64 << 20},
	}
}

// Validate reports everything that is wrong with c.
func (c Config) Validate() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(c.Servers) == 0 || slices.ContainsFunc(c.Servers, func(s string) bool { return strings.TrimSpace(s) == "" }) {
		wrong("kafka_servers %q: name brokers as host:port, with commas between", strings.Join(c.Servers, ","))
	}
	for name, topic := range map[string]string{"kafka_topic_input": c.Input, "kafka_topic_output": c.Output} {
		if !validTopic(topic) {
			wrong("%s %q: a topic has 1 to 249 letters, digits, dots, underscores and dashes", name, topic)
		}
	}
	if c.Input == c.Output {
		wrong("kafka_topic_output %q: must not be the input's topic, or every answer would be a request", c.Output)
	}
	if c.Group == "" {
		wrong("kafka_group is empty; name a consumer group")
	}
	if c.Reset != ResetLatest && c.Reset != ResetEarliest {
		wrong("kafka_auto_offset_reset %q: %s or %s", c.Reset, ResetLatest, ResetEarliest)
	}
	l := c.Limits
	if l.MaxInFlight <= 0 || l.MaxMessageBytes <= 0 || l.MaxMessageBytes > 1<<30 {
		wrong("kafka: limits %+v: all must be above 0, maxMessageBytes at most 1 GiB", l)
	}
	return errors.Join(errs...)
}

// validTopic reports whether Kafka takes a topic of the name.
func validTopic(name string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
	return name != "" && len(name) <= 249 && name != "." && name != ".." &&
		!strings.ContainsFunc(name, func(r rune) bool { return !strings.ContainsRune(letters, r) })
}
