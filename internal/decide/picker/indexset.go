package picker

import "math/bits"

// few is how many slots a node names itself: 16 bits each, the slot and in
// the highest the second chance. More take a bitset.
const (
	few      = 4
	slotMask = maxSlots - 1
	again    = 1 << 15
)

// has says whether the slot is in a node's set.
func (ix *Index) has(n *node, slot int) bool {
	if n.dense {
		return ix.dense.set(n.set)[slot>>6]>>(slot&63)&1 != 0
	}
	return n.find(slot) >= 0
}

// refer gives a slot's block its second chance; false if it is not in the set.
func (ix *Index) refer(n *node, slot int) bool {
	if n.dense {
		if !ix.has(n, slot) {
			return false
		}
		ix.dense.again(n.set)[slot>>6] |= 1 << (slot & 63)
		return true
	}
	i := n.find(slot)
	if i >= 0 {
		n.set |= again << (16 * i)
	}
	return i >= 0
}

// unrefer takes the second chance away; false if there was none.
func (ix *Index) unrefer(n *node, slot int) bool {
	if n.dense {
		w := &ix.dense.again(n.set)[slot>>6]
		had := *w>>(slot&63)&1 != 0
		*w &^= 1 << (slot & 63)
		return had
	}
	i := n.find(slot)
	had := n.set>>(16*i)&again != 0
	n.set &^= again << (16 * i)
	return had
}

// include puts a slot in that is not.
func (ix *Index) include(n *node, slot int) {
	if !n.dense && n.count < few {
		n.set |= uint64(slot) << (16 * n.count)
		n.count++
		return
	}
	if !n.dense {
		ix.spread(n)
	}
	ix.dense.set(n.set)[slot>>6] |= 1 << (slot & 63)
	n.count++
}

// spread gives a node a bitset.
func (ix *Index) spread(n *node) {
	at := ix.dense.alloc()
	set, again64 := ix.dense.set(at), ix.dense.again(at)
	for i := range n.count {
		v := n.set >> (16 * i)
		slot := int(v & slotMask)
		set[slot>>6] |= 1 << (slot & 63)
		again64[slot>>6] |= (v >> 15 & 1) << (slot & 63)
	}
	n.dense, n.set = true, at
}

// exclude takes a slot out that is in. A set of half of few is few again.
func (ix *Index) exclude(n *node, slot int) {
	if !n.dense {
		i := n.find(slot)
		n.count--
		last := n.set >> (16 * n.count) & 0xffff
		n.set &^= 0xffff << (16 * i)
		n.set |= last << (16 * i)
		n.set &= 1<<(16*n.count) - 1
		return
	}
	n.count--
	set, again64 := ix.dense.set(n.set), ix.dense.again(n.set)
	set[slot>>6] &^= 1 << (slot & 63)
	again64[slot>>6] &^= 1 << (slot & 63)
	if n.count > few/2 {
		return
	}
	at := n.set
	n.dense, n.set = false, 0
	i := 0
	for w, v := range set {
		for ; v != 0; v &= v - 1 {
			b := bits.TrailingZeros64(v)
			n.set |= (uint64(w<<6|b) | again64[w]>>b&1<<15) << (16 * i)
			i++
		}
	}
	ix.dense.release(at)
}

// each calls f with every slot of a set.
func (ix *Index) each(n *node, f func(slot int)) {
	if !n.dense {
		for i := range n.count {
			f(int(n.set >> (16 * i) & slotMask))
		}
		return
	}
	for w, v := range ix.dense.set(n.set) {
		for ; v != 0; v &= v - 1 {
			f(w<<6 | bits.TrailingZeros64(v))
		}
	}
}

// node is one block. Its set is `few` slots of 16 bits while not dense, else
// the number of a bitset.
type node struct {
	hash  uint64
	set   uint64
	count uint32 // slots in the set
	dense bool
}

const nodeBytes = 24

// find is the slot's place among the few; -1 if it is not.
func (n *node) find(slot int) int {
	for i := range n.count {
		if int(n.set>>(16*i)&slotMask) == slot {
			return int(i)
		}
	}
	return -1
}

// nodes are blocks in pages, so that growing copies nothing. Ids are reused.
type nodes struct {
	pages []*[nodePage]node
	next  uint32 // first id never used
	freed uint32 // id+1 of the last that was freed, chained by node.hash; 0 none
}

const nodePage = 1024

func (ns *nodes) at(id uint32) *node { return &ns.pages[id/nodePage][id%nodePage] }

func (ns *nodes) alloc(h uint64) uint32 {
	if ns.freed != 0 {
		id := ns.freed - 1
		n := ns.at(id)
		ns.freed = uint32(n.hash)
		*n = node{hash: h}
		return id
	}
	id := ns.next
	if int(id/nodePage) == len(ns.pages) {
		ns.pages = append(ns.pages, new([nodePage]node))
	}
	ns.next++
	ns.at(id).hash = h
	return id
}

func (ns *nodes) free(id uint32) {
	*ns.at(id) = node{hash: uint64(ns.freed)}
	ns.freed = id + 1
}

// sets are bitsets of slots, two of `words` words each: who is in, and whose
// has a second chance.
type sets struct {
	words int
	bits  []uint64
	free  []uint32
}

func (s *sets) set(at uint64) []uint64 {
	i := int(at) * 2 * s.words
	return s.bits[i : i+s.words : i+s.words]
}

func (s *sets) again(at uint64) []uint64 {
	i := (int(at)*2 + 1) * s.words
	return s.bits[i : i+s.words : i+s.words]
}

func (s *sets) alloc() uint64 {
	if n := len(s.free); n > 0 {
		at := uint64(s.free[n-1])
		s.free = s.free[:n-1]
		return at
	}
	at := uint64(len(s.bits) / (2 * s.words))
	for range 2 * s.words {
		s.bits = append(s.bits, 0)
	}
	return at
}

func (s *sets) release(at uint64) {
	clear(s.set(at))
	clear(s.again(at))
	s.free = append(s.free, uint32(at))
}

// widen makes room for more slots in every set.
func (s *sets) widen(words int) {
	n := len(s.bits) / (2 * s.words)
	wide := sets{words: words, bits: make([]uint64, n*2*words), free: s.free}
	for at := range uint64(n) {
		copy(wide.set(at), s.set(at))
		copy(wide.again(at), s.again(at))
	}
	*s = wide
}
