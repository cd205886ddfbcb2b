package prompts

import (
	"testing"
	"time"
)

// TestTellerIsBounded: a gateway that sends without end keeps no more than its bounds.
func TestTellerIsBounded(t *testing.T) {
	now := time.Now()
	teller := NewTeller(now)
	blocks := make([]uint64, 1024)
	for i := range 2000 { // 16 MiB
		for j := range blocks {
			blocks[j] = uint64(i)<<32 | uint64(j)
		}
		teller.Tell("pod", blocks, now)
	}
	if n := teller.list.bytes; n > maxKept {
		t.Errorf("%d bytes are kept to tell", n)
	}
	if n := len(teller.recent) + len(teller.before); n > 2*(maxRecent+len(blocks)) {
		t.Errorf("%d blocks are known to have been told", n)
	}
}

// TestTellsOnce: a block is told again after a while, for those who are new.
func TestTellsOnce(t *testing.T) {
	now := time.Now()
	teller := NewTeller(now)
	for _, c := range []struct {
		after  time.Duration
		blocks []uint64
		want   int // of them told
	}{{0, []uint64{1, 2}, 2}, {time.Second, []uint64{1, 2, 3}, 1}, {2 * time.Second, []uint64{3}, 0}, {3 * tellAgain, []uint64{1}, 0}, {5 * tellAgain, []uint64{1}, 1}} {
		from := teller.Next()
		said := teller.Tell("pod", c.blocks, now.Add(c.after))
		told, _ := teller.Since(from, now.Add(c.after))
		got := 0
		for _, p := range told {
			got += len(p.Blocks) / 8
		}
		if got != c.want || said != (c.want > 0) {
			t.Errorf("after %s %v: %d blocks told (%t), want %d", c.after, c.blocks, got, said, c.want)
		}
	}
}

func TestLogForgets(t *testing.T) {
	now := time.Now()
	l := NewLog(now)
	one := Prompt{Endpoint: "pod", Blocks: make([]byte, 8)}
	for i := range 3 {
		l.Add(one, Source{}, now.Add(time.Duration(i)*2*time.Minute))
	}
	if out, next := l.Since(0, Source{}, MaxTold, now.Add(6*time.Minute)); len(out) != 2 || next != l.Next() || out[1].Ago != 120_000 {
		t.Errorf("after 6 minutes: %+v", out)
	}
	if l.Add(one, Source{}, now.Add(8*time.Minute)); len(l.all) != 2 {
		t.Errorf("%d are kept, some for longer than %s", len(l.all), Keep)
	}
}
