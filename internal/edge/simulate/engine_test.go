package simulate

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse.dev/roundhouse/internal/core/openai"
)

// quick is a configuration whose simulated seconds pass in milliseconds.
func quick() Config {
	cfg := DefaultConfig()
	cfg.Models = []string{"llama", "alias"}
	cfg.Speed = 1000
	cfg.Exit = func(int) {}
	return cfg
}

func start(t *testing.T, cfg Config) (*Engine, *httptest.Server) {
	t.Helper()
	e, err := New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(e.Handler())
	t.Cleanup(server.Close)
	return e, server
}

// post returns the status and the whole body; err is of the connection.
func post(url, body string) (int, string, error) {
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

func mustPost(t *testing.T, url, body string, want int) string {
	t.Helper()
	status, answer, err := post(url, body)
	if err != nil || status != want {
		t.Fatalf("%s %s: %d %v, want %d\n%s", url, body, status, err, want, answer)
	}
	return answer
}

func get(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %v %s", url, resp.StatusCode, err, b)
	}
	return string(b)
}

type completion struct {
	Object  string
	Model   string
	Choices []struct {
		Index        int
		Message      struct{ Role, Content string }
		Text         string
		FinishReason string `json:"finish_reason"`
	}
	Usage      usage
	KVTransfer *kvTransfer `json:"kv_transfer_params"`
}

func decode[T any](t *testing.T, body string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return v
}

const chatHello = `{"model":"llama","messages":[{"role":"user","content":"Hello there"}],"unknown":{"x":1},"seed":12345678901234567890}`

func TestChat(t *testing.T) {
	_, server := start(t, quick())
	first := mustPost(t, server.URL+"/v1/chat/completions", chatHello, 200)
	c := decode[completion](t, first)
	if c.Object != "chat.completion" || c.Model != "llama" || len(c.Choices) != 1 {
		t.Fatalf("got %s", first)
	}
	text := c.Choices[0].Message.Content
	if !strings.HasPrefix(text, "This is the Roundhouse engine simulator") || c.Choices[0].FinishReason != "stop" {
		t.Errorf("got %s", first)
	}
	if c.Usage.CompletionTokens != tokensIn(len(text)) || c.Usage.TotalTokens != c.Usage.PromptTokens+c.Usage.CompletionTokens {
		t.Errorf("usage %+v of %d bytes", c.Usage, len(text))
	}
	again := decode[completion](t, mustPost(t, server.URL+"/v1/chat/completions", chatHello, 200))
	if again.Choices[0].Message.Content != text {
		t.Error("the same request gave another answer")
	}
}

// TestStream checks that the events add up to the whole answer, in order.
func TestStream(t *testing.T) {
	_, server := start(t, quick())
	whole := decode[completion](t, mustPost(t, server.URL+"/v1/chat/completions", chatHello, 200))
	stream := mustPost(t, server.URL+"/v1/chat/completions",
		strings.Replace(chatHello, "{", `{"stream":true,"stream_options":{"include_usage":true},`, 1), 200)
	var text strings.Builder
	var events []string
	for line := range strings.Lines(stream) {
		data, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		events = append(events, data)
		v := decode[struct {
			Object  string
			Choices []struct {
				Delta struct{ Role, Content string }
			}
		}](t, data)
		if v.Object != "chat.completion.chunk" {
			t.Errorf("event %s", data)
		}
		for _, c := range v.Choices {
			text.WriteString(c.Delta.Content)
		}
	}
	if text.String() != whole.Choices[0].Message.Content {
		t.Errorf("streamed %q", text.String())
	}
	if n := len(events); n != whole.Usage.CompletionTokens+3 || // role, tokens, finish, usage
		!strings.Contains(events[0], `"role":"assistant"`) || !strings.Contains(events[n-2], `"finish_reason":"stop"`) {
		t.Errorf("%d events of %d tokens: %s … %s", n, whole.Usage.CompletionTokens, events[0], events[n-2])
	}
	var r openai.StreamReader
	_, _ = r.Write([]byte(stream))
	u, ok := r.Usage()
	if !ok || !r.Done() || u.TotalTokens != int64(whole.Usage.TotalTokens) {
		t.Errorf("usage %+v, done %v", u, r.Done())
	}
}

