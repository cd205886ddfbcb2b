package journal

import (
	"fmt"
	"strings"
	"testing"
)

func listed(posts []Post) string {
	var out []string
	for _, p := range posts {
		if p.Data == nil {
			out = append(out, "-"+p.Key)
			continue
		}
		out = append(out, p.Key+"="+string(p.Data))
	}
	return strings.Join(out, " ")
}

// TestBoard: who read at a version gets what changed after it, and each subject as
// it is now; who was away for too long, or read another board, gets everything.
func TestBoard(t *testing.T) {
	b := NewBoard(100)
	b.Set("a", []byte("1"))
	b.Set("b", []byte("1"))
	all, now, whole := b.Since(0)
	if listed(all) != "a=1 b=1" || now != 102 || !whole {
		t.Fatal(listed(all), now, whole)
	}
	select {
	case <-b.Changed(now):
		t.Error("changed, though nothing did")
	default:
	}
	changed := b.Changed(now)
	b.Set("b", []byte("1")) // no change
	b.Set("a", []byte("2"))
	b.Set("a", []byte("3"))
	<-changed
	if got, _, whole := b.Since(now); listed(got) != "a=3" || whole {
		t.Error(listed(got), whole)
	}
	b.Delete("a")
	b.Delete("none")
	b.Set("c", []byte("1"))
	if got, _, whole := b.Since(now); listed(got) != "-a c=1" || whole {
		t.Error(listed(got), whole)
	}
	b.Set("a", []byte("4")) // it is back
	if got, _, _ := b.Since(now); listed(got) != "a=4 c=1" {
		t.Error(listed(got))
	}
	for _, version := range []uint64{0, 99, 10_000} {
		if got, _, whole := b.Since(version); listed(got) != "a=4 b=1 c=1" || !whole {
			t.Errorf("since %d: %s %v", version, listed(got), whole)
		}
	}
	for i := range keptGone + 10 {
		b.Set(fmt.Sprint("x", i), []byte("1"))
		b.Delete(fmt.Sprint("x", i))
	}
	if got, _, whole := b.Since(now); listed(got) != "a=4 b=1 c=1" || !whole {
		t.Errorf("after more went than are kept: %s %v", listed(got), whole)
	}
}
