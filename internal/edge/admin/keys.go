package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
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

// NewKey is a new key with its secret, which is shown only once.
type NewKey struct {
	apikey.Key
	Secret string `json:"secret"`
}

// maxKeyRequest bounds a KeyRequest, in bytes.
const maxKeyRequest = 1 << 20

// keyring answers the paths of API keys.
type keyring struct {
	keys Keys
	tell func(reason, message string)
}

func handleKeys(mux *http.ServeMux, k Keys, tell func(reason, message string)) {
	h := keyring{k, tell}
	mux.HandleFunc("GET /api/v1/keys", func(w http.ResponseWriter, _ *http.Request) { answer(w, k.List()) })
	mux.HandleFunc("POST /api/v1/keys", h.create)
	mux.HandleFunc("DELETE /api/v1/keys/{id}", h.revoke)
}

func (h keyring) create(w http.ResponseWriter, r *http.Request) {
	var req KeyRequest
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxKeyRequest))
	d.DisallowUnknownFields()
	if err := d.Decode(&req); err != nil {
		failError(w, err)
		return
	}
	k, secret, err := h.keys.Create(req.Name, req.Limits, req.Expires)
	if err != nil {
		failError(w, err)
		return
	}
	h.tell("KeyCreated", fmt.Sprintf("API key %s, %q", k.ID, k.Name))
	w.Header().Set("Cache-Control", "no-store")
	answer(w, NewKey{k, secret})
}

func (h keyring) revoke(w http.ResponseWriter, r *http.Request) {
	k, err := h.keys.Revoke(r.PathValue("id"))
	if errors.Is(err, keys.ErrNotFound) {
		fail(w, http.StatusNotFound, "%s", err)
		return
	}
	if err != nil {
		failError(w, err)
		return
	}
	h.tell("KeyRevoked", fmt.Sprintf("API key %s, %q", k.ID, k.Name))
	answer(w, k)
}
