package cluster

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
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
	access    *Access
	base      *url.URL
	transport http.RoundTripper // sends the user's credentials
	dynamic   dynamic.Interface
	watches   dynamic.Interface // whose answers may take as long as they take
	discovery discovery.DiscoveryInterface
	logs      rest.Interface // reads pods' output, as much as there is

	installed installed
}

// New makes a client. It sends nothing.
func New(a *Access, userAgent string) (*Client, error) {
	cfg := rest.CopyConfig(a.Config)
	cfg.UserAgent, cfg.QPS = userAgent, -1 // maxAtOnce is the bound
	cfg.Dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	cfg.WarningHandler = rest.NewWarningWriter(os.Stderr, rest.WarningWriterOptions{Deduplicate: true})
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("context %s: server: %w", a.Context, err)
	}
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("context %s: %w", a.Context, err)
	}
	c := &Client{access: a, base: base, transport: transport}
	calls := &http.Client{Transport: bounded{transport}, CheckRedirect: stay, Timeout: callTimeout}
	if c.dynamic, err = dynamic.NewForConfigAndClient(cfg, calls); err != nil {
		return nil, err
	}
	if c.discovery, err = discovery.NewDiscoveryClientForConfigAndClient(cfg, calls); err != nil {
		return nil, err
	}
	streams := &http.Client{Transport: transport, CheckRedirect: stay}
	if c.watches, err = dynamic.NewForConfigAndClient(cfg, streams); err != nil {
		return nil, err
	}
	stream := dynamic.ConfigFor(cfg)
	stream.GroupVersion, stream.APIPath = &corev1.SchemeGroupVersion, "/api"
	c.logs, err = rest.RESTClientForConfigAndClient(stream, streams)
	return c, err
}

// stay follows no redirect, which would take the credentials elsewhere.
func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// bounded reads answers up to maxAnswer.
type bounded struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(r)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxAnswer)
	}
	return resp, err
}

// Namespace is where objects are whose manifest or name says none.
func (c *Client) Namespace() string { return c.access.Namespace }

// Name is what people call the cluster.
func (c *Client) Name() string { return cmp.Or(c.access.Context, c.base.String()) }

// UnreachableError is the error when the API server cannot be reached.
type UnreachableError struct {
	Cluster, Server string
	Err             error
}

// Error returns a message with the server's address and the likely reason.
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

// StatusError is an answer of the API server that was no success.
type StatusError struct {
	metav1.Status
	// verb and what name the attempt, for messages.
	verb, what, who string
}

// Error returns what was tried and the server's answer.
func (e *StatusError) Error() string {
	did := e.verb + " " + e.what
	var causes []metav1.StatusCause
	if e.Details != nil {
		causes = e.Details.Causes
	}
	switch {
	case e.Code == http.StatusUnauthorized:
		return fmt.Sprintf("%s: the cluster does not take the credential of %s: it is wrong or has expired: log in again, or name another --context", did, e.who)
	case e.Code == http.StatusForbidden:
		return fmt.Sprintf("%s: not allowed: %s: ask for a Role with the verb %q on %s", did, e.Message, e.verb, e.what)
	case e.Code == http.StatusConflict && len(causes) > 0:
		var fields []string
		for _, cause := range causes {
			fields = append(fields, fmt.Sprintf("%s (%s)", cause.Field, strings.TrimPrefix(cause.Message, "conflict with ")))
		}
		return fmt.Sprintf("%s: others have set these fields, and keep them: %s: apply with the same tool as before, or leave them out", did, strings.Join(fields, ", "))
	}
	for _, cause := range causes {
		if cause.Type == metav1.CauseTypeUnexpectedServerResponse {
			return fmt.Sprintf("%s: the server answers %d %s: is that an API server of Kubernetes?", did, e.Code, http.StatusText(int(e.Code)))
		}
	}
	return fmt.Sprintf("%s: %s", did, e.Message)
}

// Forbidden reports whether the user may not do what was tried.
func (e *StatusError) Forbidden() bool { return e.Code == http.StatusForbidden }

// Missing reports whether an error is that there is no such object or kind.
func Missing(err error) bool { return answered(err, http.StatusNotFound) }

func forbidden(err error) bool { return answered(err, http.StatusForbidden) }

func answered(err error, code int32) bool {
	var s *StatusError
	return errors.As(err, &s) && s.Code == code
}

// explained is an error of a call in people's words. What is a resource, such as
// "pods in namespace team".
func (c *Client) explained(ctx context.Context, verb, what string, err error) error {
	var status apierrors.APIStatus
	var sent *url.Error
	var long *http.MaxBytesError
	switch {
	case err == nil:
		return nil
	case ctx.Err() == context.Canceled:
		return ctx.Err()
	case errors.Is(err, errTooMany):
		return fmt.Errorf("%s %s: %w", verb, what, err)
	case errors.As(err, &long):
		return fmt.Errorf("%s %s: the answer is over %d bytes", verb, what, long.Limit)
	case errors.As(err, &status):
		return &StatusError{Status: status.Status(), verb: verb, what: what, who: c.access.Origin}
	case errors.As(err, &sent) && strings.HasPrefix(sent.Err.Error(), "getting credentials: "):
		return fmt.Errorf("%s %s: %s.exec: %w", verb, what, c.access.Origin, sent.Err)
	case errors.As(err, &sent):
		return fmt.Errorf("%s %s: %w", verb, what, &UnreachableError{Cluster: c.Name(), Server: c.base.String(), Err: sent.Err})
	}
	return fmt.Errorf("%s %s: %s does not answer as an API server of Kubernetes: %w", verb, what, c.base, err)
}

