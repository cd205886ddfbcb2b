package workload

import (
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// streamsDrain is how long the requests in flight of a language model may go on when
// its replica is to end, where the manifests state no grace: OpenAI's and Anthropic's
// SDKs wait no longer for an answer, and it is 12,000 tokens at 20 a second. A replica
// that is idle ends at once all the same.
const streamsDrain = 10 * time.Minute

// languageFormats are the formats of models that write their answers token by token.
// KServe's runtimes for them list no protocol that would tell.
var languageFormats = []string{"gguf", "huggingface", "safetensors", "vllm"}

// generative reports whether a service answers with what a language model writes: by
// its protocol, by those that its runtime speaks, or by its model's format.
func (in Input) generative() bool {
	return in.Protocol.Language() || in.Runtime != nil && slices.ContainsFunc(in.Runtime.Protocols, service.Protocol.Language) ||
		slices.Contains(languageFormats, strings.ToLower(in.Attributes.Format.Name))
}

// drains gives the pods of a language model the time that their streams take, where
// nobody states it.
func (c *Component) drains(in Input) {
	if !in.Cluster || !in.generative() {
		return
	}
	pods := []*corev1.PodSpec{&c.Pod}
	for _, n := range []*Node{c.Leader, c.Worker} {
		if n != nil {
			pods = append(pods, &n.Pod)
		}
	}
	for _, p := range pods {
		if p.TerminationGracePeriodSeconds == nil {
			p.TerminationGracePeriodSeconds = new(int64(streamsDrain / time.Second))
		}
	}
}

// drains does the same for a process. It ends by SIGTERM once it is idle, which takes
// an engine no longer than any other program.
func (p *Process) drains(in Input, pod *corev1.PodSpec) {
	if p != nil && in.generative() && pod.TerminationGracePeriodSeconds == nil {
		p.Drain = streamsDrain
	}
}

// graceOf is how long a process has from SIGTERM on where its pod says so; nil where it
// does not.
func graceOf(pod *corev1.PodSpec) *time.Duration {
	if pod.TerminationGracePeriodSeconds == nil {
		return nil
	}
	return new(time.Duration(min(max(*pod.TerminationGracePeriodSeconds, 0), maxGraceSeconds)) * time.Second)
}

// maxGraceSeconds is more than anybody waits, and no overflow.
const maxGraceSeconds = int64(math.MaxInt64 / time.Second)
