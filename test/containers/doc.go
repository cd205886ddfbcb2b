// Package containers runs replicas as containers on this machine, with a real
// engine: the conformance suite of platforms, and the product itself. `make
// test-containers` runs it. Its images are made here, from programs built from this
// source, and loaded into the engine; no registry of others is needed.
package containers
