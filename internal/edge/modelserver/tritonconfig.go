package modelserver

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/prototext"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/decide/ensemble"
)

// This file reads models of a repository in Triton's layout: NAME/config.pbtxt, and the
// model's files in a folder of each version's number.

const (
	tritonConfigFile = "config.pbtxt"
	// maxTritonConfig bounds one, in bytes.
	maxTritonConfig = 1 << 20
	// ensemblePlatform is that of a graph of models.
	ensemblePlatform = "ensemble"
)

// tritonFormats are the backends whose models are served here, and the platforms: the
// format of each, and what its file is called.
var tritonFormats = map[string]struct{ format, file string }{
	"onnxruntime": {"onnx", "model.onnx"}, "onnxruntime_onnx": {"onnx", "model.onnx"},
	"tensorflow": {"tensorflow", "model.savedmodel"}, "tensorflow_savedmodel": {"tensorflow", "model.savedmodel"},
	"pytorch": {"pytorch", "model.pt"}, "pytorch_libtorch": {"pytorch", "model.pt"},
}

// readTritonModel reads the versions of a model that are to be served, or why they cannot
// be.
func readTritonModel(path string) []Entry {
	folder := filepath.Dir(path)
	s := Settings{Name: filepath.Base(folder), Source: path}
	fail := func(err error) []Entry { return []Entry{{s, fmt.Errorf("%s: %w", path, err)}} }
	c, err := readTritonConfig(path)
	if err != nil {
		return fail(err)
	}
	if c.Name != "" && c.Name != s.Name {
		return fail(fmt.Errorf("name %q is not that of the folder, %q: make them the same", c.Name, s.Name))
	}
	versions, err := tritonVersions(folder, c.VersionPolicy)
	if err != nil {
		return fail(err)
	}
	if c.Platform == ensemblePlatform || c.EnsembleScheduling != nil {
		if s.Ensemble, err = ensembleOf(s.Name, c); err != nil {
			return fail(err)
		}
		if s.Parameters.Version = "1"; len(versions) > 0 {
			s.Parameters.Version = versions[0]
		}
		s.Platform = ensemblePlatform
		return []Entry{{Settings: s}}
	}
	kind, ok := tritonFormats[cmp.Or(c.Backend, c.Platform)]
	switch {
	case !ok:
		return fail(fmt.Errorf("the backend %q is not served here (%s are): write a model-settings.json beside it, or run Triton", cmp.Or(c.Backend, c.Platform), strings.Join(slices.Sorted(maps.Keys(tritonFormats)), ", ")))
	case len(versions) == 0:
		return fail(errors.New("no folder of a version that is to be served, such as 1, is beside it"))
	}
	name := cmp.Or(c.DefaultModelFilename, kind.file)
	if name != filepath.Base(name) || name == ".." || name == "." {
		return fail(fmt.Errorf("default_model_filename %q is not the name of a file", name))
	}
	var out []Entry
	for _, v := range versions {
		one := s
		one.Parameters.Version, one.Parameters.Format, one.Parameters.URI = v, kind.format, filepath.Join(folder, v, name)
		out = append(out, Entry{Settings: one})
	}
	return out
}

// readTritonConfig reads a config.pbtxt. Fields that are not known here change nothing.
func readTritonConfig(path string) (*oip.ModelConfiguration, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	text, err := io.ReadAll(io.LimitReader(f, maxTritonConfig+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxTritonConfig {
		return nil, fmt.Errorf("has more than %d bytes", maxTritonConfig)
	}
	return parseTritonConfig(text)
}

func parseTritonConfig(text []byte) (*oip.ModelConfiguration, error) {
	c := &oip.ModelConfiguration{}
	if err := (prototext.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, c); err != nil {
		// The library varies a space of its messages, so that nobody relies on them.
		return nil, errors.New(strings.ReplaceAll(strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: "), "\n", " "))
	}
	if c.MaxBatchSize < 0 {
		return nil, fmt.Errorf("max_batch_size %d: must be 0 (no rows) or above", c.MaxBatchSize)
	}
	return c, nil
}

// tritonVersions are the folders of versions that a policy has served, the highest first.
func tritonVersions(folder string, p *oip.ModelVersionPolicy) ([]string, error) {
	list, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, d := range list {
		if n, err := strconv.ParseInt(d.Name(), 10, 64); err != nil || n < 1 || strconv.FormatInt(n, 10) != d.Name() {
			continue
		}
		if i, err := os.Stat(filepath.Join(folder, d.Name())); err == nil && i.IsDir() {
			out = append(out, d.Name())
		}
	}
	slices.SortFunc(out, compareVersions)
	switch {
	case p.GetAll() != nil:
	case p.GetSpecific() != nil:
		out = slices.DeleteFunc(out, func(v string) bool {
			return !slices.ContainsFunc(p.GetSpecific().Versions, func(n int64) bool { return strconv.FormatInt(n, 10) == v })
		})
	default:
		out = out[:min(len(out), max(1, int(p.GetLatest().GetNumVersions())))]
	}
	return out, nil
}

// ensembleOf is the graph of a configuration.
func ensembleOf(name string, c *oip.ModelConfiguration) (*ensemble.Config, error) {
	if c.EnsembleScheduling == nil {
		return nil, errors.New("has the platform ensemble and no ensemble_scheduling")
	}
	out := &ensemble.Config{Name: name, MaxBatchSize: int(c.MaxBatchSize)}
	for _, t := range c.Input {
		out.Inputs = append(out.Inputs, ensemble.Tensor{Name: t.Name, Datatype: datatypeOf(t.DataType), Dims: t.Dims, Optional: t.Optional})
	}
	for _, t := range c.Output {
		out.Outputs = append(out.Outputs, ensemble.Tensor{Name: t.Name, Datatype: datatypeOf(t.DataType), Dims: t.Dims})
	}
	for i, s := range c.EnsembleScheduling.Step {
		step := ensemble.Step{Model: s.ModelName, Inputs: s.InputMap, Outputs: s.OutputMap}
		switch {
		case s.ModelVersion > 0:
			step.Version = strconv.FormatInt(s.ModelVersion, 10)
		case s.ModelVersion < -1:
			return nil, fmt.Errorf("ensemble_scheduling.step[%d].model_version %d: must be a version, or -1 for the default one", i, s.ModelVersion)
		}
		out.Steps = append(out.Steps, step)
	}
	return out, nil
}

// datatypeOf is a datatype of Triton's; none for what is none of the protocol's.
func datatypeOf(t oip.DataType) tensor.Datatype {
	if t == oip.DataType_TYPE_STRING {
		return tensor.Bytes
	}
	d, _ := tensor.ParseDatatype(strings.TrimPrefix(t.String(), "TYPE_"))
	return d
}
