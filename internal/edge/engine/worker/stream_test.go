package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// given is the requests as a stream.
func given(requests ...*tensor.Request) iter.Seq2[*tensor.Request, error] {
	return func(yield func(*tensor.Request, error) bool) {
		for _, r := range requests {
			if !yield(r, nil) {
				return
			}
		}
	}
}

func count(n int) *tensor.Request {
	return &tensor.Request{Parameters: tensor.Parameters{"do": "count", "n": n}}
}

func TestStream(t *testing.T) {
	r := newRig(t, "good", nil)
	m := r.load(t, "m", "streams")
	t.Run("one to many", func(t *testing.T) {
		n := 0
		err := m.Stream(t.Context(), given(count(100)), func(got *tensor.Response) error {
			if n++; fmt.Sprint(got.Parameters["left"]) != fmt.Sprint(100-n) {
				t.Errorf("response %d says %v are left", n, got.Parameters["left"])
			}
			return nil
		})
		if err != nil || n != 100 {
			t.Errorf("%d responses, %v", n, err)
		}
	})
	t.Run("many to many", func(t *testing.T) {
		var sent []*tensor.Request
		for i := range 100 {
			sent = append(sent, &tensor.Request{Inputs: []tensor.Tensor{floats(float32(i))}})
		}
		var got []float32
		err := m.Stream(t.Context(), given(sent...), func(r *tensor.Response) error {
			got = append(got, r.Outputs[0].Data.Float32...)
			return nil
		})
		want := make([]float32, 100)
		for i := range want {
			want[i] = float32(i)
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%v, %v", got, err)
		}
	})
	t.Run("in step", func(t *testing.T) { // each request waits for the answer before
		answered := make(chan struct{}, 1)
		answered <- struct{}{}
		in := func(yield func(*tensor.Request, error) bool) {
			for range 40 {
				<-answered
				if !yield(do(""), nil) {
					return
				}
			}
		}
		n := 0
		if err := m.Stream(t.Context(), in, func(*tensor.Response) error { n++; answered <- struct{}{}; return nil }); err != nil || n != 40 {
			t.Errorf("%d responses, %v", n, err)
		}
	})
	t.Run("none", func(t *testing.T) {
		if err := m.Stream(t.Context(), given(), func(*tensor.Response) error { return errors.New("a response") }); err != nil {
			t.Error(err)
		}
	})
	if n := r.Status()[0].InFlight; n != 0 {
		t.Errorf("%d streams in flight", n)
	}
}

// TestStreamCredit has a client that takes nothing: the model must stop after
// its credit.
func TestStreamCredit(t *testing.T) {
	r := newRig(t, "good", nil)
	m := r.load(t, "m", "streams")
	taken := make(chan struct{})
	done := make(chan error, 1)
	n := 0
	go func() {
		done <- m.Stream(context.Background(), given(count(50)), func(*tensor.Response) error { <-taken; n++; return nil })
	}()
	if got := r.saw.await(t, " waiting"); got != " waiting 34" {
		t.Errorf("the model stopped at %q, want 34 left of 50", got)
	}
	close(taken)
	if err := <-done; err != nil || n != 50 {
		t.Errorf("%d responses, %v", n, err)
	}
}

