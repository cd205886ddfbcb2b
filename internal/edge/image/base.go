package image

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Bounds on an archive of a base image.
const (
	maxBaseEntries  = 10_000
	maxBaseDocument = 4 << 20
	maxBaseDepth    = 4 // indexes within indexes
	maxLayers       = 125
)

// base is an image that layers are put on.
type base struct {
	config v1.Image
	layers []layer
	file   *os.File
}

func (b *base) close() {
	if b.file != nil {
		_ = b.file.Close() // only read from
	}
}

// archive is a tar on disk, by its members' names.
type archive struct {
	file    *os.File
	members map[string]member
}

type member struct {
	offset, size int64
	link         string // of another member that holds the content
}

// openBase reads the image for an architecture from an archive. The layers
// stay in the file.
func openBase(ctx context.Context, file, architecture string) (*base, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	b, err := readBase(ctx, f, architecture)
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("base image %s: %w", file, err)
	}
	return b, nil
}

func readBase(ctx context.Context, f *os.File, architecture string) (*base, error) {
	a := &archive{file: f, members: map[string]member{}}
	if err := a.index(ctx); err != nil {
		return nil, err
	}
	b := &base{file: f}
	var err error
	switch {
	case a.has(v1.ImageIndexFile):
		err = a.readLayout(b, architecture)
	case a.has(dockerManifest):
		err = a.readDocker(ctx, b, architecture)
	default:
		err = errors.New("it has neither index.json nor manifest.json: it is to be an OCI image layout, or what docker save writes, as a tar")
	}
	switch {
	case err != nil:
		return nil, err
	case b.config.OS != "linux" || b.config.Architecture != architecture:
		return nil, fmt.Errorf("it is for %s/%s, the program for linux/%s", b.config.OS, b.config.Architecture, architecture)
	case len(b.layers) != len(b.config.RootFS.DiffIDs):
		return nil, fmt.Errorf("its manifest has %d layers, its configuration %d", len(b.layers), len(b.config.RootFS.DiffIDs))
	case len(b.layers) > maxLayers:
		return nil, fmt.Errorf("it has %d layers, of at most %d", len(b.layers), maxLayers)
	}
	return b, nil
}

// index notes where the members are.
func (a *archive) index(ctx context.Context) error {
	t := tar.NewReader(a.file) // which it skips through, as it can seek
	for {
		h, err := t.Next()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && len(a.members) == 0:
			return fmt.Errorf("it cannot be read as a tar (%w); a compressed one is to be unpacked", err)
		case err != nil:
			return err
		case len(a.members) == maxBaseEntries:
			return fmt.Errorf("it has more than %d members", maxBaseEntries)
		}
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			// The reader has read headers only, so the content is what follows.
			offset, err := a.file.Seek(0, io.SeekCurrent)
			if err != nil {
				return err
			}
			a.members[name] = member{offset: offset, size: h.Size}
		case tar.TypeSymlink: // docker save once had links between equal layers
			a.members[name] = member{link: path.Join(path.Dir(name), h.Linkname)}
		case tar.TypeLink:
			a.members[name] = member{link: path.Clean(h.Linkname)}
		}
	}
}

func (a *archive) has(name string) bool { _, found := a.members[name]; return found }

// open gives the content of a member.
func (a *archive) open(name string) (*io.SectionReader, error) {
	m, found := a.members[path.Clean(name)]
	if found && m.link != "" {
		m, found = a.members[m.link]
	}
	if !found || m.link != "" {
		return nil, fmt.Errorf("%s is missing", name)
	}
	return io.NewSectionReader(a.file, m.offset, m.size), nil
}

