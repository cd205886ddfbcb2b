package inference

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/decide/batch"
)

// How long a batch waits before a retry: the first time, at most, and at most where
// the server names a time.
const (
	minRetryWait  = 250 * time.Millisecond
	maxRetryWait  = 10 * time.Second
	maxRetryAfter = time.Minute
)

// asker sends requests to one model, and retries where that may help.
type asker struct {
	key     service.Key
	model   string
	gateway Gateway
	headers []string
	timeout time.Duration // of one try
	retries int
	client  *http.Client
	log     func(level int, format string, args ...any)
}

// request is a line that can be sent.
type request struct {
	*line
	id   string
	path string
	body []byte
	v2   bool // Open Inference Protocol
}

// answer fills in the answers of lines: together where there are several that
// fit together, and alone.
func (r *batchRun) answer(ctx context.Context, lines []*line) {
	var keys []batch.Key
	groups := map[batch.Key][]*request{}
	for _, l := range lines {
		q, err := r.asker.prepare(l)
		if err != nil {
			l.fail("preprocessing error", "", err)
			continue
		}
		key := batch.Key(strconv.Itoa(l.index)) // alone
		if len(lines) > 1 && q.v2 {
			if decoded, err := tensor.DecodeRequest(q.body); err == nil {
				if k, _, ok := batch.KeyOf(decoded); ok {
					key = "together " + k
				}
			}
		}
		if groups[key] == nil {
			keys = append(keys, key)
		}
		groups[key] = append(groups[key], q)
	}
	for _, k := range keys {
		if g := groups[k]; len(g) == 1 || !r.asker.together(ctx, g) {
			for _, q := range g {
				r.asker.alone(ctx, q)
			}
		}
	}
}

// prepare reads what a line asks for. A request of the Open Inference Protocol
// gets an id if it has none.
func (a *asker) prepare(l *line) (*request, error) {
	if l.failed != nil {
		return nil, l.failed
	}
	path, body, err := Surface(a.key, a.model, l.body)
	if err != nil {
		return nil, err
	}
	q := &request{line: l, path: path, body: body, v2: strings.HasPrefix(path, "/v2/")}
	var named struct {
		ID json.RawMessage `json:"id"`
	}
	if err := json.Unmarshal(body, &named); err != nil {
		return nil, err
	}
	if len(named.ID) > 0 {
		if err := json.Unmarshal(named.ID, &q.id); err != nil {
			return nil, fmt.Errorf("id: %s is not a string", named.ID)
		}
	}
	if q.v2 && q.id == "" {
		q.id = rand.Text()
		if len(named.ID) > 0 { // null, or ""
			var b bytes.Buffer
			if err := json.Compact(&b, body); err != nil {
				return nil, err
			}
			q.body = without(b.Bytes(), "id")
		}
		q.body = insert(q.body, "id", q.id)
	}
	return q, nil
}

// insert puts a field at the front of an object, where it is not one of the
// fields.
func insert(object []byte, name string, value any) []byte {
	field, _ := json.Marshal(map[string]any{name: value}) // of plain values
	rest := bytes.TrimSpace(object)[1:]
	if bytes.HasPrefix(bytes.TrimSpace(rest), []byte("}")) {
		return field
	}
	return append(append(field[:len(field)-1:len(field)-1], ','), rest...)
}

// fail makes the answer of a line that has none.
func (l *line) fail(status, id string, err error) {
	l.failed = err
	type problem struct {
		Status string `json:"status"`
		Msg    string `json:"msg"`
	}
	l.answer, _ = json.Marshal(struct {
		ID         string         `json:"id,omitempty"`
		Parameters map[string]int `json:"parameters"`
		Error      problem        `json:"error"`
	}{id, map[string]int{"batch_index": l.index}, problem{status, err.Error()}}) // of plain values
}

// alone sends one line.
func (a *asker) alone(ctx context.Context, q *request) {
	answer, err := a.ask(ctx, q.path, q.id, q.body)
	if err == nil {
		err = q.take(answer)
	}
	if err != nil {
		a.log(1, "line %d: %v", q.index+1, err)
		q.fail("inference error", q.id, err)
	}
}

// take keeps an answer as a line, with the line and the id of its request.
func (q *request) take(answer []byte) error {
	var b bytes.Buffer
	if err := json.Compact(&b, answer); err != nil {
		return fmt.Errorf("the answer is not JSON: %w", err)
	}
	q.line.answer = b.Bytes()
	if !q.v2 {
		return nil
	}
	var r struct {
		Parameters map[string]json.RawMessage `json:"parameters"`
	}
	if err := json.Unmarshal(answer, &r); err != nil {
		return fmt.Errorf("the answer is not of the Open Inference Protocol: %w", err)
	}
	marks := map[string]any{"batch_index": q.index, "inference_id": q.id}
	for name, value := range r.Parameters {
		marks[name] = value
	}
	q.line.answer = insert(without(b.Bytes(), "parameters"), "parameters", marks)
	return nil
}

