package inference

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/progress"
	serving "roundhouse.dev/roundhouse/internal/edge/gateway"
)

// maxEventBytes bounds one line of a streamed answer.
const maxEventBytes = 4 << 20

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Conversation is a chat with a model.
type Conversation struct {
	Model     string
	System    string // message to begin with; "" for none
	MaxTokens int    // of an answer; 0 leaves it to the server
	Out       io.Writer
	// Waiting shows what the answer waits for; nil shows nothing.
	Waiting *progress.Spinner
	// Gateway finds where to send a message.
	Gateway func(context.Context) (Gateway, error)

	messages   []message
	parameters map[string]json.RawMessage // of each request, besides
}

// Say sends a message and prints the answer as it comes. Of a message without an answer
// the conversation keeps nothing.
func (c *Conversation) Say(ctx context.Context, text string) (err error) {
	if text = strings.TrimSpace(text); text == "" {
		return errors.New("the message is empty: give one as an argument or on standard input")
	}
	if c.System != "" && len(c.messages) == 0 {
		c.messages = append(c.messages, message{"system", c.System})
	}
	before := len(c.messages)
	c.messages = append(c.messages, message{"user", text})
	defer func() {
		if err != nil && len(c.messages) == before+1 {
			c.messages = c.messages[:before]
		}
	}()
	body := map[string]any{"model": c.Model, "messages": c.messages, "stream": true, "stream_options": map[string]any{"include_usage": true}}
	if c.MaxTokens > 0 {
		body["max_tokens"] = c.MaxTokens
	}
	for name, value := range c.parameters {
		body[name] = value
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	gateway, err := c.Gateway(ctx)
	if err != nil {
		return err
	}
	c.Waiting.Start()
	defer c.Waiting.Stop()
	resp, err := gateway.post(ctx, "/v1/chat/completions", raw, http.Header{serving.HeaderWaiting: {serving.WaitingComments}})
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := c.stream(resp.Body)
	_, _ = fmt.Fprintln(c.Out)
	if answer != "" || err == nil {
		c.messages = append(c.messages, message{"assistant", answer})
	}
	return err
}

// stream prints the pieces of a streamed answer and returns the whole.
func (c *Conversation) stream(r io.Reader) (string, error) {
	var whole strings.Builder
	_, shown := command.Terminal(c.Out)
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxEventBytes)
	for lines.Scan() {
		if comment, ok := strings.CutPrefix(lines.Text(), ":"); ok && whole.Len() == 0 {
			c.Waiting.Say(strings.TrimSpace(comment))
			continue
		}
		data, ok := strings.CutPrefix(lines.Text(), "data:")
		if data = strings.TrimSpace(data); !ok || data == "[DONE]" {
			continue
		}
		var event struct {
			Choices []struct {
				Delta struct {
					Content string `json:"content"`
				} `json:"delta"`
			} `json:"choices"`
			Error json.RawMessage `json:"error"`
		}
		c.Waiting.Stop()
		if err := json.Unmarshal([]byte(data), &event); err != nil {
			return whole.String(), fmt.Errorf("the answer is not an event stream: %w", err)
		}
		if len(event.Error) > 0 {
			return whole.String(), errors.New(errorText([]byte(data)))
		}
		for _, ch := range event.Choices {
			whole.WriteString(ch.Delta.Content)
			text := ch.Delta.Content
			if shown { // a model's words must not steer the terminal; elsewhere every byte counts
				text = command.Harmless(text)
			}
			_, _ = io.WriteString(c.Out, text)
		}
	}
	return whole.String(), lines.Err()
}
