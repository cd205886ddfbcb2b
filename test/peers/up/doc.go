// Package up tests `roundhouse up` with the clients that people use, from
// PyPI, and with bytes written to bare sockets, over a model of trees, a
// simulated LLM engine and gRPC. The tests have the build tag peers.
package up
