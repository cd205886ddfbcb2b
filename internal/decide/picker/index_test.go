package picker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// naiveIndex is the index as one would write it first: a list of blocks with
// a flag per endpoint.
type naiveIndex struct {
	c      IndexConfig
	slots  map[int][]naiveBlock
	limits map[int]int
}

func (ix *naiveIndex) limit(slot int) int {
	if n := ix.limits[slot]; n > 0 {
		return min(n, ix.c.MaxBlocks)
	}
	return min(ix.c.EndpointBlocks, ix.c.MaxBlocks)
}

type naiveBlock struct {
	hash  uint64
	again bool
}

func (ix *naiveIndex) find(slot int, h uint64) int {
	return slices.IndexFunc(ix.slots[slot], func(b naiveBlock) bool { return b.hash == h })
}

func (ix *naiveIndex) total() (n int) {
	for _, s := range ix.slots {
		n += len(s)
	}
	return n
}

func (ix *naiveIndex) evict(slot int) {
	for {
		b := ix.slots[slot][0]
		ix.slots[slot] = ix.slots[slot][1:]
		if !b.again {
			return
		}
		b.again = false
		ix.slots[slot] = append(ix.slots[slot], b)
	}
}

func (ix *naiveIndex) sent(slot int, blocks []uint64) {
	blocks = blocks[:min(len(blocks), ix.limit(slot))]
	for _, h := range blocks {
		if i := ix.find(slot, h); i >= 0 {
			ix.slots[slot][i].again = true
		}
	}
	rich := -1
	for _, h := range slices.Backward(blocks) {
		if ix.find(slot, h) >= 0 {
			continue
		}
		if len(ix.slots[slot]) >= ix.limit(slot) {
			ix.evict(slot)
		} else if ix.total() >= ix.c.MaxBlocks {
			if rich < 0 || len(ix.slots[rich]) == 0 {
				rich = 0
				for i := range 140 {
					if len(ix.slots[i]) > len(ix.slots[rich]) {
						rich = i
					}
				}
			}
			ix.evict(rich)
		}
		ix.slots[slot] = append(ix.slots[slot], naiveBlock{hash: h})
	}
}

// match is called for slots that hold nothing, too.
func (ix *naiveIndex) match(slot int, blocks []uint64) int {
	for i, h := range blocks {
		if ix.find(slot, h) < 0 {
			return i
		}
	}
	return len(blocks)
}

// check verifies what must hold between the index's parts.
func (ix *Index) check() error {
	pairs := 0
	for slot := range ix.slots {
		q := ix.slots[slot]
		pairs += q.held
		if q.held > ix.limit(slot) || q.n > 2*q.held+chunkLen {
			return fmt.Errorf("slot %d holds %d blocks, its queue has %d", slot, q.held, q.n)
		}
		held, n := map[uint32]bool{}, q.n
		for range n {
			id := q.pop(&ix.pool)
			q.push(&ix.pool, id)
			if ix.has(ix.nodes.at(id), slot) {
				held[id] = true
			}
		}
		if len(held) != q.held {
			return fmt.Errorf("slot %d has %d blocks in its queue, %d counted", slot, len(held), q.held)
		}
		ix.slots[slot] = q
	}
	if pairs != ix.blocks || pairs > ix.config.MaxBlocks {
		return fmt.Errorf("%d blocks in queues, %d counted, %d allowed", pairs, ix.blocks, ix.config.MaxBlocks)
	}
	found := 0
	for _, c := range ix.table.cells {
		if c == 0 {
			continue
		}
		n := ix.nodes.at(idOf(c))
		members := 0
		ix.each(n, func(int) { members++ })
		if id, ok := ix.table.find(&ix.nodes, n.hash); !ok || id != idOf(c) || members == 0 {
			return fmt.Errorf("block %x: found %v, %d in its set", n.hash, ok, members)
		}
		found += members
	}
	if found != pairs {
		return fmt.Errorf("%d blocks in sets, %d in queues", found, pairs)
	}
	return nil
}

