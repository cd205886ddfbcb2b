package engines

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// stream is an event stream of which the first event has been read. What is not
// read stays in the engine: a stream of many megabytes lasts until it is.
type stream struct {
	t      *testing.T
	resp   *http.Response
	from   *bufio.Reader
	first  string
	cancel context.CancelFunc // the client leaves
}

// stream asks the gateway for one.
func (n *node) stream(path, body string) *stream {
	n.t.Helper()
	ctx, cancel := context.WithCancel(n.t.Context())
	n.t.Cleanup(cancel)
	resp, err := begin(ctx, "POST", n.gateway+path, body, "Content-Type", "application/json")
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = resp.Body.Close() })
	s := &stream{t: n.t, resp: resp, from: bufio.NewReader(resp.Body), cancel: cancel}
	if s.first, err = s.from.ReadString('\n'); err != nil || resp.StatusCode != 200 {
		n.t.Fatalf("the stream begins with %d %q (%v)", resp.StatusCode, s.first, err)
	}
	return s
}

// rest reads the stream to its end and returns its other events.
func (s *stream) rest() (events []string) {
	s.t.Helper()
	raw, err := io.ReadAll(s.from)
	if err != nil {
		s.t.Errorf("the stream is cut: %v after %q", err, raw[max(0, len(raw)-200):])
	}
	for event := range strings.SplitSeq(string(raw), "\n\n") {
		if event = strings.TrimSpace(event); event != "" {
			events = append(events, event)
		}
	}
	if len(events) == 0 {
		s.t.Fatal("no event follows the first")
	}
	return events
}

// whole fails unless the stream ends with [DONE] after so many tokens.
func (s *stream) whole(tokens int) {
	s.t.Helper()
	events := s.rest()
	if last := events[len(events)-1]; last != "data: [DONE]" {
		s.t.Errorf("the stream ends with %.300q", last)
	}
	if len(events) < tokens {
		s.t.Errorf("%d events of a stream of %d tokens", len(events), tokens)
	}
}

// used fails unless the stream ends with [DONE] after a count of so many tokens:
// some engines send several in one event.
func (s *stream) used(tokens int) {
	s.t.Helper()
	events := s.rest()
	if last := events[len(events)-1]; last != "data: [DONE]" || len(events) < 2 {
		s.t.Errorf("the stream ends with %.300q", last)
		return
	}
	contains(s.t, events[len(events)-2], fmt.Sprintf(`"completion_tokens":%d`, tokens))
}

// goesOn reads further lines, while the replica that sends them drains.
func (s *stream) goesOn(lines int) {
	s.t.Helper()
	for range lines {
		if line, err := s.from.ReadString('\n'); err != nil {
			s.t.Errorf("a stream of a replica that drains ends: %v after %q", err, line)
			return
		}
	}
}

// broken fails unless the stream ends with the event that says that its replica
// failed, after whole events.
func (s *stream) broken() {
	s.t.Helper()
	events := s.rest()
	contains(s.t, events[len(events)-1], "event: error\ndata: {\"error\":{", `"code":"replica_failed"`)
	for _, e := range events[:len(events)-1] {
		if !strings.HasPrefix(e, "data: {") || !strings.HasSuffix(e, "}") {
			s.t.Errorf("half an event: %.300q", e)
		}
	}
}

