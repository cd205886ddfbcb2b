package peers

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/ring"
)

// Group is the ring as one node sees it. It is safe for concurrent use.
type Group struct {
	cfg    Config
	self   string
	static []string // origins
	sign   signer
	client http.Client
	log    *slog.Logger

	mu struct {
		sync.Mutex
		ring  ring.Ring
		nodes map[string]*node // by name; self is none of them

		complained time.Time // when a refused request was last logged
	}
	telling sync.Mutex // held while Changed is called
}

// node is another node.
type node struct {
	ring.Breaker
	why   string // of its last failure
	since time.Time
}

// New makes the ring of the nodes that cfg lists. Run must be called.
func New(cfg Config) (*Group, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	g := &Group{cfg: cfg, log: cfg.Log}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	if g.cfg.Resolver == nil {
		g.cfg.Resolver = net.DefaultResolver
	}
	g.self, _ = Origin(cfg.Self) // valid
	for _, p := range cfg.Peers {
		o, _ := Origin(p) // likewise
		g.static = append(g.static, o)
	}
	g.sign = signer{self: g.self, skew: cfg.MaxSkew, seen: nonces{max: cfg.MaxNonces}}
	for _, s := range cfg.Secrets {
		g.sign.secrets = append(g.sign.secrets, []byte(s))
	}
	t := cfg.Transport
	if t == nil {
		t = &http.Transport{
			DialContext:         (&net.Dialer{Timeout: cfg.AnswerTimeout, KeepAlive: 15 * time.Second}).DialContext,
			MaxIdleConnsPerHost: 64, IdleConnTimeout: 90 * time.Second, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
			TLSHandshakeTimeout: cfg.AnswerTimeout,
		}
	}
	g.client = http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	g.mu.nodes = map[string]*node{}
	g.set(nil)
	return g, nil
}

// Run resolves the name at intervals, and probes ejected nodes, until ctx ends.
func (g *Group) Run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	g.publish()
	if g.cfg.DNS != "" {
		all.Go(func() { g.follow(ctx) })
	}
	tick := time.NewTicker(max(g.cfg.FirstPause/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			for _, name := range g.due(now) {
				all.Go(func() { g.try(ctx, name) })
			}
		}
	}
}

// follow resolves the name at intervals. While that fails, the nodes are those
// of the last answer; those that are gone are ejected when they do not answer.
func (g *Group) follow(ctx context.Context) {
	host, port, _ := net.SplitHostPort(g.cfg.DNS) // valid
	var problem string
	for {
		asked, cancel := context.WithTimeout(ctx, g.cfg.LookupEvery)
		found, err := g.cfg.Resolver.LookupNetIP(asked, "ip", host)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && err.Error() != problem:
			problem = err.Error()
			g.log.Warn("the name of the ring's nodes cannot be looked up", "name", host, "error", err)
		case err == nil:
			problem = ""
			g.set(origins(found, port))
		}
		select {
		case <-time.After(g.cfg.LookupEvery):
		case <-ctx.Done():
			return
		}
	}
}

func origins(addrs []netip.Addr, port string) []string {
	out := make([]string, 0, len(addrs))
	for _, a := range addrs {
		out = append(out, "http://"+net.JoinHostPort(a.Unmap().String(), port))
	}
	return out
}

// set makes the ring of the list, those found, and this node. What is known of
// a node that stays, stays.
func (g *Group) set(found []string) {
	for i, f := range found {
		found[i], _ = Origin(f) // made from an address
	}
	r := ring.New(append(slices.Concat(g.static, found), g.self))
	if n := len(r.Names()); n > g.cfg.MaxNodes {
		g.log.Warn("the ring has too many nodes; the first are used", "nodes", n, "max", g.cfg.MaxNodes)
		r = ring.New(append(slices.Clone(r.Names()[:g.cfg.MaxNodes-1]), g.self))
	}
	g.mu.Lock()
	if slices.Equal(r.Names(), g.mu.ring.Names()) {
		g.mu.Unlock()
		return
	}
	g.mu.ring = r
	nodes := map[string]*node{}
	for _, name := range r.Names() {
		if name == g.self {
			continue
		}
		if nodes[name] = g.mu.nodes[name]; nodes[name] == nil {
			nodes[name] = &node{since: time.Now()}
		}
	}
	g.mu.nodes = nodes
	g.mu.Unlock()
	g.log.Info("the ring's nodes", "self", g.self, "nodes", strings.Join(r.Names(), " "))
	g.publish()
}

