package migrate

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
)

// ollamaManifest lists the layers of a model.
type ollamaManifest struct {
	Layers []ollamaLayer `json:"layers"`
}

type ollamaLayer struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
}

const (
	ollamaMedia = "application/vnd.ollama.image."
	// ollamaIdle is for how long Ollama keeps a model that nobody asks.
	ollamaIdle = 5 * time.Minute
	// maxLayers bounds a manifest.
	maxLayers = 1000
)

// OllamaOptions are Ollama's parameters of models, and llama-server's arguments for
// them; "" is one that llama-server takes with a request alone, or not at all.
var OllamaOptions = map[string]string{
	"num_ctx": "--ctx-size", "num_batch": "--batch-size", "num_gpu": "--n-gpu-layers", "main_gpu": "--main-gpu",
	"num_thread": "--threads", "num_keep": "--keep", "num_predict": "--predict", "seed": "--seed",
	"temperature": "--temp", "top_k": "--top-k", "top_p": "--top-p", "min_p": "--min-p", "typical_p": "--typical",
	"repeat_last_n": "--repeat-last-n", "repeat_penalty": "--repeat-penalty",
	"presence_penalty": "--presence-penalty", "frequency_penalty": "--frequency-penalty",
	"mirostat": "--mirostat", "mirostat_tau": "--mirostat-ent", "mirostat_eta": "--mirostat-lr",
	"stop": "", "tfs_z": "", "penalize_newline": "", "use_mmap": "", "use_mlock": "", "low_vram": "", "numa": "", "vocab_only": "", "f16_kv": "", "draft_num_predict": "",
}

// Ollama reads Ollama's models: manifests and blobs below root, which is the folder at
// dir, an absolute path; with gpu the models share GPUs.
func Ollama(root fs.FS, dir string, gpu bool) (*Migration, error) {
	found, err := files(root, "manifests", func(string) bool { return true })
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s has no folder manifests: name the folder of Ollama's models, such as ~/.ollama/models", dir)
	}
	if err != nil {
		return nil, err
	}
	o := ollama{root: root, dir: dir, gpu: gpu, out: &Migration{}, names: names{}}
	for _, file := range found {
		if err := o.model(file); err != nil {
			o.out.leave("%s: %s", file, err)
		}
	}
	if len(o.out.Documents) > 0 {
		o.out.note("the calls below /api are not served, those of OpenAI below /v1 are")
		o.out.noteGPU(gpu)
	}
	return o.out, nil
}

type ollama struct {
	root  fs.FS
	dir   string
	gpu   bool
	names names
	out   *Migration
}

// model makes a service of a manifest, manifests/HOST/NAMESPACE/MODEL/TAG.
func (o *ollama) model(file string) error {
	parts := strings.Split(file, "/")
	if len(parts) != 5 {
		return errors.New("is no manifest of a model: want manifests/HOST/NAMESPACE/MODEL/TAG")
	}
	data, err := readFile(o.root, file)
	if err != nil {
		return err
	}
	var m ollamaManifest
	if err := json.Unmarshal(data, &m); err != nil {
		return fmt.Errorf("is no manifest: %w", err)
	}
	if len(m.Layers) > maxLayers {
		return fmt.Errorf("%d layers are more than a model may have (%d)", len(m.Layers), maxLayers)
	}
	d := Document{From: "Ollama's " + strings.Join(parts[1:4], "/") + ":" + parts[4]}
	model, args, err := o.layers(&d, m.Layers)
	if err != nil {
		return err
	}
	if model == "" {
		return errors.New("it has no model in one file: only GGUF is migrated")
	}
	known := ollamaNames(parts[1], parts[2], parts[3], parts[4])
	d.Name = o.names.take(strings.TrimSuffix(known[0], ":latest"))
	s := newService(d.Name)
	s.Spec.Model = &api.Model{URI: "file://" + model, Format: &api.NamedVersion{Name: "gguf"}}
	s.Spec.Runtime = &api.ObjectRef{Name: "llama-cpp"}
	s.Spec.Scaling = &api.Scaling{MinReplicas: ptr(0), MaxReplicas: ptr(1), ScaleToZeroAfter: &metav1.Duration{Duration: ollamaIdle}}
	if o.gpu {
		s.Spec.Residency = &api.Residency{ShareGPU: true}
	}
	if len(args) > 0 {
		s.Spec.Engine = &api.Component{Args: args}
	}
	d.Objects = append(d.Objects, s, newRoute(d.Name, "", known...))
	o.out.Documents = append(o.out.Documents, d)
	return nil
}

