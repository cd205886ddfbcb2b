package hubcache

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/blobs"
)

// fileRecord is what the Hub said of one file of one commit, which never
// changes: where it is, or that there is none.
type fileRecord struct {
	File    string `json:"file"`
	Commit  string `json:"commit"`
	ETag    string `json:"etag,omitempty"` // without quotes; "" when there is no such file
	Size    int64  `json:"size"`
	Linked  bool   `json:"linked,omitempty"` // the hash was in X-Linked-Etag
	Type    string `json:"type,omitempty"`   // Content-Type
	Name    string `json:"disposition,omitempty"`
	Code    string `json:"code,omitempty"`    // X-Error-Code
	Message string `json:"message,omitempty"` // X-Error-Message
	// What leads to Xet, of files that are not to be had otherwise.
	Xet map[string]string `json:"xet,omitempty"`
}

// refRecord is where a branch or tag was.
type refRecord struct {
	Ref    string    `json:"ref"`
	Commit string    `json:"commit"`
	At     time.Time `json:"at"`
}

// publicRecord reports whether everybody could read a repository.
type publicRecord struct {
	Public bool      `json:"public"`
	At     time.Time `json:"at"`
}

// answerRecord is an answer of the API.
type answerRecord struct {
	Request string    `json:"request"` // method, path, query, and a hash of the body
	Commit  string    `json:"commit,omitempty"`
	Type    string    `json:"type"`
	Next    string    `json:"next,omitempty"` // path and query of the next page
	At      time.Time `json:"at"`
	Body    []byte    `json:"body"`
}

// records are what the Hub said of repositories: files, commits, answers, and
// whether everybody may read them. What is missing is asked for again.
type records struct {
	dir string

	mu sync.Mutex
	n  int64 // files there are; counted from the start on
}

func (s *records) repoDir(r repo) string { return filepath.Join(s.dir, r.key()) }

func (s *records) filePath(r repo, commit, file string) string {
	return filepath.Join(s.repoDir(r), "commits", commit, "files", digest(file)[:32])
}

func (s *records) publicPath(r repo) string { return filepath.Join(s.repoDir(r), "public") }

func (s *records) refPath(r repo, ref string) string {
	return filepath.Join(s.repoDir(r), "refs", digest(ref)[:32])
}

func (s *records) answerPath(r repo, request string) string {
	return filepath.Join(s.repoDir(r), "answers", digest(request)[:32])
}

func readRecord(path string, v any) bool {
	raw, err := os.ReadFile(path)
	return err == nil && json.Unmarshal(raw, v) == nil
}

func writeRecord(path string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return writeFile(path, raw)
}

// put writes a record, unless there are limit of them. What cannot be written
// is asked for again next time.
func (s *records) put(path string, v any, limit int64) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = os.Lstat(path)
	fresh := errors.Is(err, fs.ErrNotExist)
	if fresh {
		s.mu.Lock()
		if s.n >= limit {
			s.mu.Unlock()
			return fmt.Errorf("hubcache: there are %d files of metadata already (maxRecords): %w", limit, blobs.ErrNoRoom)
		}
		s.n++
		s.mu.Unlock()
	}
	return writeFile(path, raw)
}

func (s *records) file(r repo, commit, file string) (rec fileRecord, ok bool) {
	ok = readRecord(s.filePath(r, commit, file), &rec) && rec.File == file && rec.Commit == commit &&
		(rec.ETag == "" || blobs.IsHash(rec.ETag)) && rec.Size >= 0
	return rec, ok
}

func (s *records) ref(r repo, ref string) (rec refRecord, ok bool) {
	ok = readRecord(s.refPath(r, ref), &rec) && rec.Ref == ref && isCommit(rec.Commit)
	return rec, ok
}

func (s *records) public(r repo) (rec publicRecord, ok bool) {
	ok = readRecord(s.publicPath(r), &rec)
	return rec, ok
}

func (s *records) answer(r repo, request string) (rec answerRecord, ok bool) {
	ok = readRecord(s.answerPath(r, request), &rec) && rec.Request == request
	return rec, ok
}

// forget drops what is known of a file, for the Hub said something wrong.
func (s *records) forget(r repo, commit, file string) {
	if os.Remove(s.filePath(r, commit, file)) == nil {
		s.mu.Lock()
		s.n--
		s.mu.Unlock()
	}
}

// commits are those known of a repository, or the one a revision is at.
func (s *records) commits(r repo, revision string) ([]string, error) {
	if isCommit(revision) {
		return []string{revision}, nil
	}
	if revision != "" {
		if ref, ok := s.ref(r, revision); ok {
			return []string{ref.Commit}, nil
		}
		return nil, nil
	}
	list, err := os.ReadDir(filepath.Join(s.repoDir(r), "commits"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []string
	for _, e := range list {
		if isCommit(e.Name()) {
			out = append(out, e.Name())
		}
	}
	return out, err
}

// eachFile visits the files known of a commit.
func (s *records) eachFile(r repo, commit string, visit func(fileRecord)) error {
	dir := filepath.Join(s.repoDir(r), "commits", commit, "files")
	list, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("hubcache: %w", err)
	}
	for _, e := range list {
		var rec fileRecord
		if !strings.HasPrefix(e.Name(), ".") && readRecord(filepath.Join(dir, e.Name()), &rec) && blobs.IsHash(rec.ETag) {
			visit(rec)
		}
	}
	return nil
}

// count counts the files of metadata.
func (s *records) count() (n int64, err error) {
	err = filepath.WalkDir(s.dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			n++
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	return n, err
}

// sweep removes metadata that is old, of repositories that are not pinned, and
// what a crash left of a write.
func (s *records) sweep(pinned map[string]bool, now time.Time) error {
	repos, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, r := range repos {
		if pinned[r.Name()] {
			continue
		}
		err := filepath.WalkDir(filepath.Join(s.dir, r.Name()), func(path string, e os.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return nil //nolint:nilerr // removed meanwhile
			}
			info, err := e.Info()
			if err != nil {
				return nil //nolint:nilerr // likewise
			}
			age := now.Sub(info.ModTime())
			if age > forgotten || strings.HasPrefix(e.Name(), ".new-") && age > abandoned {
				_ = os.Remove(path) // the next run tries again
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// writeFile replaces a file atomically.
func writeFile(path string, data []byte) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// recount brings the number of records up to date.
func (s *records) recount() error {
	n, err := s.count()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n = n
	return err
}
