package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// TestFaults breaks the worker in every way there is while another request is
// in flight: both fail with the reason, and the next one is answered.
func TestFaults(t *testing.T) {
	for what, says := range map[string]string{
		"die": "exited with code 1", "garbage": "broke the protocol", "huge": "broke the protocol: a frame of 4294967299 bytes",
		"claims": "unexpected EOF", "deep": "nested deeper", "unknown-id": "not in flight", "item": "item in answer to infer",
		"hang": "was stuck",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "good", func(c *Config) {
				c.Limits.PongTimeout, c.Limits.RequestTimeout = time.Minute, time.Minute
				if what == "hang" {
					c.Limits.PongTimeout, c.Limits.RequestTimeout = time.Second, 3*time.Second
				}
			})
			m, other := r.load(t, "m", ""), r.load(t, "other", "")
			before := pid(t, m)
			bystander := make(chan error, 1)
			go func() {
				_, err := other.Infer(context.Background(), do("slow"))
				bystander <- err
			}()
			r.saw.await(t, " slow")
			_, err := m.Infer(t.Context(), do(what))
			if what == "hang" && strings.Contains(fmt.Sprint(err), "no answer within") {
				// Its time was over first; then the worker is replaced.
				for r.Status()[0].Restarts == 0 {
					time.Sleep(time.Millisecond)
				}
				r.awaitReady(t, m, true)
				return
			}
			wantError(t, err, kindDied, 500, "died while answering")
			if what != "claims" && !strings.Contains(fmt.Sprint(err), says) {
				t.Errorf("%v does not say %q", err, says)
			}
			if err := <-bystander; what != "hang" || !strings.Contains(fmt.Sprint(err), "no answer within") {
				wantError(t, err, kindDied, 500, "")
			}
			r.awaitReady(t, m, true)
			r.awaitReady(t, other, true)
			if after := pid(t, m); after == before {
				t.Error("the same process answers")
			}
		})
	}
}

func TestHandshakeFaults(t *testing.T) {
	for how, says := range map[string]string{
		"exit": "exited with code 3): about to fail", "module": "install it", "silent": "did not connect within",
		"mute": "no hello within", "future": "speaks protocols [7]", "garbage": "broke the protocol", "long": "broke the protocol",
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, how, func(c *Config) {
				switch c.Limits.StartTimeout, c.Limits.HandshakeTimeout = time.Minute, time.Minute; how {
				case "silent":
					c.Limits.StartTimeout = 2 * time.Second
				case "mute":
					c.Limits.HandshakeTimeout = 200 * time.Millisecond
				}
			})
			_, err := r.Load(t.Context(), settings("m", ""))
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("error %v does not say %q", err, says)
			}
		})
	}
	t.Run("stranger", func(t *testing.T) {
		pid(t, newRig(t, "stranger", nil).load(t, "m", ""))
	})
}

func TestLoadFaults(t *testing.T) {
	r := newRig(t, "good", nil)
	good := r.load(t, "good", "")
	_, err := r.Load(t.Context(), settings("bad", "fails"))
	wantError(t, err, KindUnprocessable, 422, "no such import")
	_, err = r.Load(t.Context(), settings("worse", "dies"))
	wantError(t, err, kindDied, 500, `the model "worse" was being loaded: segmentation fault, or so`)
	r.awaitReady(t, good, true)
	pid(t, good)
	unready := r.load(t, "unready", "unready")
	if unready.Ready() {
		t.Error("ready, though load said no")
	}
	_, err = r.Load(t.Context(), Settings{Name: "m", Document: json.RawMessage("{")})
	wantError(t, err, KindUnprocessable, 422, "not a JSON object")
}

// TestBadReload has a model that takes its worker down whenever it is loaded
// again. The others come back all the same.
func TestBadReload(t *testing.T) {
	r := newRig(t, "good", func(c *Config) { c.Limits.MinBackoff, c.Limits.MaxBackoff = 50*time.Millisecond, 100*time.Millisecond })
	bad := r.load(t, "bad", "dies-again:"+filepath.Join(t.TempDir(), "mark"))
	good := r.load(t, "good", "")
	if _, err := good.Infer(t.Context(), do("die")); err == nil {
		t.Fatal("it did not die")
	}
	r.awaitReady(t, good, true)
	pid(t, good)
	if bad.Ready() {
		t.Error("the bad one is ready")
	}
	_, err := bad.Infer(t.Context(), do(""))
	wantError(t, err, kindUnavailable, 503, "being replaced")
}

func TestCancel(t *testing.T) {
	r := newRig(t, "good", nil)
	m := r.load(t, "m", "")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		r.saw.await(t, " slow")
		cancel()
	}()
	if _, err := m.Infer(ctx, do("slow")); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	r.saw.await(t, " cancelled")
	pid(t, m)
	if n := r.Status()[0].InFlight; n != 0 {
		t.Errorf("%d in flight", n)
	}
}

func TestRequestTimeout(t *testing.T) {
	r := newRig(t, "good", func(c *Config) { c.Limits.RequestTimeout = time.Second })
	m := r.load(t, "m", "")
	_, err := m.Infer(t.Context(), do("slow"))
	wantError(t, err, kindTimeout, 504, "no answer within 1s; inference_timeout")
	r.saw.await(t, " cancelled")
	pid(t, m)
}

