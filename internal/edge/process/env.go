package process

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/credentials"
)

// replicaVariable marks every process of a replica with its id.
const replicaVariable = "ROUNDHOUSE_REPLICA"

// passed are our variables with paths that a model server needs. They hold no
// secret.
var passed = []string{"ROUNDHOUSE_PYTHON", "ROUNDHOUSE_ONNXRUNTIME"}

// environment is what the process is given: this process's own environment
// without what is withheld, then the component's, then what the platform
// decides.
func (u *unit) environment(r *running) ([]string, error) {
	if r.container != nil {
		return u.containerEnvironment(r)
	}
	env := machineEnvironment()
	if u.model.Verbatim { // it reads the store itself
		env = slices.DeleteFunc(os.Environ(), func(e string) bool {
			name, _, _ := strings.Cut(e, "=")
			return withheld(name) && !credential(name)
		})
	}
	env = append(env, u.p.cfg.Env...)
	env = append(env, "PORT="+strconv.Itoa(r.port))
	if r.grpcPort > 0 {
		env = append(env, "GRPC_PORT="+strconv.Itoa(r.grpcPort))
	}
	if r.metricsPort > 0 {
		env = append(env, "METRICS_PORT="+strconv.Itoa(r.metricsPort))
	}
	if r.model != "" {
		env = append(env, "MODEL_PATH="+r.model)
	}
	if len(u.p.gpus.names) > 0 && len(r.gpus) == 0 {
		env = append(env, visibleDevices+"=")
	}
	given, err := u.valuesFrom(r.spec.EnvFrom)
	if err != nil {
		return nil, err
	}
	env = append(env, given...)
	for _, e := range r.spec.Env {
		v, ok, err := u.value(e, u.p.cfg.Host)
		if err != nil {
			return nil, err
		}
		if ok {
			env = append(env, e.Name+"="+v)
		}
	}
	if len(r.gpus) > 0 {
		env = append(env, visibleDevices+"="+u.p.gpus.devices(r.gpus))
	}
	return append(lastOfEach(env), replicaVariable+"="+u.id), nil
}

// machineEnvironment is this process's environment as replicas may see it.
func machineEnvironment() (env []string) {
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		if !withheld(name) {
			env = append(env, e)
		}
	}
	return env
}

// withheld reports whether a variable of this process is kept from replicas:
// what holds a secret of ours, and what opens stores of models, since this
// process brings the models.
func withheld(name string) bool {
	if strings.HasPrefix(name, "ROUNDHOUSE_") {
		return !slices.Contains(passed, name)
	}
	return credential(name)
}

// credential reports whether a variable opens a store of models.
func credential(name string) bool {
	return slices.Contains(credentialNames, name) || strings.HasSuffix(name, "-headers")
}

// credentialNames are those variables, as package artifact reads them.
var credentialNames = []string{
	"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN", "awsAccessKeyID", "awsSecretAccessKey",
	"AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
	"AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
	"GOOGLE_APPLICATION_CREDENTIALS", "gcloud-application-credentials.json",
	"AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_SAS_TOKEN",
	"AZURE_STORAGE_TOKEN", "AZURE_CLIENT_SECRET", "AZ_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE",
	"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "REGISTRY_AUTH_FILE", "headers",
}

// value is the value of a variable of the replica on host; ok is false for an
// optional one that does not exist.
func (u *unit) value(e corev1.EnvVar, host string) (v string, ok bool, err error) {
	from := e.ValueFrom
	if from == nil {
		if e.Value == "" && credential(e.Name) { // asked for by name
			v, ok = os.LookupEnv(e.Name)
			return v, ok, nil
		}
		return e.Value, true, nil
	}
	if f := from.FieldRef; f != nil {
		switch f.FieldPath {
		case "metadata.name":
			return u.id, true, nil
		case "metadata.namespace":
			return u.o.key.Namespace, true, nil
		case "status.podIP", "status.hostIP":
			return host, true, nil
		}
	}
	if s := from.SecretKeyRef; s != nil {
		ref := service.SecretKey{Secret: s.Name, Key: s.Key, Optional: s.Optional != nil && *s.Optional}
		v, ok, err := credentials.Value(u.o.key.Namespace, ref, u.secret)
		if err != nil {
			return "", false, failf("InvalidEnv", "variable %s: %s", e.Name, err)
		}
		return v, ok, nil
	}
	if m := from.ConfigMapKeyRef; m != nil {
		have, err := u.configMap(m.Name, m.Optional)
		v, ok := have[m.Key]
		if err == nil && !ok && have != nil && !optional(m.Optional) {
			err = fmt.Errorf("ConfigMap %q in namespace %q has no key %q: apply it with one", excerpt.Of(m.Name, 80), u.o.key.Namespace, excerpt.Of(m.Key, 80))
		}
		if err != nil {
			return "", false, failf("InvalidEnv", "variable %s: %s", e.Name, err)
		}
		return v, ok, nil
	}
	return "", false, failf("InvalidEnv", "variable %s takes its value from what only a cluster has: give it a value", e.Name)
}

// valuesFrom are variables that ConfigMaps and secrets of the namespace have, in their
// order: of several of a name the last counts.
func (u *unit) valuesFrom(from []corev1.EnvFromSource) (env []string, err error) {
	for i, f := range from {
		var have map[string]string
		switch {
		case f.ConfigMapRef != nil:
			have, err = u.configMap(f.ConfigMapRef.Name, f.ConfigMapRef.Optional)
		case f.SecretRef != nil:
			have, err = credentials.Values(u.o.key.Namespace, f.SecretRef.Name, optional(f.SecretRef.Optional), u.secret)
		}
		if err != nil {
			return nil, failf("InvalidEnv", "envFrom[%d]: %s", i, err)
		}
		for _, name := range slices.Sorted(maps.Keys(have)) {
			env = append(env, f.Prefix+name+"="+have[name])
		}
	}
	return env, nil
}

func optional(o *bool) bool { return o != nil && *o }

// configMap are the entries of a ConfigMap of the replica's namespace; nil for an optional
// one that is not there.
func (u *unit) configMap(name string, o *bool) (map[string]string, error) {
	if u.p.cfg.ConfigMap != nil {
		if m, ok := u.p.cfg.ConfigMap(service.Key{Namespace: u.o.key.Namespace, Name: name}); ok {
			return m.Data, nil
		}
	}
	if optional(o) {
		return nil, nil
	}
	return nil, fmt.Errorf("there is no ConfigMap %q in namespace %q: apply it", excerpt.Of(name, 80), u.o.key.Namespace)
}

// secret finds a secret of the replica's namespace.
func (u *unit) secret(name string) (*service.Secret, bool) {
	if u.p.cfg.Secret == nil {
		return nil, false
	}
	return u.p.cfg.Secret(service.Key{Namespace: u.o.key.Namespace, Name: name})
}

// lastOfEach keeps the last of several values of one variable.
func lastOfEach(env []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, e := range slices.Backward(env) {
		if name, _, _ := strings.Cut(e, "="); !seen[name] {
			seen[name] = true
			out = append(out, e)
		}
	}
	slices.Reverse(out)
	return out
}