// hook runs what the pods of a catalog's entry run before SIGTERM, with the address of a
// replica in the place of the pod's own. It is closed when that ends.
func (n *node) hook(runtime string, p part) (gone <-chan struct{}) {
	n.t.Helper()
	rt := entry(n.t, runtime)
	m := rt.Components.Engine.Pod.Containers[0]
	if m.Lifecycle == nil || m.Lifecycle.PreStop == nil || m.Lifecycle.PreStop.Exec == nil {
		n.t.Fatalf("the entry %s has no hook", runtime)
	}
	words := slices.Clone(m.Lifecycle.PreStop.Exec.Command)
	script, port := words[len(words)-1], m.Ports[0].ContainerPort
	here, err := url.Parse(p.metrics())
	if err != nil {
		n.t.Fatal(err)
	}
	// It looks at once, and not only when gateways have heard of the pod's end.
	words[len(words)-1] = strings.NewReplacer("sleep 3; ", "", "time.sleep(3)\n", "",
		fmt.Sprintf("http://127.0.0.1:%d/", port), "http://"+here.Host+"/", fmt.Sprintf(`"127.0.0.1", %d`, port), fmt.Sprintf("%q, %s", here.Hostname(), here.Port())).Replace(script)
	if strings.Contains(words[len(words)-1], fmt.Sprint(port)) {
		n.t.Fatalf("the hook of %s is not one that this test can lead to %s: %s", runtime, here.Host, script)
	}
	if _, err := exec.LookPath("curl"); err != nil {
		n.t.Fatalf("%v: install curl, which hooks run", err)
	}
	ctx, cancel := context.WithTimeout(n.t.Context(), patience)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer cancel()
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			n.t.Errorf("the hook of %s: %v %s", runtime, err, out)
		}
	}()
	n.t.Cleanup(func() { cancel(); <-done })
	return done
}

// stays fails if what is to go on ends within the next moments: the hook has looked
// at the engine by then.
func stays(t *testing.T, gone <-chan struct{}) {
	t.Helper()
	select {
	case <-gone:
		t.Error("the hook did not wait for the stream")
	case <-time.After(3 * time.Second):
	}
}

// figures reads a page of metrics: the sum of the series by name.
func (n *node) figures(url string) map[string]float64 {
	n.t.Helper()
	a := n.send("GET", url, "")
	if a.status != 200 {
		n.t.Fatalf("GET %s: %s", url, a)
	}
	sums := map[string]float64{}
	for line := range strings.Lines(a.body) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), "} ")
		if !ok {
			series, value, _ = strings.Cut(strings.TrimSpace(line), " ")
		}
		name, _, _ := strings.Cut(series, "{")
		if x, err := strconv.ParseFloat(value, 64); err == nil && !strings.HasPrefix(name, "#") {
			sums[name] += x
		}
	}
	return sums
}

// figure waits until a metric of a page has a value.
func (n *node) figure(url, name string, want float64) {
	n.t.Helper()
	n.eventually(name+" is "+strconv.FormatFloat(want, 'g', -1, 64), func() (bool, string) {
		all := n.figures(url)
		got, ok := all[name]
		if !ok {
			return false, fmt.Sprintf("%s has no %s: %v", url, name, all)
		}
		return got == want, strconv.FormatFloat(got, 'g', -1, 64)
	})
}

// left fails unless an engine stops its work on a stream whose client leaves, by its own
// counters: in less than half of the time that the whole answer takes, which is measured
// first, and before it made half of the tokens. running waits until so many requests
// run; tokens is the counter of tokens made, "" where there is none.
func (n *node) left(page, body, tokens string, running func(want int)) {
	n.t.Helper()
	// Some engines count the tokens of a request once it has ended.
	made := func(of func()) float64 {
		before := n.figures(page)[tokens]
		of()
		running(0)
		return n.figures(page)[tokens] - before
	}
	var whole, took time.Duration
	all := made(func() {
		begun := time.Now()
		n.stream("/v1/completions", body).rest()
		whole = time.Since(begun)
	})
	var begun time.Time
	some := made(func() {
		s := n.stream("/v1/completions", body)
		running(1)
		begun = time.Now()
		s.cancel()
	})
	took = time.Since(begun)
	n.t.Logf("the whole stream took %s and %v tokens; left, the engine ended it after %s and %v", whole.Round(time.Millisecond), all, took.Round(time.Millisecond), some)
	if took >= whole/2 {
		n.t.Errorf("the engine went on for %s with a stream that its client left, and takes %s for all of it", took, whole)
	}
	if tokens != "" && (all == 0 || some >= all/2) {
		n.t.Errorf("of a stream that its client left the engine made %v tokens, of a whole one %v", some, all)
	}
}

// metrics is the address of a replica's page of metrics.
func (p part) metrics() string { return "http://" + cmp.Or(p.Metrics, p.HTTP+"/metrics") }
