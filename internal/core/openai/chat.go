package openai

import (
	"encoding/json"
	"slices"
	"strings"
)

// AsChat returns what is to be asked for the tokens of a request's prompt where an
// engine tells those of completions and chats alone: the body itself for these, and
// for a call of the Responses API or of Anthropic's Messages API the chat that
// engines make of it before they render it. It reports false for another path, and
// for a prompt of which the body has not all, or of which engines make different
// things: stored responses, files, system messages between others, efforts of
// reasoning.
func AsChat(path string, body []byte) (chat []byte, ok bool) {
	var c rendered
	switch {
	case strings.HasSuffix(path, "/completions"):
		return body, true
	case strings.HasSuffix(path, "/messages"):
		ok = c.fromMessages(body)
	case strings.HasSuffix(path, "/responses"):
		ok = c.fromResponses(body)
	}
	if !ok || len(c.Messages) == 0 {
		return nil, false
	}
	chat, err := json.Marshal(c)
	return chat, err == nil
}

// RendersAsChat reports whether AsChat may know the chat of a call.
func RendersAsChat(path string) bool {
	return slices.ContainsFunc([]string{"/completions", "/messages", "/responses"}, func(end string) bool { return strings.HasSuffix(path, end) })
}

// rendered is what a chat's prompt is made of.
type rendered struct {
	Model          string          `json:"model"`
	Messages       []chatMessage   `json:"messages"`
	Tools          []chatTool      `json:"tools,omitempty"`
	TemplateKwargs json.RawMessage `json:"chat_template_kwargs,omitempty"`
}

type chatMessage struct {
	Role      string     `json:"role"`
	Content   any        `json:"content,omitempty"` // a string or []chatPart
	Reasoning *string    `json:"reasoning,omitempty"`
	ToolCalls []chatCall `json:"tool_calls,omitempty"`
	ToolCall  *string    `json:"tool_call_id,omitempty"`
}

type chatPart struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

type chatCall struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

func newCall(id, name, arguments string) chatCall {
	c := chatCall{ID: id, Type: "function"}
	c.Function.Name, c.Function.Arguments = name, arguments
	return c
}

type chatTool struct {
	Type     string                     `json:"type"`
	Function map[string]json.RawMessage `json:"function"`
}

// oneOrMore is a text, or a list of parts.
type oneOrMore struct {
	text  string
	parts []json.RawMessage
	list  bool
}

// UnmarshalJSON implements json.Unmarshaler.
func (o *oneOrMore) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '[' {
		o.list = true
		return json.Unmarshal(b, &o.parts)
	}
	return json.Unmarshal(b, &o.text)
}

// present reports whether a member is there and not null.
func present(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// billing begins a text that engines leave out: it differs in each request.
const billing = "x-anthropic-billing-header"

type anthropicBlock struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   oneOrMore       `json:"content"`
	Thinking  string          `json:"thinking"`
}

// fromMessages makes the chat that vLLM and SGLang make of a body of /v1/messages.
func (c *rendered) fromMessages(body []byte) bool {
	var in struct {
		Model    string    `json:"model"`
		System   oneOrMore `json:"system"`
		Messages []struct {
			Role    string    `json:"role"`
			Content oneOrMore `json:"content"`
		} `json:"messages"`
		Tools    []map[string]json.RawMessage `json:"tools"`
		Thinking struct {
			Type string `json:"type"`
		} `json:"thinking"`
		Output struct {
			Effort json.RawMessage `json:"effort"`
		} `json:"output_config"`
		TemplateKwargs json.RawMessage `json:"chat_template_kwargs"`
	}
	if json.Unmarshal(body, &in) != nil || in.Thinking.Type == "disabled" || present(in.Output.Effort) {
		return false
	}
	c.Model, c.TemplateKwargs = in.Model, in.TemplateKwargs
	system, ok := in.System.text, true
	if in.System.list {
		var all []string
		all, ok = in.System.texts("text")
		system = strings.Join(slices.DeleteFunc(all, func(text string) bool { return strings.HasPrefix(text, billing) }), "")
	}
	if system != "" {
		c.Messages = append(c.Messages, chatMessage{Role: "system", Content: system})
	}
	for _, m := range in.Messages {
		if m.Role != "user" && m.Role != "assistant" || !c.anthropic(m.Role, &m.Content) {
			return false
		}
	}
	return ok && c.anthropicTools(in.Tools)
}

