package process

import (
	"slices"
	"strings"
	"testing"
)

func TestPrivateRanges(t *testing.T) {
	got, err := privateRanges(strings.NewReader(`5581e0000000-5581e0001000 r--p 00000000 fe:00 131 /usr/bin/engine
5581e0001000-5581e0003000 rw-p 00001000 fe:00 131 /usr/bin/engine
5581e1000000-5581e1021000 rw-p 00000000 00:00 0 [heap]
7f0000000000-7f0000001000 ---p 00000000 00:00 0
7f0000100000-7f0000200000 r--p 00000000 fe:00 99 /models/a b.gguf
7f0000300000-7f0000400000 rw-s 00000000 00:01 7 /dev/shm/x
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0 [stack]
7ffc000d0000-7ffc000d2000 r-xp 00000000 00:00 0 [vdso]
not a line
`))
	want := []iovec{{0x5581e0001000, 0x2000}, {0x5581e1000000, 0x21000}, {0x7f0000000000, 0x1000}, {0x7ffc00000000, 0x21000}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%x %v, want %x", got, err, want)
	}
}

func TestMayAdvise(t *testing.T) {
	for status, want := range map[string]bool{
		"Name:\tx\nCapEff:\t000001fffeffffff\n": true,
		"CapEff:\t0000000000800000\n":           true,
		"CapEff:\t0000000000000000\n":           false,
		"CapPrm:\t0000000000800000\n":           false,
		"CapEff:\tno number\n":                  false,
		"":                                      false,
	} {
		if mayAdvise(status) != want {
			t.Errorf("%q: %v", status, !want)
		}
	}
}
