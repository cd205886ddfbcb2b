package hubcache

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/decide/ring"
	"roundhouse.dev/roundhouse/internal/edge/hubcache/hubtest"
)

// BenchmarkHit sends a file of 200 MiB from a cache, and, to compare, the same
// file from a bare http.ServeContent, each a process of its own, whose CPU time
// is counted.
func BenchmarkHit(b *testing.B) {
	r := newRig(b, nil)
	data := random(200 << 20)
	r.hub.Add("models", "org/m").Commit("main", map[string][]byte{"w": data}, "w")
	sum := sha256.Sum256(data)
	path := r.cache.store.blobs.Path(hex.EncodeToString(sum[:]))
	r.close()
	for _, c := range [][2]string{{"cache", "HUBCACHE_TEST_DIR=" + r.cfg.Dir}, {"ServeContent", "HUBCACHE_TEST_BARE=" + path}} {
		b.Run(c[0], func(b *testing.B) {
			server, url := child(b, c[1], "HUBCACHE_TEST_UPSTREAM="+r.hub.URL)
			url += "/org/m/resolve/main/w"
			for { // until it is from the disk
				r.drain(b, url)
				if _, err := os.Stat(path); err == nil {
					break
				}
			}
			b.SetBytes(int64(len(data)))
			before := cpu(b, server.Process.Pid)
			for b.Loop() {
				r.drain(b, url)
			}
			b.ReportMetric((cpu(b, server.Process.Pid)-before)/(float64(b.N)*float64(len(data))/1e9), "cpu-s/GB")
		})
	}
}

// child starts the test binary as a server.
func child(t testing.TB, env ...string) (cmd *exec.Cmd, url string) {
	t.Helper()
	cmd = exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	line := make([]byte, 64)
	n, err := out.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	return cmd, "http://" + strings.TrimSpace(string(line[:n]))
}

// cpu is the CPU time of a process in seconds, from Linux's /proc.
func cpu(t testing.TB, pid int) float64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Skip("there is no /proc here:", err)
	}
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')'):])) // ")" is the second of them
	user, err := strconv.ParseFloat(fields[12], 64)
	system, err2 := strconv.ParseFloat(fields[13], 64)
	if err = errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	return (user + system) / 100
}

func BenchmarkHead(b *testing.B) {
	r := newRig(b, nil)
	r.hub.Add("models", "org/m").Commit("main", map[string][]byte{"w": random(1000)}, "w")
	r.drain(b, r.url+"/org/m/resolve/main/w")
	for b.Loop() {
		resp, err := http.Head(r.url + "/org/m/resolve/main/w")
		if err != nil || resp.StatusCode != 200 {
			b.Fatal(resp, err)
		}
		resp.Body.Close()
	}
}

// BenchmarkTee has 20 clients ask at once for 200 MiB that nobody has yet.
func BenchmarkTee(b *testing.B) {
	data := random(200 << 20)
	for n := 0; b.Loop(); n++ {
		r := newRig(b, nil)
		r.hub.Add("models", "org/m").Commit("main", map[string][]byte{"w": data}, "w")
		began := time.Now()
		var mu sync.Mutex
		var first, last time.Duration
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				r.drain(b, r.url+"/org/m/resolve/main/w")
				mu.Lock()
				defer mu.Unlock()
				last = time.Since(began)
				if first == 0 {
					first = last
				}
			})
		}
		all.Wait()
		b.ReportMetric(float64(r.hub.Sent())/float64(len(data)), "upstream/size")
		b.ReportMetric(last.Seconds()/first.Seconds(), "last/first")
		b.ReportMetric(last.Seconds(), "s")
		r.close()
	}
}