func (c *rendered) anthropicTools(tools []map[string]json.RawMessage) bool {
	for _, t := range tools {
		if kind := string(t["type"]); kind != "" && kind != `"custom"` && kind != "null" {
			return false // the provider's own
		}
		f := map[string]json.RawMessage{"name": t["name"], "parameters": t["input_schema"]}
		for _, more := range []string{"description", "strict", "defer_loading"} {
			if raw := t[more]; present(raw) {
				f[more] = raw
			}
		}
		if !present(f["name"]) || !present(f["parameters"]) {
			return false
		}
		c.Tools = append(c.Tools, chatTool{"function", f})
	}
	return true
}

// anthropic appends a message, after the results of tools that stand in it.
func (c *rendered) anthropic(role string, content *oneOrMore) bool {
	m := chatMessage{Role: role}
	if !content.list {
		m.Content = content.text
		c.Messages = append(c.Messages, m)
		return true
	}
	var parts []chatPart
	for _, raw := range content.parts {
		var b anthropicBlock
		if json.Unmarshal(raw, &b) != nil {
			return false
		}
		switch {
		case b.Type == "text":
			if b.Text != "" {
				parts = append(parts, chatPart{"text", b.Text})
			}
		case b.Type == "thinking":
			thought := b.Thinking
			if m.Reasoning != nil {
				thought = *m.Reasoning + thought
			}
			m.Reasoning = &thought
		case b.Type == "redacted_thinking":
		case b.Type == "tool_use":
			arguments := "{}"
			if present(b.Input) {
				arguments = string(b.Input)
			}
			m.ToolCalls = append(m.ToolCalls, newCall(b.ID, b.Name, arguments))
		case b.Type == "tool_result" && role == "user":
			text, ok := b.Content.joined("\n", "text")
			if !ok {
				return false
			}
			c.Messages = append(c.Messages, chatMessage{Role: "tool", Content: text, ToolCall: &b.ToolUseID})
		default:
			return false
		}
	}
	switch {
	case len(parts) == 1:
		m.Content = parts[0].Text
	case len(parts) > 1:
		m.Content = parts
	case role == "user":
		return true // it had results alone
	}
	c.Messages = append(c.Messages, m)
	return true
}

// texts are those of the parts; false if one is of another type.
func (o *oneOrMore) texts(types ...string) (all []string, ok bool) {
	for _, raw := range o.parts {
		var p chatPart
		if json.Unmarshal(raw, &p) != nil || !slices.Contains(types, p.Type) {
			return nil, false
		}
		all = append(all, p.Text)
	}
	return all, true
}

// joined is the text, or those of the parts.
func (o *oneOrMore) joined(between string, types ...string) (text string, ok bool) {
	if !o.list {
		return o.text, true
	}
	all, ok := o.texts(types...)
	return strings.Join(all, between), ok
}

