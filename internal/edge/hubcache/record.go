package hubcache

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
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

func (s *Store) repoDir(r repo) string { return filepath.Join(s.dir, "repos", r.key()) }

func (s *Store) filePath(r repo, commit, file string) string {
	return filepath.Join(s.repoDir(r), "commits", commit, "files", digest(file)[:32])
}

func (s *Store) publicPath(r repo) string { return filepath.Join(s.repoDir(r), "public") }

func (s *Store) refPath(r repo, ref string) string {
	return filepath.Join(s.repoDir(r), "refs", digest(ref)[:32])
}

func (s *Store) answerPath(r repo, request string) string {
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
func (s *Store) put(path string, v any, limit int64) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = os.Lstat(path)
	fresh := errors.Is(err, fs.ErrNotExist)
	if fresh {
		s.mu.Lock()
		if s.records >= limit {
			s.mu.Unlock()
			return fmt.Errorf("hubcache: there are %d files of metadata already (maxRecords): %w", limit, errNoRoom)
		}
		s.records++
		s.mu.Unlock()
	}
	return writeFile(path, raw)
}

func (s *Store) file(r repo, commit, file string) (rec fileRecord, ok bool) {
	ok = readRecord(s.filePath(r, commit, file), &rec) && rec.File == file && rec.Commit == commit &&
		(rec.ETag == "" || isBlob(rec.ETag)) && rec.Size >= 0
	return rec, ok
}

func (s *Store) ref(r repo, ref string) (rec refRecord, ok bool) {
	ok = readRecord(s.refPath(r, ref), &rec) && rec.Ref == ref && isCommit(rec.Commit)
	return rec, ok
}

func (s *Store) public(r repo) (rec publicRecord, ok bool) {
	ok = readRecord(s.publicPath(r), &rec)
	return rec, ok
}

func (s *Store) answer(r repo, request string) (rec answerRecord, ok bool) {
	ok = readRecord(s.answerPath(r, request), &rec) && rec.Request == request
	return rec, ok
}

// forget drops what is known of a file, for the Hub said something wrong.
func (s *Store) forget(r repo, commit, file string) {
	if os.Remove(s.filePath(r, commit, file)) == nil {
		s.mu.Lock()
		s.records--
		s.mu.Unlock()
	}
}

// commits are those known of a repository, or the one a revision is at.
func (s *Store) commits(r repo, revision string) ([]string, error) {
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
func (s *Store) eachFile(r repo, commit string, visit func(fileRecord)) error {
	dir := filepath.Join(s.repoDir(r), "commits", commit, "files")
	list, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("hubcache: %w", err)
	}
	for _, e := range list {
		var rec fileRecord
		if !strings.HasPrefix(e.Name(), ".") && readRecord(filepath.Join(dir, e.Name()), &rec) && isBlob(rec.ETag) {
			visit(rec)
		}
	}
	return nil
}

// countRecords counts the files of metadata.
func (s *Store) countRecords() (n int64, err error) {
	err = filepath.WalkDir(filepath.Join(s.dir, "repos"), func(_ string, e fs.DirEntry, err error) error {
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
