package cluster

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	// dialTimeout bounds connecting, headerTimeout the wait for an answer's
	// beginning: of streams the rest may take as long as it takes.
	dialTimeout   = 10 * time.Second
	headerTimeout = 45 * time.Second
	// callTimeout bounds one call that is not a stream.
	callTimeout = time.Minute
	// maxAnswer is the size of one answer of the API server.
	maxAnswer = 64 << 20
	// pageSize is how many objects one answer lists; maxListed how many are
	// taken in all.
	pageSize  = 500
	maxListed = 50_000
)

// Client asks one API server as one user. It is safe for concurrent use.
type Client struct {
	access *Access
	http   *http.Client
	slow   *http.Transport // waits for answers as long as it takes
	agent  string
	plugin *plugin

	installed installed
}

// New makes a client. It sends nothing.
func New(a *Access, userAgent string) (*Client, error) {
	c := &Client{access: a, agent: userAgent}
	t := &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 8, IdleConnTimeout: time.Minute,
		DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext, TLSHandshakeTimeout: dialTimeout, ResponseHeaderTimeout: headerTimeout,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, ServerName: a.ServerName, InsecureSkipVerify: a.Insecure}} //nolint:gosec // when the kubeconfig says so
	if a.Proxy != "" {
		u, err := url.Parse(a.Proxy)
		if err != nil {
			return nil, err
		}
		t.Proxy = http.ProxyURL(u)
	}
	if len(a.CA) > 0 {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(a.CA) {
			return nil, fmt.Errorf("context %s: certificate-authority: there is no certificate in it", a.Context)
		}
		t.TLSClientConfig.RootCAs = pool
	}
	if a.Exec != nil && a.Token == "" && a.Username == "" && len(a.Cert) == 0 {
		c.plugin = &plugin{access: a, stdin: os.Stdin, stderr: os.Stderr}
		// The server asks for a certificate once the request is under way.
		t.TLSClientConfig.GetClientCertificate = func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			_, cert, err := c.plugin.credential(info.Context(), "")
			if cert == nil {
				cert = &tls.Certificate{}
			}
			return cert, err
		}
	}
	if len(a.Cert) > 0 {
		pair, err := tls.X509KeyPair(a.Cert, a.Key)
		if err != nil {
			return nil, fmt.Errorf("%s.client-certificate: %w", a.Origin, err)
		}
		t.TLSClientConfig.Certificates = []tls.Certificate{pair}
	}
	c.slow = t.Clone()
	c.slow.ResponseHeaderTimeout = 0
	// A redirect would take the credentials elsewhere.
	c.http = &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return c, nil
}

// Namespace is where objects are whose manifest or name says none.
func (c *Client) Namespace() string { return c.access.Namespace }

// Name is what people call the cluster.
func (c *Client) Name() string {
	return cmp.Or(c.access.Context, c.access.Server)
}

// authorize says who asks, and which token that was, "" where it is none of a
// plugin's.
func (c *Client) authorize(r *http.Request, refused string) (token string, err error) {
	a := c.access
	r.Header.Set("User-Agent", c.agent)
	switch {
	case a.Token != "":
		r.Header.Set("Authorization", "Bearer "+a.Token)
	case a.Username != "" || a.Password != "":
		r.SetBasicAuth(a.Username, a.Password)
	case c.plugin != nil:
		s, _, err := c.plugin.credential(r.Context(), refused)
		if err != nil {
			return "", err
		}
		if token = s.Token; token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
	}
	if i := a.Impersonate; i.User != "" {
		r.Header.Set("Impersonate-User", i.User)
		if i.UID != "" {
			r.Header.Set("Impersonate-Uid", i.UID)
		}
		for _, g := range i.Groups {
			r.Header.Add("Impersonate-Group", g)
		}
		for k, vs := range i.Extra {
			for _, v := range vs {
				r.Header.Add("Impersonate-Extra-"+url.PathEscape(strings.ToLower(k)), v)
			}
		}
	}
	return token, nil
}

// send sends one request; a credential of a plugin that is refused is renewed
// once. Answers that are no success are errors, the body is the caller's else.
func (c *Client) send(ctx context.Context, method, path string, q url.Values, body []byte, header http.Header) (*http.Response, error) {
	refused := ""
	for {
		target := c.access.Server + path
		if len(q) > 0 {
			target += "?" + q.Encode()
		}
		r, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		r.Header.Set("Accept", "application/json")
		for k, v := range header {
			r.Header[k] = v
		}
		token, err := c.authorize(r, refused)
		if err != nil {
			return nil, err
		}
		resp, err := c.http.Do(r)
		if err != nil {
			return nil, c.unreachable(ctx, err)
		}
		if resp.StatusCode == http.StatusUnauthorized && token != "" && refused == "" {
			_ = resp.Body.Close()
			refused = token
			continue
		}
		return resp, nil
	}
}

// UnreachableError says that the API server could not be asked.
type UnreachableError struct {
	Cluster, Server string
	Err             error
}

// Error says which server that is and what may be wrong.
func (e *UnreachableError) Error() string {
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var expired x509.CertificateInvalidError
	said := fmt.Sprintf("the API server of %s at %s does not answer: %v", e.Cluster, e.Server, e.Err)
	switch {
	case errors.As(e.Err, &unknown):
		return said + ": its certificate is of no authority the kubeconfig names: see certificate-authority"
	case errors.As(e.Err, &host):
		return said + ": see tls-server-name of the kubeconfig"
	case errors.As(e.Err, &expired):
		return said
	}
	return said + ": is the cluster running, and the context the right one (--context)?"
}

// Unwrap is the network's error.
func (e *UnreachableError) Unwrap() error { return e.Err }