// document reads a JSON member, whose hash must be want unless that is "".
func (a *archive) document(name string, want digest.Digest, into any) error {
	r, err := a.open(name)
	if err != nil {
		return err
	}
	if r.Size() > maxBaseDocument {
		return fmt.Errorf("%s: over %d bytes", name, maxBaseDocument)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if want != "" && digest.FromBytes(text) != want {
		return fmt.Errorf("%s is not what its hash says", name)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// blobPath is where a layout has a blob.
func blobPath(d digest.Digest) (string, error) {
	if err := d.Validate(); err != nil || d.Algorithm() != digest.SHA256 {
		return "", fmt.Errorf("digest %q is none of sha256", d)
	}
	return v1.ImageBlobsDir + "/sha256/" + d.Encoded(), nil
}

// readLayout reads an OCI image layout.
func (a *archive) readLayout(b *base, architecture string) error {
	var index v1.Index
	if err := a.document(v1.ImageIndexFile, "", &index); err != nil {
		return err
	}
	found, err := a.find(index, architecture, 0)
	if err != nil {
		return err
	}
	var m v1.Manifest
	if err := a.blobDocument(found, &m); err != nil {
		return err
	}
	if err := a.blobDocument(m.Config, &b.config); err != nil {
		return err
	}
	for _, d := range m.Layers {
		name, err := blobPath(d.Digest)
		if err != nil {
			return err
		}
		r, err := a.open(name)
		if err != nil {
			return err
		}
		if r.Size() != d.Size {
			return fmt.Errorf("layer %s has %d bytes, not %d", d.Digest, r.Size(), d.Size)
		}
		kind, err := layerType(r)
		if err != nil {
			return err
		}
		b.layers = append(b.layers, layer{blob{d.Digest, d.Size, copyOf(r)}, kind})
	}
	return nil
}

func (a *archive) blobDocument(d v1.Descriptor, into any) error {
	name, err := blobPath(d.Digest)
	if err != nil {
		return err
	}
	return a.document(name, d.Digest, into)
}

// find chooses the manifest for an architecture, or the only one.
func (a *archive) find(index v1.Index, architecture string, depth int) (v1.Descriptor, error) {
	fits := func(d v1.Descriptor) bool {
		return d.Platform == nil || d.Platform.OS == "linux" && d.Platform.Architecture == architecture
	}
	if len(index.Manifests) == 1 {
		fits = func(v1.Descriptor) bool { return true } // its configuration will say
	}
	i := slices.IndexFunc(index.Manifests, fits)
	if i < 0 || depth == maxBaseDepth {
		return v1.Descriptor{}, fmt.Errorf("it holds no image for linux/%s", architecture)
	}
	d := index.Manifests[i]
	if !strings.Contains(d.MediaType, "index") && !strings.Contains(d.MediaType, "manifest.list") {
		return d, nil
	}
	var inner v1.Index
	if err := a.blobDocument(d, &inner); err != nil {
		return d, err
	}
	return a.find(inner, architecture, depth+1)
}

// readDocker reads what docker save writes.
func (a *archive) readDocker(ctx context.Context, b *base, architecture string) error {
	var images []dockerImage
	if err := a.document(dockerManifest, "", &images); err != nil {
		return err
	}
	if len(images) != 1 {
		return fmt.Errorf("it holds %d images: save one", len(images))
	}
	if err := a.document(images[0].Config, "", &b.config); err != nil {
		return err
	}
	for _, name := range images[0].Layers {
		r, err := a.open(name)
		if err != nil {
			return err
		}
		kind, err := layerType(r)
		if err != nil {
			return err
		}
		content, err := newBlob(ctx, copyOf(r))
		if err != nil {
			return err
		}
		b.layers = append(b.layers, layer{content, kind})
	}
	return nil
}

// copyOf writes a part of a file, as often as wanted.
func copyOf(r *io.SectionReader) func(context.Context, io.Writer) error {
	return func(ctx context.Context, w io.Writer) error {
		_, err := io.Copy(w, reader{ctx, io.NewSectionReader(r, 0, r.Size())})
		return err
	}
}

// layerType tells how a layer is packed, by its first bytes.
func layerType(r *io.SectionReader) (string, error) {
	head := make([]byte, 4)
	if _, err := r.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	switch {
	case head[0] == 0x1f && head[1] == 0x8b:
		return v1.MediaTypeImageLayerGzip, nil
	case [4]byte(head) == [4]byte{0x28, 0xb5, 0x2f, 0xfd}:
		return v1.MediaTypeImageLayerZstd, nil
	}
	return v1.MediaTypeImageLayer, nil
}
