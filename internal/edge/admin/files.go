package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// Files stores the model files that the server cannot read where they are.
type Files interface {
	HasUpload(u artifact.Upload) bool
	PutUpload(ctx context.Context, u artifact.Upload, r io.Reader) (uri string, err error)
}

// readable reports whether the server itself can read a path the client names,
// so that a local model needs no copy.
func readable(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Query().Get("path")
	if !filepath.IsAbs(path) {
		fail(w, http.StatusBadRequest, "path %q is not absolute", path)
		return
	}
	f, err := os.Open(path)
	if err != nil {
		fail(w, http.StatusNotFound, "%s", err)
		return
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		fail(w, http.StatusNotFound, "%s", err)
		return
	}
	// The size tells a path of the same name on two machines apart.
	answer(w, map[string]any{"size": info.Size(), "dir": info.IsDir()})
}

func uploadOf(r *http.Request, size int64) artifact.Upload {
	return artifact.Upload{SHA256: r.PathValue("sha256"), Name: r.PathValue("name"), Size: size}
}

// uploads answers the paths of uploads.
type uploads struct{ files Files }

func (u uploads) has(w http.ResponseWriter, r *http.Request) {
	if u.files == nil {
		fail(w, http.StatusNotImplemented, "this server takes no uploads")
		return
	}
	file := uploadOf(r, 0)
	if !u.files.HasUpload(file) {
		fail(w, http.StatusNotFound, "not uploaded")
		return
	}
	answer(w, map[string]string{"uri": file.URI()})
}

func (u uploads) put(w http.ResponseWriter, r *http.Request) {
	if u.files == nil {
		fail(w, http.StatusNotImplemented, "this server takes no uploads")
		return
	}
	if r.ContentLength < 0 {
		fail(w, http.StatusLengthRequired, "an upload needs a Content-Length")
		return
	}
	uri, err := u.files.PutUpload(r.Context(), uploadOf(r, r.ContentLength), r.Body)
	if err != nil {
		failError(w, err)
		return
	}
	answer(w, map[string]string{"uri": uri})
}

// logs streams the output of a service's replicas: the one named, else the
// newest.
func (s *Server) logs(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	id := q.Get("replica")
	if id == "" {
		st, err := s.cfg.Fleet.Get(r.Context(), key(r))
		if err != nil {
			failError(w, err)
			return
		}
		if len(st.Replicas) == 0 {
			id = st.LastReplica
		} else {
			id = st.Replicas[len(st.Replicas)-1].ID
		}
		if id == "" {
			fail(w, http.StatusNotFound, "%s has had no replica yet: %s", key(r), unstarted(st.Status))
			return
		}
	}
	tail, err := strconv.Atoi(orZero(q.Get("tail")))
	if err != nil || tail < 0 {
		fail(w, http.StatusBadRequest, "tail %q is not a number of lines", q.Get("tail"))
		return
	}
	out, err := s.cfg.Fleet.Logs(r.Context(), id, fleet.LogOptions{Follow: q.Has("follow"), Tail: tail, Previous: q.Has("previous")})
	if errors.Is(err, fs.ErrNotExist) {
		fail(w, http.StatusNotFound, "replica %q has no logs: `roundhouse describe %s` lists the replicas", id, key(r))
		return
	}
	if err != nil {
		failError(w, fmt.Errorf("logs of %s: %w", id, err))
		return
	}
	defer func() { _ = out.Close() }()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Roundhouse-Replica", id)
	_, _ = io.Copy(flushing{w, http.NewResponseController(w)}, out)
}

// unstarted is why a service has had no replica: it cannot run, or had no request
// yet.
func unstarted(st service.Status) string {
	for _, c := range st.Conditions {
		if c.Type == service.ConditionReady && c.Status != "True" && c.Message != "" {
			return c.Message
		}
	}
	return "it starts at the first request"
}

func orZero(s string) string {
	if s == "" {
		return "0"
	}
	return s
}

// flushing flushes after each write, for logs that are followed.
type flushing struct {
	io.Writer
	rc *http.ResponseController
}

func (f flushing) Write(p []byte) (int, error) {
	n, err := f.Writer.Write(p)
	if err == nil {
		err = f.rc.Flush()
	}
	return n, err
}
