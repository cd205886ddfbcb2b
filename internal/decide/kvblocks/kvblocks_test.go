package kvblocks

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestEngineAgainstNaive: after any stores, removals and clearings an engine's
// chains are those of the texts whose blocks it has, whatever it calls them.
func TestEngineAgainstNaive(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var e Engine
		blocks := map[uint64][]uint32{} // the engine's names, and all tokens to their end
		told := map[uint64]bool{}
		for range 60 {
			ev := Event{BlockTokens: 2}
			switch n := random.IntN(10); {
			case n < 6:
				var text []uint32
				for name, tokens := range blocks {
					if random.IntN(3) == 0 {
						ev.Parent, ev.HasParent, text = name, true, tokens
						break
					}
				}
				for range 1 + random.IntN(3) {
					add := []uint32{uint32(random.IntN(3)), uint32(random.IntN(3))}
					text = append(slices.Clone(text), add...)
					name := random.Uint64()
					blocks[name] = text
					ev.Blocks, ev.Tokens = append(ev.Blocks, name), append(ev.Tokens, add...)
				}
			case n < 9:
				ev.Kind = Removed
				for name := range blocks {
					if random.IntN(2) == 0 {
						ev.Blocks = append(ev.Blocks, name)
						delete(blocks, name)
					}
				}
			default:
				ev.Kind = Cleared
				clear(blocks)
			}
			stored, removed := e.Apply(&ev, nil, nil)
			for _, c := range removed {
				if !told[c] {
					t.Fatal("a chain leaves that was not there")
				}
				delete(told, c)
			}
			for _, c := range stored {
				if told[c] {
					t.Fatal("a chain comes twice")
				}
				told[c] = true
			}
			want := map[uint64]bool{}
			for _, tokens := range blocks {
				c := Seed("", 2)
				for i := 0; i < len(tokens); i += 2 {
					c = next(c, tokens[i:i+2])
				}
				if want[c] = true; !e.Holds(c) || !told[c] {
					t.Fatalf("%v is not held", tokens)
				}
			}
			if len(want) != len(told) || e.Len() != len(blocks) {
				t.Fatalf("%d chains of %d blocks are told, want %d of %d", len(told), e.Len(), len(want), len(blocks))
			}
		}
	}
}

func TestEngineKeepsApart(t *testing.T) {
	chain := func(ev Event) uint64 {
		ev.Blocks, ev.Tokens, ev.BlockTokens = []uint64{1}, []uint32{1, 2, 3}, 3
		stored, _ := new(Engine).Apply(&ev, nil, nil)
		return stored[0]
	}
	seen := map[uint64]bool{}
	for _, ev := range []Event{{}, {Adapter: "sql"}, {Extra: []uint64{5}}, {Extra: []uint64{6}}} {
		if c := chain(ev); seen[c] {
			t.Errorf("%+v has the chain of another", ev)
		} else {
			seen[c] = true
		}
	}
	for name, ev := range map[string]Event{
		"unknown parent": {Blocks: []uint64{1}, Tokens: []uint32{1}, BlockTokens: 1, Parent: 9, HasParent: true},
		"too few tokens": {Blocks: []uint64{1, 2}, Tokens: []uint32{1}, BlockTokens: 1},
		"no size":        {Blocks: []uint64{1}, Tokens: []uint32{1}},
	} {
		var e Engine
		if stored, _ := e.Apply(&ev, nil, nil); len(stored) > 0 || e.Len() > 0 {
			t.Errorf("%s: %d blocks are held", name, e.Len())
		}
	}
}

func TestEngineIsBounded(t *testing.T) {
	var e Engine
	for i := range MaxBlocks + 10 {
		e.Apply(&Event{Blocks: []uint64{uint64(i)}, Tokens: []uint32{uint32(i)}, BlockTokens: 1}, nil, nil)
	}
	if e.Len() != MaxBlocks {
		t.Errorf("%d blocks are followed, want %d", e.Len(), MaxBlocks)
	}
}

// TestAlignment: texts of 8 bytes to a block and 4 bytes to a token end where
// the blocks of 4 tokens do that an engine tells of.
func TestAlignment(t *testing.T) {
	var e Engine
	tokens := make([]uint32, 25)
	for i := range tokens {
		tokens[i] = uint32(100 + i)
	}
	chains, _ := e.Apply(&Event{Blocks: []uint64{1, 2, 3, 4, 5, 6}, Tokens: tokens, BlockTokens: 4}, nil, nil)
	a := Alignment{Max: 20}
	p := Prompt{Texts: []uint64{11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22}, BlockBytes: 8, Bytes: 100, Tokens: tokens, BlockTokens: 4}
	learned := map[uint64]uint64{}
	a.Learn(&p, func(text, chain uint64) { learned[text] = chain })
	// 2 tokens a block of text: every second one ends where a block of KV does.
	for i, text := range p.Texts {
		want := chains[0] // the first is its lead
		if i > 0 {
			want = chains[(i+1)/2-1]
		}
		if learned[text] != want {
			t.Errorf("text %d ends in %x, want %x", text, learned[text], want)
		}
	}
	if got := a.Texts(chains[0]); !slices.Equal(got, []uint64{12, 13}) {
		t.Errorf("texts %v end in the first block, want 12 and 13", got)
	}
	if got := a.Leads(chains[0]); !slices.Equal(got, []uint64{11}) {
		t.Errorf("its leads are %v, want 11", got)
	}
	if n := a.Known(p.Texts); n != 12 {
		t.Errorf("%d blocks are known, want 12", n)
	}
	// Another prompt that begins alike has the same lead, and both chains have it.
	alike := slices.Clone(tokens)
	alike[3]++
	others, _ := e.Apply(&Event{Blocks: []uint64{7}, Tokens: alike[:4], BlockTokens: 4}, nil, nil)
	another := Alignment{}
	another.Learn(&p, func(uint64, uint64) {})
	var pairs [][2]uint64
	another.Learn(&Prompt{Texts: []uint64{11, 52, 53}, BlockBytes: 8, Bytes: 24, Tokens: alike[:6], BlockTokens: 4}, func(text, chain uint64) { pairs = append(pairs, [2]uint64{text, chain}) })
	if want := [][2]uint64{{11, others[0]}, {52, others[0]}, {53, others[0]}}; !slices.Equal(pairs, want) {
		t.Errorf("learned %v, want %v", pairs, want)
	}
	if a, b := another.Leads(chains[0]), another.Leads(others[0]); !slices.Equal(a, []uint64{11}) || !slices.Equal(b, []uint64{11}) {
		t.Errorf("the leads are %v and %v", a, b)
	}
	// The oldest are forgotten.
	q := p
	q.Texts = []uint64{31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42}
	a.Learn(&q, func(uint64, uint64) {})
	if got := a.Texts(chains[0]); a.Len() != 20 || !slices.Equal(got, []uint64{32, 33}) {
		t.Errorf("%d texts are known, %v end in the first block; want 20, and 32 and 33", a.Len(), got)
	}
	a.Learn(&Prompt{Texts: []uint64{1}, BlockBytes: 8, Bytes: 4, Tokens: tokens, BlockTokens: 4}, func(uint64, uint64) { t.Error("more text than there is was learned") })
}
