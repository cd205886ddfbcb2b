package onnx

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/edge/engine/onnx/ort"
)

// files are the names under which a folder's model is looked for.
var files = []string{"model.onnx"}

const defaultPlatform = "onnxruntime_onnx"

// model is a loaded model. It is safe for concurrent use.
type model struct {
	library  *ort.Library
	session  *ort.Session
	name     string
	version  string
	inputs   map[string]int // places in the session
	outputs  map[string]int
	metadata tensor.ModelMetadata
}

// load loads the model whose settings are s.
func load(l *ort.Library, s settings, folder string) (*model, error) {
	path, err := find(s.Parameters.URI, folder)
	if err != nil {
		return nil, err
	}
	session, err := l.NewSession(path)
	if err != nil {
		return nil, unloadable(path, err)
	}
	m := &model{library: l, session: session, name: s.Name, version: s.Parameters.Version, inputs: map[string]int{}, outputs: map[string]int{},
		metadata: tensor.ModelMetadata{Name: s.Name, Platform: cmp.Or(s.Platform, defaultPlatform), Versions: s.Versions,
			Inputs: []tensor.TensorMetadata{}, Outputs: []tensor.TensorMetadata{}, Parameters: tensor.Parameters{}}}
	if err := m.describe(); err != nil {
		session.Close()
		return nil, err
	}
	return m, nil
}

// find returns the model file of a URI: the file itself, or the model in the folder.
func find(uri, folder string) (string, error) {
	path := strings.TrimPrefix(uri, "file://")
	if !filepath.IsAbs(path) {
		path = filepath.Join(folder, path)
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", fault(kindUnprocessable, "parameters.uri: %v", err)
	case info.Mode().IsRegular():
		return path, nil
	case !info.IsDir():
		return "", fault(kindUnprocessable, "parameters.uri: %s is neither a file nor a folder", path)
	}
	for _, name := range files {
		if info, err := os.Stat(filepath.Join(path, name)); err == nil && info.Mode().IsRegular() {
			return filepath.Join(path, name), nil
		}
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return "", fault(kindUnprocessable, "parameters.uri: %v", err)
	}
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool { return e.IsDir() || filepath.Ext(e.Name()) != ".onnx" })
	if len(entries) != 1 {
		return "", fault(kindUnprocessable, "parameters.uri: %s has %d files *.onnx and none of them is %s; name the file", path, len(entries), strings.Join(files, " or "))
	}
	return filepath.Join(path, entries[0].Name()), nil
}

// unloadable is the error for a file that ONNX Runtime cannot load.
func unloadable(path string, err error) error {
	var native *ort.Error
	if !errors.As(err, &native) {
		return err
	}
	if native.Code == ort.CodeInvalidProtobuf {
		return fault(kindUnprocessable, "%s is not an ONNX model, or is damaged: %s", path, native.Message)
	}
	return fault(kindUnprocessable, "%s cannot be loaded: %s", path, native.Message)
}

// describe fills in the metadata and refuses types that no request can carry.
func (m *model) describe() error {
	for i, p := range m.session.Inputs {
		if p.Type.Kind != ort.Tensor || p.Type.Datatype == tensor.NoDatatype {
			return fault(kindUnprocessable, "input %q is a %s; the protocol has only tensors of %s", p.Name, p.Type, datatypes)
		}
		m.inputs[p.Name] = i
		m.metadata.Inputs = append(m.metadata.Inputs, tensor.TensorMetadata{Name: p.Name, Datatype: p.Type.Datatype, Shape: p.Type.Shape})
	}
	for i, p := range m.session.Outputs {
		datatype, shape, ok := presented(p.Type)
		if !ok {
			return fault(kindUnprocessable, "output %q is a %s, which the protocol cannot say", p.Name, p.Type)
		}
		m.outputs[p.Name] = i
		m.metadata.Outputs = append(m.metadata.Outputs, tensor.TensorMetadata{Name: p.Name, Datatype: datatype, Shape: shape})
	}
	return nil
}

const datatypes = "BOOL, integers, FP16, BF16, FP32, FP64 and BYTES"

// presented is the tensor that a value of type t is presented as.
func presented(t ort.Type) (tensor.Datatype, []int64, bool) {
	ok := t.Datatype != tensor.NoDatatype
	switch t.Kind {
	case ort.Tensor:
		return t.Datatype, t.Shape, ok
	case ort.Map:
		return t.Datatype, []int64{-1}, ok && (t.Key == tensor.Int64 || t.Key == tensor.Bytes)
	case ort.Sequence:
		if t.Element.Kind == ort.Sequence {
			return 0, nil, false
		}
		d, shape, ok := presented(*t.Element)
		return d, append([]int64{-1}, shape...), ok
	}
	return 0, nil, false
}

// answer holds the outputs of a request. values own its payload and are released
// once it is written.
type answer struct {
	ID           string       `json:"id,omitempty"`
	ModelName    string       `json:"model_name"`
	ModelVersion string       `json:"model_version,omitempty"`
	Outputs      []wireTensor `json:"outputs"`

	payload payload
	values  []*ort.Value
}

func (a *answer) release() { ort.ReleaseAll(a.values) }

// infer answers a request. It checks the whole request before native code sees it.
func (m *model) infer(ctx context.Context, r *request, payload []byte) (*answer, error) {
	wanted, err := m.wanted(r)
	if err != nil {
		return nil, err
	}
	inputs, err := m.bind(r, payload)
	defer func() { ort.ReleaseAll(inputs) }()
	if err != nil {
		return nil, err
	}
	a := &answer{ID: r.ID, ModelName: m.name, ModelVersion: m.version, Outputs: make([]wireTensor, len(wanted))}
	values, err := m.session.Run(ctx, inputs, wanted)
	if err != nil {
		return nil, err
	}
	a.values = values
	for i, v := range values {
		if err := a.present(i, m.session.Outputs[wanted[i]], v); err != nil {
			a.release()
			return nil, err
		}
	}
	return a, nil
}

// wanted returns the indices of the requested outputs.
func (m *model) wanted(r *request) ([]int, error) {
	if len(r.Outputs) == 0 {
		all := make([]int, len(m.session.Outputs))
		for i := range all {
			all[i] = i
		}
		return all, nil
	}
	var indices []int
	for _, o := range r.Outputs {
		index, ok := m.outputs[o.Name]
		switch {
		case !ok:
			return nil, fault(kindInvalid, "model %q has no output %q: it has %s", m.name, o.Name, portNames(m.session.Outputs))
		case slices.Contains(indices, index):
			return nil, fault(kindInvalid, "output %q is asked for twice", o.Name)
		case o.Parameters.Classification != nil:
			return nil, fault(kindInvalid, "output %q: classification %v (class_count of Triton's clients) is not served; ask for the output itself", o.Name, o.Parameters.Classification)
		}
		indices = append(indices, index)
	}
	return indices, nil
}

// portNames lists names for an error.
func portNames(ports []ort.Port) string {
	const most = 20
	var names []string
	for i, p := range ports {
		if i == most {
			names = append(names, "…")
			break
		}
		names = append(names, `"`+p.Name+`"`)
	}
	return strings.Join(names, ", ")
}
