package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	carried "roundhouse.dev/roundhouse/python"

	"os/exec"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/edge/engine/worker"
	"roundhouse.dev/roundhouse/internal/edge/engine/worker/python"
	"roundhouse.dev/roundhouse/internal/edge/modelserver"
	"roundhouse.dev/roundhouse/internal/edge/modelserver/metrics"
)

// pythonFormat is a format whose models Python code serves.
type pythonFormat struct {
	name string
	// own is the runtime of ours, "" for none; mlserver is MLServer's, which
	// serves the models that name it, where it is installed.
	own, mlserver string
	packages      string // what pip installs for it, beside what every worker needs
	files         []string
	match         func(head []byte) bool
	// folder: the model is the folder that such a file lies in.
	folder bool
	// apart: our runtime has answers of its own, and does not stand in for MLServer's.
	apart bool
}

// huggingFaceRuntime is ours for Hugging Face models.
const huggingFaceRuntime = "roundhouse.runtimes.huggingface.HuggingFace"

// pythonFormats are those formats, in the order in which a folder is searched
// for their files.
var pythonFormats = []pythonFormat{
	{name: "sklearn", packages: "scikit-learn", own: "roundhouse.runtimes.sklearn.SKLearn", mlserver: "mlserver_sklearn.SKLearnModel", files: []string{"model.joblib", "model.pickle", "model.pkl"}},
	{name: "catboost", packages: "catboost", own: "roundhouse.runtimes.catboost.CatBoost", mlserver: "mlserver_catboost.CatboostModel", files: []string{"model.cbm"}},
	{name: "mlflow", packages: "mlflow", own: "roundhouse.runtimes.mlflow.MLflow", mlserver: "mlserver_mlflow.MLflowRuntime", files: []string{"MLmodel"}, folder: true},
	{name: "pytorch", packages: "torch", own: "roundhouse.runtimes.pytorch.TorchScript", files: []string{"model.pt", "model.pth"}},
	{name: "tensorflow", packages: "tensorflow", own: "roundhouse.runtimes.tensorflow.SavedModel", files: []string{"saved_model.pb"}, folder: true},
	{name: "paddle", packages: "paddlepaddle", own: "roundhouse.runtimes.paddle.Paddle", files: []string{"model.pdmodel", "inference.pdmodel"}},
	{name: "pmml", packages: "pypmml pandas", own: "roundhouse.runtimes.pmml.PMML", files: []string{"model.pmml"}},
	{name: "huggingface", packages: "torch transformers", own: huggingFaceRuntime, mlserver: "mlserver_huggingface.HuggingFaceRuntime", files: []string{"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"}, folder: true, apart: true},
	{name: "custom"}, // any other code
}

// workers runs the models of one kind of worker process: Python's, or with a
// command another. Nothing is made for it, and no process started, before the
// first of them is loaded.
type workers struct {
	formats []pythonFormat
	// command finds the program that a worker is; nil: the interpreter.
	command     func() ([]string, error)
	settings    *modelserver.WorkerSettings // nil: the defaults
	python      string                      // the interpreter
	root        string                      // of the repository, whose modules all models share; "" for none
	environ     []string                    // over this process's
	huggingFace huggingFace
	expected    []modelserver.Entry // models of the start, of any kind
	registry    *metrics.Registry
	log         *slog.Logger
	inFlight    atomic.Int64

	once    sync.Once
	engine  *worker.Engine
	grace   time.Duration // for the workers to end
	cleanup func()
	err     error // of the start
}

// engines lists the engines that the workers serve.
func (w *workers) engines() []modelserver.Engine {
	var list []modelserver.Engine
	for _, f := range w.formats {
		e := modelserver.Engine{Name: f.name, Files: f.files, Match: f.match, Others: f.own == "" && f.mlserver == "",
			Loader: modelserver.LoaderFunc(func(ctx context.Context, s modelserver.Settings) (modelserver.Model, error) { return w.load(ctx, s, f) })}
		for _, implementation := range []string{f.own, f.mlserver} {
			if implementation != "" {
				e.Implementations = append(e.Implementations, implementation)
			}
		}
		list = append(list, e)
	}
	return list
}

