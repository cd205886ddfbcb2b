// Package worker serves models in worker processes, of whatever program speaks
// docs/design/python-workers.md's frame protocol, each over a unix socket of
// its own. Package worker/python finds Python's; ONNX models have another.
//
// An Engine keeps one pool of workers per environment (the default, a folder, a
// tarball) and inference_pool_gid. A pool begins with its first model and ends
// with its last. Every model is in every worker of its pool unless its settings
// name fewer; then it is in those that have the fewest models. A request goes to
// the ready worker with the fewest requests in flight. One that was not yet sent
// moves to another worker when its worker ends; one that was sent fails, because
// the model may have acted on it.
//
// The workers of a pool of several are forked, on Linux, by a fork server that
// has imported what the models use, so that they share that memory. The server
// becomes their parent (package child), whatever becomes of the fork server.
//
// A worker that ends, breaks the protocol or is stuck is replaced, and the
// models are loaded again in the new one. Until then a model is ready as long
// as another of its workers has it.
//
//	Engine ─ pools ─ slots (one per worker) ─ worker (process + conn)
//	   │        └ forkServer (process)
//	   └ Model ─ placements (one per slot that has it) ─┘
//
// Goroutines: each slot has one that starts and replaces its worker; each
// worker has a reader, a writer, one for its output and one that watches its
// heartbeat.
package worker
