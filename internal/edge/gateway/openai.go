package gateway

import (
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// serveV1 serves what OpenAI and KServe v1 share: rest is the escaped path
// after "/v1/".
func (x *exchange) serveV1(rest string) {
	name, isModel := strings.CutPrefix(rest, "models/")
	switch {
	case rest == "models" || rest == "models/":
		x.only(x.listModels, http.MethodGet, http.MethodHead)
	case isModel && (strings.HasSuffix(name, ":predict") || strings.HasSuffix(name, ":explain")):
		x.surface = surfaceV1
		x.only(func() { x.predict(name) }, http.MethodPost)
	case isModel:
		x.only(func() { x.describeModel(name) }, http.MethodGet, http.MethodHead)
	default:
		x.only(func() { x.complete(rest) }, http.MethodPost)
	}
}

// complete forwards an OpenAI request by the model its body names.
func (x *exchange) complete(rest string) {
	if enc := x.r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		x.fail(http.StatusUnsupportedMediaType, fmt.Sprintf("Content-Encoding %q: send the body uncompressed, so that its model can be read", enc))
		return
	}
	if err := x.readBody(true); err != nil {
		x.refuseBody(err)
		return
	}
	parsed, err := x.parse()
	if err != nil {
		var bad *openai.BodyError
		if errors.As(err, &bad) {
			x.w.Header().Set("Content-Type", "application/json")
			x.write(http.StatusBadRequest, bad.JSON())
			return
		}
		x.failWith(http.StatusBadRequest, err.Error(), "model", "")
		return
	}
	x.parsed = parsed
	x.model = string(parsed.Model)
	x.path = func(p *dispatch.Pool) string { return p.OpenAIPrefix + "/v1/" + rest }
	x.serveModel()
}

// parse finds the model in the body, by its content type.
func (x *exchange) parse() (*openai.Request, error) {
	if t, params, err := mime.ParseMediaType(x.r.Header.Get("Content-Type")); err == nil && t == "multipart/form-data" {
		x.form = true
		return parseForm(x.body.head, params["boundary"])
	}
	r, err := openai.Parse(x.body.head)
	return &r, err
}

// predict forwards KServe v1's name:verb.
func (x *exchange) predict(nameVerb string) {
	colon := strings.LastIndexByte(nameVerb, ':')
	name, verb := nameVerb[:colon], nameVerb[colon:]
	if !x.setModel(name) {
		return
	}
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
	x.path = func(p *dispatch.Pool) string {
		if x.grant.Named() {
			return before + url.PathEscape(p.ServedName) + after
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
}

func newModelInfo(s dispatch.Status) modelInfo {
	m := modelInfo{ID: s.Name, Object: "model", OwnedBy: s.Pool.Key.Namespace, Name: s.Name,
		Ready: s.Answers(), State: s.State, Reason: s.Message}
	if !s.Pool.Created.IsZero() {
		m.Created = s.Pool.Created.Unix()
	}
	return m
}

// listModels is OpenAI's list and KServe's in one object.
func (x *exchange) listModels() {
	list := struct {
		Object string      `json:"object"`
		Data   []modelInfo `json:"data"`
		Models []string    `json:"models"`
	}{Object: "list", Data: []modelInfo{}, Models: []string{}}
	for _, s := range x.gw.dispatch.Pools() {
		list.Data = append(list.Data, newModelInfo(s))
		list.Models = append(list.Models, s.Name)
	}
	x.reply(http.StatusOK, list)
}

// describeModel is OpenAI's model object and KServe v1's readiness. It wakes
// nothing.
func (x *exchange) describeModel(name string) {
	if !x.setModel(name) {
		return
	}
	s, err := x.gw.dispatch.Resolve(x.query())
	if err != nil {
		x.refuse(err)
		return
	}
	info := newModelInfo(s)
	info.ID, info.Name = x.model, x.model
	x.reply(http.StatusOK, info)
}
