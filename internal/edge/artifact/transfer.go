package artifact

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"roundhouse.dev/roundhouse/internal/core/network"
)

var (
	// errUnreachable marks failures that say nothing about the artifact: the
	// network, or a server in trouble. They are retried.
	errUnreachable = errors.New("source unreachable")
	// errChanged marks an object that changed between listing and download.
	errChanged = errors.New("changed at the source during the download")
	errStalled = errors.New("no byte arrived in time")
)

// answerError is an answer other than the one asked for.
type answerError struct {
	uri    string // redacted
	status int
	detail string        // what the server said, bounded; may be empty
	hint   string        // what to do
	after  time.Duration // Retry-After, or 0
	region string        // where S3 says the bucket is; may be empty
	moved  bool          // the answer means that the object changed
}

func (e *answerError) Error() string {
	msg := fmt.Sprintf("%s: %d %s", e.uri, e.status, http.StatusText(e.status))
	if e.detail != "" {
		msg += " (" + e.detail + ")"
	}
	if e.hint != "" {
		msg += ": " + e.hint
	}
	return msg
}

func (e *answerError) Is(target error) bool {
	switch target {
	case errUnreachable:
		return e.status >= 500 && e.status != http.StatusNotImplemented ||
			e.status == http.StatusTooManyRequests || e.status == http.StatusRequestTimeout
	case errChanged:
		return e.status == http.StatusPreconditionFailed || e.moved
	}
	return false
}

// Denied reports whether a source refused the credentials, or the lack of them.
func Denied(err error) bool {
	var e *answerError
	return errors.As(err, &e) && (e.status == http.StatusUnauthorized || e.status == http.StatusForbidden)
}

// hints answers refusals of a source.
type hints struct {
	denied, missing string
	missingIsChange bool // what is missing was listed a moment ago
	text            bool // a failing server's body is plain text with the reason
}

var webHints = hints{
	denied:  "access denied; put credentials in the URI, or request headers as JSON in the environment variable HOST-headers",
	missing: "nothing there; check the URI",
}

// requester makes requests, and repeats those that the network or a server
// failed.
type requester struct {
	client *http.Client
	trusts *trusts
	most   int           // attempts that bring nothing new
	wait   time.Duration // before the second attempt
	stall  time.Duration // longest without a byte
}

// send performs a request. It succeeds for the statuses 2xx, 304 and 416; every
// other answer, and every failure, is an error free of secrets.
func (r *requester) send(req *http.Request, uri string, h hints) (*http.Response, error) {
	client, err := r.trusts.of(req.Context(), r.client)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", uri, err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, transportError(req.Context(), uri, err)
	}
	switch {
	case resp.StatusCode/100 == 2, resp.StatusCode == http.StatusNotModified,
		resp.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return resp, nil
	}
	e := &answerError{uri: uri, status: resp.StatusCode, detail: errorDetail(resp, h.text, req.Header.Get("Authorization")), after: retryAfter(resp),
		region: resp.Header.Get("X-Amz-Bucket-Region")}
	_ = resp.Body.Close()
	if said := resp.Header.Get("X-Error-Message"); said != "" {
		e.detail = clip(said)
	}
	switch e.status {
	case http.StatusUnauthorized, http.StatusForbidden:
		e.hint = h.denied
	case http.StatusNotFound, http.StatusGone:
		e.hint, e.moved = h.missing, h.missingIsChange
	}
	return nil, e
}