// call runs one call within its time. A credential plugin whose token was
// refused has been run again by then, so the call is tried a second time.
func call[T any](ctx context.Context, c *Client, verb, what string, do func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err := do(ctx)
	if apierrors.IsUnauthorized(err) && c.access.Config.ExecProvider != nil {
		out, err = do(ctx)
	}
	return out, c.explained(ctx, verb, what, err)
}

// resource is one kind's collection in the API.
type resource struct {
	schema.GroupVersionResource
	clusterScoped bool
}

// on is the resource in a namespace or, with "", in all.
func (c *Client) on(r resource, namespace string) dynamic.ResourceInterface {
	return r.in(c.dynamic, namespace)
}

func (r resource) in(d dynamic.Interface, namespace string) dynamic.ResourceInterface {
	if namespace == "" || r.clusterScoped {
		return d.Resource(r.GroupVersionResource)
	}
	return d.Resource(r.GroupVersionResource).Namespace(namespace)
}

func (c *Client) get(ctx context.Context, at resource, namespace, name string) (*unstructured.Unstructured, error) {
	return call(ctx, c, "get", at.words(namespace), func(ctx context.Context) (*unstructured.Unstructured, error) {
		return c.on(at, namespace).Get(ctx, name, metav1.GetOptions{})
	})
}

var errTooMany = fmt.Errorf("there are over %d: name a namespace with -n", maxListed)

// list reads all of a resource, page by page, of a namespace or, with "", of all.
func (c *Client) list(ctx context.Context, at resource, namespace string, o metav1.ListOptions) ([]unstructured.Unstructured, error) {
	var out []unstructured.Unstructured
	for o.Limit = pageSize; ; {
		page, err := call(ctx, c, "list", at.words(namespace), func(ctx context.Context) (*unstructured.UnstructuredList, error) {
			return c.on(at, namespace).List(ctx, o)
		})
		if err != nil {
			return nil, err
		}
		if out = append(out, page.Items...); len(out) > maxListed {
			return nil, fmt.Errorf("list %s: %w", at.words(namespace), errTooMany)
		}
		if o.Continue = page.GetContinue(); o.Continue == "" {
			return out, nil
		}
	}
}

// listed is [Client.list] as a type of the API.
func listed[T any](ctx context.Context, c *Client, at resource, namespace string, o metav1.ListOptions) ([]*T, error) {
	items, err := c.list(ctx, at, namespace, o)
	out := make([]*T, len(items))
	for i := range items {
		var wrong error
		if out[i], wrong = typed[T](&items[i]); wrong != nil {
			return nil, fmt.Errorf("list %s: %w", at.words(namespace), wrong)
		}
	}
	return out, err
}

// typed is an object as a type of the API.
func typed[T any](u *unstructured.Unstructured) (*T, error) {
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return nil, fmt.Errorf("%s: %w", u.GetName(), err)
	}
	return out, nil
}

// words are the resource as kubectl and RBAC call it.
func (r resource) words(namespace string) string {
	w := r.GroupResource().String()
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
	podsAt        = resource{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("pods")}
	configMapsAt  = resource{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("configmaps")}
	servicesAt    = resource{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("services")}
	eventsAt      = resource{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("events")}
	namespacesAt  = resource{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("namespaces"), clusterScoped: true}
	deploymentsAt = resource{GroupVersionResource: appsv1.SchemeGroupVersion.WithResource("deployments")}
	recordsAt     = resource{GroupVersionResource: appsv1.SchemeGroupVersion.WithResource("controllerrevisions")}
	groupsAt      = resource{GroupVersionResource: schema.GroupVersionResource{Group: "leaderworkerset.x-k8s.io", Version: "v1", Resource: "leaderworkersets"}}
	reservesAt    = resource{GroupVersionResource: schema.GroupVersionResource{Group: "roundhouse.dev", Version: "v1alpha1", Resource: "reserves"}}
)

// output opens a pod's output, which the caller closes.
func (c *Client) output(ctx context.Context, pod *corev1.Pod, o map[string]string) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(headerTimeout, cancel)
	r := c.logs.Get().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("log")
	for k, v := range o {
		r = r.Param(k, v)
	}
	out, err := r.Stream(ctx)
	if !late.Stop() && err != nil {
		err = &UnreachableError{Cluster: c.Name(), Server: c.base.String(), Err: fmt.Errorf("no answer within %s", headerTimeout)}
	} else {
		err = c.explained(ctx, "get", "pods/log in namespace "+pod.Namespace, err)
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return &ending{out, cancel}, nil
}

// ending is a stream whose context ends with it.
type ending struct {
	io.ReadCloser
	end context.CancelFunc
}

// Close implements io.Closer.
func (e *ending) Close() error {
	defer e.end()
	return e.ReadCloser.Close()
}
