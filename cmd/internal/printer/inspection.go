package printer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/progress"
	"roundhouse.dev/roundhouse/internal/core/safetensors"
	"roundhouse.dev/roundhouse/internal/edge/weights"
)

// Inspection is what `model inspect` prints, and its JSON.
type Inspection struct {
	Files      []inspectedFile   `json:"files"`
	Tensors    []inspectedTensor `json:"tensors"`
	Parameters int64             `json:"elements"`
	Bytes      int64             `json:"bytes"`
	Dtypes     []inspectedPart   `json:"dtypes"`
	Layers     []inspectedPart   `json:"layers"`
	Read       *inspectedRead    `json:"read,omitempty"`

	byTensor map[*safetensors.Tensor]int
}

type inspectedFile struct {
	Name     string            `json:"name"`
	Size     int64             `json:"size"`
	Header   int64             `json:"headerBytes"`
	Tensors  int               `json:"tensors"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

type inspectedTensor struct {
	Name   string            `json:"name"`
	File   string            `json:"file"`
	Dtype  safetensors.Dtype `json:"dtype"`
	Shape  []int64           `json:"shape"`
	Bytes  int64             `json:"bytes"`
	Offset int64             `json:"offset"`           // in the file
	CRC32C string            `json:"crc32c,omitempty"` // with --read
}

type inspectedPart struct {
	Name    string `json:"name"`
	Tensors int    `json:"tensors"`
	Bytes   int64  `json:"bytes"`
}

type inspectedRead struct {
	Seconds        float64 `json:"seconds"`
	BytesPerSecond float64 `json:"bytesPerSecond"`
}

// Inspect reads the headers of a model.
func Inspect(m *weights.Model) *Inspection {
	r := &Inspection{Bytes: m.Bytes(), Tensors: []inspectedTensor{}, Dtypes: []inspectedPart{}, Layers: []inspectedPart{},
		byTensor: map[*safetensors.Tensor]int{}}
	dtypes, layers := map[string]int{}, map[string]int{}
	for _, f := range m.Files {
		r.Files = append(r.Files, inspectedFile{Name: f.Name, Size: f.Size, Header: f.Start, Tensors: len(f.Tensors), Metadata: f.Metadata})
		for i := range f.Tensors {
			t := &f.Tensors[i]
			r.byTensor[t] = len(r.Tensors)
			r.Tensors = append(r.Tensors, inspectedTensor{Name: t.Name, File: f.Name, Dtype: t.Dtype, Shape: t.Shape, Bytes: t.Bytes(), Offset: f.Start + t.Begin})
			r.Parameters += t.Elements()
			r.Dtypes = count(r.Dtypes, dtypes, string(t.Dtype), t.Bytes())
			r.Layers = count(r.Layers, layers, weights.Layer(f.Name, t.Name), t.Bytes())
		}
	}
	slices.SortFunc(r.Dtypes, func(a, b inspectedPart) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name))
	})
	return r
}

func count(parts []inspectedPart, at map[string]int, name string, bytes int64) []inspectedPart {
	i, ok := at[name]
	if !ok {
		i, parts = len(parts), append(parts, inspectedPart{Name: name})
		at[name] = i
	}
	parts[i].Tensors++
	parts[i].Bytes += bytes
	return parts
}

// ReadTensors reads every tensor, for its checksum and the rate.
func (r *Inspection) ReadTensors(ctx context.Context, m *weights.Model, bar *progress.Bar) error {
	defer bar.Done()
	began := time.Now()
	s, err := m.Stream(ctx, weights.Config{})
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	table, sum, done := crc32.MakeTable(crc32.Castagnoli), uint32(0), int64(0)
	for {
		p, err := s.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		sum = crc32.Update(sum, table, p.Data)
		if p.Last {
			r.Tensors[r.byTensor[p.Tensor]].CRC32C, sum = fmt.Sprintf("%08x", sum), 0
		}
		done += int64(len(p.Data))
		bar.Fetch("read", done, r.Bytes)
	}
	took := time.Since(began).Seconds()
	r.Read = &inspectedRead{Seconds: took, BytesPerSecond: float64(r.Bytes) / took}
	return nil
}

// Print writes tables; bars are of the rune block and at most width wide.
func (r *Inspection) Print(w io.Writer, block rune, width int) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	row := func(format string, args ...any) { _, _ = fmt.Fprintf(tw, format+"\n", args...) }
	row("TENSOR\tTYPE\tSHAPE\tSIZE\tFILE")
	for _, t := range r.Tensors {
		row("%s\t%s\t%s\t%s\t%s%s", printable(t.Name), t.Dtype, strings.ReplaceAll(fmt.Sprint(t.Shape), " ", ","), command.SizeText(t.Bytes), printable(t.File), prefixed("  crc32c ", t.CRC32C))
	}
	for _, part := range []struct {
		title string
		rows  []inspectedPart
	}{{"LAYER", r.Layers}, {"TYPE", r.Dtypes}} {
		var most int64
		for _, p := range part.rows {
			most = max(most, p.Bytes)
		}
		if err := tw.Flush(); err != nil {
			return err
		}
		row("\n%s\tTENSORS\tSIZE\tSHARE\t", part.title)
		for _, p := range part.rows {
			share, bar := 0.0, 0
			if r.Bytes > 0 {
				share = 100 * float64(p.Bytes) / float64(r.Bytes)
				bar = int((float64(p.Bytes)/float64(max(1, most)))*float64(width) + 0.5)
			}
			row("%s\t%d\t%s\t%.1f%%\t%s", printable(p.Name), p.Tensors, command.SizeText(p.Bytes), share, strings.Repeat(string(block), bar))
		}
	}
	row("\n%d tensors with %d elements in %d files: %s", len(r.Tensors), r.Parameters, len(r.Files), command.SizeText(r.Bytes))
	if r.Read != nil {
		row("read in %.2f s: %s/s", r.Read.Seconds, command.SizeText(int64(r.Read.BytesPerSecond)))
	}
	return tw.Flush()
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

// printable keeps a file's words from moving the cursor or splitting a table.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}
