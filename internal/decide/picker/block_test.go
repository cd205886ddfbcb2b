package picker

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
)

// naiveBlocks hashes a prompt in one piece.
func naiveBlocks(c IndexConfig, seed uint64, parts [][]byte) []uint64 {
	text := bytes.Join(parts, nil)
	var out []uint64
	h := seed
	for len(text) >= c.BlockBytes && len(out) < c.PromptBlocks {
		h = mix(h*prime + xxhash.Sum64(text[:c.BlockBytes]))
		out = append(out, h)
		text = text[c.BlockBytes:]
	}
	return out
}

func TestBlocksDoNotDependOnParts(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	for range 2000 {
		c := IndexConfig{BlockBytes: 16 + r.IntN(40), PromptBlocks: 1 + r.IntN(12), EndpointBlocks: 1, MaxBlocks: 1}
		var parts [][]byte
		for range r.IntN(8) {
			parts = append(parts, prompt(r.IntN(5)*r.IntN(40), r))
		}
		got, want := c.AppendBlocks([]uint64{7}, 3, parts), naiveBlocks(c, 3, parts)
		if got[0] != 7 || !slices.Equal(got[1:], want) {
			t.Fatalf("%+v: %d blocks %x, want %d %x", c, len(got)-1, got[1:], len(want), want)
		}
	}
}

func FuzzBlocks(f *testing.F) {
	f.Add(uint8(0), uint8(3), strings.Repeat("ab|c", 60))
	f.Fuzz(func(t *testing.T, size, most uint8, text string) {
		c := IndexConfig{BlockBytes: 16 + int(size), PromptBlocks: 1 + int(most), EndpointBlocks: 1, MaxBlocks: 1}
		var parts [][]byte
		for _, p := range strings.Split(text, "|") {
			parts = append(parts, []byte(p))
		}
		if got, want := c.AppendBlocks(nil, 3, parts), naiveBlocks(c, 3, parts); !slices.Equal(got, want) {
			t.Fatalf("%x, want %x", got, want)
		}
	})
}

// TestWhole: the hash of a whole prompt is that of the same text, however it is cut, and of
// no other that a gateway is likely to see; beyond PromptBlocks the length tells them apart.
func TestWhole(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 9))
	seen := map[uint64]string{}
	for range 3000 {
		c := IndexConfig{BlockBytes: 16, PromptBlocks: 8, EndpointBlocks: 1, MaxBlocks: 1}
		text := prompt(r.IntN(12*c.BlockBytes), r)
		cut := r.IntN(len(text) + 1)
		parts := [][]byte{text[:cut], nil, text[cut:]}
		blocks := c.AppendBlocks(nil, 3, parts)
		got := c.Whole(blocks, parts)
		if len(text) < c.BlockBytes {
			if got != 0 {
				t.Fatalf("%q without blocks has the hash %x", text, got)
			}
			continue
		}
		if one := c.Whole(blocks, [][]byte{text}); got == 0 || one != got {
			t.Fatalf("%q: %x, in one part %x", text, got, one)
		}
		is := string(text)
		if long := (c.PromptBlocks + 1) * c.BlockBytes; len(text) >= long {
			is = fmt.Sprintf("%s and %d bytes", text[:c.PromptBlocks*c.BlockBytes], len(text))
		}
		if other, ok := seen[got]; ok && other != is {
			t.Fatalf("%q and %q have the same hash", other, is)
		}
		seen[got] = is
		longer := append(slices.Clone(text), 'x')
		if c.Whole(c.AppendBlocks(nil, 3, [][]byte{longer}), [][]byte{longer}) == got {
			t.Fatalf("%q goes on with the same hash", text)
		}
	}
}

// TestBlocksChain: a block stands for all the text before it, the model and
// the salt.
func TestBlocksChain(t *testing.T) {
	c := DefaultIndexConfig()
	text := prompt(5*c.BlockBytes+100, rand.New(rand.NewPCG(1, 1)))
	one := c.AppendBlocks(nil, Seed("m", ""), [][]byte{text})
	if len(one) != 5 {
		t.Fatalf("%d blocks", len(one))
	}
	other := slices.Clone(text)
	other[c.BlockBytes+3] ^= 1
	two := c.AppendBlocks(nil, Seed("m", ""), [][]byte{other})
	if one[0] != two[0] {
		t.Error("equal beginnings differ")
	}
	for i := 1; i < 5; i++ {
		if one[i] == two[i] {
			t.Errorf("block %d is the same after a difference", i)
		}
	}
	seeds := []uint64{Seed("m", ""), Seed("", ""), Seed("", "m"), Seed("m", "m"), Seed("m\x00", ""), Seed("n", "")}
	for i, s := range seeds {
		if slices.Index(seeds, s) != i {
			t.Errorf("seed %d is another's", i)
		}
	}
	long := c.AppendBlocks(nil, 1, [][]byte{make([]byte, 1<<20)})
	if len(long) != c.PromptBlocks {
		t.Errorf("%d blocks of 1 MiB", len(long))
	}
}
