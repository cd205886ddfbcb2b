package console

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// TestTimes: links and sessions end, and sessions outlive the process that began
// them if its secret is the same.
func TestTimes(t *testing.T) {
	now := time.Date(2026, 11, 26, 14, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	s := NewSessions("secret", "8090", clock)
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
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.AddCookie(&http.Cookie{Name: "roundhouse-8090", Value: "planted by another server"})
	r.AddCookie(w.Result().Cookies()[0])
	for name, other := range map[string]*Sessions{"this process": s, "the next": NewSessions("secret", "8090", clock)} {
		if is, ok := other.Of(r); !ok || is != began || other.CSRF(is) != s.CSRF(began) {
			t.Errorf("%s: %+v %v", name, is, ok)
		}
	}
	for name, other := range map[string]*Sessions{"another secret": NewSessions("other", "8090", clock), "another port": NewSessions("secret", "9", clock)} {
		if _, ok := other.Of(r); ok {
			t.Error(name, "takes the session")
		}
	}
	now = now.Add(sessionTime)
	if _, ok := s.Of(r); ok {
		t.Error("a session lasts too long")
	}
}
