package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/route"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// serveV1 serves what OpenAI and KServe v1 share: rest is the escaped path
// after "/v1/".
func (x *exchange) serveV1(rest string) {
	name, isModel := strings.CutPrefix(rest, "models/")
	switch {
	case rest == "models" || rest == "models/":
		x.only(x.listModels, http.MethodGet, http.MethodHead)
	case x.surface == surfaceV1:
		x.only(func() { x.predict(name) }, http.MethodPost)
	case isModel:
		x.only(func() { x.describeModel(name) }, http.MethodGet, http.MethodHead)
	case route.Inference(x.r.URL.Path):
		x.only(func() { x.complete("/v1/" + rest) }, http.MethodPost)
	default:
		x.unlisted()
	}
}

// unlisted answers at a path that is none by which models are asked: it is
// forwarded if an HTTPRoute names it.
func (x *exchange) unlisted() {
	if !x.passOn(x.r.URL.EscapedPath()) {
		x.fail(http.StatusNotFound, fmt.Sprintf("nothing is served at %s: it is none of the calls by which models are asked; a server's own path is reached where an HTTPRoute names it", x.r.URL.Path))
	}
}

// complete forwards a request by the model its body names; path is "/v1/…" or
// "/v2/…".
func (x *exchange) complete(path string) {
	x.setOperation(path)
	x.infers, x.protocol = true, service.ProtocolOpenAI
	if x.surface == surfaceCohere {
		x.protocol = service.ProtocolCohere
	}
	for _, enc := range x.r.Header["Content-Encoding"] {
		if enc != "" && enc != "identity" {
			x.fail(http.StatusUnsupportedMediaType, fmt.Sprintf("Content-Encoding %q: send the body uncompressed, so that its model can be read", enc))
			return
		}
	}
	if kinds := x.r.Header["Content-Type"]; len(kinds) > 1 {
		x.fail(http.StatusUnsupportedMediaType, fmt.Sprintf("Content-Type is given %d times: give it once", len(kinds)))
		return
	}
	if err := x.readBody(true); err != nil {
		x.refuseBody(err)
		return
	}
	parsed, err := x.parse()
	if err != nil {
		param, code := "model", ""
		var bad *openai.BodyError
		if errors.As(err, &bad) {
			param, code = bad.Code()
		}
		x.failWith(http.StatusBadRequest, err.Error(), param, code)
		return
	}
	x.parsed = parsed
	if !x.form {
		x.statesJSON()
	}
	x.model = string(parsed.Model)
	if !x.form {
		x.prompt = parsed.AppendPrompt(x.prompt, x.body.head)
	}
	x.path = func(p *dispatch.PoolConfig) string {
		if strings.HasPrefix(path, "/v1/") {
			return p.OpenAIPrefix + path
		}
		return path
	}
	x.serveModel()
}

// parse finds the model in the body, by its content type.
func (x *exchange) parse() (*openai.Request, error) {
	if kind := x.r.Header.Get("Content-Type"); kind != typeJSON {
		if t, params, err := mime.ParseMediaType(kind); err == nil && t == "multipart/form-data" {
			x.form = true
			return parseForm(x.body.head, params["boundary"])
		}
	}
	var err error
	x.request, err = openai.Parse(x.body.head)
	return &x.request, err
}

// statesJSON has the replica told that the body, which is JSON, is: clients
// that state nothing, and curl, say otherwise, and engines go by it.
func (x *exchange) statesJSON() {
	if kind := x.r.Header.Get("Content-Type"); !openai.IsJSON(kind) {
		x.r.Header["Content-Type"] = []string{typeJSON}
	}
}

// typeForm is curl's Content-Type where nothing is said. No model server reads
// such forms.
const typeForm = "application/x-www-form-urlencoded"

// typeJSON is the usual Content-Type, which need not be parsed.
const typeJSON = "application/json"

// predict forwards KServe v1's name:verb.
func (x *exchange) predict(nameVerb string) {
	colon := strings.LastIndexByte(nameVerb, ':')
	name, verb := nameVerb[:colon], nameVerb[colon:]
	if !x.setModel(name) {
		return
	}
	x.infers, x.protocol = true, service.ProtocolV1
	x.forwardPath("/v1/models/", name, verb)
}

