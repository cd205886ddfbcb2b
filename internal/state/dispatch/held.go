package dispatch

import (
	"sync"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/decide/kvblocks"
)

// caches are what engines say of their prefix caches, for the endpoints that do.
// What they hold goes into the pools' indexes of prompts. mu is taken before a
// pool's.
type caches struct {
	mu        sync.Mutex
	alignment kvblocks.Alignment
	engines   map[string]*kvblocks.Engine // by endpoint
	in, out   []uint64                    // scratch: chains
	texts     []uint64                    // scratch: blocks of text
}

// KVEvent notes what an endpoint's engine says of its cache. An endpoint that no
// pool has is ignored.
func (d *Dispatcher) KVEvent(id string, ev *kvblocks.Event) {
	e := d.endpoints.get(id)
	if e == nil {
		return
	}
	c := &d.caches
	c.mu.Lock()
	defer c.mu.Unlock()
	engine := c.engines[id]
	if engine == nil {
		if c.engines == nil {
			c.engines = map[string]*kvblocks.Engine{}
		}
		engine = &kvblocks.Engine{}
		c.engines[id] = engine
	}
	e.events.Store(true)
	if ev.Kind == kvblocks.Cleared {
		delete(c.engines, id)
		c.update(e, nil, func(m *memory, n int, _ []uint64) {
			if m.prompts != nil {
				m.prompts.Forget(n)
			}
		})
		return
	}
	c.in, c.out = engine.Apply(ev, c.in[:0], c.out[:0])
	c.tell(e, c.out, false)
	c.tell(e, c.in, true)
}

// KVReset forgets what an endpoint's engine has said of its cache: events were
// missed, or end. What it was sent counts again.
func (d *Dispatcher) KVReset(id string) {
	c := &d.caches
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.engines, id)
	if e := d.endpoints.get(id); e != nil {
		e.events.Store(false)
	}
}

// Heard notes that another gateway sent an endpoint a prompt with these blocks. An
// endpoint that no pool has is ignored.
func (d *Dispatcher) Heard(id string, blocks []uint64) {
	if e := d.endpoints.get(id); e != nil {
		blocks = blocks[:min(len(blocks), d.cfg.Index.PromptBlocks)]
		d.caches.update(e, blocks, (*memory).heard)
	}
}

// tell has the pools of an endpoint note that it has stored, or removed, the blocks of
// text that end in chains. What a prompt begins with before its first block of KV ends is
// not removed with that: it may be another prompt's too, and alone it makes no endpoint
// better than one that holds more.
func (c *caches) tell(e *endpoint, chains []uint64, stored bool) {
	note := (*memory).removed
	c.texts = c.texts[:0]
	for _, chain := range chains {
		c.texts = append(c.texts, c.alignment.Texts(chain)...)
		if stored {
			c.texts = append(c.texts, c.alignment.Leads(chain)...)
		}
	}
	if stored {
		note = (*memory).stored
	}
	if len(c.texts) > 0 {
		c.update(e, c.texts, note)
	}
}

// update has the pools of an endpoint note something about blocks of text.
func (c *caches) update(e *endpoint, texts []uint64, note func(m *memory, n int, texts []uint64)) {
	for _, p := range e.listedBy() {
		p.mu.Lock()
		for _, s := range p.sets() {
			if n, ok := s.byID[e.id]; ok {
				note(&s.memory, n, texts)
			}
		}
		p.mu.Unlock()
	}
}

func (m *memory) heard(n int, texts []uint64) {
	if m.prompts != nil {
		m.prompts.Sent(n, texts)
	}
}

func (m *memory) stored(n int, texts []uint64) {
	if m.prompts != nil {
		m.prompts.Stored(n, texts)
	}
}

func (m *memory) removed(n int, texts []uint64) {
	if m.prompts != nil {
		m.prompts.Removed(n, texts)
	}
}

// minNewBlocks is how many blocks of a prompt must be new for its tokens to be
// asked for. What is less is a question that nobody asks again.
const minNewBlocks = 4

// Tokenize has the endpoint's engine tell the tokens of the request's prompt,
// where it tells what its cache holds and a part of the prompt is new. It is to
// be called after Admit. parts are the body as the endpoint gets it; they are
// copied.
func (g *Grant) Tokenize(path string, parts ...[]byte) {
	d, x := g.pool.d, g.reservation.slot
	if d.cfg.Tokenize == nil || x == nil || !x.endpoint.events.Load() || g.hash == nil || len(g.hash.blocks) < minNewBlocks ||
		!openai.RendersAsChat(path) {
		return
	}
	c := &d.caches
	c.mu.Lock()
	engine := c.engines[g.replica]
	known := 0
	if engine != nil {
		known = c.alignment.Known(g.hash.blocks)
	}
	c.mu.Unlock()
	if engine == nil || len(g.hash.blocks)-known < minNewBlocks {
		return
	}
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	body := make([]byte, 0, size)
	for _, p := range parts {
		body = append(body, p...)
	}
	p := kvblocks.Prompt{Texts: append([]uint64(nil), g.hash.blocks...), BlockBytes: d.cfg.Index.BlockBytes, Bytes: g.bytes, Adapter: g.pool.adapterOf(g)}
	id := g.replica
	d.cfg.Tokenize(g.address, path, body, func(tokens []uint32) {
		p.Tokens = tokens
		d.learn(id, &p)
	})
}

// adapterOf is the adapter that a request asks for as the engine names it; "" for
// none.
func (p *pool) adapterOf(g *Grant) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.entry.memory.adapter(g.adapter) == "" {
		return ""
	}
	return g.Model()
}

// learn takes the tokens of a prompt in, and has the pools know which endpoints
// hold what of it.
func (d *Dispatcher) learn(id string, p *kvblocks.Prompt) {
	c := &d.caches
	c.mu.Lock()
	defer c.mu.Unlock()
	engine := c.engines[id]
	if engine == nil {
		return
	}
	p.BlockTokens = engine.BlockTokens()
	var texts, chains []uint64
	c.alignment.Learn(p, func(text, chain uint64) { texts, chains = append(texts, text), append(chains, chain) })
	for id, engine := range c.engines {
		e := d.endpoints.get(id)
		if e == nil {
			delete(c.engines, id)
			continue
		}
		held := texts[:0:0]
		for i, chain := range chains {
			if engine.Holds(chain) {
				held = append(held, texts[i])
			}
		}
		if len(held) > 0 {
			c.update(e, held, (*memory).stored)
		}
	}
}
