//go:build peers

package modelserver

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// request is one HTTP request, sent to several servers.
type request struct {
	kind   string // what it tries, for the list of differences
	method string
	path   string
	header map[string]string
	body   string

	headOnly bool // the answer's body is not compared
}

func (r request) String() string {
	return fmt.Sprintf("%s: %s %s %v %q", r.kind, r.method, r.path, r.header, shortened(r.body))
}

// answer is what a server said, in a form that compares.
type answer struct {
	status int
	header map[string]string // those that compared names
	body   any               // decoded JSON, a list of events, or text
}

func (a answer) String() string {
	body, err := json.Marshal(a.body)
	if err != nil {
		body = fmt.Append(nil, a.body)
	}
	return fmt.Sprintf("%d %s", a.status, shortened(string(body)))
}

// shortened keeps messages readable.
func shortened(text string) string {
	const most = 700
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}

// compared are the headers that belong to an answer. Others name the server,
// the moment, or the connection.
func compared(name string) bool {
	name = strings.ToLower(name)
	return name == "content-type" || name == "content-encoding" || name == "allow" || strings.HasPrefix(name, "ce-") || strings.HasPrefix(name, "x-")
}

// answerTimeout bounds one answer.
const answerTimeout = time.Minute

// maxAnswer bounds a body, in bytes.
const maxAnswer = 16 << 20

