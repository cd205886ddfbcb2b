package datadir

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/usage"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

func open(t *testing.T, path string) *Dir {
	t.Helper()
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() }) // again, where a test closed it
	return d
}

func wants(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("want an error")
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("want %q in: %v", p, err)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	first := open(t, dir)
	_, err := Open(dir)
	wants(t, err, dir, "in use by the roundhouse with pid", "--data-dir")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory's mode is %v (%v)", info.Mode(), err)
	}
}

func TestVersion(t *testing.T) {
	dir := t.TempDir()
	if err := open(t, dir).Close(); err != nil {
		t.Fatal(err)
	}
	if got := read(t, filepath.Join(dir, "VERSION")); got != "1\n" {
		t.Errorf("VERSION is %q", got)
	}
	for version, parts := range map[string][]string{
		"2\n":  {"has version 2, this roundhouse reads 1", "--data-dir"},
		"99":   {"version 99"},
		"0":    {"no version", "VERSION"},
		"-1":   {"no version"},
		"":     {"no version"},
		"four": {`"four" is no version`, "--data-dir"},
	} {
		write(t, filepath.Join(dir, "VERSION"), version)
		_, err := Open(dir)
		wants(t, err, parts...)
		if got := read(t, filepath.Join(dir, "VERSION")); got != version {
			t.Errorf("a refused directory was written: VERSION is %q", got)
		}
	}
	write(t, filepath.Join(dir, "VERSION"), "1\n")
	open(t, dir) // every refusal gave the lock back
}

// TestMigrate takes a directory from version 1 to 3 in two steps, the second of
// which fails at first.
func TestMigrate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "VERSION"), "1\n")
	write(t, filepath.Join(dir, "objects.yaml"), "old")
	write(t, filepath.Join(dir, "admin-token"), "secret")
	if err := os.Mkdir(filepath.Join(dir, "models"), 0o700); err != nil {
		t.Fatal(err)
	}
	var broken error
	firsts := 0
	plan := layout{version: 3, steps: map[int]func(string) error{
		1: func(dir string) error {
			firsts++
			return os.WriteFile(filepath.Join(dir, "objects.yaml"), []byte("newer"), 0o600)
		},
		2: func(dir string) error {
			if broken == nil {
				return os.WriteFile(filepath.Join(dir, "objects.yaml"), []byte("newest"), 0o600)
			}
			return broken
		},
	}}
	backup := dir + ".v1.backup"
	write(t, dir+".v1.backup.partial", "left by a crash")
	broken = errors.New("out of luck")
	err := plan.check(dir)
	wants(t, err, "migrate from version 2: out of luck", backup)
	if got := read(t, filepath.Join(backup, "objects.yaml")); got != "old" {
		t.Errorf("the backup holds %q", got)
	}
	if info, err := os.Stat(filepath.Join(backup, "admin-token")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("in the backup the token has mode %v (%v)", info.Mode(), err)
	}
	if _, err := os.Stat(filepath.Join(backup, "models")); err == nil {
		t.Error("the backup holds the models")
	}
	broken = nil
	if err := plan.check(dir); err != nil {
		t.Fatal(err)
	}
	if v, o := read(t, filepath.Join(dir, "VERSION")), read(t, filepath.Join(dir, "objects.yaml")); v != "3\n" || o != "newest" || firsts != 1 {
		t.Errorf("migrated, VERSION is %q, the objects are %q, and the first step ran %d times", v, o, firsts)
	}
	if got := read(t, filepath.Join(backup, "objects.yaml")); got != "old" {
		t.Errorf("the first backup was overwritten: %q", got)
	}
	write(t, filepath.Join(dir, "VERSION"), "1\n")
	delete(plan.steps, 2)
	wants(t, plan.check(dir), "cannot migrate")
}

