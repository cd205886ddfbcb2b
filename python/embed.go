// Package python carries the roundhouse Python package, so that the server can
// give it to an interpreter that has never heard of it.
package python

import "embed"

// Files holds the package in a folder of its name, without tests and byte
// code. Every level of folders has a line of its own: a pattern that names a
// folder would leave out what begins with an underscore.
//
//go:embed roundhouse/*.py
//go:embed roundhouse/*/*.py
//go:embed roundhouse/*/*/*.py
//go:embed roundhouse/*/*/*/*.py
var Files embed.FS
