package cluster

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// GatewayLabel selects the Services of a gateway's release.
const GatewayLabel = "app.kubernetes.io/name=roundhouse,app.kubernetes.io/component=gateway"

// controllerLabel selects the Deployments of controllers.
const controllerLabel = "app.kubernetes.io/name=roundhouse,app.kubernetes.io/component=controller"

// Gateway is where requests are answered: its address below the API server,
// which passes them on. at names a Service as "[https:]namespace/name[:port]";
// "" looks for the one there is.
func (c *Client) Gateway(ctx context.Context, at string) (string, error) {
	scheme := ""
	if rest, ok := strings.CutPrefix(at, "https:"); ok {
		scheme, at = "https:", rest
	}
	name, port, _ := strings.Cut(at, ":")
	k := service.ParseKey(name)
	if at == "" {
		found, err := c.findGateway(ctx)
		if err != nil {
			return "", err
		}
		k = found
	} else if k.Name == name {
		return "", fmt.Errorf("%q is no Service: write NAMESPACE/NAME", at)
	}
	if port == "" {
		port = "http"
	}
	return c.base.JoinPath("api/v1/namespaces", k.Namespace, "services", scheme+k.Name+":"+port, "proxy").String(), nil
}

func (c *Client) findGateway(ctx context.Context) (service.Key, error) {
	items, err := listed[corev1.Service](ctx, c, servicesAt, "", metav1.ListOptions{LabelSelector: GatewayLabel})
	if err != nil {
		return service.Key{}, fmt.Errorf("look for the gateway: %w: name its Service with --gateway-service NAMESPACE/NAME, or its address with --gateway", err)
	}
	var keys []string
	for _, s := range items {
		for _, p := range s.Spec.Ports {
			if p.Name == "http" {
				keys = append(keys, s.Namespace+"/"+s.Name)
			}
		}
	}
	slices.Sort(keys)
	switch len(keys) {
	case 0:
		return service.Key{}, fmt.Errorf("%s has no gateway of Roundhouse: name its Service with --gateway-service NAMESPACE/NAME, or its address with --gateway", c.Name())
	case 1:
		return service.ParseKey(keys[0]), nil
	}
	return service.Key{}, fmt.Errorf("%s has several gateways: name one with --gateway-service: %s", c.Name(), strings.Join(keys, ", "))
}

// ControllerVersion is that of the release whose controller the cluster has: what
// its Deployment says, else the tag of its image. Several are listed.
func (c *Client) ControllerVersion(ctx context.Context) (string, error) {
	items, err := listed[appsv1.Deployment](ctx, c, deploymentsAt, "", metav1.ListOptions{LabelSelector: controllerLabel})
	if err != nil {
		return "", err
	}
	var found []string
	for _, d := range items {
		v, image := d.Labels["app.kubernetes.io/version"], ""
		for _, p := range d.Spec.Template.Spec.Containers {
			image = p.Image
		}
		if v = cmp.Or(v, tagOf(image)); v == "" {
			return "", fmt.Errorf("the Deployment %s/%s has no label app.kubernetes.io/version, and its image no tag: %s", d.Namespace, d.Name, image)
		}
		found = append(found, v)
	}
	slices.Sort(found)
	if found = slices.Compact(found); len(found) == 0 {
		return "", fmt.Errorf("%s has no controller of Roundhouse", c.Name())
	}
	return strings.Join(found, ", "), nil
}

// tagOf is the tag of an image; "" where a digest or nothing says which it is.
func tagOf(image string) string {
	name := image[strings.LastIndex(image, "/")+1:] // before may be a port
	_, tag, _ := strings.Cut(name, ":")
	if strings.Contains(name, "@") {
		return ""
	}
	return tag
}

// Transport sends requests to addresses that Gateway gave, as the client's user
// and for as long as their context lets them. An Authorization they carry would
// be taken for the API server's: keys of the gateway go in X-Api-Key.
func (c *Client) Transport() http.RoundTripper { return patient{c} }

type patient struct{ client *Client }

// RoundTrip implements http.RoundTripper.
func (p patient) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != p.client.base.Scheme || r.URL.Host != p.client.base.Host {
		return nil, fmt.Errorf("a redirect leads away from the API server, to %s", r.URL.Host)
	}
	r = r.Clone(r.Context())
	if key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "); key != "" {
		r.Header.Del("Authorization")
		r.Header.Set("X-Api-Key", key)
	}
	return p.client.transport.RoundTrip(r)
}
