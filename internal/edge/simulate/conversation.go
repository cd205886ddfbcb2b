package simulate

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/openai"
)

// The Responses API and Anthropic's Messages API: one answer to a conversation, which
// engines render as the chat that it is.
var (
	responsesSurface = surface{
		idPrefix: "resp_", writeError: writeError,
		prompts: func(in *inference) ([]string, error) {
			in.params.MaxTokens, in.params.MaxCompletionTokens = in.params.MaxOutputTokens, nil
			if len(in.params.Input) == 0 || string(in.params.Input) == "null" {
				return nil, invalid("input", `"input" is missing`)
			}
			return in.conversation("/v1/responses")
		},
		form: func(o *response) form { return &responseEvents{response: o} },
	}
	messagesSurface = surface{
		idPrefix: "msg_", writeError: writeAnthropicError,
		prompts: func(in *inference) ([]string, error) {
			p := &in.params
			if p.MaxTokens == nil {
				return nil, invalid("max_tokens", `"max_tokens" is missing`)
			}
			if p.MaxCompletionTokens, p.Stop = nil, p.StopSequences; len(p.Messages) == 0 {
				return nil, invalid("messages", `"messages" is missing or empty`)
			}
			return in.conversation("/v1/messages")
		},
		form: func(o *response) form { return messageEvents{o} },
	}
)

// conversation renders the prompt of a call of one of these APIs. It is the text that
// its chat has, so that either finds the KV of the other; of a conversation that is not
// text alone, it is the JSON.
func (in *inference) conversation(path string) ([]string, error) {
	in.params.N = nil // they have one choice
	if chat, ok := openai.AsChat(path, in.body); ok {
		p := parameters{}
		if err := json.Unmarshal(chat, &p); err != nil {
			return nil, err
		}
		return p.chatPrompt()
	}
	head, err := openai.Parse(in.body)
	if err != nil {
		return nil, err
	}
	return []string{string(bytes.Join(head.AppendPrompt(nil, in.body), []byte("\n")))}, nil
}

// writeAnthropicError answers with err in Anthropic's form.
func writeAnthropicError(w http.ResponseWriter, err error) {
	writeRefusal(w, err, func(r *refusal) []byte {
		kind := r.typ
		if kind == openai.TypeServer {
			kind = "api_error"
		}
		b := openai.AppendQuoted([]byte(`{"type":"error","error":{"type":`), kind)
		return append(openai.AppendQuoted(append(b, `,"message":`...), r.message), "}}\n"...)
	})
}

// event appends an event with its data, of which fields are the first.
func event(b []byte, name string, fields func([]byte) []byte) []byte {
	b = append(append(append(b, "event: "...), name...), "\ndata: "...)
	b = openai.AppendQuoted(append(b, `{"type":`...), name)
	return append(fields(b), "}\n\n"...)
}

// member appends a member of an object that has others.
func member(b []byte, key string, value any) []byte {
	b = append(openai.AppendQuoted(append(b, ','), key), ':')
	raw, err := json.Marshal(value)
	if err != nil { // of values that always have a JSON
		raw = []byte("null")
	}
	return append(b, raw...)
}

// responseEvents is the form of the Responses API.
type responseEvents struct {
	*response
	events int // that were sent
}

