// Package onnxtest is the server's side of the frame protocol, as far as tests
// of the ONNX worker need it, and runs cases of models, requests and expected
// responses through a worker. It is written apart from the server's own code:
// it checks what a worker sends against docs/design/python-workers.md.
package onnxtest

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// Wait bounds every wait of a test.
const Wait = 30 * time.Second

// Token is what a worker has to show.
const Token = "secret"

// Server is the server of one worker.
type Server struct {
	// MaxFrame and MaxInFlight are the limits of the welcome.
	MaxFrame    int64
	MaxInFlight int

	t    *testing.T
	conn net.Conn
	in   *bufio.Reader

	sending sync.Mutex
	mu      sync.Mutex
	last    uint64
	waiting map[uint64]chan Answer
	ended   chan struct{}
	goodbye string
}

// Answer is a message of the worker.
type Answer struct {
	Kind     string                `json:"kind"`
	ID       *uint64               `json:"id"`
	Token    string                `json:"token"`
	Reason   string                `json:"reason"`
	Error    *Error                `json:"error"`
	Metadata *tensor.ModelMetadata `json:"metadata"`
	Ready    bool                  `json:"ready"`
	InFlight int                   `json:"in_flight"`
	Models   int                   `json:"models"`
	RSS      int64                 `json:"rss_bytes"`
	Response struct {
		ID           string           `json:"id"`
		ModelName    string           `json:"model_name"`
		ModelVersion string           `json:"model_version"`
		Outputs      []map[string]any `json:"outputs"`
	} `json:"response"`

	payload []byte
}

// Error is an error of the worker.
type Error struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
	Install string `json:"install"`
}

// Listen waits on a socket of its own for the worker that start starts.
func Listen(t *testing.T, start func(socket string)) *Server {
	t.Helper()
	return (&Server{MaxFrame: 1 << 24, MaxInFlight: 64}).Listen(t, start)
}

