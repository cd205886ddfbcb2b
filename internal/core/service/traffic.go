package service

import "time"

// Logger has copies of a component's requests and answers sent elsewhere, as
// CloudEvents.
type Logger struct {
	URL  string  `json:"url"`
	Mode LogMode `json:"mode"`
	// Headers are the request's fields whose values go along; Annotations are those
	// of the service.
	Headers     []string `json:"headers,omitempty"`
	Annotations []string `json:"annotations,omitempty"`
}

// LogMode is what a Logger sends.
type LogMode string

// The modes of a Logger.
const (
	LogAll      LogMode = "all"
	LogRequest  LogMode = "request"
	LogResponse LogMode = "response"
)

// LogModes lists them.
var LogModes = []LogMode{LogAll, LogRequest, LogResponse}

// Requests reports whether requests are sent.
func (m LogMode) Requests() bool { return m != LogResponse }

// Responses reports whether answers are sent.
func (m LogMode) Responses() bool { return m != LogRequest }

// Batcher has instances of several KServe v1 requests sent as one request.
type Batcher struct {
	// MaxSize is how many instances are not exceeded by waiting for more.
	MaxSize int `json:"maxSize"`
	// MaxLatency is for how long the first request waits for others.
	MaxLatency time.Duration `json:"maxLatency"`
}

// What a Batcher has where a manifest states nothing: KServe's own defaults.
const (
	DefaultBatchSize    = 32
	DefaultBatchLatency = 5 * time.Second
)
