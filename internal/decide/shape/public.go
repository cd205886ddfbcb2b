package shape

import (
	"fmt"
	"net/url"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/network"
)

// publicVariable has `roundhouse pull` refuse a URI that leads to an internal
// address. It is no flag: a revision is fetched by the image it was made with,
// and an older one would not know it.
const publicVariable = "ROUNDHOUSE_PUBLIC_ONLY"

// public refuses a URI whose host is internal by what it says of itself, and has
// the container that fetches refuse one that leads to such an address. Stores
// that a pod finds by an endpoint, in its variables, secrets or annotations, are
// those of its namespace, wherever they are.
func (r *renderer) public(c *corev1.Container, f files) error {
	if !r.o.PublicModels {
		return nil
	}
	switch scheme, host := hostOf(f.uri); scheme {
	case "http", "https", "oci":
		if network.InternalHost(host) {
			return fmt.Errorf("%s %s://%s: an internal address, and models are fetched from public ones alone: name a store inside by its endpoint "+
				"(s3:// with S3_ENDPOINT, hf:// with HF_ENDPOINT), or have the controller started with --allow-internal-models", f.what, scheme, host)
		}
	}
	c.Env = append(c.Env, corev1.EnvVar{Name: publicVariable, Value: "true"})
	return nil
}

// hostOf is the host that a URI names, without its port; "" where it cannot be
// read, which is for the program that fetches to say.
func hostOf(uri string) (scheme, host string) {
	u, err := url.Parse(uri)
	if err != nil || u.Hostname() == "" {
		return "", ""
	}
	return u.Scheme, u.Hostname()
}
