// Package hubtest is a Hugging Face Hub for tests, on loopback: it answers the
// routes that clients download by the way the Hub does, with large files behind
// redirects to another host, renamed, gated and private repositories, pages,
// Xet's headers and the Hub's errors; and it fails as it is told to.
package hubtest

import (
	"crypto/sha1" //nolint:gosec // git's hash
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
)

// Hub is the Hub and, on another host, its storage. The zero value is not
// usable; New makes one.
type Hub struct {
	URL     string // of the Hub
	hub     *httptest.Server
	storage *httptest.Server
	sent    atomic.Int64

	mu       sync.Mutex
	repos    map[string]*Repo
	renamed  map[string]string // old key → new name
	tokens   map[string]bool   // that exist
	given    int               // addresses at the storage
	used     map[string]int    // requests of each
	faults   Faults
	requests []Request
}

// Request is a request that came.
type Request struct {
	Storage       bool // at the storage, not the Hub
	Method        string
	URI           string
	Authorization string
	Range         string
	Header        http.Header
}

// Faults are what goes wrong. The zero value is a Hub in order.
type Faults struct {
	Status    int             // the Hub answers this to everything
	Header    http.Header     // and these, with Status
	Storage   int             // the storage answers this
	CutAfter  int             // bytes of a body before the connection breaks
	Cuts      int             // how many bodies are cut so
	Truncate  int             // bytes that a whole-looking answer of the storage lacks
	Extra     int64           // what is added to sizes in headers of metadata
	Corrupt   bool            // the storage sends wrong bytes
	NoRange   bool            // the storage answers 200 to ranges
	Hold      <-chan struct{} // bodies wait for it after HoldAfter bytes
	HoldAfter int
	ETag      string          // instead of the right one
	Link      string          // instead of the right next page
	Location  string          // instead of the storage's
	MuteHub   <-chan struct{} // the Hub does not answer before it is closed
	Drip      int             // bodies come in pieces of so many bytes, 2 ms apart
	Addresses int             // each address at the storage is good for so many requests; 0: for all
}

// Repo is a repository.
type Repo struct {
	hub        *Hub
	kind, name string
	gated      bool
	private    bool
	readers    []string // tokens
	refs       map[string]string
	commits    map[string]map[string]file // commit → path → file
}

type file struct {
	data []byte
	lfs  bool
	sum  string // SHA-256
	oid  string // git's hash: of the content, or of the pointer to it
}

func newFile(data []byte, lfs bool) file {
	sum := sha256.Sum256(data)
	f := file{data: data, lfs: lfs, sum: hex.EncodeToString(sum[:])}
	if lfs {
		data = fmt.Appendf(nil, "version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", f.sum, len(data))
	}
	h := sha1.New() //nolint:gosec // git's hash
	_, _ = fmt.Fprintf(h, "blob %d\x00", len(data))
	_, _ = h.Write(data)
	f.oid = hex.EncodeToString(h.Sum(nil))
	return f
}

func (f file) etag() string {
	if f.lfs {
		return f.sum
	}
	return f.oid
}

// New starts a Hub without repositories. Close must be called.
func New() *Hub {
	h, err := NewAt("127.0.0.1")
	if err != nil {
		panic(err) // there is no loopback
	}
	return h
}

// NewAt starts one at another address of this machine's.
func NewAt(ip string) (*Hub, error) {
	h := &Hub{repos: map[string]*Repo{}, renamed: map[string]string{}, tokens: map[string]bool{}, used: map[string]int{}}
	for server, handler := range map[**httptest.Server]http.HandlerFunc{&h.hub: h.serve, &h.storage: h.serveStorage} {
		l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
		if err != nil {
			return nil, err
		}
		*server = &httptest.Server{Listener: l, Config: &http.Server{Handler: handler}}
	}
	h.hub.Start()
	h.storage.Start()
	h.URL = h.hub.URL
	return h, nil
}

// Close stops it.
func (h *Hub) Close() {
	h.hub.CloseClientConnections()
	h.storage.CloseClientConnections()
	h.hub.Close()
	h.storage.Close()
}

func key(kind, name string) string { return kind + "/" + name }

// Add makes a repository: kind is "models", "datasets" or "spaces".
func (h *Hub) Add(kind, name string) *Repo {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := &Repo{hub: h, kind: kind, name: name, refs: map[string]string{}, commits: map[string]map[string]file{}}
	h.repos[key(kind, name)] = r
	return r
}

// Rename gives a repository another name; the old one redirects.
func (h *Hub) Rename(kind, from, to string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.repos[key(kind, from)]
	delete(h.repos, key(kind, from))
	r.name = to
	h.repos[key(kind, to)] = r
	h.renamed[key(kind, from)] = to
}

// Token makes a token known to the Hub, with access to nothing in particular.
func (h *Hub) Token(token string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tokens[token] = true
}

// Fail sets what goes wrong from now on.
func (h *Hub) Fail(f Faults) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults = f
}

// Requests are those that came since the last call of Forget.
func (h *Hub) Requests() []Request {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.requests)
}

// Forget empties the list of requests and the count of bytes.
func (h *Hub) Forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests = nil
	h.sent.Store(0)
}

// Sent is how many bytes of files were sent.
func (h *Hub) Sent() int64 { return h.sent.Load() }

// Commit makes a commit on a branch with these files added to its last one's,
// and returns its hash. A file whose name lfs holds is large.
func (r *Repo) Commit(branch string, files map[string][]byte, lfs ...string) string {
	r.hub.mu.Lock()
	defer r.hub.mu.Unlock()
	tree := maps.Clone(r.commits[r.refs[branch]])
	if tree == nil {
		tree = map[string]file{}
	}
	for name, data := range files {
		tree[name] = newFile(data, slices.Contains(lfs, name))
	}
	sum := sha1.Sum(fmt.Appendf(nil, "%s/%s %s %d", r.kind, r.name, branch, len(r.commits))) //nolint:gosec // git's hash
	commit := hex.EncodeToString(sum[:])
	r.refs[branch], r.commits[commit] = commit, tree
	return commit
}

// Gate lets only these tokens read; everybody sees that it is there.
func (r *Repo) Gate(tokens ...string) { r.restrict(true, false, tokens) }

// Hide lets only these tokens read or know of it.
func (r *Repo) Hide(tokens ...string) { r.restrict(false, true, tokens) }

// Open lets everybody read.
func (r *Repo) Open() { r.restrict(false, false, nil) }

func (r *Repo) restrict(gated, private bool, tokens []string) {
	r.hub.mu.Lock()
	defer r.hub.mu.Unlock()
	r.gated, r.private, r.readers = gated, private, tokens
	for _, t := range tokens {
		r.hub.tokens[t] = true
	}
}