// Listen is the function of that name, with the limits of s.
func (s *Server) Listen(t *testing.T, start func(socket string)) *Server {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	_ = listener.(*net.UnixListener).SetDeadline(time.Now().Add(Wait))
	start(socket)
	conn, err := listener.Accept()
	if err != nil {
		t.Fatalf("the worker does not connect: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s.t, s.conn, s.in, s.waiting, s.ended = t, conn, bufio.NewReader(conn), map[uint64]chan Answer{}, make(chan struct{})
	hello, err := s.read()
	if err != nil || hello.Kind != "hello" || hello.Token != Token {
		t.Fatalf("got %+v (%v), want a hello with the token", hello, err)
	}
	s.Send(map[string]any{"kind": "welcome", "protocol": 1, "features": []string{},
		"limits": map[string]any{"max_frame_bytes": s.MaxFrame, "max_in_flight": s.MaxInFlight}}, nil)
	go s.dispatch()
	return s
}

// read reads a frame and checks its form.
func (s *Server) read() (a Answer, err error) {
	var prefix [8]byte
	if _, err := io.ReadFull(s.in, prefix[:]); err != nil {
		return a, err
	}
	size, head := binary.LittleEndian.Uint32(prefix[:]), binary.LittleEndian.Uint32(prefix[4:])
	if head%8 != 0 || head+4 > size {
		s.t.Errorf("a frame of %d bytes with a header of %d", size, head)
	}
	body := make([]byte, size-4)
	if _, err := io.ReadFull(s.in, body); err != nil {
		return a, err
	}
	if err := json.Unmarshal(body[:head], &a); err != nil {
		s.t.Errorf("header %s: %v", body[:head], err)
	}
	a.payload = body[head:]
	return a, nil
}

// dispatch gives answers to those who wait for them.
func (s *Server) dispatch() {
	defer close(s.ended)
	for {
		a, err := s.read()
		if err != nil {
			return
		}
		s.mu.Lock()
		switch {
		case a.Kind == "goodbye":
			s.goodbye = a.Reason
		case a.ID != nil && s.waiting[*a.ID] != nil:
			s.waiting[*a.ID] <- a
			delete(s.waiting, *a.ID)
		case a.ID != nil:
			s.t.Errorf("an answer to %d, which is not in flight: %+v", *a.ID, a)
		case a.Kind != "log":
			s.t.Errorf("unasked: %+v", a)
		}
		s.mu.Unlock()
	}
}

// Close cuts the connection.
func (s *Server) Close() { _ = s.conn.Close() }

// Send writes a frame as it is.
func (s *Server) Send(header map[string]any, payload []byte) {
	s.t.Helper()
	text, err := json.Marshal(header)
	if err != nil {
		s.t.Fatal(err)
	}
	for len(text)%8 != 0 {
		text = append(text, ' ')
	}
	frame := binary.LittleEndian.AppendUint32(nil, uint32(4+len(text)+len(payload)))
	frame = binary.LittleEndian.AppendUint32(frame, uint32(len(text)))
	s.SendBytes(append(append(frame, text...), payload...))
}

// SendBytes writes bytes that need not be a frame.
func (s *Server) SendBytes(b []byte) {
	s.sending.Lock()
	defer s.sending.Unlock()
	_ = s.conn.SetWriteDeadline(time.Now().Add(Wait))
	_, _ = s.conn.Write(b) // a worker that has gone is found when an answer is waited for
}

// Begin sends a request under a new id and gives where its answer will come.
func (s *Server) Begin(header map[string]any, payload []byte) (id uint64, answer <-chan Answer) {
	s.mu.Lock()
	s.last++
	id = s.last
	c := make(chan Answer, 1)
	s.waiting[id] = c
	s.mu.Unlock()
	header["id"] = id
	s.Send(header, payload)
	return id, c
}

// Await waits for an answer; ok is false if the connection ended without it.
func (s *Server) Await(answer <-chan Answer) (a Answer, ok bool) {
	s.t.Helper()
	select {
	case a := <-answer:
		return a, true
	case <-s.ended:
		select {
		case a := <-answer:
			return a, true
		default:
			return a, false
		}
	case <-time.After(Wait):
		s.t.Fatal("no answer")
		return a, false
	}
}

// Ask sends a request and waits for its answer.
func (s *Server) Ask(header map[string]any, payload []byte) Answer {
	s.t.Helper()
	_, c := s.Begin(header, payload)
	a, ok := s.Await(c)
	if !ok {
		s.t.Fatalf("the worker ended (%q) before it answered %v", s.goodbye, header["kind"])
	}
	return a
}

// Goodbye waits for the end of the connection and gives the worker's reason.
func (s *Server) Goodbye() string {
	s.t.Helper()
	select {
	case <-s.ended:
	case <-time.After(Wait):
		s.t.Fatal("the connection does not end")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.goodbye
}

// Load has the worker load a model, whose key is its file.
func (s *Server) Load(dir, file string) Answer {
	s.t.Helper()
	return s.Ask(map[string]any{"kind": "load", "model": file, "folder": dir,
		"settings": map[string]any{"name": "m", "parameters": map[string]any{"uri": file, "version": "v1"}}}, nil)
}

// InferHeader is the message of a request and its payload.
func InferHeader(t *testing.T, key string, r *tensor.Request) (map[string]any, []byte) {
	t.Helper()
	var payload []byte
	inputs := []any{}
	for i := range r.Inputs {
		in := &r.Inputs[i]
		raw := in.AppendRaw(nil)
		inputs = append(inputs, map[string]any{"name": in.Name, "shape": in.Shape, "datatype": in.Datatype.String(),
			"offset": len(payload), "length": len(raw)})
		payload = append(payload, raw...)
		for len(payload)%8 != 0 {
			payload = append(payload, 0)
		}
	}
	outputs := []any{}
	for _, o := range r.Outputs {
		outputs = append(outputs, map[string]any{"name": o.Name, "parameters": o.Parameters})
	}
	return map[string]any{"kind": "infer", "model": key, "request": map[string]any{"id": r.ID, "inputs": inputs, "outputs": outputs}}, payload
}

// Infer asks a model.
func (s *Server) Infer(key string, r *tensor.Request) Answer {
	s.t.Helper()
	header, payload := InferHeader(s.t, key, r)
	return s.Ask(header, payload)
}

// Outputs reads the tensors of a result.
func (a *Answer) Outputs(t *testing.T) []tensor.Tensor {
	t.Helper()
	if a.Kind != "result" {
		t.Fatalf("got %s: %+v", a.Kind, a.Error)
	}
	var list []tensor.Tensor
	for _, o := range a.Response.Outputs {
		text, _ := json.Marshal(o)
		var w struct {
			Name           string
			Shape          []int64
			Datatype       tensor.Datatype
			Parameters     tensor.Parameters
			Text           bool
			Offset, Length uint64
		}
		if err := json.Unmarshal(text, &w); err != nil {
			t.Fatalf("output %s: %v", text, err)
		}
		if w.Offset%8 != 0 || w.Offset+w.Length > uint64(len(a.payload)) {
			t.Fatalf("output %s is not in a payload of %d bytes", text, len(a.payload))
		}
		out := tensor.Tensor{Name: w.Name, Datatype: w.Datatype, Shape: w.Shape, Parameters: w.Parameters, Text: w.Text}
		if err := out.SetRaw(a.payload[w.Offset : w.Offset+w.Length]); err != nil {
			t.Fatalf("output %s: %s", strconv.Quote(w.Name), err)
		}
		list = append(list, out)
	}
	return list
}
