package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/safetensors"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
	"roundhouse.dev/roundhouse/internal/edge/weights"
)

type modelInspectCommand struct {
	output, dataDir string
	read            bool
}

func newModelInspectCommand() *cobra.Command {
	c := &modelInspectCommand{}
	cmd := &cobra.Command{
		Use:   "inspect URI|FILE|FOLDER",
		Short: "List the tensors of a model in safetensors files, and where its bytes are",
		Long: `List the tensors of a model in safetensors files: names, types, shapes and sizes,
totals by type and by layer, and a plot of where the bytes are. Only headers are
read, of remote files by range requests.

With --read the tensors are read as well, in the order of the files: each gets a
CRC-32C, and the rate is told.`,
		Example: `  roundhouse model inspect models/llama
  roundhouse model inspect s3://models/llama -o json
  roundhouse model inspect https://example.com/model.safetensors --read`,
		Args: command.Wants(1, 1, "a model"),
		RunE: func(cmd *cobra.Command, args []string) error { return c.run(cmd, args[0]) },
	}
	f := cmd.Flags()
	f.StringVarP(&c.output, "output", "o", "", "json")
	f.BoolVar(&c.read, "read", false, "read every tensor, not headers alone")
	f.StringVar(&c.dataDir, "data-dir", datadir.Default(), "where models are that were fetched before")
	return cmd
}

func (c *modelInspectCommand) run(cmd *cobra.Command, uri string) error {
	if c.output != "" && c.output != "json" {
		return command.Usagef("--output is %q: want json", c.output)
	}
	ctx := contextOf(cmd)
	store, err := openStore(c.dataDir)
	if err != nil {
		return err
	}
	tree, err := store.Tree(ctx, artifact.Request{URI: uri})
	if err != nil {
		return err
	}
	m, err := weights.Open(ctx, tree)
	if err != nil {
		return err
	}
	r := newInspection(m)
	if c.read {
		if err := r.read(cmd, m); err != nil {
			return err
		}
	}
	out := cmd.OutOrStdout()
	if c.output == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	block, width := '#', 40
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		block = '█'
		if w, _, err := term.GetSize(int(f.Fd())); err == nil {
			width = max(10, min(w-60, 80))
		}
	}
	return r.print(out, block, width)
}

// inspection is what `model inspect` prints, and its JSON.
type inspection struct {
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

func newInspection(m *weights.Model) *inspection {
	r := &inspection{Bytes: m.Bytes(), Tensors: []inspectedTensor{}, Dtypes: []inspectedPart{}, Layers: []inspectedPart{},
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

// read streams every tensor.
func (r *inspection) read(cmd *cobra.Command, m *weights.Model) error {
	bar := newProgress(stderrFile(cmd))
	defer bar.done()
	began := time.Now()
	s, err := m.Stream(contextOf(cmd), weights.Config{})
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
		bar.fetch("read", done, r.Bytes)
	}
	took := time.Since(began).Seconds()
	r.Read = &inspectedRead{Seconds: took, BytesPerSecond: float64(r.Bytes) / took}
	return nil
}

// print writes tables for people; block draws bars of at most width.
func (r *inspection) print(w io.Writer, block rune, width int) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	row := func(format string, args ...any) { _, _ = fmt.Fprintf(tw, format+"\n", args...) }
	row("TENSOR\tTYPE\tSHAPE\tSIZE\tFILE")
	for _, t := range r.Tensors {
		row("%s\t%s\t%s\t%s\t%s%s", printable(t.Name), t.Dtype, strings.ReplaceAll(fmt.Sprint(t.Shape), " ", ","), sizeText(t.Bytes), printable(t.File), prefixed("  crc32c ", t.CRC32C))
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
			row("%s\t%d\t%s\t%.1f%%\t%s", printable(p.Name), p.Tensors, sizeText(p.Bytes), share, strings.Repeat(string(block), bar))
		}
	}
	row("\n%d tensors with %d elements in %d files: %s", len(r.Tensors), r.Parameters, len(r.Files), sizeText(r.Bytes))
	if r.Read != nil {
		row("read in %.2f s: %s/s", r.Read.Seconds, sizeText(int64(r.Read.BytesPerSecond)))
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
