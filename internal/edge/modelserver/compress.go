package modelserver

import (
	"compress/gzip"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// minGzip is the shortest answer that is compressed, in bytes, as MLServer's.
const minGzip = 500

var gzipWriters = sync.Pool{New: func() any {
	z, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // the level is one it knows
	return z
}}

// acceptsGzip reports whether a client asks for gzip: names it, or *, without
// a quality of 0.
func acceptsGzip(h http.Header) bool {
	accepted := false
	for _, line := range h["Accept-Encoding"] {
		for item := range strings.SplitSeq(line, ",") {
			name, parameters, _ := strings.Cut(item, ";")
			name = strings.ToLower(strings.TrimSpace(name))
			if name != "gzip" && name != "*" {
				continue
			}
			accepted = !refused(parameters)
			if name == "gzip" {
				return accepted // it wins over *
			}
		}
	}
	return accepted
}

// refused reports whether parameters hold a quality of 0.
func refused(parameters string) bool {
	_, value, ok := strings.Cut(strings.ReplaceAll(strings.ToLower(parameters), " ", ""), "q=")
	q, err := strconv.ParseFloat(value, 64)
	return ok && err == nil && q == 0
}

// alwaysBuffered is the largest answer, in bytes, that a connection takes at
// once even if its client does not read: less than any system's socket buffer.
const alwaysBuffered = 4 << 10

// send writes a JSON or binary answer in parts, compressed if the client wants
// and it is worth it.
func (c wire) send(w http.ResponseWriter, r *http.Request, parts ...[]byte) {
	c.sendStatus(w, r, http.StatusOK, parts...)
}

// sendStatus is send with a status of its own.
func (c wire) sendStatus(w http.ResponseWriter, r *http.Request, status int, parts ...[]byte) {
	size := 0
	for _, part := range parts {
		size += len(part)
	}
	h := w.Header()
	if c.gzip && size >= minGzip && h.Get("Content-Encoding") == "" {
		h.Add("Vary", "Accept-Encoding")
		if acceptsGzip(r.Header) {
			b := newBuffer()
			defer b.free()
			b.data = compress(b.data, parts)
			h["Content-Encoding"] = []string{"gzip"}
			parts, size = [][]byte{b.data}, len(b.data)
		}
	}
	h["Content-Length"] = []string{strconv.Itoa(size)}
	c.inTime(w, size, func() {
		w.WriteHeader(status)
		for _, part := range parts {
			if _, err := w.Write(part); err != nil {
				return // a client that left needs no answer
			}
		}
	})
}

// appender is a slice to write to.
type appender struct{ data []byte }

func (a *appender) Write(p []byte) (int, error) {
	a.data = append(a.data, p...)
	return len(p), nil
}

// compress appends the gzip form of parts to dst.
func compress(dst []byte, parts [][]byte) []byte {
	out := &appender{slices.Grow(dst, minGzip)}
	z := gzipWriters.Get().(*gzip.Writer)
	defer gzipWriters.Put(z)
	z.Reset(out)
	for _, part := range parts {
		_, _ = z.Write(part) // an appender takes everything
	}
	_ = z.Close()
	return out.data
}

// inTime lets write send size bytes within the time for it. Few answers are
// long enough to wait, so few pay for a deadline.
func (c wire) inTime(w http.ResponseWriter, size int, write func()) {
	if size <= alwaysBuffered {
		write()
		return
	}
	control := http.NewResponseController(w)
	// A writer without deadlines, as in tests, is not a connection.
	bounded := control.SetWriteDeadline(time.Now().Add(c.writeTimeout)) == nil
	write()
	if bounded && control.Flush() == nil {
		_ = control.SetWriteDeadline(time.Time{}) // the next answer sets its own
	}
}
