package picker

import (
	"github.com/cespare/xxhash/v2"
)

// hashTable finds the node of a hash: open addressing with linear probing. A
// cell is 0 while empty, else the node's id+1 and, in the highest 8 bits, the
// hash's. The hashes are good ones, so their lower half is the place to start.
type hashTable struct {
	cells []uint32 // a power of two of them, at most half in use
	n     int
}

const idBits = 1<<24 - 1

// cellOf is the content of the cell of a node. Ids are below 1<<23.
func cellOf(h uint64, id uint32) uint32 { return uint32(h>>56)<<24 | (id + 1) }

func idOf(cell uint32) uint32 { return cell&idBits - 1 }

func (t *hashTable) find(ns *nodes, h uint64) (id uint32, ok bool) {
	if len(t.cells) == 0 {
		return 0, false
	}
	cells, tag := t.cells, uint32(h>>56)
	mask := uint64(len(cells) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		c := cells[i]
		if c == 0 {
			return 0, false
		}
		if c>>24 == tag {
			if id := idOf(c); ns.at(id).hash == h {
				return id, true
			}
		}
	}
}

// insert puts a hash in that is not.
func (t *hashTable) insert(ns *nodes, h uint64, id uint32) {
	if t.n++; t.n*2 > len(t.cells) {
		old := t.cells
		t.cells = make([]uint32, max(64, 2*len(old)))
		for _, c := range old {
			if c != 0 {
				t.put(ns.at(idOf(c)).hash, c)
			}
		}
	}
	t.put(h, cellOf(h, id))
}

func (t *hashTable) put(h uint64, cell uint32) {
	mask := uint64(len(t.cells) - 1)
	i := h & mask
	for t.cells[i] != 0 {
		i = (i + 1) & mask
	}
	t.cells[i] = cell
}

// remove takes a hash out that is in, and moves what follows up, so that no
// search ends too early.
func (t *hashTable) remove(ns *nodes, h uint64) {
	mask := uint64(len(t.cells) - 1)
	i := h & mask
	for ns.at(idOf(t.cells[i])).hash != h {
		i = (i + 1) & mask
	}
	t.n--
	for j := i; ; {
		j = (j + 1) & mask
		c := t.cells[j]
		if c == 0 {
			break
		}
		home := ns.at(idOf(c)).hash & mask
		if (j-home)&mask >= (j-i)&mask {
			t.cells[i] = c
			i = j
		}
	}
	t.cells[i] = 0
}

// queue is a slot's blocks, oldest first, in chunks that all queues share.
type queue struct {
	head, tail uint32 // chunk ids+1; 0 while empty
	first, end uint16 // places in the head and the tail chunk
	n          int    // of entries: those of blocks that were Removed stay a while
	held       int    // blocks of the slot, <= n
	limit      int    // of held; 0 is IndexConfig.EndpointBlocks
}

const slotBytes = 40 // of a queue

const (
	chunkLen   = 63
	chunkBytes = 4 * (chunkLen + 1)
)

// chunk is a part of a queue; next is the id+1 of the following, or of the
// next free one.
type chunk struct {
	next uint32
	ids  [chunkLen]uint32
}

type chunks struct {
	chunks []*chunk
	freed  uint32
}

func (cs *chunks) alloc() uint32 {
	if cs.freed != 0 {
		id := cs.freed
		cs.freed = cs.chunks[id-1].next
		cs.chunks[id-1].next = 0
		return id
	}
	cs.chunks = append(cs.chunks, new(chunk))
	return uint32(len(cs.chunks))
}

func (q *queue) push(cs *chunks, id uint32) {
	if q.tail == 0 {
		q.head = cs.alloc()
		q.tail, q.first, q.end = q.head, 0, 0
	} else if q.end == chunkLen {
		next := cs.alloc()
		cs.chunks[q.tail-1].next = next
		q.tail, q.end = next, 0
	}
	cs.chunks[q.tail-1].ids[q.end] = id
	q.end++
	q.n++
}

// pop takes the oldest; the queue must not be empty.
func (q *queue) pop(cs *chunks) uint32 {
	c := cs.chunks[q.head-1]
	id := c.ids[q.first]
	q.first++
	q.n--
	if q.n == 0 || q.first == chunkLen {
		old := q.head
		q.head, q.first = c.next, 0
		if q.n == 0 {
			q.head, q.tail, q.end = 0, 0, 0
		}
		c.next = cs.freed
		cs.freed = old
	}
	return id
}

// bytesPerToken is the usual length of a token of text.
const bytesPerToken = 4

// Seed is where the chain of a prompt's blocks starts. Prompts of different
// models share nothing, nor do those with different cache salts (what a client
// sends as cache_salt to keep its prompts apart; "" for none).
func Seed(model, salt string) uint64 {
	h := mix(xxhash.Sum64String(model))
	if salt != "" {
		h = mix(h*prime + xxhash.Sum64String(salt))
	}
	return h
}

const prime = 0x9e3779b97f4a7c15 // 2^64 divided by the golden ratio

// mix spreads every bit over all (the finalizer of MurmurHash3).
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// AppendBlocks appends the hashes of a prompt's blocks to dst. The parts are
// one text: where they are cut does not matter. A block's hash stands for all
// the text up to its end, so equal hashes at one place mean equal prefixes.
//
// A last block that is not full is left out, as engines do. Blocks beyond
// PromptBlocks are left out too: prompts that differ only there look the same,
// which is all right, as what they share is what counts, but for Whole. c must be valid.
func (c IndexConfig) AppendBlocks(dst []uint64, seed uint64, parts [][]byte) []uint64 {
	var pending [maxBlockBytes]byte
	held, left, h := 0, c.PromptBlocks, seed
	for _, part := range parts {
		if held > 0 {
			n := copy(pending[held:c.BlockBytes], part)
			held += n
			part = part[n:]
			if held == c.BlockBytes {
				h = mix(h*prime + xxhash.Sum64(pending[:held]))
				dst = append(dst, h)
				held = 0
				left--
			}
		}
		for len(part) >= c.BlockBytes && left > 0 {
			h = mix(h*prime + xxhash.Sum64(part[:c.BlockBytes]))
			dst = append(dst, h)
			part = part[c.BlockBytes:]
			left--
		}
		if left == 0 {
			return dst
		}
		held += copy(pending[held:], part)
	}
	return dst
}

// Whole is a hash of a whole prompt, whose blocks AppendBlocks made; 0 where it has none.
// Of a rest that is no shorter than a block only the length counts.
func (c IndexConfig) Whole(blocks []uint64, parts [][]byte) uint64 {
	if len(blocks) == 0 {
		return 0
	}
	length := 0
	for _, part := range parts {
		length += len(part)
	}
	skip := len(blocks) * c.BlockBytes
	rest := uint64(length - skip)
	if rest < uint64(c.BlockBytes) {
		var text [maxBlockBytes]byte
		n := 0
		for _, part := range parts {
			from := min(skip, len(part))
			skip -= from
			n += copy(text[n:], part[from:])
		}
		rest = xxhash.Sum64(text[:n])
	}
	return max(1, mix(blocks[len(blocks)-1]*prime+rest))
}