// ollamaNames are the names by which clients know a model, the shortest last.
func ollamaNames(host, namespace, model, tag string) []string {
	name := model
	switch {
	case host != "registry.ollama.ai":
		name = host + "/" + namespace + "/" + model
	case namespace != "library":
		name = namespace + "/" + model
	}
	out := []string{name + ":" + tag}
	if tag == "latest" {
		out = append(out, name)
	}
	return out
}

// layers returns the model's file and the engine's arguments.
func (o *ollama) layers(d *Document, layers []ollamaLayer) (model string, args []string, err error) {
	for _, l := range layers {
		kind, ours := strings.CutPrefix(strings.TrimSpace(strings.Split(l.MediaType, ";")[0]), ollamaMedia)
		if !ours {
			d.note("a layer of the type %s was passed over", l.MediaType)
			continue
		}
		switch kind {
		case "model", "projector", "adapter":
			file, err := o.blob(l.Digest)
			if err != nil {
				return "", nil, err
			}
			switch {
			case kind == "projector":
				args = append(args, "--mmproj", file)
			case kind == "adapter":
				args = append(args, "--lora", file)
			case model != "":
				return "", nil, errors.New("it has several files of weights: join them with llama.cpp's llama-gguf-split --merge")
			default:
				if model, err = file, o.isGGUF(l.Digest); err != nil {
					return "", nil, err
				}
			}
		case "params":
			more, err := o.params(d, l.Digest)
			if err != nil {
				return "", nil, err
			}
			args = append(args, more...)
		case "template":
			d.note("the template of prompts, in Go's language, is not taken over: llama-server uses the one in the model's file; --chat-template-file in engine.args names another, in Jinja's")
		case "system":
			d.note("the system prompt is not taken over: clients send it as the first message")
		case "messages":
			d.note("the messages that begin each chat are not taken over: clients send them")
		case "license", "config":
		default:
			d.note("a layer of the type %s was passed over", l.MediaType)
		}
	}
	return model, args, nil
}

var ollamaDigest = regexp.MustCompile(`^sha256[:-]([0-9a-f]{64})$`)

// blobName is the name of a blob's file below root.
func blobName(digest string) (string, error) {
	m := ollamaDigest.FindStringSubmatch(digest)
	if m == nil {
		return "", fmt.Errorf("%q is no digest", oneLine(digest[:min(len(digest), 80)]))
	}
	return "blobs/sha256-" + m[1], nil
}

// blob is the path of a blob that is there.
func (o *ollama) blob(digest string) (string, error) {
	name, err := blobName(digest)
	if err != nil {
		return "", err
	}
	info, err := fs.Stat(o.root, name)
	if err != nil {
		return "", fmt.Errorf("%s cannot be found: `ollama pull` fetches it", name)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no file", name)
	}
	return path.Join(o.dir, name), nil
}

// isGGUF looks at the first bytes of a blob.
func (o *ollama) isGGUF(digest string) error {
	name, err := blobName(digest)
	if err != nil {
		return err
	}
	f, err := o.root.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read from
	head := make([]byte, 4)
	if _, err := f.Read(head); err != nil || string(head) != "GGUF" {
		return fmt.Errorf("%s is no GGUF file, and nothing else is migrated", name)
	}
	return nil
}

// params makes arguments of the parameters of a model.
func (o *ollama) params(d *Document, digest string) ([]string, error) {
	name, err := blobName(digest)
	if err != nil {
		return nil, err
	}
	data, err := readFile(o.root, name)
	if err != nil {
		return nil, err
	}
	var options map[string]any
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	if err := decoder.Decode(&options); err != nil {
		return nil, fmt.Errorf("%s: parameters: %w", name, err)
	}
	var args []string
	for _, option := range slices.Sorted(maps.Keys(options)) {
		arg, number := OllamaOptions[option], ""
		if n, ok := options[option].(json.Number); ok {
			number = n.String()
		}
		if arg == "" || number == "" {
			d.note("parameter %s is not taken over: %s", option, cmp.Or(map[string]string{"stop": "clients send stop with each request"}[option], "llama-server has no argument for it"))
			continue
		}
		args = append(args, arg, number)
	}
	return args, nil
}
