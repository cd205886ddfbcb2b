package engines

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// sglangService is a service of SGLang with two adapters, on CPUs, which the
// entry's GPU has to be taken from.
func sglangService(name, folder, more string) string {
	return strings.NewReplacer("runtime: {name: vllm}", "runtime: {name: sglang}", "name: tiny", "name: "+name).Replace(vllmService(folder, more))
}

// sglangAlone is a service of SGLang without adapters.
func sglangAlone(folder, scaling, more string) string {
	return strings.Replace(alone(folder, scaling, more), "runtime: {name: vllm}", "runtime: {name: sglang}", 1)
}

// TestSGLang starts SGLang by the catalog's entry: SDKs, adapters that answer
// differently, names that are none, the metrics that its load is read by, a client
// that leaves, and the end of each of its processes.
func TestSGLang(t *testing.T) {
	bin := sglang.needs(t, "sglang", "python")
	sglang.takes(t, "sglang", "sglang", "serve", "--help")
	n, folder := startNode(t, bin), tinyLlama(t, bin)
	n.apply(sglangService("tiny", folder, ", args: [--enable-priority-scheduling, --constrained-json-disable-any-whitespace, --tool-call-parser, qwen25]"))
	was := n.ready("tiny", 1)[0]
	n.differ("tiny", "sql", "chat")
	// SGLang itself answers names that it does not know by the base model.
	for _, name := range []string{"slq", "tiny:none", "default"} {
		for _, host := range []string{"", "tiny.default.localhost"} {
			a := n.post("/v1/completions", `{"model":"`+name+`","prompt":"hello","max_tokens":4}`, "Host", host)
			if a.status != http.StatusNotFound {
				t.Errorf("the name %s at the host %q: %s", name, host, a)
			}
		}
	}
	n.reads("sglang", was.metrics())
	t.Log(python(t, bin, "sdks.py", n.gateway, "sglang"))

	const running = "sglang:num_running_reqs"
	s := n.stream("/v1/completions", long("tiny"))
	n.total(was.metrics(), running, 1)
	n.scraped()
	s.cancel()
	n.left(was.metrics(), long("tiny"), "sglang:generation_tokens_total", func(want int) { n.total(was.metrics(), running, want) })

	// Its pods have no hook, since it finishes what it has after SIGTERM.
	s = n.stream("/v1/completions", long("tiny"))
	n.total(was.metrics(), running, 1)
	if err := syscall.Kill(was.PID, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.used(longTokens)
	n.restarted("tiny", was.PID)
}

// TestSGLangKilled kills each of SGLang's processes.
func TestSGLangKilled(t *testing.T) {
	bin := sglang.needs(t, "sglang", "python")
	n, folder := startNode(t, bin), tinyLlama(t, bin)
	n.apply(sglangAlone(folder, "minReplicas: 1, maxReplicas: 1", ""))
	const running = "sglang:num_running_reqs"
	for _, process := range []string{"sglang::schedul", "sglang::detoken"} {
		n.killed("tiny", running, func(p part) []int { return children(t, p.PID, process) })
	}
	n.killed("tiny", running, func(p part) []int { return []int{p.PID} })
}

// TestSGLangEmbeds asks an SGLang that embeds.
func TestSGLangEmbeds(t *testing.T) {
	bin := sglang.needs(t, "sglang", "python")
	n, folder := startNode(t, bin), tinyLlama(t, bin)
	n.apply(sglangAlone(folder, "minReplicas: 1, maxReplicas: 1", ", args: [--is-embedding]"))
	n.ready("tiny", 1)
	t.Log(python(t, bin, "sdks.py", n.gateway, "sglang-embeds"))
}

// TestSGLangRanks asks an SGLang whose model says how well a document answers.
func TestSGLangRanks(t *testing.T) {
	bin := sglang.needs(t, "sglang", "python")
	n, folder := startNode(t, bin), tinyLlama(t, bin)
	n.apply(strings.Replace(sglangAlone(folder, "minReplicas: 1, maxReplicas: 1", ""), folder+"/model", folder+"/judge", 1))
	n.ready("tiny", 1)
	t.Log(python(t, bin, "sdks.py", n.gateway, "sglang-judges"))
}

// TestSGLangDrains: streams go on while a service is scaled down and edited.
func TestSGLangDrains(t *testing.T) {
	bin := sglang.needs(t, "sglang", "python")
	n, folder := startNode(t, bin), tinyLlama(t, bin)
	const one, two = "minReplicas: 1, maxReplicas: 1", "minReplicas: 2, maxReplicas: 2"
	n.apply(sglangAlone(folder, two, ""))
	n.drains(sglangAlone(folder, one, ""), sglangAlone(folder, one, ", args: [--max-running-requests, '8']"), n.ready("tiny", 2))
}

// TestSGLangPriority wakes SGLang from zero; a request of a higher priority is
// answered before those that waited longer.
func TestSGLangPriority(t *testing.T) {
	bin := sglang.needs(t, "sglang", "python")
	n, folder := startNode(t, bin), tinyLlama(t, bin)
	n.apply(sglangAlone(folder, "minReplicas: 0, maxReplicas: 1", ", args: [--enable-priority-scheduling, --disable-priority-preemption, --max-running-requests, '1']"))
	begun := time.Now()
	n.complete("hello there")
	t.Logf("woken from zero in %s", time.Since(begun).Round(time.Second))
	page := n.ready("tiny", 1)[0].metrics()
	first := n.stream("/v1/completions", long("tiny"))
	n.total(page, "sglang:num_running_reqs", 1)
	order := make(chan int)
	for i, priority := range []int{0, 1, 10} {
		go func() {
			n.post("/v1/completions", fmt.Sprintf(`{"model":"tiny","prompt":"hello","max_tokens":200,"priority":%d}`, priority))
			order <- priority
		}()
		n.total(page, "sglang:num_queue_reqs", i+1)
	}
	first.rest()
	if a, b, c := <-order, <-order, <-order; a != 10 || b != 1 || c != 0 {
		t.Errorf("answered in the order of the priorities %d, %d, %d", a, b, c)
	}
}

// total waits until a figure of SGLang has a value. With priority scheduling each
// priority has a series, and their sum one without a name.
func (n *node) total(page, name string, want int) {
	n.t.Helper()
	n.eventually(fmt.Sprintf("%s is %d", name, want), func() (bool, string) {
		text := n.send("GET", page, "").body
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, name+"{") && (strings.Contains(line, `priority=""`) || !strings.Contains(line, "priority=")) {
				return strings.HasSuffix(strings.TrimSpace(line), fmt.Sprintf(" %d.0", want)), line
			}
		}
		return false, text
	})
}

