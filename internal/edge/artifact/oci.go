package artifact

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path"
	"runtime"
	"strings"
	"sync"
	"time"
)

// ociSource reads images and artifacts of registries, over the OCI
// distribution specification: the layers that have a file's name as that file,
// an image's as what its /models holds, as KServe has it.
type ociSource struct {
	requests *requester
	env      environment

	mu     sync.Mutex
	grants map[string]ociGrant // by registry and repository
}

var ociHints = hints{
	denied:  "access denied, or no such repository; run `docker login REGISTRY`, or name a file of credentials in REGISTRY_AUTH_FILE",
	missing: "no such repository or tag; check the URI",
}

func (o *ociSource) hints() hints { return ociHints }

// ociRef is what a URI names: oci://[REGISTRY/]REPOSITORY[:TAG|@DIGEST]. As in
// Docker, a first part without a dot or a port is no registry, and then it is
// Docker Hub.
type ociRef struct {
	host      string // host[:port]
	name      string // of the repository
	reference string // tag or digest
}

func parseOCI(loc location) (ociRef, error) {
	full := strings.Trim(loc.url.Host+loc.url.Path, "/")
	if parts := strings.Split(full, "/"); len(parts) > 4 && parts[0] == "n" && parts[2] == "b" {
		return ociRef{}, fmt.Errorf("%s: Oracle's object storage is not read; use its S3 address, or a registry's oci://REGISTRY/NAME", loc)
	}
	r := ociRef{host: "docker.io", reference: "latest"}
	if first, rest, ok := strings.Cut(full, "/"); ok && (strings.ContainsAny(first, ".:") || first == "localhost") {
		r.host, full = first, rest
	}
	name, digest, pinned := strings.Cut(full, "@")
	if i := strings.LastIndexByte(name, ':'); i >= 0 {
		name, r.reference = name[:i], name[i+1:]
	}
	if pinned {
		r.reference = digest
	}
	if r.host == "docker.io" && !strings.Contains(name, "/") {
		name = "library/" + name
	}
	r.name = name
	if !ociName().MatchString(name) || !ociReference().MatchString(r.reference) {
		return r, fmt.Errorf("%s: write oci://REGISTRY/REPOSITORY[:TAG] or …@sha256:DIGEST", loc)
	}
	return r, nil
}

var (
	ociName      = pattern(`^[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*$`)
	ociReference = pattern(`^([A-Za-z0-9_][A-Za-z0-9._-]{0,127}|sha256:[0-9a-f]{64})$`)
)

// base is the registry's address. One on this machine is asked over http.
func (r ociRef) base() string {
	host := r.host
	if host == "docker.io" {
		host = "registry-1.docker.io"
	}
	bare := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		bare = h
	}
	if ip := net.ParseIP(bare); bare == "localhost" || ip != nil && ip.IsLoopback() {
		return "http://" + host
	}
	return "https://" + host
}

// The media types of manifests, and what else in them is read.
var ociManifests = []string{
	"application/vnd.oci.image.index.v1+json", "application/vnd.oci.image.manifest.v1+json",
	"application/vnd.docker.distribution.manifest.list.v2+json", "application/vnd.docker.distribution.manifest.v2+json",
}

const (
	// maxManifest bounds a manifest or index of a registry.
	maxManifest = 4 << 20
	// maxLayers bounds the layers of an image or artifact.
	maxLayers = 1000
)

type ociDescriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations"`
	Platform    *struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
	} `json:"platform"`
}

type ociManifest struct {
	Manifests []ociDescriptor `json:"manifests"` // of an index
	Layers    []ociDescriptor `json:"layers"`
}

func (o *ociSource) list(ctx context.Context, loc location, prior *record) (listing, error) {
	ref, err := parseOCI(loc)
	if err != nil {
		return listing{}, err
	}
	m, err := o.manifest(ctx, loc, ref, ref.reference)
	if err == nil && len(m.Manifests) > 0 {
		var d ociDescriptor
		if d, err = m.ours(loc); err == nil {
			m, err = o.manifest(ctx, loc, ref, d.Digest)
		}
	}
	if err != nil {
		return listing{}, err
	}
	l := listing{folder: true}
	if l.objects, err = m.objects(loc, ref); err != nil {
		return listing{}, err
	}
	l.unchanged = prior != nil && sameObjects(prior.Objects, l.objects)
	return l, nil
}

