package keys

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/apikey"
)

// memory is a store that other processes may share.
type memory struct {
	mu   sync.Mutex
	keys []apikey.Key
	ok   bool
	n    int
	fail error
}

func (m *memory) Load() ([]apikey.Key, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.keys), m.ok, m.fail
}

func (m *memory) Update(f func([]apikey.Key) ([]apikey.Key, error)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	next, err := f(slices.Clone(m.keys))
	if err == nil {
		m.keys, m.ok, m.n = next, true, m.n+1
	}
	return err
}

func (m *memory) Stamp() string { m.mu.Lock(); defer m.mu.Unlock(); return fmt.Sprint(m.n) }

type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.now }
func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func open(t *testing.T, store Store) (*Ring, *clock) {
	t.Helper()
	c := &clock{now: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)}
	cfg := DefaultConfig()
	cfg.Now, cfg.Every, cfg.MaxKeys = c.Now, time.Millisecond, 4
	r, err := Open(cfg, store)
	if err != nil {
		t.Fatal(err)
	}
	return r, c
}

func create(t *testing.T, r *Ring, l apikey.Limits) (apikey.Key, string) {
	t.Helper()
	k, secret, err := r.Create("test", l, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	return k, secret
}

func TestRequiredOnceThereIsAKey(t *testing.T) {
	store := &memory{}
	r, c := open(t, store)
	if p, err := r.Enter(""); p != nil || err != nil {
		t.Fatalf("without keys: %v %v", p, err)
	}
	var none *Pass
	none.Expect(5)
	none.Leave(5)
	if !none.Allows("x") || none.Key() != "" {
		t.Error("a nil pass refuses")
	}
	k, secret := create(t, r, apikey.Limits{})
	if _, err := r.Enter(""); !errors.Is(err, ErrNoKey) {
		t.Errorf("no key: %v", err)
	}
	for _, wrong := range []string{"sk-1", secret + "x", secret[:len(secret)-1] + "~", "rh-" + strings.Repeat("a", 41)} {
		if _, err := r.Enter(wrong); !errors.Is(err, ErrBadKey) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	p, err := r.Enter(secret)
	if err != nil || p.Key() != k.ID {
		t.Fatalf("%v %v", p, err)
	}
	p.Leave(0)
	if _, err := r.Revoke("nope"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if _, err := r.Revoke(k.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Enter(secret); !errors.Is(err, ErrBadKey) {
		t.Errorf("revoked: %v", err)
	}
	// Neither the last revocation nor a lost file opens the door.
	store.keys, store.ok = nil, false
	if err := r.Reload(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Enter(""); !errors.Is(err, ErrNoKey) {
		t.Errorf("lost file: %v", err)
	}
	_, secret, err = r.Create("short", apikey.Limits{}, c.Now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	c.pass(time.Minute)
	if _, err := r.Enter(secret); !errors.Is(err, ErrBadKey) {
		t.Errorf("expired: %v", err)
	}
	if _, _, err := r.Create("late", apikey.Limits{}, c.Now()); err == nil {
		t.Error("made an expired key")
	}
}

func TestLimits(t *testing.T) {
	r, c := open(t, &memory{})
	limited := func(secret, want string, wait time.Duration) {
		t.Helper()
		var refusal *Refusal
		_, err := r.Enter(secret)
		if !errors.As(err, &refusal) || !errors.Is(err, ErrLimited) || !strings.Contains(err.Error(), want) || refusal.RetryAfter != wait {
			t.Fatalf("got %v (%+v), want %s after %v", err, refusal, want, wait)
		}
		if strings.Contains(err.Error(), secret) {
			t.Error("the error tells the secret")
		}
	}
	enter := func(secret string) *Pass {
		t.Helper()
		p, err := r.Enter(secret)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	_, secret := create(t, r, apikey.Limits{RequestsPerMinute: 2})
	enter(secret).Leave(0)
	enter(secret).Leave(0)
	limited(secret, "2 requests per minute", 30*time.Second)
	c.pass(30 * time.Second)
	enter(secret).Leave(0)

	c.pass(time.Minute)
	p := enter(secret)
	p.Refund()
	p.Refund() // counts once
	p.Leave(0)
	enter(secret).Leave(0)
	enter(secret).Leave(0)
	limited(secret, "2 requests per minute", 30*time.Second)

	_, secret = create(t, r, apikey.Limits{Concurrent: 1})
	p = enter(secret)
	limited(secret, "1 requests in flight, its limit", time.Second)
	p.Leave(0)
	p.Leave(0) // counts once
	p = enter(secret)
	limited(secret, "1 requests in flight, its limit", time.Second)
	p.Leave(0)

	_, secret = create(t, r, apikey.Limits{TokensPerMinute: 60})
	p = enter(secret)
	p.Expect(60)
	limited(secret, "60 tokens per minute", time.Second)
	p.Leave(30) // it cost less than expected
	p = enter(secret)
	p.Leave(89) // more than there was: overdrawn by 59
	limited(secret, "60 tokens per minute", 60*time.Second)
	c.pass(time.Minute)
	enter(secret).Leave(0)

	_, secret = create(t, r, apikey.Limits{Models: []string{"chat", "team/iris"}})
	p = enter(secret)
	if !p.Allows("chat") || !p.Allows("", "team/iris") || p.Allows("iris", "") || p.Allows("") {
		t.Error("models")
	}
	p.Leave(0)
	// The fifth key needs a revoked one to go.
	if _, _, err := r.Create("x", apikey.Limits{}, time.Time{}); err == nil || !strings.Contains(err.Error(), "revoke one") {
		t.Error(err)
	}
	oldest := r.List()[3]
	if _, err := r.Revoke(oldest.ID); err != nil {
		t.Fatal(err)
	}
	create(t, r, apikey.Limits{})
	if len(r.List()) != 4 || slices.ContainsFunc(r.List(), func(k apikey.Key) bool { return k.ID == oldest.ID }) {
		t.Error("the revoked key is still there")
	}
	if _, _, err := r.Create("a\nb", apikey.Limits{}, time.Time{}); err == nil {
		t.Error("made a key with a bad name")
	}
}

// TestFollow: another process's changes arrive, what cannot be read changes
// nothing, and what a key has used is kept.
func TestFollow(t *testing.T) {
	store := &memory{}
	r, _ := open(t, store)
	other, _ := open(t, store)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.Follow(ctx, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() { stop(); <-ended })
	_, secret := create(t, other, apikey.Limits{RequestsPerMinute: 1})
	until(t, r.Required)
	p, err := r.Enter(secret)
	if err != nil {
		t.Fatal(err)
	}
	p.Leave(0)
	k, _ := create(t, other, apikey.Limits{})
	until(t, func() bool { return len(r.List()) == 2 })
	if _, err := r.Enter(secret); !errors.Is(err, ErrLimited) {
		t.Errorf("a reload forgot what was used: %v", err)
	}
	store.mu.Lock()
	store.fail = errors.New("half written")
	store.n++
	store.mu.Unlock()
	if err := r.Reload(); err == nil {
		t.Error("the error is lost")
	}
	if len(r.List()) != 2 {
		t.Error("a broken file took keys away")
	}
	store.mu.Lock()
	store.fail = nil
	store.mu.Unlock()
	if _, err := other.Revoke(k.ID); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool {
		return slices.ContainsFunc(r.List(), func(k apikey.Key) bool { return !k.Revoked.IsZero() })
	})
}

func until(t *testing.T, is func() bool) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("it did not come to pass within 10 s")
		}
	}
}

// TestManyAtOnce: at no moment more than Concurrent are in, and none is lost.
func TestManyAtOnce(t *testing.T) {
	r, _ := open(t, &memory{})
	_, secret := create(t, r, apikey.Limits{Concurrent: 3, TokensPerMinute: 1 << 40})
	var mu sync.Mutex
	var wg sync.WaitGroup
	in, most, served := 0, 0, 0
	for range 8 {
		wg.Go(func() {
			for range 500 {
				p, err := r.Enter(secret)
				if err != nil {
					continue
				}
				mu.Lock()
				in, served = in+1, served+1
				most = max(most, in)
				mu.Unlock()
				p.Expect(10)
				mu.Lock()
				in--
				mu.Unlock()
				p.Leave(3)
			}
		})
	}
	wg.Wait()
	if most > 3 || served == 0 {
		t.Errorf("%d at one time, %d served", most, served)
	}
	for _, h := range *r.holders.Load() {
		if h.running != 0 {
			t.Errorf("%d run when all have left", h.running)
		}
	}
}

func TestConfigValidate(t *testing.T) {
	if _, err := Open(Config{}, &memory{}); err == nil {
		t.Error("took an empty Config")
	}
	if _, err := Open(DefaultConfig(), &memory{fail: errors.New("x")}); err == nil {
		t.Error("opened what cannot be read")
	}
}

func BenchmarkEnter(b *testing.B) {
	cfg := DefaultConfig()
	r, err := Open(cfg, &memory{})
	if err != nil {
		b.Fatal(err)
	}
	_, secret, err := r.Create("bench", apikey.Limits{RequestsPerMinute: 1 << 50, TokensPerMinute: 1 << 50}, time.Time{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		p, err := r.Enter(secret)
		if err != nil {
			b.Fatal(err)
		}
		p.Leave(10)
	}
}
