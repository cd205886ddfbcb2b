package dispatch

import (
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// Request is what admission needs to know of a request. Everything but what
// routes it may be left out.
type Request struct {
	// To is where the request goes if somebody has settled that already; zero
	// has Host, the HTTPRoutes and Model decide.
	To   routing.Ref
	Host string // of the request; a port is ignored
	Path string // of its URL, unescaped; it, RawQuery and Method are for HTTPRoutes alone
	// RawQuery is the URL's without the question mark.
	RawQuery, Method string
	// Header gives the first value of a header by its canonical name, "" when
	// there is none; nil means the request has no headers.
	Header func(name string) string
	Model  string // as the request names it; may be empty if Host decides
	// Namespaces are the only ones there are for the request: names and hosts of
	// others are not found. None means all.
	Namespaces []string
	// Protocol is whose call it is; "" for one that servers of any may answer.
	Protocol service.Protocol
	// Bytes is how much body the request holds in memory while it waits.
	Bytes int64
	// Prompt is the prompt as raw bytes of the body, in order (system, tools,
	// messages, prompt or input), to find the replica that has computed most
	// of it before. It is only read within Admit.
	Prompt [][]byte
	// CacheSalt keeps prompts apart that would otherwise share what replicas
	// remember of them.
	CacheSalt string
	// MaxTokens bounds the answer; 0 when the request states no bound.
	MaxTokens int64
	// Objective names the InferenceObjective that gives the priority
	// (x-gateway-inference-objective), FairnessID whose turn the request is
	// among those of its priority (x-gateway-inference-fairness-id).
	Objective  string
	FairnessID string
	// Session is a key whose requests are to meet the same replica while that
	// can take them; "" for none.
	Session string
	// Subset are the addresses the request may go to; nil for any. They must
	// not change until Done.
	Subset []string
	// May says whether the request may use the service or shared pool it is
	// routed to; its error is Admit's. nil allows every one.
	May func(service.Key) error
	// Asker asks the pool's External picker, where it has one; nil: the
	// dispatcher picks all the same.
	Asker Asker
	// Idempotent says that it makes no difference how often a replica does the
	// request. Of others a failure after they were sent is repeated once.
	Idempotent bool
	// Deadline is when the request has no use any more; zero for never. It
	// shortens the wait and nothing else.
	Deadline time.Time
}

// Outcome is how a request ended.
type Outcome struct {
	// Failed is the replica's failure after its answer began; nil when it
	// answered, whatever the answer, and when the client left.
	Failed error
	// Usage is what the answer says it has cost; zero when it does not say.
	Usage Usage
}

// Usage counts the tokens of one request.
type Usage struct {
	Prompt     int64 `json:"prompt"`     // in the prompt
	Completion int64 `json:"completion"` // in the answer
	Cached     int64 `json:"cached"`     // of Prompt, found in the replica's prefix cache
}
