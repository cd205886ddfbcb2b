package process

import (
	"os"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

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
	if m := from.ConfigMapKeyRef; m != nil && m.Optional != nil && *m.Optional {
		return "", false, nil
	}
	return "", false, failf("InvalidEnv", "variable %s takes its value from what only a cluster has: give it a value", e.Name)
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
