package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"roundhouse.dev/roundhouse/cmd/internal/command"
)

// maxEventBytes bounds one line of a streamed answer.
const maxEventBytes = 4 << 20

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

func newChatCommand() *cobra.Command {
	var r remote
	var n namespaced
	var system string
	var maxTokens int
	cmd := &cobra.Command{
		Use:   "chat NAME [MESSAGE…]",
		Short: "Chat with a model: one message, or a conversation",
		Example: `  roundhouse chat chat "What is a roundhouse?"
  roundhouse chat chat
  echo "Hello" | roundhouse chat chat
  roundhouse chat chat --context production "Hello"`,
		Args: command.Wants(1, -1, "the name of a model"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := r.settle(&n); err != nil {
				return err
			}
			k := n.key(args[0])
			c := &conversation{remote: &r, model: modelName(k), maxTokens: maxTokens, out: cmd.OutOrStdout()}
			if system != "" {
				c.messages = append(c.messages, message{"system", system})
			}
			if len(args) > 1 {
				return c.say(cmd.Context(), strings.Join(args[1:], " "))
			}
			in := stdin(cmd)
			if isTerminal(in) {
				return c.converse(cmd.Context(), cmd.InOrStdin().(*os.File))
			}
			raw, err := io.ReadAll(io.LimitReader(in, maxRequestBytes))
			if err != nil {
				return err
			}
			return c.say(cmd.Context(), strings.TrimSpace(string(raw)))
		},
	}
	r.flags(cmd)
	r.gatewayFlag(cmd)
	n.flags(cmd)
	cmd.Flags().StringVar(&system, "system", "", "a system message to begin with")
	cmd.Flags().IntVar(&maxTokens, "max-tokens", 0, "the most tokens of an answer; 0 leaves it to the server")
	return cmd
}

type conversation struct {
	remote    *remote
	model     string
	maxTokens int
	messages  []message
	out       io.Writer
}

// converse reads a message a line, which may be edited and recalled, until the
// input ends.
func (c *conversation) converse(ctx context.Context, in *os.File) error {
	lines := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{interruptible{ctx, in}, c.out}, "> ")
	for {
		text, err := typedLine(lines, in)
		if err != nil {
			_, _ = fmt.Fprintln(c.out)
			if errors.Is(err, io.EOF) { // Ctrl-D, or Ctrl-C
				return nil
			}
			return err
		}
		if text = strings.TrimSpace(text); text != "" {
			if err := c.say(ctx, text); err != nil {
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

// say sends a message and prints the answer as it comes.
func (c *conversation) say(ctx context.Context, text string) error {
	if text == "" {
		return errors.New("nothing to say: give a message, as an argument or on standard input")
	}
	c.messages = append(c.messages, message{"user", text})
	body := map[string]any{"model": c.model, "messages": c.messages, "stream": true}
	if c.maxTokens > 0 {
		body["max_tokens"] = c.maxTokens
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	resp, err := c.remote.ask(ctx, "/v1/chat/completions", raw)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := c.stream(resp.Body)
	_, _ = fmt.Fprintln(c.out)
	c.messages = append(c.messages, message{"assistant", answer})
	return err
}

// stream prints the pieces of a streamed answer and returns the whole.
func (c *conversation) stream(r io.Reader) (string, error) {
	var whole strings.Builder
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxEventBytes)
	for lines.Scan() {
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
		if err := json.Unmarshal([]byte(data), &event); err != nil {
			return whole.String(), fmt.Errorf("the answer is no event stream: %w", err)
		}
		if len(event.Error) > 0 {
			return whole.String(), errors.New(errorText([]byte(data)))
		}
		for _, ch := range event.Choices {
			whole.WriteString(ch.Delta.Content)
			_, _ = fmt.Fprint(c.out, ch.Delta.Content)
		}
	}
	return whole.String(), lines.Err()
}
