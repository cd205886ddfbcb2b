package onnx

import (
	"encoding/json"
	"errors"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/edge/engine/onnx/ort"
)

// message is any header the server sends.
type message struct {
	Kind string  `json:"kind"`
	ID   *uint64 `json:"id"`

	// Of the handshake.
	Protocol int    `json:"protocol"`
	Reason   string `json:"reason"`
	Limits   struct {
		MaxFrameBytes int64 `json:"max_frame_bytes"`
		MaxInFlight   int   `json:"max_in_flight"`
	} `json:"limits"`

	// Of requests.
	Model    string   `json:"model"`
	Settings settings `json:"settings"`
	Folder   string   `json:"folder"`
	Request  request  `json:"request"`
	Grace    *float64 `json:"grace"` // seconds
}

// settings are the fields of model-settings.json that the worker uses.
type settings struct {
	Name       string   `json:"name"`
	Versions   []string `json:"versions"`
	Platform   string   `json:"platform"`
	Parameters struct {
		URI     string `json:"uri"`
		Version string `json:"version"`
	} `json:"parameters"`
}

type request struct {
	ID      string       `json:"id"`
	Inputs  []wireTensor `json:"inputs"`
	Outputs []struct {
		Name       string `json:"name"`
		Parameters struct {
			Classification any `json:"classification"`
		} `json:"parameters"`
	} `json:"outputs"`
}

// wireTensor is a tensor in the header of a request or an answer.
type wireTensor struct {
	Name       string          `json:"name"`
	Shape      []int64         `json:"shape"`
	Datatype   string          `json:"datatype"`
	Parameters any             `json:"parameters,omitempty"`
	Data       json.RawMessage `json:"data,omitempty"`
	Region     json.RawMessage `json:"region,omitempty"`
	Text       bool            `json:"text,omitempty"`
	Marks      json.RawMessage `json:"marks,omitempty"` // elements of BYTES that are other JSON
	Offset     *uint64         `json:"offset,omitempty"`
	Length     uint64          `json:"length,omitempty"`
}

// in returns the tensor's part of the payload.
func (t *wireTensor) in(payload []byte) ([]byte, error) {
	n := uint64(len(payload))
	if t.Region != nil {
		return nil, fault(kindUnsupported, "input %q lies in shared memory, which this worker has not", t.Name)
	}
	if *t.Offset%8 != 0 || *t.Offset > n || t.Length > n-*t.Offset {
		return nil, fault(kindInvalid, "input %q: its %d bytes are not in the payload of %d", t.Name, t.Length, n)
	}
	end := *t.Offset + t.Length
	return payload[*t.Offset:end:end], nil
}

// The kinds of wireError.
const (
	kindInvalid       = "invalid"
	kindNotFound      = "not_found"
	kindUnprocessable = "unprocessable"
	kindUnavailable   = "unavailable"
	kindTooLarge      = "too_large"
	kindMissing       = "missing_package"
	kindCancelled     = "cancelled"
	kindFailed        = "failed"
	kindUnsupported   = "unsupported"
)

// wireError is an error as the server is told it.
type wireError struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
	Install string `json:"install,omitempty"`
}

// Error is the message.
func (e *wireError) Error() string { return e.Message }

func fault(kind, format string, args ...any) error {
	return &wireError{Kind: kind, Message: tensor.Errorf(0, format, args...).Message}
}

// maxMessage is the maximum length of an error's text, in bytes.
const maxMessage = 16 << 10

// described returns err as the server is told it. An error of ONNX Runtime counts as
// the model's, except one for an invalid argument.
func described(err error) *wireError {
	w := &wireError{Kind: kindFailed, Message: err.Error()}
	var missing *ort.NotFoundError
	var native *ort.Error
	var own *wireError
	var bad *tensor.Error
	switch {
	case errors.As(err, &own):
		*w = *own
	case errors.As(err, &bad):
		w.Kind = kindInvalid
	case errors.As(err, &missing):
		w.Kind, w.Install = kindMissing, ort.Install
	case errors.Is(err, errTooLarge):
		w.Kind = kindTooLarge
	case errors.As(err, &native) && native.Code == ort.CodeInvalidArgument:
		w.Kind = kindInvalid
	}
	if len(w.Message) > maxMessage {
		w.Message = w.Message[:maxMessage] + "…"
	}
	w.Message = strings.ToValidUTF8(w.Message, "�")
	return w
}
