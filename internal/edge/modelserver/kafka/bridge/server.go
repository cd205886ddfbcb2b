package bridge

import (
	"context"
	"errors"
	"io"
	"sync"

	"roundhouse.dev/roundhouse/internal/edge/modelserver/kafka/wire"
)

// server asks the model server.
type server struct {
	reader  *wire.Reader
	writer  *wire.Writer
	stopped chan struct{} // closed when the server says stop

	mu struct {
		sync.Mutex
		last    uint64
		waiters map[uint64]chan wire.Message
	}
}

func newServer(in io.Reader, out io.Writer, maxBytes int) *server {
	s := &server{reader: wire.NewReader(in, maxBytes), writer: wire.NewWriter(out, maxBytes), stopped: make(chan struct{})}
	s.mu.waiters = map[uint64]chan wire.Message{}
	return s
}

// read takes answers until the server is gone.
func (s *server) read() error {
	stopped := false
	for {
		m, err := s.reader.Next()
		if err != nil {
			return err
		}
		if m.Stop && m.ID == 0 {
			if !stopped {
				stopped = true
				close(s.stopped)
			}
			continue
		}
		s.mu.Lock()
		w := s.mu.waiters[m.ID]
		delete(s.mu.waiters, m.ID)
		s.mu.Unlock()
		if w != nil {
			w <- m // has room for one
		}
	}
}

// ask sends a record and waits for its answer. A record that is too large to be
// sent has an error for an answer.
func (s *server) ask(ctx context.Context, m wire.Message) (wire.Message, error) {
	answered := make(chan wire.Message, 1)
	s.mu.Lock()
	s.mu.last++
	m.ID = s.mu.last
	s.mu.waiters[m.ID] = answered
	s.mu.Unlock()
	if err := s.writer.Write(m); err != nil {
		s.mu.Lock()
		delete(s.mu.waiters, m.ID)
		s.mu.Unlock()
		if errors.Is(err, wire.ErrTooLarge) {
			return wire.Message{Failed: true, Key: m.Key, Value: []byte(`{"error":"the request is too large"}`),
				Headers: []wire.Header{{Name: "roundhouse-status", Value: []byte("413")}}}, nil
		}
		return wire.Message{}, err
	}
	select {
	case a := <-answered:
		return a, nil
	case <-ctx.Done():
		return wire.Message{}, ctx.Err()
	}
}