func TestTextCompletions(t *testing.T) {
	_, server := start(t, quick())
	url := server.URL + "/v1/completions"
	cases := []struct {
		request string
		choices int
		prompt  int
	}{
		{`{"model":"alias","prompt":"twelve bytes","max_tokens":5}`, 1, 3},
		{`{"model":"llama","prompt":["four","eight by"],"max_tokens":5}`, 2, 3},
		{`{"model":"llama","prompt":[1,2,3],"max_tokens":5}`, 1, 3},
		{`{"model":"llama","prompt":[[1,2],[3]],"max_tokens":5,"n":2}`, 4, 3},
	}
	for _, c := range cases {
		got := decode[completion](t, mustPost(t, url, c.request, 200))
		if len(got.Choices) != c.choices || got.Usage.PromptTokens != c.prompt || got.Usage.CompletionTokens != 5*c.choices {
			t.Errorf("%s: %+v", c.request, got)
		}
		for i, choice := range got.Choices {
			if choice.Index != i || len(choice.Text) != 5*TokenBytes || choice.FinishReason != "length" {
				t.Errorf("%s: %+v", c.request, choice)
			}
		}
	}
	stopped := decode[completion](t, mustPost(t, url, `{"model":"llama","prompt":"x","stop":[" engine"]}`, 200))
	if c := stopped.Choices[0]; c.Text != "This is the Roundhouse" || c.FinishReason != "stop" {
		t.Errorf("stopped: %+v", c)
	}
}

func TestEmbeddings(t *testing.T) {
	_, server := start(t, quick())
	type answer struct {
		Data []struct{ Embedding []float64 }
	}
	got := decode[answer](t, mustPost(t, server.URL+"/v1/embeddings",
		`{"model":"llama","input":["the cat sat","the cat ran","stock prices fell"],"dimensions":32}`, 200))
	dot := func(a, b int) (sum float64) {
		for i := range got.Data[a].Embedding {
			sum += got.Data[a].Embedding[i] * got.Data[b].Embedding[i]
		}
		return sum
	}
	if len(got.Data) != 3 || len(got.Data[0].Embedding) != 32 || dot(0, 0) < 0.999 || dot(0, 0) > 1.001 {
		t.Fatalf("got %+v", got)
	}
	if dot(0, 1) <= dot(0, 2) {
		t.Errorf("shared words: %v, none: %v", dot(0, 1), dot(0, 2))
	}
	mustPost(t, server.URL+"/v1/embeddings", `{"model":"llama","input":"x","encoding_format":"base64"}`, 200)
}

// TestEveryAnswerIsMarked: also a short one, an embedding, a stream and an error.
func TestEveryAnswerIsMarked(t *testing.T) {
	_, server := start(t, quick())
	for _, c := range []struct{ method, path, body string }{
		{"POST", "/v1/chat/completions", `{"model":"llama","max_tokens":1,"messages":[]}`},
		{"POST", "/v1/chat/completions", `{"model":"llama","stream":true,"max_tokens":1,"messages":[]}`},
		{"POST", "/v1/completions", `{"model":"llama","max_tokens":1,"prompt":"x"}`}, {"POST", "/v1/embeddings", `{"model":"llama","input":"x"}`},
		{"POST", "/v1/completions", `{"model":"other","prompt":"x"}`}, {"POST", "/v1/completions", `{`}, {"GET", "/nothing", ""}, {"PUT", "/v1/models", ""},
		{"GET", "/v1/models", ""}, {"GET", "/health", ""}, {"GET", "/metrics", ""}, {"GET", "/version", ""}, {"GET", "/simulate/state", ""},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, server.URL+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if got := resp.Header.Values("X-Roundhouse-Simulated"); len(got) != 1 || got[0] != "true" {
			t.Errorf("%s %s %s: %d with X-Roundhouse-Simulated %q", c.method, c.path, c.body, resp.StatusCode, got)
		}
	}
}

