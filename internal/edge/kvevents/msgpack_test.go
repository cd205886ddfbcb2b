package kvevents

import (
	"bufio"
	"encoding/hex"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"roundhouse.dev/roundhouse/internal/decide/kvblocks"
)

// recorded are batches as the publishers of vLLM 0.32.0 and SGLang 0.5.23 encoded
// them.
func recorded(t testing.TB) [][]byte {
	return append(batches(t, "testdata/vllm-0.32.0.hex"), batches(t, "testdata/sglang-0.5.23.hex")...)
}

func batches(t testing.TB, file string) (out [][]byte) {
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		b, err := hex.DecodeString(lines.Text())
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b)
	}
	return out
}

// arrays is a batch in the form of vLLM 0.11 and early SGLang 0.5: structs are arrays.
// It is [1.5, [["BlockStored", [7], nil, [1, 2], 2, nil, "GPU"], ["BlockRemoved",
// [-3]], ["AllBlocksCleared"], ["Later", 1, {}]]].
var arrays = []byte("\x92\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00\x94" +
	"\x97\xabBlockStored\x91\x07\xc0\x92\x01\x02\x02\xc0\xa3GPU" +
	"\x92\xacBlockRemoved\x91\xfd" + "\x91\xb0AllBlocksCleared" + "\x93\xa5Later\x01\x80")

func TestDecode(t *testing.T) {
	h := func(b byte) uint64 { return xxhash.Sum64([]byte(strings.Repeat(string(b), 32))) }
	want := [][]message{
		{{kind: "BlockStored", medium: "GPU", Event: kvblocks.Event{Blocks: []uint64{h(1), h(2)}, Tokens: []uint32{1, 2, 3, 4, 5, 6, 7, 8}, BlockTokens: 4}}},
		{{kind: "BlockStored", medium: "GPU", Event: kvblocks.Event{Blocks: []uint64{1<<63 + 5}, Parent: h(2), HasParent: true, Tokens: []uint32{9, 10, 11, 70000}, BlockTokens: 4, Extra: []uint64{1}}},
			{kind: "BlockRemoved", medium: "GPU", Event: kvblocks.Event{Kind: kvblocks.Removed, Blocks: []uint64{h(1)}}}},
		{{kind: "BlockStored", medium: "GPU", Event: kvblocks.Event{Blocks: []uint64{7}, Tokens: []uint32{1, 2, 3, 4}, BlockTokens: 4, Adapter: "sql"}},
			{kind: "BlockRemoved", medium: "CPU", Event: kvblocks.Event{Kind: kvblocks.Removed, Blocks: []uint64{7}}}},
		{{kind: "AllBlocksCleared", Event: kvblocks.Event{Kind: kvblocks.Cleared}}},
		// SGLang: a cache salt, and pairs of tokens.
		{{kind: "BlockStored", medium: "GPU", Event: kvblocks.Event{Blocks: []uint64{7}, Tokens: []uint32{1, 2}, BlockTokens: 2}},
			{kind: "BlockStored", medium: "GPU", salt: xxhash.Sum64String("s") | 1, Event: kvblocks.Event{Blocks: []uint64{1<<64 - 8}, Parent: 7, HasParent: true, Tokens: []uint32{3, 70000}, BlockTokens: 2, Extra: []uint64{1}}}},
		{{kind: "BlockStored", medium: "GPU", Event: kvblocks.Event{Blocks: []uint64{9}, Tokens: []uint32{1, 2}, BlockTokens: 2, Adapter: "sql"}},
			{kind: "BlockRemoved", medium: "CPU_PINNED", Event: kvblocks.Event{Kind: kvblocks.Removed, Blocks: []uint64{7}}},
			{kind: "AllBlocksCleared", Event: kvblocks.Event{Kind: kvblocks.Cleared}}},
		{{kind: "BlockStored", medium: "GPU", Event: kvblocks.Event{Blocks: []uint64{7}, Tokens: []uint32{1, 2}, BlockTokens: 2}},
			{kind: "BlockRemoved", Event: kvblocks.Event{Kind: kvblocks.Removed, Blocks: []uint64{1<<64 - 3}}},
			{kind: "AllBlocksCleared", Event: kvblocks.Event{Kind: kvblocks.Cleared}},
			{kind: "Later"}},
	}
	for i, payload := range append(recorded(t), arrays) {
		var got []message
		if err := decode(payload, func(m *message) {
			for i := range m.Extra {
				m.Extra[i] = min(m.Extra[i], 1) // whether there is one
			}
			got = append(got, *m)
		}); err != nil {
			t.Errorf("batch %d: %v", i, err)
		}
		if !reflect.DeepEqual(got, want[i]) {
			t.Errorf("batch %d:\n%+v, want\n%+v", i, got, want[i])
		}
		for n := range payload {
			if decode(payload[:n], func(*message) {}) == nil {
				t.Errorf("batch %d is no error when it ends after %d bytes", i, n)
			}
		}
	}
}

// FuzzDecode: whatever a publisher sends, memory stays within a multiple of what
// it sent, and nothing panics.
func FuzzDecode(f *testing.F) {
	for _, payload := range append(recorded(f), arrays, []byte("\x92\xc0\xdd\xff\xff\xff\xff"), []byte(strings.Repeat("\x91", 100))) {
		f.Add(payload)
	}
	var before, after runtime.MemStats
	f.Fuzz(func(t *testing.T, payload []byte) {
		runtime.ReadMemStats(&before)
		var engine kvblocks.Engine
		_ = decode(payload, func(m *message) { engine.Apply(&m.Event, nil, nil) }) // errors are fine
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20+uint64(len(payload))*256 {
			t.Fatalf("%d bytes took %d bytes of memory", len(payload), used)
		}
	})
}
