package image

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Layout is the image to write.
type Layout struct {
	Plan *Plan
	Tag  string // the image's name, as in -t
	// Program is a roundhouse-server for Linux, a static one if there is no Base; the
	// image is for its architecture.
	Program string
	// Base is an archive of the image to build on, "" for none: an OCI image
	// layout or what `docker save` writes, as a tar.
	Base string
}

// NeedsBaseError is a folder that an image of the program alone cannot serve.
type NeedsBaseError struct {
	Folder string
	Needs  []string
}

// Error names the reasons, and what to do.
func (e *NeedsBaseError) Error() string {
	return fmt.Sprintf("%s needs more than the program: %s. Give a base image with Python, numpy, pydantic and the folder's packages (--base FILE.tar), or build with docker or buildah",
		e.Folder, strings.Join(e.Needs, "; "))
}

// WriteLayout writes an image as an OCI image layout in a tar, which `ctr
// images import`, `podman load`, `docker load` and `skopeo copy oci-archive:`
// read. The same folder, program and base give the same bytes. Files are read
// twice, so that the memory it takes does not depend on their sizes.
func WriteLayout(ctx context.Context, w io.Writer, l Layout) error {
	name, err := parseReference(l.Tag)
	if err != nil {
		return err
	}
	if l.Base == "" && len(l.Plan.Needs) > 0 {
		return &NeedsBaseError{l.Plan.Folder, l.Plan.Needs}
	}
	prog, err := openProgram(l.Program)
	if err != nil {
		return err
	}
	if l.Base == "" && !prog.static {
		return fmt.Errorf("%s needs the C library, which an image of the program alone has not: name a program built with CGO_ENABLED=0 (--binary), or an image to build on (--base)", l.Program)
	}
	under := &base{config: v1.Image{Platform: v1.Platform{OS: "linux", Architecture: prog.architecture}}}
	if l.Base != "" {
		if under, err = openBase(ctx, l.Base, prog.architecture); err != nil {
			return err
		}
		defer under.close()
	}
	for _, entries := range [][]entry{programLayer(prog.path, prog.size), l.Plan.folderLayer()} {
		b, err := newBlob(ctx, func(ctx context.Context, w io.Writer) error { return writeTar(ctx, w, entries) })
		if err != nil {
			return err
		}
		under.add(layer{b, v1.MediaTypeImageLayer}, b.digest)
	}
	l.configure(&under.config)
	return write(ctx, w, name, under)
}

// configure states how the image runs.
func (l Layout) configure(c *v1.Image) {
	epoch := time.Unix(0, 0).UTC()
	c.Created, c.Author = &epoch, ""
	c.History = append(c.History,
		v1.History{Created: &epoch, CreatedBy: "COPY roundhouse-server " + Program},
		v1.History{Created: &epoch, CreatedBy: "COPY . " + HomeDir})
	env := c.Config.Env
	if len(env) == 0 {
		env = []string{"PATH=/usr/local/bin"}
	}
	c.Config = v1.ImageConfig{
		User:         fmt.Sprintf("%d:%d", user, group),
		Env:          withEnv(env, l.Plan.env()),
		Entrypoint:   []string{Program},
		WorkingDir:   HomeDir,
		Labels:       c.Config.Labels,
		ExposedPorts: map[string]struct{}{},
	}
	for _, p := range l.Plan.ports() {
		c.Config.ExposedPorts[p+"/tcp"] = struct{}{}
	}
}

// layer is a layer of an image and what it is packed in.
type layer struct {
	blob
	mediaType string
}

// add puts a layer on top. The id is the hash of the layer unpacked.
func (b *base) add(l layer, id digest.Digest) {
	b.layers = append(b.layers, l)
	b.config.RootFS.Type = "layers"
	b.config.RootFS.DiffIDs = append(b.config.RootFS.DiffIDs, id)
}

// write writes the layout of an image, for one architecture or several. It also
// has the manifest.json of `docker save`, for programs that know nothing else.
func write(ctx context.Context, w io.Writer, name reference, images ...*base) error {
	top, blobs, saved, err := describeAll(name, images)
	if err != nil {
		return err
	}
	index, err := jsonBlob(v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex,
		Manifests: []v1.Descriptor{top}})
	if err != nil {
		return err
	}
	docker, err := jsonBlob(saved)
	if err != nil {
		return err
	}
	version, err := jsonBlob(v1.ImageLayout{Version: v1.ImageLayoutVersion})
	if err != nil {
		return err
	}
	entries := []entry{version.as(v1.ImageLayoutFile), index.as(v1.ImageIndexFile), docker.as(dockerManifest),
		folderEntry(v1.ImageBlobsDir, 0o755, 0), folderEntry(v1.ImageBlobsDir+"/sha256", 0o755, 0)}
	return writeTar(ctx, w, append(entries, once(blobs)...))
}

// as is the blob under a name of its own.
func (b blob) as(name string) entry {
	e := b.entry()
	e.header.Name = name
	return e
}

func jsonBlob(v any) (blob, error) {
	text, err := json.Marshal(v)
	return bytesBlob(text), err
}

// dockerManifest lists the images of what `docker save` writes.
const dockerManifest = "manifest.json"

// dockerImage is one of them.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}
