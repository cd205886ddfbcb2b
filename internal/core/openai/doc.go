// Package openai holds the words of OpenAI-style HTTP bodies: it finds the
// model and the prompt in a request, replaces the model's bytes and nothing
// else, reads token usage from answers and from event streams, and writes
// error bodies.
//
// A proxy must not rewrite what it forwards: decoding and encoding a body
// corrupts integers above 2^53, sorts keys and escapes "<", ">" and "&". So
// requests are scanned, not decoded. [Parse] validates the whole body in one
// pass and reports byte spans into it; it accepts exactly what
// encoding/json.Valid accepts, except for nesting beyond [MaxDepth] and the
// rules about the "model" member that [Parse] lists.
package openai
