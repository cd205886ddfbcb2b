package admin

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/apikey"
	"roundhouse.dev/roundhouse/internal/state/keys"
)

// keyStore keeps keys in memory.
type keyStore struct{ keys []apikey.Key }

func (s *keyStore) Load() ([]apikey.Key, bool, error) { return s.keys, s.keys != nil, nil }
func (s *keyStore) Stamp() string                     { return "" }
func (s *keyStore) Update(f func([]apikey.Key) ([]apikey.Key, error)) (err error) {
	next, err := f(s.keys)
	if err == nil {
		s.keys = next
	}
	return err
}

func TestKeys(t *testing.T) {
	ring, err := keys.Open(keys.DefaultConfig(), &keyStore{})
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, outside{}, func(c *Config) { c.Keys = ring })
	web := httptest.NewServer(s.Handler())
	defer web.Close()
	c := &Client{Base: web.URL, Token: token}
	ctx := t.Context()
	if list, err := c.Keys(ctx); err != nil || len(list) != 0 {
		t.Fatalf("%v %v", list, err)
	}
	expires := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	made, err := c.CreateKey(ctx, KeyRequest{Name: "alice", Limits: apikey.Limits{Models: []string{"chat"}, TokensPerMinute: 7}, Expires: expires})
	if err != nil {
		t.Fatal(err)
	}
	if p, err := ring.Enter(made.Secret); err != nil || p.Key() != made.ID || !p.Allows("chat") || p.Allows("iris") {
		t.Errorf("the key is of no use: %v", err)
	}
	list, err := c.Keys(ctx)
	if err != nil || len(list) != 1 || list[0].Name != "alice" || list[0].Limits.TokensPerMinute != 7 || !list[0].Expires.Equal(expires) {
		t.Errorf("list: %+v %v", list, err)
	}
	raw := ask(s, http.MethodGet, "/api/v1/keys", "").Body.String()
	if hash := ring.List()[0].Hash; strings.Contains(raw, hash) || strings.Contains(raw, made.Secret) || !json.Valid([]byte(raw)) {
		t.Errorf("the list tells a secret: %s", raw)
	}
	if k, err := c.RevokeKey(ctx, made.ID); err != nil || k.Revoked.IsZero() {
		t.Errorf("%+v %v", k, err)
	}
	if _, err := ring.Enter(made.Secret); !errors.Is(err, keys.ErrBadKey) {
		t.Errorf("revoked: %v", err)
	}
	var api *APIError
	if _, err := c.RevokeKey(ctx, "nope"); !errors.As(err, &api) || api.Status != 404 || !strings.Contains(err.Error(), "keys list") {
		t.Errorf("unknown id: %v", err)
	}
	for body, want := range map[string]string{`{"name":"a","limits":{"concurrent":-1}}`: "negative", `{"nmae":"a"}`: "nmae", `[`: "EOF",
		`{"name":"a","expires":"2001-01-01T00:00:00Z"}`: "expired"} {
		if w := ask(s, http.MethodPost, "/api/v1/keys", body); w.Code != 422 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s", body, w.Code, w.Body)
		}
	}
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		if w := ask(s, method, "/api/v1/keys", "{}", "Authorization", ""); w.Code != 401 {
			t.Errorf("%s without the token: %d", method, w.Code)
		}
	}
	if w := ask(newServer(t, outside{}, nil), http.MethodGet, "/api/v1/keys", ""); w.Code != 404 {
		t.Errorf("without keys: %d", w.Code)
	}
}
