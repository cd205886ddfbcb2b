package worker

import (
	"encoding/json"
	"strconv"

	"roundhouse.dev/roundhouse/internal/core/openai"
)

// The kinds of message.
const (
	kindHello    = "hello"
	kindWelcome  = "welcome"
	kindGoodbye  = "goodbye"
	kindLoad     = "load"
	kindUnload   = "unload"
	kindInfer    = "infer"
	kindStream   = "stream"
	kindItem     = "item"
	kindCredit   = "credit"
	kindEnd      = "end"
	kindCancel   = "cancel"
	kindCustom   = "custom"
	kindPing     = "ping"
	kindPong     = "pong"
	kindResult   = "result"
	kindError    = "error"
	kindMetrics  = "metrics"
	kindLog      = "log"
	kindReady    = "ready"
	kindStop     = "stop"
	kindFork     = "fork"
	protocolHere = 1
)

// featureCustomStreams lets workers answer custom messages piece by piece.
const featureCustomStreams = "custom_streams"

// message is any header a worker sends after the handshake, with its payload.
type message struct {
	Kind     string        `json:"kind"`
	ID       *uint64       `json:"id"`
	Model    string        `json:"model"`
	Error    *wireError    `json:"error"`
	Response *wireResponse `json:"response"`
	HTTP     *wireHTTP     `json:"http"`

	N        int64  `json:"n"`         // of a credit
	RSS      int64  `json:"rss_bytes"` // of a pong
	Reason   string `json:"reason"`    // of a goodbye
	wireLoad        // of a load; of ready, whether it is
	wirePush        // of metrics and log

	payload []byte
	err     error // in place of an answer
}

// wireLoad describes the model in the answer to a load.
type wireLoad struct {
	Metadata *wireMetadata `json:"metadata"`
	Ready    *bool         `json:"ready"`
	Handlers []Handler     `json:"handlers"`
	Streams  bool          `json:"streams"`
}

// wirePush is what metrics and log messages carry.
type wirePush struct {
	Registered   []wireMetric        `json:"registered"`
	Observations [][]json.RawMessage `json:"observations"`
	Records      []wireRecord        `json:"records"`
	Dropped      int64               `json:"dropped"`
	Collected    []wireFamily        `json:"collected"`
	Whole        bool                `json:"whole"` // what was collected before is gone
}

type wireMetric struct {
	Name        string `json:"name"`
	Description string `json:"description"`
}

// wireFamily is a metric that code keeps with prometheus_client, or the part of it
// that has changed.
type wireFamily struct {
	Name    string       `json:"name"`
	Help    string       `json:"help"`
	Type    string       `json:"type"`
	Mode    string       `json:"mode"`
	Samples []wireSample `json:"samples"`
}

type wireRecord struct {
	Level     string `json:"level"`
	Logger    string `json:"logger"`
	Message   string `json:"message"`
	Model     string `json:"model"`
	Traceback string `json:"traceback"`
}

type wireError struct {
	Kind      string `json:"kind"`
	Message   string `json:"message"`
	Status    int    `json:"status"`
	Type      string `json:"type"`
	Install   string `json:"install"`
	Traceback string `json:"traceback"`
}

type wireResponse struct {
	ID           string          `json:"id"`
	ModelName    string          `json:"model_name"`
	ModelVersion string          `json:"model_version"`
	Parameters   json.RawMessage `json:"parameters"`
	Outputs      []wireTensor    `json:"outputs"`
}

type wireTensor struct {
	Name       string          `json:"name"`
	Shape      []int64         `json:"shape"`
	Datatype   string          `json:"datatype"`
	Parameters json.RawMessage `json:"parameters"`
	Data       json.RawMessage `json:"data"`
	Region     json.RawMessage `json:"region"`
	Text       bool            `json:"text"`
	wireRange
}

// wireRange is a range of bytes in the payload.
type wireRange struct {
	Offset *uint64 `json:"offset"`
	Length uint64  `json:"length"`
}

// in returns the range of the payload, without spare capacity.
func (r wireRange) in(payload []byte) ([]byte, bool) {
	n := uint64(len(payload))
	if r.Offset == nil || *r.Offset%8 != 0 || *r.Offset > n || r.Length > n-*r.Offset {
		return nil, false
	}
	end := *r.Offset + r.Length
	return payload[*r.Offset:end:end], true
}

type wireHTTP struct {
	Status  int         `json:"status"`
	Headers [][2]string `json:"headers"`
	Body    *wireRange  `json:"body"`
}

type wireMetadata struct {
	Name       string          `json:"name"`
	Platform   string          `json:"platform"`
	Versions   []string        `json:"versions"`
	Inputs     []wireTensor    `json:"inputs"`
	Outputs    []wireTensor    `json:"outputs"`
	Parameters json.RawMessage `json:"parameters"`
}

// Handler is an HTTP route that a model's code serves itself.
type Handler struct {
	Name   string `json:"name"`
	Path   string `json:"rest_path"` // /items/{id}
	Method string `json:"rest_method"`
}

// decode reads a header and keeps no reference to it. Faults are protocol
// violations.
func decode(header, payload []byte) (*message, error) {
	if err := checkNesting(header); err != nil {
		return nil, err
	}
	m := &message{payload: payload}
	if err := json.Unmarshal(header, m); err != nil {
		return nil, violation("a header that cannot be read: %v", err)
	}
	if m.Kind == "" {
		return nil, violation("a header without a kind")
	}
	if m.ID != nil && *m.ID > 1<<63-1 {
		return nil, violation("the id %d", *m.ID)
	}
	return m, nil
}

// hello is the first message of a worker.
type hello struct {
	Kind      string `json:"kind"`
	Protocols []int  `json:"protocols"`
	Token     string `json:"token"`
	PID       int    `json:"pid"`
	Worker    struct {
		Language   string `json:"language"`
		Version    string `json:"version"`
		Executable string `json:"executable"`
	} `json:"worker"`
	Packages map[string]string `json:"packages"`
}

// control makes a frame of a small message without payload.
func control(kind string, fields ...any) *frame {
	f := newFrame()
	f.head = append(f.head, `{"kind":"`...)
	f.head = append(f.head, kind...)
	f.head = append(f.head, '"')
	for i := 0; i+1 < len(fields); i += 2 {
		f.field(fields[i].(string))
		switch v := fields[i+1].(type) {
		case string:
			f.head = openai.AppendQuoted(f.head, v)
		case uint64:
			f.head = strconv.AppendUint(f.head, v, 10)
		default:
			text, err := json.Marshal(v)
			if err != nil { // only our own plain structs and RawMessages come here
				text = []byte("null")
			}
			f.head = append(f.head, text...)
		}
	}
	f.head = append(f.head, '}')
	return f
}
