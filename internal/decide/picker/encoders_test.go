package picker

import (
	"fmt"
	"slices"
	"testing"
)

// encoders are servers with so much in flight.
func encoders(inFlight ...int) (all []Encoder) {
	for i, n := range inFlight {
		all = append(all, Encoder{Hash: NameHash(fmt.Sprintf("10.0.0.%d:8000", i+1)), InFlight: n})
	}
	return all
}

func TestEncoders(t *testing.T) {
	for name, c := range map[string]struct {
		inFlight []int
		entries  []uint64
		want     []int // how many entries each gets more
	}{
		"nobody":                        {nil, []uint64{1}, nil},
		"nothing to do":                 {[]int{0, 0}, nil, []int{0, 0}},
		"one for all":                   {[]int{3}, []uint64{1, 2, 1}, []int{3}},
		"one picture for each":          {[]int{0, 0, 0}, []uint64{7, 8, 9}, []int{1, 1, 1}},
		"not the one that has its part": {[]int{0, 4}, []uint64{1, 2, 3}, []int{3, 0}},
		"others' work too":              {[]int{9, 0, 0}, []uint64{1, 2}, []int{0, 1, 1}},
	} {
		all := encoders(c.inFlight...)
		chosen := Encoders(all, c.entries)
		for _, n := range chosen {
			c.want[n]--
		}
		if slices.ContainsFunc(c.want, func(n int) bool { return n != 0 }) {
			t.Errorf("%s: %v", name, chosen)
		}
		for i := range all {
			if got := c.inFlight[i] + len(slices.DeleteFunc(slices.Clone(chosen), func(n int) bool { return n != i })); all[i].InFlight != got {
				t.Errorf("%s: encoder %d has %d, want %d", name, i, all[i].InFlight, got)
			}
		}
	}
}

// TestEncodersStay: a picture meets the encoder that had it, whatever the order of the
// list and who else is there, and none gets more than a quarter over its share.
func TestEncodersStay(t *testing.T) {
	moved := 0
	for entry := range uint64(1000) {
		five, four := encoders(0, 0, 0, 0, 0), encoders(0, 0, 0, 0)
		slices.Reverse(five)
		before, after := 4-Encoders(five, []uint64{entry})[0], Encoders(four, []uint64{entry})[0]
		if before != after {
			if moved++; before != 4 {
				t.Fatalf("picture %d goes from encoder %d to %d, since another one left", entry, before, after)
			}
		}
	}
	if moved < 120 || moved > 280 {
		t.Errorf("%d of 1000 pictures moved, want about 200", moved)
	}
	all := encoders(0, 0, 0, 0)
	same := make([]uint64, 400)
	Encoders(all, same)
	for _, e := range all {
		if e.InFlight > 126 {
			t.Errorf("an encoder has %d of 400", e.InFlight)
		}
	}
}
