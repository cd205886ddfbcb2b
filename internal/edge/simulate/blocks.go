package simulate

// BlockTokens is the number of tokens of one KV block, and BlockBytes of the
// text that they stand for.
const (
	BlockTokens = 16
	TokenBytes  = 4
	BlockBytes  = BlockTokens * TokenBytes
)

// blocksFor is the number of blocks that hold n tokens.
func blocksFor(n int) int { return (n + BlockTokens - 1) / BlockTokens }

const none int32 = -1

// block is one KV block. It is held (refs > 0), cached (refs == 0, keyed: in the
// eviction list) or free.
type block struct {
	key        uint64 // chained hash of the contents; meaningful if keyed
	refs       int32
	prev, next int32 // neighbours in the eviction list
	keyed      bool  // in byKey: its contents are known
}

// blockPool is KV memory. Invariant: held + cached + free + never used == size;
// a cached block is in byKey under its own key.
type blockPool struct {
	size   int
	blocks []block // those used at least once: grows up to size
	free   []int32
	byKey  map[uint64]int32

	oldest, newest int32 // ends of the eviction list
	cached         int   // its length

	// watch is told of keys whose blocks come into the prefix cache and leave
	// it; nil when nobody asks.
	watch func(key uint64, stored bool)
}

func newBlockPool(size int) blockPool {
	return blockPool{size: size, byKey: map[uint64]int32{}, oldest: none, newest: none}
}

// used is the number of blocks that sequences hold.
func (p *blockPool) used() int { return len(p.blocks) - len(p.free) - p.cached }

// available is the number of blocks that can be taken, evicting all the cache.
func (p *blockPool) available() int { return p.size - p.used() }

// match is the number of leading keys whose blocks are in memory, and how many
// of those blocks nobody holds.
func (p *blockPool) match(keys []uint64) (hits, unheld int) {
	for _, key := range keys {
		id, ok := p.byKey[key]
		if !ok {
			break
		}
		hits++
		if p.blocks[id].refs == 0 {
			unheld++
		}
	}
	return hits, unheld
}

// share takes hold of the block with the given key, which must be in memory.
func (p *blockPool) share(key uint64) int32 {
	id := p.byKey[key]
	b := &p.blocks[id]
	if b.refs == 0 {
		p.unlink(id)
	}
	b.refs++
	return id
}

// take gets an empty block, evicting the oldest cached one if need be; false
// when every block is held.
func (p *blockPool) take() (int32, bool) {
	if n := len(p.free); n > 0 {
		id := p.free[n-1]
		p.free = p.free[:n-1]
		p.blocks[id] = block{refs: 1, prev: none, next: none}
		return id, true
	}
	if len(p.blocks) < p.size {
		p.blocks = append(p.blocks, block{refs: 1, prev: none, next: none})
		return int32(len(p.blocks) - 1), true
	}
	if p.oldest == none {
		return none, false
	}
	id := p.oldest
	p.unlink(id)
	delete(p.byKey, p.blocks[id].key)
	if p.watch != nil {
		p.watch(p.blocks[id].key, false)
	}
	p.blocks[id] = block{refs: 1, prev: none, next: none}
	return id, true
}

// name tells that block id now holds the contents with the given key. When
// another block already does, this one stays anonymous.
func (p *blockPool) name(id int32, key uint64) {
	b := &p.blocks[id]
	if b.keyed {
		return
	}
	if _, taken := p.byKey[key]; !taken {
		b.key, b.keyed = key, true
		p.byKey[key] = id
		if p.watch != nil {
			p.watch(key, true)
		}
	}
}

// release lets go of blocks, the last first: the tail of a prompt is the least
// likely to be asked for again, so it is evicted first.
func (p *blockPool) release(ids []int32) {
	for i := len(ids) - 1; i >= 0; i-- {
		b := &p.blocks[ids[i]]
		b.refs--
		switch {
		case b.refs > 0:
		case b.keyed:
			p.link(ids[i])
		default:
			p.free = append(p.free, ids[i])
		}
	}
}

// link appends a block to the eviction list as the newest.
func (p *blockPool) link(id int32) {
	b := &p.blocks[id]
	b.prev, b.next = p.newest, none
	if p.newest == none {
		p.oldest = id
	} else {
		p.blocks[p.newest].next = id
	}
	p.newest = id
	p.cached++
}

func (p *blockPool) unlink(id int32) {
	b := &p.blocks[id]
	if b.prev == none {
		p.oldest = b.next
	} else {
		p.blocks[b.prev].next = b.next
	}
	if b.next == none {
		p.newest = b.prev
	} else {
		p.blocks[b.next].prev = b.prev
	}
	b.prev, b.next = none, none
	p.cached--
}
