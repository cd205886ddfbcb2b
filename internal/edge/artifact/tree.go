package artifact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/safetensors"
)

// Tree is a model where it is, local or remote: its files can be read in part
// without being fetched.
type Tree struct {
	requests *requester
	limits   limits
	src      source // nil when local
	local    localTree
	files    []File
	remote   map[string]remoteFile
}

// File is a file of a [Tree].
type File struct {
	// Name is slash-separated, below the tree's top.
	Name string
	// Size is in bytes.
	Size int64
	// Path is where the file is on this machine; empty when it is remote.
	Path string
	// Ranges reports whether the source can send parts of the file.
	Ranges bool
}

type remoteFile struct {
	loc location
	object
}

// Tree looks up the files of a model. What is here already is read here. Over
// http and https, which list nothing, a URI that names no file with an
// extension stands for the safetensors files below it.
func (s *Store) Tree(ctx context.Context, req Request) (*Tree, error) {
	loc, err := parse(req)
	if err != nil {
		return nil, err
	}
	if at, ok := s.Lookup(req); ok || loc.scheme == "file" || loc.scheme == "upload" {
		if !ok {
			if at, err = s.Fetch(ctx, req, nil); err != nil {
				return nil, err
			}
		}
		return localFiles(ctx, s.requests, at)
	}
	t := &Tree{requests: s.requests, limits: s.limits(), remote: map[string]remoteFile{}}
	if t.src, err = s.source(loc); err != nil {
		return nil, err
	}
	if web, ok := t.src.(*httpSource); ok {
		return t, t.webFiles(ctx, loc, web)
	}
	l, err := t.src.list(ctx, loc, nil)
	if err != nil {
		return nil, err
	}
	if err := t.limits.check(loc, l.objects); err != nil {
		return nil, err
	}
	for _, o := range l.objects {
		if o.layer != "" {
			return nil, fmt.Errorf("%s: its files are in archives: `roundhouse pull` fetches them first", loc)
		}
		t.add(loc, o, true)
	}
	return t, nil
}

func (t *Tree) add(loc location, o object, ranges bool) {
	t.remote[o.Name] = remoteFile{loc, o}
	t.files = append(t.files, File{Name: o.Name, Size: o.Size, Ranges: ranges})
}

func localFiles(ctx context.Context, r *requester, at string) (*Tree, error) {
	info, err := os.Stat(at)
	if err != nil {
		return nil, err
	}
	dir, files := at, []treeFile(nil)
	if info.IsDir() {
		if files, err = walkTree(ctx, at); err != nil {
			return nil, err
		}
	} else {
		var name string
		dir, name = filepath.Split(at)
		files = []treeFile{{name, info.Size()}}
	}
	t := &Tree{requests: r, local: localTree(dir)}
	for _, f := range files {
		t.files = append(t.files, File{Name: f.name, Size: f.size, Ranges: true, Path: filepath.Join(dir, filepath.FromSlash(f.name))})
	}
	return t, nil
}

// webFiles asks for the file a URI names, or for the model's files below it.
func (t *Tree) webFiles(ctx context.Context, loc location, web *httpSource) error {
	if strings.Contains(loc.fileName(), ".") {
		_, err := t.webFile(ctx, loc, loc.fileName(), web)
		return err
	}
	index := loc.below(safetensors.IndexName)
	raw, err := web.small(ctx, index, safetensors.MaxIndex)
	if err != nil {
		return err
	}
	names := []string{"model.safetensors"}
	if raw != nil {
		x, err := safetensors.ParseIndex(raw)
		if err != nil {
			return fmt.Errorf("%s: %w", index, err)
		}
		if len(x.Files) > t.limits.files {
			return fmt.Errorf("%s: more than %d files (maxFiles)", index, t.limits.files)
		}
		names = append(x.Files, safetensors.IndexName)
	}
	for _, name := range names {
		if _, err := t.webFile(ctx, loc.below(name), name, web); err != nil {
			return err
		}
	}
	return nil
}

