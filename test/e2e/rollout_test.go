package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// onGPUs is a service of simulated engines, each with one GPU to itself.
func onGPUs(replicas int, revision string) string {
	return fmt.Sprintf(`apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: chat}
spec:
  protocol: openAI
  scaling: {minReplicas: %[1]d, maxReplicas: %[1]d}
  engine:
    containers:
      - name: engine
        env: [{name: REVISION, value: %[2]q}]
        resources: {limits: {nvidia.com/gpu: 1}}
    local:
      command: [roundhouse, simulate, engine, --port, "{{.Port}}", --model, chat, --startup-delay, 300ms]
      readinessProbe: {httpGet: {path: /health, port: 8080}}
`, replicas, revision)
}

// rolled changes a service's environment while it is asked, and reports the
// fewest replicas seen ready until only new ones are, and what the status said
// on the way.
func (n *node) rolled(t *testing.T, replicas int) (least int, said string, failed []string) {
	t.Helper()
	dir := t.TempDir()
	n.do("apply", "--wait", "-f", write(t, dir, "chat.yaml", onGPUs(replicas, "1")))
	old := map[string]bool{}
	for _, r := range n.service("default/chat").Replicas {
		old[r.ID] = true
	}
	answered, stop := n.load(2, func(int) (answer, error) {
		return try("POST", n.gateway+"/v1/completions", `{"model":"chat","prompt":"hello","max_tokens":4}`)
	}, ok)
	n.reach(answered, 5)
	n.do("apply", "-f", write(t, dir, "chat.yaml", onGPUs(replicas, "2")))
	least = replicas
	eventually(t, "only new replicas serve", func() (bool, string) {
		ready, left := 0, 0
		for _, r := range n.service("default/chat").Replicas {
			if r.Phase == "Ready" {
				ready++
			}
			if old[r.ID] {
				left++
			}
			if !strings.Contains(said, r.Message) {
				said += r.Message + "\n"
			}
		}
		least = min(least, ready)
		return ready == replicas && left == 0, n.run("describe", "chat").out
	})
	n.reach(answered, 5)
	return least, said, stop()
}

// TestRolloutWithScarceGPUs: a new revision comes up on the GPUs there are
// without stopping what serves: with one to spare all replicas go on serving;
// with none, all but one.
func TestRolloutWithScarceGPUs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ gpus, replicas, least int }{{3, 2, 2}, {2, 2, 1}} {
		t.Run(fmt.Sprintf("%d of %d", c.replicas, c.gpus), func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.env = []string{"ROUNDHOUSE_GPUS=" + itoa(c.gpus)}
			n.up()
			least, _, failed := n.rolled(t, c.replicas)
			if least < c.least || len(failed) > 0 {
				t.Errorf("%d replicas ready at the least, want %d; %d requests failed: %.300v", least, c.least, len(failed), failed)
			}
		})
	}
}

// TestRolloutOnOneGPU: there is no room for old and new at once. The old one
// stops first, the status says so, and requests wait for the new one.
func TestRolloutOnOneGPU(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.env = []string{"ROUNDHOUSE_GPUS=1"}
	n.up()
	_, said, failed := n.rolled(t, 1)
	contains(t, said, "needs 1 GPU, 0 of 1 free; too few GPUs for both revisions, so chat-engine-", " stops first")
	if len(failed) > 0 {
		t.Errorf("%d requests failed: %.300v", len(failed), failed)
	}
}

// TestEditKeepsItsGPU: a service that is edited keeps the only GPU, whoever
// waits for it, and one whose replica crashes has it back.
func TestEditKeepsItsGPU(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.env = []string{"ROUNDHOUSE_GPUS=1"}
	n.up()
	dir := t.TempDir()
	n.do("apply", "--wait", "-f", write(t, dir, "chat.yaml", onGPUs(1, "1")))
	n.do("apply", "-f", write(t, dir, "other.yaml", strings.Replace(onGPUs(1, "1"), "{name: chat}", "{name: other}", 1)))
	waits := func() {
		t.Helper()
		eventually(t, "the other waits", func() (bool, string) {
			rs := n.service("default/other").Replicas
			return len(rs) == 1 && strings.HasPrefix(rs[0].Message, "needs 1 GPU, 0 of 1 free"), n.run("describe", "other").out
		})
	}
	waits()
	for i := range 3 {
		before := n.pid("chat")
		n.do("apply", "-f", write(t, dir, "chat.yaml", onGPUs(1, itoa(i+2))))
		eventually(t, "chat has its new revision", func() (bool, string) {
			s := n.service("default/chat")
			return len(s.Replicas) == 1 && s.Replicas[0].Phase == "Ready" && s.Replicas[0].PID != before, n.run("describe", "chat").out
		})
		waits()
	}
	before := n.pid("chat")
	if err := syscall.Kill(-before, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "chat is back", func() (bool, string) {
		s := n.service("default/chat")
		return len(s.Replicas) == 1 && s.Replicas[0].Phase == "Ready" && s.Replicas[0].PID != before, n.run("describe", "chat").out
	})
	waits()
}

// onPlain is a service of simulated engines that take arguments of the test's.
func onPlain(least int, more string) string {
	return fmt.Sprintf(`apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: chat}
spec:
  protocol: openAI
  scaling: {minReplicas: %d, maxReplicas: 2}
  engine:
    local:
      command: [roundhouse, simulate, engine, --port, "{{.Port}}", --model, chat%s]
      readinessProbe: {httpGet: {path: /health, port: 8080}}
`, least, more)
}

// TestRestartDuringAFailedRollout: while a new revision fails, the one before
// goes on serving over any restart of up. Killed, up leaves its replicas, and
// the next adopts them; ended, it takes them with it, and the next starts them
// again. A revision that is ready at last takes over.
func TestRestartDuringAFailedRollout(t *testing.T) {
	t.Parallel()
	for name, least := range map[string]int{"kept": 1, "asleep at times": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, dir := newNode(t), t.TempDir()
			n.up()
			ask := func(when string) {
				t.Helper()
				if a, err := try("POST", n.gateway+"/v1/completions", `{"model":"chat","prompt":"hello","max_tokens":4}`); err != nil || a.status != 200 {
					t.Fatalf("%s: %v %v\n%s", when, a, err, n.run("describe", "chat").out)
				}
			}
			failing := func() {
				t.Helper()
				eventually(t, "the new revision fails", func() (bool, string) {
					out := n.run("describe", "chat").out
					return strings.Contains(out, "the previous one keeps serving"), out
				})
			}
			n.do("apply", "-f", write(t, dir, "chat.yaml", onPlain(least, "")))
			ask("good")
			serving := n.pid("chat")
			n.do("apply", "-f", write(t, dir, "chat.yaml", onPlain(least, ", --no-such-flag")))
			failing()
			ask("while the new one fails")

			n.signal(syscall.SIGKILL)
			n.up()
			ask("after kill -9")
			failing()
			if !alive(serving) {
				t.Error("the replica that served was not adopted")
			}

			n.signal(syscall.SIGINT)
			n.up()
			ask("after Ctrl-C")
			failing()
			ask("while it fails again")

			n.do("apply", "--wait", "-f", write(t, dir, "chat.yaml", onPlain(least, ", --startup-delay, 100ms")))
			ask("mended")
			eventually(t, "only the mended one is left", func() (bool, string) {
				s := n.service("default/chat")
				return len(s.Replicas) == 1 && s.Replicas[0].Phase == "Ready", n.run("describe", "chat").out
			})
		})
	}
}
