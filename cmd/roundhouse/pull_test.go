package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
)

// TestPullOut: the files lie in the folder itself, and what is there is not
// asked for again.
func TestPullOut(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "iris.ubj"), []byte("trees"), 0o600); err != nil {
		t.Fatal(err)
	}
	var asked int
	files := http.FileServer(http.Dir(folder))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		files.ServeHTTP(w, r)
	}))
	defer server.Close()
	out := filepath.Join(t.TempDir(), "models")
	for range 2 {
		if printed, err := runHere(t, "pull", server.URL+"/iris.ubj", "--out", out); err != nil || strings.TrimSpace(printed) != out {
			t.Fatal(printed, err)
		}
	}
	raw, err := os.ReadFile(filepath.Join(out, "iris.ubj"))
	if err != nil || string(raw) != "trees" {
		t.Error(string(raw), err)
	}
	if asked != 1 {
		t.Errorf("%d requests, want 1", asked)
	}
	if _, err := runHere(t, "pull", server.URL+"/absent", "--out", t.TempDir()); err == nil || command.WrongUsage(err) {
		t.Errorf("nothing there: %v, want a failure", err)
	}
	for _, args := range [][]string{
		{"pull", "s3://a/b", "s3://a/c", "--out", out},
		{"pull", "s3://a/b", "--out", out, "--data-dir", t.TempDir()},
	} {
		if _, err := runHere(t, args...); err == nil || !command.WrongUsage(err) {
			t.Errorf("%v: %v, want wrong usage", args, err)
		}
	}
}

func TestProgressLines(t *testing.T) {
	var out strings.Builder
	now := time.Unix(0, 0)
	l := progressLines{w: &out, name: "s3://models/iris", now: func() time.Time { return now }}
	for range 25 {
		l.say(artifact.Progress{Done: now.Unix() << 20, Total: 50 << 20})
		now = now.Add(time.Second)
	}
	want := `s3://models/iris: 5.0 MiB of 50.0 MiB (10 %), 1.0 MiB/s
s3://models/iris: 10.0 MiB of 50.0 MiB (20 %), 1.0 MiB/s
s3://models/iris: 15.0 MiB of 50.0 MiB (30 %), 1.0 MiB/s
s3://models/iris: 20.0 MiB of 50.0 MiB (40 %), 1.0 MiB/s
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
