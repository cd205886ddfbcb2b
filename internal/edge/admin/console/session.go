package console

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// Role is what one who signed in may do.
type Role string

// The roles.
const (
	Owner  Role = "owner"  // everything
	Viewer Role = "viewer" // reads
)

const (
	// sessionTime is how long a session lasts.
	sessionTime = 12 * time.Hour
	// linkTime is how long a link signs in.
	linkTime = time.Hour
	// maxLinks is how many links can be open at a time; the oldest gives way.
	maxLinks = 32
)

// Session is one who signed in. It is kept by the browser alone, signed.
type Session struct {
	Role    Role      `json:"role"`
	Expires time.Time `json:"expires"`
	ID      string    `json:"id"`
}

// Sessions sign in, by links that work once. They are safe for concurrent use.
type Sessions struct {
	key    []byte
	cookie string
	now    func() time.Time
	mu     struct {
		sync.Mutex
		links []link // the oldest first
	}
}

// link is a token that signs in once.
type link struct {
	hash    [sha256.Size]byte
	role    Role
	expires time.Time
}

// NewSessions makes sessions that secret signs: those of a process before hold if it
// had the same. A browser sends the cookies of all ports of a host, so name, of this
// server, tells them apart.
func NewSessions(secret, name string, now func() time.Time) *Sessions {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte("console sessions"))
	return &Sessions{key: mac.Sum(nil), cookie: "roundhouse-" + name, now: now}
}

// Link returns a token that signs in once, as role.
func (s *Sessions) Link(role Role) string {
	token := rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.links) == maxLinks {
		s.mu.links = s.mu.links[1:]
	}
	s.mu.links = append(s.mu.links, link{sha256.Sum256([]byte(token)), role, s.now().Add(linkTime)})
	return token
}

// use returns the role of a link's token, and has it sign in no more.
func (s *Sessions) use(token string) (Role, bool) {
	hash := sha256.Sum256([]byte(token))
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, l := range s.mu.links {
		if l.hash == hash {
			s.mu.links = append(s.mu.links[:i:i], s.mu.links[i+1:]...)
			return l.role, s.now().Before(l.expires)
		}
	}
	return "", false
}

// begin signs a browser in.
func (s *Sessions) begin(w http.ResponseWriter, role Role) Session {
	is := Session{Role: role, Expires: s.now().Add(sessionTime).UTC().Truncate(time.Second), ID: rand.Text()}
	data, _ := json.Marshal(is) // always has a form in JSON
	text := base64.RawURLEncoding.EncodeToString(data)
	http.SetCookie(w, &http.Cookie{Name: s.cookie, Value: text + "." + s.sign("session", text), Path: "/", MaxAge: int(sessionTime.Seconds()),
		HttpOnly: true, SameSite: http.SameSiteStrictMode})
	return is
}

// end signs a browser out.
func (s *Sessions) end(w http.ResponseWriter) {
	http.SetCookie(w, &http.Cookie{Name: s.cookie, Path: "/", MaxAge: -1, HttpOnly: true, SameSite: http.SameSiteStrictMode})
}

// Of returns the session of a request.
func (s *Sessions) Of(r *http.Request) (Session, bool) {
	for _, c := range r.CookiesNamed(s.cookie) { // another server of this host may have set one too
		if is, ok := s.read(c.Value); ok {
			return is, true
		}
	}
	return Session{}, false
}

func (s *Sessions) read(value string) (is Session, ok bool) {
	const signed = 43 // length of a signature
	at := len(value) - signed - 1
	if at < 0 || value[at] != '.' || !hmac.Equal([]byte(value[at+1:]), []byte(s.sign("session", value[:at]))) {
		return Session{}, false
	}
	data, err := base64.RawURLEncoding.DecodeString(value[:at])
	if err != nil || json.Unmarshal(data, &is) != nil || !s.now().Before(is.Expires) {
		return Session{}, false
	}
	return is, true
}

// CSRF is the token that a session's changes carry, which no page of another origin
// can read.
func (s *Sessions) CSRF(is Session) string { return s.sign("csrf", is.ID) }

// Changes reports whether a request of a session carries that token.
func (s *Sessions) Changes(is Session, r *http.Request) bool {
	return hmac.Equal([]byte(r.Header.Get(HeaderCSRF)), []byte(s.CSRF(is)))
}

func (s *Sessions) sign(purpose, text string) string {
	mac := hmac.New(sha256.New, s.key)
	mac.Write([]byte(purpose + "\x00" + text))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}