// webFile learns a file's size and version from an answer with one byte of it.
func (t *Tree) webFile(ctx context.Context, loc location, name string, web *httpSource) (object, error) {
	o := object{Name: name, Size: -1}
	ranges := false
	err := t.requests.retry(ctx, func() error {
		ctx, w := watch(ctx, t.requests.stall)
		defer w.stop()
		req, err := web.request(ctx, loc, object{to: 1}, 0)
		if err != nil {
			return err
		}
		req.Header.Set("Accept-Encoding", "identity")
		resp, err := t.requests.send(req, loc.String(), webHints)
		if err != nil {
			return err
		}
		o.Size, o.Validator = resp.ContentLength, responseValidator(resp.Header)
		if ranges = resp.StatusCode != http.StatusOK; ranges {
			_, o.Size = parseContentRange(resp.Header.Get("Content-Range"))
		}
		return resp.Body.Close()
	}, func() bool { return false })
	if err == nil && o.Size < 0 {
		err = fmt.Errorf("%s: the server does not say how long the file is", loc)
	}
	if err == nil {
		err = t.limits.check(loc, []object{o})
	}
	if err == nil {
		t.add(loc, o, ranges)
	}
	return o, err
}

// below is the location of a file in the folder that l names.
func (l location) below(name string) location {
	u := *l.url
	u.Path = strings.TrimSuffix(u.Path, "/") + "/" + name
	u.RawPath = ""
	l.url = &u
	return l
}

// Files lists the tree's files. The slice belongs to the tree.
func (t *Tree) Files() []File { return t.files }

// Open reads a file's bytes from one offset up to another, once and without
// retries. A source that cannot send parts is read from its beginning, and what
// comes before from is passed over. The caller closes what it gets.
func (t *Tree) Open(ctx context.Context, name string, from, to int64) (io.ReadCloser, error) {
	if t.src == nil {
		f, err := t.local.open(ctx, name, from)
		if err != nil {
			return nil, err
		}
		return limited{io.LimitReader(f, to-from), f}, nil
	}
	r, ok := t.remote[name]
	if !ok || from < 0 || to <= from || to > r.Size {
		return nil, fmt.Errorf("bytes %d to %d of %q: no such part of the model", from, to, name)
	}
	o := r.object
	o.to = to
	ctx, w := watch(ctx, t.requests.stall)
	body, err := t.send(ctx, r.loc, o, from)
	if err != nil {
		w.stop()
		return nil, err
	}
	watched := &watchedBody{ReadCloser: body, w: w}
	return limited{io.LimitReader(watched, to-from), watched}, nil
}

func (t *Tree) send(ctx context.Context, loc location, o object, from int64) (io.ReadCloser, error) {
	req, err := t.src.request(ctx, loc, o, from)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := t.requests.send(req, loc.String(), sourceHints(t.src))
	if err != nil {
		return nil, err
	}
	// Other sources are asked for one version and answer with no other.
	_, web := t.src.(*httpSource)
	if err = o.continues(resp, from, web); err == nil && resp.StatusCode == http.StatusOK {
		_, err = io.CopyN(io.Discard, resp.Body, from)
	}
	if err != nil {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%s: %s: %w", loc, o.Name, err)
	}
	return resp.Body, nil
}

// continues checks that an answer has the bytes that were asked for, and
// where the answer's own version counts, of the one that was listed.
func (o object) continues(resp *http.Response, from int64, versioned bool) error {
	if got := responseValidator(resp.Header); versioned && got != "" && o.Validator != "" && got != o.Validator {
		return errChanged
	}
	start, total := parseContentRange(resp.Header.Get("Content-Range"))
	switch resp.StatusCode {
	case http.StatusOK:
		if resp.ContentLength >= 0 && resp.ContentLength != o.Size {
			return errChanged
		}
		return nil
	case http.StatusPartialContent:
		if start != from || total >= 0 && total != o.Size {
			return errChanged
		}
		return nil
	}
	return errChanged
}

type limited struct {
	io.Reader
	io.Closer
}

// ReadAt fills p with a file's bytes from an offset on. What breaks off is
// tried again from where it broke.
func (t *Tree) ReadAt(ctx context.Context, name string, p []byte, from int64) error {
	done, best := 0, 0
	return t.requests.retry(ctx, func() error {
		r, err := t.Open(ctx, name, from+int64(done), from+int64(len(p)))
		if err != nil {
			return err
		}
		defer func() { _ = r.Close() }()
		n, err := io.ReadFull(r, p[done:])
		done += n
		if err == nil || ctx.Err() != nil {
			return err
		}
		if t.src == nil || errors.Is(err, errChanged) {
			return fmt.Errorf("%s ends at byte %d: %w", name, from+int64(done), err)
		}
		return fmt.Errorf("%s: byte %d: %w: %w", name, from+int64(done), errUnreachable, err)
	}, func() bool {
		further := done >= best+minProgress
		best = max(best, done)
		return further
	})
}
