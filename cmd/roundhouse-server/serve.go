package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/edge/engine/gbdt"
	"roundhouse.dev/roundhouse/internal/edge/engine/lightgbm"
	"roundhouse.dev/roundhouse/internal/edge/engine/trees"
	"roundhouse.dev/roundhouse/internal/edge/engine/xgboost"
	"roundhouse.dev/roundhouse/internal/edge/modelserver"
	"roundhouse.dev/roundhouse/internal/edge/modelserver/metrics"
	"roundhouse.dev/roundhouse/internal/edge/modelserver/oipgrpc"
)

// nativeEngines lists the engines of the model server, in the order in which
// a folder is searched for their files.
func nativeEngines() []modelserver.Engine {
	return []modelserver.Engine{{
		Name:            "xgboost",
		Implementations: []string{trees.MLServerXGBoost},
		Files:           []string{"model.bst", "model.json", "model.ubj"},
		Match: func(head []byte) bool {
			f := gbdt.Sniff(head)
			return f == gbdt.FormatXGBoostJSON || f == gbdt.FormatXGBoostUBJ || f == gbdt.FormatXGBoostLegacy
		},
		Loader: treeLoader("xgboost", xgboost.Load),
	}, {
		Name:            "lightgbm",
		Implementations: []string{trees.MLServerLightGBM},
		Files:           []string{"model.bst", "model.txt"},
		Match:           func(head []byte) bool { return gbdt.Sniff(head) == gbdt.FormatLightGBMText },
		Loader:          treeLoader("lightgbm", lightgbm.Load),
	}}
}

// returnDelay is how long after the last load the memory that loads took goes
// back to the system: late enough for the request that waits for the model,
// and once for many.
const returnDelay = 100 * time.Millisecond

// afterLoads has f called once no engine has loaded a model for that long.
func afterLoads(engines []modelserver.Engine, quiet time.Duration, f func()) {
	timer := time.AfterFunc(quiet, f)
	timer.Stop() // until there was a load
	for i := range engines {
		load := engines[i].Loader.Load
		engines[i].Loader = modelserver.LoaderFunc(func(ctx context.Context, s modelserver.Settings) (modelserver.Model, error) {
			defer timer.Reset(quiet)
			return load(ctx, s)
		})
	}
}

// treeLoader serves tree models that load reads. A model that names MLServer's
// runtime gets its conventions, which package trees explains.
func treeLoader(platform string, load func(path string) (*gbdt.Model, error)) modelserver.Loader {
	return modelserver.LoaderFunc(func(_ context.Context, s modelserver.Settings) (modelserver.Model, error) {
		m, err := load(s.Parameters.URI)
		if err != nil {
			return nil, err
		}
		o := trees.Options{Name: s.Name, Version: s.Parameters.Version, Platform: s.Platform, Inputs: s.Inputs, Outputs: s.Outputs,
			RequestContentType: s.Parameters.ContentType}
		if o.Platform == "" {
			o.Platform = platform
		}
		if strings.HasPrefix(s.Implementation, "mlserver_") {
			o.Columns, o.ContentType = true, "np"
		}
		if s.Implementation == trees.MLServerXGBoost {
			// As MLServer's runtime, which loads an XGBRegressor unless the file says
			// that it is a classifier's.
			o.Labels = m.Estimator() == "classifier"
			if best, ok := m.BestIteration(); ok {
				m = m.Limit(best + 1)
			}
		}
		return trees.New(m, o), nil
	})
}

// serveCommand is the program, and `roundhouse serve`.
type serveCommand struct {
	path string
	name string
	// modelName is KServe's flag for the name; beside --name it is another one.
	modelName string
	format    string
	// modelDir is another way to say path: KServe's. Beside a path it says which folder
	// within.
	modelDir string
	config   modelserver.Config
	flags    modelserver.Config // what the flags say
	// settings are those of the repository; nil without one.
	settings      *modelserver.ServerSettings
	tracingServer string
	python        workers
	onnx          workers
	logs          command.LogOptions
	logsGiven     bool // logs.Format is a flag's, and wins over the settings
	log           *slog.Logger
}

