package weights

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sort"
	"sync"
	"unsafe"

	"roundhouse.dev/roundhouse/internal/core/safetensors"
)

// Config bounds a [Stream]. The zero value of a field means its default.
type Config struct {
	// ChunkBytes is the size of one buffer, a multiple of 4096. Default 4 MiB.
	ChunkBytes int
	// Chunks is the number of buffers in the ring. Default 8.
	Chunks int
	// LocalReaders and RemoteReaders are how many chunks are read at a time,
	// of local files and of remote ones. At most Chunks. Default 2 and 4.
	LocalReaders, RemoteReaders int
	// Reads chooses how local files are read. Default [Measured].
	Reads Reads
}

// WithDefaults returns c with every zero field replaced by its default.
func (c Config) WithDefaults() Config {
	orDefault(&c.ChunkBytes, 4<<20)
	orDefault(&c.Chunks, 8)
	orDefault(&c.LocalReaders, 2)
	orDefault(&c.RemoteReaders, 4)
	return c
}

func orDefault(v *int, def int) {
	if *v == 0 {
		*v = def
	}
}

// Validate reports every field that cannot be used.
func (c Config) Validate() error {
	var errs []error
	if c.ChunkBytes <= 0 || c.ChunkBytes%pageBytes != 0 {
		errs = append(errs, fmt.Errorf("weights: chunkBytes: is %d; it must be a multiple of %d above 0", c.ChunkBytes, pageBytes))
	}
	if c.Chunks < 1 || c.LocalReaders < 1 || c.RemoteReaders < 1 {
		errs = append(errs, errors.New("weights: chunks, localReaders and remoteReaders must be above 0"))
	}
	if c.Reads < Measured || c.Reads > Direct {
		errs = append(errs, fmt.Errorf("weights: reads: %d is no way to read", c.Reads))
	}
	return errors.Join(errs...)
}

// pageBytes is what direct reads are aligned to.
const pageBytes = 4096

// Piece is a part of a tensor.
type Piece struct {
	File   *File
	Tensor *safetensors.Tensor
	// Offset is where Data begins in the tensor's bytes.
	Offset int64
	// Data holds bytes as they are in the file, until the next call of
	// [Stream.Next] or [Stream.Close].
	Data []byte
	// Last reports that the tensor ends with this piece.
	Last bool
}

// Stream brings a model's tensors in the order of their bytes, file by file.
// Its memory is Chunks*ChunkBytes. One goroutine may use it.
type Stream struct {
	m      *Model
	cfg    Config
	ctx    context.Context
	cancel context.CancelCauseFunc
	files  []input
	slots  []slot
	total  int // chunks of all files
	// slotsFree has a token for each slot that no chunk is in or read into. Who has
	// taken one may claim the next chunk: as chunks are given back in order, the
	// chunk that was in its slot is.
	slotsFree chan struct{}
	wg        sync.WaitGroup

	mu   sync.Mutex
	next int // the next chunk nobody reads yet

	// The consumer's place.
	chunk  int // being handed out
	file   int
	tensor int
	offset int64 // in the tensor
	open   bool  // the chunk's bytes are held
}

// input is one file as chunks of it.
type input struct {
	*File
	base  int   // number of its first chunk
	start int64 // offset of its first chunk in the file, a multiple of ChunkBytes
	from  source
}

// slot is one buffer. Chunk i is read into slot i modulo their number.
type slot struct {
	buf  []byte
	full chan error // that the chunk was read, once
	n    int        // the chunk's bytes
}

// source reads parts of a file. It is used by several goroutines at once
// unless it is sequential.
type source interface {
	readAt(ctx context.Context, p []byte, from int64) error
	io.Closer
}

// Stream begins to read. ctx ends it; the caller closes it.
func (m *Model) Stream(ctx context.Context, cfg Config) (*Stream, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Stream{m: m, cfg: cfg}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	readers := cfg.LocalReaders
	for i := range m.Files {
		f := &m.Files[i]
		in := input{File: f, base: s.total, start: f.Start / int64(cfg.ChunkBytes) * int64(cfg.ChunkBytes)}
		if f.Path == "" {
			readers = max(readers, cfg.RemoteReaders)
		}
		if f.Size > f.Start {
			s.total += int((f.Size - in.start + int64(cfg.ChunkBytes) - 1) / int64(cfg.ChunkBytes))
		}
		s.files = append(s.files, in)
	}
	for i := range s.files {
		if err := s.open1(&s.files[i]); err != nil {
			return nil, errors.Join(err, s.Close())
		}
		if !s.files[i].Ranges {
			readers = 1
		}
	}
	s.slots = make([]slot, min(cfg.Chunks, s.total))
	s.slotsFree = make(chan struct{}, len(s.slots))
	for i := range s.slots {
		s.slots[i] = slot{buf: aligned(cfg.ChunkBytes), full: make(chan error, 1)}
		s.slotsFree <- struct{}{}
	}
	for range min(readers, len(s.slots)) {
		s.wg.Go(s.read)
	}
	return s, nil
}

