package artifact

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func tarOf(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		content := h.Uname // the content travels in a field that is not used
		h.Uname = ""
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		h.Size = int64(len(content))
		h.Mode = 0o644
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gzipOf(t *testing.T, raw []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(raw); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zipOf(t *testing.T, mode fs.FileMode, files ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		h := &zip.FileHeader{Name: files[i], Method: zip.Deflate}
		h.SetMode(mode)
		f, err := w.CreateHeader(h)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte(files[i+1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestFetchArchives(t *testing.T) {
	plain := tarOf(t,
		tar.Header{Name: "./", Typeflag: tar.TypeDir},
		tar.Header{Name: "./model/config.json", Uname: "{}"},
		tar.Header{Name: "model/weights.bin", Uname: "w"},
		tar.Header{Name: "model/same.bin", Typeflag: tar.TypeSymlink, Linkname: "weights.bin"},
		tar.Header{Name: "model/hard.bin", Typeflag: tar.TypeLink, Linkname: "model/weights.bin"},
	)
	for name, data := range map[string][]byte{
		"m.tar": plain, "m.tar.gz": gzipOf(t, plain), "m.TGZ": gzipOf(t, plain),
		"m.zip":                  zipOf(t, 0o644, "model/config.json", "{}", "model/weights.bin", "w", "model/same.bin", "w", "model/hard.bin", "w"),
		"download?file=m.tar.gz": gzipOf(t, plain),
	} {
		t.Run(name, func(t *testing.T) {
			o := newOrigin(t, data)
			s := newStore(t, nil)
			dir, err := s.Fetch(t.Context(), Request{URI: o.URL + "/" + name}, nil)
			if err != nil {
				t.Fatal(err)
			}
			for file, want := range map[string]string{"config.json": "{}", "weights.bin": "w", "same.bin": "w", "hard.bin": "w"} {
				if got := mustRead(t, filepath.Join(dir, "model", file)); got != want {
					t.Errorf("%s = %q", file, got)
				}
			}
			if second, err := s.Fetch(t.Context(), Request{URI: o.URL + "/" + name}, nil); second != dir || err != nil {
				t.Errorf("again: %q, %v", second, err)
			}
		})
	}
}

func TestHostileArchives(t *testing.T) {
	many := make([]tar.Header, 60)
	for i := range many {
		many[i] = tar.Header{Name: "d" + strings.Repeat("x", i)}
	}
	whole := gzipOf(t, tarOf(t, tar.Header{Name: "a", Uname: strings.Repeat("abc", 1000)}))
	for name, tc := range map[string]struct {
		data []byte
		word string
	}{
		"up.tar":       {tarOf(t, tar.Header{Name: "../evil", Uname: "x"}), "outside"},
		"deep.tar":     {tarOf(t, tar.Header{Name: "a/../../evil", Uname: "x"}), "outside"},
		"abs.tar":      {tarOf(t, tar.Header{Name: "/evil", Uname: "x"}), "outside"},
		"symlink.tar":  {tarOf(t, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../../.."}, tar.Header{Name: "l/evil", Uname: "x"}), "outside"},
		"abslink.tar":  {tarOf(t, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}), "outside"},
		"hardlink.tar": {tarOf(t, tar.Header{Name: "l", Typeflag: tar.TypeLink, Linkname: "../../store"}), "outside"},
		"chain.tar": {tarOf(t, tar.Header{Name: "a/b/c", Typeflag: tar.TypeDir}, tar.Header{Name: "s", Typeflag: tar.TypeSymlink, Linkname: "a/b/c"},
			tar.Header{Name: "a/t", Typeflag: tar.TypeSymlink, Linkname: "../s/../../../../evil"}), "outside"},
		"chain2.tar": {tarOf(t, tar.Header{Name: "x", Typeflag: tar.TypeSymlink, Linkname: "."}, tar.Header{Name: "y", Typeflag: tar.TypeSymlink, Linkname: "x/.."},
			tar.Header{Name: "y/../../evil", Uname: "x"}), "outside"},
		"chain3.tar": {tarOf(t, tar.Header{Name: "y", Typeflag: tar.TypeSymlink, Linkname: "x/../.."}, tar.Header{Name: "z", Typeflag: tar.TypeSymlink, Linkname: "x/.."},
			tar.Header{Name: "x", Typeflag: tar.TypeSymlink, Linkname: "."}), "outside"},
		"chain4.tar": {tarOf(t, tar.Header{Name: "z", Typeflag: tar.TypeSymlink, Linkname: "x/.."},
			tar.Header{Name: "x", Typeflag: tar.TypeSymlink, Linkname: "."}), "outside"},
		"hardlinked-symlink.tar": {tarOf(t, tar.Header{Name: "a/b/s", Typeflag: tar.TypeSymlink, Linkname: "../../evil"},
			tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "a/b/s"}), "outside"},
		"twice.tar":     {tarOf(t, tar.Header{Name: "a", Uname: "1"}, tar.Header{Name: "a", Uname: "2"}), "twice"},
		"fifo.tar":      {tarOf(t, tar.Header{Name: "f", Typeflag: tar.TypeFifo}), "neither"},
		"many.tar":      {tarOf(t, many...), "maxFiles"},
		"cut.tgz":       {whole[:len(whole)-20], "unpack"},
		"not.tar.gz":    {[]byte("<html>"), "unpack"},
		"not.zip":       {[]byte("<html>"), "unpack"},
		"bomb.tar.gz":   {gzipOf(t, tarOf(t, tar.Header{Name: "zeros", Uname: strings.Repeat("\x00", 5<<20)})), "maxBytes"},
		"bomb.zip":      {zipOf(t, 0o644, "zeros", strings.Repeat("\x00", 5<<20)), "maxBytes"},
		"up.zip":        {zipOf(t, 0o644, "../evil", "x"), "outside"},
		"link.zip":      {zipOf(t, 0o777|fs.ModeSymlink, "l", "../../evil"), "outside"},
		"backslash.zip": {zipOf(t, 0o644, `..\evil`, "x"), "outside"},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOrigin(t, tc.data)
			s := newStore(t, func(c *Config) { c.MaxFiles, c.MaxBytes = 50, 4<<20 })
			req := Request{URI: o.URL + "/" + name}
			_, err := s.Fetch(t.Context(), req, nil)
			wantError(t, err, tc.word)
			if _, ok := s.Lookup(req); ok {
				t.Error("taken for complete")
			}
			if left, _ := filepath.Glob(filepath.Join(s.cfg.Dir, "partial", "*", "tree")); len(left) > 0 {
				t.Errorf("what was unpacked stays: %v", left)
			}
			_ = filepath.WalkDir(filepath.Dir(s.cfg.Dir), func(p string, d fs.DirEntry, err error) error {
				if d != nil && d.Name() == "evil" {
					t.Errorf("written: %s", p)
				}
				return err
			})
		})
	}
}

func TestArchiveExpansionIsBounded(t *testing.T) {
	s := newStore(t, nil)
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	u := &unpacker{ctx: t.Context(), folder: s.folder, root: root, bytes: 1000, budget: 1000}
	wantError(t, u.file("a", zeros{}), "unpacks to more than 1000 B")
}

// TestArchivesHeedTheStoresBound: a small archive cannot fill more of the disk
// than the store may hold.
func TestArchivesHeedTheStoresBound(t *testing.T) {
	o := newOrigin(t, gzipOf(t, tarOf(t, tar.Header{Name: "zeros", Uname: strings.Repeat("\x00", 3<<20)})))
	s := newStore(t, func(c *Config) { c.StoreBytes = 2 << 20 })
	_, err := s.Fetch(t.Context(), Request{URI: o.URL + "/model.tar.gz"}, nil)
	wantError(t, err, "unpacks to more than 2.0 MiB")
}

func tarFile(name, content string) tar.Header { return tar.Header{Name: name, Uname: content} }
