package shape

import (
	"encoding/json"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// What KServe's storage is on a cluster: the secret that has a key for each
// store, the annotation that names another, and the variables that a store's
// key and the manifest's parameters are handed on in. Nobody but the kubelet
// reads the secret.
const (
	storageSecret     = "storage-config"
	storageAnnotation = "serving.kserve.io/storageSecretName"
	storageConfig     = "STORAGE_CONFIG"
	storageOverride   = "STORAGE_OVERRIDE_CONFIG"
	storageDefault    = "default"
)

// storage hands the container that fetches the model the secret that the
// manifest's storage names. A key that the manifest does not state may be
// missing; one that it does keeps the pod waiting, which says so.
func (r *renderer) storage(c *corev1.Container) {
	st := r.rev.Model.Storage
	if st == nil {
		return
	}
	secret, key := r.annotation(storageAnnotation), st.Key
	if secret == "" {
		secret = storageSecret
	}
	if key == "" {
		key = storageDefault
		if kind := st.Parameters["type"]; kind != "" {
			key += "_" + kind
		}
	}
	c.Env = append(c.Env, corev1.EnvVar{Name: storageConfig, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: secret}, Key: key, Optional: new(st.Key == "")}}})
	if len(st.Parameters) > 0 {
		raw, _ := json.Marshal(st.Parameters) // strings always encode
		c.Env = append(c.Env, corev1.EnvVar{Name: storageOverride, Value: string(raw)})
	}
}

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
	bundleAnnotation = "serving.kserve.io/s3-cabundle-configmap"
	bundleKey        = "cabundle.crt"
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
