package load

import (
	"errors"
	"net/url"
	"strings"
	"time"

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
	path := strings.TrimRight(u.Path, "/")
	for _, c := range []struct{ suffix, call string }{{"/v1/chat/completions", "chat"}, {"/v1/completions", "completions"}, {"/v1/embeddings", "embeddings"}, {"/v1", ""}} {
		if rest, found := strings.CutSuffix(path, c.suffix); found {
			path, call = rest, c.call
			break
		}
	}
	u.Path, u.RawPath = path, ""
	return u.String(), call, nil
}
