package dispatch

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
)

// many is a pool of n replicas that all say what they do.
func many(b *testing.B, n int) *Dispatcher {
	b.Helper()
	d, err := New(DefaultConfig(), &recorder{}, nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprintf("r%d", i))
	}
	d.SetPool(pool1(0, ready(ids...)...))
	for i, id := range ids {
		d.SetLoad(id, &replica.Load{At: time.Now(), Running: i % 7, KV: float64(i%10) / 20})
	}
	return d
}

// BenchmarkAdmitDone is a request without a prompt; with one, of 32 KiB, half
// of which is common to all, the rest to one in a hundred.
func BenchmarkAdmitDone(b *testing.B) {
	for _, n := range []int{1, 4, 100, 1000} {
		for _, prompt := range []int{0, 32 << 10} {
			b.Run(fmt.Sprintf("endpoints=%d/prompt=%d", n, prompt), func(b *testing.B) {
				d := many(b, n)
				parts := [][]byte{bytes.Repeat([]byte("s"), prompt/2), bytes.Repeat([]byte("u"), prompt/2)}
				if prompt == 0 {
					parts = nil
				}
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					if prompt > 0 {
						copy(parts[1], fmt.Sprint(i%100))
					}
					i++
					g, err := d.Admit(b.Context(), Request{Host: "localhost:8080", Model: "iris", Prompt: parts})
					if err != nil {
						b.Fatal(err)
					}
					g.FirstByte()
					g.Done(Outcome{})
				}
			})
		}
	}
}

// BenchmarkParallel has all processors admit to one pool: requests with short
// answers, and such that latency is learned from.
func BenchmarkParallel(b *testing.B) {
	for _, streams := range []bool{false, true} {
		b.Run(fmt.Sprintf("streams=%v", streams), func(b *testing.B) {
			d := many(b, 100)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					g, err := d.Admit(b.Context(), Request{Model: "iris"})
					if err != nil {
						b.Error(err)
						return
					}
					g.FirstByte()
					if streams {
						g.FirstToken()
					}
					g.Done(Outcome{Tokens: 10})
				}
			})
		})
	}
}
