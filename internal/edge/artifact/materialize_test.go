package artifact

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func put(t *testing.T, dir, uri string) error {
	t.Helper()
	return Materialize(t.Context(), dir, Request{URI: uri}, Config{}, nil, nil, nil)
}

func listed(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out
}

func TestMaterializeFile(t *testing.T) {
	data := randomBytes(100<<10, 3)
	o := newOrigin(t, data)
	dir := filepath.Join(t.TempDir(), "models")
	if err := put(t, dir, o.URL+"/iris.ubj"); err != nil {
		t.Fatal(err)
	}
	if got, want := listed(t, dir), []string{pullRecordName, "iris.ubj"}; !slices.Equal(got, want) {
		t.Errorf("the folder holds %v, want %v", got, want)
	}
	if mustRead(t, filepath.Join(dir, "iris.ubj")) != string(data) {
		t.Error("another content")
	}
	info, err := os.Stat(filepath.Join(dir, "iris.ubj"))
	if err != nil || info.Mode().Perm() != 0o644 {
		t.Error("others cannot read it", info, err)
	}
	asked := o.count()
	if err := put(t, dir, o.URL+"/iris.ubj"); err != nil || o.count() != asked {
		t.Errorf("what is there is asked for again: %d requests more, %v", o.count()-asked, err)
	}
	if err := put(t, dir, o.URL+"/other.ubj"); err == nil || !strings.Contains(err.Error(), "holds") {
		t.Errorf("a second model in one folder: %v", err)
	}
	if err := os.Truncate(filepath.Join(dir, "iris.ubj"), 5); err != nil {
		t.Fatal(err)
	}
	if err := put(t, dir, o.URL+"/iris.ubj"); err == nil || !strings.Contains(err.Error(), "empty the folder") {
		t.Errorf("a file cut short: %v", err)
	}
}

func TestMaterializeArchiveAndRefusals(t *testing.T) {
	folder := t.TempDir()
	archive := tarOf(t, tarFile("model/config.json", "{}"), tarFile("README.md", "hello"))
	if err := os.WriteFile(filepath.Join(folder, "m.tar"), archive, 0o600); err != nil {
		t.Fatal(err)
	}
	url := newFiles(t, folder)
	dir := t.TempDir()
	if err := put(t, dir, url+"/m.tar"); err != nil {
		t.Fatal(err)
	}
	if mustRead(t, filepath.Join(dir, "model", "config.json")) != "{}" || mustRead(t, filepath.Join(dir, "README.md")) != "hello" {
		t.Error("another content")
	}
	info, err := os.Stat(filepath.Join(dir, "model"))
	if err != nil || info.Mode().Perm()&0o055 != 0o055 {
		t.Error("others cannot enter the folder", info, err)
	}
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "mine.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := put(t, full, url+"/m.tar"); err == nil || !strings.Contains(err.Error(), "mine.txt") {
		t.Errorf("a folder that is not empty: %v", err)
	}
	if err := put(t, t.TempDir(), "file://"+full); err == nil || !strings.Contains(err.Error(), "copy it") {
		t.Errorf("a local file: %v", err)
	}
	if err := put(t, t.TempDir(), url+"/absent.tar"); err == nil {
		t.Error("nothing there is no error")
	}
}

// TestMaterializeAfterEachStop: wherever it stopped, the next call makes it good.
func TestMaterializeAfterEachStop(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "m.tar"), tarOf(t, tarFile("a", "1"), tarFile("b/c", "2"), tarFile("d", "3")), 0o600); err != nil {
		t.Fatal(err)
	}
	uri := newFiles(t, folder) + "/m.tar"
	for moved := 0; moved <= 3; moved++ {
		dir := t.TempDir()
		want := pullRecord{Source: Redact(uri), Key: digest(uri)[:32]}
		p, err := fetchInto(t.Context(), dir, Request{URI: uri}, Config{Dir: filepath.Join(dir, workName)}, nil, nil, want, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.write(dir); err != nil {
			t.Fatal(err)
		}
		for _, name := range p.Entries[:moved] {
			if err := os.Rename(filepath.Join(dir, p.Tree, name), filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := put(t, dir, uri); err != nil {
			t.Fatalf("after %d entries: %v", moved, err)
		}
		if got, want := listed(t, dir), []string{pullRecordName, "a", "b", "d"}; !slices.Equal(got, want) {
			t.Errorf("after %d entries the folder holds %v", moved, got)
		}
		if mustRead(t, filepath.Join(dir, "b", "c")) != "2" {
			t.Error("another content")
		}
	}
}

func TestMaterializeResumesAfterKill(t *testing.T) {
	data := randomBytes(200<<10, 41)
	o := newOrigin(t, data)
	hold := make(chan struct{})
	o.set(func() { o.hold = hold })
	dir, uri := t.TempDir(), o.URL+"/model.bin"
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "ARTIFACT_TEST_DIR="+filepath.Join(dir, workName), "ARTIFACT_TEST_URI="+uri)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the process was not killed: %v\n%s", err, out)
	}
	close(hold)
	if err := put(t, dir, uri); err != nil {
		t.Fatal(err)
	}
	if got := o.last().Header.Get("Range"); got != "bytes=1-" {
		t.Errorf("resumed with Range %q", got)
	}
	if mustRead(t, filepath.Join(dir, "model.bin")) != string(data) {
		t.Error("another content")
	}
}

func TestMaterializeIsBadAboutForeignRecords(t *testing.T) {
	for _, record := range []string{"", "[]", `{"tree":"/etc","entries":["passwd"]}`, `{"tree":"../x","entries":["a"]}`,
		`{"tree":".roundhouse-work/x","entries":["../a"]}`, `{"tree":"elsewhere","entries":["a"]}`} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, pullRecordName), []byte(record), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := put(t, dir, "https://models.example/x.bin"); err == nil || !strings.Contains(err.Error(), "empty the folder") {
			t.Errorf("record %q: %v", record, err)
		}
	}
}

func TestMaterializeWaitsForAnother(t *testing.T) {
	dir := t.TempDir()
	unlock, err := lockFolder(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lockFolder(ctx, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("a folder that is taken: %v", err)
	}
	unlock()
	if unlock, err = lockFolder(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	unlock()
}
