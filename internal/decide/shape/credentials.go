package shape

import (
	"cmp"
	"encoding/json"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/credentials"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// Account is [credentials.Account]. What is in the secrets, and their annotations, is
// not known here.
type Account = credentials.Account

// AccountOf names the service account whose secrets fetch a role's model; "" is
// none, since nothing is fetched or nothing of it is secret.
func AccountOf(rev *workload.Revision, c *workload.Component) string {
	r := renderer{rev: rev, c: *c, m: rev.ModelOf(c.Role)}
	asks := func(uri string) bool {
		scheme, _, _ := strings.Cut(uri, "://")
		return slices.Contains(guarded, scheme) || r.byOthers(uri)
	}
	own := asks(r.m.URI) && (rev.Kept == nil || c.Files != nil)
	if c.Repository == "" && !own && !slices.ContainsFunc(r.m.Others(), asks) || r.m.Verbatim || !r.bearsModel() {
		return ""
	}
	pod := c.Pod
	if c.Leader != nil {
		pod = c.Leader.Pod
	}
	return credentials.AccountName(&pod)
}

// guarded are the schemes of stores that ask who one is.
var guarded = []string{"s3", "storage", "gs", "hf", "https", "az", "oci"}

// KServe's file of Google's credentials, as a key of a secret, and where the
// fetching container has it.
const (
	googleKey    = "gcloud-application-credentials.json"
	googleMount  = "/var/secrets"
	googleVolume = "roundhouse-google"
)

// grant hands the secrets of the pod's account to the container that fetches
// the model, each as it is or not at all, and where the store is, as the
// annotations of the account, or of the service, say. What the container that
// serves states itself goes before all of it.
func (r *renderer) grant(pod *corev1.PodSpec, c *corev1.Container, schemes ...string) {
	a, known := r.o.Accounts[credentials.AccountName(pod)]
	var from []corev1.EnvFromSource
	secrets := a.Own(credentials.AccountName(pod))
	if one := r.annotation(credentials.StorageAnnotation); one != "" { // KServe's for one secret in place of the account's
		secrets = []string{one}
	}
	for _, name := range secrets {
		from = append(from, corev1.EnvFromSource{SecretRef: &corev1.SecretEnvSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: name}, Optional: new(true)}})
	}
	c.EnvFrom = append(from, c.EnvFrom...) // the last one counts
	if known && slices.ContainsFunc(schemes, func(s string) bool { return slices.Contains(guarded, s) }) {
		c.Env = append(c.Env, corev1.EnvVar{Name: whoseVariable, Value: r.whose(credentials.AccountName(pod), secrets, c)})
	}
	if slices.Contains(schemes, "s3") || slices.Contains(schemes, "storage") {
		for _, name := range slices.Sorted(maps.Keys(credentials.Annotated)) {
			for _, of := range []map[string]string{r.c.Annotations, r.rev.Annotations, a.Annotations} {
				if v := of[name]; v != "" {
					setEnv(c, credentials.Annotated[name], v)
				}
			}
		}
		bundle(pod, c, cmp.Or(r.annotation(bundleAnnotation), a.Annotations[bundleAnnotation]))
	}
	const variable = "GOOGLE_APPLICATION_CREDENTIALS"
	if slices.Contains(schemes, "gs") && len(secrets) == 1 && !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == variable }) {
		if volumeOf(pod, googleVolume) == nil { // the model's, or an adapter's
			pod.Volumes = append(pod.Volumes, corev1.Volume{Name: googleVolume, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
				SecretName: secrets[0], Optional: new(true), Items: []corev1.KeyToPath{{Key: googleKey, Path: googleKey}}}}})
		}
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: googleVolume, MountPath: googleMount, ReadOnly: true})
		setEnv(c, variable, path.Join(googleMount, googleKey))
	}
}

// whoseVariable tells the container that fetches, for its last words, where its
// credentials come from.
const whoseVariable = "ROUNDHOUSE_CREDENTIALS"

