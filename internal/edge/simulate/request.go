package simulate

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"roundhouse.dev/roundhouse/internal/core/openai"
)

// Bounds of a request, in choices or inputs.
const (
	maxChoices = 256
	maxInputs  = 1024
)

// refusal is an error with the status and the OpenAI fields to answer with.
type refusal struct {
	status             int
	message            string
	typ, param, reason string
}

func (r *refusal) Error() string { return r.message }

func invalid(param, format string, args ...any) error {
	return &refusal{http.StatusBadRequest, fmt.Sprintf(format, args...), openai.TypeInvalidRequest, param, "invalid_value"}
}

// refusalOf is what err is answered with.
func refusalOf(err error) *refusal {
	var r *refusal
	var body *openai.BodyError
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &r):
		return r
	case errors.As(err, &body):
		param, code := body.Code()
		return &refusal{http.StatusBadRequest, body.Error(), openai.TypeInvalidRequest, param, code}
	case errors.As(err, &large):
		return &refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("body is over the limit of %d bytes", large.Limit), openai.TypeInvalidRequest, "", "body_too_large"}
	case errors.Is(err, errBusy):
		return &refusal{http.StatusTooManyRequests, err.Error() + ": try again later", openai.TypeRateLimit, "", "queue_full"}
	}
	return &refusal{http.StatusBadRequest, err.Error(), openai.TypeInvalidRequest, "", ""}
}

// writeError answers with err in OpenAI's form.
func writeError(w http.ResponseWriter, err error) {
	writeRefusal(w, err, func(r *refusal) []byte { return openai.ErrorJSON(r.message, r.typ, r.param, r.reason) })
}

// writeRefusal answers with err in the form of an API.
func writeRefusal(w http.ResponseWriter, err error, form func(*refusal) []byte) {
	if errors.Is(err, errBusy) {
		w.Header().Set("Retry-After", "1")
	}
	r := refusalOf(err)
	writeJSON(w, r.status, form(r))
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that has gone needs no answer
}

// kvTransfer is vLLM's kv_transfer_params.
type kvTransfer struct {
	DoRemotePrefill bool    `json:"do_remote_prefill"`
	DoRemoteDecode  bool    `json:"do_remote_decode"`
	RemoteEngineID  *string `json:"remote_engine_id"`
	RemoteBlockIDs  []int   `json:"remote_block_ids"`
	RemoteHost      *string `json:"remote_host"`
	RemotePort      *int    `json:"remote_port"`
}

