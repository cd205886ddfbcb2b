package hubcache

import (
	"context"
	"errors"
	"net/http"
	"path"
	"strconv"
	"time"
)

// resolve answers a request for a file.
func (c *Cache) resolve(w http.ResponseWriter, r *http.Request, t target) {
	authorization := r.Header.Get("Authorization")
	rec, result, err := c.lookup(r.Context(), t, authorization)
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(c.cfg.ClientTimeout)) // the Hub has taken its time
	if errors.Is(err, errNoHash) {
		c.metrics.requests.WithLabelValues("resolve", "upstream").Inc()
		c.passFile(w, r, t)
		return
	}
	if err != nil {
		c.refuse(w, r, "resolve", err)
		return
	}
	c.metrics.requests.WithLabelValues("resolve", result).Inc()
	c.describe(w, t, rec)
	switch {
	case rec.ETag == "":
		http.Error(w, rec.Message, http.StatusNotFound)
	case matches(r.Header.Get("If-None-Match"), rec.ETag):
		w.WriteHeader(http.StatusNotModified)
	case r.Method == http.MethodHead:
		w.Header().Set("Content-Length", strconv.FormatInt(rec.Size, 10))
		w.WriteHeader(http.StatusOK)
	default:
		t.revision = rec.Commit
		c.content(w, r, t, rec)
	}
}

func matches(header, etag string) bool { return header != "" && normalETag(header) == etag }

// describe sets the headers that clients read of a file.
func (c *Cache) describe(w http.ResponseWriter, t target, rec fileRecord) {
	h := w.Header()
	h.Set("X-Repo-Commit", rec.Commit)
	if rec.ETag == "" {
		h.Set("X-Error-Code", rec.Code)
		h.Set("X-Error-Message", rec.Message)
		return
	}
	h.Set("Etag", `"`+rec.ETag+`"`)
	h.Set("Accept-Ranges", "bytes")
	h.Set("Content-Type", "application/octet-stream")
	if rec.Type != "" {
		h.Set("Content-Type", rec.Type)
	}
	if rec.Name != "" {
		h.Set("Content-Disposition", rec.Name)
	} else {
		h.Set("Content-Disposition", `inline; filename*=UTF-8''`+escape(path.Base(t.file)))
	}
	if rec.Linked {
		h.Set("X-Linked-Etag", `"`+rec.ETag+`"`)
		h.Set("X-Linked-Size", strconv.FormatInt(rec.Size, 10))
	}
	for k, v := range rec.Xet {
		if k == "X-Xet-Refresh-Route" {
			v = c.base.String() + v // clients put their own endpoint in its place
		}
		h.Set(k, v)
	}
}

// lookup finds out what a file is, if the caller may know. result is where the
// record came from: "cache", "upstream", or "stale" when the Hub could not be
// asked.
func (c *Cache) lookup(ctx context.Context, t target, authorization string) (rec fileRecord, result string, err error) {
	now := time.Now()
	who := c.grants.caller(authorization)
	commit, fresh := t.revision, true
	if !isCommit(commit) {
		ref, ok := c.store.records.ref(t.repo, t.revision)
		commit, fresh = ref.Commit, ok && now.Sub(ref.At) < c.cfg.RefLife
	}
	known := false
	if commit != "" {
		rec, known = c.store.records.file(t.repo, commit, t.file)
	}
	allowed := c.grants.allowed(grantKey{who, t.repo, t.revision, mayRead}, now)
	if known && fresh && allowed && !c.cfg.Offline {
		return rec, "cache", nil
	}
	if c.cfg.Offline {
		if !known || !c.cfg.OfflinePrivate && !c.isPublic(t.repo) {
			return rec, "", errNotHere
		}
		return rec, "cache", nil
	}
	asked, err := c.ask(ctx, t, who, authorization)
	if err == nil {
		return asked, "upstream", nil
	}
	if known && errors.Is(err, errUnreachable) && (allowed || c.isPublic(t.repo)) {
		return rec, "stale", nil
	}
	return rec, "", err
}

func (c *Cache) isPublic(r repo) bool {
	rec, ok := c.store.records.public(r)
	return ok && rec.Public
}

// ask asks the Hub what a file is, and notes what that says of the branch, and
// of who may read.
func (c *Cache) ask(ctx context.Context, t target, who caller, authorization string) (fileRecord, error) {
	key := "head\x00" + string(who[:]) + t.path() + asQuery(t.query)
	return once(ctx, c, key, func(ctx context.Context) (fileRecord, error) {
		rec, err := c.hub.head(ctx, t, authorization)
		now := time.Now()
		var e *refusal
		switch {
		case errors.As(err, &e) && e.denied():
			c.denied(t.repo, who)
		case err == nil && rec.ETag != "":
			c.granted(t, who, rec.Commit, mayRead, now)
		}
		if err != nil {
			if !errors.Is(err, errNoHash) {
				c.failed(t, err)
			}
			return rec, err
		}
		if !isCommit(t.revision) {
			c.put(c.store.records.refPath(t.repo, t.revision), refRecord{t.revision, rec.Commit, now})
		}
		c.put(c.store.records.filePath(t.repo, rec.Commit, t.file), rec)
		return rec, nil
	})
}

// granted notes that the Hub has just answered a caller. What everybody may
// read is written down: it is read on when the Hub cannot be asked.
func (c *Cache) granted(t target, who caller, commit string, what right, now time.Time) {
	for _, revision := range []string{t.revision, commit} {
		if revision != "" {
			c.grants.allow(grantKey{who, t.repo, revision, what}, now)
		}
	}
	if what != mayRead {
		return
	}
	rec, ok := c.store.records.public(t.repo)
	if who == anonymous && (!ok || !rec.Public) {
		c.put(c.store.records.publicPath(t.repo), publicRecord{true, now})
	} else if who != anonymous && (!ok || now.Sub(rec.At) > publicLife) {
		c.tasks.start(func(ctx context.Context) { c.tryPublic(ctx, t) })
	}
}

// publicLife is how often it is asked anew whether a repository is public that
// only callers with tokens ask for.
const publicLife = 24 * time.Hour

// tryPublic asks for a file without a token.
func (c *Cache) tryPublic(ctx context.Context, t target) {
	_, _ = once(ctx, c, "public\x00"+t.repo.key(), func(ctx context.Context) (struct{}, error) {
		rec, err := c.hub.head(ctx, t, "")
		var e *refusal
		switch {
		case err == nil && rec.ETag != "":
			c.put(c.store.records.publicPath(t.repo), publicRecord{true, time.Now()})
		case errors.As(err, &e) && e.denied():
			c.put(c.store.records.publicPath(t.repo), publicRecord{false, time.Now()})
		}
		return struct{}{}, nil
	})
}

// denied takes back what a caller was allowed; what nobody in particular may
// read is public no more.
func (c *Cache) denied(r repo, who caller) {
	c.grants.revoke(who, r)
	if who == anonymous && c.isPublic(r) {
		c.put(c.store.records.publicPath(r), publicRecord{false, time.Now()})
	}
}
