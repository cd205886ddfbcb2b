package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"
)

// entry is one member of an archive.
type entry struct {
	header tar.Header
	// write writes a file's content, exactly header.Size bytes of it.
	write func(ctx context.Context, w io.Writer) error
}

// folderEntry is a folder of an archive.
func folderEntry(name string, mode int64, uid int) entry {
	return entry{header: tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode, Uid: uid, Gid: group}}
}

// bytesEntry is a small file of an archive.
func bytesEntry(name string, text []byte) entry {
	return entry{
		header: tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(text))},
		write: func(_ context.Context, w io.Writer) error {
			_, err := io.Copy(w, bytes.NewReader(text))
			return err
		},
	}
}

// fileEntry is a file on disk.
func fileEntry(name, file string, size, mode int64, uid int) entry {
	return entry{
		header: tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: size, Uid: uid, Gid: group},
		write: func(ctx context.Context, w io.Writer) error {
			f, err := os.Open(file)
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }() // only read from
			n, err := io.Copy(w, io.LimitReader(reader{ctx, f}, size+1))
			if err == nil && n != size || errors.Is(err, tar.ErrWriteTooLong) {
				return fmt.Errorf("%s changed while it was read", file)
			}
			return err
		},
	}
}

// reader ends when its context does.
type reader struct {
	ctx context.Context
	io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// writeTar writes an archive that depends on its entries alone: all of it
// happened in 1970.
func writeTar(ctx context.Context, w io.Writer, entries []entry) error {
	t := tar.NewWriter(w)
	for _, e := range entries {
		e.header.ModTime = time.Unix(0, 0)
		if err := t.WriteHeader(&e.header); err != nil {
			return fmt.Errorf("%s: %w", e.header.Name, err)
		}
		if e.write == nil {
			continue
		}
		if err := e.write(ctx, t); err != nil {
			return err
		}
	}
	return t.Close()
}

// blob is content known by its hash.
type blob struct {
	digest digest.Digest
	size   int64
	write  func(ctx context.Context, w io.Writer) error
}

// newBlob hashes what write writes. It is written once more for the image, so
// that no copy is kept anywhere.
func newBlob(ctx context.Context, write func(context.Context, io.Writer) error) (blob, error) {
	h, n := sha256.New(), counter(0)
	if err := write(ctx, io.MultiWriter(h, &n)); err != nil {
		return blob{}, err
	}
	return blob{digest.NewDigestFromEncoded(digest.SHA256, hex.EncodeToString(h.Sum(nil))), int64(n), write}, nil
}

func bytesBlob(text []byte) blob {
	return blob{digest.FromBytes(text), int64(len(text)), bytesEntry("", text).write}
}

type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// entry is the blob as a file of an image layout; writing it checks its hash.
func (b blob) entry() entry {
	return entry{
		header: tar.Header{Typeflag: tar.TypeReg, Name: b.path(), Mode: 0o644, Size: b.size},
		write: func(ctx context.Context, w io.Writer) error {
			h := sha256.New()
			if err := b.write(ctx, io.MultiWriter(w, h)); err != nil {
				return err
			}
			if hex.EncodeToString(h.Sum(nil)) != b.digest.Encoded() {
				return fmt.Errorf("%s is not what its hash says: a file changed while it was read, or the base image is damaged", b.digest)
			}
			return nil
		},
	}
}

// path is where the blob is in an image layout.
func (b blob) path() string { return "blobs/sha256/" + b.digest.Encoded() }

// programLayer holds the program and the folders every image has. Layers of
// one program are alike, so registries and hosts keep one.
func programLayer(program string, size int64) []entry {
	return []entry{
		folderEntry("mnt", 0o755, 0),
		folderEntry(ModelsDir[1:], 0o775, user),
		folderEntry("opt", 0o755, 0),
		folderEntry(HomeDir[1:], 0o775, user),
		folderEntry("tmp", 0o1777, 0),
		folderEntry("usr", 0o755, 0),
		folderEntry("usr/local", 0o755, 0),
		folderEntry("usr/local/bin", 0o755, 0),
		fileEntry(Program[1:], program, size, 0o755, 0),
	}
}

// folderLayer holds the folder. Modes become two: what may be run, and what
// may not.
func (p *Plan) folderLayer() []entry {
	entries := []entry{folderEntry("opt", 0o755, 0), folderEntry(HomeDir[1:], 0o775, user)}
	for _, f := range p.Files {
		name := path.Join(HomeDir[1:], f.Path)
		switch {
		case f.Mode.IsDir():
			entries = append(entries, folderEntry(name, 0o775, user))
		case f.Link != "":
			entries = append(entries, entry{header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: f.Link, Mode: 0o777, Uid: user, Gid: group}})
		default:
			mode := int64(0o664)
			if f.Mode&0o100 != 0 {
				mode = 0o775
			}
			entries = append(entries, fileEntry(name, filepath.Join(p.Folder, filepath.FromSlash(f.Path)), f.Size, mode, user))
		}
	}
	return entries
}