// TestModelTimeout: a model's own time wins over that of all.
func TestModelTimeout(t *testing.T) {
	r := newRig(t, "good", nil)
	m, err := r.Load(t.Context(), Settings{Name: "m", Document: []byte(`{}`), RequestTimeout: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Infer(t.Context(), do("slow"))
	wantError(t, err, kindTimeout, 504, `model "m" gave no answer within 20ms`)
	if _, err := r.Load(t.Context(), Settings{Name: "m", Document: []byte(`{}`), RequestTimeout: -1}); err == nil || !strings.Contains(err.Error(), "inference_timeout is -1ns") {
		t.Errorf("a negative one: %v", err)
	}
}

func TestBoundOfRequests(t *testing.T) {
	r := newRig(t, "good", func(c *Config) { c.Limits.MaxInFlight = 2 })
	m := r.load(t, "m", "")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { _, _ = m.Infer(ctx, do("slow")) })
		r.saw.await(t, " slow")
	}
	_, err := m.Infer(t.Context(), do(""))
	wantError(t, err, kindUnavailable, 503, "take no more")
	cancel()
	wg.Wait()
	r.saw.await(t, " cancelled")
}

func TestFrameBound(t *testing.T) {
	r := newRig(t, "good", func(c *Config) { c.Limits.MaxFrameBytes = 1 << 20 })
	m := r.load(t, "m", "")
	_, err := m.Infer(t.Context(), &tensor.Request{Inputs: []tensor.Tensor{floats(make([]float32, 1<<18)...)}})
	if e, ok := errors.AsType[*tensor.Error](err); !ok || e.Kind != tensor.KindTooLarge {
		t.Errorf("error %v", err)
	}
	got, err := m.Infer(t.Context(), &tensor.Request{Inputs: []tensor.Tensor{floats(make([]float32, 1<<17)...)}})
	if err != nil || got.Outputs[0].Len() != 1<<17 {
		t.Errorf("half of it: %v", err)
	}
}

// TestLoadsTogether loads one model that takes its worker down among others,
// all at once: it alone fails.
func TestLoadsTogether(t *testing.T) {
	r := newRig(t, "good", nil)
	r.load(t, "first", "")
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			implementation := ""
			if i%5 == 2 {
				implementation = "dies"
			}
			_, err := r.Load(t.Context(), settings(fmt.Sprint("m", i), implementation))
			if (err == nil) != (implementation == "") {
				t.Errorf("model %d (%q): %v", i, implementation, err)
			}
		})
	}
	wg.Wait()
}

// TestNotSent has a connection end while one request is being written and
// another waits behind it: that one may be sent elsewhere.
func TestNotSent(t *testing.T) {
	near, far := net.Pipe()
	c := newConn(near, newFrameReader(near), DefaultConfig().Limits, func(*message) {})
	go c.write()
	var calls [3]*call
	for i := range calls {
		calls[i] = newCall(kindInfer, 0)
		if err := c.start(calls[i], func(id uint64) (*frame, error) { return control(kindInfer, "id", id), nil }); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if _, err := far.Read(make([]byte, 1)); err != nil { // it is on its way
				t.Fatal(err)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.wait(ctx, calls[2]); !errors.Is(err, context.Canceled) || c.inFlight.Load() != 2 {
		t.Errorf("withdrawn: %v, %d in flight", err, c.inFlight.Load())
	}
	c.close()
	c.fail(NewError(kindDied, "the worker died"))
	_, err := c.wait(t.Context(), calls[0])
	wantError(t, err, kindDied, 500, "the worker died")
	if _, err := c.wait(t.Context(), calls[1]); !errors.Is(err, errNotSent) {
		t.Errorf("error %v", err)
	}
	if err := c.start(newCall(kindInfer, 0), nil); !errors.Is(err, errGone) {
		t.Errorf("error %v", err)
	}
}

func TestClose(t *testing.T) {
	r := newRig(t, "good", func(c *Config) { c.ParallelWorkers = 2 })
	m := r.load(t, "m", "")
	list := r.Status()
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, w := range list {
		if err := syscall.Kill(w.PID, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("worker %d lives: %v", w.PID, err)
		}
	}
	if _, err := os.Stat(r.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", r.dir, err)
	}
	_, err := m.Infer(t.Context(), do(""))
	wantError(t, err, kindUnavailable, 503, "")
	_, err = r.Load(t.Context(), settings("late", ""))
	wantError(t, err, kindUnavailable, 503, "shutting down")
}

// TestOutput has a worker write more than is logged.
func TestOutput(t *testing.T) {
	log := &journal{grew: make(chan struct{}, 1)}
	o, err := newOutput(filepath.Join(t.TempDir(), "pipe"), 10, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	w, err := os.OpenFile(o.path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	go o.read()
	text := strings.Repeat("x", 3*maxLine) + "\n\x1b[31mred\n\n"
	for i := range 1000 {
		text += fmt.Sprintf("line %d\n", i)
	}
	if _, err := w.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	o.close()
	if !log.has("[31mred") || !log.has("line 7") || log.has(strings.Repeat("x", maxLine+1)) {
		t.Error(log.String())
	}
	if n := strings.Count(log.String(), "msg=\"line"); n > 30 {
		t.Errorf("%d lines logged of 10 a second", n)
	}
	log.await(t, "lines left out")
	if tail := o.tail(); len(tail) != lastKept || tail[lastKept-1] != "line 999" {
		t.Errorf("tail %q", tail)
	}
}
