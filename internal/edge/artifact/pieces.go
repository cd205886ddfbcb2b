package artifact

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"os"
	"sync"

	"golang.org/x/sync/errgroup"

	"roundhouse.dev/roundhouse/internal/edge/blobs"
)

// errNoRanges marks a source that sends an object whole where a part of it was
// asked for.
var errNoRanges = errors.New("the server sends no parts of files")

// pieces is a large object on its way over several connections, a range each.
// A piece that is here is on record beside the file, with its checksum, so
// that what a killed process leaves lacks at most one piece a connection, and
// bytes that a crash of the machine lost are not taken for content.
//
// The part's sums still cover its first at bytes: one goroutine follows the
// pieces in order and hashes what is here without a gap.
type pieces struct {
	p     *part
	size  int64
	each  int64
	index *os.File      // pieceEntry bytes a piece
	over  chan struct{} // closed when every piece is taken
	woken chan struct{} // capacity 1: a piece has come

	mu   sync.Mutex
	here []bool
	next int // no piece below it is left to take
}

// An entry of the index is pieceMark and the piece's CRC-32C, or anything else
// while the piece is not here.
const (
	pieceMark  = 0x70696563
	pieceEntry = 8
)

// splittable reports whether the missing part of an object is worth several
// connections: the source must be able to tell versions apart.
func (t *transfer) splittable(p *part) bool {
	return !p.whole && t.connections > 1 && strongValidator(p.state.Validator) &&
		p.state.Size-p.at >= 2*t.pieceBytes && p.state.Size <= t.maxBytes
}

// boundary is where a body that was asked for whole is left for pieces, or 0:
// the server must have said that it sends ranges. A Hub that sends bytes itself
// is a cache: it has them, or fetches them in order for all who ask.
func (t *transfer) boundary(p *part, resp *http.Response) int64 {
	ranges := resp.StatusCode == http.StatusPartialContent || resp.Header.Get("Accept-Ranges") == "bytes"
	if hf, ok := t.src.(*hfSource); ok && hf.answersItself(resp) {
		ranges = false
	}
	if !ranges || !t.splittable(p) {
		return 0
	}
	return (p.at/t.pieceBytes + 1) * t.pieceBytes
}

// splits reports whether a source is known to send ranges before it is asked:
// the stores that list what they have do.
func splits(src source) bool {
	switch src.(type) {
	case *httpSource, *hfSource:
		return false
	}
	return true
}

// inPieces brings what is missing of an object.
func (t *transfer) inPieces(ctx context.Context, p *part) error {
	q, err := p.split(t.pieceBytes)
	if err != nil {
		return t.folder.explainWrite(err, p.state.Size-p.at)
	}
	defer func() { _ = q.index.Close() }()
	missing := q.missing()
	if missing == 0 {
		close(q.over)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return q.follow(ctx) })
	for i := range min(t.connections, missing) {
		g.Go(func() error {
			if i > 0 { // the object has one connection; more as there are any
				select {
				case t.slots <- struct{}{}:
				case <-q.over:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
				defer func() { <-t.slots }()
			}
			return t.work(ctx, q)
		})
	}
	err = g.Wait()
	if errors.Is(err, errChanged) || errors.Is(err, errNoRanges) {
		return errors.Join(err, p.restart())
	}
	p.finished = err == nil
	return err
}

// work fetches pieces until none is left.
func (t *transfer) work(ctx context.Context, q *pieces) error {
	buf := make([]byte, 256<<10)
	for {
		i, ok := q.take()
		if !ok {
			return nil
		}
		if err := t.piece(ctx, q, i, buf); err != nil {
			return err
		}
	}
}

// piece brings one piece, with retries that go on where the last broke off.
func (t *transfer) piece(ctx context.Context, q *pieces, i int, buf []byte) error {
	at, end := int64(i)*q.each, min(int64(i+1)*q.each, q.size)
	sum := crc32.New(castagnoli)
	best, begun := at, at
	err := t.requests.retry(ctx, func() error {
		ctx, w := watch(ctx, t.requests.stall)
		defer w.stop()
		body, err := t.rangeOf(ctx, q, at, end)
		if err != nil {
			return err
		}
		defer func() { _ = body.Close() }()
		for at < end {
			n, err := body.Read(buf[:min(int64(len(buf)), end-at)])
			if n > 0 {
				w.feed()
				if _, err := q.p.file.WriteAt(buf[:n], at); err != nil {
					return t.folder.explainWrite(err, end-at)
				}
				_, _ = sum.Write(buf[:n]) // hashes never fail
				at += int64(n)
				q.p.count(int64(n))
			}
			if errors.Is(err, io.EOF) && at < end {
				err = io.ErrUnexpectedEOF
			}
			if err != nil && at < end {
				return transportError(ctx, t.loc.String(), err)
			}
		}
		return nil
	}, func() bool {
		further := at >= best+minProgress
		best = max(best, at)
		return further
	})
	if err != nil {
		q.p.count(begun - at)
		return err
	}
	return q.put(i, sum.Sum32())
}

// rangeOf asks for some bytes of the version that is on its way.
func (t *transfer) rangeOf(ctx context.Context, q *pieces, from, to int64) (io.ReadCloser, error) {
	o := q.p.object
	o.Size, o.Validator, o.to = q.size, q.p.state.Validator, to
	req, err := t.src.request(ctx, t.loc, o, from)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := t.requests.send(req, t.loc.String(), sourceHints(t.src))
	if err != nil {
		return nil, err
	}
	q.p.heard(resp.Header)
	_, web := t.src.(*httpSource)
	if err = o.continues(resp, from, web); err == nil && resp.StatusCode == http.StatusOK {
		err = errNoRanges
	}
	if err != nil {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%s: %s: %w", t.loc, o.Name, err)
	}
	return resp.Body, nil
}

