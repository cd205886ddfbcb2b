package artifact

import (
	"bytes"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

// TestS3Checksums: the ETag of an object uploaded in one piece is its MD5, in
// pieces or not; of one that is encrypted otherwise it says nothing.
func TestS3Checksums(t *testing.T) {
	data := randomBytes(6*testPiece+7, 91)
	for name, size := range map[string]int{"in pieces": len(data), "in one": 1000} {
		t.Run(name, func(t *testing.T) {
			b := newS3(t)
			content := data[:size]
			b.put("m/model.bin", content)
			var ranges atomic.Int64
			answer := func(edit func(w http.ResponseWriter, r *http.Request) bool) {
				b.mu.Lock()
				b.edit = func(w http.ResponseWriter, r *http.Request) bool {
					if !strings.HasSuffix(r.URL.Path, "model.bin") {
						return false
					}
					if r.Header.Get("Range") != "" {
						ranges.Add(1)
					}
					return edit(w, r)
				}
				b.mu.Unlock()
			}
			answer(func(http.ResponseWriter, *http.Request) bool { return false })
			s := newStore(t, inTestPieces)
			path, err := s.Fetch(t.Context(), Request{URI: "s3://bucket/m/model.bin"}, nil)
			if err != nil || mustRead(t, path) != string(content) {
				t.Fatal(path, err)
			}
			if want := int64(7); size == len(data) && ranges.Load() != want {
				t.Errorf("%d ranges, want %d", ranges.Load(), want)
			}
			wrong := bytes.Clone(content)
			wrong[size/2]++
			for _, encrypted := range []bool{false, true} {
				answer(func(w http.ResponseWriter, r *http.Request) bool {
					if encrypted {
						w.Header().Set("X-Amz-Server-Side-Encryption", "aws:kms")
					}
					w.Header().Set("ETag", `"x"`)
					http.ServeContent(w, withoutConditions(r), "", epoch, bytes.NewReader(wrong))
					return true
				})
				path, err := newStore(t, inTestPieces).Fetch(t.Context(), Request{URI: "s3://bucket/m/model.bin"}, nil)
				if encrypted && (err != nil || mustRead(t, path) != string(wrong)) {
					t.Error(path, err)
				}
				if !encrypted {
					wantError(t, err, "md5", "fetch again")
				}
			}
		})
	}
}

func withoutConditions(r *http.Request) *http.Request {
	r = r.Clone(r.Context())
	r.Header.Del("If-Match")
	return r
}
