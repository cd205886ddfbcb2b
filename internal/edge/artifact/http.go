package artifact

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// httpSource reads single files over http and https.
type httpSource struct {
	requests *requester
	env      environment
}

// list needs no request for a first download: the answer to it says size and
// version. With an earlier copy it asks whether that is still current.
func (h *httpSource) list(ctx context.Context, loc location, prior *record) (listing, error) {
	name := loc.fileName()
	if name == "" {
		return listing{}, fmt.Errorf("%s: the URI names no file; over %s a model is one file or archive", loc, loc.scheme)
	}
	l := listing{objects: []object{{Name: name, Size: -1}}}
	if prior == nil || len(prior.Objects) != 1 || prior.Objects[0].Validator == "" {
		return l, nil
	}
	validator := prior.Objects[0].Validator
	err := h.requests.retry(ctx, func() error {
		ctx, w := watch(ctx, h.requests.stall)
		defer w.stop()
		req, err := h.env.webRequest(ctx, loc)
		if err != nil {
			return err
		}
		// One byte is enough to learn the version when the condition is not
		// understood.
		req.Header.Set("Range", "bytes=0-0")
		req.Header.Set("Accept-Encoding", "identity")
		if isETag(validator) {
			req.Header.Set("If-None-Match", validator)
		} else {
			req.Header.Set("If-Modified-Since", validator)
		}
		resp, err := h.requests.send(req, loc.String(), webHints)
		if err != nil {
			return err
		}
		l.unchanged = resp.StatusCode == http.StatusNotModified || responseValidator(resp.Header) == validator
		return resp.Body.Close()
	}, func() bool { return false })
	return l, err
}

func (h *httpSource) request(ctx context.Context, loc location, o object, from int64) (*http.Request, error) {
	req, err := h.env.webRequest(ctx, loc)
	if err != nil {
		return nil, err
	}
	setRange(req, from, o.to)
	if req.Header.Get("Range") != "" && o.Validator != "" && !strings.HasPrefix(o.Validator, "W/") {
		req.Header.Set("If-Range", o.Validator)
	}
	return req, nil
}

// setRange asks for the bytes from one offset up to another; 0 is the end.
func setRange(req *http.Request, from, to int64) {
	switch {
	case to > 0:
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, to-1))
	case from > 0:
		req.Header.Set("Range", "bytes="+strconv.FormatInt(from, 10)+"-")
	}
}

func isETag(v string) bool { return strings.HasPrefix(v, `"`) || strings.HasPrefix(v, "W/") }

// webRequest adds the headers that KServe reads for a host: a JSON object in
// the environment variable named HOST-headers, or in headers where https-host
// names the host, as KServe's secrets have it.
func (e environment) webRequest(ctx context.Context, loc location) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, loc.url.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("%s: not a usable address", loc)
	}
	variable := loc.url.Hostname() + "-headers"
	raw := e.Getenv(variable)
	if raw == "" && strings.EqualFold(e.Getenv("https-host"), loc.url.Hostname()) {
		variable, raw = "headers", e.Getenv("headers")
	}
	if raw == "" {
		return req, nil
	}
	var headers map[string]string
	if json.Unmarshal([]byte(raw), &headers) != nil {
		return nil, fmt.Errorf("%s: the environment variable %s is not a JSON object of strings", loc, variable)
	}
	for k, v := range headers {
		req.Header.Set(k, v)
	}
	return req, nil
}

func sourceHints(src source) hints {
	if h, ok := src.(interface{ hints() hints }); ok {
		return h.hints()
	}
	return webHints
}
