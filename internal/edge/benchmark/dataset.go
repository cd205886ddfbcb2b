package benchmark

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"roundhouse.dev/roundhouse/internal/decide/load"
)

// Bounds of a file of prompts.
const (
	maxPrompts     = 100_000
	maxPromptLine  = 4 << 20
	maxPromptBytes = 1 << 30
)

// Prompt is what a request asks.
type Prompt struct {
	Text     string
	Messages []json.RawMessage // a chat's, in place of Text
	Output   int               // tokens of the answer at most; 0 for the scenario's
}

// OpenPrompts reads the prompts of a file.
func OpenPrompts(file string, api API) ([]Prompt, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return ReadPrompts(file, f, api)
}

// ReadPrompts reads lines of JSON with "prompt" (a text) or "messages", and, where they
// say so, "output_tokens". name is for errors.
func ReadPrompts(name string, in io.Reader, api API) ([]Prompt, error) {
	lines := bufio.NewScanner(io.LimitReader(in, maxPromptBytes))
	lines.Buffer(nil, maxPromptLine)
	var out []Prompt
	n := 0
	for lines.Scan() {
		n++
		if len(lines.Bytes()) == 0 {
			continue
		}
		var line struct {
			Prompt   string            `json:"prompt"`
			Messages []json.RawMessage `json:"messages"`
			Output   int               `json:"output_tokens"`
		}
		err := json.Unmarshal(lines.Bytes(), &line)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s:%d: %w", name, n, err)
		case line.Prompt == "" && len(line.Messages) == 0:
			return nil, fmt.Errorf("%s:%d: has neither prompt nor messages", name, n)
		case len(line.Messages) > 0 && api != Chat:
			return nil, fmt.Errorf("%s:%d: messages are of the API %s: write prompt", name, n, Chat)
		case line.Output < 0 || line.Output > load.MaxTokens:
			return nil, fmt.Errorf("%s:%d: output_tokens is %d: want 0 to %d", name, n, line.Output, load.MaxTokens)
		case len(out) == maxPrompts:
			return nil, fmt.Errorf("%s:%d: more than %d prompts", name, n, maxPrompts)
		}
		out = append(out, Prompt{Text: line.Prompt, Messages: line.Messages, Output: line.Output})
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("%s:%d: the line is longer than %d bytes", name, n+1, maxPromptLine)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	case len(out) == 0:
		return nil, fmt.Errorf("%s: no prompt is in it", name)
	}
	return out, nil
}
