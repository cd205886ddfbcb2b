package artifact

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Facts are what a model's files reveal about it. Empty and 0 mean unknown.
type Facts struct {
	// Format is the format of the weights, by the name runtimes use:
	// "safetensors", "xgboost", "lightgbm", "onnx", "sklearn", "gguf",
	// "tensorflow", "pytorch", "mlflow", "catboost", "pmml", "pickle", ….
	Format string
	// FormatVersion is the version the files themselves state ("v4", "3").
	FormatVersion string
	// Framework and FrameworkVersion are the library that wrote the files.
	Framework        string
	FrameworkVersion string
	// Architecture is transformers' class or GGUF's architecture.
	Architecture string
	// Quantization is transformers' quant_method or GGUF's file type.
	Quantization string
	// Parameters is the number of weights.
	Parameters int64
	// Diffusion is the pipeline of a diffusion model; nil for others.
	Diffusion *service.DiffusionPipeline
	// AdapterRank is the rank of a LoRA adapter; 0 for whole models.
	AdapterRank int
	// Environment is the Python environment that model-settings.json brings for
	// the model, a tarball or a folder, as it is written there.
	Environment string
	// Bytes and Files are those of everything at the path.
	Bytes int64
	Files int
	// From is the file each fact came from, by the field's lower-case name
	// ("architecture": "config.json").
	From map[string]string
	// Details holds what else was read: objective, num_feature, num_class,
	// model_type, dtype, …. Values are at most 200 bytes.
	Details map[string]string
}

// set notes a text fact unless a better source has done so.
func (f *Facts) set(dst *string, field, value, file string) {
	value = clip(value)
	if *dst != "" || value == "" {
		return
	}
	*dst = value
	f.From[field] = file
}

func (f *Facts) setFormat(v, file string)       { f.set(&f.Format, "format", v, file) }
func (f *Facts) setFramework(v, file string)    { f.set(&f.Framework, "framework", v, file) }
func (f *Facts) setQuantization(v, file string) { f.set(&f.Quantization, "quantization", v, file) }

func (f *Facts) setParameters(n int64, file string) {
	if f.Parameters == 0 && n > 0 {
		f.Parameters = n
		f.From["parameters"] = file
	}
}

func (f *Facts) detail(key, value string) {
	if value = clip(value); value != "" {
		f.Details[key] = value
	}
}

// clip makes a hostile string fit to show: valid UTF-8, one line, bounded.
func clip(s string) string {
	s = strings.ToValidUTF8(s[:min(len(s), 200)], "")
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, s)
}

const (
	sniffBytes   = 4 << 10   // enough to tell every format
	tailBytes    = 64 << 10  // where XGBoost and pickles keep their versions
	maxConfig    = 4 << 20   // config.json, model-settings.json
	maxYAML      = 256 << 10 // MLmodel
	maxHeader    = 100 << 20 // of a GGUF file
	maxTreeFiles = 100_000
	maxSniffed   = 16 // files opened to find the format of a folder
)

// tree is a model to look at: a local file or folder, or a remote listing.
type tree interface {
	// open reads a file from an offset, negative from its end.
	open(ctx context.Context, name string, offset int64) (io.ReadCloser, error)
	// local reports whether every file is cheap to open.
	local() bool
}

// treeFile is a file of a tree, its name slash-separated below the top.
type treeFile struct {
	name string
	size int64
}

// inspector collects the facts of one tree.
type inspector struct {
	tree     tree
	files    []treeFile // sorted by name
	settings modelSettings
	facts    Facts
}

// Inspect returns the facts about the model at a local path, which is a file or
// a folder. An unknown format is no error: Facts.Format is then empty. Errors
// are unreadable files, and known files that are malformed.
func Inspect(ctx context.Context, at string) (Facts, error) {
	info, err := os.Stat(at)
	if err != nil {
		return Facts{}, fmt.Errorf("inspect: %w", err)
	}
	if err := readable(at, info); err != nil {
		return Facts{}, err
	}
	if !info.IsDir() {
		dir, name := filepath.Split(at)
		return inspect(ctx, localTree(dir), []treeFile{{name, info.Size()}})
	}
	files, err := walkTree(ctx, at)
	if err != nil {
		return Facts{}, fmt.Errorf("inspect: %w", err)
	}
	return inspect(ctx, localTree(at), files)
}

func walkTree(ctx context.Context, dir string) ([]treeFile, error) {
	var files []treeFile
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err = errors.Join(err, ctx.Err()); err != nil || d.IsDir() {
			return err
		}
		if len(files) >= maxTreeFiles {
			return fmt.Errorf("%s: more than %d files", dir, maxTreeFiles)
		}
		info, err := os.Stat(p) // Hugging Face's cache is made of links
		if err != nil || !info.Mode().IsRegular() {
			return nil
		}
		rel, err := filepath.Rel(dir, p)
		files = append(files, treeFile{filepath.ToSlash(rel), info.Size()})
		return err
	})
	return files, err
}

