package artifact

import (
	"archive/tar"
	"archive/zip"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"roundhouse.dev/roundhouse/internal/edge/blobs"
)

// archiveKind is the kind of archive a file name says: "tar", "tar.gz",
// "tar.bz2", "zip", or empty. As in KServe, the name may end the URI's query.
func archiveKind(loc location, name string) string {
	if kind := archiveSuffix(name); kind != "" || loc.url == nil || path.Ext(name) != "" {
		return kind
	}
	return archiveSuffix(loc.url.RawQuery)
}

func archiveSuffix(name string) string {
	name = strings.ToLower(name)
	for _, s := range [][2]string{
		{".tar.gz", "tar.gz"}, {".tgz", "tar.gz"}, {".tar.bz2", "tar.bz2"}, {".tar", "tar"}, {".zip", "zip"},
	} {
		if strings.HasSuffix(name, s[0]) {
			return s[1]
		}
	}
	return ""
}

// unpacker writes an archive's entries below a folder and nowhere else: os.Root
// refuses every path and link that leads out. Its budgets bound bombs.
type unpacker struct {
	ctx    context.Context
	folder *folder
	root   *os.Root
	uri    string
	most   int   // entries in all
	files  int   // entries left
	bytes  int64 // bytes left
	budget int64
	links  []string // symbolic and hard ones, for checkLinks
}

// unpack extracts an archive into dir, which exists.
func (n *installer) unpack(ctx context.Context, kind, archive, dir, uri string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	u := n.unpacker(ctx, root, uri, info.Size())
	switch kind {
	case "zip":
		err = u.zip(f, info.Size())
	case "tar.gz":
		var z *gzip.Reader
		if z, err = gzip.NewReader(f); err == nil {
			err = u.tar(z)
		}
	case "tar.bz2":
		err = u.tar(bzip2.NewReader(f))
	default:
		err = u.tar(f)
	}
	if err == nil {
		err = u.checkLinks()
	}
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s: cannot unpack the archive: %w", uri, err)
	}
	return err
}

// unpacker unpacks into root what has so many bytes packed.
func (n *installer) unpacker(ctx context.Context, root *os.Root, uri string, packed int64) *unpacker {
	budget := n.limits.bytes
	if expansion := int64(n.expansion); packed < budget/expansion {
		budget = min(budget, max(packed*expansion, 1<<30))
	}
	return &unpacker{ctx: ctx, folder: n.folder, root: root, uri: uri, most: n.limits.files, files: n.limits.files, bytes: budget, budget: budget}
}

func (u *unpacker) tar(r io.Reader) error {
	t := tar.NewReader(blobs.ContextReader(u.ctx, r))
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := u.entry(h, t); err != nil {
			return err
		}
	}
}

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	name, err := u.name(h.Name)
	if err != nil || name == "." {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return u.root.MkdirAll(name, 0o700)
	case tar.TypeReg:
		return u.file(name, content)
	case tar.TypeSymlink:
		return u.link(name, path.Join(path.Dir(name), h.Linkname), h.Linkname)
	case tar.TypeLink:
		target, err := u.name(h.Linkname)
		if err != nil {
			return err
		}
		if err := u.root.MkdirAll(path.Dir(name), 0o700); err != nil {
			return err
		}
		// A hard link to a symbolic link resolves it from another folder.
		u.links = append(u.links, name)
		return u.root.Link(target, name)
	case tar.TypeXGlobalHeader:
		return nil
	}
	return fmt.Errorf("%q is neither a file, a folder nor a link (type %q)", h.Name, h.Typeflag)
}

// name cleans an entry's name and refuses those that leave the folder.
func (u *unpacker) name(raw string) (string, error) {
	if u.files--; u.files < 0 {
		return "", fmt.Errorf("more than %d entries (maxFiles)", u.most)
	}
	name := path.Clean(strings.TrimPrefix(raw, "./"))
	if path.IsAbs(raw) || name != "." && !localName(name) {
		return "", fmt.Errorf("the entry %q would be written outside the model's folder", raw)
	}
	return name, nil
}

func (u *unpacker) link(name, resolved, target string) error {
	if path.IsAbs(target) || !localName(path.Clean(resolved)) {
		return fmt.Errorf("the link %q points outside the model's folder", name)
	}
	if err := u.root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	u.links = append(u.links, name)
	return u.root.Symlink(target, name)
}

// checkLinks looks at the finished folder, for a chain of harmless links can
// still lead out: Root resolves them all. A link to nothing is harmless.
func (u *unpacker) checkLinks() error {
	for _, name := range u.links {
		if _, err := u.root.Stat(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("the link %q points outside the model's folder", name)
		}
	}
	return nil
}

func (u *unpacker) file(name string, content io.Reader) error {
	if err := u.root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("the entry %q appears twice", name)
	}
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(blobs.ContextReader(u.ctx, content), u.bytes+1))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return u.folder.explainWrite(err, 0)
	}
	if u.bytes -= n; u.bytes < 0 {
		return fmt.Errorf("unpacks to more than %s (maxBytes, maxExpansion, or what the store may hold)", formatBytes(u.budget))
	}
	return nil
}

func (u *unpacker) zip(r io.ReaderAt, size int64) error {
	z, err := zip.NewReader(r, size)
	if err != nil {
		return err
	}
	for _, f := range z.File {
		if err := u.zipEntry(f); err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacker) zipEntry(f *zip.File) error {
	name, err := u.name(f.Name)
	if err != nil || name == "." {
		return err
	}
	mode := f.Mode()
	if mode.IsDir() {
		return u.root.MkdirAll(name, 0o700)
	}
	if mode&fs.ModeType&^fs.ModeSymlink != 0 {
		return fmt.Errorf("%q is neither a file, a folder nor a link (%s)", f.Name, mode)
	}
	content, err := f.Open()
	if err != nil {
		return fmt.Errorf("%q: %w", f.Name, err)
	}
	defer func() { _ = content.Close() }()
	if mode&fs.ModeSymlink == 0 {
		return u.file(name, content)
	}
	target, err := io.ReadAll(io.LimitReader(content, 4096))
	if err != nil {
		return fmt.Errorf("%q: %w", f.Name, err)
	}
	return u.link(name, path.Join(path.Dir(name), string(target)), string(target))
}
