package epp

import (
	"bytes"
	"strings"
	"testing"

	pb "roundhouse.dev/roundhouse/api/extproc"
)

// FuzzBody puts bodies together and compares with the plain way: all pieces, one
// after the other.
func FuzzBody(f *testing.F) {
	f.Add([]byte("abc"), []byte("ab"), []byte("c"), []byte(""))
	f.Add([]byte("abc"), []byte("ab"), []byte("d"), []byte("e"))
	f.Add([]byte("abc"), []byte("abc"), []byte("abc"), []byte("abc"))
	f.Add([]byte(""), []byte(""), []byte(""), []byte("x"))
	f.Fuzz(func(t *testing.T, was, one, two, three []byte) {
		before := bytes.Clone(was)
		held := int64(0)
		b := body{was: was, limit: 100, hold: func(n int64) bool { held += n; return true }}
		pieces := [][]byte{one, two, three}
		plain := bytes.Join(pieces, nil)
		var failed *Failure
		for i, p := range pieces {
			m := &pb.BodyMutation{Mutation: &pb.BodyMutation_StreamedResponse{StreamedResponse: &pb.StreamedBodyResponse{Body: p, EndOfStream: i == 2}}}
			if failed = b.take(m); failed != nil {
				break
			}
		}
		switch {
		case !bytes.Equal(was, before):
			t.Error("the request's body was written to")
		case failed != nil:
			if len(plain) <= 100 || failed.Reason != TooLarge {
				t.Errorf("%v of %d bytes", failed, len(plain))
			}
		case bytes.Equal(plain, was):
			if b.changed() || held != 0 {
				t.Errorf("the same is changed, %d bytes held", held)
			}
		case !b.changed() || !bytes.Equal(b.now, plain) || held < int64(cap(b.now)) && !bytes.HasPrefix(was, plain):
			t.Errorf("%q, changed %v, %d held; want %q", b.now, b.changed(), held, plain)
		}
	})
}

// TestBodies: what a picker makes of a body is what is sent on.
func TestBodies(t *testing.T) {
	const was = `{"model":"llama","prompt":"x"}`
	piece := func(end bool, b string) *pb.ProcessingResponse {
		return mutated(&pb.BodyMutation{Mutation: &pb.BodyMutation_StreamedResponse{StreamedResponse: &pb.StreamedBodyResponse{Body: []byte(b), EndOfStream: end}}})
	}
	for name, c := range map[string]struct {
		say     []*pb.ProcessingResponse
		want    string
		changed bool
	}{
		"as it was":     {[]*pb.ProcessingResponse{piece(true, was)}, "", false},
		"in pieces":     {[]*pb.ProcessingResponse{piece(false, was[:3]), piece(false, ""), piece(false, was[3:]), piece(true, "")}, "", false},
		"another":       {[]*pb.ProcessingResponse{piece(false, `{"model":"llama-`), piece(true, `3"}`)}, `{"model":"llama-3"}`, true},
		"longer":        {[]*pb.ProcessingResponse{piece(false, was), piece(true, " ")}, was + " ", true},
		"shorter":       {[]*pb.ProcessingResponse{piece(true, was[:5])}, was[:5], true},
		"none":          {[]*pb.ProcessingResponse{piece(true, "")}, "", true},
		"at once":       {[]*pb.ProcessingResponse{mutated(&pb.BodyMutation{Mutation: &pb.BodyMutation_Body{Body: []byte("{}")}})}, "{}", true},
		"at once, same": {[]*pb.ProcessingResponse{mutated(&pb.BodyMutation{Mutation: &pb.BodyMutation_Body{Body: []byte(was)}})}, "", false},
		"cleared":       {[]*pb.ProcessingResponse{mutated(&pb.BodyMutation{Mutation: &pb.BodyMutation_ClearBody{ClearBody: true}})}, "", true},
		"not mentioned": {[]*pb.ProcessingResponse{mutated(nil)}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			target := picker(t, func(s stream) error {
				if _, _, err := s.ask(); err != nil {
					return err
				}
				s.to(t, "10.0.0.1:8000")
				for _, m := range c.say {
					s.say(t, m)
				}
				return s.rest()
			})
			v, err := client(t, target, nil).Ask(t.Context(), pool, request(was))
			if err != nil {
				t.Fatal(err)
			}
			defer v.Close()
			if body, changed := v.Body(); changed != c.changed || changed && string(body) != c.want {
				t.Errorf("%v %q, want %v %q", changed, body, c.changed, c.want)
			}
		})
	}
}

// TestNoMemory: a changed body takes memory by leave.
func TestNoMemory(t *testing.T) {
	target := picker(t, func(s stream) error {
		_, body, err := s.ask()
		if err != nil {
			return err
		}
		s.to(t, "10.0.0.1:8000")
		s.body(t, true, string(bytes.ToUpper(body)))
		return s.rest()
	})
	held := int64(0)
	r := request(strings.Repeat("x", 20_000))
	r.Hold = func(n int64) bool { held += n; return held <= 10_000 }
	if _, err := client(t, target, nil).Ask(t.Context(), pool, r); reason(err) != TooLarge || held < 20_000 {
		t.Errorf("%v after %d bytes", err, held)
	}
}