func TestBadRequests(t *testing.T) {
	cfg := quick()
	cfg.MaxBodyBytes, cfg.Physics.KVBlocks = 4096, 64
	_, server := start(t, cfg)
	cases := []struct {
		path, body string
		status     int
		contains   string
	}{
		{"/v1/completions", `{"prompt":"x"}`, 400, `"param":"model"`},
		{"/v1/completions", `{"model":"llama","model":"llama"}`, 400, "twice"},
		{"/v1/completions", `{"model":"llama"`, 400, "byte 16"},
		{"/v1/completions", `{"model":"gpt","prompt":"x"}`, 404, "model_not_found"},
		{"/v1/completions", `{"model":"llama"}`, 400, `"param":"prompt"`},
		{"/v1/completions", `{"model":"llama","prompt":[]}`, 400, "empty"},
		{"/v1/completions", `{"model":"llama","prompt":{"a":1}}`, 400, `"param":"prompt"`},
		{"/v1/completions", `{"model":"llama","prompt":"x","max_tokens":0}`, 400, "max_tokens"},
		{"/v1/completions", `{"model":"llama","prompt":"x","max_tokens":"ten"}`, 400, `"param":"max_tokens"`},
		{"/v1/completions", `{"model":"llama","prompt":"x","max_tokens":1024}`, 400, "context_length_exceeded"},
		{"/v1/completions", `{"model":"llama","prompt":"x","n":1000}`, 400, `"param":"n"`},
		{"/v1/completions", `{"model":"llama","prompt":"` + strings.Repeat("x", 5000) + `"}`, 413, "4096"},
		{"/v1/chat/completions", `{"model":"llama","messages":[]}`, 400, `"param":"messages"`},
		{"/v1/chat/completions", `{"model":"llama","messages":[{"content":"x"}]}`, 400, "role"},
		{"/v1/embeddings", `{"model":"llama","input":"x","dimensions":0}`, 400, "dimensions"},
		{"/v1/embeddings", `{"model":"llama","input":"x","encoding_format":"hex"}`, 400, "encoding_format"},
		{"/v1/nothing", `{}`, 404, "not_found"},
		{"/simulate/fail", `{"mode":"melt"}`, 400, "mode"},
		{"/v1/load_lora_adapter", `{"lora_name":"a","lora_path":"/a"}`, 400, "--max-loras"},
	}
	for _, c := range cases {
		got := mustPost(t, server.URL+c.path, c.body, c.status)
		if !strings.Contains(got, c.contains) || !strings.HasPrefix(got, `{"error":{"message":`) {
			t.Errorf("%s %.80s: %s", c.path, c.body, got)
		}
	}
}

func TestAdapters(t *testing.T) {
	cfg := quick()
	cfg.Physics.MaxAdapters, cfg.Adapters = 2, []string{"sql"}
	e, server := start(t, cfg)
	ask := `{"model":"chat","prompt":"x","max_tokens":2}`
	mustPost(t, server.URL+"/v1/completions", ask, 404)
	mustPost(t, server.URL+"/v1/load_lora_adapter", `{"lora_name":"chat","lora_path":"/adapters/chat"}`, 200)
	mustPost(t, server.URL+"/v1/load_lora_adapter", `{"lora_name":"chat","lora_path":"/adapters/chat"}`, 400)
	mustPost(t, server.URL+"/v1/completions", ask, 200)
	models := get(t, server.URL+"/v1/models")
	for _, name := range []string{`"llama"`, `"alias"`, `"sql"`, `"chat"`, `"parent":"llama"`} {
		if !strings.Contains(models, name) {
			t.Errorf("no %s in %s", name, models)
		}
	}
	if st := e.metrics.stats(); st.totals.AdapterLoads != 1 {
		t.Errorf("%d loads", st.totals.AdapterLoads)
	}
	mustPost(t, server.URL+"/v1/unload_lora_adapter", `{"lora_name":"chat"}`, 200)
	mustPost(t, server.URL+"/v1/unload_lora_adapter", `{"lora_name":"chat"}`, 404)
	mustPost(t, server.URL+"/v1/completions", ask, 404)
}

// TestAdaptersOfSGLang: an adapter is asked for beside its model's name; its own
// name alone, as any other, is answered by the base model.
func TestAdaptersOfSGLang(t *testing.T) {
	cfg := quick()
	cfg.API, cfg.Physics.MaxAdapters, cfg.Adapters = APISGLang, 2, []string{"sql"}
	_, server := start(t, cfg)
	for model, adapter := range map[string]bool{"llama": false, "sql": false, "llama:sql": true, "anything:sql": true, "unheard-of": false} {
		got := mustPost(t, server.URL+"/v1/completions", `{"model":"`+model+`","prompt":"x","max_tokens":64}`, 200)
		if strings.Contains(got, `with the adapter \"sql\"`) != adapter {
			t.Errorf("%s: %s", model, got)
		}
	}
	mustPost(t, server.URL+"/v1/completions", `{"model":"llama:chat","prompt":"x"}`, 400)
	figures := get(t, server.URL+"/metrics")
	for _, want := range []string{"sglang:num_queue_reqs{", "sglang:num_running_reqs{", "sglang:token_usage{", "sglang:num_pages{", "sglang:page_size{", "sglang:lora_pool_slots_total{"} {
		if !strings.Contains(figures, want) {
			t.Errorf("no %s in %s", want, figures)
		}
	}
}

