package surface

import (
	"net/http"
	"net/url"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/route"
)

// Kind is what a path asks for.
type Kind int

// The kinds of calls. Those from DescribeModel on name their model in the path.
const (
	Unknown  Kind = iota // no path of the gateway's: an HTTPRoute may name it
	Unlisted             // below a surface, but no call by which models are asked: likewise
	NotFound             // no path of the surface's
	AsIs                 // forwarded as it stands
	Banner
	Health
	ServerMetadata
	ServerLive
	ServerReady
	ListModels
	RepositoryIndex
	ModelInBody // forwarded to the model that the body names
	DescribeModel
	ModelReady
	RepositoryLoad
	RepositoryUnload
	ModelInPath // forwarded to the model that the path names
)

// Call is what a path means.
type Call struct {
	Kind    Kind
	Surface Surface
	// Methods are those that the path takes; none for any.
	Methods []string
	// Open calls need no API key: they show only that the gateway runs.
	Open bool
	// Infers reports that the call asks for inference, which may be repeated.
	Infers bool
	// Events reports that the answer to a body with "stream": true is an event
	// stream, in which clients skip comments.
	Events bool
	// Protocol is whose call it is; "" for one that servers of any may answer.
	Protocol service.Protocol
	// Operation is OpenTelemetry's gen_ai.operation.name; "" when the path names
	// the model.
	Operation string
	// Model is the model's name, escaped, where the path names it: Before and
	// After are around it. Path is the whole path otherwise.
	Model, Before, After, Path string
	// Hint follows "nothing is served at PATH" in the answer 404.
	Hint string
}

// Forwards reports whether a replica answers calls of the kind.
func (k Kind) Forwards() bool { return k == AsIs || k == ModelInBody || k == ModelInPath }

// Known reports whether the path is a call to the gateway itself or to a model.
func (k Kind) Known() bool { return k != Unknown && k != Unlisted && k != NotFound && k != Banner }

// NamesModel reports whether the paths of calls of the kind name a model.
func (k Kind) NamesModel() bool { return k >= DescribeModel }

// Explains reports whether the call asks for an explanation.
func (c *Call) Explains() bool {
	return c.Kind == ModelInPath && (c.After == ":explain" || c.After == "/explain")
}

// Target is the path to ask a replica for: name is the one that it serves the
// model by, "" for the client's, and prefix what its engine has before /v1.
func (c *Call) Target(prefix, name string) string {
	switch {
	case c.Kind == ModelInPath && name != "":
		return c.Before + url.PathEscape(name) + c.After
	case c.Kind == ModelInPath:
		return c.Before + c.Model + c.After
	case c.Kind == ModelInBody && strings.HasPrefix(c.Path, "/v1/"):
		return prefix + c.Path
	}
	return c.Path
}

var (
	reads = []string{http.MethodGet, http.MethodHead}
	posts = []string{http.MethodPost}
)

// Paths is where inference is.
const Paths = "/v1/chat/completions and other OpenAI paths, /v1/models/{name}:predict, /v2/models/{name}/infer"

const (
	unknownHint  = "; inference is at " + Paths + "; names at /v1/models"
	unlistedHint = ": it is none of the calls by which models are asked; a server's own path is reached where an HTTPRoute names it"
	oipHint      = "; the protocol's paths are /v2, /v2/health/live, /v2/health/ready, /v2/models/{name}/infer and /v2/repository/index"
	verbHint     = "; the repository's verbs are load and unload"
)

// OperationOther is the operation of every path that has none of its own and
// whose body names the model.
const OperationOther = "other"

// inBody is a call whose body names the model.
func inBody(s Surface, path, operation string) Call {
	c := Call{Kind: ModelInBody, Surface: s, Methods: posts, Infers: true, Protocol: service.ProtocolOpenAI, Operation: operation, Path: path}
	if s == Cohere {
		c.Protocol = service.ProtocolCohere
	}
	return c
}

// streamed is a call whose body names the model and may ask for an event stream.
func streamed(s Surface, path, operation string) Call {
	c := inBody(s, path, operation)
	c.Events = true
	return c
}

