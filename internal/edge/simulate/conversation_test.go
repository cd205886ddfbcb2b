package simulate

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/openai"
)

const (
	responsesHello = `{"model":"llama","instructions":"Be brief.","input":"Hello there","max_output_tokens":40}`
	messagesHello  = `{"model":"llama","system":"Be brief.","messages":[{"role":"user","content":"Hello there"}],"max_tokens":40}`
)

// said is what an answer of either API says.
type said struct {
	text, why  string
	usage      openai.Usage
	KVTransfer *kvTransfer `json:"kv_transfer_params"`
}

func readSaid(t *testing.T, path, body string) (s said) {
	t.Helper()
	s = decode[said](t, body)
	switch path {
	case "/v1/responses":
		r := decode[struct {
			Object, Status string
			Output         []struct {
				Type, Role string
				Content    []struct{ Type, Text string }
			}
			Incomplete struct{ Reason string } `json:"incomplete_details"`
		}](t, body)
		if r.Object != "response" || len(r.Output) != 1 || r.Output[0].Type != "message" || len(r.Output[0].Content) != 1 || r.Output[0].Content[0].Type != "output_text" {
			t.Fatalf("got %s", body)
		}
		s.text, s.why = r.Output[0].Content[0].Text, r.Status+r.Incomplete.Reason
	case "/v1/messages":
		m := decode[struct {
			Type, Role string
			Content    []struct{ Type, Text string }
			Reason     string `json:"stop_reason"`
		}](t, body)
		if m.Type != "message" || m.Role != "assistant" || len(m.Content) != 1 || m.Content[0].Type != "text" {
			t.Fatalf("got %s", body)
		}
		s.text, s.why = m.Content[0].Text, m.Reason
	}
	var ok bool
	if s.usage, ok = openai.ReadUsage([]byte(body)); !ok {
		t.Fatalf("no usage in %s", body)
	}
	return s
}

// TestConversations: the Responses and the Messages API answer as chat does, whole and
// in events, and find the KV that the same conversation left by another API.
func TestConversations(t *testing.T) {
	for path, body := range map[string]string{"/v1/responses": responsesHello, "/v1/messages": messagesHello} {
		t.Run(path, func(t *testing.T) {
			_, server := start(t, quick())
			cut := readSaid(t, path, mustPost(t, server.URL+path, body, 200))
			if want := map[string]string{"/v1/responses": "incompletemax_output_tokens", "/v1/messages": "max_tokens"}[path]; cut.why != want || cut.usage.CompletionTokens != 40 || len(cut.text) != 160 {
				t.Errorf("40 tokens end with %q: %+v", cut.why, cut)
			}
			chat := `{"model":"llama","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hello there"}],"max_tokens":1000}`
			same := decode[completion](t, mustPost(t, server.URL+"/v1/chat/completions", chat, 200))
			whole := readSaid(t, path, mustPost(t, server.URL+path, strings.Replace(body, ":40", ":1000", 1), 200))
			if want := map[string]string{"/v1/responses": "completed", "/v1/messages": "end_turn"}[path]; whole.why != want || whole.text != same.Choices[0].Message.Content {
				t.Errorf("ends with %q, and differs from the chat", whole.why)
			}
			if int(whole.usage.PromptTokens) != same.Usage.PromptTokens {
				t.Errorf("%d prompt tokens, of the chat %d", whole.usage.PromptTokens, same.Usage.PromptTokens)
			}
			stream := mustPost(t, server.URL+path, strings.Replace(strings.Replace(body, ":40", ":1000", 1), "{", `{"stream":true,`, 1), 200)
			text, names, usage := readEvents(t, stream)
			if text != whole.text || usage.PromptTokens != whole.usage.PromptTokens || usage.CompletionTokens != whole.usage.CompletionTokens {
				t.Errorf("the events have %d bytes and %+v, the answer %d and %+v", len(text), usage, len(whole.text), whole.usage)
			}
			want := []string{"response.created", "response.in_progress", "response.output_item.added", "response.content_part.added", "response.output_text.delta",
				"response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"}
			if path == "/v1/messages" {
				want = []string{"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"}
			}
			if names = slices.Compact(names); !slices.Equal(names, want) {
				t.Errorf("the events are %q", names)
			}

			long := strings.Replace(body, "Hello there", strings.Repeat("word ", 200), 1)
			mustPost(t, server.URL+"/v1/chat/completions", strings.Replace(chat, "Hello there", strings.Repeat("word ", 200), 1), 200)
			if u := readSaid(t, path, mustPost(t, server.URL+path, long, 200)).usage; u.CachedTokens < 200 || u.PromptTokens < u.CachedTokens {
				t.Errorf("%+v: the KV of the same chat was not found", u)
			}
			raw := strings.Replace(body, `"Hello there"`, `[{"type":"input_image","image_url":"data:,x"}]`, 1)
			if path == "/v1/responses" {
				raw = strings.Replace(body, `"Hello there"`, `[{"role":"user","content":[{"type":"input_image","image_url":"data:,x"}]}]`, 1)
			}
			mustPost(t, server.URL+path, raw, 200)
		})
	}
}

