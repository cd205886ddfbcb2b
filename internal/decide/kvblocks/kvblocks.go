// Package kvblocks follows what engines say of their prefix caches (KV events),
// and translates it into the blocks of text that package picker knows prompts by.
//
// An engine names a block of KV by a hash of its own, which differs between
// processes, and states the block's tokens and the block before it. Engine makes
// a hash of all tokens up to the block's end, which is the same for every
// engine: the chain. Alignment knows which chain a block of text ends in. It
// learns that from the tokens of whole prompts.
//
// Nothing here is safe for concurrent use.
package kvblocks

import (
	"encoding/binary"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// Kind is what happened to blocks.
type Kind uint8

// The kinds of events.
const (
	Stored  Kind = iota // blocks came into the cache
	Removed             // blocks left it
	Cleared             // all blocks left it
)

// Event is something that an engine says of its cache.
type Event struct {
	Kind Kind
	// Blocks are the engine's hashes of blocks; each follows the one before it.
	Blocks []uint64
	// Parent is the block before the first; HasParent is false where a prompt
	// begins.
	Parent    uint64
	HasParent bool
	// Tokens are those of all Blocks, BlockTokens of each.
	Tokens      []uint32
	BlockTokens int
	// Adapter is the LoRA adapter's name; "" for the base model.
	Adapter string
	// Extra is, for each of Blocks, a hash of what else tells it from others
	// with the same tokens, as a picture or a cache salt does; 0 for nothing.
	// Fewer than Blocks means nothing for the others.
	Extra []uint64
}

// MaxBlocks is how many blocks of one engine are followed.
const MaxBlocks = 1 << 18

// Engine is the cache of one engine, as far as it has said.
type Engine struct {
	chains map[uint64]uint64 // by the engine's hash
	held   map[uint64]int32  // how many blocks of the engine have a chain
	tokens int               // of a block
}

// Len is how many blocks the engine holds.
func (e *Engine) Len() int { return len(e.chains) }

// BlockTokens is how many tokens a block has; 0 while that is not known.
func (e *Engine) BlockTokens() int { return e.tokens }

// Holds reports whether the engine holds the block at a chain's end.
func (e *Engine) Holds(chain uint64) bool { return e.held[chain] > 0 }

// Apply follows an event, and appends the chains that came into the cache and
// those that left it. A block whose beginning is not known is left out, as is
// one beyond MaxBlocks.
func (e *Engine) Apply(ev *Event, stored, removed []uint64) (in, out []uint64) {
	switch ev.Kind {
	case Stored:
		return e.store(ev, stored), removed
	case Removed:
		for _, b := range ev.Blocks {
			chain, ok := e.chains[b]
			if !ok {
				continue
			}
			delete(e.chains, b)
			if e.held[chain]--; e.held[chain] == 0 {
				delete(e.held, chain)
				removed = append(removed, chain)
			}
		}
	case Cleared:
		for chain := range e.held {
			removed = append(removed, chain)
		}
		clear(e.chains)
		clear(e.held)
	}
	return stored, removed
}

func (e *Engine) store(ev *Event, stored []uint64) []uint64 {
	n := ev.BlockTokens
	if n <= 0 || len(ev.Tokens) < n*len(ev.Blocks) {
		return stored
	}
	if e.chains == nil {
		e.chains, e.held = map[uint64]uint64{}, map[uint64]int32{}
	}
	e.tokens = n
	chain := Seed(ev.Adapter, n)
	if ev.HasParent {
		var ok bool
		if chain, ok = e.chains[ev.Parent]; !ok {
			return stored
		}
	}
	for i, b := range ev.Blocks {
		chain = next(chain, ev.Tokens[i*n:(i+1)*n])
		if i < len(ev.Extra) && ev.Extra[i] != 0 {
			chain = mix(chain, ev.Extra[i])
		}
		if _, ok := e.chains[b]; ok {
			continue
		}
		if len(e.chains) >= MaxBlocks {
			break
		}
		e.chains[b] = chain
		if e.held[chain]++; e.held[chain] == 1 {
			stored = append(stored, chain)
		}
	}
	return stored
}

// Seed is where the chains of an adapter's prompts begin, cut into blocks of so
// many tokens.
func Seed(adapter string, blockTokens int) uint64 {
	return mix(xxhash.Sum64String(adapter), uint64(blockTokens))
}

// next is the chain after another block.
func next(chain uint64, tokens []uint32) uint64 {
	var buffer [1024]byte
	b := buffer[:0]
	for _, t := range tokens {
		if len(b) == len(buffer) {
			chain, b = mix(chain, xxhash.Sum64(b)), buffer[:0]
		}
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	return mix(chain, xxhash.Sum64(b))
}

func mix(a, b uint64) uint64 {
	var w [16]byte
	binary.LittleEndian.PutUint64(w[:8], a)
	binary.LittleEndian.PutUint64(w[8:], b)
	return xxhash.Sum64(w[:])
}

// Alignment knows in which chains blocks of text end, for the newest of them.
// The zero value knows none.
type Alignment struct {
	// Max is how many blocks of text are known at most; 0 is MaxTexts.
	Max    int
	chains map[uint64]uint64   // by text
	texts  map[uint64][]uint64 // by chain
	leads  map[uint64][]uint64 // by chain: see Leads
	order  []uint64            // texts, a ring
	oldest int
}

// MaxTexts is how many blocks of text an Alignment knows.
const MaxTexts = 1 << 17

// Len is how many blocks of text are known.
func (a *Alignment) Len() int { return len(a.chains) }

// Known is how many leading blocks of a prompt are known.
func (a *Alignment) Known(texts []uint64) int {
	for i, t := range texts {
		if _, ok := a.chains[t]; !ok {
			return i
		}
	}
	return len(texts)
}

// Texts are the blocks of text that end in a chain. They are valid until the
// next Learn.
func (a *Alignment) Texts(chain uint64) []uint64 { return a.texts[chain] }

// Leads are the blocks of text that end before the first block of KV of a prompt does,
// where that is larger than a block of text, by the chain of that block of KV. Who holds
// the chain holds them; who removes it may still hold them for another prompt that
// begins alike. They are valid until the next Learn.
func (a *Alignment) Leads(chain uint64) []uint64 { return a.leads[chain] }

// Prompt is a prompt in both forms.
type Prompt struct {
	// Texts are the hashes of its blocks of BlockBytes bytes each, of Bytes in
	// all.
	Texts             []uint64
	BlockBytes, Bytes int
	Tokens            []uint32
	// Adapter and BlockTokens are as in the Events of who computes it.
	Adapter     string
	BlockTokens int
}

// Learn learns where the blocks of text of a prompt end. A block ends where as
// large a part of the tokens ends as of the bytes; those before the first end of a block
// of KV are its leads. It calls f with each pair that is new.
func (a *Alignment) Learn(p *Prompt, f func(text, chain uint64)) {
	n := p.BlockTokens
	if n <= 0 || p.Bytes <= 0 || len(p.Texts)*p.BlockBytes > p.Bytes {
		return
	}
	chain, full, begun := Seed(p.Adapter, n), 0, false
	for i, t := range p.Texts {
		end := int(int64(len(p.Tokens)) * int64((i+1)*p.BlockBytes) / int64(p.Bytes))
		for ; (full+1)*n <= end; full++ {
			chain = next(chain, p.Tokens[full*n:(full+1)*n])
		}
		if full == 0 {
			continue // a lead
		}
		first := !begun
		begun = true
		if _, ok := a.chains[t]; ok {
			continue
		}
		if first {
			a.lead(p.Texts[:i], chain, f)
		}
		a.add(t, chain)
		a.texts[chain] = append(a.texts[chain], t)
		f(t, chain)
	}
}

// lead notes the leads of a chain that is new.
func (a *Alignment) lead(texts []uint64, chain uint64, f func(text, chain uint64)) {
	for _, t := range texts {
		if _, ok := a.chains[t]; !ok {
			a.add(t, chain)
		}
		if !slices.Contains(a.leads[chain], t) {
			a.leads[chain] = append(a.leads[chain], t)
		}
		f(t, chain)
	}
}

func (a *Alignment) add(text, chain uint64) {
	if a.chains == nil {
		a.chains, a.texts, a.leads = map[uint64]uint64{}, map[uint64][]uint64{}, map[uint64][]uint64{}
	}
	limit := a.Max
	if limit == 0 {
		limit = MaxTexts
	}
	if len(a.order) < limit {
		a.order = append(a.order, text)
	} else {
		a.forget(a.order[a.oldest])
		a.order[a.oldest] = text
		a.oldest = (a.oldest + 1) % len(a.order)
	}
	a.chains[text] = chain
}

func (a *Alignment) forget(text uint64) {
	chain := a.chains[text]
	delete(a.chains, text)
	rest := a.texts[chain][:0]
	for _, t := range a.texts[chain] {
		if t != text {
			rest = append(rest, t)
		}
	}
	if a.texts[chain] = rest; len(rest) == 0 {
		delete(a.texts, chain)
		delete(a.leads, chain)
	}
}
