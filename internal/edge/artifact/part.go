package artifact

import (
	"context"
	"crypto/md5" //nolint:gosec // what the stores give
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"

	"roundhouse.dev/roundhouse/internal/edge/blobs"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// part is one object on its way: a file, and beside it a small record of which
// version of the object it belongs to. It grows from its beginning, or, with
// an index of what is here, in [pieces].
//
// Invariant: the hashes cover exactly the first at bytes of the file.
type part struct {
	object   object
	path     string
	state    partState
	at       int64
	finished bool // all bytes are here
	whole    bool // the source was seen to send no ranges
	linked   bool // the object is a link to a blob, and the file is empty
	// unlinkable: the cache lost the blob, so the object is downloaded like any.
	unlinkable bool
	file       diskFile
	sha        hash.Hash
	crc        hash.Hash32
	md5        hash.Hash   // nil unless the source promises one
	opaque     atomic.Bool // and does not mean it
	meter      *meter
	counted    atomic.Int64 // bytes added to what the meter has as done
	promised   int64        // and to its total
}

type partState struct {
	Validator string `json:"validator"`
	Size      int64  `json:"size"`
	Piece     int64  `json:"piece,omitempty"` // size of a piece; 0: the file has no gaps
}

// openPart opens an object's part and takes over what is there of the same
// version.
func (t *transfer) openPart(ctx context.Context, o object) (*part, error) {
	path := partPath(t.folder.partialDir(t.loc), o.Name)
	f, err := t.folder.disk.open(path)
	if err != nil {
		return nil, t.folder.explainWrite(err, o.Size)
	}
	p := &part{
		object: o, path: path, file: f, meter: t.meter, promised: max(o.Size, 0),
		state: partState{Validator: o.Validator, Size: o.Size},
		sha:   sha256.New(), crc: crc32.New(castagnoli),
	}
	if o.md5 != "" {
		p.md5 = md5.New() //nolint:gosec // what the stores give
	}
	if err := p.resume(ctx); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s: %w", t.loc, err)
	}
	return p, nil
}

func (p *part) statePath() string { return p.path + ".json" }

func (p *part) linkPath() string { return strings.TrimSuffix(p.path, ".part") + ".blob" }

func (p *part) indexPath() string { return p.path + ".index" }

// sums is where bytes go to be hashed.
func (p *part) sums() io.Writer {
	if p.md5 != nil {
		return io.MultiWriter(p.sha, p.crc, p.md5)
	}
	return io.MultiWriter(p.sha, p.crc)
}

// heard reads from an answer of S3 whether the ETag is no MD5.
func (p *part) heard(h http.Header) {
	if strings.HasPrefix(h.Get("X-Amz-Server-Side-Encryption"), "aws:kms") || h.Get("X-Amz-Server-Side-Encryption-Customer-Algorithm") != "" {
		p.opaque.Store(true)
	}
}

// checkSums compares the hashes with what the source promised.
func (p *part) checkSums(loc location) error {
	if want := p.object.crc32c; want != nil && *want != p.crc.Sum32() {
		return fmt.Errorf("%s: %s arrived with crc32c %08x instead of %08x; fetch again", loc, p.object.Name, p.crc.Sum32(), *want)
	}
	if p.md5 != nil && !p.opaque.Load() {
		if got := hex.EncodeToString(p.md5.Sum(nil)); got != p.object.md5 {
			return fmt.Errorf("%s: %s arrived with md5 %s instead of %s; fetch again", loc, p.object.Name, got, p.object.md5)
		}
	}
	return nil
}

func (p *part) resume(ctx context.Context) error {
	var old partState
	raw, err := os.ReadFile(p.statePath())
	if err != nil || json.Unmarshal(raw, &old) != nil || !p.resumable(old) {
		return p.restart()
	}
	if old.Size >= 0 {
		p.state.Size = old.Size
		p.promise(old.Size)
	}
	p.state.Validator, p.state.Piece = old.Validator, old.Piece
	if old.Piece > 0 {
		return p.resumePieces(ctx)
	}
	n, err := io.Copy(p.sums(), blobs.ContextReader(ctx, p.file))
	if err != nil {
		return err
	}
	if p.state.Size >= 0 && n > p.state.Size {
		return p.restart()
	}
	p.at = n
	p.count(n)
	return nil
}

