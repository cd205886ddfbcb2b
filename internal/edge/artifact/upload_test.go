package artifact

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
)

func TestUploadFile(t *testing.T) {
	s := newStore(t, nil)
	data := randomBytes(100_000, 20)
	u := Upload{SHA256: sum(data), Size: int64(len(data)), Name: "iris.ubj"}
	if s.HasUpload(u) {
		t.Fatal("has it before it came")
	}
	uri, err := s.PutUpload(t.Context(), u, bytes.NewReader(data))
	if err != nil || uri != "upload://"+u.SHA256+"/iris.ubj" || !s.HasUpload(u) {
		t.Fatal(uri, err)
	}
	path, err := again(t, s).Fetch(t.Context(), Request{URI: uri}, nil)
	if err != nil || mustRead(t, path) != string(data) || filepath.Base(path) != "iris.ubj" {
		t.Fatal(path, err)
	}
	// The same content under another name needs no second transfer.
	other := u
	other.Name = "other.ubj"
	if !s.HasUpload(other) {
		t.Error("known content is asked for again")
	}
	if path, err := s.Fetch(t.Context(), Request{URI: other.URI()}, nil); err != nil || mustRead(t, path) != string(data) {
		t.Error(path, err)
	}
}

func TestUploadRefusals(t *testing.T) {
	data := []byte("content")
	good := Upload{SHA256: sum(data), Size: 7, Name: "m"}
	for name, tc := range map[string]struct {
		edit func(*Upload)
		r    io.Reader
		word string
	}{
		"wrong digest":   {func(u *Upload) { u.SHA256 = sum([]byte("x")) }, bytes.NewReader(data), "send them again"},
		"too short":      {func(*Upload) {}, bytes.NewReader(data[:3]), "only 3"},
		"too long":       {func(*Upload) {}, zeros{}, "more came"},
		"broken":         {func(*Upload) {}, iotest.ErrReader(io.ErrClosedPipe), "broke off"},
		"path in name":   {func(u *Upload) { u.Name = "../m" }, bytes.NewReader(data), "not a file name"},
		"upper-case sum": {func(u *Upload) { u.SHA256 = strings.ToUpper(u.SHA256) }, bytes.NewReader(data), "not a sha256"},
		"too large":      {func(u *Upload) { u.Size = 2000 }, zeros{}, "maxBytes"},
		"not a tar":      {func(u *Upload) { u.Name = "" }, bytes.NewReader(data), "unpack"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, func(c *Config) { c.MaxBytes = 1000 })
			u := good
			tc.edit(&u)
			_, err := s.PutUpload(t.Context(), u, tc.r)
			wantError(t, err, tc.word)
			if s.HasUpload(u) {
				t.Error("kept in spite of the error")
			}
			if left, _ := os.ReadDir(filepath.Join(s.cfg.Dir, "partial")); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestUploadFolder(t *testing.T) {
	folder := t.TempDir()
	mustWrite(t, filepath.Join(folder, "config.json"), "{}")
	mustWrite(t, filepath.Join(folder, "sub", "weights.bin"), "w")
	if err := os.Symlink("config.json", filepath.Join(folder, "link.json")); err != nil {
		t.Fatal(err)
	}
	var one, two bytes.Buffer
	if err := errors.Join(WriteTar(t.Context(), &one, folder), WriteTar(t.Context(), &two, folder)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("one folder gives two archives")
	}
	s := newStore(t, nil)
	u := Upload{SHA256: sum(one.Bytes()), Size: int64(one.Len())}
	var group sync.WaitGroup
	for range 4 { // racing uploads of one content all succeed
		group.Go(func() {
			if _, err := s.PutUpload(t.Context(), u, bytes.NewReader(one.Bytes())); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	path, err := s.Fetch(t.Context(), Request{URI: u.URI()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"config.json": "{}", "sub/weights.bin": "w", "link.json": "{}"} {
		if got := mustRead(t, filepath.Join(path, file)); got != want {
			t.Errorf("%s = %q", file, got)
		}
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(folder, "out")); err != nil {
		t.Fatal(err)
	}
	if err := WriteTar(t.Context(), io.Discard, folder); err == nil {
		t.Error("a link out of the folder was followed")
	}
}