// manifest reads a manifest by tag or digest.
func (o *ociSource) manifest(ctx context.Context, loc location, ref ociRef, reference string) (m ociManifest, err error) {
	body, _, err := o.requests.fetchSmall(ctx, loc.String(), ociHints, maxManifest, func(ctx context.Context) (*http.Request, error) {
		req, err := o.authorised(ctx, loc, ref, "manifests/"+reference)
		if err == nil {
			req.Header["Accept"] = ociManifests
		}
		return req, err
	})
	if err != nil {
		return m, err
	}
	if want, ok := strings.CutPrefix(reference, "sha256:"); ok && digest(string(body)) != want {
		return m, fmt.Errorf("%s: the registry's manifest does not have its digest %s", loc, reference)
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return m, fmt.Errorf("%s: the answer is no manifest of a registry: %w", loc, err)
	}
	if len(m.Layers) > maxLayers || len(m.Manifests) > maxLayers {
		return m, fmt.Errorf("%s: more than %d layers or platforms", loc, maxLayers)
	}
	return m, nil
}

// ours picks this machine's platform out of an index. Pods run Linux, and so
// do the models of an image that names no other system.
func (m ociManifest) ours(loc location) (ociDescriptor, error) {
	var said []string
	for _, d := range m.Manifests {
		if _, ok := strings.CutPrefix(d.Digest, "sha256:"); !ok {
			continue
		}
		if d.Platform == nil {
			return d, nil
		}
		if d.Platform.OS == "linux" && d.Platform.Architecture == runtime.GOARCH {
			return d, nil
		}
		said = append(said, d.Platform.OS+"/"+d.Platform.Architecture)
	}
	return ociDescriptor{}, fmt.Errorf("%s: there is no image for linux/%s, only for %s", loc, runtime.GOARCH, clip(strings.Join(said, ", ")))
}

// Annotations that name a layer's file: ORAS's, and the model format's of CNCF.
const (
	ociTitle      = "org.opencontainers.image.title"
	ociModelPath  = "org.cncf.model.filepath"
	ociUnpackThis = "io.deis.oras.content.unpack"
)

// objects are the layers: as files where they have names, else as an image.
func (m ociManifest) objects(loc location, ref ociRef) ([]object, error) {
	var out []object
	files := 0
	for i, d := range m.Layers {
		sum, ok := strings.CutPrefix(d.Digest, "sha256:")
		if !ok || !isSHA256(sum) || d.Size < 0 {
			return nil, fmt.Errorf("%s: layer %d has the digest %q: only sha256 is read", loc, i, clip(d.Digest))
		}
		o := object{Size: d.Size, Validator: `"` + d.Digest + `"`, oid: sum, key: ref.name + "/blobs/" + d.Digest}
		title := d.Annotations[ociTitle]
		if title == "" {
			title = d.Annotations[ociModelPath]
		}
		packed := tarKind(d.MediaType)
		switch {
		case title != "" && packed != "" && (d.Annotations[ociUnpackThis] == "true" || strings.HasPrefix(d.MediaType, "application/vnd.cncf.model.")):
			o.Name, o.layer = fmt.Sprintf("layer-%03d", i), packed
			files++
		case title != "":
			o.Name = path.Clean(strings.TrimPrefix(title, "./"))
			files++
		case packed != "":
			o.Name, o.layer, o.image = fmt.Sprintf("layer-%03d", i), packed, true
		case d.MediaType == "application/vnd.oci.empty.v1+json":
			continue
		default:
			return nil, fmt.Errorf("%s: layer %d is of type %q and has no name: neither an image nor an artifact of files", loc, i, clip(d.MediaType))
		}
		out = append(out, o)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: it has no layers", loc)
	}
	if files > 0 && files < len(out) {
		return nil, fmt.Errorf("%s: some layers have a file's name and some have not", loc)
	}
	return out, nil
}

