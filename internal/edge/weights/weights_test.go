package weights

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/safetensors"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
)

// write makes a safetensors file of random bytes and returns them by tensor.
func write(t testing.TB, path string, sizes map[string]int, order []string) map[string][]byte {
	t.Helper()
	header, data, content := map[string]any{}, []byte(nil), map[string][]byte{}
	source := rand.NewChaCha8([32]byte{byte(len(path))})
	for _, name := range order {
		b := make([]byte, sizes[name])
		_, _ = source.Read(b)
		header[name] = map[string]any{"dtype": "U8", "shape": []int{len(b)}, "data_offsets": []int{len(data), len(data) + len(b)}}
		data, content[name] = append(data, b...), b
	}
	raw, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(raw))), raw...)
	if err := os.WriteFile(path, append(file, data...), 0o600); err != nil {
		t.Fatal(err)
	}
	return content
}

// model writes a folder of three files, one of them without bytes.
func model(t testing.TB) (dir string, want map[string][]byte) {
	t.Helper()
	dir = t.TempDir()
	want = map[string][]byte{}
	index := map[string]string{}
	for name, sizes := range map[string]map[string]int{
		"model-1.safetensors": {"a.0.w": 10, "a.0.b": 0, "a.1.w": 100_000, "z": 1, "tail": 4096},
		"model-2.safetensors": {"none": 0},
		"model-3.safetensors": {"b.0.w": 70_001, "b.1.w": 4096, "last": 3},
	} {
		var order []string
		for tensor := range sizes {
			order = append(order, tensor)
			index[tensor] = name
		}
		for tensor, b := range write(t, filepath.Join(dir, name), sizes, order) {
			want[name+" "+tensor] = b
		}
	}
	raw, _ := json.Marshal(map[string]any{"weight_map": index})
	if err := os.WriteFile(filepath.Join(dir, safetensors.IndexName), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "consolidated.safetensors"), map[string]int{"copy": 5}, []string{"copy"})
	return dir, want
}

