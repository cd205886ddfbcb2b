// Package engines runs real engines under the real binary: each is started by
// its entry of the catalog, asked through the gateway with the clients that
// people use, left, drained, killed and woken.
//
// `make test-engines` installs llama.cpp's llama-server, Triton, KServe's Python
// server and MLServer, and sets the variables that name the folders. Without
// them the tests are skipped, each with the target that installs its engine.
package engines
