package modelserver

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// TestCache: what was asked before is not asked again, whatever its id; what
// differs in anything else is.
func TestCache(t *testing.T) {
	files := map[string]string{"m.fake": "fake double", "s.fake": "fake stream",
		"a/model-settings.json": `{"implementation":"test.Fake","cache_enabled":true,"parameters":{"uri":"../m.fake"}}`,
		"b/model-settings.json": `{"implementation":"test.Fake","cache_enabled":true,"parameters":{"uri":"../m.fake"}}`,
		"c/model-settings.json": `{"implementation":"test.Fake","parameters":{"uri":"../m.fake"}}`,
		"s/model-settings.json": `{"implementation":"test.Fake","cache_enabled":true,"parameters":{"uri":"../s.fake"}}`}
	s := loaded(t, files, func(c *Config) { c.Cache.Entries = 3 })
	request := func(id, shape, data string) string {
		return fmt.Sprintf(`{"id":%q,"inputs":[{"name":"x","shape":%s,"datatype":"FP32","data":%s}]}`, id, shape, data)
	}
	for _, step := range []struct {
		what, model, body string
		infers            int64
	}{
		{"new", "a", request("1", "[2]", "[1,2]"), 1},
		{"another id", "a", request("2", "[2]", "[1,2]"), 0},
		{"another form", "a", request("3", "[2]", "[[1.0],[2]]"), 0},
		{"other data", "a", request("4", "[2]", "[1,3]"), 1},
		{"another shape", "a", request("5", "[1,2]", "[1,2]"), 1},
		{"another model", "b", request("6", "[2]", "[1,2]"), 1}, // the fourth entry
		{"kept", "a", request("7", "[2]", "[1,3]"), 0},
		{"used least", "a", request("8", "[2]", "[1,2]"), 1},
		{"no cache", "c", request("9", "[2]", "[1,2]"), 1},
		{"no cache still", "c", request("9", "[2]", "[1,2]"), 1},
	} {
		before := s.infers.Load()
		status, text, _ := s.do(t, "POST /v2/models/"+step.model+"/infer", step.body)
		if n := s.infers.Load() - before; n != step.infers || status != 200 {
			t.Errorf("%s: %d inferences, want %d: %d %s", step.what, n, step.infers, status, text)
		}
		var q, r struct{ ID string }
		if json.Unmarshal([]byte(step.body), &q) != nil || json.Unmarshal([]byte(text), &r) != nil || q.ID != r.ID {
			t.Errorf("%s: id %q for %q", step.what, r.ID, q.ID)
		}
		if step.model == "a" && !strings.Contains(text, `"data":[2`) {
			t.Errorf("%s: %s", step.what, text)
		}
	}
	write(t, s.folder, map[string]string{"m.fake": "fake triple"})
	if err := s.Load(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	s.registry.retiring.Wait() // else what the old one left may push b's entry out
	s.want(t, "POST /v2/models/a/infer", request("9", "[2]", "[1,2]"), 200, `"data":[3`)
	if n := len(s.registry.cache.mu.entries); n != 2 {
		t.Errorf("%d entries after the reload, want b's and the new one", n)
	}
	close(s.leave)
	for range 2 {
		s.want(t, "POST /v2/models/s/infer_stream", request("9", "[2]", "[1,2]"), 200, "data: {")
	}
	if n := len(s.registry.cache.mu.entries); n != 2 {
		t.Errorf("%d entries after streams", n)
	}
	if off := loaded(t, files); !strings.Contains(off.log.String(), "the server's cache_enabled is off") {
		t.Errorf("no word of a cache that is off: %s", off.log)
	}
}

// TestCacheBounds: bytes are bounded as entries are, and what is kept is
// nobody else's.
func TestCacheBounds(t *testing.T) {
	c := newResponseCache(CacheConfig{Entries: 100, Bytes: 10_000})
	big := make([]float32, 100_000)
	key := func(n uint64) cacheKey { return cacheKey{instance: n} }
	response := func(values []float32) *tensor.Response {
		return &tensor.Response{ID: "x", Parameters: tensor.Parameters{"a": 1}, Outputs: []tensor.Tensor{{Name: "y", Datatype: tensor.FP32, Shape: []int64{int64(len(values))}, Data: tensor.Values{Float32: values}}}}
	}
	c.put(key(0), response(big))
	if c.get(key(0)) != nil || c.mu.bytes != 0 {
		t.Error("a response over the bound is kept")
	}
	for n := range uint64(10) {
		c.put(key(n), response(big[:1000:1000]))
		c.put(key(n), response(big[:1000:1000])) // again
	}
	if n := len(c.mu.entries); n != 2 || c.mu.order.Len() != 2 || c.mu.bytes > 10_000 || c.get(key(8)) == nil || c.get(key(9)) == nil {
		t.Errorf("%d entries of %d bytes", n, c.mu.bytes)
	}
	big[0] = 5
	first := c.get(key(9))
	delete(first.Parameters, "a")
	if second := c.get(key(9)); second.Outputs[0].Data.Float32[0] != 0 || second.Parameters["a"] != 1 || second.ID != "" {
		t.Errorf("a caller's change reached the cache: %+v", second.Parameters)
	}
	c.forget(9)
	c.forget(8)
	if len(c.mu.entries) != 0 || c.mu.bytes != 0 {
		t.Errorf("%d entries of %d bytes are left", len(c.mu.entries), c.mu.bytes)
	}
}

// TestCacheKey: requests share a key only if all that decides an answer is the
// same.
func TestCacheKey(t *testing.T) {
	base := func() *tensor.Request {
		return &tensor.Request{ID: "1", Parameters: tensor.Parameters{"headers": map[string]any{"authorization": "a", "traceparent": "t"}},
			Inputs:  []tensor.Tensor{{Name: "x", Datatype: tensor.Bytes, Shape: []int64{2}, Data: tensor.Values{Bytes: [][]byte{[]byte("ab"), {}}}}},
			Outputs: []tensor.RequestedOutput{{Name: "y"}}}
	}
	same, ok := cacheKeyOf(1, base(), true)
	if !ok {
		t.Fatal("no key")
	}
	for name, change := range map[string]func(*tensor.Request){
		"the id": func(r *tensor.Request) { r.ID = "2" },
		"the trace": func(r *tensor.Request) {
			r.Parameters["headers"] = map[string]any{"authorization": "a", "traceparent": "u"}
		},
	} {
		r := base()
		change(r)
		if key, _ := cacheKeyOf(1, r, true); key != same {
			t.Errorf("%s makes another key", name)
		}
	}
	seen := map[cacheKey]string{same: "the first"}
	for name, change := range map[string]func(*tensor.Request){
		"a header":       func(r *tensor.Request) { r.Parameters["headers"] = map[string]any{"authorization": "b"} },
		"a parameter":    func(r *tensor.Request) { r.Parameters["p"] = 1 },
		"an output":      func(r *tensor.Request) { r.Outputs[0].Name = "z" },
		"a name":         func(r *tensor.Request) { r.Inputs[0].Name = "xx" },
		"null":           func(r *tensor.Request) { r.Inputs[0].Data.Bytes[1] = nil },
		"a cut":          func(r *tensor.Request) { r.Inputs[0].Data.Bytes = [][]byte{[]byte("a"), []byte("b")} },
		"text":           func(r *tensor.Request) { r.Inputs[0].Text = true },
		"a shape":        func(r *tensor.Request) { r.Inputs[0].Shape = []int64{1, 2} },
		"its parameters": func(r *tensor.Request) { r.Inputs[0].Parameters = tensor.Parameters{"content_type": "str"} },
		"a datatype": func(r *tensor.Request) {
			r.Inputs[0].Datatype, r.Inputs[0].Data = tensor.FP16, tensor.Values{Float32: []float32{1, 2}}
		},
		"digits beyond FP16": func(r *tensor.Request) {
			r.Inputs[0].Datatype, r.Inputs[0].Data = tensor.FP16, tensor.Values{Float32: []float32{1.00001, 2}}
		},
		"booleans": func(r *tensor.Request) {
			r.Inputs[0].Datatype, r.Inputs[0].Data = tensor.Bool, tensor.Values{Bool: []bool{true, false}}
		},
	} {
		r := base()
		change(r)
		key, ok := cacheKeyOf(1, r, true)
		if before, twice := seen[key]; twice || !ok {
			t.Errorf("%s has the key of %s (%v)", name, before, ok)
		}
		seen[key] = name
	}
	if other, _ := cacheKeyOf(2, base(), true); other == same {
		t.Error("two instances share a key")
	}
	if _, ok := cacheKeyOf(1, &tensor.Request{Parameters: tensor.Parameters{"f": func() {}}}, true); ok {
		t.Error("what has no JSON form has a key")
	}
}
