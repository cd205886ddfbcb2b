package demand

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Identity is the owner of a token.
type Identity struct {
	// User is the account: "system:serviceaccount:NAMESPACE:NAME".
	User string
	// Pod is the one that the token is bound to; "" for none.
	Pod string
}

// Reviewer returns the identity of a token. The error is ErrUnauthenticated if the
// token is not valid, and another one if the review failed.
type Reviewer interface {
	Review(ctx context.Context, token string) (Identity, error)
}

// ErrUnauthenticated reports that a token is not valid.
var ErrUnauthenticated = errors.New("the token is not valid for audience " + Audience)

// Creator creates TokenReviews: a client.Client.
type Creator interface {
	Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error
}

// Bounds of the reviews that are remembered.
const (
	reviewed    = time.Minute     // a token that is valid
	refused     = 5 * time.Second // one that is not
	maxReviews  = 4_096
	maxTokens   = 16 << 10 // bytes of one
	reviewLimit = 5 * time.Second
	atOnce      = 8 // reviews under way
)

// reviews asks the API server about tokens and remembers its answers.
type reviews struct {
	api  Creator
	now  func() time.Time
	turn chan struct{}

	mu struct {
		sync.Mutex
		known map[[sha256.Size]byte]review
	}
}

type review struct {
	who     Identity
	err     error
	expires time.Time
}

// NewReviewer returns a Reviewer that asks the API server and remembers its answer
// for a minute. A nil now is time.Now.
func NewReviewer(api Creator, now func() time.Time) Reviewer {
	if now == nil {
		now = time.Now
	}
	r := &reviews{api: api, now: now, turn: make(chan struct{}, atOnce)}
	r.mu.known = map[[sha256.Size]byte]review{}
	return r
}

// Review implements Reviewer.
func (r *reviews) Review(ctx context.Context, token string) (Identity, error) {
	if len(token) > maxTokens {
		return Identity{}, ErrUnauthenticated
	}
	key := sha256.Sum256([]byte(token))
	if v, ok := r.recall(key); ok {
		return v.who, v.err
	}
	ctx, cancel := context.WithTimeout(ctx, reviewLimit)
	defer cancel()
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return Identity{}, ctx.Err()
	}
	if v, ok := r.recall(key); ok { // another caller asked meanwhile
		return v.who, v.err
	}
	answer := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{Audience}}}
	if err := r.api.Create(ctx, answer); err != nil {
		return Identity{}, err
	}
	v := review{expires: r.now().Add(reviewed)}
	if st := answer.Status; st.Authenticated && st.Error == "" && hasAudience(st.Audiences) {
		v.who.User = st.User.Username
		if pods := st.User.Extra["authentication.kubernetes.io/pod-name"]; len(pods) == 1 {
			v.who.Pod = pods[0]
		}
	} else {
		v.expires, v.err = r.now().Add(refused), ErrUnauthenticated
		if st.Error != "" {
			v.err = fmt.Errorf("%w: %.200s", ErrUnauthenticated, st.Error)
		}
	}
	r.remember(key, v)
	return v.who, v.err
}

// hasAudience refuses the answer of an API server that ignores audiences.
func hasAudience(all []string) bool {
	for _, a := range all {
		if a == Audience {
			return true
		}
	}
	return false
}

func (r *reviews) recall(key [sha256.Size]byte) (review, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.mu.known[key]
	return v, ok && r.now().Before(v.expires)
}

func (r *reviews) remember(key [sha256.Size]byte, v review) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.mu.known) >= maxReviews {
		now := r.now()
		for k, old := range r.mu.known {
			if !now.Before(old.expires) {
				delete(r.mu.known, k)
			}
		}
		for k, old := range r.mu.known { // invalid tokens, of which there may be many, are forgotten first
			if len(r.mu.known) < maxReviews {
				break
			}
			if old.err != nil {
				delete(r.mu.known, k)
			}
		}
		if len(r.mu.known) >= maxReviews {
			return
		}
	}
	r.mu.known[key] = v
}