// TestWriteFile: a write that fails leaves the old content and no other file.
func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := writeFile(SystemDisk{}, path, []byte("one")); err != nil {
		t.Fatal(err)
	}
	if err := writeFile(SystemDisk{}, path, []byte("two")); err != nil {
		t.Fatal(err)
	}
	if got := read(t, path); got != "two" {
		t.Errorf("written was %q", got)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v (%v)", info.Mode(), err)
	}
	if err := os.Mkdir(filepath.Join(dir, "taken"), 0o700); err != nil {
		t.Fatal(err)
	}
	wants(t, writeFile(SystemDisk{}, filepath.Join(dir, "taken"), []byte("x")), "write "+filepath.Join(dir, "taken"))
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("left behind: %v (%v)", entries, err)
	}
}

func objects(t *testing.T, manifest string) (out []fleet.Object) {
	t.Helper()
	read := dialect.Read("m.yaml", []byte(manifest))
	if bad := read.Errors(dialect.Process); len(bad) > 0 {
		t.Fatal(bad)
	}
	for _, o := range read.Objects {
		out = append(out, fleet.Object{Object: o, Source: "/m/m.yaml", URIs: map[string]string{"file://a": "file:///m/a"}})
		out[len(out)-1].SetCreated(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	}
	return out
}

const manifests = `# A comment that people rely on.
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: iris, namespace: east}
spec: {model: {uri: "file://a", format: {name: xgboost}}}
---
apiVersion: serving.kserve.io/v1alpha1
kind: ClusterServingRuntime
metadata: {name: trees}
spec:
  supportedModelFormats: [{name: tree, version: "1"}]
  containers: [{name: kserve-container, image: trees}]
---
apiVersion: ome.io/v1beta1
kind: ClusterBaseModel
metadata: {name: base}
spec:
  modelFormat: {name: safetensors}
  storage: {storageUri: hf://a/b}
`

// TestStore: what is put is what a later directory loads.
func TestStore(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	put := objects(t, manifests)
	put[0].Earlier = &fleet.Earlier{Original: []byte("kind: Before\n"), URIs: map[string]string{"file://b": "file:///m/b"}, Patch: map[string]any{"spec": map[string]any{"stopped": true}}}
	for _, o := range put {
		if err := d.PutObject(o); err != nil {
			t.Fatal(err)
		}
	}
	record := fleet.Record{Service: put[0].Key, Selection: "s", Revision: workload.Revision{Service: put[0].Key, Name: "iris-1", Hash: "1",
		Components: []workload.Component{{Role: service.RoleEngine, Limits: service.Limits{Max: 3, Target: 1.5, ScaleToZeroAfter: time.Minute}}}}}
	if err := d.PutRecord(record); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = open(t, dir)
	got, records, err := d.Load()
	if err != nil || len(got) != 3 || len(records) != 1 {
		t.Fatalf("loaded %d objects, %d records (%v)", len(got), len(records), err)
	}
	for _, want := range put {
		i := slices.IndexFunc(got, func(o fleet.Object) bool { return o.ID() == want.ID() })
		if i < 0 {
			t.Fatalf("%s is not loaded", want.ID())
		}
		g := got[i]
		if string(g.Original) != string(want.Original) || g.Source != want.Source || !g.Created().Equal(want.Created()) ||
			g.URIs["file://a"] != "file:///m/a" || g.Origin.File != "m.yaml" {
			t.Errorf("loaded %+v, put %+v", g, want)
		}
		if !reflect.DeepEqual(g.Earlier, want.Earlier) {
			t.Errorf("loaded %+v, put %+v", g.Earlier, want.Earlier)
		}
	}
	limits := records[0].Revision.Components[0].Limits
	if records[0].Service != record.Service || records[0].Revision.Hash != "1" || limits.ScaleToZeroAfter != time.Minute || limits.Target != 1.5 {
		t.Errorf("loaded %+v", records[0])
	}
	for _, o := range put {
		if err := errors.Join(d.DeleteObject(o.ID()), d.DeleteObject(o.ID()), d.DeleteRecord(o.Key)); err != nil {
			t.Error(err)
		}
	}
	if got, records, err := d.Load(); err != nil || len(got)+len(records) != 0 {
		t.Errorf("deleted, %d objects and %d records are left (%v)", len(got), len(records), err)
	}
}

// TestLoadReportsWhatItCannotRead and loads the rest.
func TestLoadReportsWhatItCannotRead(t *testing.T) {
	d := open(t, t.TempDir())
	all := objects(t, manifests)
	for _, o := range all {
		if err := d.PutObject(o); err != nil {
			t.Fatal(err)
		}
	}
	broken := d.objectPath(all[1].ID())
	write(t, broken, "manifest: |\n  apiVersion: roundhouse.dev/v9\n  kind: Nothing\n")
	write(t, filepath.Join(filepath.Dir(broken), "torn.yaml"), "a: [")
	write(t, filepath.Join(filepath.Dir(broken), ".new-123"), "left by a crash")
	got, _, err := d.Load()
	wants(t, err, broken, "torn.yaml")
	if strings.Contains(err.Error(), ".new-123") {
		t.Errorf("what a crash left is no object: %v", err)
	}
	if len(got) != 2 {
		t.Errorf("%d objects were loaded, want the 2 good ones", len(got))
	}
	if read(t, broken) == "" {
		t.Error("what cannot be read was not left as it was")
	}
}

func TestToken(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadToken(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a server: %v", err)
	}
	d := open(t, dir)
	made, err := d.Token()
	if err != nil || len(made) < 20 {
		t.Fatalf("token %q (%v)", made, err)
	}
	again, err := d.Token()
	if err != nil || again != made {
		t.Errorf("a second call gives %q (%v)", again, err)
	}
	if theirs, err := ReadToken(dir); err != nil || theirs != made {
		t.Errorf("a client reads %q (%v)", theirs, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "admin-token")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v (%v)", info.Mode(), err)
	}
	write(t, filepath.Join(dir, "admin-token"), "\n")
	_, err = d.Token()
	wants(t, err, "admin-token is empty: remove it")
}

func TestDefault(t *testing.T) {
	for _, c := range []struct{ env, value, want string }{
		{"HOME", "/h", "/h/.local/state/roundhouse"},
		{"XDG_STATE_HOME", "/s", "/s/roundhouse"},
		{"ROUNDHOUSE_DATA_DIR", "/d", "/d"},
		{"HOME", "", ""},
	} {
		t.Run(c.env, func(t *testing.T) {
			t.Setenv("XDG_STATE_HOME", "")
			t.Setenv("ROUNDHOUSE_DATA_DIR", "")
			t.Setenv(c.env, c.value)
			if got := Default(); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// TestOthersFoldersAreRefused: what lies in the data directory is run, so it is
// not opened where another user could put files.
func TestOthersFoldersAreRefused(t *testing.T) {
	mode := func(path string, mode os.FileMode) func(t *testing.T, base string) {
		return func(t *testing.T, base string) {
			at := filepath.Join(base, path)
			if err := os.MkdirAll(at, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(at, mode); err != nil {
				t.Fatal(err)
			}
		}
	}
	owner := func(path string) func(t *testing.T, base string) {
		return func(t *testing.T, base string) {
			mode(path, 0o755)(t, base)
			if err := os.Chown(filepath.Join(base, path), 12345, 12345); err != nil {
				t.Skipf("only root gives folders away: %v", err)
			}
		}
	}
	for name, c := range map[string]struct {
		prepare func(t *testing.T, base string)
		want    string // part of the error, "" for none
	}{
		"its own":                     {mode("up/data", 0o755), ""},
		"writable by anybody":         {mode("up/data", 0o777), "up/data may be written by anybody"},
		"sticky":                      {mode("up/data", 0o777|os.ModeSticky), "up/data may be written by anybody"},
		"another's":                   {owner("up/data"), "up/data belongs to user 12345"},
		"below one of anybody's":      {mode("up", 0o777), "up may be written by anybody"},
		"below a sticky one":          {mode("up", 0o777|os.ModeSticky), ""},
		"below another's":             {owner("up"), "up belongs to user 12345"},
		"with models of anybody's":    {mode("up/data/models", 0o777), "models may be written by anybody"},
		"with a hub cache of another": {owner("up/data/hub"), "hub belongs to user 12345"},
		"a link into one of anybody's": {func(t *testing.T, base string) {
			mode("elsewhere", 0o777)(t, base)
			mode("up", 0o755)(t, base)
			if err := os.Symlink(filepath.Join(base, "elsewhere"), filepath.Join(base, "up", "data")); err != nil {
				t.Fatal(err)
			}
		}, "elsewhere may be written by anybody"},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			c.prepare(t, base)
			d, err := Open(filepath.Join(base, "up", "data"))
			if err == nil {
				err = d.Close()
			}
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "--data-dir")) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	if _, err := Open(""); !errors.Is(err, ErrHomeless) {
		t.Errorf("without a name: %v", err)
	}
}

// TestHalfWrittenFilesAreSwept: what a crash left behind is gone at the next
// start, and nothing else.
func TestHalfWrittenFilesAreSwept(t *testing.T) {
	dir := t.TempDir()
	for _, sub := range []string{objectsDir, recordsDir} {
		if err := os.MkdirAll(filepath.Join(dir, sub, "services", "default"), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, sub, ".new-123"), "half")
		write(t, filepath.Join(dir, sub, "services", "default", ".new-456"), "half")
		write(t, filepath.Join(dir, sub, "services", "default", "other"), "whole")
	}
	open(t, dir)
	for _, sub := range []string{objectsDir, recordsDir} {
		for _, c := range []struct{ folder, want string }{{"", "services"}, {"services/default", "other"}} {
			entries, err := os.ReadDir(filepath.Join(dir, sub, c.folder))
			if err != nil || len(entries) != 1 || entries[0].Name() != c.want {
				t.Errorf("%s/%s holds %v, %v", sub, c.folder, entries, err)
			}
		}
	}
}

// TestUsageFiles: days are files that survive, a broken one is set aside and the day
// counted anew, and other files are nobody's days.
func TestUsageFiles(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir).Usage()
	rows := []usage.Row{{Day: "2026-11-22", Account: usage.Account{Namespace: "default", Service: "iris", Component: service.RoleEngine},
		Use: usage.Use{Replicas: usage.ByState{Idle: 1.25}, GPUs: usage.ByState{Idle: 2.5}}}}
	counted := time.Date(2026, 11, 22, 10, 0, 0, 7, time.UTC)
	for _, day := range []usage.Day{"2026-11-22", "2026-11-21"} {
		if err := f.Save(day, rows, counted); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{".new-123", "2026-11-20.json.unreadable", "notes.txt", "2026-13-01.json"} {
		write(t, filepath.Join(dir, "usage", name), "x")
	}
	days, err := f.Days()
	if err != nil || !slices.Equal(days, []usage.Day{"2026-11-21", "2026-11-22"}) {
		t.Errorf("days %v (%v)", days, err)
	}
	got, at, err := f.Load("2026-11-22")
	if err != nil || !slices.Equal(got, rows) || !at.Equal(counted) {
		t.Errorf("%+v, counted until %v (%v)", got, at, err)
	}
	write(t, filepath.Join(dir, "usage", "2026-11-22.json"), `{"rows": [{"day`)
	if _, _, err = f.Load("2026-11-22"); err == nil {
		t.Error("half a file was read")
	} else {
		wants(t, err, "2026-11-22.json", "counted anew")
	}
	if got, _, err := f.Load("2026-11-22"); err != nil || len(got) != 0 {
		t.Errorf("then: %v, %v", got, err)
	}
	if err := errors.Join(f.Drop("2026-11-21"), f.Drop("2026-11-21")); err != nil {
		t.Error(err)
	}
	if days, _ := f.Days(); len(days) != 0 {
		t.Errorf("left: %v", days)
	}
}

// TestLockOfTheDead: a lock that a killed process has left to one it was starting is
// waited for; that of a process that lives is not.
func TestLockOfTheDead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	held, err := takeLock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := takeLock(path); err == nil || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Fatalf("taken twice: %v", err)
	}
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strconv.Itoa(gone.Process.Pid)), 0o600); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(lockGrace/10, func() { _ = held.Close() })
	f, err := takeLock(path)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
}
