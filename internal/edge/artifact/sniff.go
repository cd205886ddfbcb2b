package artifact

import (
	"bytes"
	"encoding/binary"
	"path"
	"strconv"
	"strings"
)

// sniffFormat tells a model file's format from its first bytes, and from its
// name where the bytes say little. It returns "" for files that are no model.
func sniffFormat(name string, head []byte) string {
	ext := strings.ToLower(path.Ext(name))
	switch {
	case bytes.HasPrefix(head, []byte("GGUF")):
		return "gguf"
	case bytes.HasPrefix(head, []byte("CBM1")):
		return "catboost"
	case isXGBoost(head):
		return "xgboost"
	case isLegacyXGBoost(head):
		return "xgboost-legacy"
	case isLightGBM(head):
		return "lightgbm"
	case ext == ".onnx":
		return "onnx"
	case ext == ".mar", ext == ".pt", ext == ".pth", path.Base(name) == "pytorch_model.bin":
		return "pytorch"
	case ext == ".pmml", bytes.Contains(head, []byte("<PMML")):
		return "pmml"
	case ext == ".joblib":
		return "sklearn"
	case isPickle(head):
		if bytes.Contains(head, []byte("sklearn")) {
			return "sklearn"
		}
		return "pickle"
	}
	return ""
}

// isXGBoost recognises the first key of XGBoost's JSON and UBJSON documents.
// XGBoost sorts its keys, so "learner" comes first, before "version".
func isXGBoost(head []byte) bool {
	rest := bytes.TrimLeft(head, " \t\r\n")
	if !bytes.HasPrefix(rest, []byte("{")) {
		return false
	}
	first := rest[1:min(len(rest), 64)]
	if key := bytes.TrimLeft(first, " \t\r\n"); bytes.HasPrefix(key, []byte(`"learner"`)) {
		return true
	}
	// UBJSON: an optional count, then the key's length as an int64 ('L') or a
	// smaller integer, then its bytes.
	i := bytes.Index(first, []byte("\x07learner{"))
	return i > 0 && i < 24
}

// isLegacyXGBoost recognises the binary format that XGBoost wrote before 3.1:
// 136 bytes of parameters, perhaps after "binf", and then the objective's name.
func isLegacyXGBoost(head []byte) bool {
	head = bytes.TrimPrefix(head, []byte("binf"))
	const parameters = 136
	if len(head) < parameters+8 {
		return false
	}
	n := binary.LittleEndian.Uint64(head[parameters:])
	rest := head[parameters+8:]
	if n < 4 || n > 64 || uint64(len(rest)) < n {
		return false
	}
	return legacyObjective().Match(rest[:n])
}

var legacyObjective = pattern(`^(reg|binary|multi|rank|count|survival):[a-z_]+$`)

func isLightGBM(head []byte) bool {
	rest, ok := bytes.CutPrefix(head, []byte("tree"))
	return ok && bytes.HasPrefix(bytes.TrimLeft(rest, "\r\n"), []byte("version="))
}

// isPickle recognises the PROTO opcode with the protocols in use.
func isPickle(head []byte) bool {
	return len(head) >= 2 && head[0] == 0x80 && head[1] >= 2 && head[1] <= 5
}

// describe reads versions and parameters from a file's first and last bytes.
func describe(f *Facts, name, format string, head, tail []byte) {
	switch format {
	case "xgboost":
		f.setFramework("xgboost", name)
		for _, key := range []string{"num_feature", "num_class", "num_target"} {
			f.detail(key, xgboostText(after(tail, "learner_model_param"), key))
		}
		f.detail("objective", xgboostText(after(tail, "objective"), "name"))
		f.detail("booster", xgboostText(before(tail, "learner_model_param"), "name"))
		f.set(&f.FrameworkVersion, "frameworkversion", xgboostVersion(tail), name)
	case "xgboost-legacy":
		f.Format = "xgboost"
		f.setFramework("xgboost", name)
		f.set(&f.FormatVersion, "formatversion", "legacy-binary", name)
	case "lightgbm":
		f.setFramework("lightgbm", name)
		f.set(&f.FormatVersion, "formatversion", lineValue(head, "version"), name)
		for _, key := range []string{"num_class", "max_feature_idx", "objective"} {
			f.detail(key, lineValue(head, key))
		}
	case "onnx":
		describeONNX(f, name, head)
	case "sklearn":
		f.setFramework("sklearn", name)
		m := sklearnVersion().FindSubmatch(tail)
		if m == nil {
			m = sklearnVersion().FindSubmatch(head)
		}
		if m != nil {
			f.set(&f.FrameworkVersion, "frameworkversion", string(m[1]), name)
		}
	case "pytorch", "catboost":
		f.setFramework(format, name)
	}
}

