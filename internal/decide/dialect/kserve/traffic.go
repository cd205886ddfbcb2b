package kserve

import (
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/network"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// maxMetadata is how many headers, and how many annotations, a logger may send
// along.
const maxMetadata = 64

// readLogger reads where copies of a component's requests and answers go.
func readLogger(r *manifest.Reader, path string, in *logger, namespace string) *service.Logger {
	if in == nil {
		return nil
	}
	out := &service.Logger{URL: in.URL, Mode: service.LogMode(strings.ToLower(in.Mode)), Annotations: in.MetadataAnnotations}
	if out.Mode == "" {
		out.Mode = service.LogAll
	}
	if !slices.Contains(service.LogModes, out.Mode) {
		r.Errorf(path+".mode", "unknown mode %q: write one of %s", manifest.Clip(in.Mode), manifest.Joined(service.LogModes))
	}
	checkURL(r, path+".url", in.URL)
	manifest.CheckAtMost(r.Report, path+".metadataHeaders", len(in.MetadataHeaders), maxMetadata)
	manifest.CheckAtMost(r.Report, path+".metadataAnnotations", len(in.MetadataAnnotations), maxMetadata)
	for i, name := range in.MetadataHeaders {
		if secretHeaders[strings.ToLower(name)] {
			r.Warnf(strict.Index(path+".metadataHeaders", i), "has no effect: %s holds a secret, which is not sent on", manifest.Clip(name))
			continue
		}
		out.Headers = append(out.Headers, canonical(name))
	}
	warnUnreached(r, path+".url", in.URL, namespace)
	return out
}

// warnUnreached warns of a server that gateways of a cluster send nothing to.
func warnUnreached(r *manifest.Reader, path, text, namespace string) {
	if why := unreached(text, namespace); why != "" {
		p := r.Problem(path, why)
		p.Warning, p.Platform = true, manifest.Kubernetes
	}
}

// unreached is why gateways of a cluster send nothing to a server; "" where they may.
func unreached(text, namespace string) string {
	const unless = ", unless they are started with --allow-internal-addresses"
	u, err := url.Parse(text)
	if err != nil || !isURL(text) {
		return "" // which is said already
	}
	_, of, ok := network.ServiceHost(u.Hostname(), namespace)
	switch {
	case ok && of != namespace:
		return "is of namespace " + manifest.Clip(of) + ": gateways of a cluster send to Services of the service's own namespace" + unless
	case ok && u.Scheme != "http":
		return "names a Service of the cluster: gateways send to it by http:// alone" + unless
	case !ok && network.InternalHost(u.Hostname()):
		return "is an internal address, where gateways of a cluster send nothing" + unless
	}
	return ""
}

// canonical is a header field's name as HTTP's servers have it: "X-Tenant".
func canonical(name string) string {
	out, begins := []byte(strings.ToLower(name)), true
	for i, c := range out {
		if begins && c >= 'a' && c <= 'z' {
			out[i] = c - 'a' + 'A'
		}
		begins = c == '-'
	}
	return string(out)
}

// secretHeaders are not sent to a logger, whoever asks for them.
var secretHeaders = map[string]bool{"authorization": true, "cookie": true, "proxy-authorization": true, "x-api-key": true}

// checkURL checks the URL of a server to be called.
func checkURL(r *manifest.Reader, path, text string) {
	switch {
	case text == "":
		r.Errorf(path, "is missing: write the URL of a server")
	case !isURL(text):
		r.Refuse(path, "%q is not the URL of a server: write http://HOST/PATH or https://HOST/PATH", manifest.Clip(text))
	}
}

func isURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

// readBatcher reads how requests of a component are gathered.
func readBatcher(r *manifest.Reader, path string, in *batcher) *service.Batcher {
	if in == nil {
		return nil
	}
	out := &service.Batcher{MaxSize: service.DefaultBatchSize, MaxLatency: service.DefaultBatchLatency}
	manifest.CheckNotNegative(r.Report, path+".maxBatchSize", in.MaxBatchSize)
	manifest.CheckNotNegative(r.Report, path+".maxLatency", in.MaxLatency)
	if n := in.MaxBatchSize; n != nil && *n > 0 { // 0 is the default, as in KServe
		out.MaxSize = *n
	}
	if n := in.MaxLatency; n != nil && *n > 0 {
		out.MaxLatency = time.Duration(min(*n, maxLatency)) * time.Millisecond
	}
	return out
}

// maxLatency is the longest that a request may wait for others, in milliseconds.
const maxLatency = 60_000

// explainerImages are KServe's images of explainers, with the version of each where none
// is stated, and the flag that names the type; "" for none.
var explainerImages = map[string]struct{ image, version, flag string }{
	"art":   {"kserve/art-explainer", "latest", "--adversary_type"},
	"alibi": {"kserve/alibi-explainer", "latest", ""},
	"aix":   {"kserve/aix-explainer", "v0.10.1", "--explainer_type"},
}

// readExplainer reads an explainer: containers, or one that KServe has an image of.
func readExplainer(r *manifest.Reader, s *service.Service, path string, e *explainer) {
	e.Containers = e.Custom.over(e.Containers)
	stated := 0
	source, at := &service.ModelSource{}, ""
	for name, known := range map[string]*knownExplainer{"art": e.ART, "alibi": e.Alibi, "aix": e.AIX} {
		if known == nil {
			continue
		}
		if stated++; stated == 1 {
			manifest.CheckContainer(r.Report, path+"."+name, known.Container)
			e.Containers = append([]corev1.Container{known.container(name)}, e.Containers...)
			source, at = readSource(r, path+"."+name, known.StorageURI, known.Storage), path+"."+name+".storage"
			if known.StorageURI != "" {
				at += "Uri"
				manifest.CheckURI(r.Report, at, source.URI, false)
			}
		}
	}
	if stated > 1 {
		r.Errorf(path, "has %d explainers: keep one", stated)
	}
	c := readComponent(r, s.Namespace, path, e.PodSpec, &e.extension)
	manifest.CheckOneCanary(r.Report, path, e.CanaryTrafficPercent, s)
	if len(e.Containers) == 0 {
		r.Errorf(path+".containers", "is missing: say what explains")
	}
	c.Main = manifest.MainOf(c.Pod.Containers, mainContainer)
	c.Subcommand = stated > 0
	c.Parts = readParts(r, path+".storageUris", e.StorageURIs, false)
	switch {
	case source.URI != "" && len(e.StorageURIs) > 0:
		r.Errorf(at, "and the explainer's storageUris both say where its files are: remove one")
	case source.URI != "":
		c.Parts, c.Storage = service.Parts{{URI: source.URI, Path: service.MountPath}}, source.Storage
	}
	manifest.ReadOtherAnnotations(r.Report, path+".annotations", manifest.KServePrefix, c, s.Annotations)
	s.Components.Explainer = c
}

// container is a known explainer's, with the arguments that KServe gives it. Where
// its predictor is, and its port, are added before them when it is rendered: alibi's type
// is a subcommand, after which nothing else is read.
func (e *knownExplainer) container(name string) corev1.Container {
	c, image := e.Container, explainerImages[name]
	c.Name = mainContainer
	if c.Image == "" {
		version := image.version
		if e.RuntimeVersion != "" {
			version = e.RuntimeVersion
		}
		c.Image = image.image + ":" + version
	}
	var args []string
	if e.StorageURI != "" || e.Storage != nil {
		args = append(args, "--storage_uri", service.MountPath)
	}
	if image.flag != "" && e.Type != "" {
		args = append(args, image.flag)
	}
	if e.Type != "" {
		args = append(args, e.Type)
	}
	for _, key := range slices.Sorted(maps.Keys(e.Config)) {
		args = append(args, "--"+key, e.Config[key])
	}
	c.Args = append(args, c.Args...)
	return c
}