// tarKind is the kind of archive that a media type says; empty for none.
func tarKind(mediaType string) string {
	switch {
	case strings.HasSuffix(mediaType, "tar+gzip"), strings.HasSuffix(mediaType, "tar.gzip"):
		return "tar.gz"
	case strings.HasSuffix(mediaType, "tar+zstd"), strings.HasSuffix(mediaType, "tar.zstd"):
		return "tar.zst"
	case strings.HasSuffix(mediaType, ".tar"), strings.HasSuffix(mediaType, "+tar"):
		return "tar"
	}
	return ""
}

func (o *ociSource) request(ctx context.Context, loc location, obj object, from int64) (*http.Request, error) {
	ref, err := parseOCI(loc)
	if err != nil {
		return nil, err
	}
	req, err := o.authorised(ctx, loc, ref, strings.TrimPrefix(obj.key, ref.name+"/"))
	if err == nil {
		setRange(req, from, obj.to) // a digest's bytes cannot change
	}
	return req, err
}

// authorised makes a request below a repository.
func (o *ociSource) authorised(ctx context.Context, loc location, ref ociRef, what string) (*http.Request, error) {
	grant, err := o.grant(ctx, loc, ref)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, ref.base()+"/v2/"+ref.name+"/"+what, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: not a usable address", loc)
	}
	if grant.header != "" {
		req.Header.Set("Authorization", grant.header)
	}
	return req, nil
}

// ociGrant is what a registry is shown, until it is asked for anew.
type ociGrant struct {
	header string
	until  time.Time
}

// grant asks a registry what it wants to be shown, and gets that.
func (o *ociSource) grant(ctx context.Context, loc location, ref ociRef) (ociGrant, error) {
	o.mu.Lock()
	defer o.mu.Unlock() // one question for all who want the same
	key := ref.host + "/" + ref.name
	if g, ok := o.grants[key]; ok && time.Now().Before(g.until) {
		return g, nil
	}
	g, err := o.ask(ctx, loc, ref)
	if err != nil {
		return g, err
	}
	if o.grants == nil || len(o.grants) >= maxGrants {
		o.grants = map[string]ociGrant{}
	}
	o.grants[key] = g
	return g, nil
}

const (
	// maxGrants bounds the repositories whose tokens are kept.
	maxGrants = 1000
	// grantLife is how long a token counts whose registry does not say.
	grantLife = time.Minute
	// maxGrantLife bounds how long one is believed.
	maxGrantLife = time.Hour
)

func (o *ociSource) ask(ctx context.Context, loc location, ref ociRef) (ociGrant, error) {
	challenge, err := o.challenge(ctx, loc, ref)
	if err != nil {
		return ociGrant{}, err
	}
	none := ociGrant{until: time.Now().Add(grantLife)}
	scheme, parameters := parseChallenge(challenge)
	if challenge == "" {
		return none, nil
	}
	creds, err := o.env.dockerCredentials(ctx, ref)
	if err != nil {
		return none, fmt.Errorf("%s: %w", loc, err)
	}
	switch scheme {
	case "basic":
		if creds.user == "" {
			return none, nil // the registry will say what it thinks of that
		}
		return ociGrant{header: creds.basic(), until: none.until}, nil
	case "bearer":
		return o.token(ctx, loc, ref, parameters, creds)
	}
	return none, fmt.Errorf("%s: the registry wants the authentication %q, which is not known here", loc, clip(scheme))
}

// challenge asks the registry's root; empty means that it wants nothing.
func (o *ociSource) challenge(ctx context.Context, loc location, ref ociRef) (challenge string, err error) {
	err = o.requests.retry(ctx, func() error {
		ctx, w := watch(ctx, o.requests.stall)
		defer w.stop()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, ref.base()+"/v2/", nil)
		if err != nil {
			return fmt.Errorf("%s: not a usable address", loc)
		}
		resp, err := o.requests.client.Do(req)
		if err != nil {
			return transportError(ctx, loc.String(), err)
		}
		defer func() { _ = resp.Body.Close() }()
		switch {
		case resp.StatusCode == http.StatusUnauthorized:
			challenge = resp.Header.Get("WWW-Authenticate")
			if challenge == "" {
				return errors.New(loc.String() + ": the registry refuses and does not say what it wants")
			}
			return nil
		case resp.StatusCode/100 == 2:
			return nil
		}
		return &answerError{uri: loc.String(), status: resp.StatusCode, hint: "is this a registry?", after: retryAfter(resp)}
	}, func() bool { return false })
	return challenge, err
}
