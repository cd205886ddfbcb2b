package ome

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
	"roundhouse.dev/roundhouse/internal/decide/load"
)

type benchmarkJob struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            benchmarkJobSpec  `json:"spec"`
}

type benchmarkJobSpec struct {
	Endpoint                   *benchmarkEndpoint `json:"endpoint"`
	Task                       string             `json:"task"`
	TrafficScenarios           []string           `json:"trafficScenarios"`
	NumConcurrency             []int              `json:"numConcurrency"`
	MaxTimePerIteration        *int               `json:"maxTimePerIteration"` // minutes
	MaxRequestsPerIteration    *int               `json:"maxRequestsPerIteration"`
	AdditionalRequestParams    map[string]string  `json:"additionalRequestParams"`
	ServiceMetadata            any                `json:"serviceMetadata"` // describes what is measured
	HuggingFaceSecretReference any                `json:"huggingFaceSecretReference"`
	Dataset                    any                `json:"dataset"`
	OutputLocation             any                `json:"outputLocation"`
	ResultFolderName           string             `json:"resultFolderName"`
	PodOverride                any                `json:"podOverride"`
}

type benchmarkEndpoint struct {
	InferenceService *objectRef       `json:"inferenceService"`
	Endpoint         *benchmarkServer `json:"endpoint"`
}

type benchmarkServer struct {
	URL       string `json:"url"`
	APIFormat string `json:"apiFormat"`
	ModelName string `json:"modelName"`
}

var benchmarkNotes = map[string]manifest.Note{
	"huggingFaceSecretReference": manifest.Never("has no effect: prompts are made without a tokenizer, and tokens are those that the server counts"),
	"dataset":                    manifest.Never("has no effect: prompts are made of random words; `roundhouse bench --dataset` sends those of a file"),
	"outputLocation":             manifest.Never("has no effect: the report is kept in the data directory; `roundhouse describe benchmarkjob` shows it"),
	"resultFolderName":           manifest.Never("has no effect: the report is kept in the data directory; `roundhouse describe benchmarkjob` shows it"),
	"podOverride":                manifest.Never("has no effect: up itself sends the load"),
}

// maxMinutes bounds the time of one point.
const maxMinutes = 24 * 60

// readBenchmark reads a BenchmarkJob.
func readBenchmark(r *manifest.Reader, m *benchmarkJob, o *manifest.Object) {
	spec := &m.Spec
	out := &load.Job{Meta: r.Meta(m.Metadata, false, true)}
	o.Kind, o.Key, o.Benchmark = manifest.KindBenchmark, out.Key, out
	switch spec.Task {
	case "text-to-text":
	case "text-to-embeddings":
		out.Embeddings = true
	case "":
		r.Errorf("spec.task", "is missing: write text-to-text or text-to-embeddings")
	default:
		r.Errorf("spec.task", "%q is not measured: write text-to-text or text-to-embeddings", manifest.Clip(spec.Task))
	}
	readEndpoint(r, spec.Endpoint, out)
	out.Concurrency = spec.NumConcurrency
	if len(out.Concurrency) == 0 {
		out.Concurrency = load.DefaultConcurrency
		if out.Embeddings { // as in OME, of which a client sends one batch after the other
			out.Concurrency = []int{1}
		}
	}
	readBounds(r, spec, out)
	readScenarios(r, spec.TrafficScenarios, out)
	out.Parameters = map[string]any{}
	if !out.Embeddings {
		out.Parameters["ignore_eos"] = true
	}
	for _, name := range slices.Sorted(maps.Keys(spec.AdditionalRequestParams)) {
		var v any = spec.AdditionalRequestParams[name]
		_ = json.Unmarshal([]byte(spec.AdditionalRequestParams[name]), &v) // else it is a text
		out.Parameters[name] = v
	}
	if !r.Failed() {
		if _, err := out.Plan(); err != nil {
			r.Errorf("spec.numConcurrency", "%v", err)
		}
	}
}

// readEndpoint reads whose answers are measured.
func readEndpoint(r *manifest.Reader, e *benchmarkEndpoint, out *load.Job) {
	const path = "spec.endpoint"
	switch {
	case e == nil || e.InferenceService == nil && e.Endpoint == nil:
		r.Errorf(path, "is missing: name an inferenceService, or an endpoint with its url")
	case e.InferenceService != nil && e.Endpoint != nil:
		r.Errorf(path+".endpoint", "and inferenceService both say what is measured: remove one")
	case e.InferenceService != nil:
		manifest.CheckName(r.Report, path+".inferenceService.name", e.InferenceService.Name, true)
		out.Service = service.Key{Namespace: e.InferenceService.Namespace, Name: e.InferenceService.Name}
		if out.Service.Namespace == "" {
			out.Service.Namespace = out.Namespace
		}
	default:
		if _, _, err := load.Endpoint(e.Endpoint.URL); err != nil {
			r.Errorf(path+".endpoint.url", "%v", err)
		}
		if e.Endpoint.ModelName == "" {
			r.Errorf(path+".endpoint.modelName", "is missing: name the model that requests are for")
		}
		if f := e.Endpoint.APIFormat; f != "" && f != "openai" {
			r.Errorf(path+".endpoint.apiFormat", "%q is not measured: write openai", manifest.Clip(f))
		}
		out.URL, out.Model = e.Endpoint.URL, e.Endpoint.ModelName
	}
}

// readBounds reads what ends each point.
func readBounds(r *manifest.Reader, spec *benchmarkJobSpec, out *load.Job) {
	switch n := spec.MaxRequestsPerIteration; {
	case n == nil:
		r.Errorf("spec.maxRequestsPerIteration", "is missing: write how many requests each scenario and concurrency has at most")
	case *n < 1 || *n > load.MaxRequests:
		r.Errorf("spec.maxRequestsPerIteration", "%d: want 1 to %d", *n, load.MaxRequests)
	default:
		out.Requests = *n
	}
	switch n := spec.MaxTimePerIteration; {
	case n == nil:
		r.Errorf("spec.maxTimePerIteration", "is missing: write how many minutes each scenario and concurrency has at most")
	case *n < 1 || *n > maxMinutes:
		r.Errorf("spec.maxTimePerIteration", "%d minutes: want 1 to %d", *n, maxMinutes)
	default:
		out.Time = time.Duration(*n) * time.Minute
	}
}

// readScenarios reads the lengths of prompts and answers.
func readScenarios(r *manifest.Reader, texts []string, out *load.Job) {
	if len(texts) == 0 {
		texts = load.DefaultScenarios(out.Embeddings)
	}
	for i, text := range texts {
		at := strict.Index("spec.trafficScenarios", i)
		s, err := load.ParseScenario(text)
		switch {
		case err != nil:
			r.Errorf(at, "%v", err)
		case (s.Output == load.Length{}) != out.Embeddings:
			r.Errorf(at, "%q is not a scenario of the task: E(TOKENS) is for embeddings, the others are for text", manifest.Clip(text))
		}
		out.Scenarios = append(out.Scenarios, s)
	}
}
