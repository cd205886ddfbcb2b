package weights

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/edge/hubcache"
	"roundhouse.dev/roundhouse/internal/edge/hubcache/hubtest"
)

// BenchmarkRemoteStream measures streams of remote files against one plain GET
// of the same server: http, S3, and the Hub through its cache, which has the
// file, or is asked for it for the first time.
func BenchmarkRemoteStream(b *testing.B) {
	dir := b.TempDir()
	write(b, filepath.Join(dir, "m.safetensors"), map[string]int{"w": 256 << 20}, []string{"w"})
	data, err := os.ReadFile(filepath.Join(dir, "m.safetensors"))
	if err != nil {
		b.Fatal(err)
	}
	files := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer files.Close()
	measure(b, "http", files.URL+"/m.safetensors", files.URL+"/m.safetensors", int64(len(data)), nil)

	backend := s3mem.New()
	bucket := httptest.NewServer(gofakes3.New(backend, gofakes3.WithAutoBucket(true)).Server())
	defer bucket.Close()
	put, err := http.NewRequestWithContext(b.Context(), http.MethodPut, bucket.URL+"/b/m.safetensors", bytes.NewReader(data))
	if err != nil {
		b.Fatal(err)
	}
	if resp, err := http.DefaultClient.Do(put); err != nil || resp.StatusCode != http.StatusOK {
		b.Fatal(resp, err)
	}
	for k, v := range map[string]string{"AWS_ENDPOINT_URL": bucket.URL, "awsAnonymousCredential": "true", "AWS_REGION": "eu-north-1", "AWS_EC2_METADATA_DISABLED": "true"} {
		b.Setenv(k, v)
	}
	measure(b, "s3", "s3://b/m.safetensors", bucket.URL+"/b/m.safetensors", int64(len(data)), nil)

	hub := hubtest.New()
	defer hub.Close()
	hub.Add("models", "org/m").Commit("main", map[string][]byte{"m.safetensors": data}, "m.safetensors")
	b.Setenv("HF_HOME", b.TempDir())
	var cache *hubcache.Cache
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { cache.ServeHTTP(w, r) }))
	defer front.Close()
	b.Setenv("HF_ENDPOINT", front.URL)
	fresh := func(b *testing.B) {
		if cache != nil {
			cache.Close()
		}
		cfg := hubcache.DefaultConfig()
		cfg.Dir, cfg.Upstream = b.TempDir(), hub.URL
		if cache, err = hubcache.New(cfg, prometheus.NewRegistry()); err != nil {
			b.Fatal(err)
		}
	}
	fresh(b)
	measure(b, "hit", "hf://org/m", front.URL+"/org/m/resolve/main/m.safetensors", int64(len(data)), nil)
	hub.Forget()
	measure(b, "miss", "hf://org/m", front.URL+"/org/m/resolve/main/m.safetensors", int64(len(data)), fresh)
	cache.Close()
}

func measure(b *testing.B, name, uri, plain string, size int64, fresh func(b *testing.B)) {
	prepare := func(b *testing.B) {
		if fresh != nil {
			b.StopTimer()
			fresh(b)
			b.StartTimer()
		}
	}
	b.Run(name+"/get", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			prepare(b)
			resp, err := http.Get(plain)
			if err != nil {
				b.Fatal(err)
			}
			if n, err := io.Copy(io.Discard, resp.Body); n != size || err != nil {
				b.Fatal(n, err)
			}
			_ = resp.Body.Close()
		}
	})
	b.Run(name+"/stream", func(b *testing.B) {
		b.SetBytes(size)
		s, err := artifact.New(artifact.Config{Dir: b.TempDir()}, nil, nil)
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			prepare(b)
			tree, err := s.Tree(b.Context(), artifact.Request{URI: uri})
			if err != nil {
				b.Fatal(err)
			}
			m, err := Open(b.Context(), tree)
			if err != nil {
				b.Fatal(err)
			}
			st, err := m.Stream(b.Context(), Config{})
			for err == nil {
				_, err = st.Next()
			}
			if !errors.Is(err, io.EOF) {
				b.Fatal(err)
			}
			_ = st.Close()
		}
	})
}