type localTree string

func (t localTree) local() bool { return true }

func (t localTree) open(_ context.Context, name string, offset int64) (io.ReadCloser, error) {
	f, err := os.Open(filepath.Join(string(t), filepath.FromSlash(name)))
	if err != nil {
		return nil, err
	}
	whence := io.SeekStart
	if offset < 0 {
		whence = io.SeekEnd
	}
	if _, err := f.Seek(offset, whence); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// detectors are asked in this order until one knows the format; files that
// describe a model come before the model's own bytes.
var detectors = []func(*inspector, context.Context) error{
	(*inspector).adapter,
	(*inspector).mlflow,
	(*inspector).mlserver,
	(*inspector).diffusers,
	(*inspector).transformers,
	(*inspector).gguf,
	(*inspector).layout,
	(*inspector).sniff,
}

func inspect(ctx context.Context, t tree, files []treeFile) (Facts, error) {
	slices.SortFunc(files, func(a, b treeFile) int { return cmp.Compare(a.name, b.name) })
	in := &inspector{tree: t, files: files}
	in.facts = Facts{Files: len(files), From: map[string]string{}, Details: map[string]string{}}
	for _, f := range files {
		in.facts.Bytes += f.size
	}
	in.readSettings(ctx)
	in.facts.set(&in.facts.Environment, "environment", in.settings.environment(), modelSettingsFile)
	for _, detect := range detectors {
		if err := ctx.Err(); err != nil {
			return in.facts, err
		}
		if err := detect(in, ctx); err != nil {
			return in.facts, fmt.Errorf("inspect: %w", err)
		}
		if in.facts.Format != "" {
			break
		}
	}
	return in.facts, nil
}

// find returns the first file that has the base name, nearest the top.
func (in *inspector) find(base string) (treeFile, bool) {
	found, ok := treeFile{}, false
	for _, f := range in.files {
		if path.Base(f.name) != base || strings.Count(f.name, "/") > 1 {
			continue
		}
		if !ok || strings.Count(f.name, "/") < strings.Count(found.name, "/") {
			found, ok = f, true
		}
	}
	return found, ok
}

// top returns the files of the top folder with one of the suffixes, in any case.
func (in *inspector) top(suffixes ...string) []treeFile {
	var out []treeFile
	for _, f := range in.files {
		if strings.Contains(f.name, "/") {
			continue
		}
		for _, s := range suffixes {
			if strings.HasSuffix(strings.ToLower(f.name), s) {
				out = append(out, f)
				break
			}
		}
	}
	return out
}

// read returns a whole file of at most limit bytes.
func (in *inspector) read(ctx context.Context, f treeFile, limit int64) ([]byte, error) {
	if f.size > limit {
		return nil, fmt.Errorf("%s: %s, larger than the %s that are read", f.name, formatBytes(f.size), formatBytes(limit))
	}
	return in.slice(ctx, f, 0, limit)
}

// slice returns at most limit bytes from an offset on, negative from the end.
func (in *inspector) slice(ctx context.Context, f treeFile, offset, limit int64) ([]byte, error) {
	if offset < -f.size {
		offset = 0
	}
	r, err := in.tree.open(ctx, f.name, offset)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.name, err)
	}
	defer func() { _ = r.Close() }()
	b, err := io.ReadAll(io.LimitReader(r, limit))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.name, err)
	}
	return b, nil
}

// layout knows formats by the names of their files.
func (in *inspector) layout(context.Context) error {
	if f, ok := in.find("saved_model.pb"); ok {
		in.facts.setFormat("tensorflow", f.name)
		in.facts.setFramework("tensorflow", f.name)
	} else if f, ok := in.find("config.pbtxt"); ok {
		in.facts.setFormat("triton", f.name)
	} else if f, ok := in.find("inference.pdmodel"); ok {
		in.facts.setFormat("paddle", f.name)
		in.facts.setFramework("paddle", f.name)
	}
	return nil
}