// transportError strips the URL, which may hold a signature, from a client's
// error.
func transportError(ctx context.Context, uri string, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		if errors.Is(cause, errStalled) {
			return fmt.Errorf("%s: %w: %w", uri, errUnreachable, cause)
		}
		return cause
	}
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	if inside := (*InternalError)(nil); errors.As(err, &inside) {
		return fmt.Errorf("%s: %w", uri, inside)
	}
	if errors.Is(err, errRedirect) {
		return fmt.Errorf("%s: %w", uri, err)
	}
	// The port it was asked from is another each time, and tells nothing: who
	// compares errors shall find the same.
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		op.Source = nil
	}
	if dns := (*net.DNSError)(nil); errors.As(err, &dns) {
		dns.Err = dns.Err[strings.LastIndex(": "+dns.Err, ": "):] // "read udp 10.0.0.1:4711->10.0.0.53:53: i/o timeout"
	}
	if cert := (*tls.CertificateVerificationError)(nil); errors.As(err, &cert) {
		return fmt.Errorf("%s: %w: %w: name a file with the authority of its certificate in SSL_CERT_FILE", uri, errUnreachable, err)
	}
	return fmt.Errorf("%s: %w: %w", uri, errUnreachable, err)
}

// varying matches what differs at every try, or may be a secret: the port that a
// connection came from, and the query of a URL.
var varying = pattern(`\S+->|\?\S*`)

// errorDetail picks the code out of an S3 (XML) or the message out of a Google
// (JSON) error body; with text, the beginning of what a failing server says in
// plain text. The value of Authorization, which was sent, is left out.
func errorDetail(resp *http.Response, text bool, authorization string) string {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
	said := string(body)
	for _, mark := range [][2]string{{"<Code>", "</Code>"}, {`"message": "`, `"`}, {`"message":"`, `"`}} {
		if _, after, ok := strings.Cut(said, mark[0]); ok {
			detail, _, _ := strings.Cut(after, mark[1])
			return strings.ToValidUTF8(detail[:min(len(detail), 200)], "")
		}
	}
	if !text || resp.StatusCode < 500 || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain") {
		return ""
	}
	if _, secret, ok := strings.Cut(authorization, " "); ok && secret != "" {
		said = strings.ReplaceAll(said, secret, "…")
	}
	said = clip(strings.Join(strings.Fields(varying().ReplaceAllString(said, "")), " "))
	return strings.TrimSpace(said)
}

func retryAfter(resp *http.Response) time.Duration {
	seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(min(seconds, 30)) * time.Second
}

type brieflyKey struct{}

// briefAttempts is how often those try who are being waited for.
const briefAttempts = 2

// Briefly returns a context whose requests are tried no more than twice: for
// somebody who waits, and can do without the answer.
func Briefly(ctx context.Context) context.Context {
	return context.WithValue(ctx, brieflyKey{}, true)
}

func (r *requester) attempts(ctx context.Context) int {
	if ctx.Value(brieflyKey{}) != nil {
		return min(r.most, briefAttempts)
	}
	return r.most
}

