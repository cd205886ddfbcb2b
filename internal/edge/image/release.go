package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// ReleaseUser is who the programs of a Release run as: nobody of the host's.
const ReleaseUser = 65532

// rootsFile is where Go's programs, and most others, look for the certificates
// of authorities.
const rootsFile = "etc/ssl/certs/ca-certificates.crt"

// Release is an image of Roundhouse itself, for several architectures: its
// programs at the root, the certificates of public authorities, /tmp, and what
// Trees hold.
type Release struct {
	Tag string // the image's name
	// Programs are programs for Linux, a list for each architecture. The lists hold
	// the same names; the first program is the entrypoint. They are static, unless
	// there are Trees.
	Programs [][]string
	// Trees are folders of files that go to the image's root, as libraries do, one for
	// each architecture, or none.
	Trees []string
	Roots []byte // PEM
}

// WriteRelease writes the image as an OCI image layout in a tar, with one
// index over the architectures. The same programs give the same bytes.
func WriteRelease(ctx context.Context, w io.Writer, r Release) error {
	name, err := parseReference(r.Tag)
	if err != nil {
		return err
	}
	if len(r.Programs) == 0 || len(r.Programs[0]) == 0 {
		return errors.New("an image of a release needs programs")
	}
	if len(r.Trees) > 0 && len(r.Trees) != len(r.Programs) {
		return errors.New("every architecture of an image has a tree, or none has")
	}
	var images []*base
	for i, paths := range r.Programs {
		tree := ""
		if len(r.Trees) > 0 {
			tree = r.Trees[i]
		}
		b, err := r.architecture(ctx, paths, tree)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(images, func(o *base) bool { return o.config.Architecture == b.config.Architecture }) {
			return fmt.Errorf("%s: there are programs for %s already", paths[0], b.config.Architecture)
		}
		images = append(images, b)
	}
	return write(ctx, w, name, images...)
}