func newServerCommand() *cobra.Command {
	c := &serveCommand{flags: modelserver.DefaultConfig()}
	c.python.formats = pythonFormats
	c.onnx.formats, c.onnx.command = onnxFormats, c.onnxCommand
	cmd := &cobra.Command{
		Use:   "roundhouse-server FOLDER|FILE",
		Short: "Serve models over the Open Inference Protocol and KServe's v1",
		Long: `Serve models over the Open Inference Protocol and KServe's v1 protocol.

FILE is one model: XGBoost (JSON, UBJSON), LightGBM (text) or ONNX, or one that
Python serves: sklearn, CatBoost, MLflow, PyTorch, TensorFlow, Paddle, PMML, and
the folders of Hugging Face, which answer OpenAI's clients too.
FOLDER is a model repository as MLServer reads it (model-settings.json files at
any depth, settings.json at the top, MLSERVER_ variables), or holds one model.
Models that Python serves run in processes of --python, which needs numpy and
pydantic and what the model needs.
Flags win over settings.json, which wins over the environment.`,
		Example: "  roundhouse-server iris.ubj --name iris\n  roundhouse-server models/\n  roundhouse-server Qwen2.5-0.5B-Instruct --format huggingface --name qwen",
		Args:    command.Wants(0, 1, "what to serve"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			args = withModelDir(args, c.modelDir)
			if err := c.python.huggingFace.check(); err != nil {
				return err
			}
			c.python.huggingFace.stated = c.format == "huggingface"
			if c.name == "" {
				c.name, c.modelName = c.modelName, ""
			}
			c.python.huggingFace.alias = c.modelName
			if c.path, err = servedPath(args, os.Getenv("MLSERVER_MODELS_DIR"), "."); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			context.AfterFunc(ctx, stop) // a second signal ends it at once
			return c.run(ctx, cmd)
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.name, "name", "", "name of the model (default: the file's or folder's name)")
	f.StringVar(&c.format, "format", "", "format of the model: xgboost, lightgbm, sklearn, mlflow … (default: by its first bytes or its name)")
	f.StringVar(&c.python.python, "python", cmp.Or(os.Getenv("ROUNDHOUSE_PYTHON"), "python3"), "interpreter for models that Python serves")
	c.python.huggingFace.addFlags(f)
	f.StringVar(&c.modelDir, "model-dir", "", "FOLDER, as KServe's servers have it; beside FOLDER one within it, and else without effect")
	f.StringVar(&c.modelName, "model-name", "", "--name, as KServe's servers have it; beside --name another name that the model answers to")
	f.SetNormalizeFunc(kserveFlags)
	f.StringVar(&c.flags.Host, "host", c.flags.Host, "address to listen on")
	f.StringSliceVar(&c.flags.AllowedHosts, "allowed-hosts", nil, "host names that requests may have, or * for all; checked only on a loopback address; this machine's own are always allowed")
	f.IntVar(&c.flags.HTTP.Port, "http-port", c.flags.HTTP.Port, "port for HTTP; 0 for any free one")
	f.IntVar(&c.flags.GRPC.Port, "grpc-port", c.flags.GRPC.Port, "port for gRPC; 0 for any free one, -1 for none, as without this flag if --http-port is given")
	f.IntVar(&c.flags.Metrics.Port, "metrics-port", c.flags.Metrics.Port, "port for metrics; -1 for that of HTTP, as without this flag if --http-port is given")
	f.StringVar(&c.flags.TLS.CertFile, "tls-cert-file", "", "certificate for HTTP and gRPC, PEM; with --tls-key-file")
	f.StringVar(&c.flags.TLS.KeyFile, "tls-key-file", "", "private key of the certificate, PEM")
	f.BoolVar(&c.flags.StrictShapes, "strict", false, "refuse tensors whose data do not fill their shape, also texts and models' answers")
	f.IntVar(&c.flags.Limits.MaxConcurrency, "max-concurrency", c.flags.Limits.MaxConcurrency, "inference requests under way at once, 0 for no limit; more are answered 429")
	f.StringVar(&c.flags.SharedMemory, "system-shared-memory", "", "let clients of this machine pass tensors in POSIX shared memory whose name begins so; / for any name (default: in none)")
	f.Int64Var(&c.flags.Limits.MaxBodyBytes, "max-body-bytes", c.flags.Limits.MaxBodyBytes, "largest request body, in bytes")
	c.logs.FormatFlag(f)
	f.StringVar(&c.tracingServer, "tracing-server", "", "OTLP collector for traces: host:port (gRPC) or http://host:port; default: tracing_server, or OTEL_EXPORTER_OTLP_ENDPOINT")
	f.DurationVar(&c.flags.Limits.DrainTimeout, "drain-timeout", c.flags.Limits.DrainTimeout, "how long requests under way may finish when the server stops")
	return cmd
}

// kserveFlags has the arguments of KServe's servers be flags: they are written
// with underscores, and one has an older name.
func kserveFlags(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	name = strings.ReplaceAll(name, "_", "-")
	if name == "max-length" {
		name = "max-model-len"
	}
	return pflag.NormalizedName(name)
}

// run serves until ctx ends.
func (c *serveCommand) run(ctx context.Context, cmd *cobra.Command) (err error) {
	if c.log, err = c.logs.New(cmd.ErrOrStderr()); err != nil {
		return err
	}
	c.logsGiven = cmd.Flags().Changed("log-format")
	repository, err := c.repository(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	c.applyFlags(cmd.Flags().Changed)
	c.config.ServerVersion = cmp.Or(c.config.ServerVersion, version)
	c.config.Metrics.Registry = &metrics.Registry{}
	closeTracer, err := c.openTracer(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeTracer()) }()
	c.python.registry, c.python.log = c.config.Metrics.Registry, c.log
	c.onnx.python, c.onnx.settings = c.python.python, c.python.settings
	c.onnx.registry, c.onnx.log = c.config.Metrics.Registry, c.log
	defer func() { err = errors.Join(err, c.python.close(), c.onnx.close()) }()
	engines := c.engines()
	// Reading a model takes several times the memory it has then, and a replica
	// that nobody asks has no other reason to collect it.
	afterLoads(engines, returnDelay, debug.FreeOSMemory)
	if os.Getenv(standbyVariable) == "1" {
		c.config.Standby = c.standby
	}
	server, err := modelserver.New(c.config, repository, engines, c.log)
	if err != nil {
		return err
	}
	if err := errors.Join(c.addGRPC(server), c.addKafka(server)); err != nil {
		return err
	}
	if _, err := server.Listen(); err != nil {
		return command.ListenError(err, c.portFlag(err))
	}
	// Not for a replica, in whose log the lines would be the last ones.
	out := cmd.OutOrStdout()
	file, ok := out.(*os.File)
	if cmd.CommandPath() == command.ServeCommand || ok && term.IsTerminal(int(file.Fd())) {
		c.greet(out, server.Addresses())
	}
	return server.Run(ctx)
}

// standbyVariable has the server offer the calls by which it sleeps: it is set where
// a replica may.
const standbyVariable = "ROUNDHOUSE_STANDBY"

// standby has workers stay while the server sleeps without models.
func (c *serveCommand) standby(asleep bool) {
	c.python.keep(asleep)
	c.onnx.keep(asleep)
	if asleep {
		time.AfterFunc(returnDelay, debug.FreeOSMemory)
	}
}

// engines lists all engines, the native ones first.
func (c *serveCommand) engines() []modelserver.Engine {
	return slices.Concat(nativeEngines(), c.onnx.engines(), c.python.engines())
}

// addGRPC has the server speak gRPC, unless it has no port.
func (c *serveCommand) addGRPC(server *modelserver.Server) error {
	if c.config.GRPC.Port == modelserver.NoPort {
		return nil
	}
	g, err := oipgrpc.New(oipgrpc.Config{Host: c.config.Host, Port: c.config.GRPC.Port, MaxMessageBytes: c.config.GRPC.MaxMessageBytes,
		TLS: server.TLS(), Metrics: c.config.Metrics.Registry, Tracer: c.config.Tracer,
		WriteTimeout: c.config.Limits.WriteTimeout}, server, c.log)
	if err != nil {
		return err
	}
	server.AddTransport(g)
	return nil
}

// logAs opens the log anew, as the repository's settings have it. The flag wins over
// them, and they over the variable.
func (c *serveCommand) logAs(w io.Writer, l modelserver.Logging) (err error) {
	c.logs.Level = l.Level
	if l.JSON && !c.logsGiven {
		c.logs.Format = command.LogJSON
	}
	c.log, err = c.logs.New(w)
	return err
}

// workerEnvironment is what Python's workers are told of the settings.
func workerEnvironment(s modelserver.ServerSettings, l modelserver.Logging) ([]string, error) {
	var environ []string
	if s.Debug {
		environ = append(environ, "ROUNDHOUSE_DEBUG=1")
	}
	if l.Python != "" {
		environ = append(environ, "ROUNDHOUSE_LOGGING="+l.Python)
	}
	if s.MetricsDir == "" {
		return environ, nil
	}
	if err := os.MkdirAll(s.MetricsDir, 0o750); err != nil {
		return nil, fmt.Errorf("metrics_dir: %w", err)
	}
	return append(environ, "PROMETHEUS_MULTIPROC_DIR="+s.MetricsDir), nil
}

// repository finds the models and reads the configuration beside them, which
// says how to log to w.
func (c *serveCommand) repository(w io.Writer) (modelserver.Repository, error) {
	path, err := filepath.Abs(c.path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("nothing to serve: %w", err)
	}
	c.config = modelserver.DefaultConfig()
	if !info.IsDir() {
		return c.file(path)
	}
	env, err := modelserver.ReadEnvironment(os.Environ(), ".env", filepath.Join(path, ".env"))
	if err != nil {
		return nil, err
	}
	settings, err := modelserver.ReadServerSettings(path, env, c.log)
	if err != nil {
		return nil, err
	}
	c.settings = &settings
	c.config = settings.Config(c.config)
	c.python.settings = &settings.WorkerSettings
	if !c.python.huggingFace.stated { // whose folder has data alone
		c.python.root = settings.ModelRepositoryRoot
	}
	logging := settings.Logging(c.log)
	if err := c.logAs(w, logging); err != nil {
		return nil, err
	}
	if c.python.environ, err = workerEnvironment(settings, logging); err != nil {
		return nil, err
	}
	folder := modelserver.Folder{Root: settings.ModelRepositoryRoot, Name: cmp.Or(c.name, env["MLSERVER_MODEL_NAME"]), Format: c.format, Engines: c.engines(), Env: env, Log: c.log}
	// A server of one model is of no use without it.
	entries, err := folder.Scan()
	if err == nil && len(entries) == 0 && c.name != "" && settings.LoadModelsAtStartup {
		// In a pod a path that is not on the volume is an empty folder.
		return nil, fmt.Errorf("nothing to serve: %s holds no model, and --name wants %s: check the path", c.path, c.name)
	}
	c.config.Strict = len(entries) == 1
	c.python.expected = entries
	return folder, err
}

// file is the repository of the one model that a file is. Variables describe it and
// the server, as in the pods of KServe's runtimes; a stated format wants none of
// what they say of its implementation.
func (c *serveCommand) file(path string) (modelserver.Repository, error) {
	env, err := modelserver.ReadEnvironment(os.Environ(), ".env")
	if err != nil {
		return nil, err
	}
	if err := env.Server(&c.config); err != nil {
		return nil, err
	}
	s := modelserver.Settings{Name: cmp.Or(c.name, env["MLSERVER_MODEL_NAME"], strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)))}
	if c.format == "" {
		s.Implementation = env["MLSERVER_MODEL_IMPLEMENTATION"]
	}
	s.Parameters.URI, s.Parameters.Format = path, c.format
	c.config.Strict = true
	return modelserver.Single(s), nil
}