// TestDisconnectFreesTheSlot leaves in the middle of a stream that would take
// hours, and then needs the only slot.
func TestDisconnectFreesTheSlot(t *testing.T) {
	cfg := quick()
	cfg.Speed, cfg.Physics.MaxSequences, cfg.Physics.DecodeTokensPerSecond = 1, 1, 1000
	_, server := start(t, cfg)
	ctx, cancel := context.WithCancel(context.Background())
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/v1/completions",
		strings.NewReader(`{"model":"llama","prompt":"x","stream":true,"max_tokens":100000,"ignore_eos":true}`))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: ") {
		t.Fatalf("%q %v", line, err)
	}
	cancel()
	_ = resp.Body.Close()
	mustPost(t, server.URL+"/v1/completions", `{"model":"llama","prompt":"y","max_tokens":2}`, 200)
	if m := get(t, server.URL+"/metrics"); !strings.Contains(m, `finished_reason="abort",model_name="llama"} 1`) {
		t.Errorf("no abort in\n%s", m)
	}
}

func TestQueueBound(t *testing.T) {
	cfg := quick()
	cfg.Speed, cfg.Physics.PrefillTokensPerSecond, cfg.Physics.MaxWaiting = 1, 1, 2
	_, server := start(t, cfg)
	// One job of five prompts cannot be queued whole while the first runs.
	got := mustPost(t, server.URL+"/v1/completions", `{"model":"llama","prompt":["a","b","c","d","e"],"max_tokens":2}`, 429)
	if !strings.Contains(got, "queue_full") {
		t.Errorf("got %s", got)
	}
	if state := get(t, server.URL+"/simulate/state"); !strings.Contains(state, `"running":0,`) || !strings.Contains(state, `"waiting":0,`) {
		t.Errorf("left behind: %s", state)
	}
}

func TestPrefillHandsOverToDecode(t *testing.T) {
	prefill, decoder := quick(), quick()
	prefill.Role, decoder.Role = RolePrefill, RoleDecode
	_, p := start(t, prefill)
	d, ds := start(t, decoder)
	prompt := strings.Repeat("a long prompt ", 200)
	first := decode[completion](t, mustPost(t, p.URL+"/v1/completions",
		fmt.Sprintf(`{"model":"llama","prompt":%q,"max_tokens":50,"kv_transfer_params":{"do_remote_decode":true}}`, prompt), 200))
	if first.Usage.CompletionTokens != 1 || first.KVTransfer == nil || !first.KVTransfer.DoRemotePrefill || first.KVTransfer.RemoteHost == nil {
		t.Fatalf("got %+v", first)
	}
	kv, err := json.Marshal(first.KVTransfer)
	if err != nil {
		t.Fatal(err)
	}
	second := decode[completion](t, mustPost(t, ds.URL+"/v1/completions",
		fmt.Sprintf(`{"model":"llama","prompt":%q,"max_tokens":50,"kv_transfer_params":%s}`, prompt, kv), 200))
	if second.Usage.CompletionTokens != 50 || second.KVTransfer != nil {
		t.Errorf("got %+v", second)
	}
	if st := d.metrics.stats(); st.totals.PromptTokens != uint64(tokensIn(len(prompt))) {
		t.Errorf("totals %+v", st.totals)
	}
}

// TestTimesOverHTTP runs the handler in a bubble with a clock of its own: the
// time to the first token and the whole time are the physics', to the token.
func TestTimesOverHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := quick()
		cfg.Speed, cfg.Physics = 2, smallPhysics()
		e, err := New(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		ask := func(prompt string) time.Duration {
			w := httptest.NewRecorder()
			began := time.Now()
			body := fmt.Sprintf(`{"model":"llama","prompt":%q,"max_tokens":11,"ignore_eos":true}`, prompt)
			e.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(body)))
			if w.Code != 200 {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
			return time.Since(began)
		}
		prompt := strings.Repeat("0123456789abcdef", 100) // 400 tokens, 25 blocks
		near(t, "cold", ask(prompt), (400+100)*time.Millisecond/2)
		near(t, "warm", ask(prompt), (16+100)*time.Millisecond/2)
		near(t, "other", ask("x"+prompt[1:]), (400+100)*time.Millisecond/2)
	})
}

