package inference

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"golang.org/x/term"

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

	messages []message
}

// Converse reads messages from a terminal, one a line, until the input ends. A line
// can be edited and recalled.
func (c *Conversation) Converse(ctx context.Context, in *os.File) error {
	lines := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{command.Interruptible(ctx, in), c.Out}, "> ")
	for {
		text, err := typedLine(lines, in)
		if err != nil {
			_, _ = fmt.Fprintln(c.Out)
			if errors.Is(err, io.EOF) { // Ctrl-D, or Ctrl-C
				return nil
			}
			return err
		}
		if text = strings.TrimSpace(text); text != "" {
			if err := c.Say(ctx, text); err != nil {
				return err
			}
		}
	}
}

// typedLine reads a line with the terminal in raw mode, and leaves it as it was:
// Ctrl-C is a signal again while an answer comes.
func typedLine(lines *term.Terminal, in *os.File) (text string, err error) {
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, term.Restore(int(in.Fd()), before)) }()
	if width, height, sizeErr := term.GetSize(int(in.Fd())); sizeErr == nil && width > 0 {
		_ = lines.SetSize(width, height) // it writes nothing yet
	}
	text, err = lines.ReadLine()
	if errors.Is(err, term.ErrPasteIndicator) {
		err = nil // a pasted line is a line
	}
	return text, err
}

// Say sends a message and prints the answer as it comes.
func (c *Conversation) Say(ctx context.Context, text string) error {
	if text == "" {
		return errors.New("the message is empty: give one as an argument or on standard input")
	}
	if c.System != "" && len(c.messages) == 0 {
		c.messages = append(c.messages, message{"system", c.System})
	}
	c.messages = append(c.messages, message{"user", text})
	body := map[string]any{"model": c.Model, "messages": c.messages, "stream": true}
	if c.MaxTokens > 0 {
		body["max_tokens"] = c.MaxTokens
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
	c.messages = append(c.messages, message{"assistant", answer})
	return err
}

// stream prints the pieces of a streamed answer and returns the whole.
func (c *Conversation) stream(r io.Reader) (string, error) {
	var whole strings.Builder
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
			_, _ = fmt.Fprint(c.Out, ch.Delta.Content)
		}
	}
	return whole.String(), lines.Err()
}
