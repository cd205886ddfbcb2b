package artifact

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/blobs"
)

// Upload describes a model that a client sends, because the server cannot read
// the client's path.
type Upload struct {
	// SHA256 is the lower-case hex digest of the bytes sent.
	SHA256 string
	// Size is the number of bytes sent.
	Size int64
	// Name is the file's name. Empty means that the bytes are a tar archive of
	// a folder, as [WriteTar] makes it.
	Name string
}

// URI is the address that [Store.Fetch] reads the upload under:
// upload://<sha256>/<name>, with an empty name for a folder.
func (u Upload) URI() string { return "upload://" + u.SHA256 + "/" + u.Name }

func (u Upload) validate(maxBytes int64) error {
	if !isSHA256(u.SHA256) {
		return fmt.Errorf("upload: %q is not a sha256 in lower-case hex", u.SHA256)
	}
	if u.Name != "" && (!localName(u.Name) || strings.Contains(u.Name, "/")) {
		return fmt.Errorf("upload: %q is not a file name", u.Name)
	}
	if u.Size < 0 || u.Size > maxBytes {
		return fmt.Errorf("upload: %d bytes; at most %s are taken (maxBytes)", u.Size, formatBytes(maxBytes))
	}
	return nil
}

// uploads keep what clients send.
type uploads struct {
	folder    *folder
	retention *retention
	installer *installer
	maxBytes  int64
}

// uploadPath is where an upload lies: files of one content share a folder.
func (s *uploads) uploadPath(u Upload) string {
	dir := filepath.Join(s.folder.dir, "uploads", u.SHA256)
	if u.Name == "" {
		return filepath.Join(dir, "tree")
	}
	return filepath.Join(dir, "file", u.Name)
}

// HasUpload reports whether the content is here already, so that the client
// need not send it. A file known under another name is found too.
func (s *uploads) HasUpload(u Upload) bool {
	if u.validate(s.maxBytes) != nil {
		return false
	}
	path := s.uploadPath(u)
	if _, err := os.Stat(path); err == nil || u.Name == "" {
		return err == nil
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) == 0 {
		return false
	}
	err = os.Link(filepath.Join(filepath.Dir(path), entries[0].Name()), path)
	return err == nil || errors.Is(err, fs.ErrExist)
}

// PutUpload reads u.Size bytes from r, verifies their digest, keeps them and
// returns their URI. On any error nothing is kept.
func (s *uploads) PutUpload(ctx context.Context, u Upload, r io.Reader) (uri string, err error) {
	if err := u.validate(s.maxBytes); err != nil {
		return "", err
	}
	if s.HasUpload(u) {
		s.retention.hold(s.uploadPath(u))
		return u.URI(), nil
	}
	done, err := s.retention.reserve("upload-"+u.SHA256, "upload", u.Size, 0)
	if err != nil {
		return "", err
	}
	defer done()
	if err := s.folder.checkSpace(u.Size); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(filepath.Join(s.folder.dir, "partial"), "upload-*")
	if err != nil {
		return "", s.folder.explainWrite(err, u.Size)
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	content := filepath.Join(tmp, "content")
	if err := os.Mkdir(content, 0o700); err != nil {
		return "", s.folder.explainWrite(err, u.Size)
	}
	if u.Name != "" {
		err = s.receive(ctx, u, r, filepath.Join(content, u.Name))
	} else if err = s.receive(ctx, u, r, filepath.Join(tmp, "tar")); err == nil {
		err = s.installer.unpack(ctx, "tar", filepath.Join(tmp, "tar"), content, u.URI())
	}
	if err != nil {
		return "", err
	}
	return u.URI(), s.keep(u, content)
}

// receive writes the bytes to path and checks size and digest.
func (s *uploads) receive(ctx context.Context, u Upload, r io.Reader, path string) error {
	f, err := s.folder.disk.open(path)
	if err != nil {
		return s.folder.explainWrite(err, u.Size)
	}
	h := sha256.New()
	in := &uploadReader{r: io.LimitReader(blobs.ContextReader(ctx, r), u.Size+1)}
	n, err := io.Copy(io.MultiWriter(f, h), in)
	err = errors.Join(err, f.Sync(), f.Close())
	switch {
	case in.err != nil:
		return fmt.Errorf("upload broke off after %d of %d bytes: %w", n, u.Size, in.err)
	case err != nil:
		return s.folder.explainWrite(err, u.Size-n)
	case n != u.Size:
		return fmt.Errorf("upload: %d bytes were announced, but %s came", u.Size, came(n, u.Size))
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != u.SHA256 {
		return fmt.Errorf("upload: the bytes have sha256 %s instead of %s; send them again", got, u.SHA256)
	}
	return nil
}

func came(n, size int64) string {
	if n > size {
		return "more"
	}
	return fmt.Sprintf("only %d", n)
}

// uploadReader remembers whether it was the client that failed.
type uploadReader struct {
	r   io.Reader
	err error
}

func (u *uploadReader) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		u.err = err
	}
	return n, err
}

// keep renames verified content into place. Another upload of the same content
// may have been faster, which is as good.
func (s *uploads) keep(u Upload, content string) error {
	dst := s.uploadPath(u)
	if u.Name != "" {
		dst = filepath.Dir(dst)
	}
	if err := os.MkdirAll(filepath.Dir(dst), 0o700); err != nil {
		return s.folder.explainWrite(err, 0)
	}
	err := os.Rename(content, dst)
	if err != nil && !s.HasUpload(u) {
		return fmt.Errorf("upload: %w", err)
	}
	return syncDir(filepath.Dir(dst))
}

// uploaded resolves an upload:// location.
func (s *uploads) uploaded(loc location) (string, error) {
	u := Upload{SHA256: loc.url.Host, Name: strings.TrimPrefix(loc.url.Path, "/")}
	if err := u.validate(s.maxBytes); err != nil {
		return "", err
	}
	if !s.HasUpload(u) {
		return "", fmt.Errorf("%s: not uploaded here, or removed since; apply the manifest again: %w", loc, fs.ErrNotExist)
	}
	path := s.uploadPath(u)
	s.retention.hold(path)
	return path, nil
}

// WriteTar writes a folder as a tar archive that depends on names, contents and
// the executable bit alone, so that equal folders have equal digests. Links are
// followed when they stay in the folder; other kinds of files are errors.
func WriteTar(ctx context.Context, w io.Writer, folder string) error {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	t := tar.NewWriter(w)
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return writeEntry(ctx, t, root, name)
	})
	if err = errors.Join(err, t.Close()); err != nil {
		return fmt.Errorf("%s: %w", folder, err)
	}
	return nil
}

func writeEntry(ctx context.Context, t *tar.Writer, root *os.Root, name string) error {
	info, err := root.Stat(name)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s: neither a file nor a folder", name)
	}
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Size: info.Size(), Mode: 0o600 | int64(info.Mode().Perm()&0o100), ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(t, blobs.ContextReader(ctx, f))
	return err
}
