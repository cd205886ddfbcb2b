package kvevents

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/core/openai"
)

// Tokenizer asks engines for the tokens of prompts (POST /tokenize, as vLLM has
// it), a few at a time, besides the requests.
type Tokenizer struct {
	client  *http.Client
	jobs    chan job
	held    atomic.Int64 // bytes of bodies
	prompts *prometheus.CounterVec
	done    sync.WaitGroup
	ctx     context.Context
	stop    context.CancelFunc

	mu      sync.Mutex
	refuses map[string]time.Time // addresses that do not tokenize, and until when
}

type job struct {
	address, path string
	body          []byte
	done          func(tokens []uint32)
}

const (
	tokenizeAtOnce  = 4
	tokenizeQueue   = 64
	tokenizeBytes   = 32 << 20 // of bodies that wait
	tokenizeTimeout = 10 * time.Second
	tokenizeAnswer  = 16 << 20
	// refusedFor is how long an engine is not asked that has no such call.
	refusedFor = 10 * time.Minute
	maxRefuses = 4096
)

// NewTokenizer returns a Tokenizer that works until Close.
func NewTokenizer() *Tokenizer {
	t := &Tokenizer{jobs: make(chan job, tokenizeQueue), prompts: newPromptCounts(), refuses: map[string]time.Time{}}
	t.client = &http.Client{Timeout: tokenizeTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{MaxIdleConnsPerHost: 1, MaxIdleConns: 256, IdleConnTimeout: time.Minute}}
	t.ctx, t.stop = context.WithCancel(context.Background())
	for range tokenizeAtOnce {
		t.done.Go(t.work)
	}
	return t
}

// Close ends the work.
func (t *Tokenizer) Close() {
	t.stop()
	t.done.Wait()
	t.client.CloseIdleConnections()
}

// Tokenize has the engine at an address tokenize the body of a request to a path,
// and then calls done with the tokens of its prompt, from another goroutine. It
// reports false, and does nothing, where too much waits already or the engine does
// not tokenize. The body is the Tokenizer's from then on.
func (t *Tokenizer) Tokenize(address, path string, body []byte, done func(tokens []uint32)) bool {
	if t.refused(address) {
		t.count(refused)
		return false
	}
	if n := int64(len(body)); t.held.Add(n) > tokenizeBytes {
		t.held.Add(-n)
		t.count(skipped)
		return false
	}
	select {
	case t.jobs <- job{address, path, body, done}:
		return true
	default:
		t.held.Add(-int64(len(body)))
		t.count(skipped)
		return false
	}
}

func (t *Tokenizer) refused(address string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	until, ok := t.refuses[address]
	if ok && time.Now().After(until) {
		delete(t.refuses, address)
		return false
	}
	return ok
}

func (t *Tokenizer) work() {
	for {
		select {
		case <-t.ctx.Done():
			return
		case j := <-t.jobs:
			t.count(t.serve(j))
			t.held.Add(-int64(len(j.body)))
		}
	}
}

// serve asks for the tokens of one prompt, and returns what came of it.
func (t *Tokenizer) serve(j job) (outcome int) {
	chat, ok := openai.AsChat(j.path, j.body)
	if !ok {
		return unsupported
	}
	tokens, err := t.ask(j.address, chat)
	switch {
	case err == nil && len(tokens) > 0:
		j.done(tokens)
		return tokenized
	case t.refused(j.address):
		return refused
	}
	return unanswered
}

// ask asks one engine. An error means that the prompt counts by what was sent
// where, as without events.
func (t *Tokenizer) ask(address string, body []byte) ([]uint32, error) {
	req, err := http.NewRequestWithContext(t.ctx, http.MethodPost, "http://"+address+"/tokenize", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := t.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // only read
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented, http.StatusUnauthorized, http.StatusForbidden:
		t.mu.Lock()
		if len(t.refuses) >= maxRefuses {
			clear(t.refuses)
		}
		t.refuses[address] = time.Now().Add(refusedFor)
		t.mu.Unlock()
		return nil, fmt.Errorf("%s does not tokenize: %s", address, resp.Status)
	default:
		return nil, fmt.Errorf("%s: %s", address, resp.Status)
	}
	var answer struct {
		Tokens []uint32 `json:"tokens"`
	}
	err = json.NewDecoder(io.LimitReader(resp.Body, tokenizeAnswer)).Decode(&answer)
	return answer.Tokens, err
}
