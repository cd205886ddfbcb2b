package clusterconsole

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"strings"

	"roundhouse.dev/roundhouse/cmd/internal/inference"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// playground passes the playground's requests on to the cluster's gateway, which find
// names anew for each. What the API server passes on, it is asked with the rights of
// the kubeconfig: so no path may lead out of the gateway's.
func playground(find func(context.Context) (inference.Gateway, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p := r.URL.Path; path.Clean(p) != p || !strings.HasPrefix(p, "/v1/") && !strings.HasPrefix(p, "/v2/") {
			refuse(w, http.StatusNotFound, p+" is no path of a model: the playground asks /v1/… and /v2/…")
			return
		}
		g, err := find(r.Context())
		if err != nil {
			refuse(w, http.StatusBadGateway, err.Error())
			return
		}
		base, err := url.Parse(g.Base)
		if err != nil {
			refuse(w, http.StatusBadGateway, err.Error())
			return
		}
		proxy := &httputil.ReverseProxy{
			Rewrite: func(p *httputil.ProxyRequest) {
				p.SetURL(base)
				if key := cmp.Or(p.Out.Header.Get("Authorization"), bearer(g.APIKey)); key != "" {
					p.Out.Header.Set("Authorization", key)
				}
			},
			Transport:     g.Transport,
			FlushInterval: -1,                         // each token as it comes
			ErrorLog:      log.New(io.Discard, "", 0), // the page shows an answer that was cut
			ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
				if r.Context().Err() == nil {
					refuse(w, http.StatusBadGateway, err.Error())
				}
			},
		}
		proxy.ServeHTTP(w, r)
	})
}

func bearer(key string) string {
	if key == "" {
		return ""
	}
	return "Bearer " + key
}

func refuse(w http.ResponseWriter, status int, why string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(admin.Error{Message: why}) // an error means that the client is gone
}