// architecture is the image of one architecture. Each program is a layer of its
// own: what did not change between two releases is not pulled again.
func (r Release) architecture(ctx context.Context, paths []string, tree string) (*base, error) {
	epoch := time.Unix(0, 0).UTC()
	b := &base{config: v1.Image{Created: &epoch, Platform: v1.Platform{OS: "linux"}, Config: v1.ImageConfig{
		User: fmt.Sprintf("%d:%d", ReleaseUser, ReleaseUser),
		Env:  []string{"PATH=/", "HOME=/tmp"},
		// A relative path that a command is given is the image's, not a folder's.
		Entrypoint: []string{"/" + filepath.Base(paths[0])}, WorkingDir: "/",
	}}}
	ground := []entry{
		rootEntry("etc", 0o755), rootEntry("etc/ssl", 0o755), rootEntry("etc/ssl/certs", 0o755), bytesEntry(rootsFile, r.Roots),
		bytesEntry("etc/passwd", fmt.Appendf(nil, "root:x:0:0:root:/:\nroundhouse:x:%[1]d:%[1]d:roundhouse:/tmp:\n", ReleaseUser)),
		bytesEntry("etc/group", fmt.Appendf(nil, "root:x:0:\nroundhouse:x:%d:\n", ReleaseUser)),
		rootEntry("tmp", 0o1777),
	}
	if err := b.pile(ctx, "certificates, /tmp", ground); err != nil {
		return nil, err
	}
	if tree != "" {
		files, err := treeEntries(tree)
		if err != nil {
			return nil, err
		}
		if err := b.pile(ctx, "libraries", files); err != nil {
			return nil, err
		}
	}
	for i, path := range paths {
		prog, err := openProgram(path)
		switch {
		case err != nil:
			return nil, err
		case !prog.static && tree == "":
			return nil, fmt.Errorf("%s needs the C library, which the image has not: build it with CGO_ENABLED=0", path)
		case i > 0 && prog.architecture != b.config.Architecture:
			return nil, fmt.Errorf("%s is for %s, %s for %s", path, prog.architecture, paths[0], b.config.Architecture)
		case len(paths) != len(r.Programs[0]) || filepath.Base(path) != filepath.Base(r.Programs[0][i]):
			return nil, fmt.Errorf("%s: every architecture has the same programs", path)
		}
		b.config.Architecture = prog.architecture
		file := fileEntry(filepath.Base(path), path, prog.size, 0o755, 0)
		if err := b.pile(ctx, "COPY "+filepath.Base(path)+" /", []entry{file}); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// treeEntries are the folders and plain files below a folder, in the order of their
// names, owned by root.
func treeEntries(root string) (out []entry, err error) {
	err = filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil || file == root {
			return err
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		info, err := d.Info()
		switch {
		case err != nil:
			return err
		case len(out) == maxFiles:
			return fmt.Errorf("%s holds more than %d files", root, maxFiles)
		case d.IsDir():
			out = append(out, rootEntry(filepath.ToSlash(name), 0o755))
		case d.Type().IsRegular():
			e := fileEntry(filepath.ToSlash(name), file, info.Size(), int64(info.Mode().Perm()&0o555|0o444), 0)
			out = append(out, e)
		default:
			return fmt.Errorf("%s is neither a file nor a folder", file)
		}
		return nil
	})
	return out, err
}

func rootEntry(name string, mode int64) entry { return folderEntry(name, mode, 0) }

// pile puts a layer of entries on top.
func (b *base) pile(ctx context.Context, by string, entries []entry) error {
	content, err := newBlob(ctx, func(ctx context.Context, w io.Writer) error { return writeTar(ctx, w, entries) })
	if err != nil {
		return err
	}
	b.add(layer{content, v1.MediaTypeImageLayer}, content.digest)
	b.config.History = append(b.config.History, v1.History{Created: b.config.Created, CreatedBy: by})
	return nil
}

// described is an image's manifest, and every blob that leads on from it.
type described struct {
	v1.Descriptor
	blobs  []blob
	docker dockerImage
}

// describe writes the manifest of an image.
func (b *base) describe() (described, error) {
	config, err := jsonBlob(b.config)
	if err != nil {
		return described{}, err
	}
	m := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest,
		Config: v1.Descriptor{MediaType: v1.MediaTypeImageConfig, Digest: config.digest, Size: config.size}}
	d := described{docker: dockerImage{Config: config.path()}, blobs: []blob{config}}
	for _, l := range b.layers {
		m.Layers = append(m.Layers, v1.Descriptor{MediaType: l.mediaType, Digest: l.digest, Size: l.size})
		d.docker.Layers = append(d.docker.Layers, l.path())
		d.blobs = append(d.blobs, l.blob)
	}
	manifest, err := jsonBlob(m)
	if err != nil {
		return d, err
	}
	d.blobs = append(d.blobs, manifest)
	d.Descriptor = v1.Descriptor{MediaType: v1.MediaTypeImageManifest, Digest: manifest.digest, Size: manifest.size,
		Platform: &v1.Platform{OS: b.config.OS, Architecture: b.config.Architecture, Variant: b.config.Variant}}
	return d, nil
}

// describeAll describes the image that a name stands for: the only one, or an
// index over several, each of which docker load knows by a tag of its own.
func describeAll(name reference, images []*base) (top v1.Descriptor, blobs []blob, docker []dockerImage, err error) {
	over := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex}
	for _, b := range images {
		d, err := b.describe()
		if err != nil {
			return top, nil, nil, err
		}
		tag := name
		if len(images) > 1 {
			tag.tag += "-" + b.config.Architecture
		}
		d.docker.RepoTags = []string{tag.short()}
		over.Manifests = append(over.Manifests, d.Descriptor)
		blobs, docker = append(blobs, d.blobs...), append(docker, d.docker)
	}
	if top = over.Manifests[0]; len(images) > 1 {
		index, err := jsonBlob(over)
		if err != nil {
			return top, nil, nil, err
		}
		blobs = append(blobs, index)
		top = v1.Descriptor{MediaType: v1.MediaTypeImageIndex, Digest: index.digest, Size: index.size}
	}
	top.Annotations = map[string]string{v1.AnnotationRefName: name.tag, "io.containerd.image.name": name.full()}
	return top, blobs, docker, nil
}

// once leaves out blobs that were there before: images share layers.
func once(blobs []blob) []entry {
	written := map[digest.Digest]bool{}
	var entries []entry
	for _, b := range blobs {
		if !written[b.digest] {
			written[b.digest] = true
			entries = append(entries, b.entry())
		}
	}
	return entries
}
