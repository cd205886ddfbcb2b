package shape

import (
	"cmp"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"roundhouse.dev/roundhouse/internal/core/network"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

const (
	// modelPath is where KServe and OME put a model inside a container.
	modelPath = service.MountPath
	// modelVolume holds the model in a pod.
	modelVolume = "roundhouse-model"
	// Fetcher is the init container that brings it.
	Fetcher = "roundhouse-model"
	// Waiter is the init container that waits for it, where it is brought while
	// the image of the server is pulled.
	Waiter = "roundhouse-await"
	// Finder is the init container that looks whether a path is in a model that the node
	// keeps, before the server mounts it.
	Finder = "roundhouse-find"
)

// model puts the role's model into the pod, at modelPath of the main
// container.
func (r *renderer) model(pod *corev1.PodSpec, main *corev1.Container) error {
	if r.c.Repository != "" {
		return r.repository(pod, main)
	}
	uri := r.m.URI
	if uri == "" || r.m.Verbatim || !r.bearsModel() {
		return nil
	}
	if len(r.m.Parts) > 0 {
		return r.parts(pod, main)
	}
	if r.rev.Kept != nil || r.rev.Delivery.Store != "" && !r.byOthers(uri) {
		if err := private(pod); err != nil {
			return err
		}
	}
	if r.kept(pod, main) {
		return nil
	}
	return r.bring(pod, main, files{what: "model", uri: uri, at: modelPath, volume: modelVolume, fetcher: Fetcher})
}

// private refuses a manifest that mounts the volume of the model by its name: where it is a
// folder of the node, it has the models of others too, to read and to write.
func private(pod *corev1.PodSpec) error {
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == modelVolume }) {
			return fmt.Errorf("container %q mounts the volume %s, which is a folder of the node with more models than its own: take the volumeMount away", c.Name, modelVolume)
		}
	}
	return nil
}

// parts puts the files of a model that comes from several URIs into the pod, each into
// a volume at its own path, or into one with those that lie in the same folder or below.
func (r *renderer) parts(pod *corev1.PodSpec, main *corev1.Container) error {
	parts := r.m.Parts
	if i, j, ok := parts.Overlap(); ok {
		return fmt.Errorf("model: %s is mounted, at %s, and %s cannot lie in one folder with it, at %s: give each URI a mountPath of its own, as %s/NAME",
			service.RedactURI(parts[i].URI), parts[i].Path, service.RedactURI(parts[j].URI), parts[j].Path, modelPath)
	}
	for i := len(parts) - 1; i >= 0; i-- { // init containers are put in front
		f := files{what: "model", uri: parts[i].URI, at: parts[i].Path, fetcher: partName(i), part: true}
		f.folder, f.merge = parts.Folder(i)
		f.volume = partName(slices.IndexFunc(parts, func(q service.Part) bool { return q.Path == f.folder }))
		if err := r.bring(pod, main, f); err != nil {
			return err
		}
	}
	return nil
}

// partPrefix begins the names of the volume and the init container of a model's further
// part.
const partPrefix = Fetcher + "-"

// partName names a part's init container, and its volume.
func partName(i int) string {
	if i == 0 {
		return Fetcher
	}
	return partPrefix + strconv.Itoa(i+1)
}

// FetchesModel reports whether an init container brings the model, or a part of it.
func FetchesModel(container string) bool {
	return container == Fetcher || strings.HasPrefix(container, partPrefix)
}

// files are what a pod needs at a path: the model, a part of it, or an adapter.
type files struct {
	what, uri, at   string
	volume, fetcher string // names of the volume and of the init container
	part            bool   // one of several: it is fetched before the server's image is pulled
	// folder is what the volume holds, at or above the path of a part; merge is for one
	// that holds others too.
	folder string
	merge  bool
}

