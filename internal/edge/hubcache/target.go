package hubcache

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/url"
	"strings"
)

// repo is a repository: its kind ("models", "datasets", "spaces") and its name,
// of one or two segments.
type repo struct{ kind, name string }

// key names the repository's folder.
func (r repo) key() string { return r.kind + "-" + digest(r.name)[:32] }

func digest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		_, _ = h.Write([]byte(p)) // never fails
		_, _ = h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil))
}

// target is what a path asks for. file and revision are unescaped.
type target struct {
	repo
	route    string // "resolve", or of the API: "info", "tree", "paths-info", "refs"; "" is passed on
	revision string
	file     string // below the revision; of "resolve" and "tree"
	query    string // raw
}

var errPath = errors.New("the path is malformed")

const (
	maxPath = 4096 // bytes of a request's path, escapes included
	maxName = 96   // bytes of a segment of a repository's name, as on the Hub
)

// parseTarget reads an escaped path. A path of no known route has route "";
// one that cannot be meant is an error.
func parseTarget(escaped, query string) (target, error) {
	if len(escaped) > maxPath || len(query) > maxPath || !strings.HasPrefix(escaped, "/") {
		return target{}, errPath
	}
	segments := strings.Split(escaped[1:], "/")
	for i, s := range segments {
		plain, err := url.PathUnescape(s)
		if err != nil || !clean(plain) || s == "" && i != len(segments)-1 {
			return target{}, errPath
		}
		segments[i] = plain
	}
	read := fileTarget
	if segments[0] == "api" {
		read, segments = apiTarget, segments[1:]
	}
	t, err := read(segments, query)
	if err == nil && len(t.path()) > maxPath { // it is asked for with more escapes than it came with
		return target{}, errPath
	}
	return t, err
}

// clean refuses what could be taken for another path on the way.
func clean(segment string) bool {
	for _, part := range strings.Split(segment, "/") {
		if part == "." || part == ".." {
			return false
		}
	}
	return !strings.ContainsFunc(segment, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// fileTarget reads [datasets/|spaces/]<repository>/resolve/<revision>/<file>.
func fileTarget(segments []string, query string) (target, error) {
	t := target{repo: repo{kind: "models"}, query: query}
	if k := segments[0]; k == "datasets" || k == "spaces" {
		t.kind, segments = k, segments[1:]
	}
	at := 1
	if len(segments) > 2 && segments[1] != "resolve" {
		at = 2
	}
	if len(segments) < at+3 || segments[at] != "resolve" {
		return target{}, nil
	}
	t.route, t.name, t.revision = "resolve", strings.Join(segments[:at], "/"), segments[at+1]
	t.file = strings.Join(segments[at+2:], "/")
	if !validName(segments[:at]) || t.revision == "" || t.file == "" || strings.HasSuffix(t.file, "/") {
		return target{}, errPath
	}
	return t, nil
}

// apiTarget reads what follows /api/.
func apiTarget(segments []string, query string) (target, error) {
	if len(segments) < 2 || segments[0] != "models" && segments[0] != "datasets" && segments[0] != "spaces" {
		return target{}, nil
	}
	t := target{repo: repo{kind: segments[0]}, query: query}
	rest := segments[1:]
	at := 1 // segments of the name
	if len(rest) > 1 && !apiRoute(rest[1]) {
		at = 2
	}
	if !validName(rest[:at]) {
		return target{}, nil
	}
	t.name = strings.Join(rest[:at], "/")
	return t.below(rest[at:]), nil
}

// below reads what follows a repository's name in the API; the zero target
// stands for routes that are passed on.
func (t target) below(rest []string) target {
	switch {
	case len(rest) == 0:
		t.route = "info"
	case len(rest) == 1 && rest[0] == "refs":
		t.route = "refs"
	case len(rest) == 2 && rest[0] == "revision" && rest[1] != "":
		t.route, t.revision = "info", rest[1]
	case len(rest) == 2 && rest[0] == "paths-info" && rest[1] != "":
		t.route, t.revision = "paths-info", rest[1]
	case len(rest) >= 2 && rest[0] == "tree" && rest[1] != "":
		t.route, t.revision, t.file = "tree", rest[1], strings.Join(rest[2:], "/")
	default:
		return target{}
	}
	return t
}

func apiRoute(s string) bool {
	return s == "revision" || s == "tree" || s == "paths-info" || s == "refs"
}

func validName(segments []string) bool {
	for _, s := range segments {
		if s == "" || len(s) > maxName || s[0] == '.' || s[0] == '-' || strings.Contains(s, "..") {
			return false
		}
		for _, c := range []byte(s) {
			if c != '.' && c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
				return false
			}
		}
	}
	return true
}

// path is the target's path at the Hub, escaped the way clients do.
func (t target) path() string {
	var b strings.Builder
	b.WriteByte('/')
	switch {
	case t.route != "resolve":
		b.WriteString("api/" + t.kind + "/")
	case t.kind != "models":
		b.WriteString(t.kind + "/")
	}
	b.WriteString(t.name)
	switch t.route {
	case "refs":
		b.WriteString("/refs")
	case "info":
		if t.revision != "" {
			b.WriteString("/revision/" + escape(t.revision))
		}
	default:
		b.WriteString("/" + t.route + "/" + escape(t.revision))
	}
	if t.file != "" {
		for _, s := range strings.Split(t.file, "/") {
			b.WriteString("/" + escape(s))
		}
	}
	return b.String()
}

// escape is url.PathEscape without the characters that some servers read as
// separators.
func escape(s string) string {
	return strings.NewReplacer("+", "%20", "%2B", "+", "%40", "@").Replace(url.QueryEscape(s))
}

func isHex(s string, n int) bool {
	if len(s) != n {
		return false
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// isCommit reports whether a revision names one commit for good.
func isCommit(s string) bool { return isHex(s, 40) }
