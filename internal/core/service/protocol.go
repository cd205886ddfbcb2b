package service

import (
	"slices"
	"strings"
)

// Protocol is what a server speaks, in one vocabulary for all dialects.
type Protocol string

// The protocols. OME's openInference-v1 and -v2 are v1 and v2.
const (
	ProtocolV1     Protocol = "v1"
	ProtocolV2     Protocol = "v2"
	ProtocolGRPCV1 Protocol = "grpc-v1"
	ProtocolGRPCV2 Protocol = "grpc-v2"
	ProtocolOpenAI Protocol = "openAI"
	ProtocolCohere Protocol = "cohere"
)

// Protocols lists every protocol by rank, best first (KServe's order, then
// those it does not rank).
var Protocols = []Protocol{ProtocolV1, ProtocolV2, ProtocolGRPCV1, ProtocolGRPCV2, ProtocolOpenAI, ProtocolCohere}

// ParseProtocol reads a protocol in any dialect's spelling; ok is false for
// an unknown one. The empty string is "" and ok.
func ParseProtocol(s string) (p Protocol, ok bool) {
	switch strings.ToLower(s) {
	case "":
		return "", true
	case "openinference-v1":
		return ProtocolV1, true
	case "openinference-v2", "kfserving", "open-inference":
		return ProtocolV2, true
	}
	for _, p := range Protocols {
		if strings.EqualFold(string(p), s) {
			return p, true
		}
	}
	return "", false
}

// Rank is the protocol's place in Protocols; unknown and none rank last.
func (p Protocol) Rank() int {
	for i, q := range Protocols {
		if p == q {
			return i
		}
	}
	return len(Protocols)
}

// language reports whether p is one of the APIs of language models, which
// OpenAI stands for: engines have Anthropic's and others beside it.
func (p Protocol) language() bool { return p == ProtocolOpenAI || p == ProtocolCohere }

// AnsweredBy reports whether a server that speaks these protocols may answer a
// call of p; where none are known, any may. Only the two families are told
// apart: servers that list one of KServe's protocols often speak the others
// too, and engines that list OpenAI's have calls of other APIs beside it.
func (p Protocol) AnsweredBy(speaks []Protocol) bool {
	return p == "" || len(speaks) == 0 || slices.ContainsFunc(speaks, func(q Protocol) bool { return q.language() == p.language() })
}
