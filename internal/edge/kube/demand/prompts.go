package demand

import (
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Prompt is that an endpoint was sent blocks of a prompt, and answered. Gateways
// tell the controllers, and each controller pod tells each gateway what the others
// have told, so that all of them know which endpoint holds what. Nothing depends on
// it: what gets lost costs a prompt that is computed once more.
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
	// maxToldBytes bounds the prompts in a report: 1 million tokens.
	maxToldBytes = 192 << 10
	// maxToldPerSecond bounds what a controller passes on of one gateway; more is
	// dropped.
	maxToldPerSecond = 192 << 10
	// maxHeardBytes bounds the prompts in an answer.
	maxHeardBytes = 384 << 10
	// maxPromptsBytes bounds the prompts that a process keeps for others.
	maxPromptsBytes = 4 << 20
	// keepPrompt is how long a prompt is passed on.
	keepPrompt = 5 * time.Minute
	// tellAgain is how long a block is not told again that has been told.
	tellAgain = time.Minute
	// maxTold is how many blocks are known to have been told, twice.
	maxTold = 1 << 17
)

// size is what a prompt takes in a report at most: base64, and an escaped name.
func (p *Prompt) size() int { return 6*len(p.Endpoint) + (len(p.Blocks)+2)/3*4 + 48 }

func (p *Prompt) validate() error {
	if p.Endpoint == "" || len(p.Endpoint) > maxNameBytes || len(p.Blocks) == 0 || len(p.Blocks)%8 != 0 || p.Ago < 0 {
		return errors.New("a name is missing or too long, blocks are not of 8 bytes, or a number is out of range")
	}
	return nil
}

func validPrompts(all []Prompt) error {
	size := 0
	for i := range all {
		if err := all[i].validate(); err != nil {
			return err
		}
		size += all[i].size()
	}
	if size > maxToldBytes {
		return errors.New("they are larger than a gateway may tell at once")
	}
	return nil
}

// process is an instance of a gateway's pod; the zero value is none.
type process struct {
	pod      string
	instance int64
}

// told is a prompt, who told it, and when it was sent.
type told struct {
	Prompt
	by process
	at time.Time
}

// prompts are the newest that were told, in order and numbered. Number first is
// that of all[0].
type prompts struct {
	first uint64
	all   []told
	bytes int
}

// newPrompts numbers from a time on, so that the numbers of the process before are
// lower.
func newPrompts(started time.Time) prompts {
	return prompts{first: uint64(max(1, started.UnixMicro()))}
}

// next is the number of the next one.
func (p *prompts) next() uint64 { return p.first + uint64(len(p.all)) }

func (p *prompts) add(t told) {
	p.all = append(p.all, t)
	p.bytes += t.size()
	drop := 0
	for p.bytes > maxPromptsBytes || t.at.Sub(p.all[drop].at) > keepPrompt {
		p.bytes -= p.all[drop].size()
		p.all[drop] = told{}
		drop++
	}
	p.all, p.first = p.all[drop:], p.first+uint64(drop)
}

// since are those from a number on that a process has not told itself, of at most
// so many bytes, and the number to go on from. A number that is not known means all.
func (p *prompts) since(number uint64, to process, bytes int, now time.Time) (out []Prompt, next uint64) {
	if number < p.first || number > p.next() {
		number = p.first
	}
	for ; number < p.next(); number++ {
		t := &p.all[number-p.first]
		age := max(0, now.Sub(t.at))
		if t.by == to && to != (process{}) || age > keepPrompt {
			continue
		}
		if bytes -= t.size(); bytes < 0 {
			break
		}
		out = append(out, Prompt{Endpoint: t.Endpoint, Blocks: t.Blocks, Ago: age.Milliseconds()})
	}
	return out, number
}

// hear keeps what a gateway tells of prompts for the others, within its budget.
func (b *book) hear(g *gateway, r *Report, now time.Time) {
	g.budget = min(2*maxToldBytes, g.budget+int(max(0, min(now.Sub(g.spent), keepPrompt)).Seconds()*maxToldPerSecond))
	g.spent = now
	for _, p := range r.Prompts {
		if p.Ago > keepPrompt.Milliseconds() || p.size() > g.budget {
			continue
		}
		g.budget -= p.size()
		b.prompts.add(told{p, process{r.Pod, r.Instance}, now.Add(-time.Duration(p.Ago) * time.Millisecond)})
	}
}

// teller keeps what a gateway has to tell of prompts.
type teller struct {
	mu   sync.Mutex
	list prompts
	// recent are hashes of endpoint and block that were told since turned, before
	// those that were told before: both are told again later, so that they stay the
	// newest at the other gateways, and gateways that are new hear of them.
	recent, before map[uint64]struct{}
	turned         time.Time
}

// tell takes a prompt in, but for what was told lately.
func (t *teller) tell(endpoint string, blocks []uint64, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.turned) > tellAgain || len(t.recent) >= maxTold {
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
	if p.validate() == nil && p.size() <= maxToldBytes {
		t.list.add(told{Prompt: p, at: now})
	}
}

// since are the prompts to tell from a number on, and the number after them.
func (t *teller) since(number uint64, now time.Time) ([]Prompt, uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.list.since(number, process{}, maxToldBytes, now)
}

// next is the number of the next prompt.
func (t *teller) next() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.list.next()
}

// Sent takes in that an endpoint was sent a prompt and began to answer, to be told
// to all targets. It does not block and does not keep blocks.
func (c *Client) Sent(endpoint string, blocks []uint64) {
	if c.cfg.Heard == nil {
		return
	}
	before := c.teller.next()
	if c.teller.tell(endpoint, blocks, time.Now()); c.teller.next() == before {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.mu.targets {
		if t.told >= before { // it knows all before, and may wait long
			t.poke()
		}
	}
}

// heard passes on what a controller tells of other gateways.
func (c *Client) heard(all []Prompt) {
	if c.cfg.Heard == nil {
		return
	}
	var blocks []uint64
	for i := range all {
		p := &all[i]
		if p.validate() != nil || p.Ago > keepPrompt.Milliseconds() {
			continue // a controller's fault is no reason to stop reporting to it
		}
		blocks = blocks[:0]
		for at := 0; at < len(p.Blocks); at += 8 {
			blocks = append(blocks, binary.LittleEndian.Uint64(p.Blocks[at:]))
		}
		c.cfg.Heard(p.Endpoint, blocks)
	}
}
