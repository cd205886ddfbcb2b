// Package loadjob decides how a cluster runs a benchmark: the Kubernetes Job whose pod sends
// the load, with our own image and `roundhouse bench`, what of earlier ones is to go, and
// what the status of its manifest says, in OME's fields.
package loadjob

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"roundhouse.dev/roundhouse/internal/decide/load"
)

// LabelBenchmark marks the Jobs of benchmarks and their pods; its value is the Job's name.
const LabelBenchmark = "roundhouse.dev/benchmark"

// Benchmark is a manifest, as the cluster has it.
type Benchmark struct {
	load.Job
	UID types.UID
	// Mark is that of its spec.
	Mark string
	// Warnings are which of its fields have no effect.
	Warnings []string
}

// Mark tells specs apart. Labels and annotations change nothing of what is measured.
func Mark(manifest []byte) string {
	var doc struct {
		Spec any `json:"spec"`
	}
	_ = json.Unmarshal(manifest, &doc) // what cannot be read is no manifest, and marked by itself
	text, _ := json.Marshal(doc.Spec)  // what was read can be written, its keys in order
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])[:16]
}

// Env is what a cluster adds.
type Env struct {
	// Image is this program's own.
	Image string
	// Gateway is the address at which pods reach the gateway.
	Gateway string
}

// What the pod has.
const (
	program   = "/roundhouse"
	container = "benchmark"
	user      = 65532 // nobody, in our image
	// summary is where a pod leaves its last words, of which the status is made.
	summary = "/dev/termination-log"
	reports = "/reports"
	prompts = "/prompts"
)

const (
	// Patience is how long a service may take to answer.
	Patience = 15 * time.Minute
	// requestTimeout bounds each request.
	requestTimeout = 10 * time.Minute
	// spare is for the image, a node, and the report.
	spare = time.Hour
)

// Render is the Job of a benchmark. It runs once: only a pod that its node gave up is
// replaced. Its manifest owns it, so that both go together.
func Render(b *Benchmark, env Env) *batchv1.Job {
	name := JobName(b)
	labels := map[string]string{LabelBenchmark: name, "app.kubernetes.io/component": container}
	c := corev1.Container{
		Name: container, Image: env.Image, ImagePullPolicy: corev1.PullIfNotPresent, Command: append([]string{program, "bench"}, arguments(b, env)...),
		Env: slices.Clone(b.Pod.Env), EnvFrom: slices.Clone(b.Pod.EnvFrom), VolumeMounts: slices.Clone(b.Pod.VolumeMounts), Resources: *b.Pod.Resources.DeepCopy(),
		TerminationMessagePath: summary, TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), RunAsNonRoot: new(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
	}
	if len(c.Resources.Requests) == 0 && len(c.Resources.Limits) == 0 {
		c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("256Mi")}
	}
	if s := b.Output.Secret; s != "" {
		c.EnvFrom = append(c.EnvFrom, corev1.EnvFromSource{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: s}}})
	}
	for _, v := range []corev1.EnvVar{{Name: "AWS_REGION", Value: b.Output.Region}, {Name: "AWS_ENDPOINT_URL", Value: b.Output.Endpoint}} {
		if v.Value != "" && !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == v.Name }) {
			c.Env = append(c.Env, v)
		}
	}
	pod := corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
		NodeSelector: maps.Clone(b.Pod.NodeSelector), Tolerations: slices.Clone(b.Pod.Tolerations), Affinity: b.Pod.Affinity.DeepCopy(), Volumes: slices.Clone(b.Pod.Volumes),
		SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: new(true), RunAsUser: new(int64(user)), RunAsGroup: new(int64(user)), FSGroup: new(int64(user)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
	}
	mount(&pod, &c, container+"-reports", reports, b.Output.URI, false)
	mount(&pod, &c, container+"-prompts", prompts, b.Dataset, true)
	pod.Containers = []corev1.Container{c}
	return &batchv1.Job{
		TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: b.Namespace, Labels: labels, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: b.Origin.APIVersion, Kind: b.Origin.Kind, Name: b.Name, UID: b.UID, Controller: new(true)}}},
		Spec: batchv1.JobSpec{
			BackoffLimit: new(int32(0)), ActiveDeadlineSeconds: new(deadline(b)),
			PodFailurePolicy: &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{Action: batchv1.PodFailurePolicyActionIgnore,
				OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}}}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod},
		},
	}
}

// JobName is that of a benchmark's Job: a controller that starts again makes none twice, and
// a changed spec has another. It is the value of a label too, of at most 63 bytes.
func JobName(b *Benchmark) string {
	sum := sha256.Sum256([]byte(string(b.UID) + "\n" + b.Mark))
	begin := strings.ReplaceAll(b.Name[:min(len(b.Name), 40)], ".", "-")
	return strings.TrimRight(begin, "-") + "-bench-" + hex.EncodeToString(sum[:])[:10]
}

// deadline is when a Job has to have ended, in seconds: what it may take, and some more.
func deadline(b *Benchmark) int64 {
	points := time.Duration(len(b.Scenarios) * len(b.Concurrency))
	return int64((Patience + points*(b.Time+2*requestTimeout) + spare) / time.Second)
}

// mount mounts what a claim has at a path, where a URI is of a claim.
func mount(pod *corev1.PodSpec, c *corev1.Container, name, at, uri string, readOnly bool) {
	claim, _, ok := load.Claim(uri)
	if !ok {
		return
	}
	same := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim
	})
	if same >= 0 {
		name = pod.Volumes[same].Name
	} else {
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}})
	}
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: at, ReadOnly: readOnly})
}

// inPod is a URI as the pod reaches it: a claim's is a file.
func inPod(uri, at string) string {
	if _, file, ok := load.Claim(uri); ok {
		return path.Join(at, file)
	}
	return uri
}

// arguments are those of `roundhouse bench`.
func arguments(b *Benchmark, env Env) []string {
	base, api, model := env.Gateway, "", b.Model
	if b.URL != "" {
		base, api, _ = load.Endpoint(b.URL) // which was checked as it was read
	} else {
		model = b.Service.Short()
	}
	if b.Embeddings {
		api = "embeddings"
	}
	out := []string{base, "--model=" + model, "--api=" + cmp.Or(api, "chat")}
	for _, s := range b.Scenarios {
		out = append(out, "--scenario="+s.Name)
	}
	var clients []string
	for _, n := range b.Concurrency {
		clients = append(clients, strconv.Itoa(n))
	}
	out = append(out, "--concurrency="+strings.Join(clients, ","), fmt.Sprintf("--requests=%d", b.Requests), "--duration="+b.Time.String(),
		"--timeout="+requestTimeout.String(), "--wait="+Patience.String(), "--ignore-eos=false", "--output=json", "--summary="+summary)
	for _, name := range slices.Sorted(maps.Keys(b.Parameters)) {
		value, _ := json.Marshal(b.Parameters[name]) // it was read from a manifest
		out = append(out, "--param="+name+"="+string(value))
	}
	if _, file, ok := load.Claim(b.Dataset); ok && file != "" {
		out = append(out, "--dataset="+inPod(b.Dataset, prompts))
	}
	if b.Output.URI != "" {
		out = append(out, "--report="+inPod(b.Output.URI, reports))
	}
	for i := range out { // Kubernetes takes $( for a variable, and two dollars for one
		out[i] = strings.ReplaceAll(out[i], "$", "$$")
	}
	return out
}