func (c *Client) unreachable(ctx context.Context, err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	if ctx.Err() == context.Canceled {
		return ctx.Err()
	}
	return &UnreachableError{Cluster: c.Name(), Server: c.access.Server, Err: err}
}

// StatusError is an answer of the API server that was no success.
type StatusError struct {
	Code    int    `json:"code"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Details struct {
		Causes []struct {
			Reason  string `json:"reason"`
			Message string `json:"message"`
			Field   string `json:"field"`
		} `json:"causes"`
	} `json:"details"`
	// verb and what say what was tried, for people.
	verb, what, who string
}

// Error says what was tried and what the server said to it.
func (e *StatusError) Error() string {
	did := e.verb + " " + e.what
	switch {
	case e.Code == http.StatusUnauthorized:
		return fmt.Sprintf("%s: the cluster does not take the credential of %s: it is wrong or has expired: log in again, or name another --context", did, e.who)
	case e.Code == http.StatusForbidden:
		return fmt.Sprintf("%s: not allowed: %s: ask for a Role with the verb %q on %s", did, e.Message, e.verb, e.what)
	case e.Code == http.StatusConflict && len(e.Details.Causes) > 0:
		var fields []string
		for _, cause := range e.Details.Causes {
			fields = append(fields, fmt.Sprintf("%s (%s)", cause.Field, strings.TrimPrefix(cause.Message, "conflict with ")))
		}
		return fmt.Sprintf("%s: others have set these fields, and keep them: %s: apply with the same tool as before, or leave them out", did, strings.Join(fields, ", "))
	}
	return fmt.Sprintf("%s: %s", did, e.Message)
}

// Missing says whether an error is that there is no such object or kind.
func Missing(err error) bool {
	var s *StatusError
	return errors.As(err, &s) && s.Code == http.StatusNotFound
}

func forbidden(err error) bool {
	var s *StatusError
	return errors.As(err, &s) && s.Code == http.StatusForbidden
}

// request is one call. What is a resource in people's words, "pods in ns".
type request struct {
	method, path string
	query        url.Values
	body         []byte
	content      string // type of the body
	verb, what   string
	accept       string
}

// stream opens an answer, which the caller closes.
func (c *Client) stream(ctx context.Context, r request) (*http.Response, error) {
	h := http.Header{}
	if r.content != "" {
		h.Set("Content-Type", r.content)
	}
	if r.accept != "" {
		h.Set("Accept", r.accept)
	}
	resp, err := c.send(ctx, r.method, r.path, r.query, r.body, h)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", r.verb, r.what, err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	e := &StatusError{verb: r.verb, what: r.what, who: c.access.Origin}
	if json.Unmarshal(raw, e) != nil || e.Message == "" {
		e.Message = fmt.Sprintf("%s answers %s: is that an API server of Kubernetes?", c.access.Server, resp.Status)
	}
	e.Code = resp.StatusCode
	return nil, e
}

// call sends one request and reads its answer into out, nil for none.
func (c *Client) call(ctx context.Context, r request, out any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := c.stream(ctx, r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("%s %s: %w", r.verb, r.what, c.unreachable(ctx, err))
	case len(raw) > maxAnswer:
		return fmt.Errorf("%s %s: the answer is over %d bytes", r.verb, r.what, maxAnswer)
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("%s %s: %s does not answer as an API server of Kubernetes: %w", r.verb, r.what, c.access.Server, err)
	}
	return nil
}

// list reads all of a resource, page by page, of a namespace or, with "", of all.
func list[T any](ctx context.Context, c *Client, at resource, namespace string, q url.Values) ([]T, error) {
	var out []T
	if q == nil {
		q = url.Values{}
	}
	q.Set("limit", strconv.Itoa(pageSize))
	for {
		var page struct {
			Metadata struct {
				Continue string `json:"continue"`
			} `json:"metadata"`
			Items []T `json:"items"`
		}
		err := c.call(ctx, request{method: http.MethodGet, path: at.path(namespace, ""), query: q, verb: "list", what: at.words(namespace)}, &page)
		if err != nil {
			return nil, err
		}
		if out = append(out, page.Items...); len(out) > maxListed {
			return nil, fmt.Errorf("list %s: there are over %d: name a namespace with -n", at.words(namespace), maxListed)
		}
		if page.Metadata.Continue == "" {
			return out, nil
		}
		q.Set("continue", page.Metadata.Continue)
	}
}

// resource is one kind's collection in the API.
type resource struct {
	group, version, plural string
	clusterScoped          bool
}

func (r resource) path(namespace, name string) string {
	p := "/api/" + r.version
	if r.group != "" {
		p = "/apis/" + r.group + "/" + r.version
	}
	if namespace != "" && !r.clusterScoped {
		p += "/namespaces/" + url.PathEscape(namespace)
	}
	p += "/" + r.plural
	if name != "" {
		p += "/" + url.PathEscape(name)
	}
	return p
}

// words are the resource as kubectl and RBAC call it.
func (r resource) words(namespace string) string {
	w := r.plural
	if r.group != "" {
		w += "." + r.group
	}
	switch {
	case r.clusterScoped:
		return w
	case namespace == "":
		return w + " in all namespaces"
	}
	return w + " in namespace " + namespace
}

// The resources besides manifests.
var (
	podsAt        = resource{version: "v1", plural: "pods"}
	servicesAt    = resource{version: "v1", plural: "services"}
	eventsAt      = resource{version: "v1", plural: "events"}
	deploymentsAt = resource{group: "apps", version: "v1", plural: "deployments"}
	groupsAt      = resource{group: "leaderworkerset.x-k8s.io", version: "v1", plural: "leaderworkersets"}
	recordsAt     = resource{group: "apps", version: "v1", plural: "controllerrevisions"}
)
