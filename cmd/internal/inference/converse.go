package inference

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/term"

	"roundhouse.dev/roundhouse/cmd/internal/command"
)

const (
	prompt       = "> "
	continuation = ". "
	// quotes begin and end a message of several lines.
	quotes = `"""`
	// maxMessageBytes bounds a message of several lines.
	maxMessageBytes = 1 << 20
)

const conversationHelp = `  /system [TEXT]      set the system message, or show it
  /set [NAME VALUE]   set a parameter of the requests, as temperature 0.7; without a value
                      remove it; alone, show all
  /clear              forget the conversation
  /bye                end it; so does Ctrl-D
  """                 begin and end a message of several lines; a paste is one message
  Ctrl-C ends an answer, or drops the line.`

// Converse reads messages from a terminal, one a line, until the input ends or /bye. A
// line can be edited and recalled. Ctrl-C ends the answer that comes, or drops the line
// that is typed. An error of an answer is printed, and the conversation goes on.
func (c *Conversation) Converse(ctx context.Context, in *os.File) error {
	k := &keyboard{in: in, from: command.Interruptible(ctx, in), out: c.Out}
	if screen, ok := command.Terminal(c.Out); ok { // the editor moves the cursor, which Visible would not let it
		k.out = screen
	}
	k.renew(nil)
	_, _ = fmt.Fprintln(c.Out, "/help shows what can be done besides asking.")
	for {
		text, err := k.message()
		switch {
		case errors.Is(err, errDropped):
			continue
		case errors.Is(err, io.EOF): // Ctrl-D
			_, _ = fmt.Fprintln(c.Out)
			return nil
		case err != nil:
			return err
		}
		switch word, rest, _ := strings.Cut(text, " "); {
		case text == "":
		case word == "/bye" || word == "/exit" || word == "/quit":
			return nil
		case strings.HasPrefix(word, "/") && !strings.Contains(text, "\n"):
			_, _ = fmt.Fprintln(c.Out, c.order(word, strings.TrimSpace(rest)))
		default:
			c.answer(ctx, text)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// answer asks, until the answer ends or Ctrl-C ends it. What came of it stays in the
// conversation.
func (c *Conversation) answer(ctx context.Context, text string) {
	asking, stop := context.WithCancel(ctx)
	defer stop()
	defer command.OnInterrupt(ctx, stop)()
	err := c.Say(asking, text)
	switch {
	case err == nil || ctx.Err() != nil:
	case asking.Err() != nil:
		_, _ = fmt.Fprintln(c.Out, "(stopped)")
	default:
		_, _ = fmt.Fprintf(command.Visible(c.Out), "error: %v\n", err)
	}
}

// order does what a line that begins with a slash says, and returns what to print.
func (c *Conversation) order(word, rest string) string {
	switch word {
	case "/help", "/?":
		return conversationHelp
	case "/clear":
		c.messages = nil
		return "The conversation begins anew."
	case "/system":
		return c.setSystem(rest)
	case "/set":
		return c.set(rest)
	}
	return word + " is no command; /help lists them. To ask it all the same, begin with a space or " + quotes + "."
}

func (c *Conversation) setSystem(text string) string {
	if text == "" {
		if c.System == "" {
			return "There is no system message."
		}
		return "system: " + c.System
	}
	c.System = text
	if len(c.messages) > 0 && c.messages[0].Role == "system" {
		c.messages[0].Content = text
	} else if len(c.messages) > 0 {
		c.messages = slices.Insert(c.messages, 0, message{"system", text})
	}
	return "The system message is set."
}

// fixed are the fields of a request that are no parameters.
var fixed = []string{"model", "messages", "stream"}

func (c *Conversation) set(text string) string {
	name, value, given := strings.Cut(text, " ")
	switch {
	case text == "":
		var out []string
		for _, name := range slices.Sorted(maps.Keys(c.parameters)) {
			out = append(out, name+" "+string(c.parameters[name]))
		}
		if len(out) == 0 {
			return "No parameter is set; as in /set temperature 0.7"
		}
		return strings.Join(out, "\n")
	case slices.Contains(fixed, name):
		return name + " is no parameter of an answer."
	case !given:
		delete(c.parameters, name)
		return name + " is the server's again."
	}
	raw := json.RawMessage(strings.TrimSpace(value))
	if !json.Valid(raw) {
		raw, _ = json.Marshal(string(raw)) // a string always has a form
	}
	if c.parameters == nil {
		c.parameters = map[string]json.RawMessage{}
	}
	c.parameters[name] = raw
	return name + " is " + string(raw) + "."
}

// keyboard reads messages that are typed at a terminal.
type keyboard struct {
	in    *os.File
	from  io.Reader
	out   io.Writer
	lines *term.Terminal
	ctrlC bool // was in what was read last
}

// errDropped is returned where Ctrl-C dropped what was typed.
var errDropped = errors.New("dropped")

// renew begins with an empty line; past, if not nil, is what can be recalled.
func (k *keyboard) renew(past term.History) {
	k.lines = term.NewTerminal(k, prompt)
	if past != nil {
		k.lines.History = past
	}
}

// Read implements io.Reader for the terminal.
func (k *keyboard) Read(p []byte) (int, error) {
	n, err := k.from.Read(p)
	k.ctrlC = bytes.IndexByte(p[:n], '\x03') >= 0
	return n, err
}

// Write implements io.Writer for the terminal.
func (k *keyboard) Write(p []byte) (int, error) { return k.out.Write(p) }

// message reads a message with the terminal in raw mode, and leaves it as it was: Ctrl-C
// is a signal again while an answer comes.
func (k *keyboard) message() (text string, err error) {
	before, err := term.MakeRaw(int(k.in.Fd()))
	if err != nil {
		return "", err
	}
	k.lines.SetBracketedPasteMode(true)
	defer func() {
		k.lines.SetBracketedPasteMode(false)
		err = errors.Join(err, term.Restore(int(k.in.Fd()), before))
		if errors.Is(err, errDropped) {
			_, _ = fmt.Fprintln(k.out, "\n/bye or Ctrl-D ends the conversation.")
			k.renew(k.lines.History)
		}
	}()
	if width, height, sizeErr := term.GetSize(int(k.in.Fd())); sizeErr == nil && width > 0 {
		_ = k.lines.SetSize(width, height) // it writes nothing yet
	}
	defer k.lines.SetPrompt(prompt)
	var m typed
	for {
		line, err := k.lines.ReadLine()
		pasted := errors.Is(err, term.ErrPasteIndicator)
		switch {
		case errors.Is(err, io.EOF) && k.ctrlC:
			return "", errDropped
		case err != nil && !pasted:
			return "", err
		}
		if m.add(line, pasted) {
			return m.text(), nil
		}
		if m.bytes > maxMessageBytes {
			return "", fmt.Errorf("a message is at most %d bytes", maxMessageBytes)
		}
		k.lines.SetPrompt(continuation)
	}
}

// typed is a message of one line or several.
type typed struct {
	lines  []string
	bytes  int
	quoted bool
}

// add adds a line, and reports whether the message ends with it.
func (m *typed) add(line string, pasted bool) (whole bool) {
	if len(m.lines) == 0 && !pasted {
		if rest, ok := strings.CutPrefix(strings.TrimLeft(line, " "), quotes); ok {
			m.quoted, line = true, rest
		}
	}
	end := false
	if m.quoted {
		line, end = strings.CutSuffix(strings.TrimRight(line, " "), quotes)
	}
	m.lines, m.bytes = append(m.lines, line), m.bytes+len(line)+1
	return end || !m.quoted && !pasted
}

// text is the message. What a slash begins is one only at its very beginning.
func (m *typed) text() string {
	text := strings.Join(m.lines, "\n")
	if m.quoted || strings.HasPrefix(text, " ") {
		return " " + strings.Trim(text, "\n \t")
	}
	return strings.TrimSpace(text)
}