// parameters are the members of a request that the simulator heeds; all others
// are ignored.
type parameters struct {
	Messages []message       `json:"messages"`
	Tools    json.RawMessage `json:"tools"`
	Prompt   json.RawMessage `json:"prompt"`
	Input    json.RawMessage `json:"input"`

	N                   *int            `json:"n"`
	MaxTokens           *int            `json:"max_tokens"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	MaxOutputTokens     *int            `json:"max_output_tokens"` // of /v1/responses
	MinTokens           int             `json:"min_tokens"`
	IgnoreEOS           bool            `json:"ignore_eos"`
	Stop                json.RawMessage `json:"stop"`
	StopSequences       json.RawMessage `json:"stop_sequences"` // of /v1/messages
	Seed                json.RawMessage `json:"seed"`
	KVTransfer          *kvTransfer     `json:"kv_transfer_params"`
	Dimensions          *int            `json:"dimensions"`
	EncodingFormat      string          `json:"encoding_format"`
}

// message is one chat message; content is a string or a list of parts.
type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// inference is a request that has been read.
type inference struct {
	body    []byte
	model   string // as asked for
	adapter string // or empty
	stream  bool
	usage   bool // the stream ends with usage
	params  parameters
}

// read takes in an inference request.
func (e *Engine) read(w http.ResponseWriter, r *http.Request) (*inference, error) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(time.Minute)) // a recorder has no deadlines
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, e.cfg.MaxBodyBytes))
	if err != nil {
		return nil, err
	}
	_ = control.SetReadDeadline(time.Time{})
	head, err := openai.Parse(body)
	if err != nil {
		return nil, err
	}
	in := &inference{body: body, model: string(head.Model), stream: head.Stream, usage: head.IncludeUsage}
	if in.adapter, err = e.adapters.resolve(in.model); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(body, &in.params); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return nil, invalid(wrong.Field, "%q is a %s: want %s", wrong.Field, wrong.Value, wrong.Type)
		}
		return nil, err
	}
	return in, nil
}

// chatPrompt renders the messages as one text. A conversation that goes on
// renders to a text that goes on, so that its KV is found in the cache.
func (p *parameters) chatPrompt() ([]string, error) {
	if len(p.Messages) == 0 {
		return nil, invalid("messages", `"messages" is missing or empty`)
	}
	var b strings.Builder
	if len(p.Tools) > 0 && string(p.Tools) != "null" {
		b.WriteString("<|tools|>\n")
		b.Write(p.Tools)
		b.WriteByte('\n')
	}
	for i, m := range p.Messages {
		if m.Role == "" {
			return nil, invalid(fmt.Sprintf("messages[%d].role", i), "messages[%d] has no role", i)
		}
		b.WriteString("<|" + m.Role + "|>\n")
		writeContent(&b, m.Content)
		b.WriteByte('\n')
	}
	b.WriteString("<|assistant|>\n")
	return []string{b.String()}, nil
}

// writeContent writes a message's content: a string, the text of its parts, or,
// of what is no text, the raw JSON.
func writeContent(b *strings.Builder, raw json.RawMessage) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		b.WriteString(text)
		return
	}
	var parts []struct {
		Text *string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		b.Write(raw)
		return
	}
	for _, part := range parts {
		if part.Text == nil {
			b.Write(raw)
			return
		}
	}
	for _, part := range parts {
		b.WriteString(*part.Text)
	}
}

// texts reads a prompt or input: a string, strings, token ids, or lists of them.
// Token ids become four bytes each.
func texts(name string, raw json.RawMessage) ([]string, error) {
	var one string
	var many []string
	var ids []uint32
	var lists [][]uint32
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return nil, invalid(name, "%q is missing", name)
	case json.Unmarshal(raw, &one) == nil:
		many = []string{one}
	case json.Unmarshal(raw, &many) == nil:
	case json.Unmarshal(raw, &ids) == nil:
		many = []string{idsText(ids)}
	case json.Unmarshal(raw, &lists) == nil:
		many = nil
		for _, ids := range lists {
			many = append(many, idsText(ids))
		}
	default:
		return nil, invalid(name, "%q is no string, list of strings, list of token ids, or list of such lists", name)
	}
	if len(many) == 0 {
		return nil, invalid(name, "%q is empty", name)
	}
	return many, nil
}

func idsText(ids []uint32) string {
	b := make([]byte, 0, len(ids)*TokenBytes)
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	return string(b)
}

// wish reads what the request says about its answer's length.
func (c *Config) wish(p *parameters, promptTokens int) (wish, error) {
	available := c.Physics.KVBlocks*BlockTokens - promptTokens
	w := wish{maxTokens: min(c.DefaultMaxTokens, max(available, 1)), minTokens: p.MinTokens, ignoreEnd: p.IgnoreEOS}
	limit := p.MaxCompletionTokens
	if limit == nil {
		limit = p.MaxTokens
	}
	if limit != nil {
		w.maxTokens = *limit
	}
	if w.maxTokens < 1 {
		return w, invalid("max_tokens", "max_tokens is %d: want 1 or more", w.maxTokens)
	}
	if c.prefillOnly(p) {
		w.maxTokens, w.ignoreEnd = 1, true
	}
	if w.maxTokens > available {
		return w, &refusal{http.StatusBadRequest,
			fmt.Sprintf("%d prompt tokens and %d output tokens are over the context length of %d tokens", promptTokens, w.maxTokens, available+promptTokens),
			openai.TypeInvalidRequest, "max_tokens", "context_length_exceeded"}
	}
	var one string
	if json.Unmarshal(p.Stop, &one) == nil && one != "" {
		w.stop = []string{one}
	} else {
		_ = json.Unmarshal(p.Stop, &w.stop) // anything else stops nothing
	}
	return w, nil
}

// prefillOnly tells that the first token is all this engine shall compute.
func (c *Config) prefillOnly(p *parameters) bool {
	return c.Role == RolePrefill || p.KVTransfer != nil && p.KVTransfer.DoRemoteDecode
}

// newJob plans the choices of a completion: n for each prompt.
func (c *Config) newJob(in *inference, prompts []string) (*job, error) {
	n := 1
	if in.params.N != nil {
		n = *in.params.N
	}
	if n < 1 || n > maxChoices || n*len(prompts) > maxChoices {
		return nil, invalid("n", "%d choices of %d prompts: want 1 to %d altogether", n, len(prompts), maxChoices)
	}
	j := &job{progress: make(chan struct{}, 1)}
	seed := c.seed(in.params.Seed)
	for _, prompt := range prompts {
		tokens := tokensIn(len(prompt))
		w, err := c.wish(&in.params, tokens)
		if err != nil {
			return nil, err
		}
		about := facts(in, tokens, w, seed)
		for range n {
			rng := rand.New(rand.NewPCG(seed, xxhash.Sum64String(prompt)+uint64(len(j.calls))))
			a := compose(rng, about, c.MeanOutputTokens, w)
			j.calls = append(j.calls, &call{answer: a, text: prompt + a.text, sequence: Sequence{
				PromptTokens: tokens, OutputTokens: a.tokens,
				Keys:          BlockKeys(c.cacheSeed(in.adapter), prompt, a.text),
				Adapter:       in.adapter,
				RemotePrefill: in.params.KVTransfer != nil && in.params.KVTransfer.DoRemotePrefill,
			}})
		}
	}
	return j, nil
}

// seed is the request's own, whatever it looks like, or else the engine's.
func (c *Config) seed(raw json.RawMessage) uint64 {
	if len(raw) == 0 || string(raw) == "null" {
		return c.Seed
	}
	if n, err := strconv.ParseUint(string(raw), 10, 64); err == nil {
		return n
	}
	return xxhash.Sum64(raw)
}

// cacheSeed keeps apart the KV of the base model and of each adapter.
func (c *Config) cacheSeed(adapter string) string { return c.Models[0] + "\x00" + adapter }
