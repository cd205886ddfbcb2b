package console

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
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
	// idleTime is how long a session lasts that nothing uses: no request, and no page
	// that is told of changes.
	idleTime = time.Hour
	// maxSessions is how many sessions there can be at a time; the one that ends first
	// gives way.
	maxSessions = 64
	// linkTime is how long a link signs in.
	linkTime = time.Hour
	// maxLinks is how many links can be open at a time; the oldest gives way.
	maxLinks = 32
)

// Session is one who signed in.
type Session struct {
	Role    Role
	Expires time.Time
	token   string // which the browser keeps
}

// SessionStore keeps the sessions for the next process, without what signs in with
// them. Load returns nothing where nothing was saved.
type SessionStore interface {
	Load() ([]byte, error)
	Save([]byte) error
}

// SessionsConfig is of Sessions. Secret is required.
type SessionsConfig struct {
	// Secret: sessions of a process before hold if it had the same.
	Secret string
	// Name, of this server, tells its cookie apart: a browser sends those of all ports
	// of a host.
	Name  string
	Store SessionStore // nil keeps nothing for the next process
	Now   func() time.Time
}

// Sessions sign in, by links that work once. They are safe for concurrent use.
type Sessions struct {
	cfg    SessionsConfig
	key    []byte
	cookie string
	mu     struct {
		sync.Mutex
		links    []link     // the oldest first
		sessions []*session // likewise
	}
}

// session is what is known of a session.
type session struct {
	Hash    string    `json:"hash"` // of its token
	Role    Role      `json:"role"`
	Expires time.Time `json:"expires"`

	used  time.Time       // last
	open  int             // its requests under way
	ended context.Context //nolint:containedctx // it is the session's, not a call's
	end   context.CancelFunc
}

// link is a token that signs in once.
type link struct {
	hash    [sha256.Size]byte
	role    Role
	expires time.Time
}

// NewSessions makes sessions, with those that the store has.
func NewSessions(cfg SessionsConfig) (*Sessions, error) {
	s := &Sessions{cfg: cfg, cookie: "roundhouse-" + cfg.Name}
	mac := hmac.New(sha256.New, []byte(cfg.Secret))
	mac.Write([]byte("console sessions"))
	s.key = mac.Sum(nil)
	if cfg.Store == nil {
		return s, nil
	}
	data, err := cfg.Store.Load()
	if err != nil {
		return nil, fmt.Errorf("console: sessions: %w", err)
	}
	if json.Unmarshal(data, &s.mu.sessions) != nil {
		s.mu.sessions = nil // damaged: one has to sign in again
	}
	s.mu.sessions = slices.DeleteFunc(s.mu.sessions, func(x *session) bool { return x == nil })
	for _, x := range s.mu.sessions {
		x.begin(cfg.Now())
	}
	return s, nil
}

func (x *session) begin(now time.Time) {
	x.used = now
	x.ended, x.end = context.WithCancel(context.Background())
}

// over reports whether a session has ended by itself.
func (x *session) over(now time.Time) bool {
	return !now.Before(x.Expires) || x.open == 0 && now.Sub(x.used) >= idleTime
}

// Link returns a token that signs in once, as role.
func (s *Sessions) Link(role Role) string {
	token := rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.links) == maxLinks {
		s.mu.links = s.mu.links[1:]
	}
	s.mu.links = append(s.mu.links, link{sha256.Sum256([]byte(token)), role, s.cfg.Now().Add(linkTime)})
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
			return l.role, s.cfg.Now().Before(l.expires)
		}
	}
	return "", false
}

// begin signs a browser in. Where the session cannot be saved it ends with this
// process.
func (s *Sessions) begin(w http.ResponseWriter, role Role) Session {
	now := s.cfg.Now()
	is := Session{Role: role, Expires: now.Add(sessionTime).UTC().Truncate(time.Second), token: rand.Text()}
	x := &session{Hash: s.sign("session", is.token), Role: role, Expires: is.Expires}
	x.begin(now)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(func(x *session) bool { return x.over(now) })
	if len(s.mu.sessions) == maxSessions {
		s.mu.sessions[0].end()
		s.mu.sessions = s.mu.sessions[1:]
	}
	s.mu.sessions = append(s.mu.sessions, x)
	_ = s.saveLocked()
	http.SetCookie(w, &http.Cookie{Name: s.cookie, Value: is.token, Path: "/", MaxAge: int(sessionTime.Seconds()), HttpOnly: true, SameSite: http.SameSiteStrictMode})
	return is
}

