package rawgrpc

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// maxOwnBytes bounds what a call of one of the gateway's own methods may send over the HTTP
// port, and each of its messages, decompressed: gRPC's library reads all of it, whoever
// waits for it.
const maxOwnBytes = 1 << 20

// ContentType begins the content type of every call over gRPC.
const ContentType = "application/grpc"

// IsCall reports whether a request is a call over gRPC.
func IsCall(r *http.Request) bool {
	rest, ok := strings.CutPrefix(r.Header.Get("Content-Type"), ContentType)
	return ok && r.ProtoMajor == 2 && r.Method == http.MethodPost && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

// ServeHTTP answers a call that came over the gateway's HTTP port. Messages that are
// forwarded are read as they are asked for, so that a client is no faster than its replica;
// gRPC's own handler would read ahead without bound.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.upstreams.enter()
	defer s.upstreams.leave()
	if !s.calls.enter(r.RemoteAddr, int(s.cfg.MaxCalls)) {
		refuseHTTP(w, codes.ResourceExhausted, fmt.Sprintf("the connection has %d calls under way already: send fewer at a time", s.cfg.MaxCalls))
		return
	}
	defer s.calls.leave(r.RemoteAddr)
	method := r.URL.Path
	h, err := newHTTPStream(w, r, s)
	if err != nil {
		refuseHTTP(w, codes.Internal, err.Error())
		return
	}
	defer h.cancel()
	switch passes := s.passes(h.ctx, method); {
	case s.own[method] && !passes:
		r.Body = http.MaxBytesReader(w, r.Body, maxOwnBytes)
		s.web.ServeHTTP(w, r)
		return
	case unaryForwards[method] && !passes:
		ctx := grpc.NewContextWithServerTransportStream(h.ctx, transportOf{h, method})
		_ = h.rc.SetReadDeadline(time.Now().Add(s.cfg.RequestTimeout)) // not every ResponseWriter has one
		var reply any
		if reply, err = s.newCall(ctx, method).answer(h.RecvMsg); err == nil {
			err = h.SendMsg(reply)
		}
	case streamForwards[method] && !passes:
		err = s.stream(h, s.newCall(h.ctx, method))
	default:
		err = s.pass(h, method, passes && (s.own[method] || unaryForwards[method] || streamForwards[method]))
	}
	h.finish(err)
}

// refuseHTTP answers a call with a status alone.
func refuseHTTP(w http.ResponseWriter, code codes.Code, message string) {
	h := w.Header()
	h.Set("Content-Type", ContentType)
	h.Set("Grpc-Status", strconv.Itoa(int(code)))
	h.Set("Grpc-Message", percentEncoded(message))
	w.WriteHeader(http.StatusOK)
}

// Refuse answers a call that may not be made.
func Refuse(w http.ResponseWriter, message string) { refuseHTTP(w, codes.PermissionDenied, message) }

// httpStream is a call over net/http, whose messages are frames and answers. One goroutine
// may receive while another sends.
type httpStream struct {
	w       http.ResponseWriter
	rc      *http.ResponseController
	r       *http.Request
	ctx     context.Context
	cancel  context.CancelFunc
	max     int           // bytes of a message
	timeout time.Duration // for the client to read one

	receiving sync.Mutex // held while a message is read
	sending   sync.Mutex // guards the rest
	begun     bool       // the header is sent
	over      bool       // w is not to be used any more
	header    metadata.MD
	trailer   metadata.MD
}

func newHTTPStream(w http.ResponseWriter, r *http.Request, s *Server) (*httpStream, error) {
	md := make(metadata.MD, len(r.Header)+1)
	for name, values := range r.Header {
		key := strings.ToLower(name)
		for _, v := range values {
			if strings.HasSuffix(key, binarySuffix) {
				plain, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(v, "="))
				if err != nil {
					return nil, fmt.Errorf("the metadata %s is not in base64", key)
				}
				v = string(plain)
			}
			md[key] = append(md[key], v)
		}
	}
	md[keyAuthority] = []string{r.Host}
	p := &peer.Peer{Addr: clientAt(r.RemoteAddr)}
	if r.TLS != nil {
		p.AuthInfo = credentials.TLSInfo{State: *r.TLS}
	}
	h := &httpStream{w: w, rc: http.NewResponseController(w), r: r, max: s.cfg.MaxMessageBytes, timeout: s.cfg.ClientTimeout}
	h.ctx = metadata.NewIncomingContext(peer.NewContext(r.Context(), p), md)
	text := r.Header.Get("Grpc-Timeout")
	if text == "" {
		h.ctx, h.cancel = context.WithCancel(h.ctx)
		return h, nil
	}
	limit, ok := timeoutOf(text)
	if !ok {
		return nil, errors.New("grpc-timeout is not a number of at most 8 digits and a unit")
	}
	h.ctx, h.cancel = context.WithTimeout(h.ctx, limit)
	return h, nil
}

