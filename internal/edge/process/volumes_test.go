package process

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/process/containers"
)

// planted is a replica whose container has a volume and a place in it, and whose last
// container put a link to a folder of this machine's at that place.
func planted(t *testing.T) (u *unit, r *running, outside, foreign string) {
	t.Helper()
	base := t.TempDir()
	outside = filepath.Join(base, "home")
	u = &unit{id: "r-1", o: &owner{}, p: &Platform{cfg: Config{Dir: filepath.Join(base, "data"), Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}}}
	u.model.Verbatim = true
	foreign = filepath.Join(u.p.folder(u.id), "volumes", "v", "a")
	for _, at := range []string{outside, foreign} {
		if err := os.MkdirAll(at, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(foreign, "b")); err != nil {
		t.Fatal(err)
	}
	mounts := []workload.Mount{{Target: "/v", Volume: "v"}, {Target: "/b", Volume: "v", SubPath: "a/b"}}
	r = &running{spec: workload.Process{Container: &workload.Container{Image: "i", Mounts: mounts}},
		container: &contained{name: "c", engine: &containers.Engine{Name: containers.Docker}}}
	return u, r, outside, foreign
}

// untouched checks that a folder is still its owner's alone.
func untouched(t *testing.T, outside string) {
	t.Helper()
	if st, err := os.Stat(outside); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the folder outside is %v, %v", st.Mode(), err)
	}
}

func TestPlantedLink(t *testing.T) {
	u, r, outside, foreign := planted(t)
	if got, err := u.binds(r); err == nil {
		t.Errorf("a link out of the volume is followed: %v", got)
	}
	untouched(t, outside)

	_, args, _, err := u.containerInvocation(r)
	if err != nil {
		t.Fatal(err)
	}
	if want := "--volume=" + filepath.Join(foreign, "b") + ":/b"; !slices.Contains(args, want) {
		t.Errorf("no %s in %q", want, args)
	}
	if st, err := os.Lstat(filepath.Join(foreign, "b")); err != nil || !st.IsDir() || st.Mode().Perm() != 0o777 {
		t.Errorf("the place in the volume is %v, %v", st, err)
	}
	untouched(t, outside)
}

// TestPlaceInFolderOfMachine: a subPath of a hostPath is followed as long as it stays
// in that folder.
func TestPlaceInFolderOfMachine(t *testing.T) {
	base := t.TempDir()
	shared, secret := filepath.Join(base, "shared"), filepath.Join(base, "secret")
	for _, at := range []string{filepath.Join(shared, "models"), secret} {
		if err := os.MkdirAll(at, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"current": "models", "planted": "../secret"} {
		if err := os.Symlink(to, filepath.Join(shared, name)); err != nil {
			t.Fatal(err)
		}
	}
	u, r, _, _ := planted(t)
	for sub, want := range map[string]string{"models": "models", "current": "models", "planted": "", "absent": "", "../secret": ""} {
		r.spec.Container.Mounts = []workload.Mount{{Target: "/m", Source: shared, SubPath: sub}}
		got, err := u.binds(r)
		switch {
		case want == "":
			if err == nil || !strings.Contains(err.Error(), "subPath "+sub) {
				t.Errorf("%s: %v, %v", sub, got, err)
			}
		case err != nil || len(got) != 1 || got[0].Source != filepath.Join(shared, want):
			t.Errorf("%s: %v, %v", sub, got, err)
		}
	}
}

func TestOwnVolume(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "v")
	for sub, within := range map[string]bool{"": true, ".": true, "a/b": true, "a//c/": true, "../w": false, "a/../../w": false, "/etc": false} {
		at, err := ownVolume(dir, sub)
		if (err == nil) != within || within && at != filepath.Join(dir, sub) {
			t.Errorf("%q: %q, %v", sub, at, err)
		}
	}
}

func TestVariables(t *testing.T) {
	lines, inherited, err := variables("podman", []string{"A=1", "CERT=x\ny", "B=*", "C#=#"})
	if lines != "A=1\nB=*\nC#=#\n" || !slices.Equal(inherited, []string{"CERT=x\ny"}) || err != nil {
		t.Errorf("%q %q %v", lines, inherited, err)
	}
	long := "CERT=" + strings.Repeat("x", containers.MaxEnvLine)
	if lines, inherited, err := variables("docker", []string{long}); lines != "" || !slices.Equal(inherited, []string{long}) || err != nil {
		t.Errorf("%d bytes of lines, %d inherited, %v", len(lines), len(inherited), err)
	}
	for _, bad := range []string{"AWS_SECRET_ACCESS_KEY\nX=1", "A\rB=1", "A\x00=1", "*=x\ny", "AWS_*=1", "#A=1", " #A=1", "=1", "PATH=a\nb", "KEY=sup\xffer", "A B=1", " =1", "PATH=" + strings.Repeat("x", containers.MaxEnvLine)} {
		if _, _, err := variables("podman", []string{bad}); err == nil || !strings.Contains(err.Error(), "podman") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestImageNamedAsFlag(t *testing.T) {
	_, err := (&unit{ending: t.Context(), p: &Platform{}}).pull(&containers.Engine{Name: containers.Podman, Path: "/bin/true"}, &workload.Container{Image: "--all-tags"})
	if err == nil || asFailure(err).reason != "InvalidImageName" {
		t.Error(err)
	}
}

// TestPartsInContainer: parts of a model are mounted where they lie, a volume of the
// service's beside them stays, and a link out of a folder of this machine is refused,
// since what is mounted by itself would be what the link leads to.
func TestPartsInContainer(t *testing.T) {
	base := t.TempDir()
	one, two, secret := filepath.Join(base, "one"), filepath.Join(base, "two"), filepath.Join(base, "secret")
	for _, at := range []string{one, two, secret} {
		if err := os.MkdirAll(at, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	opened := func(paths ...string) (*unit, *running) {
		u, r, _, _ := planted(t)
		u.model = workload.Model{Parts: service.Parts{{URI: "file://" + one, Path: paths[0]}, {URI: "file://" + two, Path: paths[1]}}}
		r.root, r.parts = u.model.Parts.Root(), []string{one, two}
		r.spec.Container.Mounts = []workload.Mount{{Target: r.root, Source: secret}, {Target: r.root + "/a", Source: secret}}
		return u, r
	}
	u, r := opened("/data/a", "/data/b")
	if err := u.lay(r); err != nil {
		t.Fatal(err)
	}
	got, err := u.binds(r)
	want := []containers.Bind{{Source: one, Target: "/data/a", ReadOnly: true}, {Source: two, Target: "/data/b", ReadOnly: true}, {Source: secret, Target: "/data"}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v %v, want %v", got, err, want)
	}

	if err := os.Symlink(secret, filepath.Join(one, "evil")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(".", filepath.Join(two, "here")); err != nil {
		t.Fatal(err)
	}
	u, r = opened("/data", "/data")
	if err := u.lay(r); err == nil || !strings.Contains(err.Error(), "evil of file://"+one) || !strings.Contains(err.Error(), "lies outside") {
		t.Errorf("a link out of a folder: %v", err)
	}
}
