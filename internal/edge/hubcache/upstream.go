package hubcache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/blobs"
)

var (
	// errUnreachable marks failures that do not concern the requested file.
	errUnreachable = errors.New("the Hub cannot be reached")
	errStalled     = errors.New("no byte arrived in time")
	// errOdd marks answers of the Hub that cannot be right.
	errOdd = errors.New("the Hub's answer is malformed")
)

// refusal is an answer of the Hub of status 400 or more, fit to be passed on.
type refusal struct {
	status int
	header http.Header // those of refusalHeaders
	body   []byte
	after  time.Duration // Retry-After
}

// refusalHeaders are what clients read of a refusal.
var refusalHeaders = []string{"Content-Type", "X-Error-Code", "X-Error-Message", "X-Repo-Commit", "X-Request-Id",
	"Www-Authenticate", "Retry-After", "Ratelimit", "Ratelimit-Policy", "Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset"}

func (e *refusal) Error() string {
	return fmt.Sprintf("the Hub answers %d %s", e.status, e.header.Get("X-Error-Code"))
}

// Is reports a failing server as unreachable.
func (e *refusal) Is(target error) bool { return target == errUnreachable && e.status >= 500 }

// denied reports whether the caller may not read, as against: not now, or nothing
// there.
func (e *refusal) denied() bool {
	return e.status == http.StatusUnauthorized || e.status == http.StatusForbidden || e.header.Get("X-Error-Code") == "RepoNotFound"
}

const (
	maxRefusal   = 64 << 10 // bytes of a refusal's body that are passed on
	maxRedirects = 8        // of one request
)

// refuse reads a refusal.
func refuse(resp *http.Response) *refusal {
	e := &refusal{status: resp.StatusCode, header: http.Header{}}
	for _, k := range refusalHeaders {
		if v := resp.Header.Values(k); len(v) > 0 {
			e.header[k] = v
		}
	}
	e.body, _ = io.ReadAll(io.LimitReader(resp.Body, maxRefusal)) // as far as it comes
	_ = resp.Body.Close()
	if n, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && n > 0 {
		e.after = time.Duration(min(n, 3600)) * time.Second
	}
	return e
}

// hub speaks to the upstream.
type hub struct {
	base   *url.URL
	client http.Client // follows no redirects by itself
}

func newHub(base *url.URL, t http.RoundTripper) *hub {
	if t == nil {
		own := http.DefaultTransport.(*http.Transport).Clone()
		own.DisableCompression = true
		own.MaxIdleConnsPerHost = 64
		own.MaxResponseHeaderBytes = 256 << 10
		t = own
	}
	return &hub{base, http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// question is a request to the Hub.
type question struct {
	method, path  string // with query, escaped
	authorization string
	body          []byte
	contentType   string
	from          int64 // first byte wanted, with ranged
	to            int64 // and, when above 0, the one after the last
	ranged        bool
}

// do sends a request and follows redirects: all of them when away, else only
// those that stay at the Hub. Authorization goes to the Hub alone. What the
// Hub's own answers said on the way is in said, the last one winning; of the
// body's host, resp.
func (h *hub) do(ctx context.Context, q question, away bool) (resp *http.Response, said http.Header, err error) {
	at, err := h.base.Parse(q.path)
	if err != nil || !sameOrigin(at, h.base) {
		return nil, nil, errPath
	}
	return h.walk(ctx, q, at, away)
}

// walk is do from an address on.
func (h *hub) walk(ctx context.Context, q question, at *url.URL, away bool) (resp *http.Response, said http.Header, err error) {
	said = http.Header{}
	for range maxRedirects {
		resp, err = h.send(ctx, q, at)
		if err != nil {
			return nil, nil, err
		}
		home := sameOrigin(at, h.base)
		if home {
			for k, v := range resp.Header {
				said[k] = v
			}
		}
		next := ""
		switch resp.StatusCode {
		case http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
			next = resp.Header.Get("Location")
		}
		if next == "" {
			return resp, said, nil
		}
		to, err := at.Parse(next)
		if err != nil || to.Scheme != "http" && to.Scheme != "https" || at.Scheme == "https" && to.Scheme == "http" {
			_ = resp.Body.Close()
			return nil, nil, fmt.Errorf("%w: it redirects to where we do not follow", errOdd)
		}
		to.User = nil
		if !sameOrigin(to, h.base) && !away {
			return resp, said, nil
		}
		_, _ = io.CopyN(io.Discard, resp.Body, maxRefusal) // so that the connection can be used again
		_ = resp.Body.Close()
		at = to
	}
	return nil, nil, fmt.Errorf("%w: more than %d redirects", errOdd, maxRedirects)
}

func (h *hub) send(ctx context.Context, q question, at *url.URL) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, q.method, at.String(), bytes.NewReader(q.body))
	if err != nil {
		return nil, errPath
	}
	req.Header.Set("User-Agent", "roundhouse-hub-cache")
	// Offsets and sizes are of the file as it is.
	req.Header.Set("Accept-Encoding", "identity")
	if q.contentType != "" {
		req.Header.Set("Content-Type", q.contentType)
	}
	if q.ranged {
		spec := "bytes=" + strconv.FormatInt(q.from, 10) + "-"
		if q.to > 0 {
			spec += strconv.FormatInt(q.to-1, 10)
		}
		req.Header.Set("Range", spec)
	}
	if q.authorization != "" && sameOrigin(at, h.base) {
		req.Header.Set("Authorization", q.authorization)
	}
	resp, err := h.client.Do(req)
	if err != nil {
		return nil, unreachable(ctx, err)
	}
	return resp, nil
}