// responseUsage is the usage in the words of the Responses API.
type responseUsage struct {
	Input   int `json:"input_tokens"`
	Details struct {
		Cached int `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	Output        int `json:"output_tokens"`
	OutputDetails struct {
		Reasoning int `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	Total int `json:"total_tokens"`
}

type object map[string]any

// itemID names the one message of the answer.
func (o *responseEvents) itemID() string { return "msg_" + strings.TrimPrefix(o.id, "resp_") }

func outputText(text string) object {
	return object{"type": "output_text", "text": text, "annotations": []any{}}
}

func (o *responseEvents) item(status string, content ...object) object {
	return object{"type": "message", "id": o.itemID(), "role": "assistant", "status": status, "content": append([]object{}, content...)}
}

// status is what the response has come to.
func (o *responseEvents) status() string {
	if o.job.calls[0].answer.reason == "length" {
		return "incomplete"
	}
	return "completed"
}

// object is the response: while it is under way, or with what it came to.
func (o *responseEvents) object(now *standing) object {
	out := object{"id": o.id, "object": "response", "created_at": o.created, "model": o.in.model, "status": "in_progress", "output": []any{},
		"error": nil, "incomplete_details": nil, "parallel_tool_calls": true, "tool_choice": "auto", "tools": []any{}}
	if now == nil {
		return out
	}
	a := o.job.calls[0].answer
	if out["status"] = o.status(); a.reason == "length" {
		out["incomplete_details"] = object{"reason": "max_output_tokens"}
	}
	u := o.usage([]standing{*now})
	said := responseUsage{Input: u.PromptTokens, Output: u.CompletionTokens, Total: u.TotalTokens}
	said.Details.Cached = u.Details.CachedTokens
	out["output"], out["usage"] = []any{o.item("completed", outputText(a.text))}, said
	return out
}

func (o *responseEvents) whole(now []standing, kv *kvTransfer) any {
	out := o.object(&now[0])
	if kv != nil {
		out["kv_transfer_params"] = kv
	}
	return out
}

// add appends an event with a member, and where in the response it is.
func (o *responseEvents) add(b []byte, name, where, key string, value any) []byte {
	o.events++
	return event(b, name, func(b []byte) []byte {
		b = strconv.AppendInt(append(b, `,"sequence_number":`...), int64(o.events-1), 10)
		return member(append(b, where...), key, value)
	})
}

func (o *responseEvents) news(b []byte, _ int, sent *standing, now standing) []byte {
	const item = `,"output_index":0`
	a, part := o.job.calls[0].answer, item+`,"content_index":0,"item_id":"`+o.itemID()+`"`
	if sent.tokens == 0 && now.tokens > 0 {
		b = o.add(b, "response.created", "", "response", o.object(nil))
		b = o.add(b, "response.in_progress", "", "response", o.object(nil))
		b = o.add(b, "response.output_item.added", item, "item", o.item("in_progress"))
		b = o.add(b, "response.content_part.added", part, "part", outputText(""))
	}
	for ; sent.tokens < now.tokens; sent.tokens++ {
		b = o.add(b, "response.output_text.delta", part, "delta", a.token(sent.tokens))
	}
	if now.ended && !sent.ended {
		sent.ended = true
		b = o.add(b, "response.output_text.done", part, "text", a.text)
		b = o.add(b, "response.content_part.done", part, "part", outputText(a.text))
		b = o.add(b, "response.output_item.done", item, "item", o.item("completed", outputText(a.text)))
	}
	return b
}

func (o *responseEvents) end(b []byte, now []standing) []byte {
	return o.add(b, "response."+o.status(), "", "response", o.object(&now[0]))
}

// messageEvents is the form of Anthropic's Messages API.
type messageEvents struct{ *response }

// messageUsage is the usage in Anthropic's words: input_tokens are those that no cache gave.
type messageUsage struct {
	Input  int `json:"input_tokens"`
	Cached int `json:"cache_read_input_tokens"`
	Output int `json:"output_tokens"`
}

func (o messageEvents) used(now standing) messageUsage {
	u := o.usage([]standing{now})
	return messageUsage{Input: u.PromptTokens - u.Details.CachedTokens, Cached: u.Details.CachedTokens, Output: u.CompletionTokens}
}

func (o messageEvents) message(now standing, content ...object) object {
	return object{"id": o.id, "type": "message", "role": "assistant", "model": o.in.model, "content": append([]object{}, content...),
		"stop_reason": nil, "stop_sequence": nil, "usage": o.used(now)}
}

func (o messageEvents) reason() string {
	if o.job.calls[0].answer.reason == "length" {
		return "max_tokens"
	}
	return "end_turn"
}

func (o messageEvents) whole(now []standing, kv *kvTransfer) any {
	out := o.message(now[0], object{"type": "text", "text": o.job.calls[0].answer.text})
	if out["stop_reason"] = o.reason(); kv != nil {
		out["kv_transfer_params"] = kv
	}
	return out
}

func (o messageEvents) news(b []byte, _ int, sent *standing, now standing) []byte {
	add := func(name string, key string, value any, more string) {
		b = event(b, name, func(b []byte) []byte { return append(member(b, key, value), more...) })
	}
	const index = `,"index":0`
	if sent.tokens == 0 && now.tokens > 0 {
		add("message_start", "message", o.message(standing{cached: now.cached}), "")
		add("content_block_start", "content_block", object{"type": "text", "text": ""}, index)
	}
	for ; sent.tokens < now.tokens; sent.tokens++ {
		add("content_block_delta", "delta", object{"type": "text_delta", "text": o.job.calls[0].answer.token(sent.tokens)}, index)
	}
	if now.ended && !sent.ended {
		sent.ended = true
		add("content_block_stop", "index", 0, "")
	}
	return b
}

func (o messageEvents) end(b []byte, now []standing) []byte {
	b = event(b, "message_delta", func(b []byte) []byte {
		return member(member(b, "delta", object{"stop_reason": o.reason(), "stop_sequence": nil}), "usage", o.used(now[0]))
	})
	return event(b, "message_stop", func(b []byte) []byte { return b })
}
