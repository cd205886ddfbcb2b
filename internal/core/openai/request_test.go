package openai

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestParse(t *testing.T) {
	body := []byte(` { "stream" : true, "model" : "llama-8b",` + "\n" +
		`"stream_options":{"x":[1],"include_usage":true}, "max_tokens": 7, "max_completion_tokens": 12,` +
		`"messages": [ {"role":"user","content":"a \"model\": \"x\" é"} ], "tools":[{}], "system":"s", "seed": 12345678901234567890 } `)
	req, err := Parse(body)
	if err != nil {
		t.Fatal(err)
	}
	if string(req.Model) != "llama-8b" || string(req.ModelSpan.Of(body)) != `"llama-8b"` {
		t.Errorf("model %q at %q", req.Model, req.ModelSpan.Of(body))
	}
	if !req.Stream || !req.IncludeUsage || req.MaxTokens != 12 {
		t.Errorf("got %+v", req)
	}
	if got := string(req.Span(Messages).Of(body)); got != `[ {"role":"user","content":"a \"model\": \"x\" é"} ]` {
		t.Errorf("messages %q", got)
	}
	var prompt []string
	for _, part := range req.AppendPrompt(nil, body) {
		prompt = append(prompt, string(part))
	}
	if want := []string{`"s"`, "[{}]", string(req.Span(Messages).Of(body))}; !slices.Equal(prompt, want) {
		t.Errorf("prompt %q, want %q", prompt, want)
	}
}

// TestPromptMembers names the members of each API's prompt, in the order they
// are rendered, whatever their order in the body.
func TestPromptMembers(t *testing.T) {
	for _, c := range []struct {
		api, body string
		want      []string
		max       int64
	}{
		{"chat", `{"messages":[1],"tools":[2],"model":"m","max_completion_tokens":3,"cache_salt":"x"}`, []string{`"x"`, "[2]", "[1]"}, 3},
		{"completions", `{"model":"m","prompt":"a","max_tokens":4}`, []string{`"a"`}, 4},
		{"completions of several", `{"model":"m","prompt":["a","b"]}`, []string{`["a","b"]`}, 0},
		{"completions of token ids", `{"model":"m","prompt":[[1,2],[3]]}`, []string{"[[1,2],[3]]"}, 0},
		{"responses", `{"model":"m","input":"i","instructions":"s","max_output_tokens":5,"tools":[]}`, []string{`"s"`, "[]", `"i"`}, 5},
		{"embeddings", `{"model":"m","input":[1,2]}`, []string{"[1,2]"}, 0},
		{"Anthropic", `{"model":"m","max_tokens":6,"messages":[],"system":[{"text":"s"}]}`, []string{`[{"text":"s"}]`, "[]"}, 6},
		{"Cohere v1", `{"model":"m","message":"u","chat_history":[0],"preamble":"p"}`, []string{`"p"`, "[0]", `"u"`}, 0},
		{"Cohere embed", `{"model":"m","texts":["t"],"input_type":"x"}`, []string{`["t"]`}, 0},
		{"rerank", `{"model":"m","documents":["d"],"query":"q"}`, []string{`"q"`, `["d"]`}, 0},
	} {
		req, err := Parse([]byte(c.body))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, part := range req.AppendPrompt(nil, []byte(c.body)) {
			got = append(got, string(part))
		}
		if !slices.Equal(got, c.want) || req.MaxTokens != c.max {
			t.Errorf("%s: prompt %q, max %d", c.api, got, req.MaxTokens)
		}
	}
}

func TestParseValues(t *testing.T) {
	cases := []struct {
		body   string
		model  string
		stream bool
		max    int64
	}{
		{`{"model":"a"}`, "a", false, 0},
		{`{"model":""}`, "", false, 0},
		{`{"model":"a\/\u00e9\n\ud83d\ude00"}`, "a/é\n😀", false, 0},
		{`{"mod\u0065l":"a"}`, "a", false, 0},
		{`{"x":{"model":"inner"},"model":"a"}`, "a", false, 0},
		{`{"model":"a","stream":"true"}`, "a", false, 0},
		{`{"model":"a","stream":true,"stream":false}`, "a", false, 0},
		{`{"model":"a","max_tokens":1.5}`, "a", false, 0},
		{`{"model":"a","max_tokens":-1}`, "a", false, 0},
		{`{"model":"a","max_tokens":99999999999999999999}`, "a", false, 0},
		{`{"model":"a","max_tokens":100,"max_completion_tokens":null}`, "a", false, 100},
	}
	for _, c := range cases {
		req, err := Parse([]byte(c.body))
		if err != nil {
			t.Errorf("%s: %v", c.body, err)
			continue
		}
		if string(req.Model) != c.model || req.Stream != c.stream || req.MaxTokens != c.max {
			t.Errorf("%s: %+v", c.body, req)
		}
	}
}

