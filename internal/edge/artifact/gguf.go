package artifact

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/bits"
	"strconv"

	"roundhouse.dev/roundhouse/internal/edge/blobs"
)

// ggufTypes are the values of general.file_type that are in use.
var ggufTypes = map[uint64]string{
	0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
	13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
	21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
	29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE",
}

// ggufFacts are the facts in a GGUF header.
type ggufFacts struct {
	version      uint32
	architecture string
	fileType     string
	parameters   int64
}

// gguf reads the first GGUF file of the top folder. Shards after the first
// only add parameters.
func (in *inspector) gguf(ctx context.Context) error {
	files := in.top(".gguf")
	if len(files) == 0 && len(in.files) == 1 {
		files = in.files
	}
	if !in.tree.local() && len(files) > 1 {
		files = files[:1]
	}
	for i, f := range files[:min(len(files), maxSniffed)] {
		g, ok, err := in.ggufHeader(ctx, f)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		if !ok {
			return nil
		}
		if i > 0 { // a second model, or a shard of the first
			in.facts.detail("gguf_files", strconv.Itoa(len(files)))
			continue
		}
		in.facts.setFormat("gguf", f.name)
		in.facts.set(&in.facts.FormatVersion, "formatversion", strconv.FormatUint(uint64(g.version), 10), f.name)
		in.facts.set(&in.facts.Architecture, "architecture", g.architecture, f.name)
		in.facts.setQuantization(g.fileType, f.name)
		if len(files) == 1 {
			in.facts.setParameters(g.parameters, f.name)
		}
	}
	return nil
}

func (in *inspector) ggufHeader(ctx context.Context, f treeFile) (ggufFacts, bool, error) {
	r, err := in.tree.open(ctx, f.name, 0)
	if err != nil {
		return ggufFacts{}, false, err
	}
	defer func() { _ = r.Close() }()
	limited := io.LimitReader(blobs.ContextReader(ctx, r), min(f.size, maxHeader))
	buffered := bufio.NewReaderSize(limited, 64<<10)
	if magic, err := buffered.Peek(4); err != nil || string(magic) != "GGUF" {
		return ggufFacts{}, false, nil
	}
	g, err := readGGUF(buffered)
	return g, true, err
}

// ggufReader reads little-endian values and keeps the first error.
type ggufReader struct {
	r   *bufio.Reader
	err error
}

// uint reads an unsigned integer of width bytes.
func (g *ggufReader) uint(width int) uint64 {
	var b [8]byte
	if g.err == nil {
		_, g.err = io.ReadFull(g.r, b[:width])
	}
	if g.err != nil {
		return 0
	}
	return binary.LittleEndian.Uint64(b[:])
}

// text reads a string and returns at most 256 bytes of it.
func (g *ggufReader) text() string {
	n := g.uint(8)
	keep := min(n, 256)
	b := make([]byte, keep)
	if g.err == nil {
		_, g.err = io.ReadFull(g.r, b)
	}
	g.skip(n-keep, 1)
	return string(b)
}

// skip passes over count values of width bytes. The input is bounded, so a
// count beyond it ends in an error, not in a wait.
func (g *ggufReader) skip(count, width uint64) {
	hi, n := bits.Mul64(count, width)
	if g.err != nil {
		return
	}
	if hi != 0 || n > maxHeader {
		g.err = fmt.Errorf("%w: a value of %d × %d bytes", errHeader, count, width)
		return
	}
	_, g.err = g.r.Discard(int(n))
}

// ggufWidths are the sizes of the scalar value types, by their numbers.
var ggufWidths = [...]uint64{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8}

const ggufString, ggufArray = 8, 9

// value reads a value: text for strings, a number for scalars up to 8 bytes,
// nothing of arrays.
func (g *ggufReader) value(kind uint64, depth int) (string, uint64) {
	switch {
	case g.err != nil:
	case kind == ggufString:
		return g.text(), 0
	case kind == ggufArray:
		g.array(depth)
	case kind < uint64(len(ggufWidths)):
		return "", g.uint(int(ggufWidths[kind]))
	default:
		g.err = fmt.Errorf("%w: unknown value type %d", errHeader, kind)
	}
	return "", 0
}

func (g *ggufReader) array(depth int) {
	kind, n := g.uint(4), g.uint(8)
	if depth > 4 {
		g.err = fmt.Errorf("%w: arrays nested too deeply", errHeader)
	}
	if kind < uint64(len(ggufWidths)) && ggufWidths[kind] > 0 {
		g.skip(n, ggufWidths[kind])
		return
	}
	for i := uint64(0); i < n && g.err == nil; i++ {
		g.value(kind, depth+1)
	}
}

// readGGUF reads a header, see https://github.com/ggml-org/ggml/blob/master/docs/gguf.md:
// counts, metadata, then one entry per tensor.
func readGGUF(r *bufio.Reader) (ggufFacts, error) {
	g := &ggufReader{r: r}
	g.skip(4, 1)
	facts := ggufFacts{version: uint32(g.uint(4))}
	if g.err == nil && (facts.version < 2 || facts.version > 3) {
		return facts, fmt.Errorf("%w: GGUF version %d; 2 and 3 are read", errHeader, facts.version)
	}
	tensors, pairs := g.uint(8), g.uint(8)
	for i := uint64(0); i < pairs && g.err == nil; i++ {
		key := g.text()
		text, number := g.value(g.uint(4), 0)
		switch key {
		case "general.architecture":
			facts.architecture = text
		case "general.file_type":
			facts.fileType = ggufTypes[number]
		}
	}
	var total uint64
	for i := uint64(0); i < tensors && g.err == nil; i++ {
		total += g.tensor()
		if total > math.MaxInt64/2 {
			g.err = fmt.Errorf("%w: too many elements", errHeader)
		}
	}
	if g.err != nil {
		return facts, fmt.Errorf("GGUF header: %w", g.err)
	}
	facts.parameters = int64(total)
	return facts, nil
}

// tensor reads one tensor's entry and returns its number of elements.
func (g *ggufReader) tensor() uint64 {
	g.text()
	dims := g.uint(4)
	if dims > 8 {
		g.err = fmt.Errorf("%w: a tensor of %d dimensions", errHeader, dims)
	}
	count := uint64(1)
	for i := uint64(0); i < dims && g.err == nil; i++ {
		hi, lo := bits.Mul64(count, g.uint(8))
		if hi != 0 || lo > math.MaxInt64/2 {
			g.err = fmt.Errorf("%w: a tensor is too large", errHeader)
		}
		count = lo
	}
	g.skip(12, 1) // type and offset
	return count
}
