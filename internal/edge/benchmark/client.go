package benchmark

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/decide/load"
)

// Bounds of an answer.
const (
	maxAnswerBytes = 64 << 20
	maxEventBytes  = 1 << 20
	maxErrorBytes  = 4 << 10
)

// request is what is sent. input is how many tokens its prompt has, 0 where that is not
// known.
type request struct {
	Prompt
	input int
}

// client sends requests to a target.
type client struct {
	target Target
	http   *http.Client
	own    *http.Transport // nil where the target has its transport
}

func newClient(t Target, inFlight int) *client {
	c := &client{target: t, http: &http.Client{Transport: t.Transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	if t.Transport == nil {
		c.own = http.DefaultTransport.(*http.Transport).Clone()
		c.own.MaxIdleConns, c.own.MaxIdleConnsPerHost = inFlight, inFlight
		c.http.Transport = c.own
	}
	return c
}

func (c *client) close() {
	if c.own != nil {
		c.own.CloseIdleConnections()
	}
}

// send sends one request and measures its answer.
func (c *client) send(ctx context.Context, q request) load.Sample {
	s := load.Sample{Input: q.input}
	body, err := json.Marshal(c.target.members(q))
	if err != nil {
		s.Failed = err.Error()
		return s
	}
	ctx, cancel := context.WithTimeout(ctx, c.target.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.target.Base+paths[c.target.API], bytes.NewReader(body))
	if err != nil {
		s.Failed = err.Error()
		return s
	}
	req.Header.Set("Content-Type", "application/json")
	if c.target.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+c.target.APIKey)
	}
	began := time.Now()
	resp, err := c.http.Do(req)
	if err != nil {
		s.Failed = c.failure(err)
		return s
	}
	defer func() { _ = resp.Body.Close() }()
	switch {
	case resp.StatusCode/100 != 2:
		raw, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBytes))
		s.Failed = strings.TrimSpace(resp.Status + ": " + excerpt.Of(errorText(raw), 120))
	case strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream"):
		err = readStream(resp.Body, began, &s)
	default:
		err = readWhole(resp.Body, &s)
	}
	s.Total = time.Since(began)
	if err != nil {
		s.Failed = c.failure(err)
	}
	return s
}

// failure words an error so that equal ones count together: without the addresses of
// connections.
func (c *client) failure(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("no answer within %v", c.target.Timeout)
	case strings.Contains(err.Error(), "connection refused"):
		return "connection refused"
	case strings.Contains(err.Error(), "connection reset"):
		return "connection reset"
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return "the answer ended early"
	}
	return excerpt.Of(err.Error(), 120)
}

// errorText is the message of an error's body.
func errorText(raw []byte) string {
	var e struct {
		Error json.RawMessage `json:"error"`
	}
	var nested struct {
		Message string `json:"message"`
	}
	var text string
	if json.Unmarshal(raw, &e) == nil {
		if json.Unmarshal(e.Error, &nested) == nil && nested.Message != "" {
			return nested.Message
		}
		if json.Unmarshal(e.Error, &text) == nil && text != "" {
			return text
		}
	}
	return string(raw)
}

// readWhole reads an answer that comes at once.
func readWhole(body io.Reader, s *load.Sample) error {
	raw, err := io.ReadAll(io.LimitReader(body, maxAnswerBytes+1))
	if err != nil {
		return err
	}
	if len(raw) > maxAnswerBytes {
		return fmt.Errorf("the answer is over %d bytes", maxAnswerBytes)
	}
	count(s, raw)
	return nil
}

// modelsTimeout bounds the question for a server's models.
const modelsTimeout = 10 * time.Second

// FirstModel is the first that a server lists.
func FirstModel(ctx context.Context, base, apiKey string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, modelsTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/v1/models", nil)
	if err != nil {
		return "", err
	}
	if apiKey != "" {
		req.Header.Set("Authorization", "Bearer "+apiKey)
	}
	c := newClient(Target{Timeout: modelsTimeout}, 1)
	defer c.close()
	resp, err := c.http.Do(req)
	if err != nil {
		return "", errors.New(c.failure(err))
	}
	defer func() { _ = resp.Body.Close() }()
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxEventBytes))
	switch {
	case err != nil:
		return "", errors.New(c.failure(err))
	case resp.StatusCode/100 != 2:
		return "", fmt.Errorf("%s: %s", resp.Status, excerpt.Of(errorText(raw), 120))
	case json.Unmarshal(raw, &list) != nil || len(list.Data) == 0:
		return "", errors.New("it lists no model")
	}
	return list.Data[0].ID, nil
}
