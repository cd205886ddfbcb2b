package image

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"roundhouse.dev/roundhouse/internal/edge/image/imagetest"
)

const (
	amd64 = 62
	arm64 = 183
)

func TestRelease(t *testing.T) {
	r := Release{Tag: "registry.example/roundhouse:v1", Roots: []byte("certificates"), Programs: [][]string{
		{fakeELF(t, amd64, "roundhouse"), fakeELF(t, amd64, "roundhouse-server")},
		{fakeELF(t, arm64, "roundhouse"), fakeELF(t, arm64, "roundhouse-server")},
	}}
	var text, again bytes.Buffer
	if err := WriteRelease(t.Context(), &text, r); err != nil {
		t.Fatal(err)
	}
	if err := WriteRelease(t.Context(), &again, r); err != nil || !bytes.Equal(text.Bytes(), again.Bytes()) {
		t.Errorf("a second image differs, %v", err)
	}
	images := imagetest.ReadAll(t, text.Bytes())
	if len(images) != 2 {
		t.Fatalf("%d images", len(images))
	}
	for n, architecture := range []string{"amd64", "arm64"} {
		i := images[n]
		want := v1.ImageConfig{User: "65532:65532", Env: []string{"PATH=/", "HOME=/tmp"}, Entrypoint: []string{"/roundhouse"}, WorkingDir: "/"}
		if !reflect.DeepEqual(i.Config.Config, want) || i.Config.Architecture != architecture || len(i.Manifest.Layers) != 3 {
			t.Errorf("%s, %d layers: %+v", i.Config.Architecture, len(i.Manifest.Layers), i.Config.Config)
		}
		if i.Descriptor.Annotations["io.containerd.image.name"] != r.Tag || !slices.Equal(i.Docker[n].RepoTags, []string{r.Tag + "-" + architecture}) {
			t.Errorf("named %v, %v", i.Descriptor.Annotations, i.Docker[n])
		}
		root := t.TempDir()
		i.Unpack(t, root)
		for name, mode := range map[string]os.FileMode{"roundhouse": 0o755, "roundhouse-server": 0o755, "tmp": 0o777 | os.ModeDir | os.ModeSticky} {
			if info, err := os.Stat(filepath.Join(root, name)); err != nil || info.Mode() != mode {
				t.Errorf("%s: %v %v, want %v", name, info, err, mode)
			}
		}
		if got, err := os.ReadFile(filepath.Join(root, "etc/ssl/certs/ca-certificates.crt")); err != nil || string(got) != "certificates" {
			t.Errorf("certificates: %q %v", got, err)
		}
	}
	if a, b := images[0].Manifest.Layers[0], images[1].Manifest.Layers[0]; a.Digest != b.Digest {
		t.Error("the architectures do not share the layer without programs")
	}
}

// TestReleaseTree: an image with libraries takes programs that need them.
func TestReleaseTree(t *testing.T) {
	tree := t.TempDir()
	library := filepath.Join(tree, "lib64/ld.so")
	if err := errors.Join(os.MkdirAll(filepath.Dir(library), 0o755), os.WriteFile(library, []byte("loader"), 0o600)); err != nil {
		t.Fatal(err)
	}
	r := Release{Tag: "a", Programs: [][]string{{fakeELF(t, amd64, "roundhouse")}}, Trees: []string{tree}}
	var text bytes.Buffer
	if err := WriteRelease(t.Context(), &text, r); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	imagetest.Read(t, text.Bytes()).Unpack(t, root)
	got, err := os.ReadFile(filepath.Join(root, "lib64/ld.so"))
	info, statErr := os.Stat(filepath.Join(root, "lib64/ld.so"))
	if err != nil || statErr != nil || string(got) != "loader" || info.Mode().Perm() != 0o444 {
		t.Errorf("%q %v %v", got, info, errors.Join(err, statErr))
	}
	r.Trees = append(r.Trees, tree)
	if err := WriteRelease(t.Context(), io.Discard, r); err == nil || !strings.Contains(err.Error(), "a tree") {
		t.Errorf("a tree too many: %v", err)
	}
	if err := os.Symlink("ld.so", filepath.Join(tree, "lib64/link")); err != nil {
		t.Fatal(err)
	}
	r.Trees = r.Trees[:1]
	if err := WriteRelease(t.Context(), io.Discard, r); err == nil || !strings.Contains(err.Error(), "neither a file nor a folder") {
		t.Errorf("a link: %v", err)
	}
}

func TestReleaseErrors(t *testing.T) {
	one, other := fakeELF(t, amd64, "roundhouse"), fakeELF(t, arm64, "roundhouse")
	for _, c := range []struct {
		name     string
		tag      string
		programs [][]string
		want     string
	}{
		{"a tag", "Not A Tag", [][]string{{one}}, "no image name"},
		{"nothing", "a", nil, "needs programs"},
		{"an empty list", "a", [][]string{{}}, "needs programs"},
		{"twice", "a", [][]string{{one}, {one}}, "programs for amd64 already"},
		{"mixed", "a", [][]string{{one, other}}, "for arm64"},
		{"other programs", "a", [][]string{{one}, {fakeELF(t, arm64, "other")}}, "the same programs"},
		{"fewer programs", "a", [][]string{{one, fakeELF(t, amd64, "more")}, {other}}, "the same programs"},
		{"no program", "a", [][]string{{filepath.Join(t.TempDir(), "missing")}}, "no such file"},
	} {
		err := WriteRelease(t.Context(), io.Discard, Release{Tag: c.tag, Programs: c.programs})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}
