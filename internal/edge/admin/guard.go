package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"net/url"

	"roundhouse.dev/roundhouse/internal/core/apikey"
	"roundhouse.dev/roundhouse/internal/core/network"
)

// guard lets only the owner's clients in. The API starts processes, so it is
// guarded even on loopback: a token against other users and programs, the Host
// check against a web page that has its own name resolve here (DNS
// rebinding), the Origin check against a page that posts here.
func (s *Server) guard(next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(s.cfg.Token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.hostAllowed(r.Host) {
			fail(w, http.StatusForbidden, "Host %q is not this server's: use the address it listens on", r.Host)
			return
		}
		if o := r.Header.Get("Origin"); o != "" && !s.originAllowed(o) {
			fail(w, http.StatusForbidden, "Origin %q may not use the admin API", o)
			return
		}
		if open(r) {
			next.ServeHTTP(w, r)
			return
		}
		token := apikey.Bearer(r.Header.Get("Authorization"))
		got := sha256.Sum256([]byte(token))
		if token == "" || subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Set("WWW-Authenticate", `Bearer realm="roundhouse admin"`)
			fail(w, http.StatusUnauthorized, "the admin API needs the token of the data directory: name that directory with --data-dir or the token with ROUNDHOUSE_TOKEN, or send Authorization: Bearer TOKEN from its file admin-token")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// open returns which requests need no token: they tell nothing worth guarding.
func open(r *http.Request) bool {
	return r.Method == http.MethodGet && (r.URL.Path == "/healthz" || r.URL.Path == "/metrics")
}

func (s *Server) hostAllowed(hostport string) bool {
	return network.LocalHost(hostport) || network.WithoutPort(hostport) == s.cfg.Host
}

func (s *Server) originAllowed(origin string) bool {
	u, err := url.Parse(origin)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && s.hostAllowed(u.Host)
}