func TestParseErrors(t *testing.T) {
	cases := []struct {
		body   string
		cause  error
		offset int
	}{
		{``, ErrSyntax, 0},
		{`  `, ErrSyntax, 2},
		{`[]`, ErrNotObject, 0},
		{`"model"`, ErrNotObject, 0},
		{`{}`, ErrMissingModel, 0},
		{`{"x":{"model":"a"}}`, ErrMissingModel, 0},
		{`{"model":null}`, ErrModelType, 9},
		{`{"model": 12}`, ErrModelType, 10},
		{`{"model":"a","model":"a"}`, ErrDuplicateModel, 13},
		{`{"model":"a","mode\u006c":"b"}`, ErrDuplicateModel, 13},
		{`{"model":"a","Model":"b"}`, ErrModelCase, 13},
		{`{"MODEL":"a","model":"a"}`, ErrModelCase, 1},
		{`{"model":"a","m\u004fdel":"b"}`, ErrModelCase, 13},
		{"{\"model\":\"a\xff\"}", ErrModelEncoding, 9},
		{`{"model":"a"} {}`, ErrTrailingData, 14},
		{`{"model":"a"`, ErrSyntax, 12},
		{`{"model":"a",}`, ErrSyntax, 13},
		{`{"model":"a" "b":1}`, ErrSyntax, 13},
		{`{"model":"a`, ErrSyntax, 11},
		{"{\"model\":\"a\n\"}", ErrSyntax, 11},
		{`{"model":"a\x"}`, ErrSyntax, 12},
		{`{"model":"a\u12g4"}`, ErrSyntax, 15},
		{`{"model":"a\`, ErrSyntax, 12},
		{`{"model":"a","n":01}`, ErrSyntax, 18},
		{`{"model":"a","n":1.}`, ErrSyntax, 19},
		{`{"model":"a","n":tru}`, ErrSyntax, 20},
		{`{"model":"a","n":[1,]}`, ErrSyntax, 20},
		{"{\"model\":\"a\"}\x00", ErrTrailingData, 13},
		{`{"model":"a","n":` + strings.Repeat("[", MaxDepth), ErrDepth, 17 + MaxDepth - 1},
	}
	for _, c := range cases {
		_, err := Parse([]byte(c.body))
		var be *BodyError
		if !errors.As(err, &be) || !errors.Is(err, c.cause) || be.Offset != c.offset {
			t.Errorf("%.40q: got %v, want %v at %d", c.body, err, c.cause, c.offset)
			continue
		}
		if !json.Valid(be.JSON()) {
			t.Errorf("%.40q: error body %s", c.body, be.JSON())
		}
	}
}

// renamed is body with another model, as a proxy sends it.
func renamed(body []byte, name string) ([]byte, error) {
	req, err := Parse(body)
	if err != nil {
		return nil, err
	}
	return append(req.RenamedHead(body, name), body[req.ModelSpan.End:]...), nil
}

func TestRenamedHeadKeepsEveryOtherByte(t *testing.T) {
	head := " {\n \"seed\" : 12345678901234567890, \"z\":\"<&>\\u00e9\", \"model\"  :\t"
	tail := ` , "a" : 1.0e+2, "messages":[]}` + "\n"
	for _, name := range []string{"b", "", `quo"te\`, "tab\tnew\nx\x01", "ü😀"} {
		body := []byte(head + `"old"` + tail)
		got, err := renamed(body, name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(got, []byte(head)) || !bytes.HasSuffix(got, []byte(tail)) {
			t.Errorf("%q: %s", name, got)
		}
		req, err := Parse(got)
		if err != nil || string(req.Model) != name {
			t.Errorf("%q: read back %q, %v", name, req.Model, err)
		}
	}
	if _, err := renamed([]byte(`{}`), "x"); !errors.Is(err, ErrMissingModel) {
		t.Errorf("got %v", err)
	}
}

func TestErrorJSON(t *testing.T) {
	got := string(ErrorJSON("no \"x\"\n", TypeNotFound, "", "model_not_found"))
	want := `{"error":{"message":"no \"x\"\n","type":"not_found_error","param":null,"code":"model_not_found"}}` + "\n"
	if got != want {
		t.Errorf("got %s", got)
	}
}

// naive is Parse by encoding/json's tokens: the outermost members, in order.
func naive(body []byte) (model string, models int, isString, isObject bool) {
	d := json.NewDecoder(bytes.NewReader(body))
	if tok, err := d.Token(); err != nil || tok != json.Delim('{') {
		return "", 0, false, false
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return "", 0, false, false
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return "", 0, false, false
		}
		if name, _ := key.(string); !strings.EqualFold(name, "model") {
			continue
		} else if name != "model" {
			models++ // refused, too
		}
		models++
		isString = raw[0] == '"' && json.Unmarshal(raw, &model) == nil && utf8.Valid(raw)
	}
	return model, models, isString, true
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{"model":"a","messages":[{"role":"user","content":"hi"}],"stream":true}`,
		`{"model":"a\u00e9\ud83d","x":[1,-0.5e+3,true,false,null,{}],"model":1}`,
		` { "mod\u0065l" : "long string that passes the eight byte window\n\t" } `,
		`{"model":"a"}x`, `[]`, `{"a":"\`, "{\"model\":\"\xff\"}", `{"stream_options":{"include_usage":true}}`,
		`{"a":12345678901234567890123,"max_tokens":5,"model":"é"}`, `{"model" "a"}`, `{"a":-}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := Parse(body)
		if errors.Is(err, ErrDepth) {
			return
		}
		model, models, isString, isObject := naive(body)
		want := json.Valid(body) && isObject && models == 1 && isString
		if (err == nil) != want {
			t.Fatalf("%q: err %v, want accepted %v", body, err, want)
		}
		if err != nil {
			var be *BodyError
			if !errors.As(err, &be) || be.Offset < 0 || be.Offset > len(body) {
				t.Fatalf("%q: %v", body, err)
			}
			return
		}
		if string(req.Model) != model {
			t.Fatalf("%q: model %q, want %q", body, req.Model, model)
		}
		checkSpans(t, body, req)
		got, err := renamed(body, "other\"name")
		if err != nil || !json.Valid(got) {
			t.Fatalf("%q: renamed %q, %v", body, got, err)
		}
		back, err := renamed(got, model)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(back)
		if err != nil || string(again.Model) != model || again.Stream != req.Stream || again.MaxTokens != req.MaxTokens {
			t.Fatalf("%q: read back %+v, %v", body, again, err)
		}
	})
}

func checkSpans(t *testing.T, body []byte, req Request) {
	t.Helper()
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		t.Fatal(err)
	}
	for m := range memberCount {
		if span, want := req.Span(m), members[m.String()]; string(span.Of(body)) != string(want) {
			t.Fatalf("%q: %s is %q, want %q", body, m, span.Of(body), want)
		}
	}
	if want := members["model"]; string(req.ModelSpan.Of(body)) != string(want) {
		t.Fatalf("%q: model is %q, want %q", body, req.ModelSpan.Of(body), want)
	}
}

// chatBody is a chat request of about size bytes, with an escaped line end every
// sixty characters, as prose has.
func chatBody(size int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"messages":[`)
	for b.Len() < size {
		b.WriteString(`{"role":"user","content":"`)
		for range 60 {
			b.WriteString(`The quick brown fox jumps over the lazy dog, again and a\n`)
		}
		b.WriteString(`"},`)
	}
	b.WriteString(`{"role":"user","content":"x"}],"model":"llama-8b","stream":true}`)
	return b.Bytes()
}

func TestParseAllocatesNothing(t *testing.T) {
	body := chatBody(32 << 10)
	if n := testing.AllocsPerRun(20, func() {
		if _, err := Parse(body); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkParse(b *testing.B) {
	body := chatBody(512 << 10)
	b.Run("scan", func(b *testing.B) {
		b.SetBytes(int64(len(body)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Parse(body); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("encoding-json", func(b *testing.B) {
		b.SetBytes(int64(len(body)))
		b.ReportAllocs()
		for b.Loop() {
			var v struct {
				Model    string          `json:"model"`
				Messages json.RawMessage `json:"messages"`
			}
			if err := json.Unmarshal(body, &v); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// TestSpecial: the lowest byte that ends a run is found, whatever lies beside it.
func TestSpecial(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	near := []byte{0, 1, 0x1f, 0x20, 0x21, '"', 0x23, '[', '\\', ']', 0x7f, 0x80, 0xa2, 0xdc, 0xff}
	for range 200_000 {
		var b [8]byte
		for i := range b {
			if b[i] = byte(random.Uint32()); random.IntN(2) == 0 {
				b[i] = near[random.IntN(len(near))]
			}
		}
		want := slices.IndexFunc(b[:], func(c byte) bool { return c < 0x20 || c == '"' || c == '\\' })
		got := bits.TrailingZeros64(special(binary.LittleEndian.Uint64(b[:]))) >> 3
		if want < 0 {
			want = 8
		}
		if got != want {
			t.Fatalf("%x: found at %d, want %d", b, got, want)
		}
	}
}
