// Package modelserver tests `roundhouse serve` with real peers from PyPI: the
// clients people use, and MLServer itself, which answers the same requests side
// by side. The tests have the build tag peers.
package modelserver
