package picker

import (
	"fmt"
	"math/bits"
)

// IndexConfig is the size of an Index and how prompts are cut into blocks.
type IndexConfig struct {
	// BlockBytes is how many bytes of a prompt make a block, 16 to 4096.
	BlockBytes int `json:"blockBytes,omitempty"`
	// PromptBlocks is how many blocks of a prompt are looked at.
	PromptBlocks int `json:"promptBlocks,omitempty"`
	// EndpointBlocks is how many blocks an endpoint is assumed to hold that
	// does not report its number (Resize); the least recently used ones are
	// forgotten.
	EndpointBlocks int `json:"endpointBlocks,omitempty"`
	// MaxBlocks is how many blocks of endpoints are held, all endpoints
	// together: one that three endpoints hold counts three times.
	MaxBlocks int `json:"maxBlocks,omitempty"`
}

// DefaultIndexConfig has blocks of about 64 tokens; 31,250 of them, 2 million
// tokens, per endpoint.
func DefaultIndexConfig() IndexConfig {
	return IndexConfig{BlockBytes: 256, PromptBlocks: 1024, EndpointBlocks: 31250, MaxBlocks: 1 << 20}
}

const maxBlockBytes = 4096

// Validate returns what is wrong.
func (c IndexConfig) Validate() error {
	switch {
	case c.BlockBytes < 16 || c.BlockBytes > maxBlockBytes:
		return fmt.Errorf("blockBytes is %d: write a number from 16 to %d", c.BlockBytes, maxBlockBytes)
	case c.PromptBlocks < 1 || c.PromptBlocks > 1<<16:
		return fmt.Errorf("promptBlocks is %d: write a number from 1 to 65536", c.PromptBlocks)
	case c.EndpointBlocks < 1 || c.EndpointBlocks > 1<<24:
		return fmt.Errorf("endpointBlocks is %d: write a number from 1 to %d", c.EndpointBlocks, 1<<24)
	case c.MaxBlocks < 1 || c.MaxBlocks > 1<<23:
		return fmt.Errorf("maxBlocks is %d: write a number from 1 to %d", c.MaxBlocks, 1<<23)
	}
	return nil
}

// maxSlots bounds the slots of an Index; prompts sent to others are not
// remembered.
const maxSlots = 4096

// Index remembers which endpoints were sent which blocks of prompts, and so
// probably hold their keys and values. It is one table from a block's hash to
// the set of endpoints, not a table per endpoint: a prompt that all endpoints
// know is one entry per block.
//
// Per endpoint the blocks stand in a queue, oldest first. When one must go, it
// is the oldest that was not sent again since (second chance, an approximation
// of least recently used that costs one bit). A prompt's end goes before its
// beginning, as in an engine.
//
// Match may be called by many at once while nobody calls anything else.
type Index struct {
	config IndexConfig
	table  hashTable
	nodes  nodes
	dense  sets
	slots  []queue // by slot
	pool   chunks
	blocks int // pairs of block and endpoint; = Σ slots[i].held <= config.MaxBlocks
	// wholes are hashes of whole prompts, each where its lowest bits say: a later one
	// there takes the place of one before. nil before the first.
	wholes []uint64
}

// maxWholes is how many whole prompts are remembered; a power of two.
const maxWholes = 1 << 12

// NewIndex makes an empty index. It fails where Validate does.
func NewIndex(c IndexConfig) (*Index, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &Index{config: c, dense: sets{words: 1}}, nil
}

// Config is what the index was made from.
func (ix *Index) Config() IndexConfig { return ix.config }

// Blocks is how many blocks a slot holds.
func (ix *Index) Blocks(slot int) int {
	if slot < 0 || slot >= len(ix.slots) {
		return 0
	}
	return ix.slots[slot].held
}

// Len is how many blocks are held in all, and how many of them differ.
func (ix *Index) Len() (blocks, distinct int) { return ix.blocks, ix.table.n }

// Bytes is the memory the index takes.
func (ix *Index) Bytes() int {
	return len(ix.table.cells)*4 + len(ix.nodes.pages)*int(nodePage*nodeBytes) +
		cap(ix.dense.bits)*8 + cap(ix.dense.free)*4 +
		len(ix.pool.chunks)*chunkBytes + cap(ix.slots)*slotBytes + cap(ix.wholes)*8
}

// Remember notes that a whole prompt was sent, by its hash of IndexConfig.Whole; 0 is none.
func (ix *Index) Remember(whole uint64) {
	if whole == 0 {
		return
	}
	if ix.wholes == nil {
		ix.wholes = make([]uint64, maxWholes)
	}
	ix.wholes[whole%maxWholes] = whole
}

// remembers reports whether a whole prompt was sent and no later one took its place; true
// for one without a hash.
func (ix *Index) remembers(whole uint64) bool {
	return whole == 0 || ix.wholes != nil && ix.wholes[whole%maxWholes] == whole
}

// Matches is how many leading blocks of a prompt each slot holds.
type Matches struct {
	// Longest is the most of any slot, Most how many slots hold that many; 0
	// and 0 when none holds any.
	Longest, Most int
	n             []uint32 // by slot
	live          []uint64
}

