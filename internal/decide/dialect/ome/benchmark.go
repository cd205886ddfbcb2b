package ome

import (
	"cmp"
	"encoding/json"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
	"roundhouse.dev/roundhouse/internal/decide/load"
)

// KindBenchmarkJob is OME's kind of benchmarks.
const KindBenchmarkJob = "BenchmarkJob"

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
	Dataset                    *benchmarkStorage  `json:"dataset"`
	OutputLocation             *benchmarkStorage  `json:"outputLocation"`
	ResultFolderName           string             `json:"resultFolderName"`
	PodOverride                *podOverride       `json:"podOverride"`
}

// benchmarkStorage is where a dataset is, or where a report is to be.
type benchmarkStorage struct {
	StorageURI   string            `json:"storageUri"`
	Parameters   map[string]string `json:"parameters"`
	Key          string            `json:"key"`
	Path         any               `json:"path"`
	SchemaPath   any               `json:"schemaPath"`
	NodeSelector any               `json:"nodeSelector"`
	NodeAffinity any               `json:"nodeAffinity"`
}

type podOverride struct {
	load.Pod `json:",inline"`
	Image    any `json:"image"`
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
	"podOverride":                manifest.OnProcess("has no effect on one machine: up itself sends the load"),
}

var benchmarkStorageNotes = map[string]manifest.Note{
	"path":         manifest.Never("has no effect: storageUri says where the file is"),
	"schemaPath":   manifest.Never("has no effect"),
	"nodeSelector": manifest.Never("has no effect: write podOverride.nodeSelector"),
	"nodeAffinity": manifest.Never("has no effect: write podOverride.affinity"),
}

var podOverrideNotes = map[string]manifest.Note{
	"image": manifest.Never("has no effect: Roundhouse's own image sends the load"),
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
	readDataset(r, spec.Dataset, out)
	readOutput(r, spec, out)
	if p := spec.PodOverride; p != nil {
		checkVolumes(r, p.Volumes)
		out.Pod = p.Pod
	}
	if !r.Failed() {
		if _, err := out.Plan(); err != nil {
			r.Errorf("spec.numConcurrency", "%v", err)
		}
	}
}

// checkVolumes refuses volumes that give more than the namespace has: the controller makes
// the pod by its own rights, for whoever may write the manifest. It lists what is taken, so
// that kinds which Kubernetes adds are refused until somebody has judged them.
func checkVolumes(r *manifest.Reader, volumes []corev1.Volume) {
	for i := range volumes {
		at := strict.Index("spec.podOverride.volumes", i)
		v := volumes[i].VolumeSource
		projected := v.Projected
		v.ConfigMap, v.Secret, v.PersistentVolumeClaim, v.EmptyDir, v.Projected, v.DownwardAPI, v.Ephemeral = nil, nil, nil, nil, nil, nil, nil
		if v != (corev1.VolumeSource{}) {
			r.Errorf(at+"."+stated(v), "is not mounted, as it would give more than the job's namespace has: write configMap, secret, persistentVolumeClaim, emptyDir, projected, downwardAPI or ephemeral")
		}
		if projected == nil {
			continue
		}
		for j, p := range projected.Sources {
			p.ConfigMap, p.Secret, p.DownwardAPI, p.ClusterTrustBundle = nil, nil, nil, nil
			if p != (corev1.VolumeProjection{}) {
				r.Errorf(strict.Index(at+".projected.sources", j)+"."+stated(p), "is not mounted, as it would give the pod an identity in the cluster: write configMap, secret, downwardAPI or clusterTrustBundle")
			}
		}
	}
}

// stated is the first field that a source states.
func stated(source any) string {
	text, _ := json.Marshal(source) // it was read from a manifest
	var fields map[string]any
	_ = json.Unmarshal(text, &fields)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		return name
	}
	return ""
}

