package artifact

import (
	"cmp"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"roundhouse.dev/roundhouse/internal/edge/blobs"
)

// downloader brings bytes from sources into the partial folders.
type downloader struct {
	requests    *requester
	folder      *folder
	retention   *retention
	blobs       *blobs.Store  // of the cache that is the Hub; may be nil
	slots       chan struct{} // one token per connection that brings bytes
	connections int           // of one object
	pieceBytes  int64
	maxBytes    int64
}

// transfer is the download of one artifact.
type transfer struct {
	*downloader
	loc   location
	src   source
	meter *meter
}

// downloadAll brings every object into the location's partial folder and
// returns the objects with their sizes, validators and digests.
func (t *transfer) downloadAll(ctx context.Context, objects []object) ([]object, error) {
	dir := t.folder.partialDir(t.loc)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	var need, total int64
	for _, o := range objects {
		have := int64(0)
		if info, err := os.Stat(partPath(dir, o.Name)); err == nil {
			have = stored(info)
		}
		need += max(o.Size-max(have, t.inBlobs(o)), 0)
		total += max(o.Size, 0)
	}
	t.meter.add(0, total)
	if err := t.folder.checkSpace(need); err != nil {
		return nil, err
	}
	out := make([]object, len(objects))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(cap(t.slots))
	for i, o := range objects {
		g.Go(func() error {
			select {
			case t.slots <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
			defer func() { <-t.slots }()
			var err error
			out[i], err = t.download(ctx, o)
			return err
		})
	}
	return out, g.Wait()
}

// download brings one object, resuming what an earlier attempt left.
func (t *transfer) download(ctx context.Context, o object) (object, error) {
	p, err := t.openPart(ctx, o)
	if err != nil {
		return o, err
	}
	err = t.bring(ctx, p)
	if err = errors.Join(err, p.close()); err != nil {
		return o, err
	}
	if p.linked {
		return t.takeLinked(ctx, p)
	}
	o.Size, o.Validator = p.at, p.state.Validator
	o.SHA256 = hex.EncodeToString(p.sha.Sum(nil))
	err = checkDigest(t.loc, o.SHA256)
	if err == nil {
		err = p.checkSums(t.loc)
	}
	if err == nil {
		err = checkOID(ctx, t.loc, o, p.path)
	}
	if err != nil {
		_ = os.Remove(p.path)
	}
	return o, err
}

// bring fetches what is missing of a part: from its end on over one connection,
// or where it is large and the source sends ranges, over several.
func (t *transfer) bring(ctx context.Context, p *part) error {
	split := p.state.Piece > 0 && p.at < p.state.Size || splits(t.src) && t.splittable(p)
	for {
		var err error
		if split {
			err = t.inPieces(ctx, p)
		} else {
			err = t.inOne(ctx, p)
		}
		switch {
		case errors.Is(err, errSplit):
			split = true
		case errors.Is(err, errNoRanges):
			split, p.whole = false, true
		default:
			return err
		}
	}
}

// inOne downloads the rest of an object over one connection; it returns
// errSplit if the rest can be downloaded in pieces.
func (t *transfer) inOne(ctx context.Context, p *part) error {
	best := p.counted.Load()
	return t.requests.retry(ctx, func() error { return t.attempt(ctx, p) }, func() bool {
		at := p.counted.Load()
		further := at >= best+minProgress
		best = max(best, at)
		return further
	})
}

// errSplit ends a body early: the rest comes in pieces.
var errSplit = errors.New("the rest comes in pieces")

// checkOID compares a file with the digest that its listing promised.
func checkOID(ctx context.Context, loc location, o object, at string) error {
	got := o.SHA256
	if len(o.oid) == 2*sha1.Size {
		f, err := os.Open(at)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		h := sha1.New()
		_, _ = fmt.Fprintf(h, "blob %d\x00", o.Size)
		if _, err := io.Copy(h, blobs.ContextReader(ctx, f)); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		got = hex.EncodeToString(h.Sum(nil))
	}
	if o.oid == "" || o.oid == got {
		return nil
	}
	return fmt.Errorf("%s: %s arrived with the digest %s instead of %s; fetch again", loc, o.Name, got, clip(o.oid))
}

// minProgress is how many new bytes make an attempt worth not counting.
const minProgress = 64 << 10

// attempt asks for the rest of an object once.
func (t *transfer) attempt(ctx context.Context, p *part) error {
	if p.complete() {
		return nil
	}
	ctx, w := watch(ctx, t.requests.stall)
	defer w.stop()
	want := p.object
	want.Validator = p.state.Validator
	req, err := t.src.request(ctx, t.loc, want, p.at)
	if err != nil {
		return err
	}
	// Bytes are stored as they are; a transfer coding would break offsets.
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := t.requests.send(req, t.loc.String(), sourceHints(t.src))
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	p.heard(resp.Header)
	size, err := p.accept(resp, t.loc)
	if err != nil {
		return err
	}
	if p.finished {
		return nil
	}
	if t.follows(p, resp) {
		return t.follow(ctx, p, resp.Body, w)
	}
	if err := t.admit(p, size); err != nil {
		return err
	}
	if stop := t.boundary(p, resp); stop > 0 {
		if err := t.drain(ctx, p, io.LimitReader(resp.Body, stop-p.at), w); err != nil || p.at < stop {
			return cmp.Or(err, errUnreachable)
		}
		return errSplit
	}
	if err := t.drain(ctx, p, resp.Body, w); err != nil {
		return err
	}
	if p.state.Size >= 0 && p.at != p.state.Size {
		return fmt.Errorf("%s: ended after %d of %d bytes: %w", t.loc, p.at, p.state.Size, errUnreachable)
	}
	p.finished = true
	return nil
}

// admit checks the size an answer promises and makes the part resumable.
func (t *transfer) admit(p *part, size int64) error {
	if p.object.Size >= 0 && size >= 0 && size != p.object.Size {
		return fmt.Errorf("%s: %s has %d bytes where %d were listed: %w", t.loc, p.object.Name, size, p.object.Size, errChanged)
	}
	if size > t.maxBytes {
		return fmt.Errorf("%s: %s is larger than %s (maxBytes)", t.loc, formatBytes(size), formatBytes(t.maxBytes))
	}
	if size >= 0 {
		if p.object.Size < 0 { // no listing said it
			if _, err := t.retention.reserve(t.loc.key(), t.loc.String(), size, 0); err != nil {
				return err
			}
		}
		if err := t.folder.checkSpace(size - p.at); err != nil {
			return err
		}
	}
	return p.expect(size)
}

// drain copies a body to the part.
func (t *transfer) drain(ctx context.Context, p *part, body io.Reader, w *watchdog) error {
	buf := make([]byte, 256<<10)
	for {
		if err := ctx.Err(); err != nil {
			return transportError(ctx, t.loc.String(), err)
		}
		n, rerr := body.Read(buf)
		if n > 0 {
			w.feed()
			if err := t.store(p, buf[:n]); err != nil {
				return err
			}
		}
		if errors.Is(rerr, io.EOF) {
			return nil
		}
		if rerr != nil {
			return transportError(ctx, t.loc.String(), rerr)
		}
	}
}

func (t *transfer) store(p *part, b []byte) error {
	end := p.at + int64(len(b))
	if p.state.Size >= 0 && end > p.state.Size {
		return fmt.Errorf("%s: %s brought more than the promised %d bytes", t.loc, p.object.Name, p.state.Size)
	}
	if end > t.maxBytes {
		return fmt.Errorf("%s: larger than %s (maxBytes)", t.loc, formatBytes(t.maxBytes))
	}
	if err := p.write(b); err != nil {
		return t.folder.explainWrite(err, p.state.Size-p.at)
	}
	return nil
}

// accept checks that an answer continues the part, or starts it over, and
// returns the size of the whole object, -1 when unknown.
func (p *part) accept(resp *http.Response, loc location) (size int64, err error) {
	switch resp.StatusCode {
	case http.StatusOK:
		if enc := resp.Header.Get("Content-Encoding"); enc != "" && enc != "identity" && !strings.HasSuffix(p.object.Name, "gz") {
			return 0, fmt.Errorf("%s: the server sends the file with Content-Encoding %s; store it unencoded", loc, enc)
		}
		if err := p.restart(); err != nil {
			return 0, err
		}
		p.state.Validator = cmp.Or(p.object.Validator, responseValidator(resp.Header))
		return resp.ContentLength, nil
	case http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable:
		return p.acceptRange(resp, loc)
	}
	return 0, &answerError{uri: loc.String(), status: resp.StatusCode, hint: "unexpected answer"}
}

// acceptRange handles the answers to a Range. One that does not continue the
// part exactly makes the next attempt begin at byte 0.
func (p *part) acceptRange(resp *http.Response, loc location) (int64, error) {
	start, total := parseContentRange(resp.Header.Get("Content-Range"))
	if resp.StatusCode == http.StatusRequestedRangeNotSatisfiable && total == p.at && p.at > 0 {
		p.finished = true // the killed attempt had everything
		return total, nil
	}
	known := p.state.Size
	same := p.object.Validator != "" || p.state.Validator == responseValidator(resp.Header)
	if resp.StatusCode == http.StatusPartialContent && start == p.at && total >= p.at && same && (known < 0 || known == total) {
		return total, nil
	}
	if err := p.restart(); err != nil {
		return 0, err
	}
	return 0, fmt.Errorf("%s: the server's range does not continue the download: %w", loc, errUnreachable)
}

// parseContentRange reads "bytes 5-9/10" and "bytes */10"; what is absent or
// malformed is -1.
func parseContentRange(h string) (start, total int64) {
	rest, ok := strings.CutPrefix(h, "bytes ")
	if !ok {
		return -1, -1
	}
	span, size, _ := strings.Cut(rest, "/")
	first, _, _ := strings.Cut(span, "-")
	return parseSize(first), parseSize(size)
}

func parseSize(s string) int64 {
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v < 0 {
		return -1
	}
	return v
}

// responseValidator prefers a strong ETag, the only kind that may condition a
// range, then the modification date.
func responseValidator(h http.Header) string {
	if tag := h.Get("ETag"); strings.HasPrefix(tag, `"`) {
		return tag
	}
	if date := h.Get("Last-Modified"); date != "" {
		return date
	}
	return h.Get("ETag")
}

func partPath(dir, name string) string {
	return filepath.Join(dir, digest(name)[:16]+".part")
}

// linkPath is where an object lies that arrived as a link: never under the name
// of a part, which may be written to.
func linkPath(dir, name string) string {
	return filepath.Join(dir, digest(name)[:16]+".blob")
}

// arrived is where an object lies, below a partial folder.
func (o object) arrived(dir string) string {
	if o.linked {
		return linkPath(dir, o.Name)
	}
	return partPath(dir, o.Name)
}

// inBlobs is how much of an object the Hub's cache has, and need not be written.
func (t *downloader) inBlobs(o object) int64 {
	if t.blobs == nil || !blobs.IsHash(o.oid) {
		return 0
	}
	return t.blobs.Linkable(o.oid, t.folder.dir)
}

// follows reports whether the cache that answers keeps the object, or is just
// downloading it: then it need not be written a second time.
func (t *transfer) follows(p *part, resp *http.Response) bool {
	hub, ok := t.src.(*hfSource)
	if !ok || t.blobs == nil || p.unlinkable || !blobs.IsHash(p.object.oid) || !hub.answersItself(resp) {
		return false
	}
	return t.blobs.Arriving(p.object.oid)
}

// follow waits for the cache to have the whole object, reading what it sends to
// know how far it is, and links to it.
func (t *transfer) follow(ctx context.Context, p *part, body io.Reader, w *watchdog) error {
	hash := p.object.oid
	_, whole, _ := t.blobs.Has(hash)
	buf := make([]byte, 256<<10)
	for !whole {
		n, err := body.Read(buf)
		if n > 0 {
			w.feed()
			p.count(int64(n))
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return transportError(ctx, t.loc.String(), err)
		}
	}
	err := t.blobs.Await(ctx, hash, w.feed)
	if err == nil {
		err = t.blobs.Link(ctx, hash, p.object.Size, p.linkPath())
	}
	if err != nil {
		p.unlinkable = true
		return fmt.Errorf("%s: %s: the cache of the Hub does not have it after all (%w): %w", t.loc, p.object.Name, err, errUnreachable)
	}
	p.count(p.object.Size - p.counted.Load())
	p.linked, p.finished = true, true
	return nil
}

// takeLinked describes an object that arrived as a link. The blob was verified
// against the digest that the listing promised.
func (t *transfer) takeLinked(ctx context.Context, p *part) (object, error) {
	o := p.object
	o.linked, o.SHA256 = true, o.oid
	if len(o.oid) != 2*sha256.Size {
		var err error
		if o.SHA256, err = hashFile(ctx, p.linkPath()); err != nil {
			return o, err
		}
	}
	return o, checkDigest(t.loc, o.SHA256)
}
