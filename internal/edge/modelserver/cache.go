package modelserver

import (
	"container/list"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"hash"
	"maps"
	"math"
	"slices"
	"sync"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// CacheConfig bounds the cache of responses, which all models share that ask
// for it in their settings. What was used last stays.
type CacheConfig struct {
	Entries int   // 0: there is no cache
	Bytes   int64 // of the responses' data
}

// cacheSize is how many responses the cache holds where settings.json has no number.
const cacheSize = 100

// responseCache keeps the answers of models by the content of the requests.
type responseCache struct {
	config CacheConfig
	mu     struct {
		sync.Mutex
		entries map[cacheKey]*list.Element // of *cached
		order   *list.List                 // the last used first
		bytes   int64
	}
}

// cacheKey distinguishes requests that may have different answers.
type cacheKey struct {
	instance uint64
	content  [sha256.Size]byte
}

// cached is a response, apart from its id, in memory of its own.
type cached struct {
	key      cacheKey
	response tensor.Response
	bytes    int64
}

// newResponseCache returns nil for a cache of size 0.
func newResponseCache(c CacheConfig) *responseCache {
	if c.Entries == 0 {
		return nil
	}
	r := &responseCache{config: c}
	r.mu.entries, r.mu.order = map[cacheKey]*list.Element{}, list.New()
	return r
}

// get is the response to a request of that key; nil if it is not kept. The
// caller shares its tensors' data and does not change it.
func (c *responseCache) get(key cacheKey) *tensor.Response {
	c.mu.Lock()
	defer c.mu.Unlock()
	element := c.mu.entries[key]
	if element == nil {
		return nil
	}
	c.mu.order.MoveToFront(element)
	r := element.Value.(*cached).response
	r.Parameters, r.Outputs = maps.Clone(r.Parameters), slices.Clone(r.Outputs)
	return &r
}

// put keeps a copy of a response, and gives up those that were not used for
// the longest time where there is no more room.
func (c *responseCache) put(key cacheKey, r *tensor.Response) {
	size := responseSize(r)
	if size > c.config.Bytes {
		return
	}
	entry := &cached{key: key, response: *r, bytes: size}
	entry.response.ID = ""
	entry.response.Parameters = maps.Clone(r.Parameters)
	entry.response.Outputs = make([]tensor.Tensor, len(r.Outputs))
	for i := range r.Outputs {
		// A part of a batch's answer would keep all of it.
		entry.response.Outputs[i] = r.Outputs[i].Clone()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if element := c.mu.entries[key]; element != nil {
		c.remove(element) // another request was as fast
	}
	c.mu.entries[key] = c.mu.order.PushFront(entry)
	c.mu.bytes += size
	for c.mu.order.Len() > c.config.Entries || c.mu.bytes > c.config.Bytes {
		c.remove(c.mu.order.Back())
	}
}

// forget gives up the responses of an instance that has ended.
func (c *responseCache) forget(instance uint64) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, element := range c.mu.entries {
		if key.instance == instance {
			c.remove(element)
		}
	}
}

// remove takes an entry out; the lock is held.
func (c *responseCache) remove(element *list.Element) {
	entry := c.mu.order.Remove(element).(*cached)
	delete(c.mu.entries, entry.key)
	c.mu.bytes -= entry.bytes
}

// entryBytes is what an entry, a tensor and an element of BYTES are taken to
// need beside their data.
const entryBytes, tensorBytes, elementBytes = 512, 256, 24

// responseSize is about the memory a response takes.
func responseSize(r *tensor.Response) int64 {
	size := int64(entryBytes)
	text, _ := json.Marshal(r.Parameters) // what has no JSON form is not sent either
	size += int64(len(text))
	for i := range r.Outputs {
		t := &r.Outputs[i]
		size += tensorBytes + int64(t.RawSize())
		switch t.Datatype {
		case tensor.Bytes:
			size += elementBytes * int64(t.Len())
		case tensor.FP16, tensor.BF16: // held as float32
			size *= 2
		}
	}
	return size
}

// ownHeaders are those that differ from request to request and never decide an
// answer.
var ownHeaders = []string{"ce-id", "ce-requestid", "ce-time", "content-length", "grpc-timeout", "inference-header-content-length",
	"traceparent", "tracestate", "x-b3-parentspanid", "x-b3-spanid", "x-b3-traceid", "x-request-id"}

// cacheKeyOf is the key of a request to an instance: all of its content but
// the id, and for a model of code how it is written. ok is false if the request
// cannot be distinguished from others.
func cacheKeyOf(instance uint64, r *tensor.Request, code bool) (key cacheKey, ok bool) {
	w := &digest{hash: sha256.New(), written: code}
	parameters := r.Parameters
	if headers, has := parameters[headersParameter].(map[string]any); has {
		headers = maps.Clone(headers)
		for _, name := range ownHeaders {
			delete(headers, name)
		}
		parameters = maps.Clone(parameters)
		parameters[headersParameter] = headers
	}
	w.json(parameters)
	w.number(len(r.Inputs))
	for i := range r.Inputs {
		w.tensor(&r.Inputs[i])
	}
	w.json(r.Outputs)
	key.instance = instance
	w.hash.Sum(key.content[:0])
	return key, !w.failed
}

// digest hashes values with their lengths, so that no two sequences of values
// are one sequence of bytes.
type digest struct {
	hash   hash.Hash
	buffer []byte
	failed bool
	// written has tensors differ by how their JSON was written, which code sees.
	written bool
}

func (w *digest) number(n int) {
	w.buffer = binary.LittleEndian.AppendUint64(w.buffer[:0], uint64(n))
	_, _ = w.hash.Write(w.buffer) // a hash never fails
}

func (w *digest) bytes(b []byte) {
	w.number(len(b))
	_, _ = w.hash.Write(b)
}

func (w *digest) json(v any) {
	text, err := json.Marshal(v)
	w.failed = w.failed || err != nil
	w.bytes(text)
}

func (w *digest) tensor(t *tensor.Tensor) {
	w.bytes([]byte(t.Name))
	w.number(int(t.Datatype))
	w.number(len(t.Shape))
	for _, size := range t.Shape {
		w.number(int(size))
	}
	w.json(t.Parameters)
	w.json(t.Text)
	if w.written {
		w.json(t.Written)
	}
	w.number(t.Len())
	switch t.Datatype {
	case tensor.Bytes:
		for _, b := range t.Data.Bytes {
			w.json(b == nil) // null is not ""
			w.bytes(b)
		}
	case tensor.FP16, tensor.BF16: // may hold more digits than their binary form
		for _, v := range t.Data.Float32 {
			w.number(int(math.Float32bits(v)))
		}
	default:
		raw, ok := t.RawMemory()
		if !ok {
			raw = t.AppendRaw(nil)
		}
		w.bytes(raw)
	}
}