func open(t testing.TB, uri string) *Model {
	t.Helper()
	m, err := openURI(t, uri)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func openURI(t testing.TB, uri string) (*Model, error) {
	s, err := artifact.New(artifact.Config{Dir: t.TempDir(), RetryWait: time.Millisecond}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := s.Tree(t.Context(), artifact.Request{URI: uri})
	if err != nil {
		return nil, err
	}
	return Open(t.Context(), tree)
}

func drain(t testing.TB, m *Model, cfg Config) (map[string][]byte, error) {
	t.Helper()
	s, err := m.Stream(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got, file, at := map[string][]byte{}, "", int64(-1)
	for {
		p, err := s.Next()
		if errors.Is(err, io.EOF) {
			return got, nil
		}
		if err != nil {
			return got, err
		}
		if p.File.Name != file {
			file, at = p.File.Name, 0
		}
		if where := p.Tensor.Begin + p.Offset; where < at {
			t.Fatalf("%s %s at %d after %d", file, p.Tensor.Name, where, at)
		} else {
			at = where
		}
		key := file + " " + p.Tensor.Name
		if int64(len(got[key])) != p.Offset || p.Last != (p.Offset+int64(len(p.Data)) == p.Tensor.Bytes()) {
			t.Fatalf("%s: piece at %d, last %v", key, p.Offset, p.Last)
		}
		got[key] = append(got[key], p.Data...)
	}
}

func same(t testing.TB, got, want map[string][]byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d tensors, want %d", len(got), len(want))
	}
	for name, b := range want {
		if g, ok := got[name]; !ok || !bytes.Equal(g, b) {
			t.Errorf("%s: %d bytes of %d, or others", name, len(g), len(b))
		}
	}
}

// small has tensors span several times the ring.
var small = Config{ChunkBytes: 4096, Chunks: 3}

func TestStreamLocal(t *testing.T) {
	dir, want := model(t)
	m := open(t, dir)
	if m.Index == nil || len(m.Files) != 3 || m.Bytes() != 10+100_000+1+4096+70_001+4096+3 {
		t.Fatalf("%d files of %d bytes", len(m.Files), m.Bytes())
	}
	for _, cfg := range []Config{{}, small, {ChunkBytes: 8192, Chunks: 1}, {ChunkBytes: 4096, Chunks: 5, LocalReaders: 4, Reads: Direct},
		{ChunkBytes: 4096, Reads: PageCache}, {Reads: Direct}} {
		got, err := drain(t, m, cfg)
		if err != nil {
			t.Errorf("%+v: %v", cfg, err)
		}
		same(t, got, want)
	}
}

// TestStreamUncached reads what the page cache does not hold, so that both
// ways are tried.
func TestStreamUncached(t *testing.T) {
	dir, want := model(t)
	for range 3 {
		evict(t, dir)
		got, err := drain(t, open(t, dir), small)
		if err != nil {
			t.Fatal(err)
		}
		same(t, got, want)
	}
}

// server serves a folder and counts; edit may answer first.
func server(t testing.TB, dir string, sent *atomic.Int64, edit func(w http.ResponseWriter, r *http.Request) bool) string {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if edit != nil && edit(w, r) {
			return
		}
		http.ServeFile(counting{w, sent}, r, filepath.Join(dir, filepath.FromSlash(r.URL.Path)))
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

type counting struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c counting) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.n.Add(int64(n))
	return n, err
}

func TestStreamRemote(t *testing.T) {
	dir, want := model(t)
	t.Run("ranges", func(t *testing.T) {
		var sent atomic.Int64
		m := open(t, server(t, dir, &sent, nil))
		got, err := drain(t, m, small)
		if err != nil {
			t.Fatal(err)
		}
		same(t, got, want)
	})
	t.Run("whole files", func(t *testing.T) {
		// What still goes out of the answers that opening has read enough of is
		// counted apart.
		var opening, reading atomic.Int64
		var sent atomic.Pointer[atomic.Int64]
		sent.Store(&opening)
		m := open(t, server(t, dir, nil, func(w http.ResponseWriter, r *http.Request) bool {
			r.Header.Del("Range")
			http.ServeFile(counting{w, sent.Load()}, r, filepath.Join(dir, filepath.FromSlash(r.URL.Path)))
			return true
		}))
		sent.Store(&reading)
		got, err := drain(t, m, small)
		if err != nil {
			t.Fatal(err)
		}
		same(t, got, want)
		if n := reading.Load(); n > m.Bytes()+8192 {
			t.Errorf("%d bytes were sent for %d", n, m.Bytes())
		}
	})
	t.Run("connections that break", func(t *testing.T) {
		var sent, n atomic.Int64
		m := open(t, server(t, dir, &sent, func(w http.ResponseWriter, r *http.Request) bool {
			if r.Header.Get("Range") == "" || n.Add(1)%3 != 0 {
				return false
			}
			w.Header().Set("Content-Length", "4096")
			w.WriteHeader(http.StatusPartialContent)
			panic(http.ErrAbortHandler)
		}))
		got, err := drain(t, m, small)
		if err != nil {
			t.Fatal(err)
		}
		same(t, got, want)
	})
}

// TestOpenReadsHeadersAlone: a large file costs its first bytes.
func TestOpenReadsHeadersAlone(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "m.safetensors"), map[string]int{"w": 5 << 20}, []string{"w"})
	var sent atomic.Int64
	m := open(t, server(t, dir, &sent, nil)+"/m.safetensors")
	if n := sent.Load(); len(m.Files[0].Tensors) != 1 || n > firstBytes+1 {
		t.Errorf("%d bytes were read", n)
	}
}