// sniff opens the top folder's likeliest files and looks at their first bytes.
func (in *inspector) sniff(ctx context.Context) error {
	candidates := in.top(".ubj", ".bst", ".json", ".model", ".txt", ".cbm", ".onnx", ".joblib", ".pkl", ".pickle",
		".pt", ".pth", ".bin", ".mar", ".pmml", ".deserialized")
	if len(in.files) == 1 {
		candidates = in.files // whatever it is called
	}
	for _, f := range candidates[:min(len(candidates), maxSniffed)] {
		head, err := in.slice(ctx, f, 0, sniffBytes)
		if err != nil {
			return err
		}
		format := sniffFormat(f.name, head)
		if format == "" {
			continue
		}
		in.facts.setFormat(format, f.name)
		tail := head
		if in.tree.local() && f.size > int64(len(head)) {
			if tail, err = in.slice(ctx, f, -tailBytes, tailBytes); err != nil {
				return err
			}
		}
		describe(&in.facts, f.name, format, head, tail)
		return nil
	}
	return nil
}

// jsonLike replaces Python's bare NaN and Infinity, which JSON has not, by null.
func jsonLike(b []byte) []byte {
	if !bytes.Contains(b, []byte("NaN")) && !bytes.Contains(b, []byte("Infinity")) {
		return b
	}
	out := make([]byte, 0, len(b))
	inString := false
	for i := 0; i < len(b); {
		if !inString {
			if n := bareWord(b[i:]); n > 0 {
				out = append(out, "null"...)
				i += n
				continue
			}
		} else if b[i] == '\\' && i+1 < len(b) {
			out = append(out, b[i], b[i+1])
			i += 2
			continue
		}
		if b[i] == '"' {
			inString = !inString
		}
		out = append(out, b[i])
		i++
	}
	return out
}

func bareWord(b []byte) int {
	for _, w := range []string{"NaN", "-Infinity", "Infinity"} {
		if bytes.HasPrefix(b, []byte(w)) {
			return len(w)
		}
	}
	return 0
}

// Repository lists the models of a folder in Triton's layout, NAME/config.pbtxt
// or NAME/1. self reports that the folder is itself such a model.
func Repository(path string) (names []string, self bool) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, false
	}
	for _, e := range entries {
		if isModel(filepath.Join(path, e.Name())) {
			names = append(names, e.Name())
		}
	}
	return names, len(names) == 0 && isModel(path)
}

func isModel(path string) bool {
	inside, err := os.ReadDir(path)
	return err == nil && slices.ContainsFunc(inside, func(e os.DirEntry) bool {
		_, err := strconv.ParseUint(e.Name(), 10, 63)
		return e.Name() == "config.pbtxt" || err == nil && e.IsDir()
	})
}

// adapterConfig names what describes an adapter, as PEFT writes it.
const adapterConfig = "adapter_config.json"

// maxAdapterRank is far above any rank there is: what is above it is no rank.
const maxAdapterRank = 1 << 16

// adapter reads the rank of a LoRA adapter. The format is the weights' own.
func (in *inspector) adapter(ctx context.Context) error {
	f, ok := in.find(adapterConfig)
	if !ok {
		return nil
	}
	raw, err := in.read(ctx, f, maxConfig)
	if err != nil {
		return err
	}
	var c struct {
		Base string             `json:"base_model_name_or_path"`
		Type string             `json:"peft_type"`
		Rank float64            `json:"r"`
		More map[string]float64 `json:"rank_pattern"`
	}
	if err := json.Unmarshal(jsonLike(raw), &c); err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	for _, r := range c.More {
		c.Rank = max(c.Rank, r)
	}
	if c.Rank >= 1 && c.Rank <= maxAdapterRank {
		in.facts.AdapterRank = int(c.Rank)
	}
	in.facts.detail("peft_type", c.Type)
	in.facts.detail("base_model", c.Base)
	return nil
}

// flavorVersion is the key under which a flavor of MLflow states its library's
// version, where that is not <flavor>_version.
var flavorVersion = map[string]string{"xgboost": "xgb_version", "lightgbm": "lgb_version"}

// mlflow reads MLflow's MLmodel file: which library's model it wraps.
func (in *inspector) mlflow(ctx context.Context) error {
	f, ok := in.find("MLmodel")
	if !ok {
		return nil
	}
	raw, err := in.read(ctx, f, maxYAML)
	if err != nil {
		return err
	}
	var model struct {
		Version string                    `yaml:"mlflow_version"`
		Flavors map[string]map[string]any `yaml:"flavors"`
	}
	if err := yaml.Unmarshal(raw, &model); err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	in.facts.setFormat("mlflow", f.name)
	in.facts.detail("mlflow_version", model.Version)
	var names []string
	for name := range model.Flavors {
		if name != "python_function" {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	name := slices.Min(names)
	in.facts.setFramework(name, f.name)
	key := flavorVersion[name]
	if key == "" {
		key = name + "_version"
	}
	if v, ok := model.Flavors[name][key].(string); ok {
		in.facts.set(&in.facts.FrameworkVersion, "frameworkversion", v, f.name)
	}
	return nil
}