// unreachable strips the URL, which may hold a signature, from a client's
// error.
func unreachable(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, errStalled) && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	} else if cause != nil {
		err = cause
	}
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	return fmt.Errorf("%w: %w", errUnreachable, err)
}

// errNoHash is a file that the Hub gives no hash for: it cannot be kept.
var errNoHash = errors.New("the file has no hash to keep it under")

// head asks what a file is. A file that is not there is a record without ETag.
func (h *hub) head(ctx context.Context, t target, authorization string) (fileRecord, error) {
	q := question{method: http.MethodHead, path: t.path() + asQuery(t.query), authorization: authorization}
	resp, said, err := h.do(ctx, q, false)
	if err != nil {
		return fileRecord{}, err
	}
	_ = resp.Body.Close()
	rec := fileRecord{File: t.file, Commit: said.Get("X-Repo-Commit")}
	switch {
	case resp.StatusCode == http.StatusNotFound && said.Get("X-Error-Code") == "EntryNotFound" && isCommit(rec.Commit):
		rec.Code, rec.Message = "EntryNotFound", said.Get("X-Error-Message")
		return rec, nil
	case resp.StatusCode >= 400:
		return rec, refuse(resp)
	case resp.StatusCode != http.StatusOK && resp.StatusCode/100 != 3:
		return rec, fmt.Errorf("%w: status %d", errOdd, resp.StatusCode)
	}
	rec.ETag, rec.Size = normalETag(said.Get("X-Linked-Etag")), parseSize(said.Get("X-Linked-Size"))
	rec.Linked = rec.ETag != ""
	direct := resp.StatusCode == http.StatusOK
	if !rec.Linked {
		rec.ETag = normalETag(said.Get("Etag"))
	}
	if direct {
		rec.Type, rec.Name = said.Get("Content-Type"), said.Get("Content-Disposition")
		if rec.Size < 0 {
			rec.Size = resp.ContentLength
		}
	}
	if !isCommit(rec.Commit) || isCommit(t.revision) && rec.Commit != t.revision {
		return rec, fmt.Errorf("%w: X-Repo-Commit is %.60q", errOdd, rec.Commit)
	}
	if !blobs.IsHash(rec.ETag) || rec.Size < 0 {
		return rec, errNoHash
	}
	if rec.Size > xetOnly {
		rec.Xet = h.xet(said)
	}
	return rec, nil
}

// xet keeps what leads to Xet, with the Hub's origin taken out of it.
func (h *hub) xet(said http.Header) map[string]string {
	out := map[string]string{}
	for k := range said {
		if isXet(k) && !strings.EqualFold(k, "X-Xet-Refresh-Route") {
			out[k] = said.Get(k)
		}
	}
	route := said.Get("X-Xet-Refresh-Route")
	for _, l := range parseLinks(said.Values("Link")) {
		if l.rel("xet-auth") {
			route = l.to
		}
	}
	if out["X-Xet-Refresh-Route"] = within(h.base, route); route == "" || out["X-Xet-Refresh-Route"] == "" {
		return nil
	}
	return out
}