// start makes the engine, once.
func (w *workers) start() (*worker.Engine, error) {
	w.once.Do(func() {
		c := worker.DefaultConfig()
		if s := w.settings; s != nil {
			c.ParallelWorkers, c.ForkWorkers = s.ParallelWorkers, s.ForkWorkers
			c.WorkerTimeout = time.Duration(s.ParallelWorkersTimeout) * time.Second
			if s.InferenceTimeout != 0 {
				c.Limits.RequestTimeout = time.Duration(s.InferenceTimeout * float64(time.Second))
			}
		}
		if c.ForkWorkers && c.ParallelWorkers > 1 && w.command == nil {
			c.Expected = w.expectedModels()
		}
		w.expected = nil
		w.grace = 2 * c.WorkerTimeout
		var programs worker.Programs
		if programs, w.err = w.programs(); w.err != nil {
			return
		}
		if w.engine, w.err = worker.New(c, programs, &pythonMetrics{registry: w.registry, log: w.log}, w.log); w.err == nil {
			w.registry.Include(w.engine.AppendMetrics)
		}
	})
	return w.engine, w.err
}

// programs finds what the workers run.
func (w *workers) programs() (worker.Programs, error) {
	environ := append(os.Environ(), w.environ...)
	if w.command != nil {
		command, err := w.command()
		program := &worker.Program{Command: command, Env: environ}
		return func(_ context.Context, e worker.Environment) (*worker.Program, error) {
			if e.Path != "" {
				return nil, worker.NewError(worker.KindUnprocessable, fmt.Sprintf("environment %s: only models of Python code run in environments", e.Path))
			}
			return program, nil
		}, err
	}
	if w.root != "" {
		shared := w.root
		if given := os.Getenv("PYTHONPATH"); given != "" {
			shared = given + string(filepath.ListSeparator) + shared
		}
		environ = append(environ, "PYTHONPATH="+shared)
	}
	c := python.Config{Interpreter: w.python, Environ: environ, Package: carried.Files, EnvironmentsDir: ".envs"}
	if w.settings != nil {
		c.EnvironmentsDir = w.settings.EnvironmentsDir
	}
	var err error
	if c.CacheDir, w.cleanup, err = packageCache(); err != nil {
		return nil, err
	}
	e, err := python.New(c, w.log)
	if err != nil {
		return nil, err
	}
	return e.Program, nil
}

// expectedModels are those of the models there are that name a class which
// these workers serve.
func (w *workers) expectedModels() []worker.Settings {
	var list []worker.Settings
	for _, e := range w.expected {
		implementation := e.Settings.Implementation
		i := slices.IndexFunc(w.formats, func(f pythonFormat) bool { return f.own == implementation || f.mlserver == implementation })
		code := !strings.HasPrefix(implementation, "mlserver_") && !strings.HasPrefix(implementation, "roundhouse.")
		if e.Err != nil || implementation == "" || i < 0 && !code {
			continue
		}
		f := pythonFormat{}
		if i >= 0 {
			f = w.formats[i]
		}
		if s, err := w.pythonSettings(e.Settings, f, implementation); err == nil {
			list = append(list, s)
		}
	}
	return list
}

// packageCache is where the package is unpacked: below the user's cache folder,
// or where there is none, as in images that any user may run, in a folder of
// this process's own.
func packageCache() (dir string, cleanup func(), err error) {
	if home, err := os.UserCacheDir(); err == nil {
		dir = filepath.Join(home, "roundhouse")
		if os.MkdirAll(dir, 0o700) == nil {
			if probe, err := os.CreateTemp(dir, ".probe-"); err == nil {
				_ = probe.Close()
				return dir, func() {}, os.Remove(probe.Name())
			}
		}
	}
	dir, err = os.MkdirTemp("", "roundhouse-package-")
	return dir, func() { _ = os.RemoveAll(dir) }, err
}

// keep has the workers, if there are any, stay without models or not.
func (w *workers) keep(keep bool) {
	if w.engine != nil {
		w.engine.Keep(keep)
	}
}

// close stops the workers, if there are any, within the time they have.
func (w *workers) close() error {
	w.once.Do(func() { w.err = errors.New("the server is shutting down") })
	if w.cleanup != nil {
		defer w.cleanup()
	}
	if w.engine == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.grace)
	defer cancel()
	return w.engine.Close(ctx)
}

