package simulate

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"roundhouse.dev/roundhouse/internal/core/openai"
)

// writeTimeout bounds one write to a client that does not read.
const writeTimeout = time.Minute

// surface is what differs between the APIs that write texts.
type surface struct {
	idPrefix string
	// prompts reads what the request asks about, and turns its own words for what it
	// wishes into those of completions.
	prompts func(*inference) ([]string, error)
	// form makes the form of one answer.
	form func(*response) form
	// writeError answers with an error.
	writeError func(http.ResponseWriter, error)
}

// form is how an API writes an answer.
type form interface {
	// whole is the body of an answer that is no stream; kv is nil but of an engine that
	// computes prompts for others.
	whole(now []standing, kv *kvTransfer) any
	// news appends the events of one choice since sent, and updates sent.
	news(b []byte, choice int, sent *standing, now standing) []byte
	// end appends what follows the last event of every choice.
	end(b []byte, now []standing) []byte
}

var (
	chatSurface = surface{
		idPrefix: "chatcmpl-", writeError: writeError,
		prompts: func(in *inference) ([]string, error) { return in.params.chatPrompt() },
		form:    func(o *response) form { return completionForm{o, true, "chat.completion", "chat.completion.chunk"} },
	}
	textSurface = surface{
		idPrefix: "cmpl-", writeError: writeError,
		prompts: func(in *inference) ([]string, error) { return texts("prompt", in.params.Prompt) },
		form:    func(o *response) form { return completionForm{o, false, "text_completion", "text_completion"} },
	}
)

// serve answers the requests of an API.
func (e *Engine) serve(s surface) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		in, j, err := e.plan(w, r, s)
		if err != nil {
			s.writeError(w, err)
			return
		}
		f := e.controls.takeFault()
		if e.failEarly(w, r, f) {
			return
		}
		if err := e.driver.submit(j); err != nil {
			s.writeError(w, err)
			return
		}
		defer e.driver.abandon(j)
		out := &response{
			engine: e, w: w, job: j, in: in, fault: f,
			id: s.idPrefix + fmt.Sprintf("%016x", j.calls[0].sequence.ID), created: time.Now().Unix(),
		}
		if in.stream {
			out.stream(r, s.form(out))
		} else {
			out.whole(r, s.form(out))
		}
	}
}

// plan reads a request, and plans what is to be computed for it.
func (e *Engine) plan(w http.ResponseWriter, r *http.Request, s surface) (*inference, *job, error) {
	in, err := e.read(w, r)
	if err != nil {
		return nil, nil, err
	}
	prompts, err := s.prompts(in)
	if err != nil {
		return nil, nil, err
	}
	j, err := e.cfg.newJob(in, prompts)
	return in, j, err
}

// response writes the answer to one request.
type response struct {
	engine  *Engine
	w       http.ResponseWriter
	job     *job
	in      *inference
	fault   fault
	id      string
	created int64 // Unix seconds
}

// completionForm is the form of chat and of text completions.
type completionForm struct {
	*response
	chat          bool
	object, chunk string // of the whole answer and of an event
}

type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
	Details          struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// usage sums over the choices; the n choices of one prompt read it once.
func (o *response) usage(now []standing) usage {
	var u usage
	n := 1
	if o.in.params.N != nil {
		n = *o.in.params.N
	}
	for i, c := range o.job.calls {
		u.CompletionTokens += now[i].tokens
		if i%n == 0 {
			u.PromptTokens += c.sequence.PromptTokens
			u.Details.CachedTokens += now[i].cached
		}
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}

type wholeAnswer struct {
	ID         string      `json:"id"`
	Object     string      `json:"object"`
	Created    int64       `json:"created"`
	Model      string      `json:"model"`
	Choices    []any       `json:"choices"`
	Usage      usage       `json:"usage"`
	KVTransfer *kvTransfer `json:"kv_transfer_params,omitempty"`
}

type chatChoice struct {
	Index   int `json:"index"`
	Message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	} `json:"message"`
	FinishReason string `json:"finish_reason"`
}

type textChoice struct {
	Index        int    `json:"index"`
	Text         string `json:"text"`
	FinishReason string `json:"finish_reason"`
}

func (o completionForm) choice(i int) any {
	a := o.job.calls[i].answer
	if !o.chat {
		return textChoice{Index: i, Text: a.text, FinishReason: a.reason}
	}
	c := chatChoice{Index: i, FinishReason: a.reason}
	c.Message.Role, c.Message.Content = "assistant", a.text
	return c
}

// whole is the whole answer.
func (o completionForm) whole(now []standing, kv *kvTransfer) any {
	answer := wholeAnswer{ID: o.id, Object: o.object, Created: o.created, Model: o.in.model, Usage: o.usage(now), KVTransfer: kv}
	for i := range o.job.calls {
		answer.Choices = append(answer.Choices, o.choice(i))
	}
	return answer
}

