package clustercli

import (
	"os"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	rbacv1 "k8s.io/api/rbac/v1"

	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// TestFewRights: a user who may see one kind and nothing else sees that, and is
// told what else was not allowed.
func TestFewRights(t *testing.T) {
	c, api, ns := newCLI(t, "kserve")
	kubetest.Apply(t, api, ns, iris+"---\n"+kserve)
	cfg := kubetest.Server(t)
	clientset, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	_, err = clientset.CoreV1().ServiceAccounts(ns).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "reader"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	token := func() string {
		r, err := clientset.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), "reader", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return r.Status.Token
	}
	poor := &cli{t: t, kubeconfig: kubeconfig(t, withToken(cfg, token()), ns)}
	poor.run("get").fails("not allowed", "ask for a Role with the verb \"list\"", ns)
	poor.run("apply", "-f", c.file(iris)).fails("get modelservices.roundhouse.dev in namespace "+ns+": not allowed", "system:serviceaccount:"+ns+":reader")

	if _, err = clientset.RbacV1().Roles(ns).Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{"roundhouse.dev"}, Resources: []string{"modelservices"}, Verbs: []string{"get", "list"}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err = clientset.RbacV1().RoleBindings(ns).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:  rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: "reader"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "reader", Namespace: ns}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, func() string { // the authorizer learns of it
		if r := poor.run("get"); r.code != 0 {
			return r.stderr
		}
		return ""
	})
	r := poor.run("get").want(0, "iris")
	if strings.Contains(r.stdout, "wine") || !strings.Contains(r.stderr, "warning: list inferenceservices.serving.kserve.io in namespace "+ns+": not allowed") {
		t.Errorf("%s\n%s", r.stdout, r.stderr)
	}
	r = poor.run("describe", "iris").want(0, "iris.ubj")
	for _, what := range []string{"list pods in", "list deployments.apps in", "list events in"} {
		if !strings.Contains(r.stderr, "warning: "+what) {
			t.Errorf("describe does not say that it may not %s:\n%s", what, r.stderr)
		}
	}
	poor.run("delete", "iris").fails("delete modelservices.roundhouse.dev in namespace " + ns + ": not allowed")
	poor.run("get", "-A").fails("list", "in all namespaces: not allowed")
	poor.run("infer", "iris", "-d", `{"inputs":[]}`).fails("look for the gateway", "--gateway-service NAMESPACE/NAME")
	poor.run("infer", "iris", "-d", `{"inputs":[]}`, "--gateway-service", ns+"/gw").fails("the API server does not pass the request on", "services/proxy", "is forbidden")

	poor = &cli{t: t, kubeconfig: kubeconfig(t, withToken(cfg, token()+"x"), ns)}
	poor.run("get").fails("does not take the credential of", "users[u].user", "expired")
}

func withToken(cfg *rest.Config, token string) *rest.Config {
	out := rest.AnonymousClientConfig(cfg)
	out.BearerToken = token
	return out
}

// TestWhichServer: which of a running `up` and a cluster is meant.
func TestWhichServer(t *testing.T) {
	c, _, ns := newCLI(t)
	c.run("get", "--context", "tset").fails(`no context "tset": there is test`, c.kubeconfig)
	c.run("get", "--kubeconfig", "/does/not/exist").fails("/does/not/exist: no such file")
	c.run("get", "--server", "127.0.0.1:1").fails("no server listens at http://127.0.0.1:1", "--context")
	c.run("get", "--server", "127.0.0.1:1", "--context", "test").check(2, "stderr", "", nil)
	c.env = []string{"ROUNDHOUSE_CONTEXT="}
	c.run("get", "--server", "127.0.0.1:1").fails("or name a cluster with --context")
	c.run("get", "--kubeconfig", c.kubeconfig, "--context", "test", "-n", ns).want(0, "No services found")
	c.run("get", "--kubeconfig", c.kubeconfig).fails(`no context "nothing"`)
	raw := readFile(t, c.kubeconfig)
	at := raw[strings.Index(raw, "server: ")+len("server: "):]
	at = strings.TrimSpace(at[:strings.Index(at, "\n")])
	gone := c.file(strings.ReplaceAll(raw, at, "https://127.0.0.1:1"))
	if err := os.Chmod(gone, 0o600); err != nil {
		t.Fatal(err)
	}
	c.run("get", "--kubeconfig", gone, "--context", "test").fails("the API server of test at https://127.0.0.1:1 does not answer", "connection refused", "--context")
}