func TestStreamErrors(t *testing.T) {
	dir, _ := model(t)
	path := filepath.Join(dir, "model-3.safetensors")
	t.Run("cut", func(t *testing.T) {
		for _, reads := range []Reads{Measured, PageCache, Direct} {
			m := open(t, path)
			whole, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(path, m.Files[0].Start+10_000); err != nil {
				t.Fatal(err)
			}
			evict(t, dir)
			_, err = drain(t, m, Config{ChunkBytes: 4096, Reads: reads})
			if !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "model-3.safetensors: tensor ") || !strings.Contains(err.Error(), "(of the file: ") {
				t.Error(err)
			}
			if err := os.WriteFile(path, whole, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	})
	t.Run("changed", func(t *testing.T) {
		var sent atomic.Int64
		var tag atomic.Value
		tag.Store(`"one"`)
		m := open(t, server(t, dir, &sent, func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("ETag", tag.Load().(string))
			return false
		})+"/model-3.safetensors")
		tag.Store(`"two"`)
		if _, err := drain(t, m, small); err == nil || !strings.Contains(err.Error(), "changed at the source") {
			t.Error(err)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s, err := open(t, dir).Stream(ctx, small)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Next(); err != nil {
			t.Fatal(err)
		}
		cancel()
		for {
			if _, err = s.Next(); err != nil {
				break
			}
		}
		if !errors.Is(err, context.Canceled) || s.Close() != nil {
			t.Error(err)
		}
	})
	t.Run("a server that hangs", func(t *testing.T) {
		var sent atomic.Int64
		asked, hang := make(chan struct{}, 100), atomic.Bool{}
		m := open(t, server(t, dir, &sent, func(_ http.ResponseWriter, r *http.Request) bool {
			if hang.Load() {
				asked <- struct{}{}
				<-r.Context().Done()
			}
			return hang.Load()
		})+"/model-3.safetensors")
		hang.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		s, err := m.Stream(ctx, small)
		if err != nil {
			t.Fatal(err)
		}
		<-asked
		cancel()
		if _, err := s.Next(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		_ = s.Close()
	})
}

func TestOpenRefuses(t *testing.T) {
	dir, _ := model(t)
	if err := os.Remove(filepath.Join(dir, "model-2.safetensors")); err != nil {
		t.Fatal(err)
	}
	if _, err := openURI(t, dir); err == nil || !strings.Contains(err.Error(), `"model-2.safetensors", which is not there`) {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "model-2.safetensors"), []byte("\x02\x00\x00\x00\x00\x00\x00\x00[]"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openURI(t, dir); !errors.Is(err, safetensors.ErrMalformed) || !strings.Contains(err.Error(), "model-2.safetensors") {
		t.Error(err)
	}
	if _, err := openURI(t, t.TempDir()); err == nil || !strings.Contains(err.Error(), "no safetensors files") {
		t.Error(err)
	}
	for _, cfg := range []Config{{ChunkBytes: 1000}, {ChunkBytes: -4096}, {Chunks: -1}, {LocalReaders: -1}, {Reads: 9}} {
		if cfg.WithDefaults().Validate() == nil {
			t.Errorf("%+v is valid", cfg)
		}
	}
}

// TestStreamMemory: the ring is what the stream takes, whatever the file's size.
func TestStreamMemory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.safetensors")
	write(t, path, map[string]int{"w": 64 << 20}, []string{"w"})
	m := open(t, path)
	cfg := Config{ChunkBytes: 1 << 20, Chunks: 4}
	runtime.GC()
	var before, during runtime.MemStats
	runtime.ReadMemStats(&before)
	s, err := m.Stream(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for {
		if _, err := s.Next(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&during)
	ring := float64(cfg.ChunkBytes * cfg.Chunks)
	if grown := float64(during.TotalAlloc - before.TotalAlloc); grown > 1.1*ring {
		t.Errorf("%.0f bytes allocated for a ring of %.0f", grown, ring)
	}
}

func TestLayer(t *testing.T) {
	for name, want := range map[string]string{
		"model.layers.11.mlp.experts.3.w1.weight": "model.layers.11", "model.embed_tokens.weight": "model.embed_tokens",
		"lm_head.weight": "lm_head", "bias": "bias", "h.0": "h.0", "0.weight": "0", "": "",
	} {
		if got := Layer("m.safetensors", name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
	if got := Layer("unet/m.safetensors", "conv.weight"); got != "unet/conv" {
		t.Error(got)
	}
}

// BenchmarkStream compares the stream with reading the same file: set
// WEIGHTS_FILE to a large safetensors file.
func BenchmarkStream(b *testing.B) {
	path := os.Getenv("WEIGHTS_FILE")
	if path == "" {
		path = filepath.Join(b.TempDir(), "m.safetensors")
		write(b, path, map[string]int{"w": 64 << 20}, []string{"w"})
	}
	info, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	for _, cold := range []bool{false, true} {
		prepare := func(b *testing.B) {
			if cold {
				b.StopTimer()
				evict(b, filepath.Dir(path))
				b.StartTimer()
			}
		}
		b.Run(fmt.Sprintf("raw/cold=%v", cold), func(b *testing.B) {
			b.SetBytes(info.Size())
			buf := make([]byte, 4<<20)
			for b.Loop() {
				prepare(b)
				f, err := os.Open(path)
				if err != nil {
					b.Fatal(err)
				}
				for err == nil {
					_, err = f.Read(buf)
				}
				f.Close()
			}
		})
		for name, reads := range map[string]Reads{"measured": Measured, "cache": PageCache, "direct": Direct} {
			m := open(b, path)
			b.Run(fmt.Sprintf("%s/cold=%v", name, cold), func(b *testing.B) {
				b.SetBytes(info.Size())
				for b.Loop() {
					prepare(b)
					s, err := m.Stream(b.Context(), Config{Reads: reads})
					for err == nil {
						_, err = s.Next()
					}
					if !errors.Is(err, io.EOF) {
						b.Fatal(err)
					}
					s.Close()
				}
			})
		}
	}
}