// At is the slot's number of leading blocks.
func (m *Matches) At(slot int) int {
	if slot < 0 || slot >= len(m.n) {
		return 0
	}
	return int(m.n[slot])
}

func (m *Matches) reset() {
	m.Longest, m.Most = 0, 0
	m.n = m.n[:0]
}

// Match finds how many leading blocks each slot holds. It stops where no slot
// is left.
func (ix *Index) Match(blocks []uint64, m *Matches) {
	m.reset()
	if len(blocks) == 0 || len(ix.slots) == 0 {
		return
	}
	if cap(m.n) < len(ix.slots) {
		m.n = make([]uint32, len(ix.slots)+64)
	}
	m.n = m.n[:len(ix.slots)]
	clear(m.n)
	words := ix.dense.words
	if cap(m.live) < words {
		m.live = make([]uint64, words)
	}
	live := m.live[:words]
	for i, h := range blocks {
		id, ok := ix.table.find(&ix.nodes, h)
		if !ok {
			if i > 0 { // before, live is of another Match
				m.settle(live, i)
			}
			return
		}
		n := ix.nodes.at(id)
		switch {
		case i == 0 && n.dense():
			copy(live, ix.dense.set(n.bitset()))
		case i == 0:
			clear(live)
			ix.each(n, func(slot int) { live[slot>>6] |= 1 << (slot & 63) })
		case !n.dense():
			if !ix.narrow(n, m, live, i) {
				return
			}
		case !ix.narrowDense(n, m, live, i):
			return
		}
	}
	m.settle(live, len(blocks))
}

// narrowDense is Match's step for a block that many slots hold: it ends the
// match of the slots that do not hold it, and reports whether any remain.
func (ix *Index) narrowDense(n *node, m *Matches, live []uint64, at int) bool {
	set := ix.dense.set(n.bitset())[:len(live)]
	var lost uint64
	for w, v := range live {
		lost |= v &^ set[w]
	}
	if lost == 0 {
		return true
	}
	left := false
	for w, v := range live {
		if lost := v &^ set[w]; lost != 0 {
			m.put(w, lost, at)
			live[w] = v & set[w]
		}
		left = left || live[w] != 0
	}
	return left
}

// narrow is narrowDense for a block that few slots hold.
func (ix *Index) narrow(n *node, m *Matches, live []uint64, at int) bool {
	var keep [few]int32
	kept := 0
	for i := range few {
		slot := n.slot(i)
		if slot < 0 {
			break
		}
		if live[slot>>6]>>(slot&63)&1 != 0 {
			keep[kept] = int32(slot)
			live[slot>>6] &^= 1 << (slot & 63)
			kept++
		}
	}
	m.settle(live, at)
	clear(live)
	for _, slot := range keep[:kept] {
		live[slot>>6] |= 1 << (slot & 63)
	}
	return kept > 0
}

// settle ends the match of all that are left.
func (m *Matches) settle(live []uint64, at int) {
	for w, lost := range live {
		if lost != 0 {
			m.put(w, lost, at)
		}
	}
}

func (m *Matches) put(w int, lost uint64, at int) {
	if at > m.Longest {
		m.Longest, m.Most = at, 0
	}
	m.Most += bits.OnesCount64(lost) // at never falls
	for ; lost != 0; lost &= lost - 1 {
		m.n[w<<6|bits.TrailingZeros64(lost)] = uint32(at)
	}
}

// Sent notes that a slot was sent a prompt with these blocks. It returns how
// many of the leading ones the slot held already.
func (ix *Index) Sent(slot int, blocks []uint64) (known int) {
	if slot < 0 || slot >= maxSlots || len(blocks) == 0 {
		return 0
	}
	ix.grow(slot)
	limit := ix.limit(slot)
	blocks = blocks[:min(len(blocks), limit)]
	// What it holds already gets its second chance before anything is evicted.
	missing := 0
	for _, h := range blocks {
		if id, ok := ix.table.find(&ix.nodes, h); !ok || !ix.refer(ix.nodes.at(id), slot) {
			missing++
		} else if missing == 0 {
			known++
		}
	}
	if missing == 0 {
		return known
	}
	// The end goes in first, so that it goes out first.
	rich := -1
	for i := len(blocks) - 1; i >= 0; i-- {
		id, ok := ix.table.find(&ix.nodes, blocks[i])
		if ok && ix.has(ix.nodes.at(id), slot) {
			continue
		}
		q := &ix.slots[slot]
		rich = ix.makeRoom(q, slot, limit, rich)
		ix.add(slot, blocks[i])
	}
	return known
}

// makeRoom has a slot, and the index, hold one block less where they are full.
// rich is the slot that held the most when that was last looked up, -1 before;
// it is returned.
func (ix *Index) makeRoom(q *queue, slot, limit, rich int) int {
	if q.held >= limit {
		ix.evict(slot)
	} else if ix.blocks >= ix.config.MaxBlocks {
		if rich < 0 || ix.slots[rich].held == 0 {
			rich = ix.richest()
		}
		ix.evict(rich)
	}
	return rich
}

