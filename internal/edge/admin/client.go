package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"

	"roundhouse.dev/roundhouse/internal/core/apikey"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin/console"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// Client speaks to a running server's admin API.
type Client struct {
	// Base is the server's address, "http://127.0.0.1:8090".
	Base  string
	Token string
	HTTP  *http.Client // nil: http.DefaultClient
	// Hint is added to the error where no server listens.
	Hint string
}

// APIError is an answer that was not a success.
type APIError struct {
	Status int
	Error_ Error
}

// Error is the server's one line, then a manifest's problems, one line each.
func (e *APIError) Error() string {
	if len(e.Error_.Problems) > 0 {
		return strings.Join(e.Error_.Problems, "\n")
	}
	return e.Error_.Message
}

// UnreachableError reports that no server answers at an address.
type UnreachableError struct {
	Base string
	Flag string // of the command line, that names the address; "" is --server
	Hint string // what else to do
	Err  error
}

// Error names the address and how to start a server there.
func (e *UnreachableError) Error() string {
	if errors.Is(e.Err, syscall.ECONNREFUSED) {
		return fmt.Sprintf("no server listens at %s: start `roundhouse up`, or give its address with %s%s", e.Base, cmp.Or(e.Flag, "--server"), e.Hint)
	}
	return fmt.Sprintf("%s does not answer: %v", e.Base, e.Err)
}

// Unwrap is the network's error.
func (e *UnreachableError) Unwrap() error { return e.Err }

func (c *Client) do(ctx context.Context, method, path string, body io.Reader, size int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.Base, "/")+path, body)
	if err != nil {
		return nil, err
	}
	if size >= 0 {
		req.ContentLength = size
	}
	req.Header.Set("Authorization", "Bearer "+c.Token)
	client := c.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, &UnreachableError{Base: c.Base, Hint: c.Hint, Err: err}
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()
	e := &APIError{Status: resp.StatusCode}
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if json.Unmarshal(raw, &e.Error_) != nil || e.Error_.Message == "" {
		e.Error_.Message = fmt.Sprintf("%s answers %s to %s %s: is it the admin address of a roundhouse up?", c.Base, resp.Status, method, path)
	}
	return nil, e
}

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	size := int64(-1)
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body, size = bytes.NewReader(raw), int64(len(raw))
	}
	resp, err := c.do(ctx, method, path, body, size)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("%s: answer to %s %s: %w", c.Base, method, path, err)
	}
	return nil
}

func servicePath(k service.Key) string {
	return "/api/v1/services/" + url.PathEscape(k.Namespace) + "/" + url.PathEscape(k.Name)
}

// About returns the version of the server and where its gateway is.
func (c *Client) About(ctx context.Context) (out About, err error) {
	return out, c.call(ctx, http.MethodGet, "/api/v1", nil, &out)
}

// Apply creates or updates the objects of manifests.
func (c *Client) Apply(ctx context.Context, req ApplyRequest) (out ApplyResponse, err error) {
	return out, c.call(ctx, http.MethodPost, "/api/v1/apply", req, &out)
}

// Edit changes the manifest of a service by a JSON merge patch.
func (c *Client) Edit(ctx context.Context, k service.Key, patch map[string]any) (out Change, err error) {
	return out, c.call(ctx, http.MethodPatch, servicePath(k), patch, &out)
}

// Wake starts a replica of a service, as a request to it does.
func (c *Client) Wake(ctx context.Context, k service.Key) (out Change, err error) {
	return out, c.call(ctx, http.MethodPost, servicePath(k)+"/wake", nil, &out)
}

// Undo gives a service the manifest of its revision before the last back.
func (c *Client) Undo(ctx context.Context, k service.Key) (out Change, err error) {
	return out, c.call(ctx, http.MethodPost, servicePath(k)+"/undo", nil, &out)
}

// ExplainFiles explains the services of manifests that are not applied.
func (c *Client) ExplainFiles(ctx context.Context, req ApplyRequest) (out []Explanation, err error) {
	return out, c.call(ctx, http.MethodPost, "/api/v1/explain", req, &out)
}

// Explain returns why an applied service runs on what it does.
func (c *Client) Explain(ctx context.Context, k service.Key) (out []Explanation, err error) {
	return out, c.call(ctx, http.MethodGet, servicePath(k)+"/explain", nil, &out)
}

// ExplainWake explains what a request to a service would have started and stopped.
func (c *Client) ExplainWake(ctx context.Context, k service.Key) (out Explanation, err error) {
	return out, c.call(ctx, http.MethodGet, servicePath(k)+"/explain-wake", nil, &out)
}

// ExplainScale returns the last scaling decisions of a service.
func (c *Client) ExplainScale(ctx context.Context, k service.Key) (out []fleet.ScaleHistory, err error) {
	return out, c.call(ctx, http.MethodGet, servicePath(k)+"/explain-scale", nil, &out)
}

// ExplainRequest explains where a request would go now.
func (c *Client) ExplainRequest(ctx context.Context, r InferenceRequest) (out Explanation, err error) {
	return out, c.call(ctx, http.MethodPost, "/api/v1/explain-request", r, &out)
}

// Services lists services, of one namespace or, with "", of all.
func (c *Client) Services(ctx context.Context, namespace string, rendered bool) (out []Service, err error) {
	q := url.Values{}
	if namespace != "" {
		q.Set("namespace", namespace)
	}
	if rendered {
		q.Set("rendered", "")
	}
	return out, c.call(ctx, http.MethodGet, "/api/v1/services?"+q.Encode(), nil, &out)
}

