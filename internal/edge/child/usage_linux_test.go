package child

import (
	"os"
	"syscall"
	"testing"
	"time"
)

func TestUsages(t *testing.T) {
	for begin := time.Now(); time.Since(begin) < 30*time.Millisecond; { // a few ticks
	}
	all, err := Usages()
	if err != nil {
		t.Fatal(err)
	}
	own := all[syscall.Getpgrp()]
	if own.CPU <= 0 || own.Memory < int64(os.Getpagesize()) {
		t.Errorf("this group takes %+v", own)
	}
}

func FuzzParseUsage(f *testing.F) {
	b, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("1 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 -21 22"))
	f.Add([]byte("1 (a"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, _, pages, err := parseUsage(b); err == nil && pages < 0 {
			t.Fatalf("%d pages", pages)
		}
	})
}