func TestStreamEnds(t *testing.T) {
	r := newRig(t, "good", nil)
	m := r.load(t, "m", "streams")
	gone := errors.New("the client has gone")
	forever := func(yield func(*tensor.Request, error) bool) {
		for yield(do(""), nil) {
			continue
		}
	}
	none := func(*tensor.Response) error { return nil }
	t.Run("the client while sending", func(t *testing.T) {
		n := 0
		err := m.Stream(t.Context(), forever, func(*tensor.Response) error {
			if n++; n == 30 {
				return gone
			}
			return nil
		})
		if !errors.Is(err, gone) {
			t.Error(err)
		}
		r.saw.await(t, " cancelled")
	})
	t.Run("the client while reading", func(t *testing.T) {
		answered := make(chan struct{})
		in := func(yield func(*tensor.Request, error) bool) {
			if yield(do(""), nil) {
				<-answered
				yield(nil, gone)
			}
		}
		if err := m.Stream(t.Context(), in, func(*tensor.Response) error { close(answered); return nil }); !errors.Is(err, gone) {
			t.Error(err)
		}
		r.saw.await(t, " cancelled")
	})
	t.Run("before the first request", func(t *testing.T) {
		in := func(yield func(*tensor.Request, error) bool) { yield(nil, gone) }
		if err := m.Stream(t.Context(), in, none); !errors.Is(err, gone) {
			t.Error(err)
		}
	})
	t.Run("the context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		err := m.Stream(ctx, given(count(17)), func(*tensor.Response) error { cancel(); return nil })
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	for what, says := range map[string]string{"die": "exited with code 1", "flood": "more items of stream", "credit": "more credit for stream"} {
		t.Run(what, func(t *testing.T) {
			r.awaitReady(t, m, true)
			request := count(1000)
			request.Parameters["do"] = what
			err := m.Stream(t.Context(), given(request), func(*tensor.Response) error {
				<-m.placements[0].slot.liveDone() // it takes nothing while the worker lives
				return nil
			})
			wantError(t, err, kindDied, 500, says)
		})
	}
	r.awaitReady(t, m, true)
	pid(t, m)
}

// liveDone is closed when the slot's present worker ends.
func (s *slot) liveDone() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.live == nil {
		done := make(chan struct{})
		close(done)
		return done
	}
	return s.mu.live.conn.done
}

// TestStreamWithout answers a stream by a model without predict_stream.
func TestStreamWithout(t *testing.T) {
	r := newRig(t, "good", nil)
	m := r.load(t, "m", "")
	n := 0
	err := m.Stream(t.Context(), given(do(""), do("")), func(got *tensor.Response) error {
		n += got.Outputs[0].Len()
		return nil
	})
	if err != nil || n != 6 {
		t.Errorf("%d values, %v", n, err)
	}
	if err := m.Stream(t.Context(), given(do(""), do("bad-range")), func(*tensor.Response) error { return nil }); err == nil {
		t.Error("no error")
	}
}

// askPieces asks the fake's handler to answer in pieces, over HTTP.
func askPieces(t *testing.T, r *rig, how string) (*http.Response, context.CancelFunc) {
	t.Helper()
	server := httptest.NewServer(r.load(t, "m", "").Routes()[0].Handler)
	t.Cleanup(server.Close)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/things/7?"+how, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Body.Close() })
	return a, cancel
}

// TestPieces: a handler's answer that comes in pieces is passed on as it comes, under
// credit, and one that breaks off does not look whole.
func TestPieces(t *testing.T) {
	r := newRig(t, "good", nil)
	a, _ := askPieces(t, r, "pieces")
	body, err := io.ReadAll(a.Body)
	if err != nil || a.StatusCode != 202 || a.Header.Get("Content-Type") != "text/event-stream" || strings.Count(string(body), ",") != 100 || !strings.HasSuffix(string(body), "98,99,") {
		t.Errorf("%d %v %q, %v", a.StatusCode, a.Header, body, err)
	}
	for _, how := range []string{"pieces=break", "pieces=liar", "pieces=empty"} {
		r := newRig(t, "good", nil)
		a, _ := askPieces(t, r, how)
		if body, err := io.ReadAll(a.Body); err == nil {
			t.Errorf("%s: %q looks whole", how, body)
		}
		if how == "pieces=empty" { // nobody waits for the rest
			r.saw.await(t, " cancelled")
		}
	}
}

// TestPiecesLeft: a client that leaves cancels what the handler does.
func TestPiecesLeft(t *testing.T) {
	r := newRig(t, "good", nil)
	a, leave := askPieces(t, r, "pieces=hang")
	first := make([]byte, 2)
	if _, err := io.ReadFull(a.Body, first); err != nil || string(first) != "0," {
		t.Fatalf("%q, %v", first, err)
	}
	leave()
	r.saw.await(t, " cancelled")
}
