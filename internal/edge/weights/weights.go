// Package weights reads the tensors of models in safetensors files, wherever
// they are: [Open] reads the headers and nothing else, [Model.Stream] brings
// the bytes in the order of the files through a bounded ring of buffers.
package weights

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"roundhouse.dev/roundhouse/internal/core/safetensors"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
)

// headerReads is how many headers are read at a time.
const headerReads = 4

// firstBytes is how much of a remote file is asked for at first: the header,
// if it is of a common size.
const firstBytes = 128 << 10

// Model is a model's safetensors files with their headers.
type Model struct {
	// Files are sorted by name.
	Files []File
	// Index is the model's index; nil for none.
	Index *safetensors.Index

	tree *artifact.Tree
}

// File is one safetensors file.
type File struct {
	artifact.File
	*safetensors.Header
}

// Open reads the headers of a model's safetensors files. Of files at the top
// those count that the index names; without an index all, and without files at
// the top those in folders. Files whose headers are malformed, and an index
// that does not fit them, are errors.
func Open(ctx context.Context, tree *artifact.Tree) (*Model, error) {
	m := &Model{tree: tree}
	if err := m.readIndex(ctx); err != nil {
		return nil, err
	}
	files, err := m.choose()
	if err != nil {
		return nil, err
	}
	m.Files = make([]File, len(files))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(headerReads)
	for i, f := range files {
		g.Go(func() error {
			h, err := readHeader(ctx, tree, f)
			if err != nil {
				return fmt.Errorf("weights: %s: %w", f.Name, err)
			}
			m.Files[i] = File{f, h}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return m, m.check()
}

func (m *Model) readIndex(ctx context.Context) error {
	i := slices.IndexFunc(m.tree.Files(), func(f artifact.File) bool { return f.Name == safetensors.IndexName })
	if i < 0 {
		return nil
	}
	f := m.tree.Files()[i]
	if f.Size > safetensors.MaxIndex {
		return fmt.Errorf("weights: %s: %d bytes; at most %d are read", f.Name, f.Size, safetensors.MaxIndex)
	}
	raw := make([]byte, f.Size)
	if err := m.tree.ReadAt(ctx, f.Name, raw, 0); err != nil {
		return fmt.Errorf("weights: %s: %w", f.Name, err)
	}
	x, err := safetensors.ParseIndex(raw)
	if err != nil {
		return fmt.Errorf("weights: %s: %w", f.Name, err)
	}
	if len(x.Files) > 0 {
		m.Index = x
	}
	return nil
}

// choose picks the files with the model's weights.
func (m *Model) choose() ([]artifact.File, error) {
	var top, below []artifact.File
	for _, f := range m.tree.Files() {
		switch named := m.Index != nil && slices.Contains(m.Index.Files, f.Name); {
		case m.Index != nil && !named:
		case !named && !strings.HasSuffix(strings.ToLower(f.Name), ".safetensors") && len(m.tree.Files()) > 1:
		case strings.Contains(f.Name, "/"):
			below = append(below, f)
		default:
			top = append(top, f)
		}
	}
	if len(top) == 0 {
		top = below
	}
	if len(top) == 0 {
		return nil, errors.New("weights: the model has no safetensors files")
	}
	slices.SortFunc(top, func(a, b artifact.File) int { return cmp.Compare(a.Name, b.Name) })
	return top, nil
}

// check compares the headers with the index, and refuses a tensor that two
// files of one folder have.
func (m *Model) check() error {
	if m.Index == nil {
		return nil
	}
	headers := map[string]*safetensors.Header{}
	for _, f := range m.Files {
		headers[f.Name] = f.Header
	}
	if err := m.Index.Check(headers); err != nil {
		return fmt.Errorf("weights: %s: %w", safetensors.IndexName, err)
	}
	return nil
}

// readHeader reads a file's header: the first bytes, and the rest where those
// are too few.
func readHeader(ctx context.Context, tree *artifact.Tree, f artifact.File) (*safetensors.Header, error) {
	first := make([]byte, min(f.Size, firstBytes))
	if err := tree.ReadAt(ctx, f.Name, first, 0); err != nil {
		return nil, err
	}
	n, err := safetensors.Length(first, f.Size)
	if err != nil {
		return nil, err
	}
	raw := make([]byte, n)
	have := copy(raw, first[safetensors.PrefixBytes:])
	if have < len(raw) {
		if err := tree.ReadAt(ctx, f.Name, raw[have:], int64(safetensors.PrefixBytes+have)); err != nil {
			return nil, fmt.Errorf("the header of %d bytes: %w", n, err)
		}
	}
	return safetensors.Parse(raw, f.Size)
}

// Bytes is the size of all tensors.
func (m *Model) Bytes() int64 {
	var n int64
	for _, f := range m.Files {
		n += f.Size - f.Start
	}
	return n
}

// Layer is the part of a model that a tensor belongs to: its name up to the
// first number ("model.layers.11"), else its name without what it is of it
// ("model.embed_tokens"), below its file's folder.
func Layer(file, tensor string) string {
	parts := strings.Split(tensor, ".")
	end := max(1, len(parts)-1)
	for i, p := range parts {
		if p != "" && strings.Trim(p, "0123456789") == "" && i > 0 {
			end = i + 1
			break
		}
	}
	layer := strings.Join(parts[:end], ".")
	if dir := path.Dir(file); dir != "." {
		layer = dir + "/" + layer
	}
	return layer
}