// split makes pieces of a part: of what is here those that are whole stay.
func (p *part) split(each int64) (*pieces, error) {
	if p.state.Piece == 0 {
		if err := p.makeIndex(each); err != nil {
			return nil, err
		}
		p.state.Piece = each
		if err := writeJSON(p.statePath(), p.state); err != nil {
			return nil, err
		}
	}
	q := &pieces{p: p, size: p.state.Size, each: p.state.Piece, over: make(chan struct{}), woken: make(chan struct{}, 1)}
	q.here = make([]bool, (q.size+q.each-1)/q.each)
	var err error
	if q.index, err = os.OpenFile(p.indexPath(), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, err
	}
	for i := range q.here {
		q.here[i] = p.pieceHere(q.index, i)
	}
	return q, nil
}

// makeIndex puts the whole pieces of a part's first bytes on record. The bytes
// after them are fetched again.
func (p *part) makeIndex(each int64) error {
	var index []byte
	whole := p.at / each
	for i := range whole {
		sum := crc32.New(castagnoli)
		if _, err := io.Copy(sum, io.NewSectionReader(p.file, i*each, each)); err != nil {
			return err
		}
		index = append(index, entry(sum.Sum32())...)
	}
	if whole*each != p.at { // what the sums cover has to be whole pieces
		if err := p.rewind(); err != nil {
			return err
		}
		if _, err := io.CopyN(p.sums(), p.file, whole*each); err != nil {
			return err
		}
		p.count(whole*each - p.at)
		p.at = whole * each
	}
	return os.WriteFile(p.indexPath(), index, 0o600)
}

func entry(sum uint32) []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, pieceMark), sum)
}

// pieceHere reads whether a piece is on record.
func (p *part) pieceHere(index io.ReaderAt, i int) bool {
	_, ok := readEntry(index, i)
	return ok
}

func readEntry(index io.ReaderAt, i int) (sum uint32, ok bool) {
	var b [pieceEntry]byte
	if _, err := index.ReadAt(b[:], int64(i)*pieceEntry); err != nil || binary.LittleEndian.Uint32(b[:]) != pieceMark {
		return 0, false
	}
	return binary.LittleEndian.Uint32(b[4:]), true
}

// resumePieces takes over the pieces of an earlier process that have their
// checksums, and hashes those without a gap before them.
func (p *part) resumePieces(ctx context.Context) error {
	index, err := os.OpenFile(p.indexPath(), os.O_RDWR, 0)
	if err != nil {
		return p.restart()
	}
	defer func() { _ = index.Close() }()
	each, gap := p.state.Piece, false
	for i := 0; int64(i)*each < p.state.Size; i++ {
		want, ok := readEntry(index, i)
		if !ok {
			gap = true
			continue
		}
		from := int64(i) * each
		n := min(each, p.state.Size-from)
		content := blobs.ContextReader(ctx, io.NewSectionReader(p.file, from, n))
		sum := crc32.New(castagnoli)
		if got, err := io.Copy(sum, content); ctx.Err() != nil {
			return ctx.Err()
		} else if err != nil || got != n || sum.Sum32() != want {
			gap = true
			if _, err := index.WriteAt(make([]byte, pieceEntry), int64(i)*pieceEntry); err != nil {
				return err
			}
			continue
		}
		p.count(n)
		if gap {
			continue
		}
		if _, err := io.Copy(p.sums(), io.NewSectionReader(p.file, from, n)); err != nil {
			return err
		}
		p.at = from + n
	}
	return nil
}

// take gives a piece to a connection.
func (q *pieces) take() (int, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.next < len(q.here) && q.here[q.next] {
		q.next++
	}
	if q.next == len(q.here) {
		return 0, false
	}
	i := q.next
	for q.next++; q.next < len(q.here) && q.here[q.next]; q.next++ {
	}
	if q.next == len(q.here) {
		close(q.over)
	}
	return i, true
}

func (q *pieces) missing() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, h := range q.here {
		if !h {
			n++
		}
	}
	return n
}

// put puts a piece on record whose bytes are in the file.
func (q *pieces) put(i int, sum uint32) error {
	if _, err := q.index.WriteAt(entry(sum), int64(i)*pieceEntry); err != nil {
		return fmt.Errorf("%s: %w", q.p.path, err)
	}
	q.mu.Lock()
	q.here[i] = true
	q.mu.Unlock()
	select {
	case q.woken <- struct{}{}:
	default:
	}
	return nil
}

// follow hashes the pieces in order as they come, until all are hashed.
func (q *pieces) follow(ctx context.Context) error {
	for q.p.at < q.size {
		q.mu.Lock()
		ready := q.here[q.p.at/q.each]
		q.mu.Unlock()
		if !ready {
			select {
			case <-q.woken:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		n := min(q.each, q.size-q.p.at)
		got, err := io.Copy(q.p.sums(), blobs.ContextReader(ctx, io.NewSectionReader(q.p.file, q.p.at, n)))
		if err == nil && got != n {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("%s: %w", q.p.path, err)
		}
		q.p.at += n
	}
	return nil
}
