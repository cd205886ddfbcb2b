package process

import (
	"os"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// replicaVariable marks every process of a replica with its id.
const replicaVariable = "ROUNDHOUSE_REPLICA"

// passed are the variables of ours that say where a model server finds what it
// needs, and hold no secret.
var passed = []string{"ROUNDHOUSE_PYTHON", "ROUNDHOUSE_ONNXRUNTIME"}

// environment is what the process is given: this process's own environment
// without ROUNDHOUSE_ variables, which may hold secrets, then the component's,
// then what the platform decides.
func (u *unit) environment(r *running) ([]string, error) {
	var env []string
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); !strings.HasPrefix(name, "ROUNDHOUSE_") || slices.Contains(passed, name) {
			env = append(env, e)
		}
	}
	env = append(env, u.p.cfg.Env...)
	env = append(env, "PORT="+strconv.Itoa(r.port))
	if r.grpcPort > 0 {
		env = append(env, "GRPC_PORT="+strconv.Itoa(r.grpcPort))
	}
	if r.model != "" {
		env = append(env, "MODEL_PATH="+r.model)
	}
	if len(u.p.gpus.names) > 0 && len(r.gpus) == 0 {
		env = append(env, visibleDevices+"=")
	}
	for _, e := range r.spec.Env {
		v, ok, err := u.value(e)
		if err != nil {
			return nil, err
		}
		if ok {
			env = append(env, e.Name+"="+v)
		}
	}
	if len(r.gpus) > 0 {
		env = append(env, visibleDevices+"="+u.p.gpus.visible(r.gpus))
	}
	return append(lastOfEach(env), replicaVariable+"="+u.id), nil
}

// value is a variable's value; ok is false for an optional one that is not
// there.
func (u *unit) value(e corev1.EnvVar) (v string, ok bool, err error) {
	from := e.ValueFrom
	if from == nil {
		return e.Value, true, nil
	}
	if f := from.FieldRef; f != nil {
		switch f.FieldPath {
		case "metadata.name":
			return u.id, true, nil
		case "metadata.namespace":
			return u.o.key.Namespace, true, nil
		case "status.podIP", "status.hostIP":
			return u.p.cfg.Host, true, nil
		}
	}
	if s := from.SecretKeyRef; s != nil && s.Optional != nil && *s.Optional {
		return "", false, nil
	}
	if m := from.ConfigMapKeyRef; m != nil && m.Optional != nil && *m.Optional {
		return "", false, nil
	}
	return "", false, troublef("InvalidEnv", "variable %s takes its value from what only a cluster has: give it a value", e.Name)
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
