package oip

import (
	"compress/zlib"
	"io"
	"sync"

	"google.golang.org/grpc/encoding"
)

// deflate is gRPC's compression of that name, which its C++ family offers beside
// gzip: zlib's format (RFC 1950) around deflate's.
type deflate struct{ writers sync.Pool }

func init() { encoding.RegisterCompressor(&deflate{}) }

// Name is what requests call it.
func (*deflate) Name() string { return "deflate" }

// Compress starts a message.
func (d *deflate) Compress(w io.Writer) (io.WriteCloser, error) {
	z, ok := d.writers.Get().(*zlib.Writer)
	if !ok {
		return &deflateWriter{zlib.NewWriter(w), d}, nil
	}
	z.Reset(w)
	return &deflateWriter{z, d}, nil
}

// Decompress starts to read a message, whose size the server bounds.
func (*deflate) Decompress(r io.Reader) (io.Reader, error) { return zlib.NewReader(r) }

// deflateWriter gives its writer back at the end of the message.
type deflateWriter struct {
	*zlib.Writer
	of *deflate
}

// Close ends the message.
func (w *deflateWriter) Close() error {
	err := w.Writer.Close()
	w.of.writers.Put(w.Writer)
	return err
}
