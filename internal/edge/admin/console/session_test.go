package console

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// testStore is a file of sessions.
type testStore struct {
	data []byte
	err  error
}

func (s *testStore) Load() ([]byte, error) { return s.data, s.err }

func (s *testStore) Save(data []byte) error {
	if s.err == nil {
		s.data = data
	}
	return s.err
}

func newSessions(t *testing.T, cfg SessionsConfig) *Sessions {
	t.Helper()
	s, err := NewSessions(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// withCookie is a request of a browser that has just signed in.
func withCookie(w *httptest.ResponseRecorder) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.AddCookie(&http.Cookie{Name: "roundhouse-8090", Value: "planted by another server"})
	r.AddCookie(w.Result().Cookies()[0])
	return r
}

// TestTimes: links and sessions end, and sessions outlive the process that began
// them if its secret is the same.
func TestTimes(t *testing.T) {
	now := time.Date(2026, 11, 26, 14, 0, 0, 0, time.UTC)
	cfg := SessionsConfig{Secret: "secret", Name: "8090", Store: &testStore{}, Now: func() time.Time { return now }}
	s := newSessions(t, cfg)
	late, oldest := s.Link(Owner), s.Link(Owner)
	now = now.Add(linkTime)
	if _, ok := s.use(late); ok {
		t.Error("a link signs in after its time")
	}
	for range maxLinks {
		s.Link(Viewer)
	}
	if _, ok := s.use(oldest); ok {
		t.Error("more links are open than may be")
	}
	w := httptest.NewRecorder()
	began := s.begin(w, Viewer)
	r := withCookie(w)
	for name, other := range map[string]*Sessions{"this process": s, "the next": newSessions(t, cfg)} {
		if is, ok := other.Of(r); !ok || is != began || other.CSRF(is) != s.CSRF(began) {
			t.Errorf("%s: %+v %v", name, is, ok)
		}
	}
	if strings.Contains(string(cfg.Store.(*testStore).data), began.token) {
		t.Error("the file has what signs in")
	}
	another, port := cfg, cfg
	another.Secret, port.Name = "other", "9"
	for name, other := range map[string]SessionsConfig{"another secret": another, "another port": port} {
		if _, ok := newSessions(t, other).Of(r); ok {
			t.Error(name, "takes the session")
		}
	}
	for range int(sessionTime / (idleTime / 2)) { // used every half hour
		if _, ok := s.Of(r); !ok {
			t.Fatalf("the session ended at %s, and expires at %s", now, began.Expires)
		}
		now = now.Add(idleTime / 2)
	}
	if _, ok := s.Of(r); ok {
		t.Error("a session lasts too long")
	}
	for range maxSessions + 1 {
		s.begin(httptest.NewRecorder(), Viewer)
	}
	if n := len(s.mu.sessions); n != maxSessions {
		t.Errorf("%d sessions", n)
	}
}

// TestIdle: a session ends that nothing uses, and not while a stream is open.
func TestIdle(t *testing.T) {
	now := time.Date(2026, 11, 26, 14, 0, 0, 0, time.UTC)
	s := newSessions(t, SessionsConfig{Secret: "secret", Name: "8090", Now: func() time.Time { return now }})
	w := httptest.NewRecorder()
	is := s.begin(w, Owner)
	r := withCookie(w)
	_, leave := s.During(t.Context(), is)
	now = now.Add(2 * idleTime)
	leave()
	now = now.Add(idleTime - time.Second)
	if _, ok := s.Of(r); !ok {
		t.Error("a session ended while it was used")
	}
	now = now.Add(idleTime)
	if _, ok := s.Of(r); ok {
		t.Error("an idle session goes on")
	}
	now = now.Add(-2 * idleTime) // it has ended for good
	if _, ok := s.Of(r); ok {
		t.Error("an ended session goes on")
	}
	if ctx, leave := s.During(t.Context(), is); ctx.Err() == nil {
		leave()
		t.Error("an ended session's request goes on")
	}
}

// TestSignOut: who has a copy of the cookie is signed out too, also at the next
// process, and is told of nothing more.
func TestSignOut(t *testing.T) {
	store := &testStore{}
	cfg := SessionsConfig{Secret: "secret", Name: "8090", Store: store, Now: time.Now}
	s := newSessions(t, cfg)
	w, other := httptest.NewRecorder(), httptest.NewRecorder()
	is := s.begin(w, Owner)
	s.begin(other, Owner)
	r := withCookie(w)
	ctx, leave := s.During(t.Context(), is)
	defer leave()
	if err := s.end(httptest.NewRecorder(), r); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
		t.Error("its stream goes on")
	}
	for name, at := range map[string]*Sessions{"this process": s, "the next": newSessions(t, cfg)} {
		if _, ok := at.Of(r); ok {
			t.Error(name, "takes the cookie of one who signed out")
		}
		if _, ok := at.Of(withCookie(other)); !ok {
			t.Error(name, "signed out another browser")
		}
	}
	store.err = errors.New("the disk is full")
	if err := s.end(httptest.NewRecorder(), withCookie(other)); err == nil {
		t.Error("it is not told that the next process takes the cookie")
	}
	if _, ok := s.Of(withCookie(other)); ok {
		t.Error("the session goes on")
	}
	for _, damaged := range []string{"[null]", "{", "[{}]"} {
		if _, ok := newSessions(t, SessionsConfig{Secret: "secret", Name: "8090", Store: &testStore{data: []byte(damaged)}, Now: time.Now}).Of(r); ok {
			t.Errorf("%s signs in", damaged)
		}
	}
}