// end signs a browser out: its cookie, or a copy of it, signs in no more, and what it
// is told of ends.
func (s *Sessions) end(w http.ResponseWriter, r *http.Request) error {
	http.SetCookie(w, &http.Cookie{Name: s.cookie, Path: "/", MaxAge: -1, HttpOnly: true, SameSite: http.SameSiteStrictMode})
	var hashes []string
	for _, c := range r.CookiesNamed(s.cookie) {
		hashes = append(hashes, s.sign("session", c.Value))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.dropLocked(func(x *session) bool { return slices.Contains(hashes, x.Hash) }) {
		return nil
	}
	if err := s.saveLocked(); err != nil {
		return fmt.Errorf("the session has ended, but a server that starts now would take its cookie again: %w", err)
	}
	return nil
}

// dropLocked ends sessions, and reports whether there were any.
func (s *Sessions) dropLocked(which func(*session) bool) bool {
	n := len(s.mu.sessions)
	s.mu.sessions = slices.DeleteFunc(s.mu.sessions, func(x *session) bool {
		if !which(x) {
			return false
		}
		x.end()
		return true
	})
	return len(s.mu.sessions) < n
}

func (s *Sessions) saveLocked() error {
	if s.cfg.Store == nil {
		return nil
	}
	data, err := json.Marshal(s.mu.sessions)
	if err != nil {
		return err
	}
	return s.cfg.Store.Save(data)
}

// Of returns the session of a request, which is used by that.
func (s *Sessions) Of(r *http.Request) (Session, bool) {
	for _, c := range r.CookiesNamed(s.cookie) { // another server of this host may have set one too
		if is, ok := s.find(c.Value); ok {
			return is, true
		}
	}
	return Session{}, false
}

func (s *Sessions) find(token string) (Session, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.cfg.Now()
	x := s.presentLocked(token)
	if x == nil {
		return Session{}, false
	}
	if x.over(now) {
		s.dropLocked(func(o *session) bool { return o == x })
		_ = s.saveLocked() // else the next process finds it over, at the latest when it expires
		return Session{}, false
	}
	x.used = now
	return Session{Role: x.Role, Expires: x.Expires, token: token}, true
}

func (s *Sessions) presentLocked(token string) *session {
	hash := []byte(s.sign("session", token))
	for _, x := range s.mu.sessions {
		if hmac.Equal(hash, []byte(x.Hash)) {
			return x
		}
	}
	return nil
}

// During is the context of a session's request, which ends with the session. The
// session is not idle until leave is called.
func (s *Sessions) During(ctx context.Context, is Session) (during context.Context, leave func()) {
	during, cancel := context.WithTimeout(ctx, is.Expires.Sub(s.cfg.Now()))
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.presentLocked(is.token)
	if x == nil { // it ended since it was found
		cancel()
		return during, func() {}
	}
	x.open++
	stop := context.AfterFunc(x.ended, cancel)
	return during, func() {
		stop()
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		x.open--
		x.used = s.cfg.Now()
	}
}

// CSRF is the token that a session's changes carry, which no page of another origin
// can read.
func (s *Sessions) CSRF(is Session) string { return s.sign("csrf", is.token) }

// Changes reports whether a request of a session carries that token.
func (s *Sessions) Changes(is Session, r *http.Request) bool {
	return hmac.Equal([]byte(r.Header.Get(HeaderCSRF)), []byte(s.CSRF(is)))
}

func (s *Sessions) sign(purpose, text string) string {
	mac := hmac.New(sha256.New, s.key)
	mac.Write([]byte(purpose + "\x00" + text))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}
