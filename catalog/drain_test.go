package catalog_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// languageModels begin the names of the runtimes that serve them, or are these names.
var languageModels = []string{"kserve-huggingfaceserver", "kserve-llm", "kserve-vllmserver", "llama-cpp", "roundhouse-huggingface", "roundhouse-simulator", "sglang", "srt-", "vllm"}

// TestStreamsEnd: every runtime of language models lets its streams end, on one machine
// and on a cluster; the others have the usual time.
func TestStreamsEnd(t *testing.T) {
	for name, rt := range runtimes(t) {
		language := false
		for _, prefix := range languageModels {
			language = language || strings.HasPrefix(name, prefix)
		}
		svc := service.Service{Meta: service.Meta{Key: service.Key{Namespace: "a", Name: "b"}, Labels: map[string]string{"modelClass": "x", "serviceEnvelope": "x"}, Annotations: map[string]string{"modelFormat": "x"}}}
		for _, on := range []bool{false, true} {
			rev, err := workload.Render(workload.Input{Service: &svc, Runtime: &rt, Choice: service.RuntimeChoice{Name: name}, Cluster: on,
				Attributes: service.Attributes{Format: rt.Formats[0].Format}})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for _, c := range rev.Components {
				if p := c.Process; p != nil && (p.Drain == 10*time.Minute) != language {
					t.Errorf("%s, %s: a process has %s for its streams", name, c.Role, p.Drain)
				}
				if s := c.Pod.TerminationGracePeriodSeconds; on && (s != nil && *s == 600) != language {
					t.Errorf("%s, %s: a pod's grace is %v", name, c.Role, s)
				}
			}
		}
	}
}

// TestEnginesThatCut: pods of engines that cut their streams at SIGTERM wait before it,
// at the port where the engine answers.
func TestEnginesThatCut(t *testing.T) {
	seen := map[string]bool{}
	for name, rt := range runtimes(t) {
		for _, role := range service.Roles {
			c := rt.Components.Get(role)
			if c == nil {
				continue
			}
			for _, m := range c.Pod.Containers {
				cuts, metric := workload.Repository(m.Image), ""
				switch cuts {
				case "vllm/vllm-openai", "ghcr.io/llm-d/llm-d-cuda":
					metric = "^vllm:num_requests_(running|waiting)"
				case "ghcr.io/ggml-org/llama.cpp":
					metric = "^llamacpp:requests_(processing|deferred)"
				default:
					continue
				}
				seen[cuts] = true
				port := int32(8080)
				if len(m.Ports) > 0 {
					port = m.Ports[0].ContainerPort
				}
				hook := ""
				if m.Lifecycle != nil && m.Lifecycle.PreStop != nil && m.Lifecycle.PreStop.Exec != nil {
					hook = strings.Join(m.Lifecycle.PreStop.Exec.Command, " ")
				}
				at := regexp.MustCompile(fmt.Sprintf(`127\.0\.0\.1(:|", )%d\b`, port))
				if !strings.Contains(hook, metric) || !at.MatchString(hook) || !regexp.MustCompile(`sleep[ (]3`).MatchString(hook) {
					t.Errorf("%s, %s: its hook does not wait for %s of port %d: %q", name, role, metric, port, hook)
				}
			}
		}
	}
	if len(seen) != 3 {
		t.Errorf("only %v were seen", seen)
	}
}

// TestOwnHook: a manifest's own hook takes the place of the catalog's, of whatever kind.
func TestOwnHook(t *testing.T) {
	rt := runtimes(t)["vllm"]
	own := &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 9}}}
	svc := service.Service{Meta: service.Meta{Key: service.Key{Namespace: "a", Name: "b"}}, Components: service.Components{Engine: &service.Component{
		Main: "main", Pod: corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(20)), Containers: []corev1.Container{{Name: "main", Lifecycle: own}}}}}}
	rev, err := workload.Render(workload.Input{Service: &svc, Runtime: &rt, Protocol: service.ProtocolOpenAI, Cluster: true})
	if err != nil {
		t.Fatal(err)
	}
	pod := rev.Components[0].Pod
	if hook := pod.Containers[0].Lifecycle.PreStop; hook.Exec != nil || hook.Sleep == nil || hook.Sleep.Seconds != 9 || *pod.TerminationGracePeriodSeconds != 20 {
		t.Errorf("%+v, grace %d", hook, *pod.TerminationGracePeriodSeconds)
	}
	if runtimes(t)["vllm"].Components.Engine.Pod.Containers[0].Lifecycle.PreStop == nil {
		t.Error("the catalog's own entry lost its hook")
	}
}