// load loads a model. One that names MLServer's runtime is served by ours of
// the same format where MLServer's is not installed.
func (w *workers) load(ctx context.Context, s modelserver.Settings, f pythonFormat) (modelserver.Model, error) {
	engine, err := w.start()
	if err != nil {
		return nil, err
	}
	implementation := s.Implementation
	if implementation == "" || f.apart && w.huggingFace.stated {
		implementation = f.own
	}
	if implementation == "" {
		implementation = f.mlserver
	}
	if implementation == "" {
		return nil, fmt.Errorf("model %q: name the class that serves it as implementation in model-settings.json", s.Name)
	}
	settings, err := w.pythonSettings(s, f, implementation)
	if err != nil {
		return nil, err
	}
	m, err := engine.Load(ctx, settings)
	if lacking(err) && f.own != "" && implementation != f.own && !f.apart {
		w.log.Info("model is served by our own runtime, since MLServer's is not installed", "model", s.Name, "implementation", implementation, "runtime", f.own)
		if settings, err = w.pythonSettings(s, f, f.own); err == nil {
			m, err = engine.Load(ctx, settings)
		}
	}
	if err != nil && f.apart && implementation != f.own {
		f.packages = "mlserver-huggingface"
	}
	if err != nil {
		return nil, f.needs(err)
	}
	queue, err := w.registry.Register(metrics.Desc{Name: "parallel_request_queue", Help: "How many requests workers had when one came, with it.", Kind: metrics.Histogram})
	if err != nil {
		return nil, errors.Join(err, m.Close(ctx))
	}
	return &pythonModel{Model: m, queue: queue.With(), inFlight: &w.inFlight}, nil
}

// needs has an error about one package that every model of the format needs
// name all of those, so that nobody is sent for one after the other.
func (f pythonFormat) needs(err error) error {
	e, ok := errors.AsType[*worker.Error](err)
	if !ok || f.packages == "" {
		return err
	}
	interpreter, lacks, pip := strings.Cut(e.Install, " -m pip install ")
	all := "numpy pydantic " + f.packages
	for _, name := range strings.Fields(lacks) {
		pip = pip && slices.Contains(strings.Fields(all), name)
	}
	if !pip {
		return err
	}
	return fmt.Errorf("%s lacks packages that %s models need: %s -m pip install %s", interpreter, f.name, interpreter, all)
}

// lacking reports whether a package has to be installed first.
func lacking(err error) bool {
	e, ok := errors.AsType[*worker.Error](err)
	return ok && e.Install != ""
}

// pythonSettings are a model's settings as its code is to see them.
func (w *workers) pythonSettings(s modelserver.Settings, f pythonFormat, implementation string) (worker.Settings, error) {
	p := s.Parameters
	out := worker.Settings{Name: s.Name, Version: p.Version, Workers: s.ParallelWorkers, RequestTimeout: time.Duration(s.InferenceTimeout * float64(time.Second)), EnvironmentPath: p.EnvironmentPath, EnvironmentTarball: p.EnvironmentTarball,
		InferencePoolGID: p.InferencePoolGID, AutogenerateInferencePoolGID: p.AutogenerateInferencePoolGID}
	uri := p.URI
	if f.folder && fileAt(uri) {
		uri = filepath.Dir(uri)
	}
	switch {
	case s.Source != "":
		out.Folder = filepath.Dir(s.Source)
	case fileAt(uri):
		out.Folder = filepath.Dir(uri)
	case filepath.IsAbs(uri):
		out.Folder = uri
	}
	document, parameters := map[string]any{}, map[string]any{}
	if s.Raw != nil {
		if err := json.Unmarshal(s.Raw, &document); err != nil {
			return out, fmt.Errorf("model %q: its settings: %w", s.Name, err)
		}
		if given, ok := document["parameters"].(map[string]any); ok {
			parameters = given
		}
	}
	delete(document, "parallel_workers") // said by Workers
	delete(document, "inference_timeout")
	document["name"], document["implementation"], document["parameters"] = s.Name, implementation, parameters
	if given, _ := parameters["uri"].(string); given == "" || f.folder {
		parameters["uri"] = uri
	}
	if p.Version != "" {
		parameters["version"] = p.Version
	}
	switch extra, _ := parameters["extra"].(map[string]any); {
	case implementation == huggingFaceRuntime:
		parameters["extra"] = w.huggingFace.own(extra, uri)
		out.Folder = "" // whose files are data: a torch.py among them is not torch
	case f.name == "huggingface":
		parameters["extra"] = w.huggingFace.fill(extra, uri, s.Raw == nil)
	}
	var err error
	out.Document, err = json.Marshal(document)
	return out, err
}

