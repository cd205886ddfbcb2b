package gateway

import (
	"net/http"
	"strings"
)

// unsafe refuses what a replica may read otherwise than the gateway does; it is
// true when it has answered.
//
// A path with a segment "." or ".." is one: who resolves it arrives at another
// model, or at what no model is, past what was checked here. So is one with
// control characters. The method CONNECT asks for a tunnel, whose answer has no
// end that both sides agree on, and TRACE for the request's header back, with
// what the gateway has added.
func (x *exchange) unsafe() bool {
	if m := x.r.Method; m == http.MethodConnect || m == http.MethodTrace {
		x.fail(http.StatusNotImplemented, m+" is not served")
		return true
	}
	if !plainPath(x.r.URL.Path) {
		x.fail(http.StatusBadRequest, `the path has a segment "." or "..", or control characters, escaped or not`)
		return true
	}
	return false
}

// plainPath says whether a path, unescaped, means the same to all servers. An
// escaped slash separates segments for some.
func plainPath(path string) bool {
	for segment := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '/' || r == '\\' }) {
		if segment == "." || segment == ".." {
			return false
		}
	}
	return strings.IndexFunc(path, func(r rune) bool { return r < ' ' || r == 0x7f }) < 0
}
