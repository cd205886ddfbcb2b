package hubcache

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// source is where a blob's content may be had: a file of the Hub, asked for with
// a caller's token or without; or an address at the storage that the Hub gave
// another node, which needs no token and is good for a while.
type source struct {
	t             target
	authorization string
	at            *url.URL
}

var (
	// errNoSource is a blob that is not here, of which nobody said where to
	// get it.
	errNoSource = errors.New("it is not said where the content may be had")
	// errStale is an address at the storage that is not good any more.
	errStale = errors.New("the address of the content is not good any more")
)

func (s source) none() bool { return s.at == nil && s.t.route == "" }

// maxSource is the longest source that nodes tell each other.
const maxSource = 8 << 10

// source is what this node tells others: an address at the storage, asked for
// with the caller's token, or the path of a file that everybody may read; "" when
// there is neither. The caller may read the file, or gets the Hub's refusal.
func (c *Cache) source(ctx context.Context, t target, authorization string) (string, error) {
	who := c.grants.caller(authorization)
	to, err := once(ctx, c, "locate\x00"+string(who[:])+t.path()+asQuery(t.query), func(ctx context.Context) (string, error) {
		return c.hub.locate(ctx, t, authorization)
	})
	var e *refusal
	if errors.As(err, &e) && e.denied() {
		c.denied(t.repo, who)
	}
	if err == nil && to == "" && c.isPublic(t.repo) {
		to = t.path() + asQuery(t.query)
	}
	if len(to) > maxSource {
		return "", nil
	}
	return to, err
}

// locate asks the Hub for a file's address at the storage; "" when the Hub sends
// the file itself.
func (h *hub) locate(ctx context.Context, t target, authorization string) (string, error) {
	resp, _, err := h.do(ctx, question{method: http.MethodHead, path: t.path() + asQuery(t.query), authorization: authorization}, false)
	if err != nil {
		return "", err
	}
	_ = resp.Body.Close()
	switch {
	case resp.StatusCode >= 400:
		return "", refuse(resp)
	case resp.StatusCode/100 != 3:
		return "", nil
	}
	to, err := resp.Request.URL.Parse(resp.Header.Get("Location"))
	if err != nil {
		return "", fmt.Errorf("%w: it redirects to where we do not follow", errOdd)
	}
	to.User = nil
	return to.String(), nil
}

// parseSource reads what another node says. It is trusted as far as nodes are,
// and held to what we would follow from the Hub.
func (c *Cache) parseSource(s string) (source, error) {
	if s == "" {
		return source{}, nil
	}
	if path, query, _ := strings.Cut(s, "?"); strings.HasPrefix(s, "/") {
		t, err := parseTarget(path, query)
		if err != nil || t.route != "resolve" || !isCommit(t.revision) {
			return source{}, errPath
		}
		return source{t: t}, nil
	}
	at, err := url.Parse(s)
	if err != nil || len(s) > maxSource || at.Scheme != "https" && at.Scheme != "http" || at.Host == "" || at.User != nil ||
		c.base.Scheme == "https" && at.Scheme == "http" {
		return source{}, errPath
	}
	return source{at: at}, nil
}
