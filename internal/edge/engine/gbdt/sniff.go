package gbdt

import (
	"bytes"
	"fmt"
	"io"
	"os"
)

// Format is a file format of a tree model.
type Format uint8

// The formats Sniff tells apart.
const (
	FormatUnknown Format = iota
	FormatXGBoostJSON
	FormatXGBoostUBJ
	FormatXGBoostLegacy // XGBoost's binary format before 3.1, which is not read
	FormatLightGBMText
)

// String names the format as in messages: "xgboost json".
func (f Format) String() string {
	switch f {
	case FormatXGBoostJSON:
		return "xgboost json"
	case FormatXGBoostUBJ:
		return "xgboost ubj"
	case FormatXGBoostLegacy:
		return "xgboost legacy binary"
	case FormatLightGBMText:
		return "lightgbm text"
	}
	return "unknown"
}

// SniffLen is how many first bytes of a file Sniff wants; fewer (a shorter
// file) are fine.
const SniffLen = 512

// Sniff tells a model's format from the first bytes of its file, never from
// its name: a .bst file may hold any of XGBoost's formats. It decides by the
// keys an XGBoost document starts with and the line a LightGBM model starts
// with, so a match is not yet a valid model.
func Sniff(header []byte) Format {
	switch {
	case isLightGBM(header):
		return FormatLightGBMText
	case isXGBoostJSON(header):
		return FormatXGBoostJSON
	case isXGBoostUBJ(header):
		return FormatXGBoostUBJ
	case isXGBoostLegacy(header):
		return FormatXGBoostLegacy
	}
	return FormatUnknown
}

// isLightGBM looks for the line "tree" and a key after it.
func isLightGBM(header []byte) bool {
	rest, ok := bytes.CutPrefix(header, []byte("tree"))
	if !ok {
		return false
	}
	rest = bytes.TrimLeft(rest, "\r\n")
	return bytes.HasPrefix(rest, []byte("version=")) || bytes.HasPrefix(rest, []byte("num_class="))
}

// isXGBoostJSON looks for an object whose first key is one of XGBoost's.
func isXGBoostJSON(header []byte) bool {
	rest, ok := bytes.CutPrefix(bytes.TrimLeft(header, " \t\r\n"), []byte("{"))
	if !ok {
		return false
	}
	rest = bytes.TrimLeft(rest, " \t\r\n")
	return bytes.HasPrefix(rest, []byte(`"learner"`)) || bytes.HasPrefix(rest, []byte(`"version"`))
}

// isXGBoostUBJ looks for the same in UBJSON: a brace, a length, the key.
func isXGBoostUBJ(header []byte) bool {
	if len(header) < 2 || header[0] != '{' {
		return false
	}
	width, ok := map[byte]int{'i': 1, 'U': 1, 'I': 2, 'l': 4, 'L': 8}[header[1]]
	if !ok || len(header) < 2+width {
		return false
	}
	key := header[2+width:]
	if header[1+width] != 7 { // the last byte of the big-endian length
		return false
	}
	return bytes.HasPrefix(key, []byte("learner")) || bytes.HasPrefix(key, []byte("version"))
}

// legacyNames are the objective and booster names a legacy file spells out
// after its fixed-size parameter block.
var legacyNames = [][]byte{
	[]byte("reg:"), []byte("binary:"), []byte("multi:"), []byte("rank:"), []byte("count:"), []byte("survival:"),
}

// legacyParameters is the size in bytes of that parameter block.
const legacyParameters = 136

// isXGBoostLegacy looks for the old magic words, or for the parameter block
// followed by a counted objective name.
func isXGBoostLegacy(header []byte) bool {
	header, magic := bytes.CutPrefix(header, []byte("binf"))
	if magic || bytes.HasPrefix(header, []byte("bs64\t")) {
		return true
	}
	if len(header) < legacyParameters+8 {
		return false
	}
	name := header[legacyParameters+8:] // an 8-byte length comes first
	for _, prefix := range legacyNames {
		if bytes.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// maxFileSize bounds a model file, in bytes.
const maxFileSize = 1 << 31

// Load reads the model file at path with the parser of a library's format.
// Errors name the path.
func Load(path, library string, parse func(data []byte) (*Model, error)) (*Model, error) {
	data, err := read(path)
	if err != nil {
		return nil, fmt.Errorf("%s model: %w", library, err)
	}
	m, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// read reads a regular file of at most maxFileSize bytes.
func read(path string) ([]byte, error) {
	info, err := os.Stat(path) // opening a pipe would wait for its writer
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file: name the model file itself", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	if info, err = f.Stat(); err != nil {
		return nil, err
	}
	if info.Size() > maxFileSize {
		return nil, fmt.Errorf("%s has %d bytes, more than %d", path, info.Size(), maxFileSize)
	}
	data := make([]byte, info.Size())
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return data, nil
}
