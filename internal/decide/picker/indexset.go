package picker

import "math/bits"

// node is one block. Its set is a few slots, 16 bits each and packed from the
// low end: slot+1 and, highest, the second chance; or, with dense set, the
// number of a bitset.
type node struct {
	hash uint64
	set  uint64
}

const nodeBytes = 16

const (
	few      = 4
	slotBits = 0x1fff // maxSlots fits
	dense    = 1 << 14
	again    = 1 << 15
)

func (n *node) dense() bool { return n.set&dense != 0 }

// bitset is the number of a dense node's bitset.
func (n *node) bitset() int { return int(n.set >> 16) }

// slot is the i-th of the few; -1 after the last.
func (n *node) slot(i int) int { return int(n.set>>(16*i)&slotBits) - 1 }

// find is the slot's place among the few; -1 if it is not there.
func (n *node) find(slot int) int {
	for i := range few {
		if n.slot(i) == slot {
			return i
		}
	}
	return -1
}

// has reports whether the slot is in a node's set.
func (ix *Index) has(n *node, slot int) bool {
	if n.dense() {
		return ix.dense.set(n.bitset())[slot>>6]>>(slot&63)&1 != 0
	}
	return n.find(slot) >= 0
}

// refer gives a slot's block its second chance; false if it is not in the set.
func (ix *Index) refer(n *node, slot int) bool {
	if n.dense() {
		if !ix.has(n, slot) {
			return false
		}
		ix.dense.again(n.bitset())[slot>>6] |= 1 << (slot & 63)
		return true
	}
	i := n.find(slot)
	if i >= 0 {
		n.set |= again << (16 * i)
	}
	return i >= 0
}

// unrefer takes the second chance of a slot away that is in; false if there
// was none.
func (ix *Index) unrefer(n *node, slot int) bool {
	if n.dense() {
		w := &ix.dense.again(n.bitset())[slot>>6]
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
	if !n.dense() {
		for i := range few {
			if n.slot(i) < 0 {
				n.set |= uint64(slot+1) << (16 * i)
				return
			}
		}
		ix.spread(n)
	}
	ix.dense.set(n.bitset())[slot>>6] |= 1 << (slot & 63)
}

// spread gives a node a bitset.
func (ix *Index) spread(n *node) {
	at := ix.dense.alloc()
	set, second := ix.dense.set(at), ix.dense.again(at)
	for i := range few {
		slot := n.slot(i)
		set[slot>>6] |= 1 << (slot & 63)
		second[slot>>6] |= (n.set >> (16*i + 15) & 1) << (slot & 63)
	}
	n.set = uint64(at)<<16 | dense
}

// exclude takes a slot out that is in. A set of half of few is few again.
func (ix *Index) exclude(n *node, slot int) {
	if !n.dense() {
		i := n.find(slot)
		below := uint64(1)<<(16*i) - 1
		n.set = n.set&below | n.set>>16&^below
		return
	}
	at := n.bitset()
	set, second := ix.dense.set(at), ix.dense.again(at)
	set[slot>>6] &^= 1 << (slot & 63)
	second[slot>>6] &^= 1 << (slot & 63)
	left := 0
	for _, v := range set {
		left += bits.OnesCount64(v)
	}
	if left > few/2 {
		return
	}
	n.set = 0
	for w, v := range set {
		for ; v != 0; v &= v - 1 {
			b := bits.TrailingZeros64(v)
			n.set = n.set<<16 | uint64(w<<6|b) + 1 | second[w]>>b&1<<15
		}
	}
	ix.dense.release(at)
}

// each calls f with every slot of a set.
func (ix *Index) each(n *node, f func(slot int)) {
	if !n.dense() {
		for i := 0; i < few && n.slot(i) >= 0; i++ {
			f(n.slot(i))
		}
		return
	}
	for w, v := range ix.dense.set(n.bitset()) {
		for ; v != 0; v &= v - 1 {
			f(w<<6 | bits.TrailingZeros64(v))
		}
	}
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

func (s *sets) set(at int) []uint64 {
	i := at * 2 * s.words
	return s.bits[i : i+s.words : i+s.words]
}

func (s *sets) again(at int) []uint64 {
	i := (at*2 + 1) * s.words
	return s.bits[i : i+s.words : i+s.words]
}

func (s *sets) alloc() int {
	if n := len(s.free); n > 0 {
		at := int(s.free[n-1])
		s.free = s.free[:n-1]
		return at
	}
	at := len(s.bits) / (2 * s.words)
	for range 2 * s.words {
		s.bits = append(s.bits, 0)
	}
	return at
}

func (s *sets) release(at int) {
	clear(s.set(at))
	clear(s.again(at))
	s.free = append(s.free, uint32(at))
}

// widen makes room for more slots in every set.
func (s *sets) widen(words int) {
	n := len(s.bits) / (2 * s.words)
	wide := sets{words: words, bits: make([]uint64, n*2*words), free: s.free}
	for at := range n {
		copy(wide.set(at), s.set(at))
		copy(wide.again(at), s.again(at))
	}
	*s = wide
}