// without takes a field out of a compact object.
func without(object []byte, name string) []byte {
	d := json.NewDecoder(bytes.NewReader(object))
	if _, err := d.Token(); err != nil {
		return object
	}
	for d.More() {
		start := d.InputOffset() // at the comma, or the first name
		field, err := d.Token()
		if err != nil {
			return object
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return object
		}
		if field != name {
			continue
		}
		end := d.InputOffset()
		if start == 1 && object[end] == ',' {
			end++
		}
		return append(object[:start:start], object[end:]...)
	}
	return object
}

// together sends several lines as one request. It reports false where that fails or
// the answer cannot be split: each line must then be sent alone.
func (a *asker) together(ctx context.Context, group []*request) bool {
	members := make([]*tensor.Request, len(group))
	for i, q := range group {
		var err error
		if members[i], err = tensor.DecodeRequest(q.body); err != nil {
			return false
		}
	}
	merged, layout, err := batch.Merge(members)
	if err != nil {
		return false
	}
	merged.ID = rand.Text()
	body, err := tensor.AppendRequest(nil, merged)
	if err != nil {
		return false
	}
	answer, err := a.ask(ctx, group[0].path, merged.ID, body)
	if err != nil {
		a.log(1, "lines %d to %d together: %v; sending each alone", group[0].index+1, group[len(group)-1].index+1, err)
		return false
	}
	response, err := tensor.DecodeResponse(answer)
	if err != nil {
		return false
	}
	parts, err := batch.Split(response, layout)
	if err != nil {
		a.log(1, "lines %d to %d together: %v; sending each alone", group[0].index+1, group[len(group)-1].index+1, err)
		return false
	}
	for i, q := range group {
		// The parts share parameters.
		marked := tensor.Parameters{"batch_index": q.index, "inference_id": merged.ID}
		for name, value := range parts[i].Parameters {
			marked[name] = value
		}
		part := *parts[i]
		part.ID, part.Parameters = q.id, marked
		if q.answer, err = tensor.AppendResponse(nil, &part); err != nil {
			return false
		}
	}
	return true
}

// ask sends a request until there is an answer, a retry cannot help, or all
// retries are used.
func (a *asker) ask(ctx context.Context, path, id string, body []byte) ([]byte, error) {
	pause := minRetryWait
	for try := 1; ; try++ {
		answer, after, err := a.once(ctx, path, id, body)
		if err == nil || after < 0 || try == a.retries || ctx.Err() != nil {
			return answer, err
		}
		a.log(1, "try %d of %d: %v", try, a.retries, err)
		if err := wait(ctx, max(after, pause)); err != nil {
			return nil, err
		}
		pause = min(2*pause, maxRetryWait)
	}
}

// once sends a request. With an error it returns how long to wait before the next
// try; below 0 a retry cannot help.
func (a *asker) once(ctx context.Context, path, id string, body []byte) (answer []byte, after time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.gateway.Base+path, bytes.NewReader(body))
	if err != nil {
		return nil, -1, err
	}
	req.Header.Set("Content-Type", "application/json")
	a.gateway.authorize(req.Header)
	if id != "" {
		req.Header.Set("X-Request-Id", id)
		req.Header.Set("Seldon-Puid", id)
	}
	for _, h := range a.headers {
		name, value, _ := strings.Cut(h, ":")
		req.Header.Set(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	a.log(2, "POST %s %s", path, body)
	resp, err := a.client.Do(req)
	if err == nil {
		defer func() { _ = resp.Body.Close() }()
		answer, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes+1))
	}
	var u *url.Error
	switch {
	case errors.As(err, &u) && u.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return nil, 0, fmt.Errorf("no answer within %v", a.timeout)
	case errors.As(err, &u):
		return nil, 0, u.Err
	case err != nil:
		return nil, 0, err
	case len(answer) > maxAnswerBytes:
		return nil, -1, fmt.Errorf("the answer is over %d bytes", maxAnswerBytes)
	}
	a.log(2, "%s %s", resp.Status, answer)
	if resp.StatusCode/100 == 2 {
		return answer, 0, nil
	}
	return nil, retryAfter(resp), fmt.Errorf("%s: %s", resp.Status, errorText(answer))
}

// retryAfter is how long to wait before the next try; below 0, a retry cannot help.
func retryAfter(resp *http.Response) time.Duration {
	switch {
	case resp.StatusCode == http.StatusRequestTimeout, resp.StatusCode == http.StatusTooManyRequests,
		resp.StatusCode/100 == 5 && resp.StatusCode != http.StatusNotImplemented:
	default:
		return -1
	}
	n, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if err != nil || n < 0 {
		return 0
	}
	return min(time.Duration(min(n, 3600))*time.Second, maxRetryAfter)
}