// fileAt reports whether a path is a file's.
func fileAt(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

// pythonModel is a worker.Model as the model server wants it.
type pythonModel struct {
	*worker.Model
	queue    *metrics.Series
	inFlight *atomic.Int64 // of all models of the workers
}

// Infer answers a request.
func (m *pythonModel) Infer(ctx context.Context, r *tensor.Request) (*tensor.Response, error) {
	m.queue.Observe(float64(m.inFlight.Add(1)))
	defer m.inFlight.Add(-1)
	return m.Model.Infer(ctx, r)
}

// Stream answers a stream of requests.
func (m *pythonModel) Stream(ctx context.Context, in modelserver.Requests, send func(*tensor.Response) error) error {
	m.queue.Observe(float64(m.inFlight.Add(1)))
	defer m.inFlight.Add(-1)
	return m.Model.Stream(ctx, in, send)
}

// ReadsHeaders reports true: the model's code may read its requests' headers.
func (m *pythonModel) ReadsHeaders() bool { return true }

// Parallelism is one request, or batch of them, in each worker.
func (m *pythonModel) Parallelism() int { return m.Workers() }

// Routes are those of the model's custom handlers.
func (m *pythonModel) Routes() []modelserver.Route {
	var list []modelserver.Route
	for _, r := range m.Model.Routes() {
		list = append(list, modelserver.Route(r))
	}
	return list
}

// modelLabels are those of a model's metrics: the guide's, and MLServer's.
var modelLabels = []string{"model_name", "model_version", "model", "version"}

// pythonMetrics keeps what models' code measures, as histograms.
type pythonMetrics struct {
	registry *metrics.Registry
	log      *slog.Logger
	families sync.Map  // name → *metrics.Family
	refused  sync.Once // a word about the first that cannot be kept
}

// Register makes a metric.
func (m *pythonMetrics) Register(_, _, name, description string) {
	m.family(name, description)
}

// Observe counts a value of a metric.
func (m *pythonMetrics) Observe(model, version, name string, value float64) {
	if f := m.family(name, ""); f != nil {
		f.With(model, version, model, version).Observe(value)
	}
}

// family finds or makes a metric; nil if its name is taken or is none, or there
// are too many.
func (m *pythonMetrics) family(name, description string) *metrics.Family {
	if f, ok := m.families.Load(name); ok {
		return f.(*metrics.Family)
	}
	help := strings.TrimSpace(description)
	if help == "" {
		help = "Measured by models' code."
	}
	f, err := m.registry.Register(metrics.Desc{Name: name, Help: help, Kind: metrics.Histogram, Labels: modelLabels})
	if err != nil {
		m.refused.Do(func() { m.log.Warn("metrics of models are left out, the first for this", "error", err) })
		return nil
	}
	m.families.Store(name, f)
	return f
}

// onnxProgram is the worker for ONNX models, which lies beside this program or
// on PATH. Apart, it keeps this one free of the C library.
const onnxProgram = "roundhouse-onnx"

// onnxFormats is the one format those workers serve.
var onnxFormats = []pythonFormat{{name: "onnx", own: "onnx", files: []string{"model.onnx"}, match: isONNX}}

// isONNX reports whether a file that begins with head may be an ONNX model: a
// protobuf whose first field is ModelProto's ir_version, a small number.
func isONNX(head []byte) bool {
	return len(head) > 2 && head[0] == 0x08 && head[1] >= 1 && head[1] <= 0x7f
}

// onnxCommand finds the worker.
func (c *serveCommand) onnxCommand() ([]string, error) {
	program, err := companion(onnxProgram)
	if err != nil {
		return nil, errors.New("ONNX models need the program roundhouse-onnx in the folder of roundhouse-server or on PATH: `make build` builds both")
	}
	return []string{program, "--python", c.python.python}, nil
}

// companion finds a program that comes with this one: beside it, or on PATH.
func companion(name string) (string, error) {
	program := command.Beside(name)
	if _, err := exec.LookPath(program); err == nil {
		return program, nil
	}
	return exec.LookPath(name)
}