// readEndpoint reads whose answers are measured.
func readEndpoint(r *manifest.Reader, e *benchmarkEndpoint, out *load.Job) {
	const at = "spec.endpoint"
	switch {
	case e == nil || e.InferenceService == nil && e.Endpoint == nil:
		r.Errorf(at, "is missing: name an inferenceService, or an endpoint with its url")
	case e.InferenceService != nil && e.Endpoint != nil:
		r.Errorf(at+".endpoint", "and inferenceService both say what is measured: remove one")
	case e.InferenceService != nil:
		manifest.CheckName(r.Report, at+".inferenceService.name", e.InferenceService.Name, true)
		out.Service = service.Key{Namespace: e.InferenceService.Namespace, Name: e.InferenceService.Name}
		if out.Service.Namespace == "" {
			out.Service.Namespace = out.Namespace
		}
	default:
		if _, _, err := load.Endpoint(e.Endpoint.URL); err != nil {
			r.Errorf(at+".endpoint.url", "%v", err)
		}
		if e.Endpoint.ModelName == "" {
			r.Errorf(at+".endpoint.modelName", "is missing: name the model that requests are for")
		}
		if f := e.Endpoint.APIFormat; f != "" && f != "openai" {
			r.Errorf(at+".endpoint.apiFormat", "%q is not measured: write openai", manifest.Clip(f))
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

// onCluster reports an error that holds where replicas are pods.
func onCluster(r *manifest.Reader, path string, warning bool, message string) {
	p := r.Problem(path, message)
	p.Warning, p.Platform = warning, manifest.Kubernetes
}

const noClaim = "is a PersistentVolumeClaim, which one machine does not have: write file://PATH"

// ownClaim is a URI without the namespace that OME writes before a claim, where that is
// the job's own.
func ownClaim(uri, namespace string) string {
	if rest, own := strings.CutPrefix(uri, "pvc://"+namespace+":"); own {
		return "pvc://" + rest
	}
	return uri
}

// readDataset reads where the prompts are.
func readDataset(r *manifest.Reader, d *benchmarkStorage, out *load.Job) {
	if d == nil {
		return
	}
	const at = "spec.dataset.storageUri"
	out.Dataset = ownClaim(strings.TrimSpace(d.StorageURI), out.Namespace)
	file, local := service.LocalPath(out.Dataset)
	_, inClaim, claimed := load.Claim(out.Dataset)
	const prompts = "; prompts are made of random words without it"
	switch {
	case out.Dataset == "":
		r.Errorf(at, "is missing: write file://PATH on one machine, pvc://CLAIM/PATH on a cluster")
	case local && !path.IsAbs(file):
		r.Errorf(at, "%q is not the whole path of a file: write file:///FOLDER/FILE", manifest.Clip(out.Dataset))
	case local:
		onCluster(r, at, true, "has no effect on a cluster: no pod has this file: write pvc://CLAIM/PATH"+prompts)
	case claimed && inClaim != "":
		r.OneMachine(at, true, "has no effect on one machine: "+noClaim+prompts)
	case strings.HasPrefix(out.Dataset, "pvc://"):
		r.Errorf(at, "%q names no file of a volume: write pvc://CLAIM/PATH, with a claim of the job's namespace", manifest.Clip(out.Dataset))
	default:
		r.Warnf(at, "has no effect: write file://PATH on one machine, pvc://CLAIM/PATH on a cluster, a file of lines of JSON with prompt or messages%s", prompts)
		out.Dataset = ""
	}
}

// reportName is the file of a report, in its folder.
const reportName = "report.json"

// readOutput reads where the report is to be.
func readOutput(r *manifest.Reader, spec *benchmarkJobSpec, out *load.Job) {
	o, folder := spec.OutputLocation, cmp.Or(spec.ResultFolderName, out.Name)
	if o == nil {
		if spec.ResultFolderName != "" {
			r.Warnf("spec.resultFolderName", "has no effect without an outputLocation")
		}
		return
	}
	if folder == "." || folder == ".." || strings.ContainsAny(folder, "/\\?#\x00") {
		r.Errorf("spec.resultFolderName", "%q is not the name of a folder", manifest.Clip(folder))
		return
	}
	uri, region := ownClaim(strings.TrimSpace(o.StorageURI), out.Namespace), ""
	if rest, s3 := strings.CutPrefix(uri, "s3://"); s3 { // OME's s3://BUCKET@REGION/PATH
		bucket, key, _ := strings.Cut(rest, "/")
		bucket, region, _ = strings.Cut(bucket, "@")
		uri = "s3://" + bucket + "/" + key
	}
	const at = "spec.outputLocation.storageUri"
	endpoint := ""
	if strings.HasPrefix(uri, "oci://") {
		region = cmp.Or(o.Parameters["region"], o.Parameters["oci_region"])
		if uri, endpoint = inOracle(r, at, uri, region); endpoint == "" {
			return
		}
	}
	if !checkOutput(r, at, uri) {
		return
	}
	out.Output = load.Output{URI: strings.TrimRight(uri, "/") + "/" + folder + "/" + reportName, Region: region, Endpoint: endpoint, Secret: o.Key}
	if o.Key != "" {
		manifest.CheckName(r.Report, "spec.outputLocation.key", o.Key, true)
		r.OneMachine("spec.outputLocation.key", true, "has no effect on one machine: up writes the report with the credentials of its environment")
	}
	for _, name := range slices.Sorted(maps.Keys(o.Parameters)) {
		at := strict.Key("spec.outputLocation.parameters", name)
		switch {
		case name == "region" || name == "aws_region" || name == "oci_region" && endpoint != "":
			out.Output.Region = cmp.Or(out.Output.Region, o.Parameters[name])
		case secretParameter(name):
			r.Errorf(at, "is a secret in a manifest: put it into the Secret that outputLocation.key names, as a variable such as AWS_SECRET_ACCESS_KEY, or on one machine into the environment of up")
		case endpoint != "":
			r.Warnf(at, "has no effect: Oracle's store is written to over its S3-compatible address, with a Customer Secret Key in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: of the Secret that outputLocation.key names, or of the environment")
		default:
			r.Warnf(at, "has no effect: credentials are those of the Secret that outputLocation.key names, and of the environment")
		}
	}
}

// secretParameter reports whether the value of a parameter is secret, by its name.
func secretParameter(name string) bool {
	name = strings.ToLower(name)
	return slices.ContainsFunc([]string{"secret", "key", "token", "password", "credential", "connection_string", "sas"}, func(word string) bool { return strings.Contains(name, word) })
}

var (
	oracleBucket = regexp.MustCompile(`^oci://n/([a-z0-9-]{1,63})/b/([A-Za-z0-9._-]{1,256})/o(/.*)?$`)
	oracleRegion = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)
)

// inOracle is where Oracle's object storage has a folder for clients of S3: the bucket, and
// the address of the store, which is "" where there is none.
func inOracle(r *manifest.Reader, at, uri, region string) (inStore, endpoint string) {
	parts := oracleBucket.FindStringSubmatch(uri)
	switch {
	case parts == nil:
		r.Errorf(at, "%q is no folder of a bucket: write oci://n/NAMESPACE/b/BUCKET/o/PATH", manifest.Clip(uri))
	case !oracleRegion.MatchString(region):
		// OME's own programs learn it from the machine that they run on.
		r.Warnf("spec.outputLocation", "has no effect: the region of the bucket is missing: write it as parameters.region, such as eu-frankfurt-1")
	default:
		return "s3://" + parts[2] + parts[3], "https://" + parts[1] + ".compat.objectstorage." + region + ".oraclecloud.com"
	}
	return "", ""
}

// checkOutput checks that a report can be written to a URI.
func checkOutput(r *manifest.Reader, at, uri string) bool {
	file, local := service.LocalPath(uri)
	scheme, rest, _ := strings.Cut(uri, "://")
	bucket, _, _ := strings.Cut(rest, "/")
	switch {
	case uri == "":
		r.Errorf(at, "is missing: say where the report is to be written: file://PATH on one machine, pvc://CLAIM/PATH on a cluster, or s3://, gs://, az:// or oci://")
	case local && !path.IsAbs(file):
		r.Errorf(at, "%q is not the whole path of a folder: write file:///FOLDER", manifest.Clip(uri))
	case local:
		onCluster(r, at, false, "is a folder of the pod that sends the load, which goes with it: write pvc://CLAIM/PATH, s3://, gs:// or az://")
		return true
	case scheme == "pvc":
		if _, _, ok := load.Claim(uri); !ok {
			r.Errorf(at, "%q is no volume: write pvc://CLAIM/PATH, with a claim of the job's namespace", manifest.Clip(uri))
			return false
		}
		r.OneMachine(at, false, noClaim)
		return true
	case strings.ContainsAny(uri, "?#"):
		r.Errorf(at, "has a query or a fragment, which may be secret: write the address alone, and put a signature into AZURE_STORAGE_SAS_TOKEN")
	case strings.ContainsAny(bucket, "@:"):
		r.Errorf(at, "has a user, a password or a port: write the address of a bucket alone; credentials belong into the environment, or into the Secret that outputLocation.key names")
	case bucket == "":
		r.Errorf(at, "names no bucket: write %s://BUCKET/PATH", manifest.Clip(scheme))
	case scheme == "s3" || scheme == "gs" || scheme == "az" || scheme == "https" && strings.Contains(bucket, ".blob.core."):
		return true
	default:
		r.Errorf(at, "nothing is written to %s://: write file://PATH on one machine, pvc://CLAIM/PATH on a cluster, or s3://, gs://, az:// or oci://", manifest.Clip(scheme))
	}
	return false
}
