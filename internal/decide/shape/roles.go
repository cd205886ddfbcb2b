package shape

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// wire tells a router, a transformer or an explainer where the components behind it are.
func (r *renderer) wire(pod *corev1.PodSpec, m *corev1.Container) {
	switch r.c.Role {
	case service.RoleRouter:
		r.wireRouter(m)
		if discovers(m) && pod.ServiceAccountName == "" {
			pod.ServiceAccountName = Name(r.rev.Service, r.c.Role)
		}
	case service.RoleTransformer, service.RoleExplainer:
		r.wireTransformer(m)
	case service.RoleEngine, service.RoleDecoder:
	}
}

// wireRouter gives a router its configuration as OME does, in its environment,
// and beside it the addresses of engine and decoder.
func (r *renderer) wireRouter(m *corev1.Container) {
	var first []corev1.EnvVar // what stands first others may refer to
	for _, role := range []service.Role{service.RoleEngine, service.RoleDecoder} {
		if at := r.address(role); at != "" {
			first = append(first, corev1.EnvVar{Name: workload.AddressVariable(role), Value: at})
		}
	}
	m.Env = append(first, m.Env...)
	if r.rev.Service.IsCanary() {
		for _, words := range [][]string{m.Command, m.Args} {
			for i, w := range words {
				if w == labelOME+"="+r.rev.Service.Name {
					words[i] = labelOME + "=" + LabelValue(r.rev.Service.WorkloadName())
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.c.Config)) {
		setEnv(m, name, r.c.Config[name])
	}
}

// labelOME is what OME's routers look for pods by. A canary's pods have a value
// of their own there, so that its router and that of the service it is the
// canary of do not find each other's engines.
const labelOME = "ome.io/inferenceservice"

// wireTransformer gives a transformer or an explainer the arguments KServe gives it,
// where it does not state them itself.
func (r *renderer) wireTransformer(m *corev1.Container) {
	http, _ := r.ports()
	var told []string
	for _, arg := range []struct{ flag, value string }{
		{"--model_name", r.rev.Service.Name},
		{"--predictor_host", r.address(r.rev.Predictor())},
		{"--http_port", strconv.Itoa(int(http))},
	} {
		stated := slices.ContainsFunc(m.Args, func(a string) bool { return strings.HasPrefix(a, arg.flag) })
		if !stated && arg.value != "" {
			told = append(told, arg.flag, arg.value)
		}
	}
	if r.c.Subcommand {
		m.Args = slices.Concat(told, m.Args)
	} else {
		m.Args = slices.Concat(m.Args, told)
	}
}

// address is a role's Service and port, "" where there is no such role. Its name
// stands for the ready pods.
func (r *renderer) address(role service.Role) string {
	c := r.rev.Component(role)
	if c == nil {
		return ""
	}
	http, grpc := Ports(*c, r.rev.Protocol)
	if http == 0 {
		http = grpc
	}
	return Name(r.rev.Service, role) + "." + r.rev.Service.Namespace + ".svc:" + strconv.Itoa(int(http))
}

func setEnv(c *corev1.Container, name, value string) {
	if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name }) {
		c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
	}
}

// discovers reports whether a router looks for pods itself, as SGLang's does.
func discovers(c *corev1.Container) bool {
	words := slices.Concat(c.Command, c.Args)
	return slices.ContainsFunc(words, func(w string) bool { return w == "--service-discovery" || w == "--service-discovery=true" })
}

// access lets a router that looks for pods see those of its namespace, where
// its pod names no account of its own.
func (r *renderer) access(out *Objects) {
	m := container(&r.c.Pod, r.c.Main)
	if r.c.Role != service.RoleRouter || m == nil || !discovers(m) || r.c.Pod.ServiceAccountName != "" {
		return
	}
	account := corev1.ServiceAccount{ObjectMeta: r.meta()}
	account.APIVersion, account.Kind = "v1", "ServiceAccount"
	r.applied(&account.ObjectMeta, account)
	role := rbacv1.Role{ObjectMeta: r.meta(), Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch"}}}}
	role.APIVersion, role.Kind = "rbac.authorization.k8s.io/v1", "Role"
	r.applied(&role.ObjectMeta, role)
	binding := rbacv1.RoleBinding{ObjectMeta: r.meta(),
		RoleRef:  rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: account.Namespace}}}
	binding.APIVersion, binding.Kind = "rbac.authorization.k8s.io/v1", "RoleBinding"
	r.applied(&binding.ObjectMeta, binding)
	out.Accounts = append(out.Accounts, account)
	out.Roles = append(out.Roles, role)
	out.Bindings = append(out.Bindings, binding)
}

// labelGroupIndex is which group of its LeaderWorkerSet a pod is of.
const labelGroupIndex = "leaderworkerset.sigs.k8s.io/group-index"

// ray gives the pods of a group that speak of Ray the variables that KServe
// gives them: how many nodes there are, how many accelerators each has, and
// for workers HEAD_SVC, the leader's name within its namespace, to which
// KServe's runtimes append the rest.
func (r *renderer) ray(leader, worker *corev1.PodSpec, leading, working string, size int32) {
	if !speaksRay(leader) && !speaksRay(worker) {
		return
	}
	for _, role := range []struct {
		pod    *corev1.PodSpec
		main   string
		worker bool
	}{{leader, leading, false}, {worker, working, true}} {
		c := container(role.pod, role.main)
		if c == nil && len(role.pod.Containers) > 0 {
			c = &role.pod.Containers[0]
		}
		if c == nil {
			continue
		}
		var first []corev1.EnvVar // what stands first others may refer to
		give := func(e corev1.EnvVar) {
			if !slices.ContainsFunc(c.Env, func(have corev1.EnvVar) bool { return have.Name == e.Name }) {
				first = append(first, e)
			}
		}
		give(corev1.EnvVar{Name: "RAY_NODE_COUNT", Value: strconv.Itoa(int(size))})
		if n := accelerators(c); n != "" {
			give(corev1.EnvVar{Name: "REQUEST_GPU_COUNT", Value: n})
		}
		give(corev1.EnvVar{Name: "MODEL_NAME", Value: r.rev.Service.Name})
		if role.worker {
			const index = "ROUNDHOUSE_GROUP_INDEX"
			give(corev1.EnvVar{Name: index, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{
				APIVersion: "v1", FieldPath: "metadata.labels['" + labelGroupIndex + "']"}}})
			host := fmt.Sprintf("%s-$(%s)", Name(r.rev.Service, r.c.Role), index)
			give(corev1.EnvVar{Name: "HEAD_SVC", Value: host + "." + host}) // host and subdomain of UniquePerReplica
		}
		c.Env = append(first, c.Env...)
	}
}

// speaksRay reports whether a pod starts Ray, or asks for one of its variables.
func speaksRay(pod *corev1.PodSpec) bool {
	return slices.ContainsFunc(pod.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(slices.Concat(c.Command, c.Args), func(w string) bool {
			return strings.Contains(w, "ray start") || strings.Contains(w, "RAY_") || strings.Contains(w, "HEAD_SVC")
		})
	})
}

// accelerators counts a container's; "" where it states none.
func accelerators(c *corev1.Container) string {
	for _, list := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
		total := int64(0)
		for name, q := range list {
			if strings.HasSuffix(string(name), "/gpu") {
				total += q.Value()
			}
		}
		if total > 0 {
			return strconv.FormatInt(total, 10)
		}
	}
	for _, e := range c.Env {
		if e.Name == "TENSOR_PARALLEL_SIZE" {
			return e.Value // as KServe asks for as many
		}
	}
	return ""
}
