// Package imagetest reads OCI image layouts as a container engine would, for
// tests: by the specification alone, and strictly.
package imagetest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Image is an image read from a layout.
type Image struct {
	Descriptor v1.Descriptor // of the manifest, in the index
	Manifest   v1.Manifest
	Config     v1.Image
	// Docker is manifest.json, as docker load reads it.
	Docker []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	members map[string][]byte
}

// Read reads a layout that is a tar and holds one image. Every blob must have
// the hash and size that lead to it, no blob may be unused, and no field
// unknown to the specification.
func Read(t testing.TB, archive []byte) *Image {
	t.Helper()
	images := ReadAll(t, archive)
	if len(images) != 1 {
		t.Fatalf("%d images", len(images))
	}
	return images[0]
}

// ReadAll reads a layout of one name, which stands for an image or for an index
// over several. Their Descriptors are those of the index, but for its
// annotations, which are the name's.
func ReadAll(t testing.TB, archive []byte) []*Image {
	t.Helper()
	members := untar(t, archive)
	layout := &Image{members: members}
	var version v1.ImageLayout
	strict(t, layout.member(t, v1.ImageLayoutFile), &version)
	if version.Version != "1.0.0" {
		t.Errorf("layout version %q", version.Version)
	}
	var index v1.Index
	strict(t, layout.member(t, v1.ImageIndexFile), &index)
	if index.SchemaVersion != 2 || index.MediaType != v1.MediaTypeImageIndex || len(index.Manifests) != 1 {
		t.Fatalf("index: %+v", index)
	}
	used, name := map[string]bool{}, index.Manifests[0]
	manifests := index.Manifests
	if name.MediaType == v1.MediaTypeImageIndex {
		var inner v1.Index
		strict(t, layout.blob(t, name, used), &inner)
		if inner.SchemaVersion != 2 || inner.MediaType != v1.MediaTypeImageIndex {
			t.Fatalf("index: %+v", inner)
		}
		manifests = inner.Manifests
	}
	var images []*Image
	for _, d := range manifests {
		d.Annotations = name.Annotations
		i := &Image{members: members, Descriptor: d}
		i.read(t, used)
		images = append(images, i)
	}
	for name := range members {
		if strings.HasPrefix(name, "blobs/") && !used[name] {
			t.Errorf("%s is of no use", name)
		}
	}
	return images
}

// read follows the descriptor to everything of the image.
func (i *Image) read(t testing.TB, used map[string]bool) {
	t.Helper()
	strict(t, i.blob(t, i.Descriptor, used), &i.Manifest)
	if i.Manifest.SchemaVersion != 2 || i.Manifest.MediaType != v1.MediaTypeImageManifest || i.Manifest.Config.MediaType != v1.MediaTypeImageConfig {
		t.Fatalf("manifest: %+v", i.Manifest)
	}
	strict(t, i.blob(t, i.Manifest.Config, used), &i.Config)
	if p := i.Descriptor.Platform; p == nil || p.OS != i.Config.OS || p.Architecture != i.Config.Architecture {
		t.Errorf("platform %+v of an image for %s/%s", p, i.Config.OS, i.Config.Architecture)
	}
	i.checkLayers(t, used)
	strict(t, i.member(t, "manifest.json"), &i.Docker)
}

// untar reads an archive's files.
func untar(t testing.TB, archive []byte) map[string][]byte {
	t.Helper()
	members := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return members
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.ModTime.Unix() != 0 {
			t.Errorf("%s happened at %v", h.Name, h.ModTime)
		}
		if _, twice := members[h.Name]; twice {
			t.Errorf("%s is there twice", h.Name)
		}
		if h.Typeflag == tar.TypeReg {
			if members[h.Name], err = io.ReadAll(r); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// checkLayers compares the layers with the configuration and manifest.json.
func (i *Image) checkLayers(t testing.TB, used map[string]bool) {
	t.Helper()
	if i.Config.RootFS.Type != "layers" || len(i.Config.RootFS.DiffIDs) != len(i.Manifest.Layers) {
		t.Fatalf("%d layers, root file system %+v", len(i.Manifest.Layers), i.Config.RootFS)
	}
	for n, l := range i.Manifest.Layers {
		content := unpacked(t, l.MediaType, i.blob(t, l, used))
		if got := "sha256:" + sum(content); got != i.Config.RootFS.DiffIDs[n].String() {
			t.Errorf("layer %d unpacks to %s, not %s", n, got, i.Config.RootFS.DiffIDs[n])
		}
	}
	filled := 0
	for _, h := range i.Config.History {
		if !h.EmptyLayer {
			filled++
		}
	}
	if filled != len(i.Manifest.Layers) {
		t.Errorf("the history knows %d layers of %d", filled, len(i.Manifest.Layers))
	}
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

func (i *Image) member(t testing.TB, name string) []byte {
	t.Helper()
	text, found := i.members[name]
	if !found {
		t.Fatalf("%s is missing", name)
	}
	return text
}

func (i *Image) blob(t testing.TB, d v1.Descriptor, used map[string]bool) []byte {
	t.Helper()
	if err := d.Digest.Validate(); err != nil {
		t.Fatal(err)
	}
	name := "blobs/sha256/" + d.Digest.Encoded()
	text := i.member(t, name)
	used[name] = true
	if int64(len(text)) != d.Size || sum(text) != d.Digest.Encoded() {
		t.Fatalf("%s: %d bytes of hash %s, described as %d", name, len(text), sum(text), d.Size)
	}
	return text
}

func strict(t testing.TB, text []byte, into any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

func unpacked(t testing.TB, mediaType string, layer []byte) []byte {
	t.Helper()
	switch mediaType {
	case v1.MediaTypeImageLayer:
		return layer
	case v1.MediaTypeImageLayerGzip:
		z, err := gzip.NewReader(bytes.NewReader(layer))
		if err != nil {
			t.Fatal(err)
		}
		if layer, err = io.ReadAll(z); err != nil {
			t.Fatal(err)
		}
		return layer
	}
	t.Fatalf("layer of type %s", mediaType)
	return nil
}

// Unpack puts the image's files below a folder, as the specification says:
// layer over layer, with whiteouts. Owners are set if the process may.
func (i *Image) Unpack(t testing.TB, root string) {
	t.Helper()
	for _, l := range i.Manifest.Layers {
		content := unpacked(t, l.MediaType, i.members["blobs/sha256/"+l.Digest.Encoded()])
		for r := tar.NewReader(bytes.NewReader(content)); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err == nil {
				err = unpack(root, h, r)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

func unpack(root string, h *tar.Header, r io.Reader) error {
	name := path.Clean(h.Name)
	if !filepath.IsLocal(name) {
		return fmt.Errorf("%s leads out of the image", h.Name)
	}
	target := filepath.Join(root, name)
	if hidden, found := strings.CutPrefix(path.Base(name), ".wh."); found {
		return os.RemoveAll(filepath.Join(filepath.Dir(target), hidden))
	}
	mode := h.FileInfo().Mode()
	switch h.Typeflag {
	case tar.TypeDir:
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
	case tar.TypeSymlink:
		return os.Symlink(h.Linkname, target)
	case tar.TypeReg:
		_ = os.Remove(target) // of a layer below
		f, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		if _, err = io.Copy(f, r); err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	default:
		return fmt.Errorf("%s is a file of type %c", h.Name, h.Typeflag)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(target, h.Uid, h.Gid); err != nil {
			return err
		}
	}
	return os.Chmod(target, mode)
}
