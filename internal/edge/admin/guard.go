package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"net/url"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/apikey"
	"roundhouse.dev/roundhouse/internal/core/network"
	"roundhouse.dev/roundhouse/internal/edge/admin/console"
)

// guard admits the owner, and who may read. The API starts processes, so it is
// guarded even on loopback: by tokens against other users and programs, by the Host
// check against a web page whose name resolves here (DNS rebinding), and by the
// Origin check against a page that posts here.
func (s *Server) guard(next http.Handler) http.Handler {
	host := s.cfg.Host
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !hostAllowed(host, r.Host) {
			fail(w, http.StatusForbidden, "Host %q is not this server's: use the address it listens on", r.Host)
			return
		}
		if o := r.Header.Get("Origin"); o != "" && !originAllowed(host, o) {
			fail(w, http.StatusForbidden, "Origin %q may not use the admin API", o)
			return
		}
		if open(r) || s.console.Open(r) {
			next.ServeHTTP(w, r)
			return
		}
		role, known := s.role(apikey.Bearer(r.Header.Get("Authorization")))
		if !known && r.Header.Get("Authorization") == "" {
			is, ok, refused := s.signedIn(r)
			if refused != "" {
				fail(w, http.StatusForbidden, "%s", refused)
				return
			}
			if ok {
				ctx, leave := s.sessions.During(r.Context(), is)
				defer leave()
				r, role, known = r.WithContext(ctx), is.Role, true
			}
		}
		switch {
		case !known:
			w.Header().Set("WWW-Authenticate", `Bearer realm="roundhouse admin"`)
			fail(w, http.StatusUnauthorized, "the admin API needs the token of the data directory: name that directory with --data-dir, or the token in its file admin-token with ROUNDHOUSE_TOKEN; programs send it as Authorization: Bearer TOKEN")
		case role != console.Owner && !reads(r):
			fail(w, http.StatusForbidden, "this needs the owner: the viewer's token and sessions only read")
		default:
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), roleKey{}, role)))
		}
	})
}

// roleKey is under which a request's context has who sent it.
type roleKey struct{}

// owns reports whether the owner sent a request. Others are told no manifests, which
// may hold secrets.
func owns(r *http.Request) bool { return r.Context().Value(roleKey{}) == console.Owner }

// role is what a token that is kept may do.
func (s *Server) role(token string) (console.Role, bool) {
	for _, x := range []struct {
		token string
		role  console.Role
	}{{s.cfg.Token, console.Owner}, {s.cfg.ViewerToken, console.Viewer}} {
		want, got := sha256.Sum256([]byte(x.token)), sha256.Sum256([]byte(token))
		if x.token != "" && subtle.ConstantTimeCompare(got[:], want[:]) == 1 {
			return x.role, true
		}
	}
	return "", false
}

// signedIn is a browser's session, with the role that its request has, and why the
// request of one is refused.
func (s *Server) signedIn(r *http.Request) (is console.Session, known bool, refused string) {
	is, ok := s.sessions.Of(r)
	switch {
	case !ok:
		return is, false, ""
	case !console.SameOrigin(r):
		return is, false, "only the console's own page may use its session"
	case s.sessions.Changes(is, r):
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		is.Role = console.Viewer
	default:
		return is, false, "the request does not carry the session's token: sign in again"
	}
	return is, true, ""
}

// reads reports whether a request changes nothing, starts nothing and tells nothing of
// the owner's files.
func reads(r *http.Request) bool {
	switch {
	case r.Method == http.MethodPost:
		return r.URL.Path == "/api/v1/explain-request"
	case r.Method != http.MethodGet:
		return false
	}
	return r.URL.Path != "/api/v1/readable" && !strings.HasPrefix(r.URL.Path, "/api/v1/uploads/") && !strings.HasPrefix(r.URL.Path, "/api/v1/infer/")
}

// consoleLink answers a path that signs in once: as viewer with ?role=viewer.
func (s *Server) consoleLink(w http.ResponseWriter, r *http.Request) {
	role := console.Owner
	if r.URL.Query().Get("role") == string(console.Viewer) {
		role = console.Viewer
	}
	w.Header().Set("Cache-Control", "no-store")
	answer(w, ConsoleLink{Path: s.Link(role)})
}

// ConsoleLink is the path of the console, with what signs in there once.
type ConsoleLink struct {
	Path string `json:"path"`
}

// open reports whether a request needs no token: its answer is no secret.
func open(r *http.Request) bool {
	return r.Method == http.MethodGet && (r.URL.Path == "/healthz" || r.URL.Path == "/metrics")
}

func hostAllowed(host, hostport string) bool {
	return network.LocalHost(hostport) || network.WithoutPort(hostport) == host
}

func originAllowed(host, origin string) bool {
	u, err := url.Parse(origin)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && hostAllowed(host, u.Host)
}
