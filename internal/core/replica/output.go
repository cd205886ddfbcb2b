package replica

import (
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// maxCause is how many lines of output Cause gives.
const maxCause = 4

// errorWords are words of lines that report an error, in lower case.
var errorWords = []string{"error", "exception", "fatal", "panic:", "out of memory", "outofmemory", "failed", "cannot ", "can't ", "no such file", "not found", "segmentation fault", "core dumped", "assertion", "input_value="}

// levels are the log levels of lines that report no error, near their
// beginning; letters are short for them, at the beginning.
var (
	levels  = []string{"info", "debug", "warning", "warn", "trace"}
	letters = []string{"i", "d", "w"}
)

// glog is how lines of Google's logger begin: level, month and day.
var glog = regexp.MustCompile(`^[iwef][01]\d[0-3]\d$`)

// frames are in the lines of a traceback above its error, which a logger may
// have given a level; and in Python's warnings.
var frames = []string{"traceback (most recent", "file \"", "^^^^", "~~~~", "]  ", "warning: "}

// pointers are words of lines that refer to an error in earlier lines.
var pointers = []string{"root cause", "see above", "the above", "error above", "error(s) above", "failed to start.", "for further information visit"}

// options are words of lines that refuse an option, before the usage text.
var options = []string{"option", "flag", "argument"}

// Cause is of a process's last lines of output those that say best why it
// ended, oldest first: the one that refuses an option, before the usage text; the
// last that names an exception, and the last that looks like an error; or the
// last that look like errors, with those of the kind just before; where none
// does, so many of the last as otherwise says. Blank
// lines do not count. A structured log line is given by its error or message,
// and what one line says is not repeated by another.
func Cause(lines []string, otherwise int) []string {
	var out []string
	for _, l := range telling(lines, otherwise) {
		l = plain(l)
		if slices.ContainsFunc(out, func(o string) bool { return strings.Contains(o, l) }) {
			continue
		}
		out = append(slices.DeleteFunc(out, func(o string) bool { return strings.Contains(l, o) }), l)
	}
	return out
}

// telling returns the lines that Cause chooses, as they were written.
func telling(lines []string, otherwise int) []string {
	var trimmed []string
	for _, l := range lines {
		if l = strings.TrimSpace(l); l != "" {
			trimmed = append(trimmed, l)
		}
	}
	for i := len(trimmed) - 1; i > 0; i-- {
		if helps(trimmed[i]) && contains(strings.ToLower(trimmed[i-1]), options) {
			return trimmed[i-1 : i]
		}
	}
	end := len(trimmed)
	for end > 0 && !explains(trimmed[end-1]) {
		end--
	}
	if end == 0 {
		return trimmed[max(0, len(trimmed)-otherwise):]
	}
	if thrown := lastThrown(trimmed[:end]); thrown >= 0 && thrown < end-1 {
		return []string{trimmed[thrown], trimmed[end-1]}
	}
	out := []string{trimmed[end-1]}
	for i, between := end-2, 1; i >= 0 && len(out) < maxCause; i-- {
		switch {
		case explains(trimmed[i]):
			out = slices.Insert(out, 0, trimmed[i])
		case between > 0: // what a program says of its end comes between
			between--
		default:
			return out
		}
	}
	return out
}

// helps reports whether a line begins a usage text, or names the flag that prints it.
func helps(line string) bool {
	return strings.HasPrefix(strings.ToLower(line), "usage") || strings.HasPrefix(line, "See `") && strings.HasSuffix(line, " --help`.")
}

// plain is the error of a structured log line, JSON or as log/slog writes text,
// its message where it has no error, and any other line as it is.
func plain(line string) string {
	var fields struct{ Level, Error, Msg string }
	switch {
	case strings.HasPrefix(line, "{"):
		_ = json.Unmarshal([]byte(line), &fields) // a line that is no such JSON is quoted whole
	case strings.HasPrefix(line, "time="):
		for rest := line; rest != ""; {
			key, after, _ := strings.Cut(rest, "=")
			value, next, _ := strings.Cut(after, " ")
			if quoted, err := strconv.QuotedPrefix(after); err == nil {
				value, _ = strconv.Unquote(quoted)
				next = strings.TrimPrefix(after[len(quoted):], " ")
			}
			switch rest = next; key {
			case "level":
				fields.Level = value
			case "error":
				fields.Error = value
			case "msg":
				fields.Msg = value
			}
		}
	}
	switch {
	case fields.Level != "" && fields.Error != "":
		return fields.Error
	case fields.Level != "" && fields.Msg != "":
		return fields.Msg
	}
	return line
}

// lastThrown is the index of the last line that names an exception and what it
// says, -1 for none: what a dying program adds afterwards matters less.
func lastThrown(lines []string) int {
	for i := len(lines) - 1; i >= 0; i-- {
		if throws(lines[i]) && explains(lines[i]) {
			return i
		}
	}
	return -1
}

// throws reports whether a line has an exception's name, at its beginning or
// after a colon: "ValueError: …", "[core.py:1] torch.OutOfMemoryError: …",
// "model.cc:1] failed to load: ImportError: …".
func throws(line string) bool {
	if strings.HasPrefix(line, "panic: ") {
		return true
	}
	if _, rest, ok := strings.Cut(line, "] "); ok && !strings.HasPrefix(rest, " ") {
		line = rest
	}
	names := strings.Split(line, ": ")
	return slices.ContainsFunc(names[:len(names)-1], func(name string) bool {
		return !strings.Contains(name, " ") && name != "Error" && (strings.HasSuffix(name, "Error") || strings.HasSuffix(name, "Exception"))
	})
}

// explains reports whether a line by itself explains what went wrong.
func explains(line string) bool {
	low := strings.ToLower(line)
	if contains(low, pointers) || contains(low, frames) || strings.HasPrefix(low, "raise ") || strings.HasPrefix(low, "|") || strings.HasPrefix(low, "[type=") {
		return false // the last is what pydantic adds below a message of several lines
	}
	fields := strings.FieldsFunc(low, func(r rune) bool { return strings.ContainsRune(" \t[]:|=()", r) })
	for i, word := range fields {
		if i == 0 && glog.MatchString(word) {
			word = word[:1]
		}
		switch {
		case word == "e" && i < 2, contains(word, errorWords):
			return true
		case slices.Contains(levels, word) && i < 8, i < 2 && slices.Contains(letters, word):
			return false
		}
	}
	return contains(low, errorWords)
}

func contains(text string, words []string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
}
