package benchmark

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/decide/load"
)

// chunk is what is read of an event.
type chunk struct {
	Choices []struct {
		Text  string `json:"text"`
		Delta struct {
			Content          string            `json:"content"`
			Reasoning        string            `json:"reasoning"`
			ReasoningContent string            `json:"reasoning_content"`
			ToolCalls        []json.RawMessage `json:"tool_calls"`
		} `json:"delta"`
	} `json:"choices"`
	Usage json.RawMessage `json:"usage"`
	Error json.RawMessage `json:"error"`
}

// says reports whether the event has a part of the answer.
func (c *chunk) says() bool {
	for i := range c.Choices {
		d := &c.Choices[i].Delta
		if c.Choices[i].Text != "" || d.Content != "" || d.Reasoning != "" || d.ReasoningContent != "" || len(d.ToolCalls) > 0 {
			return true
		}
	}
	return false
}

// readStream reads an answer that comes in events.
func readStream(body io.Reader, began time.Time, s *load.Sample) error {
	lines := bufio.NewScanner(io.LimitReader(body, maxAnswerBytes))
	lines.Buffer(nil, maxEventBytes)
	var last time.Time
	parts, done := 0, false
	for lines.Scan() {
		now := time.Now()
		data, found := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if data = bytes.TrimSpace(data); !found || len(data) == 0 {
			continue
		}
		if string(data) == "[DONE]" {
			done = true
			break
		}
		var c chunk
		if err := json.Unmarshal(data, &c); err != nil {
			return errors.New("an event of the answer is not JSON")
		}
		if len(c.Error) > 0 && string(c.Error) != "null" {
			return errors.New(errorText(data))
		}
		if c.says() {
			if parts++; parts == 1 {
				s.First = now.Sub(began)
			} else {
				s.Gaps = append(s.Gaps, now.Sub(last))
			}
			last = now
		}
		if len(c.Usage) > 0 && string(c.Usage) != "null" {
			count(s, data)
		}
	}
	if s.Output == 0 {
		s.Output = parts
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("an event of the answer is over %d bytes", maxEventBytes)
	case err != nil:
		return err
	case !done:
		return io.ErrUnexpectedEOF
	}
	return nil
}

// count takes the tokens of an answer as its server counts them.
func count(s *load.Sample, raw []byte) {
	if u, ok := openai.ReadUsage(raw); ok {
		s.Input, s.Output = int(u.PromptTokens), int(u.CompletionTokens)
	}
}