// readEvents reads a stream: its text, the names of its events, and the usage.
func readEvents(t *testing.T, stream string) (text string, names []string, usage openai.Usage) {
	t.Helper()
	read := &openai.StreamReader{}
	_, _ = read.Write([]byte(stream))
	read.Finish()
	usage, ok := read.Usage()
	if !ok {
		t.Errorf("no usage in %s", stream)
	}
	for i, part := range strings.Split(strings.TrimSuffix(stream, "\n\n"), "\n\n") {
		name, data, ok := strings.Cut(strings.TrimPrefix(part, "event: "), "\ndata: ")
		var v struct {
			Type     string
			Sequence *int `json:"sequence_number"`
			Delta    json.RawMessage
		}
		if err := json.Unmarshal([]byte(data), &v); !ok || err != nil || v.Type != name || v.Sequence != nil && *v.Sequence != i {
			t.Fatalf("event %d is %q (%v)", i, part, err)
		}
		names = append(names, name)
		var one string
		var block struct{ Text string }
		switch {
		case name == "response.output_text.delta" && json.Unmarshal(v.Delta, &one) == nil:
			text += one
		case name == "content_block_delta" && json.Unmarshal(v.Delta, &block) == nil:
			text += block.Text
		}
	}
	return text, names, usage
}

// TestConversationsApart: an engine that computes prompts says where the KV is, by these
// APIs too.
func TestConversationsApart(t *testing.T) {
	cfg := quick()
	cfg.Role = RolePrefill
	_, server := start(t, cfg)
	for path, body := range map[string]string{"/v1/responses": responsesHello, "/v1/messages": messagesHello} {
		if s := readSaid(t, path, mustPost(t, server.URL+path, body, 200)); s.KVTransfer == nil || !s.KVTransfer.DoRemotePrefill || s.usage.CompletionTokens != 1 {
			t.Errorf("%s: %+v", path, s)
		}
	}
}

// TestConversationErrors: each API has its form of errors.
func TestConversationErrors(t *testing.T) {
	_, server := start(t, quick())
	for _, c := range []struct {
		path, body string
		status     int
		want       string
	}{
		{"/v1/responses", `{"model":"llama"}`, 400, `"param":"input"`},
		{"/v1/responses", `{"model":"llama","input":"x","max_output_tokens":0}`, 400, `"param":"max_tokens"`},
		{"/v1/responses", `{"model":"none","input":"x"}`, 404, `"code":"model_not_found"`},
		{"/v1/messages", `{"model":"llama","messages":[{"role":"user","content":"x"}]}`, 400, `{"type":"error","error":{"type":"invalid_request_error","message":"\"max_tokens\" is missing"}}`},
		{"/v1/messages", `{"model":"llama","max_tokens":1}`, 400, `{"type":"error",`},
		{"/v1/messages", `{"model":"none","messages":[],"max_tokens":1}`, 404, `{"type":"error","error":{"type":"not_found_error"`},
		{"/v1/messages", `{"model":`, 400, `{"type":"error",`},
	} {
		if got := mustPost(t, server.URL+c.path, c.body, c.status); !strings.Contains(got, c.want) {
			t.Errorf("%s %s: %s", c.path, c.body, got)
		}
	}
}
