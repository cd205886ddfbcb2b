package admin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"time"

	"roundhouse.dev/roundhouse/internal/core/apikey"
	"roundhouse.dev/roundhouse/internal/state/keys"
)

// Keys are the API keys of the inference port.
type Keys interface {
	List() []apikey.Key
	Create(name string, limits apikey.Limits, expires time.Time) (apikey.Key, string, error)
	Revoke(id string) (apikey.Key, error)
}

// KeyRequest asks for a new API key.
type KeyRequest struct {
	Name    string        `json:"name"`
	Limits  apikey.Limits `json:"limits"`
	Expires time.Time     `json:"expires,omitzero"`
}

// NewKey is a key that was made, with what to send as it; it is told this once.
type NewKey struct {
	apikey.Key
	Secret string `json:"secret"`
}

// maxKeyRequest bounds a KeyRequest, in bytes.
const maxKeyRequest = 1 << 20

func (s *Server) keys(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/v1/keys", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.cfg.Keys.List()) })
	mux.HandleFunc("POST /api/v1/keys", s.createKey)
	mux.HandleFunc("DELETE /api/v1/keys/{id}", s.revokeKey)
}

func (s *Server) createKey(w http.ResponseWriter, r *http.Request) {
	var req KeyRequest
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxKeyRequest))
	d.DisallowUnknownFields()
	if err := d.Decode(&req); err != nil {
		failError(w, err)
		return
	}
	k, secret, err := s.cfg.Keys.Create(req.Name, req.Limits, req.Expires)
	if err != nil {
		failError(w, err)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	answer(w, NewKey{k, secret})
}

func (s *Server) revokeKey(w http.ResponseWriter, r *http.Request) {
	k, err := s.cfg.Keys.Revoke(r.PathValue("id"))
	if errors.Is(err, keys.ErrNotFound) {
		fail(w, http.StatusNotFound, "%s", err)
		return
	}
	if err != nil {
		failError(w, err)
		return
	}
	answer(w, k)
}

// Keys lists the API keys.
func (c *Client) Keys(ctx context.Context) (out []apikey.Key, err error) {
	return out, c.call(ctx, http.MethodGet, "/api/v1/keys", nil, &out)
}

// CreateKey makes an API key.
func (c *Client) CreateKey(ctx context.Context, req KeyRequest) (out NewKey, err error) {
	return out, c.call(ctx, http.MethodPost, "/api/v1/keys", req, &out)
}

// RevokeKey makes an API key of no use.
func (c *Client) RevokeKey(ctx context.Context, id string) (out apikey.Key, err error) {
	return out, c.call(ctx, http.MethodDelete, "/api/v1/keys/"+url.PathEscape(id), nil, &out)
}
