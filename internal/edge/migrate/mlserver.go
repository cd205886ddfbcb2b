package migrate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
)

// mlserverModel is what is read of a model-settings.json.
type mlserverModel struct {
	Name           string `json:"name"`
	Implementation string `json:"implementation"`
	Parameters     struct {
		URI     string `json:"uri"`
		Version string `json:"version"`
		Format  string `json:"format"`
	} `json:"parameters"`
}

// mlserverFormats are the formats of MLServer's own implementations, by the package
// that has them.
var mlserverFormats = map[string]string{
	"mlserver_sklearn": "sklearn", "mlserver_xgboost": "xgboost", "mlserver_lightgbm": "lightgbm", "mlserver_catboost": "catboost",
	"mlserver_mlflow": "mlflow", "mlserver_huggingface": "huggingface", "mlserver_onnx": "onnx",
}

// MLServerSettings are the keys of settings.json, and why one is not handed on; ""
// is one that each model's server gets as a variable.
var MLServerSettings = map[string]string{
	"cache_enabled": "", "cache_size": "", "environments_dir": "", "extensions": "", "gzip_enabled": "", "grpc_max_message_length": "",
	"parallel_workers": "", "parallel_workers_timeout": "", "inference_timeout": "", "fork_workers": "", "debug": "", "use_structured_logging": "",
	"load_models_at_startup":               "",
	"server_name":                          "each model has a server of its own",
	"server_version":                       "each model has a server of its own",
	"model_repository_root":                "the models are services now",
	"model_repository_implementation":      "the models are services now",
	"model_repository_implementation_args": "the models are services now",
	"logging_settings":                     "`roundhouse logs` has the replicas' output",
	"host":                                 "`roundhouse up --listen` is where clients send requests",
	"http_port":                            "`roundhouse up --listen` is where clients send requests",
	"grpc_port":                            "`roundhouse up --grpc-listen` is where clients send requests over gRPC",
	"root_path":                            "an HTTPRoute can put a path before the service's",
	"cors_settings":                        "`roundhouse up --cors-origin` allows origins",
	"tls_cert_file":                        "`roundhouse up --tls-cert` and --tls-key serve TLS",
	"tls_key_file":                         "`roundhouse up --tls-cert` and --tls-key serve TLS",
	"metrics_endpoint":                     "the metrics of all are at /metrics of `roundhouse up --admin-listen`",
	"metrics_port":                         "the metrics of all are at /metrics of `roundhouse up --admin-listen`",
	"metrics_rest_server_prefix":           "the metrics of all are at /metrics of `roundhouse up --admin-listen`",
	"metrics_dir":                          "the metrics of all are at /metrics of `roundhouse up --admin-listen`",
	"kafka_enabled":                        "`roundhouse serve` reads topics; services behind the gateway do not",
	"kafka_servers":                        "`roundhouse serve` reads topics; services behind the gateway do not",
	"kafka_topic_input":                    "`roundhouse serve` reads topics; services behind the gateway do not",
	"kafka_topic_output":                   "`roundhouse serve` reads topics; services behind the gateway do not",
	"kafka_group":                          "`roundhouse serve` reads topics; services behind the gateway do not",
	"kafka_auto_offset_reset":              "`roundhouse serve` reads topics; services behind the gateway do not",
	"tracing_server":                       "`roundhouse up --tracing-server` traces the gateway and the replicas",
}

const modelSettings, serverSettings = "model-settings.json", "settings.json"

// MLServer reads a folder of models as MLServer does: model-settings.json at any
// depth, settings.json at the top. root is the folder at dir, an absolute path.
func MLServer(root fs.FS, dir string) (*Migration, error) {
	found, err := files(root, ".", func(name string) bool { return path.Base(name) == modelSettings })
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s has no %s: name the folder that `mlserver start` serves", dir, modelSettings)
	}
	m := mlserver{root: root, dir: dir, out: &Migration{}, names: names{}, seen: map[string]int{}, loads: true}
	if err := m.server(); err != nil {
		return nil, err
	}
	for _, file := range found {
		if err := m.model(file); err != nil {
			m.out.leave("%s: %s", file, err)
		}
	}
	return m.out, nil
}