// resumable reports whether bytes of version old may be continued: the source
// must be able to confirm that the object is still that version.
func (p *part) resumable(old partState) bool {
	if !strongValidator(old.Validator) || old.Piece < 0 || old.Piece > 0 && old.Size <= 0 {
		return false
	}
	if p.object.Size >= 0 && old.Size >= 0 && p.object.Size != old.Size {
		return false
	}
	return p.object.Validator == "" || p.object.Validator == old.Validator
}

func strongValidator(v string) bool { return v != "" && !strings.HasPrefix(v, "W/") }

// complete reports whether every byte is here. Without a listed version the
// source must confirm it, so a part that was only resumed is not complete.
func (p *part) complete() bool {
	return p.finished || p.object.Validator != "" && p.object.Size == p.at
}

// restart drops all bytes.
func (p *part) restart() error {
	if err := p.rewind(); err != nil {
		return err
	}
	if err := p.file.Truncate(0); err != nil {
		return err
	}
	_ = os.Remove(p.statePath()) // without them there is nothing to resume
	_ = os.Remove(p.indexPath())
	p.count(-p.counted.Load())
	p.at = 0
	p.state = partState{Validator: p.object.Validator, Size: p.object.Size}
	return nil
}

// rewind goes back to the first byte, with nothing hashed.
func (p *part) rewind() error {
	p.sha.Reset()
	p.crc.Reset()
	if p.md5 != nil {
		p.md5.Reset()
	}
	_, err := p.file.Seek(0, io.SeekStart)
	return err
}

// count tells the meter of n more bytes.
func (p *part) count(n int64) {
	p.counted.Add(n)
	p.meter.add(n, 0)
}

// expect notes the size of the whole object and writes the state down before
// the bytes it speaks of.
func (p *part) expect(size int64) error {
	if size >= 0 {
		p.state.Size = size
		p.promise(size)
	}
	return writeJSON(p.statePath(), p.state)
}

func (p *part) promise(size int64) {
	p.meter.add(0, size-p.promised)
	p.promised = size
}

// write appends bytes to a part that is not in pieces.
func (p *part) write(b []byte) error {
	n, err := p.file.Write(b)
	_, _ = p.sums().Write(b[:n]) // hashes never fail
	p.at += int64(n)
	p.count(int64(n))
	return err
}

func (p *part) close() error {
	if err := errors.Join(p.file.Sync(), p.file.Close()); err != nil {
		return fmt.Errorf("%s: %w", p.path, err)
	}
	return nil
}

// disk is what downloads are written to; tests put a full one in its place.
type disk interface {
	// open opens a file for reading and writing, creating it with mode 0600.
	open(path string) (diskFile, error)
	// free is the number of bytes an ordinary user can still write below dir.
	free(dir string) (int64, error)
}

type diskFile interface {
	io.ReadWriteSeeker
	io.ReaderAt
	io.WriterAt
	io.Closer
	Truncate(size int64) error
	Sync() error
}

type realDisk struct{}

func (realDisk) open(path string) (diskFile, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
}

func (realDisk) free(dir string) (int64, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return 0, fmt.Errorf("%s: %w", dir, err)
	}
	blocks := min(fs.Bavail, 1<<40)             // the unit is at least 512 bytes; no overflow
	return int64(blocks) * int64(fs.Bsize), nil //nolint:unconvert // Bsize is 32 bits wide on macOS
}

// stored is how many bytes of a file are on the disk: one in pieces has gaps.
func stored(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return min(info.Size(), st.Blocks*512)
	}
	return info.Size()
}

// checkSpace refuses a write of need bytes that the disk has no room for.
func (d *folder) checkSpace(need int64) error {
	free, err := d.disk.free(d.dir)
	if err != nil || free >= need {
		return err
	}
	return d.fullError(need, free)
}

func (d *folder) fullError(need, free int64) error {
	return fmt.Errorf("%s: disk full: %s needed, %s free; make room or choose another folder: %w",
		d.dir, formatBytes(need), formatBytes(free), syscall.ENOSPC)
}

// explainWrite turns a failed write into an error with the disk space that is
// missing. need is the number of bytes still to write, 0 when unknown.
func (d *folder) explainWrite(err error, need int64) error {
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	free, ferr := d.disk.free(d.dir)
	if ferr != nil {
		return fmt.Errorf("%s: disk full: %w", d.dir, err)
	}
	return d.fullError(max(need, 1), free)
}

// formatBytes prints a size in binary units.
func formatBytes(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	v, i := float64(n), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}
