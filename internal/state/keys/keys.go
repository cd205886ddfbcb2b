// Package keys owns the API keys: which there are, and what each has used of
// its limits. A request enters with its key, is told what the key allows, and
// leaves with what it cost.
package keys

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"roundhouse.dev/roundhouse/internal/core/apikey"
	"roundhouse.dev/roundhouse/internal/decide/quota"
)

// Store keeps keys. It is shared with other processes.
type Store interface {
	// Load reads all keys; ok is false when there never were any.
	Load() (keys []apikey.Key, ok bool, err error)
	// Update replaces the keys by what f makes of them, with no other update
	// in between.
	Update(f func([]apikey.Key) ([]apikey.Key, error)) error
	// Stamp changes when the keys may have changed.
	Stamp() string
}

// Config bounds a Ring. Start from DefaultConfig.
type Config struct {
	// MaxKeys is how many keys there may be; beyond it the oldest revoked one
	// is forgotten, and without one no key is made.
	MaxKeys int
	// Every is how often the store is looked at for changes.
	Every time.Duration
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// DefaultConfig is 10,000 keys.
func DefaultConfig() Config { return Config{MaxKeys: 10_000, Every: 2 * time.Second, Now: time.Now} }

// Validate reports every field that is out of range.
func (c Config) Validate() error {
	if c.MaxKeys <= 0 || c.Every <= 0 {
		return fmt.Errorf("keys: MaxKeys (%d) and Every (%v) must be more than 0", c.MaxKeys, c.Every)
	}
	return nil
}

// Why a request may not enter, to be tested with errors.Is.
var (
	ErrNoKey   = errors.New("an API key is needed")       // 401
	ErrBadKey  = errors.New("the API key is not valid")   // 401
	ErrLimited = errors.New("the API key's limit is met") // 429
	// ErrNotFound: no key has the id.
	ErrNotFound = errors.New("there is no such key")
)

// Refusal is why a key's request has to wait.
type Refusal struct {
	Key     string // its id
	Message string
	// RetryAfter is when to ask again.
	RetryAfter time.Duration
}

// Error is the message.
func (r *Refusal) Error() string { return r.Message }

// Unwrap is ErrLimited.
func (r *Refusal) Unwrap() error { return ErrLimited }

// Ring is the keys there are. Its methods are safe for concurrent use.
type Ring struct {
	cfg   Config
	store Store

	holders atomic.Pointer[map[string]*holder] // by id; never changed once there
	// required stays true for good once it is: a file that is lost opens no
	// door.
	required atomic.Bool

	mu    sync.Mutex // serializes reloads
	stamp string
}

// holder is a key and what it has used.
type holder struct {
	key apikey.Key

	mu       sync.Mutex
	requests quota.Bucket
	tokens   quota.Bucket
	running  int64
}

// Open reads the keys in store.
func Open(cfg Config, store Store) (*Ring, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	r := &Ring{cfg: cfg, store: store}
	r.holders.Store(&map[string]*holder{})
	return r, r.Reload()
}

// Required reports whether requests need a key: they do as soon as there is one,
// and also when all were revoked.
func (r *Ring) Required() bool { return r.required.Load() }

// Reload reads the keys anew. After an error they are as they were.
func (r *Ring) Reload() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	stamp := r.store.Stamp()
	list, ok, err := r.store.Load()
	if err != nil {
		return err
	}
	r.take(list, ok)
	r.stamp = stamp
	return nil
}

// take makes list the keys there are; those that stay keep what they have
// used.
func (r *Ring) take(list []apikey.Key, ok bool) {
	now, old := r.cfg.Now(), *r.holders.Load()
	next := make(map[string]*holder, len(list))
	for _, k := range list {
		h := old[k.ID]
		if h == nil || !same(h.key, k) {
			h = &holder{key: k, requests: quota.New(k.Limits.RequestsPerMinute, now), tokens: quota.New(k.Limits.TokensPerMinute, now)}
		}
		next[k.ID] = h
	}
	r.holders.Store(&next)
	if ok {
		r.required.Store(true)
	}
}

func same(a, b apikey.Key) bool {
	return a.Hash == b.Hash && a.Name == b.Name && a.Expires.Equal(b.Expires) && a.Revoked.Equal(b.Revoked) &&
		slices.Equal(a.Limits.Models, b.Limits.Models) && slices.Equal(a.Limits.Namespaces, b.Limits.Namespaces) && a.Limits.RequestsPerMinute == b.Limits.RequestsPerMinute &&
		a.Limits.TokensPerMinute == b.Limits.TokensPerMinute && a.Limits.Concurrent == b.Limits.Concurrent
}

// Follow reloads when the store changes, until ctx ends.
func (r *Ring) Follow(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(r.cfg.Every)
	defer tick.Stop()
	logged := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		r.mu.Lock()
		changed := r.store.Stamp() != r.stamp
		r.mu.Unlock()
		if !changed {
			continue
		}
		if err := r.Reload(); err != nil {
			if err.Error() != logged {
				log.Error("the API keys stay as they were", "error", err)
			}
			logged = err.Error()
			continue
		}
		logged = ""
	}
}

// List is every key, the newest first.
func (r *Ring) List() []apikey.Key {
	holders := *r.holders.Load()
	out := make([]apikey.Key, 0, len(holders))
	for _, h := range holders {
		out = append(out, h.key)
	}
	slices.SortFunc(out, func(a, b apikey.Key) int {
		if c := b.Created.Compare(a.Created); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return out
}

// Create makes a key. The secret is told this once.
func (r *Ring) Create(name string, limits apikey.Limits, expires time.Time) (k apikey.Key, secret string, err error) {
	var random [apikey.Entropy]byte
	_, _ = rand.Read(random[:]) // never fails
	now := r.cfg.Now()
	k, secret = apikey.Mint(random, name, limits, now, expires)
	if err := k.Validate(); err != nil {
		return k, "", err
	}
	if !k.Live(now) {
		return k, "", fmt.Errorf("the key would have expired already, at %s", expires.Format(time.RFC3339))
	}
	err = r.update(func(list []apikey.Key) ([]apikey.Key, error) {
		if len(list) >= r.cfg.MaxKeys {
			oldest := -1
			for i, k := range list {
				if !k.Revoked.IsZero() && (oldest < 0 || k.Revoked.Before(list[oldest].Revoked)) {
					oldest = i
				}
			}
			if oldest < 0 {
				return nil, fmt.Errorf("there are %d keys, as many as there may be: revoke one", len(list))
			}
			list = slices.Delete(list, oldest, oldest+1)
		}
		return append(list, k), nil
	})
	return k, secret, err
}

// Revoke makes a key of no use. It stays listed. Requests that run go on.
func (r *Ring) Revoke(id string) (k apikey.Key, err error) {
	err = r.update(func(list []apikey.Key) ([]apikey.Key, error) {
		at := slices.IndexFunc(list, func(k apikey.Key) bool { return k.ID == id })
		if at < 0 {
			return nil, fmt.Errorf("%q: %w: `roundhouse keys list` shows their ids", id, ErrNotFound)
		}
		if list[at].Revoked.IsZero() {
			list[at].Revoked = r.cfg.Now().UTC().Truncate(time.Second)
		}
		k = list[at]
		return list, nil
	})
	return k, err
}

func (r *Ring) update(f func([]apikey.Key) ([]apikey.Key, error)) error {
	if err := r.store.Update(f); err != nil {
		return err
	}
	return r.Reload()
}
