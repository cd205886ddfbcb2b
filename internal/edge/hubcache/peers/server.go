package peers

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Serve answers a request below Prefix if its signature is valid: blob sends
// the blob that a peer asks for, wrong is called with the hash of a blob that a
// peer received wrong. Other clients learn only that there is a ring.
func (g *Group) Serve(w http.ResponseWriter, r *http.Request,
	blob func(*Request, http.ResponseWriter, *http.Request, Question), wrong func(hash string)) (believed bool) {
	nonce, key, err := g.sign.check(r, time.Now())
	if err != nil {
		g.complain(r.RemoteAddr, err)
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return false
	}
	v := &Request{Source: r.Header.Get(sourceHeader), nonce: nonce, key: key}
	hash, isBlob := strings.CutPrefix(r.URL.Path, Prefix+"blobs/")
	suspect, isWrong := strings.CutPrefix(r.URL.Path, Prefix+"wrong/")
	switch {
	case r.Method != http.MethodGet:
		v.Decline(w, http.StatusMethodNotAllowed, "method")
	case r.URL.Path == Prefix+"ping", isWrong:
		if isWrong {
			wrong(suspect)
		}
		w.Header().Set("Content-Length", "0")
		v.Sign(w.Header(), http.StatusOK)
		w.WriteHeader(http.StatusOK)
	case isBlob:
		size, err := strconv.ParseInt(r.URL.Query().Get("size"), 10, 64)
		if err != nil || size < 0 {
			v.Decline(w, http.StatusBadRequest, "size")
			break
		}
		blob(v, w, r, Question{Hash: hash, Size: size, Source: v.Source})
	default:
		v.Decline(w, http.StatusNotFound, "path")
	}
	return true
}

// complainEvery bounds what unknown clients can have written to the log.
const complainEvery = 10 * time.Second

func (g *Group) complain(from string, err error) {
	g.mu.Lock()
	now := time.Now()
	quiet := now.Sub(g.mu.complained) < complainEvery
	if !quiet {
		g.mu.complained = now
	}
	g.mu.Unlock()
	if !quiet {
		g.log.Warn("a request of another node is refused", "from", from, "error", err)
	}
}
