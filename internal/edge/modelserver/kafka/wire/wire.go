// Package wire is what the model server and its Kafka bridge, a process of its
// own, say to each other over a pipe each way: frames of a small JSON header and
// a value of any bytes.
package wire

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Message is a Kafka record on its way to the server, or the record to produce
// on the way back.
type Message struct {
	// ID ties an answer to what it answers.
	ID uint64 `json:"id,omitempty"`
	// Stop, from the server, has the bridge take no more records, finish those
	// it has, and end.
	Stop    bool     `json:"stop,omitempty"`
	Key     []byte   `json:"key,omitempty"`
	Headers []Header `json:"headers,omitempty"`
	// Failed says that the value is an error, which no other record replaces.
	Failed bool   `json:"failed,omitempty"`
	Value  []byte `json:"-"`
}

// Header is one of a record's.
type Header struct {
	Name  string `json:"name"`
	Value []byte `json:"value"`
}

// MaxHeaderBytes bounds the JSON of a frame: a record's key and headers.
const MaxHeaderBytes = 4 << 20

// ErrTooLarge is a message over a limit. Nothing of it was written.
var ErrTooLarge = errors.New("the message is too large")

// Reader reads messages.
type Reader struct {
	r        *bufio.Reader
	maxValue int
}

// NewReader reads messages with values of at most maxValue bytes from r.
func NewReader(r io.Reader, maxValue int) *Reader { return &Reader{bufio.NewReader(r), maxValue} }

// Next reads a message; io.EOF is the end between two.
func (r *Reader) Next() (Message, error) {
	var sizes [8]byte
	var m Message
	if _, err := io.ReadFull(r.r, sizes[:]); err != nil {
		return m, err
	}
	head, value := binary.BigEndian.Uint32(sizes[:4]), binary.BigEndian.Uint32(sizes[4:])
	if head > MaxHeaderBytes || int64(value) > int64(r.maxValue) {
		return m, fmt.Errorf("a frame of %d and %d bytes: %w", head, value, ErrTooLarge)
	}
	text := make([]byte, head)
	if _, err := io.ReadFull(r.r, text); err != nil {
		return m, cut(err)
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("a frame's header: %w", err)
	}
	m.Value = make([]byte, value)
	_, err := io.ReadFull(r.r, m.Value)
	return m, cut(err)
}

// cut makes the end of the file within a frame no end.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Writer writes messages. Its methods are safe for concurrent use.
type Writer struct {
	mu       sync.Mutex
	w        io.Writer
	maxValue int
}

// NewWriter writes messages with values of at most maxValue bytes to w.
func NewWriter(w io.Writer, maxValue int) *Writer { return &Writer{w: w, maxValue: maxValue} }

// Write writes a message.
func (w *Writer) Write(m Message) error {
	head, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(head) > MaxHeaderBytes || len(m.Value) > w.maxValue {
		return ErrTooLarge
	}
	sizes := binary.BigEndian.AppendUint32(make([]byte, 0, 8+len(head)), uint32(len(head)))
	sizes = binary.BigEndian.AppendUint32(sizes, uint32(len(m.Value)))
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.w.Write(append(sizes, head...)); err != nil {
		return err
	}
	_, err = w.w.Write(m.Value)
	return err
}
