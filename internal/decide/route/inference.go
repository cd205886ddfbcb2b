package route

import (
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
)

// v1Calls are the calls below /v1 by which models are asked, of OpenAI's,
// Anthropic's and Cohere's APIs and what engines have beside them.
var v1Calls = []string{
	"chat/completions", "chat/completions/render", "chat/completions/input_tokens", "completions", "completions/render", "fim/completions", "edits",
	"responses", "messages", "messages/count_tokens", "chat", "complete", "generate", "infill", "ocr",
	"embeddings", "embed", "rerank", "reranking", "score", "classify", "pooling", "moderations", "tokenize", "detokenize",
}

// v1Families are the calls below which every path is one.
var v1Families = []string{"audio", "images", "videos"}

// rootCalls are engines' own calls of the same kinds, and what tells no more
// than that a server is there.
var rootCalls = []string{
	"/", "/health", "/healthz", "/health_generate", "/ping", "/version",
	"/chat/completions", "/completion", "/completions", "/generate", "/generate_stream", "/infill", "/invocations", "/predict",
	"/embedding", "/embeddings", "/embed", "/embed_all", "/embed_sparse", "/encode", "/similarity",
	"/rerank", "/reranking", "/score", "/classify", "/pooling", "/tokenize", "/detokenize", "/apply-template", "/model_info", "/get_model_info",
}

// grpcCalls are those of the Open Inference Protocol that change nothing.
var grpcCalls = []string{"ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics", "ModelInfer", "ModelStreamInfer"}

// administrative, in lower case, are what model servers have below a model's path beside asking
// it and describing it.
var administrative = []string{"trace", "load", "unload"}

// Inference reports whether a path, unescaped, is a call by which models are
// asked or described, and none by which a server is administered: adapters are
// loaded, engines put to sleep, caches emptied, metrics read. A path that is
// not known is none, and so is one that a server may read as another: with dots
// to resolve, or escapes that are left.
func Inference(path string) bool {
	if strings.ContainsRune(path, '%') { // who unescapes it again arrives elsewhere
		return false
	}
	for segment := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '/' || r == '\\' }) {
		if segment, _, _ = strings.Cut(segment, ";"); segment == "." || segment == ".." { // who resolves it does, too
			return false
		}
	}
	path = strings.TrimPrefix(path, "/openai")
	if rest, ok := strings.CutPrefix(path, "/v1/"); ok {
		return inferenceV1(strings.TrimSuffix(rest, "/"))
	}
	if rest, ok := strings.CutPrefix(path, "/v2/"); ok {
		return inferenceV2(rest)
	}
	if call, ok := strings.CutPrefix(path, "/inference.GRPCInferenceService/"); ok {
		return slices.Contains(grpcCalls, call)
	}
	return path == "/v2" || slices.Contains(rootCalls, path)
}

func inferenceV1(rest string) bool {
	family, below, nested := strings.Cut(rest, "/")
	switch {
	case slices.Contains(v1Calls, rest), family == "models":
		return true // a model is described, or asked by KServe's verbs
	case family == "responses": // one that is stored
		return nested && !strings.Contains(below, "/") || strings.HasSuffix(below, "/cancel") || strings.HasSuffix(below, "/input_items")
	}
	return slices.Contains(v1Families, family)
}

func inferenceV2(rest string) bool {
	parts := strings.FieldsFunc(rest, func(r rune) bool { return r == '/' })
	switch {
	case len(parts) == 0:
		return true
	case parts[0] == "health", parts[0] == "chat", parts[0] == "embed", parts[0] == "rerank":
		return true
	case parts[0] != "models" || len(parts) < 2:
		return false
	}
	below := parts[2:]
	if len(below) > 1 && below[0] == "versions" {
		below = below[2:]
	}
	return !slices.ContainsFunc(below, administers)
}

// administers reports whether a segment of a path is administrative to a server
// that tells no upper from lower case, or takes parameters in a path.
func administers(segment string) bool {
	return slices.ContainsFunc(strings.Split(segment, "\\"), func(s string) bool {
		s, _, _ = strings.Cut(s, ";")
		return slices.Contains(administrative, strings.ToLower(strings.TrimSpace(s)))
	})
}

// beside are paths that nobody has: a match that takes them does so with every
// path of their root.
var beside = []string{"/-", "/v1/-", "/v2/-", "/openai/-", "/openai/v1/-"}

// names reports whether the match asks for a path, rather than for all of a root: the
// client's path, and that which its rule gives replicas.
func (m *httpMatch) names() bool {
	rule := &m.route.Rules[m.rule]
	if m.uncovers(&rule.Handling) || slices.ContainsFunc(rule.Backends, func(b routing.Backend) bool { return b.Handling != nil && m.uncovers(b.Handling) }) {
		return false
	}
	if m.spec.Path.Type == routing.MatchExact {
		return true
	}
	return !slices.ContainsFunc(beside, m.holdsPath)
}

// uncovers reports whether a rewrite of the match's prefix leads to all of a root.
func (m *httpMatch) uncovers(h *routing.Handling) bool {
	return h.Rewrite != nil && h.Rewrite.Path != nil && h.Rewrite.Path.Prefix != "" &&
		slices.Contains(beside, h.Rewrite.Path.Apply(strings.TrimSuffix(h.Rewrite.Path.Prefix, "/")+"/-"))
}
