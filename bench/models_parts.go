package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/edge/hubcache/hubtest"
	"roundhouse.dev/roundhouse/internal/edge/weights"
)

// serveHub is a Hub with one file. At l it says where it is, and what it has
// sent since it was last asked.
func serveHub(l net.Listener, file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	hub := hubtest.New()
	defer hub.Close()
	hub.Add("models", modelRepo).Commit("main", map[string][]byte{modelFile: data}, modelFile)
	return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		state := hubState{URL: hub.URL, Sent: hub.Sent()}
		hub.Forget()
		_ = json.NewEncoder(w).Encode(state) // the asker sees it
	}))
}

// serveFile is the least that sends a file with net/http.
func serveFile(l net.Listener, file string) error {
	return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" {
			return
		}
		f, err := os.Open(file)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer func() { _ = f.Close() }()
		http.ServeContent(w, r, "", time.Time{}, f)
	}))
}

// reading is what reading a file once took, as its part prints it.
type reading struct {
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
	Grown   int64   `json:"grown"` // what the most memory of the process grew by in the first pass, in bytes
	Ring    int64   `json:"ring"`  // memory that the stream is allowed
}

// warmPasses is how often a file in the page cache is read by one process: once
// takes too little time to be compared.
const warmPasses = 5

// readPart reads a file, as "raw" or as a stream of "tensors", and prints a
// reading: once from the disk where cold, else warmPasses times.
func readPart(how, file string, cold bool) error {
	if cold {
		if err := forgetPages(file); err != nil {
			return err
		}
	}
	read := readRaw
	if how == "tensors" {
		read = readTensors
	}
	got, err := read(file)
	for i := 1; i < warmPasses && !cold && err == nil; i++ {
		var again reading
		again, err = read(file)
		got.Bytes, got.Seconds = got.Bytes+again.Bytes, got.Seconds+again.Seconds
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(got)
}

// forgetPages has the page cache drop a file.
func forgetPages(file string) error {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
}

func readRaw(file string) (got reading, err error) {
	f, err := os.Open(file)
	if err != nil {
		return got, err
	}
	defer func() { _ = f.Close() }()
	buf := make([]byte, 4<<20)
	before, began := peak(), time.Now()
	for err == nil {
		var n int
		n, err = f.Read(buf)
		got.Bytes += int64(n)
	}
	if !errors.Is(err, io.EOF) {
		return got, err
	}
	got.Seconds, got.Grown = time.Since(began).Seconds(), peak()-before
	return got, nil
}

func readTensors(file string) (got reading, err error) {
	ctx := context.Background()
	dir, err := os.MkdirTemp(filepath.Dir(file), "tensors-")
	if err != nil {
		return got, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	store, err := artifact.New(artifact.Config{Dir: dir}, nil, nil)
	if err != nil {
		return got, err
	}
	tree, err := store.Tree(ctx, artifact.Request{URI: file})
	if err != nil {
		return got, err
	}
	m, err := weights.Open(ctx, tree)
	if err != nil {
		return got, err
	}
	cfg := weights.Config{}.WithDefaults()
	got.Ring = int64(cfg.Chunks) * int64(cfg.ChunkBytes)
	before, began := peak(), time.Now()
	s, err := m.Stream(ctx, cfg)
	if err != nil {
		return got, err
	}
	for err == nil {
		var p weights.Piece
		p, err = s.Next()
		got.Bytes += int64(len(p.Data))
	}
	if !errors.Is(err, io.EOF) {
		return got, err
	}
	got.Seconds, got.Grown = time.Since(began).Seconds(), peak()-before
	return got, s.Close()
}

// peak is the most memory that this process has had, in bytes; 0 where it is
// not known.
func peak() int64 {
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(raw), "VmHWM:")
	kb, _ := strconv.ParseInt(strings.Fields(rest + " 0")[0], 10, 64) // 0: not known
	return kb * 1024
}

// tensorBytes is the size of a tensor in the file that the chapter writes.
const tensorBytes = 16 << 20

// writeModel writes a safetensors file of about size bytes.
func writeModel(path string, size int64) (err error) {
	type tensor struct {
		Dtype   string   `json:"dtype"`
		Shape   [1]int64 `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
	header := map[string]tensor{}
	at := int64(0)
	for i := 0; at < size; i++ {
		n := min(tensorBytes, (size-at+1)/2*2)
		header[fmt.Sprintf("model.layers.%d.weight", i)] = tensor{"F16", [1]int64{n / 2}, [2]int64{at, at + n}}
		at += n
	}
	text, err := json.Marshal(header)
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)); err != nil {
		return err
	}
	_, err = io.CopyN(f, rand.NewChaCha8([32]byte{1}), at)
	return errors.Join(err, f.Sync())
}

func hashFile(path string) (size int64, hash string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	size, err = io.Copy(h, f)
	return size, hex.EncodeToString(h.Sum(nil)), err
}