// Detailed is Services with their replicas.
func (c *Client) Detailed(ctx context.Context, namespace string) (out []Service, err error) {
	q := url.Values{"replicas": {""}}
	if namespace != "" {
		q.Set("namespace", namespace)
	}
	return out, c.call(ctx, http.MethodGet, "/api/v1/services?"+q.Encode(), nil, &out)
}

// Service is one service with its replicas.
func (c *Client) Service(ctx context.Context, k service.Key) (out Service, err error) {
	return out, c.call(ctx, http.MethodGet, servicePath(k), nil, &out)
}

// Objects lists "runtimes", "models", "weights", "bases", "acceleratorclasses",
// "configmaps", "benchmarkjobs", "secrets" or "serviceaccounts".
func (c *Client) Objects(ctx context.Context, kinds string) (out []Object, err error) {
	return out, c.call(ctx, http.MethodGet, "/api/v1/"+kinds, nil, &out)
}

// Delete removes an object; kinds is "services" or one of Objects'. A cluster-scoped object has no namespace.
func (c *Client) Delete(ctx context.Context, kinds string, k service.Key) (out Change, err error) {
	ns := k.Namespace
	if ns == "" {
		ns = "_cluster"
	}
	return out, c.call(ctx, http.MethodDelete, "/api/v1/"+kinds+"/"+url.PathEscape(ns)+"/"+url.PathEscape(k.Name), nil, &out)
}

// Routing lists routing objects, of one namespace or, with "", of all.
func (c *Client) Routing(ctx context.Context, namespace string) (out []RoutingObject, err error) {
	q := url.Values{}
	if namespace != "" {
		q.Set("namespace", namespace)
	}
	return out, c.call(ctx, http.MethodGet, "/api/v1/routing?"+q.Encode(), nil, &out)
}

// DeleteRouting removes a routing object; kind is fleet.ID's.
func (c *Client) DeleteRouting(ctx context.Context, kind string, k service.Key) (out Change, err error) {
	return out, c.call(ctx, http.MethodDelete, "/api/v1/routing/"+kind+"/"+url.PathEscape(k.Namespace)+"/"+url.PathEscape(k.Name), nil, &out)
}

// LogQuery selects logs.
type LogQuery struct {
	Replica  string // "" for the newest
	Tail     int    // last lines; 0 for all
	Follow   bool
	Previous bool
}

// Logs opens a replica's output; the caller closes it.
func (c *Client) Logs(ctx context.Context, k service.Key, q LogQuery) (io.ReadCloser, error) {
	v := url.Values{"tail": {strconv.Itoa(q.Tail)}}
	if q.Replica != "" {
		v.Set("replica", q.Replica)
	}
	if q.Follow {
		v.Set("follow", "")
	}
	if q.Previous {
		v.Set("previous", "")
	}
	resp, err := c.do(ctx, http.MethodGet, servicePath(k)+"/logs?"+v.Encode(), nil, -1)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// Reads reports whether the server reads a local file of this size by itself.
func (c *Client) Reads(ctx context.Context, path string, size int64, dir bool) (bool, error) {
	var out struct {
		Size int64 `json:"size"`
		Dir  bool  `json:"dir"`
	}
	err := c.call(ctx, http.MethodGet, "/api/v1/readable?path="+url.QueryEscape(path), nil, &out)
	var api *APIError
	if errors.As(err, &api) && api.Status == http.StatusNotFound {
		return false, nil
	}
	return err == nil && out.Dir == dir && (dir || out.Size == size), err
}

// Upload sends bytes unless the server has them, and returns their URI. open is
// called only when they must be sent.
func (c *Client) Upload(ctx context.Context, u artifact.Upload, open func() (io.ReadCloser, error)) (string, error) {
	var out struct {
		URI string `json:"uri"`
	}
	path := "/api/v1/uploads/" + u.SHA256 + "/" + url.PathEscape(u.Name)
	err := c.call(ctx, http.MethodGet, path, nil, &out)
	if err == nil {
		return out.URI, nil
	}
	var api *APIError
	if !errors.As(err, &api) || api.Status != http.StatusNotFound {
		return "", err
	}
	body, err := open()
	if err != nil {
		return "", err
	}
	defer func() { _ = body.Close() }()
	resp, err := c.do(ctx, http.MethodPut, path, body, u.Size)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	return out.URI, json.NewDecoder(resp.Body).Decode(&out)
}

// Keys lists the API keys.
func (c *Client) Keys(ctx context.Context) (out []apikey.Key, err error) {
	return out, c.call(ctx, http.MethodGet, "/api/v1/keys", nil, &out)
}

// CreateKey creates an API key.
func (c *Client) CreateKey(ctx context.Context, req KeyRequest) (out NewKey, err error) {
	return out, c.call(ctx, http.MethodPost, "/api/v1/keys", req, &out)
}

// RevokeKey revokes an API key.
func (c *Client) RevokeKey(ctx context.Context, id string) (out apikey.Key, err error) {
	return out, c.call(ctx, http.MethodDelete, "/api/v1/keys/"+url.PathEscape(id), nil, &out)
}

// ConsoleLink returns a URL that signs in to the console, once.
func (c *Client) ConsoleLink(ctx context.Context, readOnly bool) (string, error) {
	role := console.Owner
	if readOnly {
		role = console.Viewer
	}
	var out ConsoleLink
	err := c.call(ctx, http.MethodPost, "/api/v1/console?role="+string(role), nil, &out)
	return strings.TrimSuffix(c.Base, "/") + out.Path, err
}
