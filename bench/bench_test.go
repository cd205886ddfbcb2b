package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		q, want float64
	}{
		{[]float64{3}, 0.9, 3},
		{[]float64{3, 1, 2}, 0.5, 2},
		{[]float64{4, 1, 2, 3}, 0.5, 2.5},
		{[]float64{10, 0}, 0.9, 9},
		{[]float64{2, 1, 3}, 1, 3},
	} {
		if got := quantile(c.samples, c.q); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("quantile(%v, %v) = %v, want %v", c.samples, c.q, got, c.want)
		}
	}
}

func TestFigure(t *testing.T) {
	for v, want := range map[float64]string{0.0123: "0.012", 1.234: "1.23", 12.34: "12.3", 123.4: "123", -12.34: "-12.3", 0: "0.000"} {
		if got := figure(v); got != want {
			t.Errorf("figure(%v) = %s, want %s", v, got, want)
		}
	}
}

// TestTable holds a table to its form, and verdicts to their medians.
func TestTable(t *testing.T) {
	var out bytes.Buffer
	table{title: "Title", rows: []row{
		{what: "under", samples: []float64{1, 9, 2}, unit: "ms", goal: 2},
		{what: "over", samples: []float64{3, 1, 3}, unit: "ms", goal: 2},
		{what: "free", samples: []float64{5}, unit: "×"},
	}, notes: []string{"A note."}}.print(&out)
	for _, want := range []string{"\nTitle\n", "≤ 2.00: met", "≤ 2.00: MISSED", "1.00 … 9.00", "\n  A note.\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
	if n := strings.Count(out.String(), "≤"); n != 2 {
		t.Errorf("%d goals, want 2", n)
	}
}

func TestPairwise(t *testing.T) {
	a, b := []float64{4, 9}, []float64{2, 3}
	if got := fmt.Sprint(pairwise(a, b, ratio), pairwise(a, b, difference)); got != "[2 3] [2 6]" {
		t.Errorf("got %s", got)
	}
}

// TestProc reads this process, of which it knows something.
func TestProc(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc of Linux")
	}
	before, err := readCPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	held := make([]byte, 64e6)
	for begin := time.Now(); time.Since(begin) < 100*time.Millisecond; {
		for i := range held {
			held[i]++
		}
	}
	after, err := readCPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if used := after - before; used < 0.01 || used > 60 {
		t.Errorf("%v s of CPU while busy for 0.1 s", used)
	}
	f, err := readFootprint(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if f.anonymous < 64 || f.resident < f.anonymous || f.proportional > f.resident {
		t.Errorf("%+v while holding 64 MB", f)
	}
	runtime.KeepAlive(held)
}

// TestSend loads a server: good answers are counted, any other fails.
func TestSend(t *testing.T) {
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != "ask" || r.URL.Path != "/path" {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "answer")
	}))
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "http://")
	request := post("/path", []byte("ask"))
	got, err := send(t.Context(), address, request, 3, 50*time.Millisecond)
	if err != nil || got.answers < 3 || got.p50 <= 0 || got.seconds < 0.05 {
		t.Errorf("%+v, %v", got, err)
	}
	status = http.StatusServiceUnavailable
	if _, err := send(t.Context(), address, request, 1, 50*time.Millisecond); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("error %v, want the 503", err)
	}
	if err := ask(address, post("/elsewhere", nil)); err == nil {
		t.Error("another answer than 200 is no error")
	}
}

func TestWrongUse(t *testing.T) {
	for args, want := range map[string]string{
		"-rounds 0":                    "-rounds",
		"-binary absent":               "make bench",
		"-only wake,nothing":           "wake, memory, start, rows, requests",
		"-binary . -examples ./absent": "make bench",
	} {
		err := run(context.Background(), strings.Fields(args), io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", args, err, want)
		}
	}
}