// bring puts files into the pod, at their path of the main container.
func (r *renderer) bring(pod *corev1.PodSpec, main *corev1.Container, f files) error {
	uri := f.uri
	scheme, rest, found := strings.Cut(uri, "://")
	switch {
	case !found, scheme == "file":
		return fmt.Errorf(f.what+" %s: a file of one machine is not there for pods: put it into a bucket (s3://, gs://, https://) or a volume (pvc://CLAIM/PATH)", service.RedactURI(uri))
	case scheme == "upload":
		return fmt.Errorf(f.what+" %s: it was uploaded to one machine: put it into a bucket (s3://, gs://, https://) or a volume (pvc://CLAIM/PATH)", service.RedactURI(uri))
	case scheme == "pvc":
		return mountClaim(pod, main, f, rest, r.rev.Service.Namespace)
	case Fetches(scheme):
	default:
		if by, ok := r.rev.Brought[uri]; ok {
			r.brought(pod, main, f, by)
			return nil
		}
		return fmt.Errorf(f.what+" %s: nothing fetches from %s://: put it into a bucket (s3://, gs://, az://, https://), a volume (pvc://CLAIM/PATH), or on a hub (hf://, oci://), or apply a ClusterStorageContainer for it", service.RedactURI(uri), scheme)
	}
	return r.fetch(pod, main, f)
}

// Fetches reports whether a scheme is one that the fetching container reads, which
// takes it in whichever case.
func Fetches(scheme string) bool {
	scheme = strings.ToLower(strings.TrimSpace(scheme))
	return scheme == "http" || slices.Contains(guarded, scheme)
}

// mountClaim mounts the folder of a claim: "claim/path" as KServe writes it, or
// OME's "namespace:claim/path" where that is the pod's own namespace.
func mountClaim(pod *corev1.PodSpec, main *corev1.Container, f files, rest, namespace string) error {
	claim, sub, _ := strings.Cut(strings.TrimPrefix(rest, namespace+":"), "/")
	if claim == "" || strings.Contains(claim, ":") {
		return fmt.Errorf(f.what+" pvc://%s: write pvc://CLAIM/PATH, with a claim of the service's own namespace", rest)
	}
	sub = strings.Trim(sub, "/")
	if slices.Contains(strings.Split(sub, "/"), "..") {
		return fmt.Errorf(f.what+" pvc://%s: the path leaves the volume", rest)
	}
	if mountAt(main, f.at) != nil {
		return fmt.Errorf(f.what+" pvc://%s: container %q mounts %s already: take its volumeMount or the URI away", rest, main.Name, f.at)
	}
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: f.volume, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim, ReadOnly: true}}})
	main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: f.volume, MountPath: f.at, SubPath: sub, ReadOnly: true})
	return nil
}

// fetch has an init container of our own image bring the files.
func (r *renderer) fetch(pod *corev1.PodSpec, main *corev1.Container, f files) error {
	if r.rev.Image == "" {
		return fmt.Errorf(f.what+" %s: the image that fetches it is not known: give the controller --image", service.RedactURI(f.uri))
	}
	mount, shared := r.place(pod, main, f)
	args := []string{"pull", f.uri, "--out", f.at}
	if f.merge {
		args = append(args, "--merge")
	}
	env, mounts := credentialsOf(main)
	security := restricted()
	security.ReadOnlyRootFilesystem = new(true)
	c := corev1.Container{
		Name: f.fetcher, Image: r.rev.Image,
		Args:    args,
		Env:     env,
		EnvFrom: slices.Clone(main.EnvFrom),
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
		},
		VolumeMounts:    append([]corev1.VolumeMount{mount}, mounts...),
		SecurityContext: security,
	}
	if err := r.public(&c, f); err != nil {
		return err
	}
	if f.fetcher == Fetcher {
		r.storage(&c)
	}
	scheme, _, _ := strings.Cut(f.uri, "://")
	if f.what == "model" && !f.part {
		r.byModel(&c, scheme)
	}
	r.grant(pod, &c, scheme)
	if shared {
		r.keep(&c, f.uri)
	}
	// An image of ours is on the node, since the program that fetches is in it.
	if shared || f.fetcher == Fetcher && !f.part && r.rev.Delivery.Beside && main.Image != r.rev.Image {
		r.beside(pod, main, &c)
	}
	pod.InitContainers = append([]corev1.Container{c}, pod.InitContainers...)
	return nil
}

