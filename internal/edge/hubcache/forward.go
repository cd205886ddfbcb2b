package hubcache

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// hopByHop are the headers of one connection (RFC 9110, 7.6.1).
var hopByHop = []string{"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade"}

// pass forwards any other request to the Hub and returns its answer. The client
// follows redirects itself, so that its token goes only where the client sends
// it.
func (c *Cache) pass(w http.ResponseWriter, r *http.Request) {
	if c.cfg.Offline {
		c.refuse(w, r, "pass", errNotHere)
		return
	}
	at := &url.URL{Scheme: c.base.Scheme, Host: c.base.Host, Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery}
	ctx, dog := watch(r.Context(), c.cfg.StallTimeout)
	defer dog.stop()
	body := io.NopCloser(&fedReader{http.MaxBytesReader(w, r.Body, c.cfg.MaxRequestBody), dog})
	req, err := http.NewRequestWithContext(ctx, r.Method, at.String(), body)
	if err != nil {
		c.refuse(w, r, "pass", errPath)
		return
	}
	req.ContentLength = r.ContentLength
	if r.ContentLength == 0 {
		req.Body = http.NoBody
	}
	copyHeader(req.Header, r.Header)
	resp, err := c.hub.client.Do(req)
	if err != nil {
		c.refuse(w, r, "pass", unreachable(ctx, err))
		return
	}
	defer func() { _ = resp.Body.Close() }()
	c.metrics.requests.WithLabelValues("pass", "upstream").Inc()
	copyHeader(w.Header(), resp.Header)
	c.relink(w, r, resp)
	c.copyBody(w, resp, dog)
}

// fedReader resets a watchdog with each byte read.
type fedReader struct {
	r   io.Reader
	dog *watchdog
}

func (f *fedReader) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	f.dog.feed()
	return n, err
}

// relink rewrites links to the Hub into links to this cache.
func (c *Cache) relink(w http.ResponseWriter, r *http.Request, resp *http.Response) {
	w.Header().Del("Link")
	if next := nextPage(c.base, resp.Header); next != "" {
		w.Header().Set("Link", "<"+c.origin(r)+next+`>; rel="next"`)
	}
	if to, err := resp.Request.URL.Parse(resp.Header.Get("Location")); err == nil && resp.Header.Get("Location") != "" && sameOrigin(to, c.base) {
		w.Header().Set("Location", c.origin(r)+to.RequestURI())
	}
}

func copyHeader(to, from http.Header) {
	for k, v := range from {
		to[k] = v
	}
	for _, named := range from.Values("Connection") {
		for _, k := range strings.Split(named, ",") {
			to.Del(strings.TrimSpace(k))
		}
	}
	for _, k := range hopByHop {
		to.Del(k)
	}
}

// copyBody forwards an answer's status and body.
func (c *Cache) copyBody(w http.ResponseWriter, resp *http.Response, dog *watchdog) {
	w.WriteHeader(resp.StatusCode)
	control := http.NewResponseController(w)
	buf := make([]byte, 32<<10)
	for {
		n, err := resp.Body.Read(buf)
		dog.feed()
		if n > 0 {
			_ = control.SetWriteDeadline(time.Now().Add(c.cfg.ClientTimeout)) // a test's writer has none
			if _, err := w.Write(buf[:n]); err != nil {
				return
			}
			_ = control.Flush() // what the Hub sends bit by bit is wanted so
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}

// passFile forwards a file that has no hash, which cannot be stored: it follows
// the Hub's redirects and removes headers that lead to Xet.
func (c *Cache) passFile(w http.ResponseWriter, r *http.Request, t target) {
	ctx, dog := watch(r.Context(), c.cfg.StallTimeout)
	defer dog.stop()
	q := question{method: r.Method, path: t.path() + asQuery(t.query), authorization: r.Header.Get("Authorization")}
	resp, said, err := c.hub.do(ctx, q, r.Method == http.MethodGet)
	if err != nil {
		c.refuse(w, r, "resolve", err)
		return
	}
	if resp.StatusCode >= 400 {
		c.refuse(w, r, "resolve", refuse(resp))
		return
	}
	defer func() { _ = resp.Body.Close() }()
	for _, k := range []string{"X-Repo-Commit", "X-Linked-Etag", "X-Linked-Size", "Etag"} {
		if v := said.Get(k); v != "" {
			w.Header().Set(k, v)
		}
	}
	for _, k := range []string{"Content-Type", "Content-Length"} {
		if v := resp.Header.Get(k); v != "" && resp.StatusCode == http.StatusOK {
			w.Header().Set(k, v)
		}
	}
	resp.StatusCode = http.StatusOK
	c.copyBody(w, resp, dog)
}
