package artifact

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"path"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/hfconfig"
	"roundhouse.dev/roundhouse/internal/core/safetensors"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/blobs"
)

// dtypeBits is the width of a weight in bits, by config.json's names.
var dtypeBits = map[string]int64{
	"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16, "float8_e4m3fn": 8, "float8_e5m2": 8, "int8": 8,
}

// transformers reads folders and files of Hugging Face's libraries.
func (in *inspector) transformers(ctx context.Context) error {
	var config hfconfig.Config
	known := false
	f, ok := in.find("config.json")
	if ok && f.size <= maxConfig {
		raw, err := in.read(ctx, f, maxConfig)
		if err != nil {
			return err
		}
		if config, known, err = hfconfig.Parse(jsonLike(raw)); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	if known {
		in.config(&config, f.name)
	}
	weights := in.top(".safetensors", safetensors.IndexName)
	var unpacked int64
	if len(weights) > 0 {
		in.facts.setFormat("safetensors", weights[0].name)
		weights = in.top(".safetensors")
		var err error
		if unpacked, err = in.countParameters(ctx, &config, weights); err != nil {
			return err
		}
	} else if bin := in.top("pytorch_model.bin", "pytorch_model.bin.index.json"); known && len(bin) > 0 {
		in.facts.setFormat("pytorch", bin[0].name)
	}
	if known && in.facts.Parameters == 0 {
		n := config.Parameters()
		how := "estimated"
		if n.Active < n.Total {
			how += ", " + service.FormatParameters(n.Active) + " of them per token"
		}
		in.facts.setParameters(n.Total, f.name+" ("+how+")")
	}
	in.facts.setParameters(unpacked, safetensors.IndexName)
	return nil
}

// maxPipeline is how many components of a pipeline are read.
const maxPipeline = 64

// diffusers reads the pipeline of a diffusion model. Components have the names that
// OME's manifests give them; null stands for one that the pipeline does without.
func (in *inspector) diffusers(ctx context.Context) error {
	f, ok := in.find("model_index.json")
	if !ok || strings.Contains(f.name, "/") || f.size > maxConfig {
		return nil
	}
	raw, err := in.read(ctx, f, maxConfig)
	if err != nil {
		return err
	}
	var index map[string]json.RawMessage
	if json.Unmarshal(jsonLike(raw), &index) != nil {
		return nil // something else of that name
	}
	text := func(key string) (out string) {
		_ = json.Unmarshal(index[key], &out) // "" for what is no text
		return clip(out)
	}
	p := &service.DiffusionPipeline{Class: text("_class_name")}
	if p.Class == "" {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(index)) {
		var parts [2]*string
		if strings.HasPrefix(key, "_") || len(p.Components) == maxPipeline || json.Unmarshal(index[key], &parts) != nil || parts[0] == nil || parts[1] == nil {
			continue
		}
		if p.Components == nil {
			p.Components = map[string]service.DiffusionComponent{}
		}
		p.Components[cmp.Or(pipelineNames[key], clip(key))] = service.DiffusionComponent{Library: clip(*parts[0]), Type: clip(*parts[1])}
	}
	in.facts.Diffusion = p
	in.facts.From["diffusion"] = f.name
	in.facts.setFormat("diffusers", f.name)
	in.facts.setFramework("diffusers", f.name)
	in.facts.set(&in.facts.FrameworkVersion, "frameworkversion", text("_diffusers_version"), f.name)
	in.facts.set(&in.facts.Architecture, "architecture", p.Class, f.name)
	return nil
}

// pipelineNames are OME's names of components that the file calls otherwise.
var pipelineNames = map[string]string{"text_encoder": "textEncoder", "unet": "transformer"}

// config notes what config.json states.
func (in *inspector) config(c *hfconfig.Config, file string) {
	facts := &in.facts
	facts.setFramework("transformers", file)
	facts.set(&facts.FrameworkVersion, "frameworkversion", c.TransformersVersion, file)
	facts.set(&facts.Architecture, "architecture", c.Architecture(), file)
	facts.setQuantization(strings.ToLower(c.StoredAs().Method), file)
	facts.detail("model_type", c.ModelType)
	facts.detail("dtype", c.WeightType())
}

// countParameters asks the index, then the headers, then derives the number
// from the bytes of the weights. It returns the index's number where that leaves
// out packed weights: libraries count only what is a parameter of the model.
func (in *inspector) countParameters(ctx context.Context, c *hfconfig.Config, weights []treeFile) (unpacked int64, err error) {
	method := strings.ToLower(c.StoredAs().Method)
	index := &safetensors.Index{}
	if f, ok := in.find(safetensors.IndexName); ok && !strings.Contains(f.name, "/") {
		raw, err := in.read(ctx, f, safetensors.MaxIndex)
		if err != nil {
			return 0, err
		}
		if index, err = safetensors.ParseIndex(raw); err != nil {
			return 0, fmt.Errorf("%s: %w", f.name, err)
		}
		if method == "" || strings.Contains(method, "fp8") {
			in.facts.setParameters(index.TotalParameters, f.name)
		}
	}
	if in.facts.Parameters > 0 {
		return 0, nil
	}
	shards := chooseShards(weights, index.WeightMap)
	if len(shards) > 0 && in.tree.local() || len(shards) == 1 {
		return index.TotalParameters, in.countHeaders(ctx, c, shards)
	}
	total, source := index.TotalSize, safetensors.IndexName
	if total == 0 {
		source = "size of the weights"
		for _, w := range shards {
			total += w.size
		}
	}
	if bits := dtypeBits[c.WeightType()]; bits > 0 && method == "" {
		in.facts.setParameters(total/(bits/8), source)
	}
	return index.TotalParameters, nil
}

// chooseShards leaves out second copies of the weights: what the index does not
// name, or, without an index, what is not called model*.
func chooseShards(weights []treeFile, byTensor map[string]string) []treeFile {
	named := map[string]bool{}
	for _, file := range byTensor {
		named[file] = true
	}
	pick := func(keep func(string) bool) []treeFile {
		return slices.DeleteFunc(slices.Clone(weights), func(f treeFile) bool { return !keep(f.name) })
	}
	if shards := pick(func(n string) bool { return named[n] }); len(shards) > 0 {
		return shards
	}
	if shards := pick(func(n string) bool { return strings.HasPrefix(n, "model") }); len(shards) > 0 {
		return shards
	}
	return weights
}

func (in *inspector) countHeaders(ctx context.Context, c *hfconfig.Config, shards []treeFile) error {
	bits := c.StoredAs().WeightBits()
	var total int64
	for _, f := range shards {
		n, err := in.countHeader(ctx, f, bits)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		if total += n; total < 0 || total > 1e15 {
			return fmt.Errorf("%s: the headers state an absurd number of parameters", f.name)
		}
	}
	source := "safetensors headers"
	if len(shards) == 1 {
		source = shards[0].name
	}
	in.facts.setParameters(total, source)
	return nil
}

func (in *inspector) countHeader(ctx context.Context, f treeFile, bits int64) (int64, error) {
	r, err := in.tree.open(ctx, f.name, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = r.Close() }()
	return countSafetensors(blobs.ContextReader(ctx, r), f.size, bits)
}

// mlserverFormats are the formats of MLServer's own implementations, by the
// package that holds them.
var mlserverFormats = map[string]string{
	"mlserver_sklearn": "sklearn", "mlserver_xgboost": "xgboost", "mlserver_lightgbm": "lightgbm",
	"mlserver_catboost": "catboost", "mlserver_mlflow": "mlflow", "mlserver_huggingface": "huggingface",
	"mlserver_onnx": "onnx",
}

const modelSettingsFile = "model-settings.json"

// modelSettings is what is read of model-settings.json in the top folder.
type modelSettings struct {
	Implementation string `json:"implementation"`
	Parameters     struct {
		URI                string `json:"uri"`
		Version            string `json:"version"`
		EnvironmentPath    string `json:"environment_path"`
		EnvironmentTarball string `json:"environment_tarball"`
	} `json:"parameters"`

	found bool
	err   error // why it cannot be read
}

// environment is the Python environment that the settings name.
func (s modelSettings) environment() string {
	return cmp.Or(s.Parameters.EnvironmentTarball, s.Parameters.EnvironmentPath)
}

// readSettings reads the settings before any detector does: they may name an
// environment whatever the format is. What is wrong with them matters only to
// the detector that goes by them.
func (in *inspector) readSettings(ctx context.Context) {
	f, ok := in.find(modelSettingsFile)
	if !ok || path.Dir(f.name) != "." {
		return
	}
	s := &in.settings
	s.found = true
	raw, err := in.read(ctx, f, maxConfig)
	if err != nil {
		s.err = err
	} else if err := json.Unmarshal(bytes.TrimPrefix(raw, []byte("\xef\xbb\xbf")), s); err != nil {
		s.err = fmt.Errorf("%s: %w", f.name, err)
	}
}

// mlserver knows a format by the implementation in model-settings.json.
func (in *inspector) mlserver(context.Context) error {
	settings := in.settings
	if !settings.found || settings.err != nil {
		return settings.err
	}
	if settings.Implementation == "" {
		return fmt.Errorf("%s: implementation: is missing", modelSettingsFile)
	}
	pkg, _, _ := strings.Cut(settings.Implementation, ".")
	in.facts.setFormat(cmp.Or(mlserverFormats[pkg], "mlserver"), modelSettingsFile)
	in.facts.detail("implementation", settings.Implementation)
	in.facts.detail("uri", settings.Parameters.URI)
	in.facts.detail("version", settings.Parameters.Version)
	return nil
}

var errHeader = errors.New("malformed header")

// ReadSafetensors reads the header at the start of a safetensors file of size
// bytes, and not a byte more.
func ReadSafetensors(r io.Reader, size int64) (*safetensors.Header, error) {
	var prefix [safetensors.PrefixBytes]byte
	if size < int64(len(prefix)) {
		return nil, fmt.Errorf("%w: shorter than %d bytes", safetensors.ErrMalformed, len(prefix))
	}
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return nil, fmt.Errorf("the length of the header: %w", err)
	}
	n, err := safetensors.Length(prefix[:], size)
	if err != nil {
		return nil, err
	}
	raw := make([]byte, n)
	if _, err := io.ReadFull(r, raw); err != nil {
		return nil, fmt.Errorf("the header of %d bytes: %w", n, err)
	}
	return safetensors.Parse(raw, size)
}

