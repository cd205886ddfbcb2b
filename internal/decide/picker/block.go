package picker

import "github.com/cespare/xxhash/v2"

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
// which is all right, as what they share is what counts. c must be valid.
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