func asQuery(raw string) string {
	if raw == "" {
		return ""
	}
	return "?" + raw
}

// open asks a source.
func (h *hub) open(ctx context.Context, q question, from source) (resp *http.Response, err error) {
	if from.at != nil {
		resp, _, err = h.walk(ctx, q, from.at, true)
		return resp, err
	}
	q.path, q.authorization = from.t.path()+asQuery(from.t.query), from.authorization
	resp, _, err = h.do(ctx, q, true)
	return resp, err
}

// refused returns what an answer without content means for a download.
func (h *hub) refused(from source, resp *http.Response) error {
	e := refuse(resp)
	switch {
	case from.at != nil && e.status < 500:
		return fmt.Errorf("%w: the storage answers %d", errStale, e.status)
	case e.status < 400 || !sameOrigin(resp.Request.URL, h.base):
		// Not the Hub refuses, but where it sends us: the next try gets
		// another address.
		return fmt.Errorf("%w: the storage answers %d", errUnreachable, e.status)
	}
	return e
}

// get asks for a file's content from a byte on, to the end or to another, and
// returns its body at exactly that byte. A server that answers with the whole
// file has the bytes before it read over.
func (h *hub) get(ctx context.Context, from source, part span, size int64) (io.ReadCloser, error) {
	q := question{method: http.MethodGet, from: part.from}
	if q.ranged = part.from > 0 || part.to < size; part.to < size {
		q.to = part.to
	}
	resp, err := h.open(ctx, q, from)
	if err != nil {
		return nil, err
	}
	start, total := int64(0), resp.ContentLength
	switch {
	case resp.StatusCode == http.StatusPartialContent:
		start, total = parseContentRange(resp.Header.Get("Content-Range"))
	case resp.StatusCode != http.StatusOK:
		return nil, h.refused(from, resp)
	}
	if enc := resp.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		err = fmt.Errorf("%w: the content comes with Content-Encoding %.40q", errOdd, enc)
	} else if start < 0 || start > part.from || total >= 0 && total != size {
		err = fmt.Errorf("%w: the content is %d bytes from %d on, and %d of %d were asked for", errOdd, total, start, size, part.from)
	} else if start < part.from {
		if _, err = io.CopyN(io.Discard, resp.Body, part.from-start); err != nil {
			err = unreachable(ctx, err)
		}
	}
	if err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	return resp.Body, nil
}

// watchdog cancels a context when it has not been fed for a while.
type watchdog struct {
	timer  *time.Timer
	every  time.Duration
	cancel context.CancelCauseFunc
}

func watch(ctx context.Context, every time.Duration) (context.Context, *watchdog) {
	ctx, cancel := context.WithCancelCause(ctx)
	return ctx, &watchdog{time.AfterFunc(every, func() { cancel(errStalled) }), every, cancel}
}

func (w *watchdog) feed() { w.timer.Reset(w.every) }

func (w *watchdog) stop() {
	w.timer.Stop()
	w.cancel(nil)
}

// source is where a blob's content may be had: a file of the Hub, asked for with
// a caller's token or without; or an address at the storage that the Hub gave
// another node, which needs no token and is good for a while.
type source struct {
	t             target
	authorization string
	at            *url.URL
}

var (
	// errNoSource is the error for a blob that is not cached and comes without
	// a source.
	errNoSource = errors.New("it is not said where the content may be had")
	// errStale is an address at the storage that is not good any more.
	errStale = errors.New("the address of the content is not good any more")
)

func (s source) none() bool { return s.at == nil && s.t.route == "" }

// maxSource is the longest source that nodes tell each other.
const maxSource = 8 << 10

// source returns the source to give to other nodes: an address at the storage,
// obtained with the caller's token, or the path of a file that everybody may
// read; "" when there is neither. The caller may read the file, or gets the
// Hub's refusal.
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

// parseSource parses the source that another node sent. Only addresses to which
// we would follow the Hub are accepted.
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
