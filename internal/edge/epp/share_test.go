package epp

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// answering is a picker that answers everything and holds it.
func answering(t *testing.T) *Target {
	return picker(t, func(s stream) error {
		_, body, err := s.ask()
		if err != nil {
			return err
		}
		s.to(t, "10.0.0.1:1")
		s.body(t, true, string(body))
		return s.rest()
	})
}

// TestShares: a namespace whose requests take all they can leaves room for those
// of others, and has no more of it by another picker, or by one made anew.
func TestShares(t *testing.T) {
	greedy := answering(t)
	k := client(t, greedy, func(c *Config) { c.MaxStreams = 20 })
	take := func(pool service.Key) (got []*Conversation) {
		for {
			v, err := k.Ask(t.Context(), pool, request("{}"))
			if err != nil {
				if reason(err) != Overloaded {
					t.Fatal(err)
				}
				return got
			}
			got = append(got, v)
		}
	}
	all := take(pool)
	if len(all) != 10 {
		t.Fatalf("alone it has %d of 20", len(all))
	}
	other := answering(t)
	other.Name = "prod/other:9002"
	second := service.Key{Namespace: "prod", Name: "second"}
	if err := k.Set(second, other); err != nil {
		t.Fatal(err)
	}
	if got := take(second); len(got) != 0 {
		t.Errorf("by another picker it has %d more", len(got))
	}
	for _, p := range []service.Key{pool, second} { // all of them go, and one is made anew
		if err := k.Set(p, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.Set(pool, greedy); err != nil {
		t.Fatal(err)
	}
	if got := take(pool); len(got) != 0 {
		t.Errorf("made anew it has %d more", len(got))
	}
	elsewhere := answering(t)
	elsewhere.Name = "dev/epp:9002"
	theirs := service.Key{Namespace: "dev", Name: "llama"}
	if err := k.Set(theirs, elsewhere); err != nil {
		t.Fatal(err)
	}
	got := take(theirs)
	if len(got) != 5 {
		t.Errorf("another namespace has %d of the 10 that are left", len(got))
	}
	for _, v := range append(all, got...) {
		v.Close()
	}
	for _, p := range []service.Key{pool, theirs} {
		if err := k.Set(p, nil); err != nil {
			t.Fatal(err)
		}
	}
	if n := k.streams.Load(); n != 0 || len(k.shares) != 0 {
		t.Errorf("%d streams and %v are left", n, k.shares)
	}
}

// TestMessageOfShortBody: what a picker may say at once goes with what it was
// asked about, so that many short requests hold no long messages.
func TestMessageOfShortBody(t *testing.T) {
	target := picker(t, func(s stream) error {
		if _, _, err := s.ask(); err != nil {
			return err
		}
		s.to(t, "10.0.0.1:1")
		s.body(t, true, strings.Repeat("y", 300<<10))
		return s.rest()
	})
	k := client(t, target, nil)
	if v, err := k.Ask(t.Context(), pool, request("{}")); err == nil {
		v.Close()
		t.Error("300 KiB at once for a body of two bytes")
	} else if reason(err) != TooLarge {
		t.Error(err)
	}
	v, err := k.Ask(t.Context(), pool, request(strings.Repeat("x", 100<<10)))
	if err != nil {
		t.Fatal(err)
	}
	v.Close()
}

// TestMetadata: long metadata, before the answer or after it, is none.
func TestMetadata(t *testing.T) {
	for name, send := range map[string]func(stream, metadata.MD) error{
		"header":  func(s stream, md metadata.MD) error { return s.SendHeader(md) },
		"trailer": func(s stream, md metadata.MD) error { s.SetTrailer(md); return errors.New("no") },
	} {
		t.Run(name, func(t *testing.T) {
			target := picker(t, func(s stream) error {
				_, body, err := s.ask()
				if err != nil {
					return err
				}
				if err := send(s, metadata.Pairs("x-long-bin", strings.Repeat("z", 1<<20))); err != nil {
					return err
				}
				s.to(t, "10.0.0.1:1")
				s.body(t, true, string(body))
				return s.rest()
			})
			v, err := client(t, target, nil).Ask(t.Context(), pool, request("{}"))
			if err == nil {
				v.Close()
				t.Fatal("1 MiB of metadata is taken")
			}
			if reason(err) != Broken || strings.HasSuffix(err.Error(), "failed: no") {
				t.Error(err)
			}
		})
	}
}
