package tracing

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip" // exports may be compressed
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// newSender makes the sender for c's endpoint. It connects when it sends.
func newSender(_ context.Context, c Config) (sender, error) {
	t, err := c.target()
	if err != nil {
		return nil, err
	}
	secure, err := c.TLS.load()
	if err != nil {
		return nil, err
	}
	if t.protocol == ProtocolHTTP {
		transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: secure, MaxConnsPerHost: 1,
			IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true, MaxResponseHeaderBytes: maxAnswerBytes}
		return &httpSender{config: c, url: t.url, client: &http.Client{Transport: transport, CheckRedirect: noRedirect}}, nil
	}
	plain := insecure.NewCredentials()
	if t.secure {
		plain = credentials.NewTLS(secure)
	}
	conn, err := grpc.NewClient(t.address, grpc.WithTransportCredentials(plain),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes), grpc.ForceCodec(rawCodec{})))
	if err != nil {
		return nil, fmt.Errorf("tracing: endpoint %q: %w", c.Endpoint, err)
	}
	return &grpcSender{config: c, conn: conn}, nil
}

// maxAnswerBytes bounds a collector's answer.
const maxAnswerBytes = 64 << 10

// noRedirect refuses redirects, so that spans and their headers go to the endpoint
// alone.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// load reads the certificates.
func (c TLSConfig) load() (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		text, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("tracing: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("tracing: %s holds no certificate in PEM", c.CAFile)
		}
	}
	if c.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("tracing: client certificate: %w", err)
		}
		out.Certificates = []tls.Certificate{pair}
	}
	return out, nil
}

// httpSender speaks OTLP over HTTP.
type httpSender struct {
	config Config
	url    string
	client *http.Client
}

func (s *httpSender) close() { s.client.CloseIdleConnections() }

func (s *httpSender) send(ctx context.Context, request []byte) error {
	if s.config.Gzip {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		_, _ = w.Write(request) // a buffer takes all
		_ = w.Close()
		request = out.Bytes()
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(request))
	if err != nil {
		return err
	}
	for name, value := range s.config.Headers {
		r.Header.Set(name, value)
	}
	r.Header.Set("Content-Type", "application/x-protobuf")
	if s.config.Gzip {
		r.Header.Set("Content-Encoding", "gzip")
	}
	answer, err := s.client.Do(r)
	if err != nil {
		return &retryError{err: err}
	}
	defer func() { _ = answer.Body.Close() }() // only read from
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswerBytes))
	switch answer.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		seconds, _ := strconv.Atoi(answer.Header.Get("Retry-After"))
		return &retryError{fmt.Errorf("%s answers %s", s.url, answer.Status), time.Duration(min(max(seconds, 0), 3600)) * time.Second}
	}
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("%s answers %s", s.url, answer.Status)
	}
	if err != nil || !strings.HasPrefix(answer.Header.Get("Content-Type"), "application/x-protobuf") {
		return nil // it was taken
	}
	return rejected(body)
}

// grpcSender speaks OTLP over gRPC.
type grpcSender struct {
	config Config
	conn   *grpc.ClientConn
}

func (s *grpcSender) close() { _ = s.conn.Close() }

const exportMethod = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

func (s *grpcSender) send(ctx context.Context, request []byte) error {
	for name, value := range s.config.Headers {
		ctx = metadata.AppendToOutgoingContext(ctx, name, value)
	}
	var options []grpc.CallOption
	if s.config.Gzip {
		options = append(options, grpc.UseCompressor("gzip"))
	}
	var answer []byte
	err := s.conn.Invoke(ctx, exportMethod, request, &answer, options...)
	switch status.Code(err) {
	case codes.OK:
		return rejected(answer)
	case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.OutOfRange, codes.Unavailable, codes.DataLoss, codes.ResourceExhausted:
		return &retryError{err: err}
	}
	return err
}

// rawCodec passes messages as the bytes they are.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) ([]byte, error) {
	b, ok := v.([]byte)
	if !ok {
		return nil, errors.New("not bytes")
	}
	return b, nil
}

func (rawCodec) Unmarshal(data []byte, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return errors.New("not bytes")
	}
	*b = append([]byte(nil), data...)
	return nil
}

// rejected returns the error in an answer that accepts only some of the spans:
// ExportTraceServiceResponse.partial_success.
func rejected(answer []byte) error {
	partial, _ := field(answer, 1)
	_, n := field(partial, 1)
	reason, _ := field(partial, 2)
	if n == 0 {
		return nil
	}
	return fmt.Errorf("the collector rejected %d spans: %s", n, reason)
}

// field finds a field of bytes or a varint in a message.
func field(m []byte, number protowire.Number) (value []byte, n uint64) {
	for len(m) > 0 {
		found, kind, size := protowire.ConsumeTag(m)
		if size < 0 {
			break
		}
		m = m[size:]
		switch kind {
		case protowire.BytesType:
			b, size := protowire.ConsumeBytes(m)
			if size < 0 {
				return value, n
			}
			if found == number {
				value = b
			}
			m = m[size:]
		default:
			size := protowire.ConsumeFieldValue(found, kind, m)
			if size < 0 {
				return value, n
			}
			if found == number && kind == protowire.VarintType {
				n, _ = protowire.ConsumeVarint(m)
			}
			m = m[size:]
		}
	}
	return value, n
}