// calls are the paths that are known whole. Operations are OpenTelemetry's own
// where its conventions have one.
var calls = map[string]Call{
	"/":                    {Kind: Banner, Open: true, Hint: unknownHint},
	"/healthz":             {Kind: Health, Methods: reads, Open: true},
	"/v2":                  {Kind: ServerMetadata, Surface: OIP, Methods: reads},
	"/v2/health/live":      {Kind: ServerLive, Surface: OIP, Methods: reads, Open: true},
	"/v2/health/ready":     {Kind: ServerReady, Surface: OIP, Methods: reads, Open: true},
	"/v2/repository/index": {Kind: RepositoryIndex, Surface: OIP, Methods: posts},
	"/v1/models":           {Kind: ListModels, Methods: reads},
	"/v1/models/":          {Kind: ListModels, Methods: reads},

	"/v1/chat/completions":      streamed(OpenAI, "/v1/chat/completions", "chat"),
	"/v1/responses":             streamed(OpenAI, "/v1/responses", "chat"),
	"/v1/completions":           streamed(OpenAI, "/v1/completions", "text_completion"),
	"/v1/embeddings":            inBody(OpenAI, "/v1/embeddings", "embeddings"),
	"/v1/rerank":                inBody(OpenAI, "/v1/rerank", "rerank"),
	"/v1/score":                 inBody(OpenAI, "/v1/score", "score"),
	"/v1/classify":              inBody(OpenAI, "/v1/classify", "classify"),
	"/v1/pooling":               inBody(OpenAI, "/v1/pooling", "pooling"),
	"/v1/moderations":           inBody(OpenAI, "/v1/moderations", "moderation"),
	"/v1/images/generations":    inBody(OpenAI, "/v1/images/generations", "image_generation"),
	"/v1/images/edits":          inBody(OpenAI, "/v1/images/edits", "image_edit"),
	"/v1/images/variations":     inBody(OpenAI, "/v1/images/variations", "image_variation"),
	"/v1/audio/speech":          inBody(OpenAI, "/v1/audio/speech", "speech"),
	"/v1/audio/transcriptions":  inBody(OpenAI, "/v1/audio/transcriptions", "transcription"),
	"/v1/audio/translations":    inBody(OpenAI, "/v1/audio/translations", "translation"),
	"/v1/messages":              streamed(Anthropic, "/v1/messages", "chat"),
	"/v1/messages/count_tokens": inBody(Anthropic, "/v1/messages/count_tokens", "count_tokens"),
	"/v1/chat":                  inBody(Cohere, "/v1/chat", "chat"),
	"/v1/embed":                 inBody(Cohere, "/v1/embed", "embeddings"),
	"/v2/chat":                  inBody(Cohere, "/v2/chat", "chat"),
	"/v2/embed":                 inBody(Cohere, "/v2/embed", "embeddings"),
	"/v2/rerank":                inBody(Cohere, "/v2/rerank", "rerank"),
	// Of vLLM, SGLang and llama.cpp, beside OpenAI's.
	"/tokenize":   inBody(OpenAI, "/tokenize", OperationOther),
	"/detokenize": inBody(OpenAI, "/detokenize", OperationOther),
}

// Find returns the call of a path: escaped as it came, plain without escapes.
// anthropic marks a client of Anthropic's API, whose models are listed at OpenAI's
// path.
func Find(escaped, plain string, anthropic bool) Call {
	path := escaped
	if strings.HasPrefix(path, "/openai/v1/") {
		path = path[len("/openai"):]
	}
	v1, v2 := strings.HasPrefix(path, "/v1/"), strings.HasPrefix(path, "/v2/")
	if v2 {
		path = strings.TrimSuffix(path, "/")
	}
	c, known := calls[path]
	switch {
	case known:
	case v1:
		c = findV1(path, plain)
	case v2:
		c = findOIP(path, plain)
	default:
		return Call{Kind: Unknown, Path: escaped, Hint: unknownHint}
	}
	switch {
	case anthropic && (c.Kind == ListModels || c.Kind == DescribeModel):
		c.Surface = Anthropic
	case c.Kind == Unlisted:
		c.Path, c.Hint = escaped, unlistedHint
	}
	return c
}

// findV1 is for paths below /v1/, which OpenAI, Anthropic and KServe v1 share.
func findV1(path, plain string) Call {
	rest := strings.TrimPrefix(path, "/v1/")
	if model, ok := strings.CutPrefix(rest, "models/"); ok {
		if strings.HasSuffix(model, ":predict") || strings.HasSuffix(model, ":explain") {
			colon := strings.LastIndexByte(model, ':')
			return Call{Kind: ModelInPath, Surface: V1, Methods: posts, Infers: true, Protocol: service.ProtocolV1,
				Before: "/v1/models/", Model: model[:colon], After: model[colon:]}
		}
		return Call{Kind: DescribeModel, Methods: reads, Model: model}
	}
	s := OpenAI
	if strings.HasPrefix(rest, "messages/") {
		s = Anthropic
	}
	if !route.Inference(plain) {
		return Call{Kind: Unlisted, Surface: s}
	}
	return inBody(s, path, OperationOther)
}

// findOIP is for paths below /v2/, without a slash at the end: "name",
// "name/action" and "name/versions/version/action" of models, and the
// repository's "name/verb".
func findOIP(path, plain string) Call {
	c := Call{Kind: NotFound, Surface: OIP, Hint: oipHint}
	if rest, ok := strings.CutPrefix(path, "/v2/repository/models/"); ok {
		var verb string
		c.Model, verb, _ = strings.Cut(rest, "/")
		c.Methods = posts
		switch verb {
		case "load":
			c.Kind = RepositoryLoad
		case "unload":
			c.Kind = RepositoryUnload
		default:
			c.Methods, c.Hint = nil, verbHint
		}
		return c
	}
	rest, ok := strings.CutPrefix(path, "/v2/models/")
	switch {
	case !ok:
		return c
	case !route.Inference(plain):
		c.Kind = Unlisted
		return c
	}
	name, action, acts := strings.Cut(rest, "/")
	c.Kind, c.Before, c.Model = ModelInPath, "/v2/models/", name
	if acts && action != "" {
		c.After = "/" + action
	}
	if versioned, ok := strings.CutPrefix(action, "versions/"); ok {
		_, action, _ = strings.Cut(versioned, "/")
	}
	switch action {
	case "ready":
		c.Kind, c.Methods = ModelReady, reads
	case "", "versions":
		c.Methods = reads
	case "infer", "generate", "infer_stream", "generate_stream":
		c.Methods, c.Infers, c.Protocol = posts, true, service.ProtocolV2
	} // others are documents and a model's own handlers, with any method
	return c
}
