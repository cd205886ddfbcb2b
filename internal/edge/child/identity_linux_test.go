package child

import (
	"os"
	"strings"
	"testing"
)

func TestParseStat(t *testing.T) {
	fields := " S 1 42 42 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987654 10 11"
	for _, name := range []string{"sh", "a b", "x) R 9 9 9", "(((", "\n"} {
		got, err := parseStat([]byte("42 (" + name + ")" + fields))
		if err != nil || got != (stat{state: 'S', group: 42, start: 987654}) {
			t.Errorf("%q: %+v, %v", name, got, err)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	own, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(own))
	f.Add("")
	f.Add("1 (x)")
	f.Add("1 (x) ) ) ) S")
	f.Fuzz(func(t *testing.T, s string) {
		st, err := parseStat([]byte(s))
		if err == nil && !strings.Contains(s, ")") {
			t.Errorf("%q read as %+v", s, st)
		}
	})
}

func TestMarked(t *testing.T) {
	t.Setenv("CHILD_TEST_MARK", "here")
	p := sh(t, "sleep 60 & wait", "")
	if pids := Marked("CHILD_TEST_MARK")["here"]; len(pids) == 0 || pids[0] != p.PID() {
		t.Errorf("marked: %v, want %d first", pids, p.PID())
	}
}
