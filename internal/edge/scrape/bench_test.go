package scrape

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// serveEnv has the test binary serve an exposition instead of testing, so that
// a benchmark can tell the reader's CPU from the server's.
const serveEnv = "ROUNDHOUSE_SCRAPE_BENCH_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(serveEnv) == "" {
		os.Exit(m.Run())
	}
	text := exposition(3, 80<<10)
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = io.WriteString(w, text)
	})
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			panic(err)
		}
		fmt.Println(l.Addr())
		go func() { panic(http.Serve(l, handler)) }()
	}
	select {}
}

// BenchmarkParse reads an exposition of 80 KB.
func BenchmarkParse(b *testing.B) {
	text := exposition(3, 80<<10)
	var w worker
	in := strings.NewReader(text)
	p := own["vllm"]
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		in.Reset(text)
		w.gathering.start(p, 1)
		if err := w.reader.read(in, 1<<20, &p.names, w.gathering.take); err != nil {
			b.Fatal(err)
		}
		if _, _, err := w.gathering.loads(time.Time{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkHundredServers reads 100 servers of 80 KB every 100 ms for as long
// as asked, at least a second, and tells the cores that takes.
func BenchmarkHundredServers(b *testing.B) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serveEnv+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	addresses := bufio.NewScanner(out)
	h := newHeard()
	cfg := DefaultConfig()
	cfg.Sink, cfg.Traffic, cfg.MaxShare = h, h, 1
	s, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	var targets []Target
	for i := range 100 {
		id := fmt.Sprint("s", i)
		h.put(id, 1)
		if !addresses.Scan() {
			b.Fatal("the server ended: ", addresses.Err())
		}
		targets = append(targets, Target{ID: id, URL: "http://" + addresses.Text()})
	}
	for b.Loop() {
		if err := s.SetPool("p", targets); err != nil {
			b.Fatal(err)
		}
		before, cpu := time.Now(), used()
		time.Sleep(3 * time.Second)
		took, cpu := time.Since(before), used()-cpu
		n := 0
		for _, t := range targets {
			n += h.since(t.ID)
		}
		b.ReportMetric(cpu.Seconds()/took.Seconds(), "cores")
		b.ReportMetric(float64(n)/took.Seconds(), "readings/s")
		b.ReportMetric(float64(cpu.Microseconds())/float64(max(1, n)), "cpu-µs/reading")
	}
}

// used is the CPU time of this process.
func used() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
