package kvevents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/cespare/xxhash/v2"

	"roundhouse.dev/roundhouse/internal/decide/kvblocks"
)

// reader reads MessagePack. The first error stays; what is read after it is
// zero.
type reader struct {
	b   []byte
	err error
}

var errShort = errors.New("it ends too early")

// The types of values.
type valueType uint8

const (
	typeNil valueType = iota
	typeBool
	typeInt   // n is the two's complement
	typeFloat // n is the bits
	typeText  // a string or bytes: body
	typeArray // of n values
	typeMap   // of n pairs
	typeExt
)

// value is the head of a value: arrays' and maps' contents follow it.
type value struct {
	kind valueType
	n    uint64
	body []byte
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.b = nil
}

func (r *reader) take(n uint64) []byte {
	if uint64(len(r.b)) < n {
		r.fail(errShort)
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

// uint reads a big-endian number of 1, 2, 4 or 8 bytes.
func (r *reader) uint(size uint64) (n uint64) {
	for _, b := range r.take(size) {
		n = n<<8 | uint64(b)
	}
	return n
}

// next reads the next value's head.
func (r *reader) next() value {
	head := r.take(1)
	if head == nil {
		return value{}
	}
	c := head[0]
	switch {
	case c < 0x80:
		return value{kind: typeInt, n: uint64(c)}
	case c < 0x90:
		return r.container(typeMap, uint64(c&0x0f))
	case c < 0xa0:
		return r.container(typeArray, uint64(c&0x0f))
	case c < 0xc0:
		return value{kind: typeText, body: r.take(uint64(c & 0x1f))}
	case c >= 0xe0:
		return value{kind: typeInt, n: uint64(int64(int8(c)))}
	}
	return r.long(c)
}

// long reads the values whose head has more than one byte, and nil and bools.
func (r *reader) long(c byte) value {
	size := uint64(1) << (c & 3) // of most of them
	switch c {
	case 0xc0:
		return value{}
	case 0xc2, 0xc3:
		return value{kind: typeBool, n: uint64(c & 1)}
	case 0xc4, 0xc5, 0xc6: // bytes
		return value{kind: typeText, body: r.take(r.uint(size))}
	case 0xd9, 0xda, 0xdb: // strings
		return value{kind: typeText, body: r.take(r.uint(1 << (c - 0xd9)))}
	case 0xc7, 0xc8, 0xc9:
		n := r.uint(1 << (c - 0xc7))
		return value{kind: typeExt, body: r.take(n + 1)}
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8:
		return value{kind: typeExt, body: r.take(1<<(c-0xd4) + 1)}
	case 0xca:
		return value{kind: typeFloat, n: math.Float64bits(float64(math.Float32frombits(uint32(r.uint(4)))))}
	case 0xcb:
		return value{kind: typeFloat, n: r.uint(8)}
	case 0xcc, 0xcd, 0xce, 0xcf:
		return value{kind: typeInt, n: r.uint(size)}
	case 0xd0:
		return value{kind: typeInt, n: uint64(int64(int8(r.uint(1))))}
	case 0xd1:
		return value{kind: typeInt, n: uint64(int64(int16(r.uint(2))))}
	case 0xd2:
		return value{kind: typeInt, n: uint64(int64(int32(r.uint(4))))}
	case 0xd3:
		return value{kind: typeInt, n: r.uint(8)}
	case 0xdc, 0xdd:
		return r.container(typeArray, r.uint(2<<(c&1)))
	case 0xde, 0xdf:
		return r.container(typeMap, r.uint(2<<(c&1)))
	}
	r.fail(fmt.Errorf("%#x begins no value", c))
	return value{}
}

// container is an array or a map. Each of its values takes at least a byte, so
// its length is known to be possible before anything is made for it.
func (r *reader) container(kind valueType, n uint64) value {
	if least := n * uint64(kind-typeArray+1); least > uint64(len(r.b)) {
		r.fail(errShort)
		return value{}
	}
	return value{kind: kind, n: n}
}

// maxDepth bounds how deep values stand in others.
const maxDepth = 16

// skip passes over the next value.
func (r *reader) skip(depth int) {
	if depth > maxDepth {
		r.fail(fmt.Errorf("values nest deeper than %d", maxDepth))
		return
	}
	v := r.next()
	n := uint64(0)
	switch v.kind {
	case typeArray:
		n = v.n
	case typeMap:
		n = 2 * v.n
	case typeNil, typeBool, typeInt, typeFloat, typeText, typeExt:
	}
	for range n {
		if r.err != nil {
			return
		}
		r.skip(depth + 1)
	}
}

// array begins an array; nil has no elements.
func (r *reader) array(what string) int {
	v := r.next()
	if v.kind != typeArray && v.kind != typeNil {
		r.fail(fmt.Errorf("%s is no array", what))
		return 0
	}
	return int(v.n)
}

// fields calls f with each field of a struct, which is an array of the fields in
// the order of names, or a map with their names. f must read the value.
func (r *reader) fields(v value, names []string, f func(name string)) {
	for i := range v.n {
		if r.err != nil {
			return
		}
		name := ""
		if v.kind == typeMap {
			name = string(r.next().body)
		} else if i < uint64(len(names)) {
			name = names[i]
		}
		f(name)
	}
}

// The fields of messages in the order in which arrays have them. vLLM and SGLang
// add fields at the end.
var (
	batchFields   = []string{"ts", "events", "data_parallel_rank"}
	storedFields  = []string{"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"}
	removedFields = []string{"type", "block_hashes", "medium", "group_idx"}
)

// message is an event as it stands in a batch.
type message struct {
	kvblocks.Event
	kind   string
	medium string
	group  int64
	spec   string // of the group's attention
	salt   uint64 // a hash of the cache salt that SGLang states apart; 0 for none
}

// decode reads a batch and calls f with its events in order; they are valid
// within the call.
func decode(payload []byte, f func(m *message)) error {
	r := &reader{b: payload}
	v := r.next()
	if v.kind != typeArray && v.kind != typeMap {
		return errors.New("the batch is neither an array nor a map")
	}
	r.fields(v, batchFields, func(name string) {
		if name != "events" {
			r.skip(0)
			return
		}
		for range r.array("events") {
			var m message
			if r.event(&m); r.err != nil {
				return
			}
			f(&m)
		}
	})
	if r.err != nil {
		return fmt.Errorf("the batch cannot be read: %w", r.err)
	}
	return nil
}

// event reads one event: an array that begins with the name of its kind, or a
// map with the member "type".
func (r *reader) event(m *message) {
	v := r.next()
	names := storedFields
	switch v.kind {
	case typeArray:
		if v.n == 0 {
			r.fail(errors.New("an event is empty"))
			return
		}
		switch m.kind = string(r.next().body); m.kind {
		case "BlockStored":
		case "BlockRemoved":
			names = removedFields
		default: // its fields are not known
			names = []string{"type"}
		}
		v.n--
		names = names[1:]
	case typeMap:
	default:
		r.fail(errors.New("an event is neither an array nor a map"))
		return
	}
	r.fields(v, names, func(name string) { r.field(m, name) })
	if m.salt != 0 {
		m.Extra = append(m.Extra, make([]uint64, max(0, len(m.Blocks)-len(m.Extra)))...)
		for i := range m.Extra {
			m.Extra[i] = (m.Extra[i] ^ m.salt) | 1
		}
	}
	switch m.kind {
	case "BlockStored":
		m.Kind = kvblocks.Stored
	case "BlockRemoved":
		m.Kind = kvblocks.Removed
	case "AllBlocksCleared":
		m.Kind = kvblocks.Cleared
	}
}

// field reads one field of an event.
func (r *reader) field(m *message, name string) {
	switch name {
	case "type":
		m.kind = string(r.next().body)
	case "block_hashes":
		n := r.array(name)
		m.Blocks = make([]uint64, 0, n)
		for range n {
			h, _ := r.hash()
			m.Blocks = append(m.Blocks, h)
		}
	case "parent_block_hash":
		m.Parent, m.HasParent = r.hash()
	case "token_ids":
		n := r.array(name)
		m.Tokens = make([]uint32, 0, n)
		for range n {
			m.Tokens = append(m.Tokens, r.token())
		}
	case "block_size":
		if m.BlockTokens = int(r.next().n); m.BlockTokens < 0 || m.BlockTokens > 1<<20 {
			r.fail(fmt.Errorf("block_size is %d", m.BlockTokens))
		}
	case "cache_salt":
		if v := r.next(); v.kind == typeText {
			m.salt = xxhash.Sum64(v.body) | 1
		}
	case "lora_name":
		m.Adapter = string(r.next().body)
	case "medium":
		m.medium = string(r.next().body)
	case "extra_keys":
		r.extra(m)
	case "group_idx":
		m.group = int64(r.next().n)
	case "kv_cache_spec_kind":
		m.spec = string(r.next().body)
	default:
		r.skip(0)
	}
}

// token reads a token. Where SGLang drafts by pairs it is a pair with the next one.
func (r *reader) token() uint32 {
	v := r.next()
	if v.kind == typeArray && v.n > 0 {
		rest := v.n - 1
		v = r.next()
		for range rest {
			if r.skip(1); r.err != nil {
				break
			}
		}
	}
	return uint32(v.n)
}

// hash reads an engine's hash, a number or bytes; false for nil.
func (r *reader) hash() (uint64, bool) {
	switch v := r.next(); v.kind {
	case typeInt:
		return v.n, true
	case typeText:
		return xxhash.Sum64(v.body), true
	case typeNil:
	default:
		r.fail(errors.New("a block's hash is neither a number nor bytes"))
	}
	return 0, false
}

// extra reads the extra keys of each block. The adapter's name among them tells
// nothing that the event does not.
func (r *reader) extra(m *message) {
	for i := range r.array("extra_keys") {
		v := r.next()
		if v.kind != typeArray {
			continue
		}
		var sum uint64
		for range v.n {
			before := r.b
			if r.skip(1); r.err != nil {
				return
			}
			key := before[:len(before)-len(r.b)]
			if k := (&reader{b: key}).next(); k.kind == typeText && string(k.body) == m.Adapter {
				continue
			}
			var w [8]byte
			binary.LittleEndian.PutUint64(w[:], sum)
			sum = xxhash.Sum64(append(w[:], key...)) | 1
		}
		if sum != 0 {
			for len(m.Extra) < i {
				m.Extra = append(m.Extra, 0)
			}
			m.Extra = append(m.Extra, sum)
		}
	}
}
