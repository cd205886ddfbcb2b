package artifact

import (
	"archive/tar"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMerge: artifacts of several URIs in one folder and in folders within, in either
// order, and after each stop; and what they may not do to each other.
func TestMerge(t *testing.T) {
	folder := t.TempDir()
	for name, files := range map[string][]tar.Header{
		"base":   {tarFile("config.json", "{}"), tarFile("tokenizer/vocab.txt", "words"), tarFile("LICENSE", "base")},
		"more":   {tarFile("tokenizer/merges.txt", "a b"), tarFile("weights.bin", "1234")},
		"same":   {tarFile("tokenizer/vocab.txt", "other words")},
		"file":   {tarFile("tokenizer", "a file")},
		"below":  {tarFile("LICENSE/terms.txt", "none")},
		"record": {tarFile("tokenizer/.roundhouse-pull-x", "{}")},
		"link":   {tar.Header{Name: "tokenizer", Typeflag: tar.TypeSymlink, Linkname: "elsewhere"}, tarFile("elsewhere/x", "1")},
	} {
		if err := os.WriteFile(filepath.Join(folder, name+".tar"), tarOf(t, files...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	url := newFiles(t, folder)
	into := func(dir, name string) error {
		return Merge(t.Context(), dir, Request{URI: url + "/" + name + ".tar"}, Config{}, nil, nil, nil)
	}
	fresh := func() string {
		dir, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, "models")
	}
	for _, order := range [][2]string{{"base", "more"}, {"more", "base"}} {
		dir := fresh()
		for range 2 { // the second time all is there
			for _, name := range order {
				if err := into(dir, name); err != nil {
					t.Fatal(err)
				}
			}
		}
		for name, want := range map[string]string{"config.json": "{}", "tokenizer/vocab.txt": "words", "tokenizer/merges.txt": "a b", "weights.bin": "1234", "LICENSE": "base"} {
			if got := mustRead(t, filepath.Join(dir, name)); got != want {
				t.Errorf("%s: %q", name, got)
			}
		}
		if info, err := os.Stat(filepath.Join(dir, "tokenizer")); err != nil || info.Mode().Perm() != 0o755 {
			t.Error("others cannot read a folder", info, err)
		}
	}
	for _, c := range []struct{ first, second, want string }{
		{"base", "same", "/base.tar and " + url + "/same.tar both have "},
		{"base", "file", "/base.tar and "}, {"file", "base", "/file.tar and "},
		{"base", "below", "/base.tar and "}, {"below", "base", "/below.tar and "},
		{"base", "record", "a name that is taken"}, {"link", "base", "/link.tar and "},
	} {
		dir := fresh()
		if err := into(dir, c.first); err != nil {
			t.Fatal(err)
		}
		for range 2 { // it stays one
			err := into(dir, c.second)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s after %s: %v, want %q", c.second, c.first, err, c.want)
			}
		}
		if c.first == "base" && mustRead(t, filepath.Join(dir, "tokenizer", "vocab.txt")) != "words" {
			t.Error("a file was replaced")
		}
	}

	// A folder within another's: whichever comes first.
	for _, order := range [][2]string{{"base", "more"}, {"more", "base"}} {
		dir := fresh()
		for _, name := range order {
			at := dir
			if name == "more" {
				at = filepath.Join(dir, "tokenizer")
			}
			if err := into(at, name); err != nil {
				t.Fatal(err)
			}
		}
		if mustRead(t, filepath.Join(dir, "tokenizer", "weights.bin")) != "1234" || mustRead(t, filepath.Join(dir, "tokenizer", "vocab.txt")) != "words" {
			t.Error("another content")
		}
		if err := into(filepath.Join(dir, "tokenizer"), "same"); err != nil {
			t.Errorf("vocab.txt in a folder of the folder: %v", err)
		}
	}
	dir := fresh()
	if err := into(dir, "link"); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]string{"tokenizer": "leads to", "elsewhere/x": "another URI has a file"} {
		if err := into(filepath.Join(dir, at), "more"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("in what another brought at %s: %v", at, err)
		}
	}
	if err := os.Truncate(filepath.Join(dir, "elsewhere", "x"), 0); err != nil {
		t.Fatal(err)
	}
	if err := into(dir, "link"); err == nil || !strings.Contains(err.Error(), "empty the folder") {
		t.Errorf("a file cut short: %v", err)
	}

	// Wherever it stopped, the next call makes it good.
	for moved := range 3 {
		dir := fresh()
		req := Request{URI: url + "/base.tar"}
		if err := into(dir, "more"); err != nil {
			t.Fatal(err)
		}
		want := recordOf(req)
		want.Merged = "-" + want.Key
		p, err := fetchInto(t.Context(), dir, req, Config{Dir: filepath.Join(dir, workName)}, nil, nil, want, nil)
		if err != nil {
			t.Fatal(err)
		}
		if p.Entries, err = filesOf(filepath.Join(dir, p.Tree), p.Entries); err != nil || len(p.Entries) != 3 {
			t.Fatal(p.Entries, err)
		}
		if err := p.write(dir); err != nil {
			t.Fatal(err)
		}
		for _, name := range p.Entries[:moved] {
			if err := os.Rename(filepath.Join(dir, p.Tree, name), filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := into(dir, "base"); err != nil || mustRead(t, filepath.Join(dir, "tokenizer", "vocab.txt")) != "words" {
			t.Errorf("after %d files: %v", moved, err)
		}
	}
}