// setModel takes the model's name from a path.
func (x *exchange) setModel(escaped string) bool {
	name, err := url.PathUnescape(escaped)
	if err != nil || name == "" {
		x.fail(http.StatusBadRequest, fmt.Sprintf("%q is no model name", escaped))
		return false
	}
	x.model = name
	return true
}

// forwardPath forwards a request whose path names the model, escaped as name.
// The body is streamed if it is long.
func (x *exchange) forwardPath(before, name, after string) {
	if err := x.readBody(false); err != nil {
		x.refuseBody(err)
		return
	}
	if x.r.Header.Get("Content-Type") == typeForm && x.body.tail == nil && json.Valid(x.body.head) {
		x.statesJSON()
	}
	x.path = func(*dispatch.PoolConfig) string {
		if to := x.grant.Model(); to != "" {
			return before + url.PathEscape(to) + after
		}
		return before + name + after
	}
	x.serveModel()
}

// modelInfo is OpenAI's model object with KServe's name and readiness.
type modelInfo struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	Name    string `json:"name"`
	Ready   bool   `json:"ready"` // requests are answered, at once or after a wake
	// State is Ready, Loading, Asleep or Failed; Reason says why it is not Ready.
	State  dispatch.State `json:"state"`
	Reason string         `json:"reason,omitempty"`
	// Root and Parent are of adapters: what it is, and the model it is laid over.
	Root   string `json:"root,omitempty"`
	Parent string `json:"parent,omitempty"`
	*anthropicModel
}

// rootOf is an adapter's repository on the Hugging Face Hub; where it is
// elsewhere, that is nobody's business who only sends requests, and it is its
// name.
func rootOf(a *dispatch.Adapter) string {
	if repo, ok := strings.CutPrefix(a.URI, "hf://"); ok {
		repo, _, _ = strings.Cut(repo, "?")
		return repo
	}
	return a.Name
}

func (x *exchange) modelInfo(s dispatch.Status) modelInfo {
	m := modelInfo{ID: s.Name, Object: "model", OwnedBy: s.Pool.Key.Namespace, Name: s.Name,
		Ready: s.Answers(), State: s.State, Reason: s.Message}
	if !s.Pool.Created.IsZero() {
		m.Created = s.Pool.Created.Unix()
	}
	if a := s.Adapter; a != nil {
		m.Root, m.Parent = rootOf(a), x.gw.dispatch.Name(s.Pool.Key, x.pass.Namespaces())
	}
	if x.surface == surfaceAnthropic {
		m.anthropicModel = &anthropicModel{"model", s.Name, time.Unix(m.Created, 0).UTC().Format(time.RFC3339)}
	}
	return m
}

// listModels is OpenAI's list, KServe's and, for its clients, Anthropic's in
// one object: those the request's key is for.
func (x *exchange) listModels() {
	list := struct {
		Object string      `json:"object"`
		Data   []modelInfo `json:"data"`
		Models []string    `json:"models"`
		*anthropicPage
	}{Object: "list", Data: []modelInfo{}, Models: []string{}}
	for _, s := range x.gw.dispatch.ModelsWithin(x.pass.Namespaces()) {
		if x.sees(s) {
			list.Data = append(list.Data, x.modelInfo(s))
			list.Models = append(list.Models, s.Name)
		}
	}
	if x.surface == surfaceAnthropic {
		list.anthropicPage = &anthropicPage{}
		if n := len(list.Models); n > 0 {
			list.FirstID, list.LastID = &list.Models[0], &list.Models[n-1]
		}
	}
	x.reply(http.StatusOK, list)
}

// anthropicPage says that the list is whole.
type anthropicPage struct {
	FirstID *string `json:"first_id"`
	LastID  *string `json:"last_id"`
	HasMore bool    `json:"has_more"`
}

// anthropicModel is what Anthropic's model object has besides.
type anthropicModel struct {
	Type        string `json:"type"`
	DisplayName string `json:"display_name"`
	CreatedAt   string `json:"created_at"`
}

// describeModel is OpenAI's model object and KServe v1's readiness. It wakes
// nothing.
func (x *exchange) describeModel(name string) {
	if !x.setModel(name) || !x.mayUse() {
		return
	}
	s, err := x.gw.dispatch.Resolve(x.query())
	if err != nil {
		x.refuse(err)
		return
	}
	info := x.modelInfo(s)
	info.ID, info.Name = x.model, x.model
	x.reply(http.StatusOK, info)
}