// runIndex does what data says to an index and a naive one and compares them.
func runIndex(t *testing.T, c IndexConfig, data []byte) {
	t.Helper()
	ix, err := NewIndex(c)
	if err != nil {
		t.Fatal(err)
	}
	naive := &naiveIndex{c: c, slots: map[int][]naiveBlock{}, limits: map[int]int{}}
	var m Matches
	next := func() int {
		if len(data) == 0 {
			return 0
		}
		b := data[0]
		data = data[1:]
		return int(b)
	}
	for len(data) > 0 {
		// Prompts are paths in a tree, some of the hashes' lower halves equal.
		slot := next() % 140
		var blocks []uint64
		h := uint64(next()%3 + 1)
		for range next() % 12 {
			blocks = append(blocks, h)
			h = mix(h*3+uint64(next()%3)) &^ 0xfffff000
		}
		switch next() % 16 {
		case 0:
			ix.Forget(slot)
			delete(naive.slots, slot)
			delete(naive.limits, slot)
		case 1:
			n := next() % 12
			ix.Resize(slot, n*c.BlockBytes/bytesPerToken)
			naive.limits[slot] = n
			for len(naive.slots[slot]) > naive.limit(slot) {
				naive.evict(slot)
			}
		default:
			ix.Sent(slot, blocks)
			naive.sent(slot, blocks)
		}
		ix.Match(blocks, &m)
		longest, most := 0, 0
		for s := range 141 {
			want := naive.match(s, blocks)
			if want > longest {
				longest, most = want, 0
			}
			if want == longest && want > 0 {
				most++
			}
			if m.At(s) != want {
				t.Fatalf("slot %d holds %d leading blocks of %x, the naive index says %d", s, m.At(s), blocks, want)
			}
		}
		if m.Longest != longest || m.Most != most {
			t.Fatalf("longest is %d of %d slots, want %d of %d", m.Longest, m.Most, longest, most)
		}
	}
	if err := ix.check(); err != nil {
		t.Fatal(err)
	}
}

func TestIndexIsTheNaiveOne(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 150 {
		data := make([]byte, 300)
		for j := range data {
			data[j] = byte(r.Uint32())
		}
		c := IndexConfig{BlockBytes: 16, PromptBlocks: 16, EndpointBlocks: 1 + i%20, MaxBlocks: 1 + i%150}
		runIndex(t, c, data)
	}
}

func FuzzIndex(f *testing.F) {
	f.Add(uint8(3), uint8(9), []byte("\x01\x02\x05abcdefgh\x01\x02\x05abcdefgh"))
	f.Fuzz(func(t *testing.T, per, all uint8, data []byte) {
		c := IndexConfig{BlockBytes: 16, PromptBlocks: 16, EndpointBlocks: 1 + int(per), MaxBlocks: 1 + int(all)}
		runIndex(t, c, data[:min(len(data), 2000)])
	})
}

// TestIndexOfAThousand is the case that an index per endpoint does badly.
func TestIndexOfAThousand(t *testing.T) {
	c := DefaultIndexConfig()
	r := rand.New(rand.NewPCG(1, 1))
	blocks := c.AppendBlocks(nil, 1, [][]byte{prompt(256*c.BlockBytes, r)})
	ix, err := NewIndex(c)
	if err != nil {
		t.Fatal(err)
	}
	for slot := range 1000 {
		ix.Sent(slot, blocks)
	}
	pairs, distinct := ix.Len()
	t.Logf("256 blocks that 1,000 endpoints hold: %.2f MB", float64(ix.Bytes())/1e6)
	if pairs != 256_000 || distinct != 256 || ix.Bytes() > 2<<20 {
		t.Errorf("%d pairs, %d distinct, %d bytes", pairs, distinct, ix.Bytes())
	}
	for slot := range 1000 {
		if slot%2 == 1 {
			ix.Forget(slot)
		}
	}
	var m Matches
	ix.Match(append(blocks[:200:200], 1), &m)
	if m.Longest != 200 || m.At(0) != 200 || m.At(1) != 0 || ix.Blocks(1) != 0 || ix.Blocks(998) != 256 {
		t.Errorf("%d, %d, %d", m.Longest, m.At(0), m.At(1))
	}
	for slot := range 1000 {
		ix.Forget(slot)
	}
	if pairs, distinct = ix.Len(); pairs != 0 || distinct != 0 {
		t.Errorf("%d pairs, %d distinct are left", pairs, distinct)
	}
	if err := ix.check(); err != nil {
		t.Error(err)
	}
}

