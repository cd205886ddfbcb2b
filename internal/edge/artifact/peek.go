package artifact

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/safetensors"
)

// Peek reads what a model says about itself without downloading its weights:
// for folders in s3 and gs their listing, config.json, the safetensors index
// and the first bytes of a single weights file; for http and https, which list
// nothing, config.json and the index below the URI. What is here already is
// inspected in full.
func (s *Store) Peek(ctx context.Context, req Request) (Facts, error) {
	if at, ok := s.Lookup(req); ok {
		return Inspect(ctx, at)
	}
	loc, err := parse(req)
	if err != nil {
		return Facts{}, err
	}
	if loc.scheme == "file" || loc.scheme == "upload" {
		at, err := s.Fetch(ctx, req, nil)
		if err != nil {
			return Facts{}, err
		}
		return Inspect(ctx, at)
	}
	src, err := s.source(loc)
	if err != nil {
		return Facts{}, err
	}
	ctx = loc.trusting(named(ctx, src))
	if web, ok := src.(*httpSource); ok {
		return peekWeb(ctx, loc, web)
	}
	l, err := src.list(ctx, loc, nil)
	if err != nil {
		return Facts{}, loc.whose(err)
	}
	if err := s.limits().check(loc, l.objects); err != nil {
		return Facts{}, err
	}
	if slices.ContainsFunc(l.objects, func(o object) bool { return o.layer != "" }) {
		return inspect(ctx, memoryTree{}, nil) // its files are in archives
	}
	t := &remoteTree{requests: s.requests, loc: loc, src: src, objects: map[string]object{}}
	var files []treeFile
	for _, o := range l.objects {
		t.objects[o.Name] = o
		files = append(files, treeFile{o.Name, o.Size})
	}
	return inspect(ctx, t, files)
}

// remoteTree reads the first bytes of listed objects.
type remoteTree struct {
	requests *requester
	loc      location
	src      source
	objects  map[string]object
}

func (t *remoteTree) local() bool { return false }

func (t *remoteTree) open(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
	o, ok := t.objects[name]
	if !ok {
		return nil, fmt.Errorf("%s is not listed", name)
	}
	if offset < 0 {
		offset = max(0, o.Size+offset)
	}
	ctx, w := watch(ctx, t.requests.stall)
	req, err := t.src.request(ctx, t.loc, o, offset)
	if err != nil {
		w.stop()
		return nil, err
	}
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := t.requests.send(req, t.loc.String(), sourceHints(t.src)) //nolint:bodyclose // the caller closes it, as watchedBody
	if err != nil {
		w.stop()
		return nil, err
	}
	return &watchedBody{ReadCloser: resp.Body, w: w}, nil
}

// watchedBody has its watchdog look on while it reads, and rest between reads:
// a reader may have other things to wait for.
type watchedBody struct {
	io.ReadCloser
	w *watchdog
}

func (b *watchedBody) Read(p []byte) (int, error) {
	b.w.feed()
	defer b.w.timer.Stop()
	return b.ReadCloser.Read(p)
}

func (b *watchedBody) Close() error {
	b.w.stop()
	return b.ReadCloser.Close()
}

// webFiles are what peekWeb asks for.
var webFiles = []struct {
	name  string
	limit int64
}{{"config.json", maxConfig}, {safetensors.IndexName, safetensors.MaxIndex}}

// peekWeb asks for the describing files below a URI that names a folder. A URI
// that names a file with an extension is not looked into.
func peekWeb(ctx context.Context, loc location, web *httpSource) (Facts, error) {
	if name := loc.fileName(); strings.Contains(name, ".") {
		return inspect(ctx, memoryTree{}, nil)
	}
	t := memoryTree{}
	var files []treeFile
	for _, f := range webFiles {
		at := loc
		u := *loc.url
		u.Path = strings.TrimSuffix(u.Path, "/") + "/" + f.name
		u.RawPath = ""
		at.url = &u
		raw, err := web.small(ctx, at, f.limit)
		if err != nil {
			return Facts{}, err
		}
		if raw != nil {
			t[f.name] = raw
			files = append(files, treeFile{f.name, int64(len(raw))})
		}
	}
	facts, err := inspect(ctx, t, files)
	facts.Bytes, facts.Files = 0, 0 // unknown: only two files were looked at
	return facts, err
}

// small returns a small file, or nil when the server says it is not there.
func (h *httpSource) small(ctx context.Context, at location, limit int64) ([]byte, error) {
	body, _, err := h.requests.fetchSmall(ctx, at.String(), webHints, limit, func(ctx context.Context) (*http.Request, error) {
		return h.request(ctx, at, object{}, 0)
	})
	var answer *answerError
	if errors.As(err, &answer) && (answer.status == http.StatusNotFound || answer.status == http.StatusGone) {
		return nil, nil
	}
	return body, err
}

// memoryTree is a tree of files already read, by name.
type memoryTree map[string][]byte

func (t memoryTree) local() bool { return false }

func (t memoryTree) open(_ context.Context, name string, offset int64) (io.ReadCloser, error) {
	b, ok := t[name]
	if !ok {
		return nil, fmt.Errorf("%s was not fetched", name)
	}
	if offset < 0 {
		offset = max(0, int64(len(b))+offset)
	}
	return io.NopCloser(bytes.NewReader(b[min(offset, int64(len(b))):])), nil
}
