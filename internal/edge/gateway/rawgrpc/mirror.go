package rawgrpc

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

const (
	// maxMirrored is how many copies of calls are under way at a time; beyond them calls
	// are not copied.
	maxMirrored = 64
	// maxMirrorBytes is the longest message that is copied.
	maxMirrorBytes = 1 << 20
	// mirrorTimeout is how long a copy may take in all.
	mirrorTimeout = 5 * time.Minute
)

// What became of copies, as metrics name it.
const (
	mirrorAnswered = "answered"
	mirrorFailed   = "failed"
	mirrorSkipped  = "skipped" // too many were under way
)

// mirror sends copies of a call of one message where its route says. The answer to the
// client does not wait for them, and nothing of them reaches it.
func (c *call) mirror(f *frame) {
	size := int64(f.size())
	for _, to := range c.grant.Handling().Mirrors {
		if size > maxMirrorBytes || to.PerMillion < routing.Whole && rand.Uint32N(routing.Whole) >= to.PerMillion {
			continue
		}
		s := c.server
		if s.mirrored.Add(1) > maxMirrored {
			s.mirrored.Add(-1)
			s.metrics.mirrored(c.service, mirrorSkipped)
			continue
		}
		f.parts.Ref()
		m := copied{Server: s, to: to, message: &frame{parts: f.parts}, method: c.target, model: c.model, raw: c.raw, out: c.copies, options: slices.Clone(c.options)}
		service := c.service
		s.buffered.Add(size)
		s.upstreams.enter()
		go func() {
			defer s.upstreams.leave()
			defer s.mirrored.Add(-1)
			defer s.buffered.Give(size)
			defer m.message.free()
			outcome := mirrorAnswered
			if err := m.send(); err != nil {
				outcome = mirrorFailed
				s.log.Debug("a copy of a call failed", "mirror", to.String(), "error", err)
			}
			s.metrics.mirrored(service, outcome)
		}()
	}
}

// copied is a copy of a call for a mirror. It shares nothing with the call, so another
// goroutine may send it.
type copied struct {
	*Server
	to      routing.Mirror
	message *frame
	method  string
	model   string // that the message names, unless raw
	raw     bool
	out     metadata.MD
	options []grpc.CallOption
}

// send has a replica of the mirror answer, and discards what it says. The mirror's replicas
// are not woken for it.
func (m *copied) send() error {
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(context.Background(), m.out), mirrorTimeout)
	defer cancel()
	g, err := m.dispatch.Admit(ctx, dispatch.Request{To: m.to.Ref, Path: m.method, Method: http.MethodPost, GRPC: true, Model: m.model,
		Bytes: int64(m.message.size()), Copy: true, Deadline: time.Now().Add(mirrorTimeout)})
	if err != nil {
		return err
	}
	var outcome dispatch.Outcome
	defer func() { g.Done(outcome) }()
	message, err := m.named(g)
	if err != nil {
		return err
	}
	defer message.free()
	address := grpcAddress(g)
	if address == "" {
		return httpOnly(g.Service())
	}
	up, err := m.upstreams.get(address)
	if err != nil {
		return err
	}
	defer m.upstreams.put(up)
	limit := time.AfterFunc(answerTimeout(g, &m.cfg), cancel)
	defer limit.Stop()
	s, err := up.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, m.method, m.options...)
	if err == nil {
		err = errors.Join(s.SendMsg(message), s.CloseSend())
	}
	for err == nil {
		var reply frame
		if err = s.RecvMsg(&reply); err == nil {
			g.FirstByte()
			reply.free()
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	if status.Code(err) == codes.Unavailable {
		outcome.Failed = err
	}
	return err
}

// named is the message with the name by which the mirror's replica knows the model.
func (m *copied) named(g *dispatch.Grant) (*frame, error) {
	name := m.to.Model
	switch {
	case m.raw:
		name = ""
	case name != "":
	case m.to.Pool:
		name = g.Model()
	default:
		name = g.Pool().ServedName
	}
	if name == "" || name == m.model {
		m.message.parts.Ref()
		return &frame{parts: m.message.parts}, nil
	}
	at, err := scan(m.message)
	if err != nil {
		return nil, err
	}
	return m.message.renamed(at, name), nil
}