// applyFlags puts the flags that were given over the configuration.
func (c *serveCommand) applyFlags(given func(flag string) bool) {
	if given("host") {
		c.config.Host = c.flags.Host
	}
	// Several servers on one machine get one port each, not two that collide.
	if given("http-port") {
		c.config.HTTP.Port = c.flags.HTTP.Port
		c.config.GRPC.Port, c.config.Metrics.Port = modelserver.NoPort, modelserver.NoPort
	}
	if given("grpc-port") {
		c.config.GRPC.Port = c.flags.GRPC.Port
	}
	if given("metrics-port") {
		c.config.Metrics.Port = c.flags.Metrics.Port
	}
	if given("tls-cert-file") {
		c.config.TLS.CertFile = c.flags.TLS.CertFile
	}
	if given("tls-key-file") {
		c.config.TLS.KeyFile = c.flags.TLS.KeyFile
	}
	if c.modelName != "" {
		c.config.Aliases = map[string]string{c.modelName: c.name}
	}
	c.config.AllowedHosts = c.flags.AllowedHosts
	c.config.StrictShapes = c.flags.StrictShapes
	c.config.SharedMemory = c.flags.SharedMemory
	c.config.Limits.MaxConcurrency = c.flags.Limits.MaxConcurrency
	c.config.Limits.MaxBodyBytes = c.flags.Limits.MaxBodyBytes
	c.config.Limits.DrainTimeout = c.flags.Limits.DrainTimeout
}