// countSafetensors reads a safetensors file's header and returns the number of
// weights. packed is the width in bits of quantised weights that are packed
// into larger integers, or 0.
func countSafetensors(r io.Reader, size, packed int64) (int64, error) {
	h, err := ReadSafetensors(r, size)
	if err != nil {
		return 0, err
	}
	var total uint64
	for i := range h.Tensors {
		t := &h.Tensors[i]
		total += weights(t.Name, t.Dtype, uint64(t.Elements()), uint64(packed))
		if total > math.MaxInt64/2 {
			return 0, fmt.Errorf("%w: too many elements", safetensors.ErrMalformed)
		}
	}
	return int64(total), nil
}

// weights is how many of the model's weights a tensor's elements stand for.
// Scales, zero points and orders of quantised weights are none; packed tensors
// hold several in one element.
func weights(name string, dtype safetensors.Dtype, count, packed uint64) uint64 {
	last := name[strings.LastIndexByte(name, '.')+1:]
	switch last {
	case "scales", "qzeros", "g_idx", "weight_scale", "weight_scale_inv", "weight_shape", "weight_zero_point",
		"weight_g_idx", "input_scale", "absmax", "quant_map", "nested_absmax", "nested_quant_map":
		return 0
	case "qweight", "weight_packed":
		if width := uint64(dtype.Bits()); packed > 0 && packed < width {
			return count * (width / packed)
		}
	case "weight":
		if dtype == "U8" && packed == 4 {
			return count * 2
		}
	}
	switch {
	case strings.HasSuffix(last, "_scales"), strings.HasPrefix(last, "bitsandbytes__"):
		return 0
	case strings.HasSuffix(last, "_blocks") && dtype == "U8": // MXFP4: two in a byte
		return count * 2
	}
	return count
}
