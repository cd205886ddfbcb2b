package datadir

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

func lines(t *testing.T, f *EventFiles) []string {
	t.Helper()
	all, err := f.Lines()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(bytes.Join(all, []byte("\n"))), "\n")
}

func TestEventFiles(t *testing.T) {
	d, err := Open(t.TempDir() + "/data")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	f := d.Events()
	if all, err := f.Lines(); err != nil || len(all) != 0 {
		t.Fatal(all, err)
	}
	appended := func(line string) {
		t.Helper()
		if err := f.Append([]byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	appended("one")
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	half, err := os.OpenFile(d.Path(eventsFile), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = half.WriteString(`{"half`)
	}
	if err != nil || half.Close() != nil {
		t.Fatal(err)
	}
	f = d.Events()
	appended("two")
	if got := strings.Join(lines(t, f), "|"); got != `one|{"half|two` {
		t.Errorf("after a crash: %s", got)
	}

	long := strings.Repeat("x", 100<<10)
	for range 60 { // 6 MB
		appended(long)
	}
	for _, name := range []string{eventsFile, oldEventsFile} {
		if info, err := os.Stat(d.Path(name)); err != nil || info.Size() > maxEventsFile+(200<<10) || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v (%v)", name, info, err)
		}
	}
	if got := lines(t, f); len(got) < 22 || got[len(got)-1] != long {
		t.Errorf("%d lines", len(got))
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