// portFlag is the flag that chooses the port of an error of listening.
func (c *serveCommand) portFlag(err error) string {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok {
		return ""
	}
	if at, ok := op.Addr.(*net.TCPAddr); ok && !errors.Is(err, syscall.EADDRNOTAVAIL) {
		switch at.Port {
		case c.config.GRPC.Port:
			return "--grpc-port"
		case c.config.Metrics.Port:
			return "--metrics-port"
		case c.config.HTTP.Port:
			return "--http-port"
		}
	}
	return "--host"
}

// greet tells a person where to look.
func (c *serveCommand) greet(w io.Writer, list []modelserver.Listening) {
	scheme := "http://"
	if c.config.TLS.CertFile != "" {
		scheme = "https://"
	}
	_, _ = fmt.Fprintf(w, "Serving %s\n", c.path)
	rest := ""
	for _, l := range list {
		switch l.Protocol {
		case "HTTP":
			rest = scheme + l.Address.String()
			_, _ = fmt.Fprintf(w, "  REST       %s\n", rest)
		case "metrics":
			_, _ = fmt.Fprintf(w, "  metrics    http://%s%s\n", l.Address, c.config.Metrics.Path)
		default:
			_, _ = fmt.Fprintf(w, "  %-10s %s\n", l.Protocol, l.Address)
		}
	}
	if c.config.Metrics.Path != "" && c.config.Metrics.Port == modelserver.NoPort {
		_, _ = fmt.Fprintf(w, "  metrics    %s%s\n", rest, c.config.Metrics.Path)
	}
	if s := c.settings; s != nil && s.KafkaEnabled {
		_, _ = fmt.Fprintf(w, "  Kafka      %s: %s, answers in %s\n", s.KafkaServers, s.KafkaTopicInput, s.KafkaTopicOutput)
	}
	_, _ = fmt.Fprintf(w, "  models     %s/v1/models\n  ready      %s/v2/health/ready\n  inference  %s/v2/models/{model}/infer\n", rest, rest, rest)
}

