package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// TestQueueOfAService: a service bounds who waits, and for how long; another one has the
// process's bounds.
func TestQueueOfAService(t *testing.T) {
	t.Parallel()
	n := startNode(t, "--queue-max-wait", "500ms")
	bounded := strings.Replace(onPlain(1, `, --decode-tokens-per-second, "5"`), "maxReplicas: 2", "maxReplicas: 1, maxConcurrency: 1, queue: {maxRequests: 1, maxWait: 1m}", 1)
	other := strings.NewReplacer("name: chat", "name: other", "--model, chat", "--model, other", "queue: {maxRequests: 1, maxWait: 1m}", "answerTimeout: 10m").Replace(bounded)
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "chat.yaml", bounded+"---\n"+other))
	ask := func(model string, tokens int) answer {
		a, err := try("POST", n.gateway+"/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":"hello","max_tokens":%d}`, model, tokens))
		if err != nil {
			return answer{body: err.Error()}
		}
		return a
	}
	busy := func(model string, requests, tokens int) (answers chan answer) {
		answers = make(chan answer, requests)
		for range requests {
			go func() { answers <- ask(model, tokens) }()
		}
		eventually(t, "one is sent", func() (bool, string) {
			s := n.do("ps", model)
			return strings.Contains(s, "Ready  1"), s
		})
		return answers
	}
	// One runs and one waits, so that the third is refused; those two are answered.
	answers := busy("chat", 2, 15)
	eventually(t, "the next is refused", func() (bool, string) {
		a := ask("chat", 1)
		return a.status == 429 && strings.Contains(a.body, "queue is full"), fmt.Sprint(a)
	})
	for range 2 {
		if a := <-answers; a.status != 200 {
			t.Errorf("one that ran or waited was answered %v", a)
		}
	}
	answers = busy("other", 1, 15)
	if a := ask("other", 1); a.status != 429 || !strings.Contains(a.body, "500ms") {
		t.Errorf("one that waited for as long as --queue-max-wait was answered %v", a)
	}
	if a := <-answers; a.status != 200 {
		t.Errorf("the one before it was answered %v", a)
	}
}
