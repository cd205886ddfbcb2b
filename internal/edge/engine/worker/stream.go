package worker

import (
	"context"
	"errors"
	"iter"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// Stream sends the requests of in to the model's predict_stream and passes what it
// yields to send, which it calls in the caller's goroutine. It reads requests in
// another goroutine: when Stream returns, one call of in may still be waiting, and
// no further one is made. A model without predict_stream answers each request with
// one response.
//
// At most 16 messages wait each way: a slow client slows the model.
func (m *Model) Stream(ctx context.Context, in iter.Seq2[*tensor.Request, error], send func(*tensor.Response) error) error {
	if !m.streams {
		return m.answerEach(ctx, in, send)
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	s := &stream{model: m, call: newCall(kindStream, 0), opened: make(chan struct{}), end: end}
	go s.feed(ctx, in)
	select {
	case <-s.opened:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for consumed := int64(0); ; {
		answer, err := s.worker.conn.wait(ctx, s.call)
		switch {
		case ctx.Err() != nil && err != nil:
			return context.Cause(ctx)
		case errors.Is(err, errNotSent):
			return m.notReady()
		case err != nil:
			m.logFailure(err)
			return err
		case answer.Kind == kindEnd:
			return nil
		}
		response, err := answer.response()
		if err == nil {
			err = send(response)
		}
		if err != nil {
			s.worker.conn.cancel(s.call)
			return err
		}
		// Return half of the credit at once: the model never runs out of it,
		// and few messages are needed.
		if consumed++; consumed == streamCredit/2 {
			s.worker.conn.consumed(s.call, consumed)
			consumed = 0
		}
	}
}

// answerEach answers each request of a stream with one Infer.
func (m *Model) answerEach(ctx context.Context, in iter.Seq2[*tensor.Request, error], send func(*tensor.Response) error) error {
	for r, err := range in {
		if err != nil {
			return err
		}
		response, err := m.Infer(ctx, r)
		if err != nil {
			return err
		}
		if err := send(response); err != nil {
			return err
		}
	}
	return nil
}

// stream is the sending half of a stream.
type stream struct {
	model  *Model
	call   *call
	worker *worker       // set before opened is closed
	opened chan struct{} // closed once the stream is under way
	end    context.CancelCauseFunc
}

// feed sends the requests of in as the worker gives credit for them. An error ends
// the stream.
func (s *stream) feed(ctx context.Context, in iter.Seq2[*tensor.Request, error]) {
	for r, err := range in {
		if err == nil && ctx.Err() == nil {
			err = s.send(ctx, r)
		}
		if err != nil {
			s.end(err)
		}
		if ctx.Err() != nil {
			return
		}
	}
	if s.worker == nil {
		if err := s.open(nil); err != nil {
			s.end(err)
		}
		return
	}
	s.worker.conn.send(control(kindEnd, "id", s.call.id))
}

// send sends one request; the first opens the stream.
func (s *stream) send(ctx context.Context, r *tensor.Request) error {
	if s.worker == nil {
		return s.open(r)
	}
	select {
	case <-s.call.credit:
	case <-s.worker.conn.done: // the receiving half reports why
		return nil
	case <-ctx.Done():
		return nil
	}
	f := control(kindItem, "id", s.call.id)
	err := f.withRequest(r)
	if err == nil {
		err = f.seal(s.worker.limits.MaxFrameBytes)
	}
	if err == nil {
		s.worker.conn.out.send(f)
	}
	return err
}

// open begins the stream with its first request, or without one.
func (s *stream) open(first *tensor.Request) error {
	w, err := s.model.begin(s.call, func(id uint64) (*frame, error) {
		if first == nil {
			return control(kindStream, "id", id, "model", s.model.key, "last", true), nil
		}
		f := control(kindStream, "id", id, "model", s.model.key)
		return f, f.withRequest(first)
	})
	if err != nil {
		return err
	}
	s.worker = w
	close(s.opened)
	return nil
}