// whole answers with one body when every choice has ended.
func (o *response) whole(r *http.Request, f form) {
	var now []standing
	for ended := false; !ended; {
		if o.job.wait(r.Context()) != nil {
			return
		}
		now = o.engine.driver.look(o.job, now[:0])
		ended = allEnded(now)
	}
	var kv *kvTransfer
	if o.engine.cfg.prefillOnly(&o.in.params) {
		kv = o.handOver(r)
	}
	body, err := json.Marshal(f.whole(now, kv))
	if err != nil {
		writeError(o.w, err)
		return
	}
	if o.fault.Mode == faultMidStream {
		o.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = o.w.Write(body[:len(body)/2])
		_ = http.NewResponseController(o.w).Flush()
		panic(http.ErrAbortHandler)
	}
	writeJSON(o.w, http.StatusOK, body)
}

func allEnded(now []standing) bool {
	for _, s := range now {
		if !s.ended {
			return false
		}
	}
	return true
}

// handOver tells a decoding engine where to pull the prompt's KV from.
func (o *response) handOver(r *http.Request) *kvTransfer {
	id := fmt.Sprintf("simulated-%d", o.engine.cfg.Seed)
	kv := &kvTransfer{DoRemotePrefill: true, RemoteEngineID: &id, RemoteBlockIDs: []int{}}
	for i := range blocksFor(o.job.calls[0].sequence.PromptTokens) {
		kv.RemoteBlockIDs = append(kv.RemoteBlockIDs, i)
	}
	if addr, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		host, port := addr.IP.String(), addr.Port
		kv.RemoteHost, kv.RemotePort = &host, &port
	}
	return kv
}

// stream answers with an event for every token, as they are computed.
func (o *response) stream(r *http.Request, f form) {
	head := o.w.Header()
	head.Set("Content-Type", "text/event-stream; charset=utf-8")
	head.Set("Cache-Control", "no-cache")
	sent := make([]standing, len(o.job.calls)) // ended: the finish_reason has been sent
	var now []standing
	var buf []byte
	for !allEnded(sent) {
		if o.job.wait(r.Context()) != nil {
			return
		}
		now = o.engine.driver.look(o.job, now[:0])
		buf = buf[:0]
		for i := range now {
			buf = f.news(buf, i, &sent[i], now[i])
		}
		if !o.send(buf) {
			return
		}
		if o.fault.Mode == faultMidStream && o.usage(sent).CompletionTokens >= o.fault.AfterTokens {
			panic(http.ErrAbortHandler)
		}
	}
	o.send(f.end(buf[:0], now))
}

// end appends the usage, if it was asked for, and the end of the stream.
func (o completionForm) end(b []byte, now []standing) []byte {
	if u, err := json.Marshal(o.usage(now)); err == nil && o.in.usage { // figures always have a JSON
		b = append(append(append(o.appendHead(b), `],"usage":`...), u...), "}\n\n"...)
	}
	return append(b, "data: [DONE]\n\n"...)
}

// news appends the events of one choice since sent, and updates sent.
func (o completionForm) news(b []byte, i int, sent *standing, now standing) []byte {
	a := o.job.calls[i].answer
	if sent.tokens == 0 && now.tokens > 0 && o.chat {
		b = o.appendEvent(b, i, `"delta":{"role":"assistant","content":""}`, "", "")
	}
	for ; sent.tokens < now.tokens; sent.tokens++ {
		b = o.appendEvent(b, i, "", a.token(sent.tokens), "")
	}
	if now.ended && !sent.ended {
		sent.ended = true
		b = o.appendEvent(b, i, "", "", a.reason)
	}
	return b
}

// appendHead appends an event up to the beginning of its list of choices.
func (o completionForm) appendHead(b []byte) []byte {
	b = append(append(b, `data: {"id":"`...), o.id...)
	b = append(append(b, `","object":"`...), o.chunk...)
	b = strconv.AppendInt(append(b, `","created":`...), o.created, 10)
	b = openai.AppendQuoted(append(b, `,"model":`...), o.in.model)
	return append(b, `,"choices":[`...)
}

// appendEvent appends an event with one choice: the given member, or else text.
func (o completionForm) appendEvent(b []byte, index int, member, text, reason string) []byte {
	b = o.appendHead(b)
	b = strconv.AppendInt(append(b, `{"index":`...), int64(index), 10)
	b = append(b, ',')
	switch {
	case member != "":
		b = append(b, member...)
	case !o.chat:
		b = openai.AppendQuoted(append(b, `"text":`...), text)
	case text == "":
		b = append(b, `"delta":{}`...)
	default:
		b = openai.AppendQuoted(append(b, `"delta":{"content":`...), text)
		b = append(b, '}')
	}
	b = append(b, `,"finish_reason":`...)
	if reason == "" {
		b = append(b, "null"...)
	} else {
		b = openai.AppendQuoted(b, reason)
	}
	return append(b, "}]}\n\n"...)
}

// send writes and flushes; false when the client has gone.
func (o *response) send(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	control := http.NewResponseController(o.w)
	_ = control.SetWriteDeadline(time.Now().Add(writeTimeout)) // a recorder has no deadlines
	if _, err := o.w.Write(b); err != nil {
		return false
	}
	return control.Flush() == nil
}
