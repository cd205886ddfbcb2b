package artifact

import (
	"bytes"
	"context"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// origin is a file server with faults.
type origin struct {
	*httptest.Server

	mu       sync.Mutex
	content  []byte
	tag      string // ETag, or empty for none
	cutAfter int    // bytes of a body before the connection breaks; 0 never
	cuts     int    // how many bodies are cut
	noRange  bool   // answer 200 to every range
	status   int    // answer this instead of anything else
	header   http.Header
	requests []*http.Request
	hold     chan struct{} // bodies wait for it after the first byte
	mute     chan struct{} // no answer before it is closed
	gone     chan struct{} // gets a value when a client leaves a held body
}

func newOrigin(t *testing.T, content []byte) *origin {
	o := &origin{content: content, tag: `"v1"`, gone: make(chan struct{}, 100)}
	o.Server = httptest.NewServer(o)
	t.Cleanup(o.Close)
	return o
}

func (o *origin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	o.requests = append(o.requests, r.Clone(context.Background()))
	content, tag, status, hold, mute := o.content, o.tag, o.status, o.hold, o.mute
	cut := 0
	if o.cuts > 0 {
		o.cuts--
		cut = o.cutAfter
	}
	for k, v := range o.header {
		w.Header()[k] = v
	}
	if o.noRange {
		r.Header.Del("Range")
	}
	o.mu.Unlock()
	if mute != nil {
		<-mute
	}
	if status != 0 {
		http.Error(w, "no", status)
		return
	}
	if tag != "" {
		w.Header().Set("ETag", tag)
	}
	if cut > 0 {
		w = &cutter{ResponseWriter: w, left: cut}
	}
	if hold != nil {
		w = &holder{ResponseWriter: w, hold: hold, gone: r.Context().Done(), left: o.gone}
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}

func (o *origin) set(edit func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	edit()
}

func (o *origin) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.requests)
}

func (o *origin) last() *http.Request {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.requests[len(o.requests)-1]
}

type cutter struct {
	http.ResponseWriter
	left int
}

func (c *cutter) Write(p []byte) (int, error) {
	if len(p) < c.left {
		c.left -= len(p)
		return c.ResponseWriter.Write(p)
	}
	_, _ = c.ResponseWriter.Write(p[:c.left])
	_ = http.NewResponseController(c.ResponseWriter).Flush()
	panic(http.ErrAbortHandler)
}

type holder struct {
	http.ResponseWriter
	hold <-chan struct{}
	gone <-chan struct{}
	left chan<- struct{}
	done bool
}

func (h *holder) Write(p []byte) (int, error) {
	if !h.done && len(p) > 0 {
		h.done = true
		if _, err := h.ResponseWriter.Write(p[:1]); err != nil {
			return 0, err
		}
		_ = http.NewResponseController(h.ResponseWriter).Flush()
		select {
		case <-h.hold:
		case <-h.gone:
			h.left <- struct{}{}
			return 1, fs.ErrClosed
		}
		n, err := h.ResponseWriter.Write(p[1:])
		return n + 1, err
	}
	return h.ResponseWriter.Write(p)
}

// newFiles serves a folder.
func newFiles(t *testing.T, dir string) string {
	srv := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(srv.Close)
	return srv.URL
}
