package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/printer"
	"roundhouse.dev/roundhouse/internal/edge/hubcache/hubtest"
)

// runHere runs a command line and returns what it prints.
func runHere(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	root := newRootCommand()
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

func tensorFile() []byte {
	const header = `{"model.layers.0.w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},"head\u001b[2J":{"dtype":"F32","shape":[],"data_offsets":[12,16]}}`
	return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...), "0123456789abcdef"...)
}

func TestModelInspect(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.safetensors")
	if err := os.WriteFile(path, tensorFile(), 0o600); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	text, err := runHere(t, "model", "inspect", path, "--data-dir", data)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"model.layers.0.w  BF16  [2,3]  12 B", "head?[2J", "75.0%  ####", "2 tensors with 7 elements in 1 files: 16 B"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if strings.ContainsFunc(text, func(r rune) bool { return r == 0x1b || r > '~' }) {
		t.Errorf("not plain ASCII:\n%q", text)
	}
	text, err = runHere(t, "model", "inspect", dir, "--data-dir", data, "-o", "json", "--read")
	var got printer.Inspection
	if err == nil {
		err = json.Unmarshal([]byte(text), &got)
	}
	if err != nil || got.Bytes != 16 || len(got.Tensors) != 2 || got.Tensors[0].CRC32C != "f4de7f20" || got.Layers[0].Name != "model.layers.0" || got.Read == nil {
		t.Errorf("%v: %+v", err, got)
	}
	if err := os.Truncate(path, int64(len(tensorFile())-1)); err != nil {
		t.Fatal(err)
	}
	if _, err := runHere(t, "model", "inspect", path, "--data-dir", data); err == nil || !strings.Contains(err.Error(), `m.safetensors: malformed header: "head\x1b[2J": ends at byte 16 of 15`) {
		t.Error(err)
	}
}

// TestPull: what was pulled is served without the Hub.
func TestPull(t *testing.T) {
	hub := hubtest.New()
	defer hub.Close()
	t.Setenv("HF_ENDPOINT", hub.URL)
	t.Setenv("HF_HOME", t.TempDir())
	commit := hub.Add("models", "org/m").Commit("main", map[string][]byte{"model.safetensors": tensorFile()}, "model.safetensors")
	data, uri := t.TempDir(), "hf://org/m@"+commit
	before, err := runHere(t, "model", "inspect", uri, "--data-dir", data)
	if err != nil || !strings.Contains(before, "2 tensors") {
		t.Fatal(before, err)
	}
	out, err := runHere(t, "pull", uri, "--data-dir", data)
	if err != nil {
		t.Fatal(out, err)
	}
	raw, err := os.ReadFile(filepath.Join(strings.TrimSpace(out), "model.safetensors"))
	if err != nil || !bytes.Equal(raw, tensorFile()) {
		t.Error(out, err)
	}
	hub.Close()
	if after, err := runHere(t, "model", "inspect", uri, "--data-dir", data); err != nil || after != before {
		t.Error(after, err)
	}
	if _, err := runHere(t, "pull"); err == nil {
		t.Error("pull of nothing")
	}
}

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
	if err := os.WriteFile(filepath.Join(folder, "labels.txt"), []byte("setosa"), 0o600); err != nil {
		t.Fatal(err)
	}
	merged, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"iris.ubj", "labels.txt"} {
		if _, err := runHere(t, "pull", server.URL+"/"+name, "--out", merged, "--merge"); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(merged, "iris.ubj")); err != nil {
			t.Error(err)
		}
	}
	if _, err := runHere(t, "pull", server.URL+"/labels.txt?again", "--out", merged, "--merge"); err == nil || !strings.Contains(err.Error(), "both have") {
		t.Errorf("a second labels.txt: %v", err)
	}
	if _, err := runHere(t, "pull", server.URL+"/absent", "--out", t.TempDir()); err == nil || command.WrongUsage(err) {
		t.Errorf("nothing there: %v, want a failure", err)
	}
	for _, args := range [][]string{
		{"pull", "s3://a/b", "s3://a/c", "--out", out},
		{"pull", "s3://a/b", "--out", out, "--data-dir", t.TempDir()},
		{"pull", "s3://a/b", "--public-only"},
		{"pull", "s3://a/b", "--merge"},
	} {
		if _, err := runHere(t, args...); err == nil || !command.WrongUsage(err) {
			t.Errorf("%v: %v, want wrong usage", args, err)
		}
	}
}

// TestDownloadedModels: what pull downloads is listed and can be removed.
func TestDownloadedModels(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "m.bst", time.Unix(1, 0), strings.NewReader("content"))
	}))
	t.Cleanup(server.Close)
	dir, uri := t.TempDir(), server.URL+"/m.bst"
	run := func(want string, args ...string) {
		t.Helper()
		out, err := runHere(t, append(args, "--data-dir", dir)...)
		if err != nil {
			out += err.Error() + "\n"
		}
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("%v: %q, want %s", args, out, want)
		}
	}
	run(`^No downloaded models\. `+"`roundhouse pull URI`", "model", "list")
	run(regexp.QuoteMeta(dir), "pull", uri)
	run(`^URI +SIZE +PINNED +USED +FOLDER\n`+regexp.QuoteMeta(uri)+` +7 B +- +\d+s ago +`+regexp.QuoteMeta(dir), "model", "list")
	run(`"source": "`+regexp.QuoteMeta(uri), "model", "list", "-o", "json")
	// This process was given the model, and keeps it for as long as the store that
	// pulled it is not collected: the rest is of a copy.
	pulled := dir
	dir = filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(dir, os.DirFS(pulled)); err != nil {
		t.Fatal(err)
	}
	run(`^http://other/m is not in .*: `+"`roundhouse model list` lists what is", "model", "rm", "http://other/m")
	run("^"+regexp.QuoteMeta(uri)+" pinned\n$", "model", "pin", uri)
	run("^"+regexp.QuoteMeta(uri)+" was pinned already\n$", "model", "pin", uri)
	run(` +7 B +yes +`, "model", "list")
	run(`pinned: unpin it first`, "model", "rm", uri)
	run("^"+regexp.QuoteMeta(uri)+" unpinned\n$", "model", "unpin", uri)
	run(`^http://other/m is not in .*: `+"`roundhouse model list` lists what is", "model", "pin", "http://other/m")
	run("^"+regexp.QuoteMeta(uri)+" removed, 7 B freed\n$", "model", "rm", uri)
	run(`^No downloaded models`, "model", "list")
}
