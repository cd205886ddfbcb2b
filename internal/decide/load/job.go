package load

import (
	"errors"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Job is a benchmark as an object: OME's BenchmarkJob.
type Job struct {
	service.Meta `json:",inline"`
	// Service is what is measured, or else URL, whose Model is named.
	Service service.Key `json:"service,omitzero"`
	URL     string      `json:"url,omitempty"`
	Model   string      `json:"model,omitempty"`
	// Embeddings are asked for in place of texts.
	Embeddings  bool       `json:"embeddings,omitempty"`
	Scenarios   []Scenario `json:"scenarios"`
	Concurrency []int      `json:"concurrency"`
	// Requests and Time end each point.
	Requests int           `json:"requests"`
	Time     time.Duration `json:"time"`
	// Parameters are further members of each request.
	Parameters map[string]any `json:"parameters,omitempty"`
	// Dataset is the URI of a file of prompts, in place of random ones: file://PATH on one
	// machine, pvc://CLAIM/PATH on a cluster. One that is not there has no effect.
	Dataset string `json:"dataset,omitempty"`
	// Output is where the report is written.
	Output Output `json:"output,omitzero"`
	// Pod is what the pod that sends the load is to have, on a cluster.
	Pod Pod `json:"pod,omitzero"`
}

// Subject names what is measured.
func (j *Job) Subject() string {
	if j.URL != "" {
		return service.RedactURI(j.URL)
	}
	return j.Service.String()
}

// Output is where a report is written.
type Output struct {
	// URI is of the file: file://, pvc://, s3://, gs://, az:// or https:// of Azure; ""
	// for nowhere.
	URI string `json:"uri,omitempty"`
	// Region is that of a bucket of S3, "" for the environment's.
	Region string `json:"region,omitempty"`
	// Endpoint is the address of a store that speaks S3, "" for the environment's.
	Endpoint string `json:"endpoint,omitempty"`
	// Secret has the credentials for it, on a cluster: variables by their names; "" for
	// none.
	Secret string `json:"secret,omitempty"`
}

// Pod is what a pod is to have.
type Pod struct {
	Env          []corev1.EnvVar             `json:"env,omitempty"`
	EnvFrom      []corev1.EnvFromSource      `json:"envFrom,omitempty"`
	VolumeMounts []corev1.VolumeMount        `json:"volumeMounts,omitempty"`
	Resources    corev1.ResourceRequirements `json:"resources,omitzero"`
	Tolerations  []corev1.Toleration         `json:"tolerations,omitempty"`
	NodeSelector map[string]string           `json:"nodeSelector,omitempty"`
	Affinity     *corev1.Affinity            `json:"affinity,omitempty"`
	Volumes      []corev1.Volume             `json:"volumes,omitempty"`
}

// Claim splits pvc://CLAIM/PATH. ok is false for any other URI, also of a claim in
// another namespace, and for a path that leaves the volume.
func Claim(uri string) (claim, file string, ok bool) {
	rest, ok := strings.CutPrefix(uri, "pvc://")
	claim, file, _ = strings.Cut(rest, "/")
	if !ok || claim == "" || strings.Contains(claim, ":") || slices.Contains(strings.Split(file, "/"), "..") {
		return "", "", false
	}
	return claim, strings.TrimPrefix(path.Clean("/"+file), "/"), true
}

// What is measured where a job does not say: as OME does.
var (
	textScenarios      = []string{"N(480,240)/(300,150)", "D(100,100)", "D(100,1000)", "D(2000,200)", "D(7800,200)"}
	embeddingScenarios = []string{"E(64)", "E(128)", "E(256)", "E(512)", "E(1024)"}
	// DefaultConcurrency are the concurrencies of a job that states none.
	DefaultConcurrency = []int{1, 2, 4, 8, 16, 32, 64, 128, 256}
)

// DefaultScenarios are those of a job that states none.
func DefaultScenarios(embeddings bool) []string {
	if embeddings {
		return embeddingScenarios
	}
	return textScenarios
}

// Plan is the loads of a job.
func (j *Job) Plan() ([]Load, error) {
	return Plan(Load{Requests: j.Requests, Time: j.Time, WarmUp: 1, Seed: 1}, j.Scenarios, j.Concurrency, nil)
}

// Endpoint splits the address of a call ("http://host/v1/completions") into the server's
// and the call: "chat", "completions", "embeddings", or "" where it names none.
func Endpoint(address string) (base, call string, err error) {
	u, err := url.Parse(strings.TrimSpace(address))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return "", "", errors.New("is not the address of a server: write http://HOST:PORT")
	}
	at := strings.TrimRight(u.Path, "/")
	for _, c := range []struct{ suffix, call string }{{"/v1/chat/completions", "chat"}, {"/v1/completions", "completions"}, {"/v1/embeddings", "embeddings"}, {"/v1", ""}} {
		if rest, found := strings.CutSuffix(at, c.suffix); found {
			at, call = rest, c.call
			break
		}
	}
	u.Path, u.RawPath = at, ""
	return u.String(), call, nil
}