// Stored notes that a slot's endpoint has said that it holds these blocks.
func (ix *Index) Stored(slot int, blocks []uint64) {
	if slot < 0 || slot >= maxSlots || len(blocks) == 0 {
		return
	}
	ix.grow(slot)
	limit, rich := ix.limit(slot), -1
	for _, h := range blocks {
		if id, ok := ix.table.find(&ix.nodes, h); ok && ix.refer(ix.nodes.at(id), slot) {
			continue
		}
		rich = ix.makeRoom(&ix.slots[slot], slot, limit, rich)
		ix.add(slot, h)
	}
}

// Removed notes that a slot's endpoint has said that it no longer holds these
// blocks. What the queue has of them stays there, and is skipped later.
func (ix *Index) Removed(slot int, blocks []uint64) {
	if slot < 0 || slot >= len(ix.slots) {
		return
	}
	q := &ix.slots[slot]
	for _, h := range blocks {
		if id, ok := ix.table.find(&ix.nodes, h); ok && ix.has(ix.nodes.at(id), slot) {
			ix.remove(slot, id)
		}
	}
	if q.n > 2*q.held+chunkLen {
		ix.compact(slot)
	}
}

// compact takes out of a slot's queue what the slot does not hold, and what is
// there twice.
func (ix *Index) compact(slot int) {
	q := &ix.slots[slot]
	kept := make(map[uint32]bool, q.held)
	for range q.n {
		if id := q.pop(&ix.pool); !kept[id] && ix.has(ix.nodes.at(id), slot) {
			kept[id] = true
			q.push(&ix.pool, id)
		}
	}
}

// Resize sets how many tokens of prompts a slot's endpoint can hold; 0 is
// unknown. What is more than that is forgotten, the oldest first.
func (ix *Index) Resize(slot, tokens int) {
	if slot < 0 || slot >= maxSlots {
		return
	}
	ix.grow(slot)
	q := &ix.slots[slot]
	if q.limit = 0; tokens > 0 {
		q.limit = max(1, min(tokens, 1<<40)*bytesPerToken/ix.config.BlockBytes)
	}
	for limit := ix.limit(slot); q.held > limit; {
		ix.evict(slot)
	}
}

// limit is how many blocks a slot may hold.
func (ix *Index) limit(slot int) int {
	n := ix.slots[slot].limit
	if n == 0 {
		n = ix.config.EndpointBlocks
	}
	return min(n, ix.config.MaxBlocks)
}

// Forget empties a slot, which may then be another endpoint's: to be called
// when one has left, or its process restarted.
func (ix *Index) Forget(slot int) {
	if slot < 0 || slot >= len(ix.slots) {
		return
	}
	q := &ix.slots[slot]
	q.limit = 0
	for q.n > 0 {
		if id := q.pop(&ix.pool); ix.has(ix.nodes.at(id), slot) {
			ix.remove(slot, id)
		}
	}
}

// ForgetBlocks takes these blocks from a slot, which was sent them and did not
// compute them.
func (ix *Index) ForgetBlocks(slot int, blocks []uint64) {
	if slot < 0 || slot >= len(ix.slots) || len(blocks) == 0 {
		return
	}
	held := ix.slots[slot].held
	ix.Removed(slot, blocks)
	if ix.slots[slot].held < held { // what is sent again is the newest
		ix.compact(slot)
	}
}

func (ix *Index) add(slot int, h uint64) {
	id, ok := ix.table.find(&ix.nodes, h)
	if !ok {
		id = ix.nodes.alloc(h)
		ix.table.insert(&ix.nodes, h, id)
	}
	ix.include(ix.nodes.at(id), slot)
	q := &ix.slots[slot]
	q.push(&ix.pool, id)
	q.held++
	ix.blocks++
}

// evict takes the oldest block that was not sent again from a slot.
func (ix *Index) evict(slot int) {
	q := &ix.slots[slot]
	for q.n > 0 {
		id := q.pop(&ix.pool)
		n := ix.nodes.at(id)
		if !ix.has(n, slot) {
			continue // it was Removed
		}
		if ix.unrefer(n, slot) {
			q.push(&ix.pool, id)
			continue
		}
		ix.remove(slot, id)
		return
	}
}

// remove takes a block out of a slot that has it.
func (ix *Index) remove(slot int, id uint32) {
	n := ix.nodes.at(id)
	ix.exclude(n, slot)
	ix.slots[slot].held--
	ix.blocks--
	if n.set == 0 {
		ix.table.remove(&ix.nodes, n.hash)
		ix.nodes.free(id)
	}
}

func (ix *Index) richest() int {
	best := 0
	for i := range ix.slots {
		if ix.slots[i].held > ix.slots[best].held {
			best = i
		}
	}
	return best
}

func (ix *Index) grow(slot int) {
	for len(ix.slots) <= slot {
		ix.slots = append(ix.slots, queue{})
	}
	if words := (len(ix.slots) + 63) / 64; words > ix.dense.words {
		ix.dense.widen(words)
	}
}
