package artifact

import (
	"bytes"
	"testing"
)

// TestTreeReadsParts: of a bucket as of a Hub, parts are read where they are.
func TestTreeReadsParts(t *testing.T) {
	data := randomBytes(100<<10, 60)
	check := func(t *testing.T, uri, name string) {
		tree, err := newStore(t, nil).Tree(t.Context(), Request{URI: uri})
		if err != nil {
			t.Fatal(err)
		}
		for _, span := range [][2]int{{0, 1}, {0, len(data)}, {5, 4096}, {len(data) - 1, len(data)}} {
			got := make([]byte, span[1]-span[0])
			if err := tree.ReadAt(t.Context(), name, got, int64(span[0])); err != nil || !bytes.Equal(got, data[span[0]:span[1]]) {
				t.Errorf("%s %v: %v", uri, span, err)
			}
		}
		if err := tree.ReadAt(t.Context(), name, make([]byte, 2), int64(len(data)-1)); err == nil {
			t.Error("read beyond the end")
		}
		if err := tree.ReadAt(t.Context(), "none", make([]byte, 2), 0); err == nil {
			t.Error("read what is not there")
		}
	}
	t.Run("hf", func(t *testing.T) {
		_, repo, _ := newHub(t)
		repo.Commit("main", map[string][]byte{"model.safetensors": data}, "model.safetensors")
		check(t, "hf://org/m", "model.safetensors")
	})
	eachBucket(t, func(t *testing.T, b *bucketServer) {
		b.put("m/w.bin", data)
		check(t, b.scheme+"://bucket/m", "w.bin")
	})
}
