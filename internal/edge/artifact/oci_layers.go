package artifact

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"

	"roundhouse.dev/roundhouse/internal/edge/blobs"
)

// modelsDir is where KServe's images have their models.
const modelsDir = "models"

// Names in layers that take away what lower ones have (OCI image
// specification, "Layer Changesets").
const (
	whiteout       = ".wh."
	whiteoutOpaque = ".wh..wh..opq"
)

// layerStack lays the layers of an image or artifact over each other.
type layerStack struct {
	*unpacker
	image bool            // only what is below /models, and that without it
	fresh map[string]bool // names of the present layer
	found bool            // there is a /models
}

// unpackLayers makes the model's folder of layers, in order; those that are
// files are moved there.
func (n *installer) unpackLayers(ctx context.Context, loc location, l listing, tree string) error {
	root, err := os.OpenRoot(tree)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	var packed int64
	for _, o := range l.objects {
		packed += o.Size
	}
	k := &layerStack{unpacker: n.unpacker(ctx, root, loc.String(), packed)}
	for _, o := range l.objects {
		part := partPath(n.folder.partialDir(loc), o.Name)
		k.image, k.fresh = o.image, map[string]bool{}
		if o.layer == "" {
			dst := filepath.Join(tree, filepath.FromSlash(o.Name))
			if err = os.MkdirAll(filepath.Dir(dst), 0o700); err == nil {
				err = os.Rename(part, dst)
			}
		} else {
			err = k.layer(o.layer, part)
		}
		if err != nil {
			break
		}
	}
	if err == nil {
		err = k.checkLinks()
	}
	if err == nil && k.image && !k.found {
		err = errors.New("the image has no folder /models: that is where its model must be")
	}
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s: cannot unpack the layers: %w", loc, err)
	}
	return err
}

func (k *layerStack) layer(kind, part string) error {
	f, err := os.Open(part)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	var r io.Reader = f
	switch kind {
	case "tar.gz":
		z, err := gzip.NewReader(f)
		if err != nil {
			return err
		}
		r = z
	case "tar.zst":
		z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			return err
		}
		defer z.Close()
		r = z
	}
	// What is passed over counts too: it is unpacked as well.
	limit := &io.LimitedReader{R: blobs.ContextReader(k.ctx, r), N: k.budget + 1}
	t := tar.NewReader(limit)
	for {
		h, err := t.Next()
		if limit.N <= 0 {
			return fmt.Errorf("a layer unpacks to more than %s (maxBytes, maxExpansion, or what the store may hold)", formatBytes(k.budget))
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := k.one(h, t); err != nil {
			return err
		}
	}
}

// one writes an entry to the folder, or removes what a whiteout entry names.
func (k *layerStack) one(h *tar.Header, content io.Reader) error {
	name := path.Clean(strings.TrimLeft(h.Name, "/"))
	if base := path.Base(name); k.image && strings.HasPrefix(base, whiteout) {
		return k.takeAway(path.Dir(name), base)
	}
	name, inside, err := k.below(name, h)
	if err != nil || !inside {
		return err
	}
	k.found = true
	if name == "." {
		return nil
	}
	if k.image {
		h.Linkname, err = k.target(name, h)
		if err != nil {
			return err
		}
		k.fresh[name] = true
		if err := k.replace(name, h.Typeflag == tar.TypeDir); err != nil {
			return err
		}
	}
	h.Name = name
	return k.entry(h, content)
}

// below is an entry's name in the model's folder.
func (k *layerStack) below(name string, h *tar.Header) (string, bool, error) {
	if !k.image {
		return name, true, nil
	}
	if name == modelsDir {
		if h.Typeflag != tar.TypeDir {
			return "", false, errors.New("the image's /models is no folder")
		}
		return ".", true, nil
	}
	rest, ok := strings.CutPrefix(name, modelsDir+"/")
	return rest, ok, nil
}

// target is a link's target as it is in the model's folder.
func (k *layerStack) target(name string, h *tar.Header) (string, error) {
	switch {
	case h.Typeflag == tar.TypeLink:
		rest, ok := strings.CutPrefix(path.Clean(strings.TrimLeft(h.Linkname, "/")), modelsDir+"/")
		if !ok {
			return "", fmt.Errorf("%q is a link to %q, outside of /models", h.Name, clip(h.Linkname))
		}
		return rest, nil
	case h.Typeflag == tar.TypeSymlink && path.IsAbs(h.Linkname):
		rest, ok := strings.CutPrefix(path.Clean(h.Linkname), "/"+modelsDir+"/")
		if !ok {
			return h.Linkname, nil // refused by whoever makes the link
		}
		rel, err := filepath.Rel(path.Dir(name), rest)
		return filepath.ToSlash(rel), err
	}
	return h.Linkname, nil
}

// replace removes what an entry takes the place of; a folder goes on.
func (k *layerStack) replace(name string, folder bool) error {
	if !localName(name) {
		return nil // refused by whoever makes it
	}
	info, err := k.root.Lstat(name)
	if err != nil || folder && info.IsDir() {
		return nil //nolint:nilerr // there is nothing in the way
	}
	return k.root.RemoveAll(name)
}

// takeAway obeys a whiteout, which is about lower layers alone.
func (k *layerStack) takeAway(dir, base string) error {
	in, inside, err := k.below(dir, &tar.Header{Typeflag: tar.TypeDir})
	if err != nil {
		return err
	}
	name := strings.TrimPrefix(base, whiteout)
	if base == whiteoutOpaque || !inside {
		switch {
		case inside:
		case dir == "." && (name == modelsDir || base == whiteoutOpaque):
			in = "."
		default:
			return nil
		}
		return k.empty(in)
	}
	gone := path.Join(in, name)
	if !localName(gone) || k.fresh[gone] {
		return nil
	}
	return k.root.RemoveAll(gone)
}

// empty removes what lower layers have put into a folder.
func (k *layerStack) empty(dir string) error {
	if dir != "." && !localName(dir) {
		return nil
	}
	entries, err := fs.ReadDir(k.root.FS(), dir)
	if err != nil {
		return nil //nolint:nilerr // there is nothing to remove
	}
	for _, e := range entries {
		name := path.Join(dir, e.Name())
		if k.fresh[name] {
			if e.IsDir() {
				err = k.empty(name)
			}
		} else {
			err = k.root.RemoveAll(name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