// maxTries is how many other nodes are asked for a blob before this one fetches
// it itself.
const maxTries = 2

// Owners are the other nodes to ask for a key, in order; none where this one
// should keep it.
func (g *Group) Owners(key string) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []string
	for _, name := range g.mu.ring.Owners(key, g.cfg.MaxNodes) {
		if name == g.self || len(out) == maxTries {
			break
		}
		if g.mu.nodes[name].Usable() {
			out = append(out, name)
		}
	}
	return out
}

// update changes a node's record, and publishes the state when the node's
// ejection begins or ends.
func (g *Group) update(name string, change func(*node, time.Time), why string) {
	now := time.Now()
	g.mu.Lock()
	n := g.mu.nodes[name]
	if n == nil {
		g.mu.Unlock()
		return
	}
	before := n.Usable()
	change(n, now)
	after := n.Usable()
	if before != after {
		n.since = now
	}
	if why != "" || after {
		n.why = why
	}
	g.mu.Unlock()
	switch {
	case before && !after:
		g.log.Warn("a node of the ring is ejected; other nodes are asked in its place", "node", name, "error", why)
	case !before && after:
		g.log.Info("a node of the ring is back", "node", name)
	}
	if before != after {
		g.publish()
	}
}

// Failed notes that a node did not answer as it should; it is ejected for a
// while.
func (g *Group) Failed(name string, err error) {
	p := ring.Pauses{First: g.cfg.FirstPause, Most: g.cfg.MostPause}
	g.update(name, func(n *node, now time.Time) { n.Failed(p, now) }, err.Error())
}

// Wrong notes that a node sent content that does not have its hash.
func (g *Group) Wrong(name string) {
	g.update(name, func(n *node, now time.Time) { n.Bar(g.cfg.WrongPause, now) }, "it sent content that does not have its hash")
}

// Worked notes that a node did as it should.
func (g *Group) Worked(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.mu.nodes[name]; n != nil {
		n.Worked()
	}
}

// due returns the nodes to probe now.
func (g *Group) due(now time.Time) (out []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, n := range g.mu.nodes {
		if n.Try(now) {
			out = append(out, name)
		}
	}
	return out
}

// try probes an ejected node.
func (g *Group) try(ctx context.Context, name string) {
	err := g.ping(ctx, name)
	if err == nil {
		g.update(name, func(n *node, _ time.Time) { n.Back() }, "")
		return
	}
	if ctx.Err() == nil {
		g.Failed(name, err)
	}
}

// State is what a node knows of its ring.
type State struct {
	Self  string      `json:"self"`
	At    time.Time   `json:"at"`
	Nodes []NodeState `json:"nodes"` // the others, by name
}

// NodeState is what is known of another node.
type NodeState struct {
	Name  string    `json:"name"`
	Asked bool      `json:"asked"` // false: it failed, and is ejected
	Why   string    `json:"why,omitempty"`
	Since time.Time `json:"since"`
}

// State returns the nodes and how they are.
func (g *Group) State() State {
	g.mu.Lock()
	defer g.mu.Unlock()
	st := State{Self: g.self, At: time.Now(), Nodes: []NodeState{}}
	for _, name := range g.mu.ring.Names() {
		if n := g.mu.nodes[name]; n != nil {
			st.Nodes = append(st.Nodes, NodeState{name, n.Usable(), n.why, n.since})
		}
	}
	return st
}

func (g *Group) publish() {
	if g.cfg.Changed == nil {
		return
	}
	g.telling.Lock()
	defer g.telling.Unlock()
	g.cfg.Changed(g.State())
}