// client follows nothing and unpacks nothing, so that tests see what was sent,
// and keeps no connection: MLServer closes some after it has answered.
var client = &http.Client{
	Transport:     &http.Transport{DisableCompression: true, DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// ask sends a request and reads the whole answer. A server that gives none has a
// status of 0 and the reason as the body.
func (s *server) ask(t *testing.T, r request) answer {
	t.Helper()
	a, err := s.exchange(t.Context(), r)
	if err != nil {
		return answer{body: "no answer: " + err.Error()}
	}
	return a
}

// exchange is ask with an error where there is no answer.
func (s *server) exchange(ctx context.Context, r request) (a answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	sent, err := http.NewRequestWithContext(ctx, r.method, "http://"+s.http+r.path, strings.NewReader(r.body))
	if err != nil {
		return a, err
	}
	for name, value := range r.header {
		sent.Header.Set(name, value)
	}
	got, err := client.Do(sent)
	if err != nil {
		return a, err
	}
	defer func() { _ = got.Body.Close() }() // it was read
	raw, err := io.ReadAll(io.LimitReader(got.Body, maxAnswer))
	a = answer{status: got.StatusCode, header: map[string]string{}}
	for name, values := range got.Header {
		if compared(name) {
			a.header[strings.ToLower(name)] = strings.Join(values, ", ")
		}
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		a.body = "broken off: " + string(raw)
		return a, nil
	}
	if err != nil || r.headOnly {
		return a, err
	}
	if a.body, err = decoded(a.header, raw); err != nil {
		return a, fmt.Errorf("answered %d %v %q: %w", a.status, a.header, shortened(string(raw)), err)
	}
	return a, nil
}

// decoded reads a body as its headers say.
func decoded(header map[string]string, raw []byte) (any, error) {
	if header["content-encoding"] == "gzip" {
		z, err := gzip.NewReader(bytes.NewReader(raw))
		if err != nil {
			return nil, err
		}
		if raw, err = io.ReadAll(io.LimitReader(z, maxAnswer)); err != nil {
			return nil, err
		}
	}
	if len(raw) == 0 {
		return nil, nil //nolint:nilnil // no body is a body that compares
	}
	kind, _, _ := mime.ParseMediaType(header["content-type"])
	switch kind {
	case "application/json":
		return decodedJSON(raw)
	case "text/event-stream":
		return decodedEvents(string(raw))
	}
	return string(raw), nil
}

func decodedJSON(raw []byte) (v any, err error) {
	return v, json.Unmarshal(raw, &v)
}

// decodedEvents reads server-sent events whose data is JSON.
func decodedEvents(raw string) (any, error) {
	var events []any
	for block := range strings.SplitSeq(strings.TrimSuffix(raw, "\n\n"), "\n\n") {
		name, event := "message", any(nil)
		for line := range strings.SplitSeq(block, "\n") {
			field, value, ok := strings.Cut(line, ": ")
			if !ok {
				return nil, fmt.Errorf("not a line of an event: %q", line)
			}
			switch field {
			case "event":
				name = value
			case "data":
				var err error
				if event, err = decodedJSON([]byte(value)); err != nil {
					return nil, err
				}
			}
		}
		events = append(events, map[string]any{"event": name, "data": event})
	}
	return events, nil
}

// difference is one place where two answers differ.
type difference struct {
	path   string // status, header.NAME or body.PATH
	theirs string // MLServer's, as JSON; "absent" where there is nothing
	ours   string
}

func (d difference) String() string {
	return fmt.Sprintf("%s: MLServer %s, roundhouse %s", d.path, shortened(d.theirs), shortened(d.ours))
}

// compare lists where answers differ. Where the status does, the rest is of two
// kinds, and the difference holds the bodies.
func compare(theirs, ours answer) (all []difference) {
	if theirs.status != ours.status {
		return []difference{{"status", theirs.String(), ours.String()}}
	}
	names := map[string]bool{}
	for _, header := range []map[string]string{theirs.header, ours.header} {
		for name := range header {
			names[name] = true
		}
	}
	for name := range names {
		values(&all, "header."+name, headerOf(theirs, name), headerOf(ours, name))
	}
	values(&all, "body", ordered(theirs.body), ordered(ours.body))
	slices.SortFunc(all, func(a, b difference) int { return strings.Compare(a.path, b.path) })
	return all
}

// generated are identifiers that a server makes up.
var generated = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// headerOf gives a header's value, nil for none.
func headerOf(a answer, name string) any {
	value, ok := a.header[name]
	if !ok {
		return absent
	}
	return value
}

// missing is the value of what is not there.
type missing struct{}

var absent = missing{}

// values compares two decoded values and appends what differs.
func values(all *[]difference, path string, theirs, ours any) {
	switch a := theirs.(type) {
	case map[string]any:
		if b, ok := ours.(map[string]any); ok {
			objects(all, path, a, b)
			return
		}
	case []any:
		if b, ok := ours.([]any); ok && len(a) == len(b) {
			for i := range a {
				values(all, fmt.Sprintf("%s.%d", path, i), a[i], b[i])
			}
			return
		}
	case float64:
		if b, ok := ours.(float64); ok && near(a, b) {
			return
		}
	case string:
		if b, ok := ours.(string); ok && (a == b || generated.MatchString(a) && generated.MatchString(b)) {
			return
		}
	default:
		if a == ours {
			return
		}
	}
	*all = append(*all, difference{path, shown(theirs), shown(ours)})
}

func objects(all *[]difference, path string, theirs, ours map[string]any) {
	for name, a := range theirs {
		b, ok := ours[name]
		if !ok {
			b = absent
		}
		values(all, path+"."+name, a, b)
	}
	for name, b := range ours {
		if _, ok := theirs[name]; !ok {
			values(all, path+"."+name, absent, b)
		}
	}
}

// near tells whether two numbers agree to 1e-6, absolute below one.
func near(a, b float64) bool {
	return math.Abs(a-b) <= 1e-6*max(1, math.Abs(a), math.Abs(b))
}

func shown(v any) string {
	if v == absent {
		return "absent"
	}
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(text)
}

// ordered sorts an index of models, whose order means nothing.
func ordered(body any) any {
	list, ok := body.([]any)
	if !ok || !slices.ContainsFunc(list, func(v any) bool { m, ok := v.(map[string]any); return ok && m["state"] != nil }) {
		return body
	}
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b any) int { return strings.Compare(shown(a), shown(b)) })
	return list
}
