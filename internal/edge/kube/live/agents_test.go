package live

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// TestReadModels: of an agent's answer is kept what is of the service's models, within
// bounds, and an answer that is none is an error.
func TestReadModels(t *testing.T) {
	of, long := map[string]bool{"one": true, "two": true}, strings.Repeat("a", maxModelMessage)
	for name, c := range map[string]struct {
		text, want, err string
	}{
		"all":           {`{"one": {"loaded": true}, "two": {"message": "no tree", "failures": 3}}`, `{"one":{"loaded":true},"two":{"message":"no tree","failures":3}}`, ""},
		"none":          {`{}`, `{}`, ""},
		"null":          {`null`, `{}`, ""},
		"others":        {`{"three": {"loaded": true}, "one": {}}`, `{"one":{}}`, ""},
		"a null":        {`{"one": null}`, `{"one":{}}`, ""},
		"a long text":   {`{"one": {"message": "` + long + `bc"}}`, `{"one":{"message":"` + long + `…"}}`, ""},
		"too long":      {`{"three": {"message": "` + strings.Repeat("a", 2*maxModelBytes) + `"}}`, "", "over 65536 bytes of a model"},
		"a long name":   {`{"` + strings.Repeat("a", 2*maxModelBytes) + `": {}}`, "", "over 65536 bytes of a model"},
		"space":         {strings.Repeat(" ", 2*maxModelBytes) + `{}`, "", "over 65536 bytes of a model"},
		"a list":        {`[]`, "", "no JSON object"},
		"a word":        {`"a"`, "", "no JSON object"},
		"a number":      {`{"one": 1}`, "", "cannot unmarshal"},
		"half":          {`{"one": {"loaded": true}`, "", "EOF"},
		"nothing":       {``, "", "EOF"},
		"not JSON":      {`{"one": {"loaded": true}; `, "", "invalid character"},
		"over the most": {`{"one": {}` + strings.Repeat(`,"three":{}`, maxAgentBytes/10) + `}`, "", "EOF"},
	} {
		got, err := readModels(strings.NewReader(c.text), of)
		raw, _ := json.Marshal(got)
		switch {
		case c.err == "" && (err != nil || string(raw) != c.want):
			t.Errorf("%s: %.200s %v, want %.200s", name, raw, err, c.want)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: %.200s %v, want the error %q", name, raw, err, c.err)
		}
	}
}

// TestAgentMessages: what many models say is kept to a bound, and which are loaded all the
// same.
func TestAgentMessages(t *testing.T) {
	of, says := map[string]bool{}, map[string]replica.Guest{}
	for i := range 3 * maxModelMessages / maxModelMessage {
		name := fmt.Sprint("model-", i)
		of[name], says[name] = true, replica.Guest{Loaded: true, Message: strings.Repeat("a", maxModelMessage)}
	}
	raw, err := json.Marshal(says)
	if err != nil {
		t.Fatal(err)
	}
	got, err := readModels(strings.NewReader(string(raw)), of)
	if err != nil || len(got) != len(of) {
		t.Fatalf("%d models of %d, %v", len(got), len(of), err)
	}
	size := 0
	for name, g := range got {
		if size += len(strings.TrimSuffix(g.Message, "…")); !g.Loaded {
			t.Errorf("%s is not loaded", name)
		}
	}
	if size > maxModelMessages {
		t.Errorf("%d bytes of messages are kept, want %d at most", size, maxModelMessages)
	}
}

// TestAskAgents: agents that do not answer are asked apart from those that do, and again
// with these once they have.
func TestAskAgents(t *testing.T) {
	var mu sync.Mutex
	asked, mute := map[string]int{}, map[string]bool{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.Host)
		mu.Lock()
		asked[host]++
		hangs := mute[host]
		mu.Unlock()
		if hangs {
			<-r.Context().Done()
			return
		}
		_, _ = io.WriteString(w, `{"one": {"loaded": true}}`)
	}))
	t.Cleanup(server.Close)
	port := server.Listener.Addr().(*net.TCPAddr).Port
	v := newView(t, func(c *Config) { c.AgentPort, c.Log = port, slog.New(slog.DiscardHandler) })
	k := service.Key{Namespace: "ml", Name: "server"}
	v.mu.keys[setID{k.Namespace, shape.LabelValue(k.WorkloadName())}] = k
	v.mu.decided.records[k] = &fleet.Record{Revision: workload.Revision{Guests: []workload.Guest{{Name: "one"}},
		Components: []workload.Component{{Role: service.RoleEngine, Repository: workload.LayoutRoundhouse}}}}
	// The name leads to the same server as the number, so that one tells two agents apart.
	v.sawSlice(es(k, "s", service.RoleEngine, discoveryv1.AddressTypeIPv4, 8080, point{"good", "127.0.0.1", true, false}, point{"slow", "localhost", true, false}), true)
	round := func(of bool, timeout time.Duration, want ...string) {
		t.Helper()
		mu.Lock()
		clear(asked)
		mu.Unlock()
		client := &http.Client{Timeout: timeout}
		defer client.CloseIdleConnections()
		v.askAll(t.Context(), client, of)
		mu.Lock()
		defer mu.Unlock()
		if got := slices.Sorted(maps.Keys(asked)); !slices.Equal(got, want) {
			t.Errorf("asked %v, want %v", got, want)
		}
	}
	hangs := func(now bool) {
		mu.Lock()
		defer mu.Unlock()
		mute["localhost"] = now
	}
	const long, short = time.Minute, 100 * time.Millisecond
	hangs(true)
	round(true, long) // none is mute yet
	round(false, short, "127.0.0.1", "localhost")
	round(false, long, "127.0.0.1") // which does not wait for the other
	round(true, short, "localhost")
	if told := v.Agents(); len(told) != 1 || told[0].Pod != "good" || !told[0].Models["one"].Loaded {
		t.Errorf("the agents have told %+v", told)
	}
	hangs(false)
	round(true, long, "localhost")
	round(true, long)
	round(false, long, "127.0.0.1", "localhost")
	if told := v.Agents(); len(told) != 2 {
		t.Errorf("the agents have told %+v", told)
	}
}
