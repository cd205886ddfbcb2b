package app

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/credentials"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
)

// TestCopiesOutliveTheirSecret: a copy that a secret has fetched is in use while the
// secret is gone, or leads to another store that has given nothing yet.
func TestCopiesOutliveTheirSecret(t *testing.T) {
	models := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("model")) }))
	t.Cleanup(models.Close)
	store, err := artifact.New(artifact.Config{Dir: t.TempDir()}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	f := service.Credentials{Namespace: "ns", Secrets: []string{"s"}}.Of(models.URL + "/m.bin")
	scope, gone := "first", error(nil)
	n := &node{store: store, open: func(f service.Files) (credentials.Opened, error) {
		return credentials.Opened{URI: f.URI, Variables: map[string]string{"headers": ""}, Scope: scope}, gone
	}}
	fetch := func() string {
		req, err := n.open.request(f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.Fetch(t.Context(), req, nil); err != nil {
			t.Fatal(err)
		}
		return req.Key()
	}
	first := fetch()
	keeps := func(when, key string, want bool) {
		t.Helper()
		if got := slices.Contains(n.inUse(nil, f), key); got != want {
			t.Errorf("%s: the copy is kept: %v, want %v", when, got, want)
		}
	}
	keeps("the secret is there", first, true)
	gone = errors.New("there is no secret")
	keeps("the secret is gone", first, true)
	scope, gone = "second", nil
	keeps("the secret leads elsewhere", first, true)
	second := fetch()
	keeps("it has fetched from there", second, true)
	keeps("it has fetched from there", first, false)
}