func (s *Stream) open1(in *input) (err error) {
	switch {
	case in.Path != "":
		in.from, err = openLocal(in.Path, s.cfg.Reads)
	case in.Ranges:
		in.from = &ranged{s.m.tree, in.Name}
	default:
		in.from = &sequential{tree: s.m.tree, name: in.Name, size: in.Size}
	}
	if err != nil {
		return fmt.Errorf("weights: %w", err)
	}
	return nil
}

// aligned makes a buffer that direct reads may fill.
func aligned(n int) []byte {
	b := make([]byte, n+pageBytes)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (pageBytes - 1))
	return b[skip : skip+n : skip+n]
}

// read fills slots until all chunks are taken or the stream ends.
func (s *Stream) read() {
	for {
		select {
		case <-s.slotsFree:
		case <-s.ctx.Done():
			return
		}
		s.mu.Lock()
		i := s.next
		s.next++
		s.mu.Unlock()
		if i >= s.total {
			return
		}
		slot := &s.slots[i%len(s.slots)]
		in, from := s.at(i)
		slot.n = int(min(int64(s.cfg.ChunkBytes), in.Size-from))
		slot.full <- in.from.readAt(s.ctx, slot.buf[:slot.n], from)
	}
}

// at returns the file of chunk i and its offset there.
func (s *Stream) at(i int) (in *input, from int64) {
	// A file without chunks has the base of the one after it, so it is not the
	// last whose base is at most i.
	in = &s.files[sort.Search(len(s.files), func(k int) bool { return s.files[k].base > i })-1]
	return in, in.start + int64(i-in.base)*int64(s.cfg.ChunkBytes)
}

// Next returns the next piece, [io.EOF] after the last. Tensors without bytes
// are one empty piece. An error names the tensor that could not be read; the
// stream is of no use afterwards.
func (s *Stream) Next() (Piece, error) {
	for s.file < len(s.files) && s.tensor == len(s.files[s.file].Tensors) {
		s.file, s.tensor = s.file+1, 0
	}
	if err := context.Cause(s.ctx); err != nil {
		return Piece{}, s.fail(err)
	}
	if s.file == len(s.files) {
		return Piece{}, io.EOF
	}
	in := &s.files[s.file]
	t := &in.Tensors[s.tensor]
	p := Piece{File: in.File, Tensor: t, Offset: s.offset}
	if t.Bytes() > 0 {
		data, err := s.take(in, in.Start+t.Begin+s.offset, t.Bytes()-s.offset)
		if err != nil {
			return Piece{}, s.fail(err)
		}
		p.Data = data
	}
	s.offset += int64(len(p.Data))
	if p.Last = s.offset == t.Bytes(); p.Last {
		s.tensor, s.offset = s.tensor+1, 0
	}
	return p, nil
}

// take returns the bytes at an offset of a file that its chunk holds, at most
// n, and gives the chunk before it back.
func (s *Stream) take(in *input, at, n int64) ([]byte, error) {
	chunk := in.base + int((at-in.start)/int64(s.cfg.ChunkBytes))
	if s.open && chunk != s.chunk {
		s.slotsFree <- struct{}{}
		s.open = false
	}
	slot := &s.slots[chunk%len(s.slots)]
	if !s.open {
		select {
		case err := <-slot.full:
			if err != nil {
				return nil, err
			}
			s.open, s.chunk = true, chunk
		case <-s.ctx.Done():
			return nil, context.Cause(s.ctx)
		}
	}
	skip := int((at - in.start) % int64(s.cfg.ChunkBytes))
	end := min(int64(slot.n), int64(skip)+n)
	return slot.buf[skip:end:end], nil
}

// fail names what could not be read, and ends the stream.
func (s *Stream) fail(err error) error {
	s.cancel(err)
	if s.file == len(s.files) {
		return fmt.Errorf("weights: %w", err)
	}
	in := &s.files[s.file]
	t := &in.Tensors[s.tensor]
	return fmt.Errorf("weights: %s: tensor %q at byte %d (of the file: %d): %w", in.Name, t.Name, s.offset, in.Start+t.Begin+s.offset, err)
}

// Close ends the stream and waits for what still reads.
func (s *Stream) Close() error {
	s.cancel(context.Canceled)
	s.wg.Wait()
	var errs []error
	for _, in := range s.files {
		if in.from != nil {
			errs = append(errs, in.from.Close())
		}
	}
	s.files = nil
	return errors.Join(errs...)
}
