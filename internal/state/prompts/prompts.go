// Package prompts keeps what gateways tell each other of prompts: which endpoint was
// sent which, so that all of them know which endpoint holds what. In a cluster the
// controllers pass it on (edge/kube/demand), elsewhere gateways tell each other
// (edge/sharing). Nothing depends on it: what gets lost costs a prompt that is computed
// once more.
package prompts

import (
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Prompt is that an endpoint was sent blocks of a prompt, and answered.
type Prompt struct {
	// Endpoint is its replica's ID, which all gateways know it by.
	Endpoint string `json:"e"`
	// Blocks are hashes of 8 bytes each, little-endian. A gateway of a release that
	// cuts or hashes prompts otherwise has hashes that match nothing here.
	Blocks []byte `json:"b"`
	// Ago is how many milliseconds ago it was sent.
	Ago int64 `json:"o,omitempty"`
}

// Bounds of what is told of prompts.
const (
	// MaxTold bounds the bytes of prompts that are told at once: 1 million tokens.
	MaxTold = 192 << 10
	// Keep is how long a prompt is passed on.
	Keep = 5 * time.Minute
	// maxEndpoint bounds the bytes of an endpoint's ID.
	maxEndpoint = 512
	// maxKept bounds the bytes of prompts that a Log keeps.
	maxKept = 4 << 20
	// tellAgain is how long a block is not told again that has been told.
	tellAgain = time.Minute
	// maxRecent is how many blocks are known to have been told, twice.
	maxRecent = 1 << 17
)

// Size is the bytes that a prompt takes at most when it is told: base64, and an
// escaped name.
func (p *Prompt) Size() int { return 6*len(p.Endpoint) + (len(p.Blocks)+2)/3*4 + 48 }

// Validate returns an error for a prompt that no gateway of ours would tell.
func (p *Prompt) Validate() error {
	if p.Endpoint == "" || len(p.Endpoint) > maxEndpoint || len(p.Blocks) == 0 || len(p.Blocks)%8 != 0 || p.Ago < 0 {
		return errors.New("a name is missing or too long, blocks are not of 8 bytes, or a number is out of range")
	}
	return nil
}

// Validate returns an error for prompts that no gateway of ours would tell at once.
func Validate(all []Prompt) error {
	size := 0
	for i := range all {
		if err := all[i].Validate(); err != nil {
			return err
		}
		size += all[i].Size()
	}
	if size > MaxTold {
		return errors.New("they are larger than a gateway may tell at once")
	}
	return nil
}

// Hear calls heard with the blocks of each prompt that can be true and is not too old.
// heard must not keep them.
func Hear(all []Prompt, heard func(endpoint string, blocks []uint64)) {
	var blocks []uint64
	for i := range all {
		p := &all[i]
		if p.Validate() != nil || p.Ago > Keep.Milliseconds() {
			continue
		}
		blocks = blocks[:0]
		for at := 0; at < len(p.Blocks); at += 8 {
			blocks = append(blocks, binary.LittleEndian.Uint64(p.Blocks[at:]))
		}
		heard(p.Endpoint, blocks)
	}
}

// Source is an instance of a gateway; the zero value is none.
type Source struct {
	Name     string
	Instance int64
}

// told is a prompt, who told it, and when it was sent.
type told struct {
	Prompt
	by Source
	at time.Time
}

// Log are the newest prompts that were told, in order and numbered. Number first is
// that of all[0]. It is not safe for concurrent use.
type Log struct {
	first uint64
	all   []told
	bytes int
}

// NewLog numbers from a time on, so that the numbers of the process before are lower.
func NewLog(started time.Time) Log {
	return Log{first: uint64(max(1, started.UnixMicro()))}
}

// Next is the number of the next one.
func (l *Log) Next() uint64 { return l.first + uint64(len(l.all)) }

// Add takes in what a gateway told of a prompt that was sent at a time, and forgets
// the oldest beyond its bounds.
func (l *Log) Add(p Prompt, by Source, at time.Time) {
	l.all = append(l.all, told{p, by, at})
	l.bytes += p.Size()
	drop := 0
	for l.bytes > maxKept || at.Sub(l.all[drop].at) > Keep {
		l.bytes -= l.all[drop].Size()
		l.all[drop] = told{}
		drop++
	}
	l.all, l.first = l.all[drop:], l.first+uint64(drop)
}

// Since are those from a number on that a gateway has not told itself, of at most
// so many bytes, and the number to go on from. A number that is not known means all.
func (l *Log) Since(number uint64, to Source, bytes int, now time.Time) (out []Prompt, next uint64) {
	if number < l.first || number > l.Next() {
		number = l.first
	}
	for ; number < l.Next(); number++ {
		t := &l.all[number-l.first]
		age := max(0, now.Sub(t.at))
		if t.by == to && to != (Source{}) || age > Keep {
			continue
		}
		if bytes -= t.Size(); bytes < 0 {
			break
		}
		out = append(out, Prompt{Endpoint: t.Endpoint, Blocks: t.Blocks, Ago: age.Milliseconds()})
	}
	return out, number
}

// Teller keeps what a gateway has to tell of prompts. It is safe for concurrent use.
type Teller struct {
	mu   sync.Mutex
	list Log
	// recent are hashes of endpoint and block that were told since turned, before
	// those that were told before: both are told again later, so that they stay the
	// newest at the other gateways, and gateways that are new hear of them.
	recent, before map[uint64]struct{}
	turned         time.Time
}

// NewTeller is a Teller with nothing to tell yet.
func NewTeller(started time.Time) *Teller { return &Teller{list: NewLog(started)} }

// Tell takes a prompt in, but for what was told lately, and reports whether anything
// of it is new. It does not keep blocks.
func (t *Teller) Tell(endpoint string, blocks []uint64, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.turned) > tellAgain || len(t.recent) >= maxRecent {
		t.recent, t.before, t.turned = map[uint64]struct{}{}, t.recent, now
	}
	p := Prompt{Endpoint: endpoint}
	seed := xxhash.Sum64String(endpoint)
	for _, h := range blocks {
		key := (h ^ seed) * 0x9e3779b97f4a7c15
		if _, ok := t.before[key]; ok {
			continue
		}
		if _, ok := t.recent[key]; ok {
			continue
		}
		t.recent[key] = struct{}{}
		p.Blocks = binary.LittleEndian.AppendUint64(p.Blocks, h)
	}
	if p.Validate() != nil || p.Size() > MaxTold {
		return false
	}
	t.list.Add(p, Source{}, now)
	return true
}

// Since are the prompts to tell from a number on, and the number after them.
func (t *Teller) Since(number uint64, now time.Time) ([]Prompt, uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.list.Since(number, Source{}, MaxTold, now)
}

// Next is the number of the next prompt.
func (t *Teller) Next() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.list.Next()
}
