package hubcache

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxQuestion is the longest body of a question about paths that is kept
// under.
const maxQuestion = 1 << 20

// api answers a request for a repository's metadata: its description, its
// files, its branches.
func (c *Cache) api(w http.ResponseWriter, r *http.Request, t target) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(c.cfg.ClientTimeout)) // a test's writer has none
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxQuestion))
	_ = control.SetReadDeadline(time.Time{})
	if err != nil {
		http.Error(w, fmt.Sprintf("the body is longer than %d bytes, or broke off", maxQuestion), http.StatusRequestEntityTooLarge)
		return
	}
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	q := question{method: method, path: t.path() + asQuery(t.query), authorization: r.Header.Get("Authorization"),
		body: body, contentType: r.Header.Get("Content-Type")}
	rec, result, err := c.answer(r.Context(), t, q)
	_ = control.SetWriteDeadline(time.Now().Add(c.cfg.ClientTimeout)) // the Hub has taken its time
	if err != nil {
		c.refuse(w, r, "api", err)
		return
	}
	c.metrics.requests.WithLabelValues("api", result).Inc()
	h := w.Header()
	h.Set("Content-Type", rec.Type)
	h.Set("Content-Length", strconv.Itoa(len(rec.Body)))
	if rec.Commit != "" {
		h.Set("X-Repo-Commit", rec.Commit)
	}
	if rec.Next != "" {
		h.Set("Link", "<"+c.origin(r)+rec.Next+`>; rel="next"`)
	}
	w.WriteHeader(http.StatusOK)
	if r.Method != http.MethodHead {
		_, _ = w.Write(rec.Body)
	}
}

// origin is where the client reaches us.
func (c *Cache) origin(r *http.Request) string {
	if c.public != "" {
		return c.public
	}
	if r.TLS != nil {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

// right is what an answer shows: of a gated repository the Hub may show
// everybody that it exists, but not its files.
func (t target) right() right {
	if t.route == "paths-info" {
		return "tree"
	}
	return right(t.route)
}

// answer finds an answer that the caller may see.
func (c *Cache) answer(ctx context.Context, t target, q question) (rec answerRecord, result string, err error) {
	now := time.Now()
	who := c.grants.caller(q.authorization)
	request := q.method + " " + q.path
	if len(q.body) > 0 {
		request += " " + digest(q.contentType, string(q.body))
	}
	rec, known := c.store.records.answer(t.repo, request)
	allowed := c.grants.allowed(grantKey{who, t.repo, t.revision, t.right()}, now)
	if c.cfg.Offline {
		if !known || !c.cfg.OfflinePrivate && !c.isPublic(t.repo) {
			return rec, "", errNotHere
		}
		return rec, "cache", nil
	}
	if known && allowed && (isCommit(t.revision) || now.Sub(rec.At) < c.cfg.RefLife) {
		return rec, "cache", nil
	}
	asked, err := once(ctx, c, "api\x00"+string(who[:])+request, func(ctx context.Context) (answerRecord, error) {
		return c.askAPI(ctx, t, q, who, request)
	})
	if err == nil {
		return asked, "upstream", nil
	}
	if known && errors.Is(err, errUnreachable) && (allowed || c.isPublic(t.repo)) {
		return rec, "stale", nil
	}
	return rec, "", err
}

// askAPI asks the Hub and stores its answer.
func (c *Cache) askAPI(ctx context.Context, t target, q question, who caller, request string) (answerRecord, error) {
	rec, err := c.fetchAnswer(ctx, q)
	if err != nil {
		var e *refusal
		if errors.As(err, &e) && e.denied() {
			c.denied(t.repo, who)
		}
		c.failed(t, err)
		return rec, err
	}
	rec.Request, rec.At = request, time.Now()
	rec.Next = sameName(t, rec.Next)
	var about struct {
		SHA string `json:"sha"`
	}
	if t.route == "info" && t.revision != "" && json.Unmarshal(rec.Body, &about) == nil && isCommit(about.SHA) {
		rec.Commit = about.SHA
		if !isCommit(t.revision) {
			c.put(c.store.records.refPath(t.repo, t.revision), refRecord{t.revision, about.SHA, rec.At})
		}
	}
	c.granted(t, who, rec.Commit, t.right(), rec.At)
	if t.revision == "" {
		c.grants.allow(grantKey{who, t.repo, "", t.right()}, rec.At)
	}
	c.put(c.store.records.answerPath(t.repo, request), rec)
	return rec, nil
}

// sameName returns the next page's path with the name that the first page of a
// renamed repository was requested by: its records are stored under that name,
// also for use offline.
func sameName(t target, next string) string {
	path, query, _ := strings.Cut(next, "?")
	n, err := parseTarget(path, query)
	if next == "" || err != nil || n.route != t.route {
		return next
	}
	n.repo = t.repo
	return n.path() + asQuery(query)
}

func (c *Cache) fetchAnswer(ctx context.Context, q question) (rec answerRecord, err error) {
	resp, said, err := c.hub.do(ctx, q, false)
	if err != nil {
		return rec, err
	}
	if resp.StatusCode >= 400 {
		return rec, refuse(resp)
	}
	defer func() { _ = resp.Body.Close() }()
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if resp.StatusCode != http.StatusOK || kind != "application/json" {
		return rec, fmt.Errorf("%w: status %d, Content-Type %.60q where JSON was asked for", errOdd, resp.StatusCode, kind)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, c.cfg.MaxAnswer+1))
	if err != nil {
		return rec, unreachable(ctx, err)
	}
	if int64(len(body)) > c.cfg.MaxAnswer {
		return rec, fmt.Errorf("%w: it is longer than %d bytes (maxAnswer)", errOdd, c.cfg.MaxAnswer)
	}
	if !json.Valid(body) {
		return rec, fmt.Errorf("%w: it is not JSON", errOdd)
	}
	if rec.Body, err = stripXet(body); err != nil {
		return rec, fmt.Errorf("%w: %w", errOdd, err)
	}
	rec.Type, rec.Next = resp.Header.Get("Content-Type"), nextPage(c.base, said)
	if commit := said.Get("X-Repo-Commit"); isCommit(commit) {
		rec.Commit = commit
	}
	return rec, nil
}
