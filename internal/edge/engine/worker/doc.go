// Package worker serves models in worker processes. A worker is any program that
// speaks the frame protocol of docs/design/python-workers.md; each has a unix
// socket of its own. Package worker/python finds the program for Python models;
// ONNX models have another.
//
// An Engine keeps one pool of workers per environment (the default, a folder, a
// tarball) and inference_pool_gid. A pool begins with its first model and ends
// with its last. Every model is in every worker of its pool unless its settings
// name fewer; then it is in those that have the fewest models. A request goes to
// the ready worker with the fewest requests in flight. When a worker ends, requests
// that were not yet sent to it move to another worker; those that were sent fail,
// because the model may have acted on them.
//
// On Linux a fork server forks the workers of a pool that has several. It has
// imported the modules that the models use, so that the workers share that
// memory. When the fork server ends, this process becomes their parent (package
// child).
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