// BenchmarkStart opens a store of many blobs: how long until it answers, and
// until all are counted.
func BenchmarkStart(b *testing.B) {
	for _, n := range []int{100_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			dir := b.TempDir()
			for i := range 256 {
				if err := os.MkdirAll(filepath.Join(dir, "blobs", fmt.Sprintf("%02x", i)), 0o700); err != nil {
					b.Fatal(err)
				}
			}
			for i := range n {
				name := fmt.Sprintf("%02x%038x", i%256, i)
				fd, err := syscall.Open(filepath.Join(dir, "blobs", name[:2], name), syscall.O_CREAT|syscall.O_WRONLY, 0o600)
				if err != nil {
					b.Fatal(err)
				}
				syscall.Close(fd)
			}
			cfg := DefaultConfig()
			cfg.Dir, cfg.Upstream = dir, "http://127.0.0.1:9"
			for b.Loop() {
				began := time.Now()
				c, err := New(cfg, prometheus.NewRegistry())
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(time.Since(began).Seconds(), "s-to-open")
				if err := c.store.blobs.Count(b.Context()); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(time.Since(began).Seconds(), "s-to-count")
				c.Close()
			}
		})
	}
}

// drain reads a body as a client would that looks at none of it.
func (r *rig) drain(t testing.TB, url string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	buf := make([]byte, 1<<20)
	for {
		_, err := resp.Body.Read(buf)
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Error(err)
			return
		}
	}
}

// BenchmarkHop sends a file of 200 MiB that another node keeps, and, to compare,
// asks its owner. Both are processes of their own, whose CPU time is counted.
func BenchmarkHop(b *testing.B) {
	hub := hubtest.New()
	defer hub.Close()
	var all []string
	for range 2 {
		l := mustListen()
		all = append(all, "http://"+l.Addr().String())
		_ = l.Close()
	}
	data := random(200 << 20)
	hub.Add("models", "org/m").Commit("main", map[string][]byte{"w": data}, "w")
	owners := ring.New(all).Owners(hashOf(data), 2)
	dir := map[string]string{}
	pids := map[string]int{}
	for _, name := range owners {
		dir[name] = b.TempDir()
		cmd, _ := child(b, "HUBCACHE_TEST_DIR="+dir[name], "HUBCACHE_TEST_UPSTREAM="+hub.URL, "HUBCACHE_TEST_LISTEN="+strings.TrimPrefix(name, "http://"),
			"HUBCACHE_TEST_PEERS="+strings.Join(all, ","))
		pids[name] = cmd.Process.Pid
	}
	r := &rig{t: b}
	const path = "/org/m/resolve/main/w"
	r.drain(b, owners[0]+path)
	until(b, "the owner keeps it", func() bool {
		_, err := os.Stat(filepath.Join(dir[owners[0]], "blobs", hashOf(data)[:2], hashOf(data)))
		return err == nil
	})
	for i, name := range []string{"owner", "other"} {
		b.Run(name, func(b *testing.B) {
			r.drain(b, owners[i]+path)
			b.SetBytes(int64(len(data)))
			first, second := cpu(b, pids[owners[0]]), cpu(b, pids[owners[1]])
			for b.Loop() {
				r.drain(b, owners[i]+path)
			}
			gb := float64(b.N) * float64(len(data)) / 1e9
			b.ReportMetric((cpu(b, pids[owners[0]])-first)/gb, "owner-cpu-s/GB")
			b.ReportMetric((cpu(b, pids[owners[1]])-second)/gb, "entry-cpu-s/GB")
		})
	}
}

// BenchmarkRingTee has 20 clients ask three nodes at once for 200 MiB that none has.
func BenchmarkRingTee(b *testing.B) {
	data := random(200 << 20)
	for b.Loop() {
		rr := newRingRig(b, 3, nil)
		path, _, _ := rr.blob("m", data)
		began := time.Now()
		var mu sync.Mutex
		var first, last time.Duration
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				rr.nodes[0].drain(b, rr.names[i%3]+path)
				mu.Lock()
				defer mu.Unlock()
				last = time.Since(began)
				if first == 0 {
					first = last
				}
			})
		}
		all.Wait()
		b.ReportMetric(float64(rr.hub.Sent())/float64(len(data)), "upstream/size")
		b.ReportMetric(last.Seconds()/first.Seconds(), "last/first")
		b.ReportMetric(last.Seconds(), "s")
		for _, n := range rr.nodes {
			n.close()
		}
	}
}