// whose names the secrets that a model is fetched with: those of variables, and
// the account's.
func (r *renderer) whose(account string, secrets []string, c *corev1.Container) string {
	var out []string
	for _, e := range c.Env {
		if from := e.ValueFrom; from != nil && from.SecretKeyRef != nil {
			out = append(out, "the secret "+from.SecretKeyRef.Name+", key "+from.SecretKeyRef.Key+" (as "+e.Name+")")
		}
	}
	for _, from := range c.EnvFrom {
		if ref := from.SecretRef; ref != nil && !slices.Contains(secrets, ref.Name) {
			out = append(out, "the secret "+ref.Name)
		}
	}
	switch {
	case r.annotation(credentials.StorageAnnotation) != "":
		out = append(out, "the secret "+secrets[0])
	case len(secrets) > 0:
		out = append(out, "the service account "+account+", which lists "+strings.Join(secrets, ", "))
	case len(out) == 0:
		out = append(out, "the service account "+account+", which lists no secret")
	}
	return strings.Join(out, ", and of ")
}

// The variables that a store's key of KServe's storage, and the manifest's
// parameters, are handed on in. Nobody but the kubelet reads the secret.
const (
	storageConfig   = "STORAGE_CONFIG"
	storageOverride = "STORAGE_OVERRIDE_CONFIG"
)

// storage hands the container that fetches the model the secret that the
// manifest's storage names. A key that the manifest does not state may be
// missing; one that it does keeps the pod waiting, with that reason in its
// status.
func (r *renderer) storage(c *corev1.Container) {
	st := r.m.Storage
	if st == nil {
		return
	}
	secret := cmp.Or(r.annotation(credentials.StorageAnnotation), credentials.StorageSecret)
	key, optional := credentials.StorageKey(*st)
	c.Env = append(c.Env, corev1.EnvVar{Name: storageConfig, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: secret}, Key: key, Optional: new(optional)}}})
	if len(st.Parameters) > 0 {
		raw, _ := json.Marshal(st.Parameters) // strings always encode
		c.Env = append(c.Env, corev1.EnvVar{Name: storageOverride, Value: string(raw)})
	}
}

// byModel hands the container that fetches the model the secret that the model object
// names: of a hub its token, and of another store all that it says. Both may be missing,
// as in OME. Adapters are fetched without it.
func (r *renderer) byModel(c *corev1.Container, scheme string) {
	by := r.m.Secret
	if by == nil {
		return
	}
	name := corev1.LocalObjectReference{Name: by.Secret}
	if !strings.EqualFold(scheme, "hf") {
		c.EnvFrom = append(c.EnvFrom, corev1.EnvFromSource{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: name, Optional: new(by.Optional)}})
		return
	}
	c.Env = slices.DeleteFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == hubToken })
	c.Env = append(c.Env, corev1.EnvVar{Name: hubToken, ValueFrom: &corev1.EnvVarSource{
		SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: name, Key: by.Key, Optional: new(by.Optional)}}})
}

// hubToken is the variable that opens the Hub.
const hubToken = "HF_TOKEN"

// annotation is one of the service's; what its component says goes before.
func (r *renderer) annotation(name string) string {
	if v := r.c.Annotations[name]; v != "" {
		return v
	}
	return r.rev.Annotations[name]
}

// KServe's annotation for a ConfigMap with the authorities of an S3 store's
// certificate, the key that has them, and where the container has it.
const (
	bundleAnnotation = credentials.AuthoritiesAnnotation
	bundleKey        = service.AuthoritiesKey
	bundleMount      = "/etc/ssl/custom-certs"
	bundleVolume     = "roundhouse-cabundle"
)

// bundle mounts the authorities that the ConfigMap of a name has, beside those
// of the image.
func bundle(pod *corev1.PodSpec, c *corev1.Container, configMap string) {
	if configMap == "" || slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "SSL_CERT_FILE" }) {
		return
	}
	if volumeOf(pod, bundleVolume) == nil {
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: bundleVolume, VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: configMap}, Items: []corev1.KeyToPath{{Key: bundleKey, Path: bundleKey}}}}})
	}
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: bundleVolume, MountPath: bundleMount, ReadOnly: true})
	setEnv(c, "SSL_CERT_FILE", path.Join(bundleMount, bundleKey))
}

func volumeOf(pod *corev1.PodSpec, name string) *corev1.Volume {
	for i := range pod.Volumes {
		if pod.Volumes[i].Name == name {
			return &pod.Volumes[i]
		}
	}
	return nil
}
