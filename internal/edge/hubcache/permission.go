package hubcache

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"sync"
	"time"
)

// caller is who asks, as far as the cache may know it: a keyed hash of the
// Authorization header, or zero for nobody in particular. The key is of this
// process and nowhere written, so a dump of the cache's memory tells no token
// by its hash.
type caller [sha256.Size]byte

var anonymous caller

// right is what a grant lets a caller do. A repository may let everybody see
// what it has and not let them read it, so they are kept apart.
type right string

const mayRead right = "resolve" // the content; and with it everything else

// grantKey is one thing that the Hub allowed.
type grantKey struct {
	who      caller
	repo     repo
	revision string // a commit, or as the caller named it
	right    right
}

// grants remembers for a while what the Hub allowed whom.
type grants struct {
	life time.Duration
	most int
	key  [32]byte

	mu    sync.Mutex
	until map[grantKey]time.Time
}

func newGrants(life time.Duration, most int) *grants {
	g := &grants{life: life, most: most, until: map[grantKey]time.Time{}}
	_, _ = rand.Read(g.key[:]) // never fails
	return g
}

// caller names who sent an Authorization header.
func (g *grants) caller(authorization string) (c caller) {
	if authorization == "" {
		return anonymous
	}
	h := hmac.New(sha256.New, g.key[:])
	_, _ = h.Write([]byte(authorization)) // never fails
	h.Sum(c[:0])
	return c
}

// allowed reports whether a grant holds: of this right, or to read.
func (g *grants) allowed(k grantKey, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now.Before(g.until[k]) {
		return true
	}
	k.right = mayRead
	return now.Before(g.until[k])
}

// allow notes what the Hub has just allowed.
func (g *grants) allow(k grantKey, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.until) >= g.most {
		g.evict(now)
	}
	g.until[k] = now.Add(g.life)
}

// evict drops what has ended, and if that is little, any: they are asked
// for again.
func (g *grants) evict(now time.Time) {
	for k, t := range g.until {
		if !now.Before(t) {
			delete(g.until, k)
		}
	}
	for k := range g.until {
		if len(g.until) <= g.most*3/4 {
			return
		}
		delete(g.until, k)
	}
}

// revoke takes back all that a caller was allowed at a repository.
func (g *grants) revoke(who caller, r repo) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for k := range g.until {
		if k.who == who && k.repo == r {
			delete(g.until, k)
		}
	}
}