// retry calls do until it succeeds, fails for good, or has been tried often
// enough. progressed reports whether the last call got further than any before;
// such calls do not count.
func (r *requester) retry(ctx context.Context, do func() error, progressed func() bool) error {
	wait := r.wait
	for attempt := 1; ; attempt++ {
		err := do()
		if err == nil || ctx.Err() != nil || !errors.Is(err, errUnreachable) {
			return err
		}
		if progressed() {
			attempt, wait = 0, r.wait
		}
		if attempt >= r.attempts(ctx) {
			return err
		}
		var answer *answerError
		pause := wait
		if errors.As(err, &answer) {
			pause = max(pause, answer.after)
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
		wait = min(2*wait, 30*time.Second)
	}
}

// fetchSmall reads a whole answer of at most limit bytes, with retries. build
// makes a new request for every attempt.
func (r *requester) fetchSmall(ctx context.Context, uri string, h hints, limit int64, build func(context.Context) (*http.Request, error)) ([]byte, http.Header, error) {
	var body []byte
	var header http.Header
	err := r.retry(ctx, func() error {
		ctx, w := watch(ctx, r.stall)
		defer w.stop()
		req, err := build(ctx)
		if err != nil {
			return err
		}
		resp, err := r.send(req, uri, h)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		header = resp.Header
		body, err = io.ReadAll(io.LimitReader(resp.Body, limit+1))
		if err != nil {
			return transportError(ctx, uri, err)
		}
		if int64(len(body)) > limit {
			return fmt.Errorf("%s: the answer is larger than %s", uri, formatBytes(limit))
		}
		return nil
	}, func() bool { return false })
	return body, header, err
}

// watchdog cancels a context when it has not been fed for a while.
type watchdog struct {
	timer  *time.Timer
	every  time.Duration
	cancel context.CancelCauseFunc
}

func watch(ctx context.Context, every time.Duration) (context.Context, *watchdog) {
	ctx, cancel := context.WithCancelCause(ctx)
	t := time.AfterFunc(every, func() { cancel(errStalled) })
	return ctx, &watchdog{timer: t, every: every, cancel: cancel}
}

func (w *watchdog) feed() { w.timer.Reset(w.every) }

func (w *watchdog) stop() {
	w.timer.Stop()
	w.cancel(nil)
}

var errRedirect = errors.New("refused redirect")

// guardRedirects returns a copy of client that follows at most ten redirects
// and none from https to http.
func guardRedirects(client *http.Client) *http.Client {
	c := *client
	c.CheckRedirect = func(req *http.Request, via []*http.Request) error {
		if len(via) >= 10 {
			return fmt.Errorf("%w: more than 10 in a row", errRedirect)
		}
		if via[0].URL.Scheme == "https" && req.URL.Scheme != "https" {
			return fmt.Errorf("%w: from https to %s", errRedirect, req.URL.Scheme)
		}
		if via[0].URL.Host != req.URL.Host && !strings.HasPrefix(req.Header.Get("Authorization"), "AWS4") {
			req.Header.Del("Authorization") // net/http would let it go to other ports and subdomains
		}
		return nil
	}
	return &c
}

// InternalError is the error for a URI at an address that [Config.PublicOnly]
// excludes.
type InternalError struct {
	// Host is what leads there, a name or an address.
	Host string
}

// Error returns a message with the remedy.
func (e *InternalError) Error() string {
	return e.Host + " is an internal address, and models are read from public ones alone: name a store inside by its endpoint " +
		"(S3_ENDPOINT, AWS_ENDPOINT_URL, HF_ENDPOINT, STORAGE_EMULATOR_HOST), or have the controller started with --allow-internal-models"
}

// namedKey marks the context of what is asked of a host that the URI names, or
// that such a host leads to.
type namedKey struct{}

// named marks a context where a source asks the host that the URI names; those
// of buckets and of the Hub ask an endpoint of their own.
func named(ctx context.Context, src source) context.Context {
	switch src.(type) {
	case *httpSource, *ociSource:
		return context.WithValue(ctx, namedKey{}, true)
	}
	return ctx
}

// publicOnly refuses internal addresses to requests that are marked by [named],
// redirects included, and after names are resolved: a name that changes between
// two looks gains nothing. A proxy resolves names itself, so through one only
// what an address says of itself counts.
type publicOnly struct{ open, public *http.Transport }

func newPublicOnly(t *http.Transport) *publicOnly {
	public := t.Clone()
	d := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second, Control: refuseInternal}
	public.DialContext, public.Proxy = d.DialContext, nil
	return &publicOnly{t, public}
}

// RoundTrip implements http.RoundTripper.
func (p *publicOnly) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Context().Value(namedKey{}) == nil {
		return p.open.RoundTrip(req)
	}
	if host := req.URL.Hostname(); network.InternalHost(host) {
		return nil, &InternalError{host}
	}
	if proxy, err := p.open.Proxy(req); err == nil && proxy != nil {
		return p.open.RoundTrip(req)
	}
	return p.public.RoundTrip(req)
}

// CloseIdleConnections does what http.Client's asks for.
func (p *publicOnly) CloseIdleConnections() {
	p.open.CloseIdleConnections()
	p.public.CloseIdleConnections()
}

func refuseInternal(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%s: not an address: %w", address, err)
	}
	if network.Internal(at.Addr()) {
		return &InternalError{at.Addr().String()}
	}
	return nil
}