// brought has a container of the operator's bring files of a store that this program does
// not know, as KServe runs it: its arguments are the URI and the folder, and it gets the
// credentials that a container of ours would.
func (r *renderer) brought(pod *corev1.PodSpec, main *corev1.Container, f files, by corev1.Container) {
	mount, _ := r.place(pod, main, f)
	c := by.DeepCopy()
	c.Name, c.Args, c.VolumeMounts = f.fetcher, []string{f.uri, f.at}, nil
	// What would have it run beside the server, or the API server refuse the pod.
	c.RestartPolicy, c.Lifecycle, c.ReadinessProbe, c.LivenessProbe, c.StartupProbe, c.Ports = nil, nil, nil, nil, nil, nil
	env, mounts := credentialsOf(main)
	for _, e := range env {
		if !slices.ContainsFunc(c.Env, func(own corev1.EnvVar) bool { return own.Name == e.Name }) {
			c.Env = append(c.Env, e)
		}
	}
	c.EnvFrom = append(c.EnvFrom, main.EnvFrom...)
	c.VolumeMounts = append([]corev1.VolumeMount{mount}, mounts...)
	if c.SecurityContext == nil {
		c.SecurityContext = restricted()
	}
	scheme, _, _ := strings.Cut(f.uri, "://")
	if f.fetcher == Fetcher {
		r.storage(c)
	}
	if f.what == "model" && !f.part {
		r.byModel(c, scheme)
	}
	r.grant(pod, c, scheme)
	pod.InitContainers = append([]corev1.Container{*c}, pod.InitContainers...)
}

// byOthers reports whether a container of the operator's fetches a URI. What it leaves
// in a folder is not known, so that it stays in the pod.
func (r *renderer) byOthers(uri string) bool { _, ok := r.rev.Brought[uri]; return ok }

// place mounts for the server what the files lie in, and returns the mount of the
// container that fetches them, and whether it is the node's store.
func (r *renderer) place(pod *corev1.PodSpec, main *corev1.Container, f files) (mount corev1.VolumeMount, shared bool) {
	at := f.at
	if mountAt(main, at) == nil {
		at = cmp.Or(f.folder, at)
	}
	if own := mountAt(main, at); own != nil { // a volume of the user's, such as a cache, or of another part
		mount = *own
		mount.ReadOnly = false
		return mount, false
	}
	mount = corev1.VolumeMount{Name: f.volume, MountPath: at}
	if f.fetcher == Fetcher && !f.part && r.rev.Delivery.Store != "" && !r.byOthers(f.uri) {
		mount.MountPath = storePath
		r.share(pod, main)
		return mount, true
	}
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: f.volume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: f.volume, MountPath: at, ReadOnly: true})
	return mount, false
}

// credentialNames are the variables that reading a model looks at, and
// credentialPrefixes the families of them.
var (
	credentialNames = []string{"STORAGE_EMULATOR_HOST", "awsAnonymousCredential", "awsAccessKeyID", "awsSecretAccessKey", "HUGGING_FACE_HUB_TOKEN", "DOCKER_CONFIG", "REGISTRY_AUTH_FILE",
		"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"}
	credentialPrefixes = []string{"AWS_", "S3_", "GOOGLE_", "HF_", "AZURE_", "AZ_"}
	// headers for one host of https, as KServe names them
	credentialSuffix = "-headers"
)

