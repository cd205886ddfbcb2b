package peers

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// Prefix begins the paths that nodes ask each other for. No repository of
	// the Hub has a name that begins with a dash.
	Prefix = "/-/peers/"

	authHeader   = "Roundhouse-Peer-Auth"   // t=UNIX TIME, n=NONCE, m=MAC; of answers, the MAC alone
	sourceHeader = "Roundhouse-Peer-Source" // where content may be had without a token
	reasonHeader = "Roundhouse-Peer-Reason" // of an answer without content

	label    = "roundhouse-peers-1" // begins what is signed
	maxAuth  = 256                  // bytes of the header that signs a request
	nonceLen = 16
)

// Errors of a request that is refused.
var (
	errUnsigned = errors.New("the request is not signed with this ring's secret for this node")
	errClock    = errors.New("the request was signed at another time: the clocks of the nodes differ, or it is old")
	errReplayed = errors.New("the request came before")
	errMany     = errors.New("too many requests to remember them")
)

// signer signs for one node and checks what others signed.
type signer struct {
	self    string
	secrets [][]byte
	skew    time.Duration
	seen    nonces
}

func mac(secret []byte, parts ...string) []byte {
	h := hmac.New(sha256.New, secret)
	_, _ = h.Write([]byte(label)) // never fails
	for _, p := range parts {
		_, _ = h.Write([]byte{'\n'}) // no part holds one: each is from a header or a request line
		_, _ = h.Write([]byte(p))
	}
	return h.Sum(nil)
}

func requestParts(r *http.Request, to, at, nonce string) []string {
	return []string{"request", to, r.Method, r.URL.RequestURI(), r.Header.Get("Range"), r.Header.Get(sourceHeader), at, nonce}
}

// sign signs a request to a node, and returns the nonce that its answer must be
// signed with.
func (s *signer) sign(r *http.Request, to string, now time.Time) (nonce string) {
	var raw [nonceLen]byte
	_, _ = rand.Read(raw[:]) // never fails
	nonce = base64.RawURLEncoding.EncodeToString(raw[:])
	at := strconv.FormatInt(now.Unix(), 10)
	r.Header.Set(authHeader, "t="+at+", n="+nonce+", m="+hex.EncodeToString(mac(s.secrets[0], requestParts(r, to, at, nonce)...)))
	return nonce
}

// check verifies a request's signature and accepts each request once; the error
// is why it is refused. key signs the answer.
func (s *signer) check(r *http.Request, now time.Time) (nonce string, key []byte, err error) {
	h := r.Header.Get(authHeader)
	at, rest, ok1 := strings.Cut(strings.TrimPrefix(h, "t="), ", n=")
	nonce, sum, ok2 := strings.Cut(rest, ", m=")
	got, err := hex.DecodeString(sum)
	if len(h) > maxAuth || !ok1 || !ok2 || err != nil || len(nonce) != base64.RawURLEncoding.EncodedLen(nonceLen) {
		return "", nil, errUnsigned
	}
	for _, secret := range s.secrets {
		if hmac.Equal(got, mac(secret, requestParts(r, s.self, at, nonce)...)) {
			key = secret
		}
	}
	if key == nil {
		return "", nil, errUnsigned
	}
	unix, err := strconv.ParseInt(at, 10, 64)
	if err != nil || now.Sub(time.Unix(unix, 0)).Abs() > s.skew+time.Second { // times are in whole seconds
		return "", nil, errClock
	}
	return nonce, key, s.seen.once(nonce, 2*s.skew+2*time.Second, now)
}

func answerParts(h http.Header, status int, nonce string) []string {
	return []string{"answer", nonce, strconv.Itoa(status), h.Get("Etag"), h.Get("Content-Length"), h.Get("Content-Range"), h.Get(reasonHeader)}
}

// checkAnswer returns an error unless an answer is to the request of this nonce,
// and by a node of the ring.
func (s *signer) checkAnswer(resp *http.Response, nonce string) error {
	got, err := hex.DecodeString(resp.Header.Get(authHeader))
	if err != nil {
		return ErrForged
	}
	h := resp.Header
	if h.Get("Content-Length") == "" && resp.ContentLength >= 0 {
		h = http.Header{"Etag": h["Etag"], "Content-Range": h["Content-Range"], reasonHeader: h[reasonHeader],
			"Content-Length": {strconv.FormatInt(resp.ContentLength, 10)}}
	}
	for _, secret := range s.secrets {
		if hmac.Equal(got, mac(secret, answerParts(h, resp.StatusCode, nonce)...)) {
			return nil
		}
	}
	return ErrForged
}

// nonces are those of received requests, in two generations: none is forgotten
// before its life is over.
type nonces struct {
	max int

	mu       sync.Mutex
	now, old map[string]struct{}
	since    time.Time // of now
}

func (n *nonces) once(nonce string, life time.Duration, at time.Time) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.now == nil || at.Sub(n.since) >= life {
		n.old, n.now = n.now, map[string]struct{}{}
		if at.Sub(n.since) >= 2*life {
			n.old = nil
		}
		n.since = at
	}
	_, a := n.now[nonce]
	_, b := n.old[nonce]
	switch {
	case a || b:
		return errReplayed
	case len(n.now) >= n.max:
		return fmt.Errorf("%w: %d within %s", errMany, n.max, life)
	}
	n.now[nonce] = struct{}{}
	return nil
}

// Request is a request of another node whose signature is valid.
type Request struct {
	// Source is where, according to the peer, the content may be downloaded
	// without a token; "" if the peer sent none.
	Source string
	nonce  string
	key    []byte
}

// Sign signs an answer, of which everything but the body is set. It must be the
// last thing before WriteHeader.
func (v *Request) Sign(h http.Header, status int) {
	h.Set(authHeader, hex.EncodeToString(mac(v.key, answerParts(h, status, v.nonce)...)))
}

// Decline answers without content: the reason is for Answer.Reason.
func (v *Request) Decline(w http.ResponseWriter, status int, reason string) {
	h := w.Header()
	clear(h)
	h.Set(reasonHeader, reason)
	h.Set("Content-Length", "0")
	v.Sign(h, status)
	w.WriteHeader(status)
}