type mlserver struct {
	root  fs.FS
	dir   string
	names names
	seen  map[string]int // models by their name
	env   []corev1.EnvVar
	loads bool // at the start
	out   *Migration
}

// server reads settings.json: what it says of each model's server becomes variables.
func (m *mlserver) server() error {
	data, err := readFile(m.root, serverSettings)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var settings map[string]json.RawMessage
	if err := json.Unmarshal(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")), &settings); err != nil {
		return fmt.Errorf("%s: %w", serverSettings, err)
	}
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		why, known := MLServerSettings[key]
		switch {
		case !known:
			m.out.note("%s: %s is no setting that is known: it was passed over", serverSettings, key)
		case why != "":
			m.out.note("%s: %s has no counterpart in a manifest: %s", serverSettings, key, why)
		case key == "load_models_at_startup":
			m.loads = string(settings[key]) != "false"
		case string(settings[key]) != "null":
			value := string(settings[key])
			if text := ""; json.Unmarshal(settings[key], &text) == nil {
				value = text
			}
			m.env = append(m.env, corev1.EnvVar{Name: "MLSERVER_" + strings.ToUpper(key), Value: template(value)})
		}
	}
	return nil
}

// model makes a service of a model-settings.json. Its server reads the file too, so
// batches, inputs and the like stay there.
func (m *mlserver) model(file string) error {
	data, err := readFile(m.root, file)
	if err != nil {
		return err
	}
	var s mlserverModel
	if err := json.Unmarshal(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")), &s); err != nil {
		return err
	}
	folder := path.Dir(file)
	if s.Name == "" {
		s.Name = path.Base(path.Join(m.dir, folder))
	}
	pkg, _, _ := strings.Cut(s.Implementation, ".")
	format := mlserverFormats[pkg]
	d := Document{From: "MLServer's " + file}
	switch {
	case s.Implementation == "" && s.Parameters.Format != "":
		format = s.Parameters.Format
	case s.Implementation == "":
		return errors.New("implementation: is missing: MLServer would take it from the environment")
	case format == "":
		format = "mlserver"
		d.note("%s is code of your own: it runs with the machine's Python, which needs its packages, by `mlserver` where that is installed", s.Implementation)
	}
	if uri := s.Parameters.URI; strings.Contains(uri, "://") || path.IsAbs(uri) || !fs.ValidPath(path.Join(folder, uri)) {
		d.note("parameters.uri %s leads out of the folder: on a cluster it is not fetched with it", uri)
	}
	named := s.Name
	if m.seen[s.Name]++; m.seen[s.Name] > 1 {
		d.note("%s has several versions: this one is a service of its own, and has no path /v2/models/%s/versions/%s; a Route can split requests between them", s.Name, s.Name, s.Parameters.Version)
		named = s.Name + "-" + s.Parameters.Version
	}
	d.Name = m.names.take(named)
	service := newService(d.Name)
	service.Spec.Model = &api.Model{URI: "file://" + path.Join(m.dir, folder), Format: &api.NamedVersion{Name: format}}
	service.Spec.Scaling = &api.Scaling{MinReplicas: ptr(0)}
	if m.loads {
		service.Spec.Scaling.MinReplicas = ptr(1)
	}
	if len(m.env) > 0 {
		service.Spec.Engine = &api.Component{Env: m.env}
	}
	d.Objects = append(d.Objects, service)
	if d.Name != s.Name { // the model's server knows it by the name in its settings
		known := []string{d.Name}
		if named == s.Name {
			known = append(known, s.Name)
		}
		d.Objects = append(d.Objects, newRoute(d.Name, s.Name, known...))
	}
	m.out.Documents = append(m.out.Documents, d)
	return nil
}
