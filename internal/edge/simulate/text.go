package simulate

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// tokensIn is the number of tokens that a text of n bytes stands for; a prompt
// has at least one.
func tokensIn(n int) int { return max(1, (n+TokenBytes-1)/TokenBytes) }

// BlockKeys hashes the full blocks of a text, each together with all before it.
// The seed keeps apart what must not share KV: the model and the adapter.
func BlockKeys(seed string, texts ...string) []uint64 {
	total := 0
	for _, t := range texts {
		total += len(t)
	}
	keys := make([]uint64, 0, total/BlockBytes)
	var chained [8 + BlockBytes]byte // the previous key, then a block
	binary.LittleEndian.PutUint64(chained[:], xxhash.Sum64String(seed))
	filled := 8
	for _, t := range texts {
		for len(t) > 0 {
			n := copy(chained[filled:], t)
			filled, t = filled+n, t[n:]
			if filled == len(chained) {
				key := xxhash.Sum64(chained[:])
				keys = append(keys, key)
				binary.LittleEndian.PutUint64(chained[:], key)
				filled = 8
			}
		}
	}
	return keys
}

// answer is the text that will be given, known before it is computed so that
// its blocks can be cached like any others.
type answer struct {
	text   string
	tokens int
	reason string // finish_reason: stop or length
}

// token returns the text of the i-th token.
func (a answer) token(i int) string {
	return a.text[i*TokenBytes : min((i+1)*TokenBytes, len(a.text))]
}

// wish is what a request says about its answer.
type wish struct {
	maxTokens int  // at least 1
	minTokens int  // do not end before
	ignoreEnd bool // go on to maxTokens
	stop      []string
}

var fillerWords = [...]string{
	"adapter", "answer", "batch", "block", "cache", "decode", "engine", "latency",
	"memory", "prefill", "prefix", "queue", "replica", "request", "schedule", "token",
}

// compose makes up an answer: it says what it is, tells facts about the request,
// and goes on with filler to a length drawn around mean tokens, in whole
// sentences. The text is ASCII, so that cutting it into tokens cuts no rune.
func compose(rng *rand.Rand, facts string, mean int, w wish) answer {
	var b strings.Builder
	b.WriteString("This is the Roundhouse engine simulator: no model was run, and the text is made up. ")
	b.WriteString(facts)
	length := min(rng.ExpFloat64(), 8) * float64(mean)
	if w.ignoreEnd {
		length = float64(w.maxTokens)
	}
	want := min(max(int(length), w.minTokens), w.maxTokens)
	for b.Len() < want*TokenBytes {
		b.WriteByte(' ')
		writeSentence(&b, rng)
	}
	a := answer{text: b.String(), reason: "stop"}
	if w.ignoreEnd || tokensIn(len(a.text)) > w.maxTokens {
		a.text, a.reason = a.text[:min(len(a.text), w.maxTokens*TokenBytes)], "length"
	}
	for _, stop := range w.stop {
		if i := strings.Index(a.text, stop); i >= 0 && stop != "" {
			a.text, a.reason = a.text[:i], "stop"
		}
	}
	a.tokens = tokensIn(len(a.text))
	return a
}

func writeSentence(b *strings.Builder, rng *rand.Rand) {
	b.WriteString("Simulated")
	for range 4 + rng.IntN(8) {
		b.WriteByte(' ')
		b.WriteString(fillerWords[rng.IntN(len(fillerWords))])
	}
	b.WriteByte('.')
}

// facts tells about a request, in ASCII.
func facts(in *inference, promptTokens int, w wish, seed uint64) string {
	with := ""
	if in.adapter != "" {
		with = " with the adapter " + strconv.QuoteToASCII(in.adapter)
	}
	return fmt.Sprintf("It answers as %s%s, read %d prompt tokens, may write %d, and was seeded with %d.",
		strconv.QuoteToASCII(in.model), with, promptTokens, w.maxTokens, seed)
}
