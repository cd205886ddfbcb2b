package modelserver

import (
	"fmt"
	"net/http"

	"roundhouse.dev/roundhouse/internal/core/network"
)

// guard refuses, where the server listens on loopback, what a web page of another
// site may have sent: whoever asks there is taken for a user of this machine.
func (s *Server) guard(next http.Handler) http.Handler {
	if !network.LocalHost(s.config.Host) {
		return next
	}
	g := &network.Guard{Hosts: s.config.AllowedHosts}
	if s.config.HTTP.CORS != nil {
		g.KnowsOrigin = newCrossOrigin(*s.config.HTTP.CORS).originAllowed
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin := r.Header.Get("Origin")
		switch g.Check(r.Host, origin, r.Header.Get("Sec-Fetch-Site")) {
		case network.Admitted:
			next.ServeHTTP(w, r)
		case network.RefusedHost:
			writeErrorStatus(w, http.StatusForbidden, fmt.Errorf("the host %q is not this server's: ask 127.0.0.1 or localhost, or name more with --allowed-hosts", r.Host))
		default:
			writeErrorStatus(w, http.StatusForbidden, fmt.Errorf("web pages of other sites may not ask this server (origin %q): name those that may in cors_settings", origin))
		}
	})
}