// clientAt is the address of a client.
type clientAt string

// Network and String are the address's.
func (clientAt) Network() string  { return "tcp" }
func (a clientAt) String() string { return string(a) }

var _ net.Addr = clientAt("")

// binarySuffix ends the names of metadata that is sent in base64.
const binarySuffix = "-bin"

// timeoutOf reads grpc-timeout; false for one that is none.
func timeoutOf(text string) (time.Duration, bool) {
	units := map[byte]time.Duration{'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond}
	end := len(text) - 1
	if end < 1 || end > 8 || units[text[end]] == 0 {
		return 0, false
	}
	n, err := strconv.ParseUint(text[:end], 10, 32)
	if err != nil {
		return 0, false
	}
	const most = 1<<63 - 1
	if unit := units[text[end]]; n <= most/uint64(unit) {
		return time.Duration(n) * unit, true
	}
	return most, true
}

// percentEncoded is a message as grpc-message has it.
func percentEncoded(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c >= ' ' && c <= '~' && c != '%' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// Context is the call's.
func (h *httpStream) Context() context.Context { return h.ctx }

// SetHeader adds to the metadata before the answer.
func (h *httpStream) SetHeader(md metadata.MD) error {
	h.sending.Lock()
	defer h.sending.Unlock()
	if h.begun || h.over {
		return errors.New("the header was sent")
	}
	h.header = metadata.Join(h.header, md)
	return nil
}

// SendHeader sends the metadata before the answer.
func (h *httpStream) SendHeader(md metadata.MD) error {
	if err := h.SetHeader(md); err != nil {
		return err
	}
	h.sending.Lock()
	defer h.sending.Unlock()
	h.begin()
	return h.rc.Flush()
}

// SetTrailer adds to the metadata after the answer.
func (h *httpStream) SetTrailer(md metadata.MD) {
	h.sending.Lock()
	defer h.sending.Unlock()
	h.trailer = metadata.Join(h.trailer, md)
}

// begin sends the header. The lock is held.
func (h *httpStream) begin() {
	if h.begun {
		return
	}
	h.begun = true
	out := h.w.Header()
	out["Content-Type"] = h.r.Header["Content-Type"][:1]
	put(out, "", h.header)
	h.w.WriteHeader(http.StatusOK)
}

// put adds metadata to a header, the names with a prefix.
func put(out http.Header, prefix string, md metadata.MD) {
	for name, values := range md {
		if !passes(name) {
			continue
		}
		for _, v := range values {
			if strings.HasSuffix(name, binarySuffix) {
				v = base64.RawStdEncoding.EncodeToString([]byte(v))
			}
			out[prefix+textproto.CanonicalMIMEHeaderKey(name)] = append(out[prefix+textproto.CanonicalMIMEHeaderKey(name)], v)
		}
	}
}

// SendMsg sends an answer, and waits until the client's window has room for it.
func (h *httpStream) SendMsg(m any) error {
	a, ok := m.(*answer)
	if !ok {
		return errorf(codes.Internal, "%T is no answer", m)
	}
	parts := a.take()
	defer parts.Free()
	h.sending.Lock()
	defer h.sending.Unlock()
	// A deadline that stays would end a stream that pauses.
	_ = h.rc.SetWriteDeadline(time.Now().Add(h.timeout)) // not every ResponseWriter has one
	h.begin()
	var head [5]byte
	binary.BigEndian.PutUint32(head[1:], uint32(parts.Len()))
	_, err := h.w.Write(head[:])
	for _, p := range parts {
		if err == nil {
			_, err = h.w.Write(p.ReadOnlyData())
		}
	}
	if err == nil {
		err = h.rc.Flush()
	}
	_ = h.rc.SetWriteDeadline(time.Time{})
	if err != nil {
		return h.broken(err)
	}
	return nil
}

// broken is the status of a call whose client is gone, or sends what is no message.
func (h *httpStream) broken(err error) error {
	switch {
	case h.ctx.Err() != nil:
		return status.FromContextError(h.ctx.Err()).Err()
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errorf(codes.Internal, "a message is cut off")
	}
	return errorf(codes.Canceled, "%v", err)
}

// RecvMsg reads the next message into a frame; io.EOF after the last.
func (h *httpStream) RecvMsg(m any) error {
	f, ok := m.(*frame)
	if !ok {
		return errorf(codes.Internal, "%T is no frame", m)
	}
	h.receiving.Lock()
	defer h.receiving.Unlock()
	var head [5]byte
	if _, err := io.ReadFull(h.r.Body, head[:]); errors.Is(err, io.EOF) {
		return io.EOF
	} else if err != nil {
		return h.broken(err)
	}
	size := binary.BigEndian.Uint32(head[1:])
	if uint64(size) > uint64(h.max) {
		return h.tooLong()
	}
	if head[0] > 1 {
		return errorf(codes.Internal, "a message begins with the flag %d, which is none", head[0])
	}
	parts, err := readParts(h.r.Body, int(size), f.held)
	switch {
	case err == nil && parts.Len() < int(size):
		err = h.broken(io.ErrUnexpectedEOF)
	case err == nil && head[0] == 1:
		compressed := parts
		parts, err = h.decompressed(compressed, f.held)
		compressed.Free()
		f.held.back(int(size))
	case err != nil && !isFull(err):
		err = h.broken(err)
	}
	if err != nil {
		parts.Free()
		f.held.give()
		if isFull(err) {
			h.SetTrailer(later())
		}
		return err
	}
	f.parts = parts
	return nil
}

func isFull(err error) bool { return errors.Is(err, errNoMemory) || errors.Is(err, errNoShare) }

func (h *httpStream) tooLong() error {
	return errorf(codes.ResourceExhausted, "a message is longer than %d bytes", h.max)
}

// partBytes is the longest piece in which a message is read: memory is used as it arrives,
// not as its length says.
const partBytes = 32 << 10

// readParts reads up to size bytes, fewer where r ends, and takes them of the budget before
// it reads them. The caller frees the parts, and gives back what they hold, after an error
// too.
func readParts(r io.Reader, size int, held *share) (parts mem.BufferSlice, err error) {
	pool := mem.DefaultBufferPool()
	for size > 0 {
		most := min(size, partBytes)
		if err := held.take(most); err != nil {
			return parts, err
		}
		b := pool.Get(most)
		n, err := readUpTo(r, *b)
		held.back(most - n)
		if n < most { // what is kept takes no more than it needs
			fit := pool.Get(n)
			copy(*fit, *b)
			pool.Put(b)
			b = fit
		}
		parts, size = append(parts, mem.NewBuffer(b, pool)), size-n
		if errors.Is(err, io.EOF) {
			return parts, nil
		} else if err != nil {
			return parts, err
		}
	}
	return parts, nil
}

// readUpTo fills b, or says why it could not. Unlike io.ReadFull it tells the end of r from
// a stream that is cut off.
func readUpTo(r io.Reader, b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var more int
		more, err = r.Read(b[n:])
		n += more
	}
	if n == len(b) {
		err = nil
	}
	return n, err
}

// decompressed is a message that the client has compressed. The caller frees it after an
// error, too.
func (h *httpStream) decompressed(parts mem.BufferSlice, held *share) (mem.BufferSlice, error) {
	name := h.r.Header.Get("Grpc-Encoding")
	c := encoding.GetCompressor(name)
	if c == nil {
		return nil, errorf(codes.Unimplemented, "messages in the encoding %q are not read: send them in gzip or as they are", name)
	}
	r, err := c.Decompress(parts.Reader())
	if err != nil {
		return nil, errorf(codes.Internal, "a message is not in the encoding %s: %v", name, err)
	}
	out, err := readParts(r, h.max+1, held)
	switch {
	case err != nil && !isFull(err):
		err = errorf(codes.Internal, "a message is not in the encoding %s: %v", name, err)
	case out.Len() > h.max:
		err = h.tooLong()
	}
	return out, err
}

// finish ends the call with a status. Whoever still reads the client's messages is told
// that there are no more.
func (h *httpStream) finish(err error) {
	h.cancel()
	_ = h.r.Body.Close()
	h.receiving.Lock() // waits for who reads
	defer h.receiving.Unlock()
	h.sending.Lock()
	defer h.sending.Unlock()
	h.over = true
	h.begin()
	_ = h.rc.Flush() // fails for a client that is gone, as all that follows
	st := status.Convert(err)
	out := h.w.Header()
	put(out, http.TrailerPrefix, h.trailer)
	out.Set(http.TrailerPrefix+"Grpc-Status", strconv.Itoa(int(st.Code())))
	if m := st.Message(); m != "" {
		out.Set(http.TrailerPrefix+"Grpc-Message", percentEncoded(m))
	}
	if p := st.Proto(); len(p.GetDetails()) > 0 {
		if details, err := proto.Marshal(p); err == nil {
			out.Set(http.TrailerPrefix+"Grpc-Status-Details-Bin", base64.RawStdEncoding.EncodeToString(details))
		}
	}
}

// transportOf is a stream as handlers of unary calls set its metadata.
type transportOf struct {
	*httpStream
	method string
}

// Method is the call's.
func (t transportOf) Method() string { return t.method }

// SetTrailer adds to the metadata after the answer.
func (t transportOf) SetTrailer(md metadata.MD) error {
	t.httpStream.SetTrailer(md)
	return nil
}