// sglangRouter is SGLang's router before a service's engine.
const sglangRouter = `  router:
    local:
      command: [python, -m, sglang_router.launch_router, --host, 127.0.0.1, --port, "{{.Port}}", --worker-urls, "http://$(ROUNDHOUSE_ENGINE_ADDRESS)",
        --health-check-interval-secs, "2"]
      readinessProbe: {httpGet: {path: /readiness, port: 8080}}
`

// routed are the ready router of a service and its engine.
func (n *node) routed(name string) (router, engine part) {
	n.t.Helper()
	parts := n.ready(name, 2)
	at := slices.IndexFunc(parts, func(p part) bool { return strings.Contains(p.ID, "-router-") })
	if at < 0 {
		n.t.Fatalf("there is no router: %+v", parts)
	}
	return parts[at], parts[1-at]
}

// TestSGLangRouterKilled kills SGLang's router before the first byte of an answer, which
// its next process gives, and within a stream, which ends with an error; and the engine
// has nothing left to do.
func TestSGLangRouterKilled(t *testing.T) {
	bin := sglang.needs(t, "sglang", "python")
	n, folder := startNode(t, bin), tinyLlama(t, bin)
	n.apply(sglangAlone(folder, "minReplicas: 1, maxReplicas: 1", "") + sglangRouter)
	router, engine := n.routed("tiny")
	const running = "sglang:num_running_reqs"
	waiting := make(chan answer)
	go func() {
		waiting <- n.post("/v1/completions", fmt.Sprintf(`{"model":"tiny","prompt":"hello","max_tokens":%d}`, longTokens))
	}()
	n.total(engine.metrics(), running, 1)
	begun := time.Now()
	kill(t, router.PID)
	if a := <-waiting; a.status != http.StatusOK || !strings.Contains(a.body, fmt.Sprintf(`"completion_tokens":%d`, longTokens)) {
		t.Errorf("killed before the first byte: %.500s", a)
	}
	t.Logf("a request without a byte was answered %s after the router was killed", time.Since(begun).Round(time.Millisecond))

	router, _ = n.routed("tiny")
	s := n.stream("/v1/completions", long("tiny"))
	n.total(engine.metrics(), running, 1)
	begun = time.Now()
	kill(t, router.PID)
	s.broken()
	t.Logf("the stream ended after %s", time.Since(begun).Round(time.Millisecond))
	n.total(engine.metrics(), running, 0)
	n.complete("hello by way of the next router")
	if _, now := n.routed("tiny"); now.PID != engine.PID {
		t.Error("the engine was restarted with the router")
	}
}

// TestSGLangRouter puts SGLang's router before an engine that publishes KV events.
func TestSGLangRouter(t *testing.T) {
	bin := sglang.needs(t, "sglang", "python")
	n, folder := startNode(t, bin), tinyLlama(t, bin)
	n.apply(replaying(sglangAlone(folder, "minReplicas: 1, maxReplicas: 1", `, args: [--kv-events-config, '{"publisher": "zmq", "endpoint": "tcp://*:{{.GRPCPort}}", "topic": "kv@tiny"}']`)) + sglangRouter)
	router, engine := n.routed("tiny")
	heard := listenToKV(t, bin, []part{engine})
	n.complete("hello by way of the router")
	if err := heard.Wait(); err != nil {
		t.Errorf("KV events: %v", err)
	}
	page := n.admin + "/metrics"
	n.caughtUp(page, 1, 1)
	kill(t, router.PID)
	n.complete("hello by way of the next router")
	if asked := n.figures(engine.metrics())["sglang:num_requests_total"]; asked < 2 {
		t.Errorf("the engine had %v of 2 requests", asked)
	}
}

// TestSGLangCannotStart: get names the cause that the engine printed.
func TestSGLangCannotStart(t *testing.T) {
	bin := sglang.needs(t, "sglang", "python")
	n, folder := startNode(t, bin), tinyLlama(t, bin)
	n.apply(sglangService("flag", folder, ", args: [--no-such-flag]") + "---\n" +
		strings.Replace(sglangAlone("/no/such", "minReplicas: 1, maxReplicas: 1", ""), "name: tiny", "name: absent", 1))
	for name, cause := range map[string]string{"flag": "unrecognized arguments: --no-such-flag", "absent": "/no/such/model"} {
		n.eventually("get names the cause for "+name, func() (bool, string) {
			out := n.do("get", name)
			return strings.Contains(out, cause), out
		})
		t.Log(n.do("get", name))
	}
}
