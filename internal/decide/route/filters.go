package route

import (
	"net/url"
	"strconv"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
)

// RedirectError is that an HTTPRoute answers the request itself: with an address at
// which its client is to ask.
type RedirectError struct {
	Object   string // "HTTPRoute default/llm-route"
	Status   int
	Location string
}

// Error is where the client is sent.
func (e *RedirectError) Error() string { return e.Object + " redirects to " + e.Location }

// answer is the rule's own answer to a request that it takes, nil for none.
func (m *httpMatch) answer(q *Query) error {
	rule := &m.route.Rules[m.rule]
	switch {
	case rule.Fault != "":
		return &BackendError{Object: m.name(), Message: rule.Fault}
	case rule.Handling.Redirect != nil:
		return m.redirect(rule.Handling.Redirect, q)
	}
	return nil
}

// name is that of the match's route.
func (m *httpMatch) name() string { return string(m.route.RoutingKind()) + " " + m.route.Key.String() }

// handling is how requests to a backend of the rule are treated.
func (m *httpMatch) handling(b *routing.Backend) *routing.Handling {
	if b.Handling != nil {
		return b.Handling.OrNil()
	}
	return m.route.Rules[m.rule].Handling.OrNil()
}

// redirect is where a request is redirected to. As the Gateway API has it, the port is
// that of a scheme that is stated, and otherwise the one that the client asked.
func (m *httpMatch) redirect(r *routing.Redirect, q *Query) *RedirectError {
	scheme, host, port := r.Scheme, q.Host, ""
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.Contains(host[i:], "]") {
		host, port = host[:i], host[i+1:]
	}
	if r.Host != "" {
		host = r.Host
	}
	switch {
	case r.Port != 0:
		port = strconv.Itoa(int(r.Port))
	case scheme != "":
		port = ""
	}
	if scheme == "" {
		if scheme = "http"; q.Secure {
			scheme = "https"
		}
	}
	if scheme == "http" && port == "80" || scheme == "https" && port == "443" {
		port = ""
	}
	if port != "" {
		port = ":" + port
	}
	path := q.escapedPath()
	if r.Path != nil {
		path = r.Path.Apply(path)
	}
	if q.RawQuery != "" {
		path += "?" + q.RawQuery
	}
	return &RedirectError{Object: m.name(), Status: r.Status, Location: scheme + "://" + host + port + path}
}

// escapedPath is the path as a URL has it.
func (q *Query) escapedPath() string {
	return (&url.URL{Path: q.Path, RawPath: q.RawPath}).EscapedPath()
}

// Redirected is the answer of the HTTPRoute that takes a request by more than that it
// takes all, where that is none of a replica's; nil for none. It is for requests whose
// model may not be known yet: what a route answers after others' names is left to Resolve.
func (t *Table) Redirected(q Query) error {
	m := t.edited(&q)
	if m == nil || m.route.AfterNames && len(m.route.Hostnames) == 0 {
		return nil
	}
	return m.answer(&q)
}

// Rewritten is the escaped path that the HTTPRoute of a request gives replicas; false
// where it leaves the client's.
func (t *Table) Rewritten(q Query) (path string, ok bool) {
	m := t.edited(&q)
	if m == nil {
		return "", false
	}
	r := m.route.Rules[m.rule].Handling.Rewrite
	if r == nil || r.Path == nil {
		return "", false
	}
	return r.Path.Apply(q.escapedPath()), true
}

// edited is the match whose rule may have an answer of its own or changes the URL, nil
// where no rule of any route does.
func (t *Table) edited(q *Query) *httpMatch {
	if !t.http.edits {
		return nil
	}
	host := normalHost(q.Host)
	if ref, ok := t.hosts[host]; ok && ref.Name != "" {
		return nil
	}
	if m := t.find(q, host); m != nil && !m.everything {
		return m
	}
	return nil
}

// Edits reports whether an HTTPRoute has answers of its own or changes URLs.
func (t *Table) Edits() bool { return t.http.edits }