// withModelDir is the arguments with what --model-dir names: alone, or within the folder
// that they name, as where several URIs are fetched for one server. Another folder has no
// effect: manifests of KServe name one of their image.
func withModelDir(args []string, dir string) []string {
	if dir == "" {
		return args
	}
	if len(args) == 1 {
		if within, err := filepath.Rel(args[0], dir); err != nil || !filepath.IsLocal(within) {
			return args
		}
	}
	return []string{dir}
}

// servedPath is what `serve` serves: its argument; without one, as an image
// runs it, the folder models, or while that has nothing the one in home.
func servedPath(args []string, models, home string) (string, error) {
	if len(args) == 1 {
		return args[0], nil
	}
	if models == "" {
		return "", command.Usagef("give a FOLDER or FILE, or set MLSERVER_MODELS_DIR to a folder")
	}
	f, err := os.Open(models)
	if errors.Is(err, os.ErrNotExist) {
		return home, nil
	}
	if err != nil {
		return "", fmt.Errorf("MLSERVER_MODELS_DIR: %w", err)
	}
	defer func() { _ = f.Close() }() // only read from
	info, err := f.Stat()
	if err != nil || !info.IsDir() {
		return models, err
	}
	if _, err := f.Readdirnames(1); errors.Is(err, io.EOF) {
		return home, nil
	}
	return models, nil
}