func TestManyAtOnce(t *testing.T) {
	cfg := quick()
	cfg.Physics.MaxSequences, cfg.Physics.KVBlocks = 4, 64
	e, server := start(t, cfg)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			body := fmt.Sprintf(`{"model":"llama","stream":%v,"prompt":"prompt %d","max_tokens":%d,"ignore_eos":true}`, i%2 == 0, i, 20+i)
			if status, answer, err := post(server.URL+"/v1/completions", body); err != nil || status != 200 {
				t.Errorf("%d %v %s", status, err, answer)
			}
		})
	}
	wg.Wait()
	e.driver.mu.Lock()
	defer e.driver.mu.Unlock()
	st := e.driver.scheduler.Stats()
	if st.MostRunning > 4 || st.MostBlocksUsed > 64 || st.Running+st.Waiting+st.BlocksUsed != 0 || len(e.driver.calls) != 0 {
		t.Errorf("stats %+v, %d calls", st, len(e.driver.calls))
	}
	if st.Totals.OutputTokens != 40*20+39*40/2 {
		t.Errorf("%d tokens", st.Totals.OutputTokens)
	}
}

// TestShutdown stops the server in the middle of a request, which finishes.
func TestShutdown(t *testing.T) {
	cfg := quick()
	cfg.Speed = 1
	e, err := New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- e.Serve(ctx, listener) }()
	url := "http://" + listener.Addr().String()
	resp, err := http.Post(url+"/v1/completions", "application/json",
		strings.NewReader(`{"model":"llama","prompt":"x","stream":true,"max_tokens":10,"ignore_eos":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	cancel()
	body, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.HasSuffix(body, []byte("data: [DONE]\n\n")) {
		t.Errorf("%v %s", err, body)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	if _, _, err := post(url+"/v1/completions", "{}"); err == nil {
		t.Error("still listening")
	}
}

func TestConfigReportsEverything(t *testing.T) {
	cfg := DefaultConfig()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	cfg.Models, cfg.Adapters, cfg.Role, cfg.Speed = []string{"a", "a"}, []string{"b"}, "judge", 0
	cfg.Physics.KVBlocks, cfg.Physics.MaxBatchedTokens, cfg.Physics.BatchSlowdown = 0, 1, -1
	_, err := New(cfg, nil)
	for _, word := range []string{`"a" is given twice`, "max-loras", "judge", "speed", "kv-blocks", "max-num-batched-tokens", "batch-slowdown"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("no %q in %v", word, err)
		}
	}
}

func TestBlockKeysChain(t *testing.T) {
	text := strings.Repeat("0123456789", 40)
	whole := BlockKeys("m", text)
	if len(whole) != len(text)/BlockBytes {
		t.Fatalf("%d keys", len(whole))
	}
	for cut := range len(text) {
		if got := BlockKeys("m", text[:cut], text[cut:]); fmt.Sprint(got) != fmt.Sprint(whole) {
			t.Fatalf("cut at %d gives other keys", cut)
		}
	}
	other := BlockKeys("m", "x"+text[1:])
	adapter := BlockKeys("n", text)
	for i := range whole {
		if whole[i] == other[i] || whole[i] == adapter[i] {
			t.Errorf("block %d is shared", i)
		}
	}
}

func TestConversationIsAPrefixOfItsNextTurn(t *testing.T) {
	_, server := start(t, quick())
	url := server.URL + "/v1/chat/completions"
	first := decode[completion](t, mustPost(t, url, `{"model":"llama","messages":[{"role":"user","content":"Hi"}]}`, 200))
	said, err := json.Marshal(first.Choices[0].Message.Content)
	if err != nil {
		t.Fatal(err)
	}
	next := decode[completion](t, mustPost(t, url,
		fmt.Sprintf(`{"model":"llama","messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]},{"role":"assistant","content":%s},{"role":"user","content":"And?"}]}`, said), 200))
	computed := first.Usage.TotalTokens - 1 // the last token's KV was never needed
	if got := next.Usage.Details.CachedTokens; got < computed-BlockTokens || got == 0 {
		t.Errorf("%d of %d tokens cached", got, computed)
	}
}
