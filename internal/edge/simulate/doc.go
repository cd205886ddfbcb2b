// Package simulate holds an inference engine that computes nothing and takes
// its time: an OpenAI-compatible server whose queueing, batching, prefix cache,
// KV memory, LoRA slots and token rates follow those of an LLM engine, for
// demonstrations, tests and the evaluation of routing and scaling policies on
// machines without a GPU.
//
// [Scheduler] is the physics: a state machine without clock, I/O or randomness,
// stepped with events and the time they happen at, so that the HTTP server here
// drives it with the real clock and a trace replay with a virtual one. [Engine]
// is the server. Its answers say that they are simulated.
//
// # Physics
//
// The engine works in iterations, as engines with continuous batching do. One
// iteration computes a chunk of prefill tokens and one token of every decoding
// sequence, within a budget of tokens, and lasts
//
//	prefill tokens / prefill rate + load(n) / decode rate + adapter loads * load time
//
// with n sequences decoding and load(n) = 1 + slowdown*(n-1), never below 1.
//
// KV memory is a fixed number of blocks of 16 tokens. Running sequences hold
// blocks; blocks nobody holds stay as the prefix cache and are evicted, least
// recently used first, when memory is needed. A sequence at the head of the
// queue waits until its prompt fits. When a running sequence needs a block and
// none is left, the sequence admitted last is preempted: it gives up its blocks,
// returns to the head of the queue and is computed again.
//
// A token is four bytes of text; a block is 64 bytes.
package simulate