type responsesItem struct {
	Type      string          `json:"type"`
	Role      string          `json:"role"`
	Content   oneOrMore       `json:"content"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Namespace string          `json:"namespace"`
	Arguments string          `json:"arguments"`
	Output    oneOrMore       `json:"output"`
	Encrypted json.RawMessage `json:"encrypted_content"`
	Summary   oneOrMore       `json:"summary"`
}

// fromResponses makes the chat that vLLM makes of a body of /v1/responses.
func (c *rendered) fromResponses(body []byte) bool {
	var in struct {
		Model        string                       `json:"model"`
		Instructions string                       `json:"instructions"`
		Input        oneOrMore                    `json:"input"`
		Tools        []map[string]json.RawMessage `json:"tools"`
		Reasoning    struct {
			Effort json.RawMessage `json:"effort"`
		} `json:"reasoning"`
		// What the engine, or another server, keeps.
		Previous       json.RawMessage `json:"previous_response_id"`
		PreviousInput  json.RawMessage `json:"previous_input_messages"`
		Conversation   json.RawMessage `json:"conversation"`
		Prompt         json.RawMessage `json:"prompt"`
		TemplateKwargs json.RawMessage `json:"chat_template_kwargs"`
	}
	if json.Unmarshal(body, &in) != nil || present(in.Reasoning.Effort) ||
		slices.ContainsFunc([]json.RawMessage{in.Previous, in.PreviousInput, in.Conversation, in.Prompt}, present) {
		return false
	}
	c.Model, c.TemplateKwargs = in.Model, in.TemplateKwargs
	if in.Instructions != "" {
		c.Messages = append(c.Messages, chatMessage{Role: "system", Content: in.Instructions})
	}
	if !in.Input.list {
		c.Messages = append(c.Messages, chatMessage{Role: "user", Content: in.Input.text})
	}
	for _, raw := range in.Input.parts {
		var item responsesItem
		if json.Unmarshal(raw, &item) != nil || !c.responses(&item) {
			return false
		}
	}
	for _, t := range in.Tools {
		if string(t["type"]) != `"function"` || !present(t["name"]) {
			return false
		}
		delete(t, "type")
		c.Tools = append(c.Tools, chatTool{"function", t})
	}
	return true
}

// responses appends an item. What an assistant thought, said and called are items of
// their own, and one message.
func (c *rendered) responses(item *responsesItem) bool {
	var last *chatMessage // the assistant's, if it spoke last
	if n := len(c.Messages); n > 0 && c.Messages[n-1].Role == "assistant" {
		last = &c.Messages[n-1]
	}
	assistant := chatMessage{Role: "assistant"}
	switch item.Type {
	case "function_call":
		if item.Namespace != "" {
			return false
		}
		call := newCall(item.CallID, item.Name, item.Arguments)
		if last != nil {
			last.ToolCalls = append(last.ToolCalls, call)
			return true
		}
		assistant.ToolCalls = []chatCall{call}
	case "function_call_output":
		if item.Output.list {
			return false
		}
		assistant = chatMessage{Role: "tool", Content: item.Output.text, ToolCall: &item.CallID}
	case "reasoning":
		thoughts, ok := item.Content.texts("reasoning_text")
		if summary, plain := item.Summary.texts("summary_text"); len(thoughts) == 0 {
			thoughts, ok = summary, ok && plain
		}
		if thoughts = append(thoughts, ""); !ok || present(item.Encrypted) {
			return false
		}
		if last != nil && last.Reasoning == nil {
			last.Reasoning = &thoughts[0]
			return true
		}
		assistant.Reasoning = &thoughts[0]
	case "", "message":
		return c.said(item, last)
	default:
		return false
	}
	c.Messages = append(c.Messages, assistant)
	return true
}

// said appends an item that is a message.
func (c *rendered) said(item *responsesItem, last *chatMessage) bool {
	m := chatMessage{Role: item.Role, Content: item.Content.text}
	all, ok := item.Content.texts("input_text", "output_text", "text")
	if !ok || item.Content.list && len(all) == 0 {
		return false
	}
	switch {
	case item.Role == "assistant":
		if item.Content.list {
			m.Content = all[0]
		}
		if last != nil && last.Content == nil {
			last.Content = m.Content
			return true
		}
	case item.Role != "user" && item.Role != "system" && item.Role != "developer":
		return false
	case item.Content.list:
		parts := make([]chatPart, len(all))
		for i, text := range all {
			parts[i] = chatPart{"text", text}
		}
		m.Content = parts
	}
	c.Messages = append(c.Messages, m)
	return true
}