func isCredential(name string) bool {
	return slices.Contains(credentialNames, name) || strings.HasSuffix(name, credentialSuffix) ||
		slices.ContainsFunc(credentialPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// credentialsOf returns the variables of a container that reading a model looks at,
// and the mounts of files they name.
func credentialsOf(main *corev1.Container) (env []corev1.EnvVar, mounts []corev1.VolumeMount) {
	for _, e := range main.Env {
		if !isCredential(e.Name) {
			continue
		}
		env = append(env, *e.DeepCopy())
		if !strings.HasPrefix(e.Value, "/") {
			continue
		}
		if m := mountOf(main, e.Value); m != nil && !slices.ContainsFunc(mounts, func(have corev1.VolumeMount) bool { return have.MountPath == m.MountPath }) {
			copied := *m.DeepCopy()
			copied.ReadOnly = true
			mounts = append(mounts, copied)
		}
	}
	return env, mounts
}

// mountOf is the innermost mount that holds a file, nil when none does or when
// it is the model's own.
func mountOf(c *corev1.Container, file string) *corev1.VolumeMount {
	var best *corev1.VolumeMount
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		at := path.Clean(m.MountPath)
		if (file == at || strings.HasPrefix(file, strings.TrimSuffix(at, "/")+"/")) && at != modelPath &&
			(best == nil || len(at) > len(path.Clean(best.MountPath))) {
			best = m
		}
	}
	return best
}

func mountAt(c *corev1.Container, at string) *corev1.VolumeMount {
	for i := range c.VolumeMounts {
		if path.Clean(c.VolumeMounts[i].MountPath) == at {
			return &c.VolumeMounts[i]
		}
	}
	return nil
}

// environment gives a container the model's path in MODEL_PATH, as OME's
// runtimes expect, and its port in PORT where its command line asks for that.
func (r *renderer) environment(c *corev1.Container, at workload.Location) {
	var known []corev1.EnvVar
	if r.m.URI != "" && r.bearsModel() {
		known = append(known, corev1.EnvVar{Name: "MODEL_PATH", Value: at.ModelPath})
	}
	if strings.Contains(strings.Join(slices.Concat(c.Command, c.Args), " "), "$(PORT)") {
		known = append(known, corev1.EnvVar{Name: "PORT", Value: strconv.Itoa(at.Port)})
	}
	known = slices.DeleteFunc(known, func(e corev1.EnvVar) bool {
		return slices.ContainsFunc(c.Env, func(have corev1.EnvVar) bool { return have.Name == e.Name })
	})
	c.Env = append(known, c.Env...) // first, so that others may refer to them
}

// bearsModel reports whether the role's pods have the model, or files of their own.
func (r *renderer) bearsModel() bool { return r.serves() || r.c.Files != nil }

// serves reports whether the role serves the model, rather than calling who does.
func (r *renderer) serves() bool {
	return r.c.Role == service.RoleEngine || r.c.Role == service.RoleDecoder
}

const (
	// adaptersPath is where a container has a folder for each adapter.
	adaptersPath = "/mnt/adapters"
	// adapterPrefix begins the names of an adapter's volume and init container.
	adapterPrefix = "roundhouse-adapter-"
)

// adapters puts the revision's adapters into the pod.
func (r *renderer) adapters(pod *corev1.PodSpec, main *corev1.Container) error {
	list := r.m.Adapters
	if r.m.Verbatim || !r.bearsModel() {
		return nil
	}
	for i := len(list) - 1; i >= 0; i-- { // init containers are put in front
		name := adapterPart(list[i].Name)
		if err := r.bring(pod, main, files{what: fmt.Sprintf("adapter %q", list[i].Name), uri: list[i].URI,
			at: path.Join(adaptersPath, list[i].Name), volume: name, fetcher: name}); err != nil {
			return err
		}
	}
	return nil
}

// adapterPaths are where the main container has the adapters.
func (r *renderer) adapterPaths() map[string]string {
	out := make(map[string]string, len(r.m.Adapters))
	for _, a := range r.m.Adapters {
		if out[a.Name] = path.Join(adaptersPath, a.Name); r.m.Verbatim {
			out[a.Name] = a.URI
		}
	}
	return out
}

// adapterPart names what an adapter has in a pod, as a label of 63 characters.
func adapterPart(adapter string) string {
	return adapterPrefix + fit(adapter, strings.ReplaceAll(adapter, ".", "-"), maxAdapterPart)
}

// maxAdapterPart is how much of a label an adapter's name may take.
const maxAdapterPart = 63 - len(adapterPrefix)

// AdapterOf is the adapter that an init container brings, by a name that a long
// one is cut to.
func AdapterOf(container string) (adapter string, ok bool) {
	return strings.CutPrefix(container, adapterPrefix)
}

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

// Variables that name the Hugging Face Hub: hubVariable to all of its clients, and
// hubDefault to `roundhouse pull` where hubVariable is not set. It may be set in
// secrets that the kubelet alone reads, and must count then.
const (
	hubVariable = "HF_ENDPOINT"
	hubDefault  = "ROUNDHOUSE_HF_ENDPOINT"
)

// hub has the pod's containers ask the cluster's cache of the Hub, unless they name
// another. What a container's envFrom sets is not known, so one that has it stays
// as it is.
func (r *renderer) hub(pod *corev1.PodSpec) {
	if r.o.HubEndpoint == "" {
		return
	}
	for _, list := range [][]corev1.Container{pod.InitContainers, pod.Containers} {
		for i := range list {
			c := &list[i]
			if c.Name == Waiter || c.Name == Finder {
				continue
			}
			_, adapter := AdapterOf(c.Name)
			name := hubVariable
			if fetches := c.Image == r.rev.Image && (adapter || FetchesModel(c.Name) || c.Name == Agent); fetches {
				name = hubDefault
			} else if len(c.EnvFrom) > 0 {
				continue
			}
			if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name }) {
				c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: r.o.HubEndpoint})
			}
		}
	}
}
