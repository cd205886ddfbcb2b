// Package ring decides which nodes of a group keep which keys, and which nodes
// are worth asking: placement by rendezvous hashing, and a breaker per node.
//
// Every node decides for itself, from the names alone, so nodes that know of the
// same names agree without a word between them.
package ring

import (
	"math/bits"
	"slices"
	"time"
)

// Ring is a set of nodes. The zero value is empty. A Ring does not change: who
// joins or leaves makes a new one.
type Ring struct {
	names  []string // sorted, each once
	hashes []uint64 // of names
}

// New makes a ring of nodes. Neither their order nor repetition matters.
func New(names []string) Ring {
	r := Ring{names: slices.Compact(slices.Sorted(slices.Values(names)))}
	r.hashes = make([]uint64, len(r.names))
	for i, n := range r.names {
		r.hashes[i] = hash(n)
	}
	return r
}

// Names are the nodes, sorted. They must not be changed.
func (r Ring) Names() []string { return r.names }

// Owners are the first n nodes for a key, the owner first; where it is away, the
// second stands in for it, and so on. Fewer where there are fewer.
//
// Every node has a score of its own for the key and the highest wins ("highest
// random weight": Thaler and Ravishankar, Using name-based mappings to increase
// hit rates, 1998). So a node that joins takes the keys at which it wins, from
// all others alike, and one that leaves gives only its own away, to each
// key's second.
func (r Ring) Owners(key string, n int) []string {
	n = min(n, len(r.names))
	if n <= 0 {
		return nil
	}
	type place struct {
		score uint64
		node  int
	}
	best := make([]place, 0, n+1) // falling; of two of one score the first name wins
	k := bits.RotateLeft64(hash(key), 32)
	for i, h := range r.hashes {
		p := place{mix(h ^ k), i}
		at := len(best)
		for at > 0 && best[at-1].score < p.score {
			at--
		}
		if at < n {
			best = slices.Insert(best, at, p)
			best = best[:min(len(best), n)]
		}
	}
	out := make([]string, len(best))
	for i, p := range best {
		out[i] = r.names[p.node]
	}
	return out
}

// hash is 64-bit FNV-1a, mixed: names that differ in their last character are
// far apart.
func hash(s string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 0x100000001b3
	}
	return mix(h)
}

// mix is the finalizer of MurmurHash3 (Appleby): every bit of x moves half of
// the result's.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// Breaker reports whether a node is worth asking. The zero Breaker asks it.
//
// A node that failed is ejected for First, then probed; each failure doubles
// the time, up to Most. Only a successful probe ends the ejection: answers to
// requests sent before the failure are too old to count.
type Breaker struct {
	until  time.Time     // when it may be tried; zero: it is in use
	pause  time.Duration // how long its last ejection was
	trying bool
}

// Pauses are how long a node is ejected: after its first failure, and at most.
type Pauses struct{ First, Most time.Duration }

// Usable reports whether to ask the node.
func (b *Breaker) Usable() bool { return b.until.IsZero() }

// Failed notes that the node did not answer as it should. Failures of requests
// sent before its ejection change nothing.
func (b *Breaker) Failed(p Pauses, now time.Time) {
	if !b.Usable() && !b.trying {
		return
	}
	b.pause = min(max(2*b.pause, p.First), p.Most)
	b.until, b.trying = now.Add(b.pause), false
}

// Bar ejects the node for at least d, whatever it did before.
func (b *Breaker) Bar(d time.Duration, now time.Time) {
	if until := now.Add(d); until.After(b.until) {
		b.until = until
	}
	b.trying = false
}

// Try reports whether to probe the node now. The caller that gets true must
// call Failed, Bar or Back; until then no other caller gets true.
func (b *Breaker) Try(now time.Time) bool {
	if b.Usable() || b.trying || now.Before(b.until) {
		return false
	}
	b.trying = true
	return true
}

// Back notes that a probe succeeded: the node is in use again. Only a
// successful request (Worked) resets the length of the next ejection.
func (b *Breaker) Back() {
	if b.trying {
		b.until, b.trying = time.Time{}, false
	}
}

// Worked notes that the node did as it should.
func (b *Breaker) Worked() {
	if b.Usable() {
		b.pause = 0
	}
}