var sklearnVersion = pattern(`(?s)_sklearn_version.{1,14}?([0-9]{1,4}\.[0-9]{1,4}(?:\.[0-9a-z]{1,8})?)`)

func after(b []byte, mark string) []byte {
	if i := bytes.LastIndex(b, []byte(mark)); i >= 0 {
		return b[i:]
	}
	return nil
}

// before keeps the 200 bytes in front of a mark: XGBoost ends its trees with
// the booster's name.
func before(b []byte, mark string) []byte {
	i := bytes.LastIndex(b, []byte(mark))
	if i < 0 {
		return nil
	}
	return after(b[max(0, i-200):i], "name")
}

// xgboostText returns the string value of a key, in JSON ("key":"value") or
// UBJSON (key S length value). It looks only shortly after the key.
func xgboostText(b []byte, key string) string {
	i := bytes.Index(b, []byte(key))
	if i < 0 {
		return ""
	}
	rest := b[i+len(key):]
	if m := jsonText().FindSubmatch(rest[:min(len(rest), 256)]); m != nil {
		return string(m[1])
	}
	if len(rest) < 2 || rest[0] != 'S' {
		return ""
	}
	width := map[byte]int{'i': 1, 'U': 1, 'I': 2, 'l': 4, 'L': 8}[rest[1]]
	if width == 0 || len(rest) < 2+width {
		return ""
	}
	n := bigEndian(rest[2 : 2+width])
	rest = rest[2+width:]
	if n > 200 || uint64(len(rest)) < n {
		return ""
	}
	return string(rest[:n])
}

var jsonText = pattern(`^"\s*:\s*"([^"\\]{0,200})"`)

func bigEndian(b []byte) (v uint64) {
	for _, c := range b {
		v = v<<8 | uint64(c)
	}
	return v
}

var (
	jsonVersion = pattern(`"version"\s*:\s*\[\s*(\d{1,5})\s*,\s*(\d{1,5})\s*,\s*(\d{1,5})\s*\]`)
	ubjVersion  = pattern(`(?s)version\[(?:#(?:L.{8}|i.|U.))?[iU](.)[iU](.)[iU](.)\]?\}`)
)

// xgboostVersion reads the document's last key, "version": [major, minor, patch].
func xgboostVersion(tail []byte) string {
	if m := jsonVersion().FindSubmatch(tail); m != nil {
		return string(m[1]) + "." + string(m[2]) + "." + string(m[3])
	}
	if m := ubjVersion().FindSubmatch(tail); m != nil && len(m[1]) == 1 && len(m[2]) == 1 && len(m[3]) == 1 {
		return strconv.Itoa(int(m[1][0])) + "." + strconv.Itoa(int(m[2][0])) + "." + strconv.Itoa(int(m[3][0]))
	}
	return ""
}

// lineValue returns the value of a line key=value.
func lineValue(head []byte, key string) string {
	for line := range bytes.Lines(head) {
		if v, ok := bytes.CutPrefix(line, []byte(key+"=")); ok {
			return strings.TrimSpace(string(v))
		}
	}
	return ""
}

// describeONNX reads the leading protobuf fields of a ModelProto: ir_version
// (1), producer_name (2) and producer_version (3).
func describeONNX(f *Facts, name string, head []byte) {
	for len(head) > 2 {
		tag := head[0]
		v, n := binary.Uvarint(head[1:])
		if n <= 0 {
			return
		}
		head = head[1+n:]
		if tag == 0x08 {
			f.detail("ir_version", strconv.FormatUint(v, 10))
			continue
		}
		if tag != 0x12 && tag != 0x1a || v > 200 || uint64(len(head)) < v {
			return
		}
		if tag == 0x12 {
			f.detail("producer", string(head[:v]))
		} else {
			f.detail("producer_version", string(head[:v]))
		}
		head = head[v:]
	}
}