// TestIndexIsBounded fills an index with blocks that nobody shares, and with
// blocks that a few share, which takes the most memory.
func TestIndexIsBounded(t *testing.T) {
	c := DefaultIndexConfig()
	c.MaxBlocks = 1 << 17
	for _, sharers := range []int{1, 5} {
		ix, err := NewIndex(c)
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(1, 1))
		blocks := make([]uint64, 100)
		for i := range 3 * c.MaxBlocks / 100 / sharers {
			for j := range blocks {
				blocks[j] = r.Uint64()
			}
			for k := range sharers {
				ix.Sent((i*7+k*100)%1000, blocks)
			}
		}
		pairs, _ := ix.Len()
		t.Logf("%d pairs, %d to a block: %.1f MB, %d bytes each", pairs, sharers, float64(ix.Bytes())/1e6, ix.Bytes()/pairs)
		if pairs != c.MaxBlocks || ix.Bytes() > 100*pairs {
			t.Errorf("%d pairs take %d bytes", pairs, ix.Bytes())
		}
		if err := ix.check(); err != nil {
			t.Error(err)
		}
	}
}

// TestIndexKeepsWhatIsUsed: a prefix that comes again and again outlives what
// came once.
func TestIndexKeepsWhatIsUsed(t *testing.T) {
	c := IndexConfig{BlockBytes: 16, PromptBlocks: 100, EndpointBlocks: 50, MaxBlocks: 1000}
	ix, err := NewIndex(c)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 1))
	system := []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	var m Matches
	for range 1000 {
		chat := slices.Clone(system)
		for range 10 {
			chat = append(chat, r.Uint64())
		}
		ix.Sent(3, chat)
		if ix.Match(chat, &m); m.At(3) != 20 {
			t.Fatalf("%d of a prompt that was just sent", m.At(3))
		}
	}
	if ix.Blocks(3) != 50 {
		t.Errorf("%d blocks", ix.Blocks(3))
	}
}

func TestIndexTakesAnySlot(t *testing.T) {
	ix, err := NewIndex(DefaultIndexConfig())
	if err != nil {
		t.Fatal(err)
	}
	var m Matches
	for _, slot := range []int{-1, maxSlots, 1 << 40} {
		ix.Sent(slot, []uint64{1})
		ix.Forget(slot)
		ix.Match([]uint64{1}, &m)
		if m.At(slot) != 0 || ix.Blocks(slot) != 0 {
			t.Errorf("slot %d holds something", slot)
		}
	}
	ix.Sent(maxSlots-1, []uint64{1})
	ix.Sent(2, []uint64{1, 1, 2, 1})
	ix.Match([]uint64{1, 2}, &m)
	if m.At(maxSlots-1) != 1 || m.At(2) != 2 {
		t.Errorf("%d, %d", m.At(maxSlots-1), m.At(2))
	}
	if err := ix.check(); err != nil {
		t.Error(err)
	}
}

// TestIndexFollowsEngines: with random stores and removals besides prompts that
// are sent, an index whose size is no bound holds exactly what it was told.
func TestIndexFollowsEngines(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	ix, err := NewIndex(IndexConfig{BlockBytes: 64, PromptBlocks: 64, EndpointBlocks: 1 << 12, MaxBlocks: 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	naive := [8]map[uint64]bool{}
	for i := range naive {
		naive[i] = map[uint64]bool{}
	}
	var m Matches
	for step := range 20_000 {
		slot := random.IntN(len(naive))
		blocks := make([]uint64, 1+random.IntN(12))
		for i := range blocks {
			blocks[i] = mix(uint64(random.IntN(300) + 1))
		}
		switch random.IntN(5) {
		case 0:
			ix.Sent(slot, blocks)
		case 1, 2:
			ix.Stored(slot, blocks)
		default:
			ix.Removed(slot, blocks)
			for _, h := range blocks {
				delete(naive[slot], h)
			}
			blocks = nil
		}
		for _, h := range blocks {
			naive[slot][h] = true
		}
		probe := []uint64{mix(uint64(random.IntN(300) + 1)), mix(uint64(random.IntN(300) + 1))}
		ix.Match(probe, &m)
		for slot, held := range naive {
			want := 0
			for want < len(probe) && held[probe[want]] {
				want++
			}
			if m.At(slot) != want || ix.Blocks(slot) != len(held) {
				t.Fatalf("step %d: slot %d matches %d blocks and holds %d, want %d and %d", step, slot, m.At(slot), ix.Blocks(slot), want, len(held))
			}
		}
		if step%1000 == 0 {
			if err := ix.check(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for slot := range naive {
		ix.Forget(slot)
	}
	if blocks, distinct := ix.Len(); blocks+distinct > 0 {
		t.Errorf("%d blocks remain, %d different", blocks, distinct)
	}
}
