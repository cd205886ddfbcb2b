package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

// certificate is one for a client or an authority, and its key.
func certificate(t testing.TB) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)},
		&x509.Certificate{SerialNumber: big.NewInt(1)}, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})
}

func write(t testing.TB, dir, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// generator makes kubeconfigs with every field there is, sometimes wrongly.
type generator struct {
	*mathrand.Rand
	cert, key string // base64
}

func (g generator) one(of ...string) string { return of[g.IntN(len(of))] }
func (g generator) maybe() bool             { return g.IntN(3) == 0 }

func (g generator) cluster() map[string]any {
	out := map[string]any{"server": "https://" + g.one("a.example", "b.example:6443", "[::1]:6443", "c.example/path/") + g.one("", "", "?q=1")}
	if g.IntN(12) == 0 {
		delete(out, "server")
	}
	switch g.IntN(8) {
	case 0, 4:
		out["certificate-authority-data"] = g.cert
	case 1:
		out["certificate-authority"] = g.one("ca.pem", "ca.pem", "ca.pem", "missing.pem")
	case 2:
		out["insecure-skip-tls-verify"] = true
	case 3:
		out["certificate-authority"], out["certificate-authority-data"] = "ca.pem", g.cert
	}
	if g.maybe() {
		out["tls-server-name"] = "other.example"
	}
	if g.maybe() {
		out["proxy-url"] = g.one("http://p.example:3128", "socks5://p.example:1080", "https://p.example", "https://q.example", "ftp://p.example")
	}
	return out
}

func (g generator) user() map[string]any {
	out := map[string]any{}
	if g.maybe() {
		out["token"] = "t" + g.one("1", "2")
	}
	if g.maybe() {
		out["tokenFile"] = g.one("token", "token", "token", "missing")
	}
	if g.IntN(6) == 0 {
		out["username"], out["password"] = "u", "p"
	}
	switch g.IntN(8) {
	case 0, 4:
		out["client-certificate-data"], out["client-key-data"] = g.cert, g.key
	case 1:
		out["client-certificate"], out["client-key"] = "cert.pem", g.one("key.pem", "key.pem", "key.pem", "missing.pem")
	case 2:
		out["client-certificate"] = "cert.pem"
	case 3:
		out["client-certificate"], out["client-key-data"] = "cert.pem", g.key
	}
	if g.IntN(5) == 0 {
		out["as-groups"] = []string{"g1", "g2"}
		if g.IntN(4) > 0 {
			out["as"], out["as-uid"], out["as-user-extra"] = "someone", "7", map[string]any{"Reason": []string{"x"}}
		}
	}
	if g.maybe() {
		e := map[string]any{"apiVersion": g.one(execV1, execV1beta1), "command": g.one("login", "bin/login", "/bin/login"), "args": []string{"-x"},
			"env": []any{map[string]any{"name": g.one("A", "A", "A", "A", "A", "A", ""), "value": "b"}}, "interactiveMode": g.one("Never", "Never", "IfAvailable", "IfAvailable", "Always", "Always", "", "Often")}
		out["exec"] = e
	}
	return out
}

// file is one kubeconfig; names overlap between files.
func (g generator) file() map[string]any {
	list := func(kind string, n int, make func() map[string]any) []any {
		var out []any
		names := g.Perm(3)
		for i := range n {
			name := string(rune('a' + names[i]))
			if g.IntN(40) == 0 {
				name = "a" // perhaps there already
			}
			out = append(out, map[string]any{"name": name, kind: make()})
		}
		return out
	}
	out := map[string]any{"apiVersion": "v1", "kind": "Config",
		"clusters": list("cluster", 2+g.IntN(2), g.cluster), "users": list("user", 2+g.IntN(2), g.user),
		"contexts": list("context", 2+g.IntN(2), func() map[string]any {
			c := map[string]any{"cluster": g.one("a", "b", "c"), "user": g.one("a", "b", "c")}
			if g.maybe() {
				c["namespace"] = g.one("team", "team", "team", "Not A Name")
			}
			return c
		})}
	if !g.maybe() {
		out["current-context"] = g.one("a", "b", "c")
	}
	return out
}

// TestLikeClientGo: what is read of generated kubeconfigs is what the client
// library of Kubernetes reads, and what it refuses is refused.
func TestLikeClientGo(t *testing.T) {
	cert, key := certificate(t)
	g := generator{mathrand.New(mathrand.NewPCG(1, 2)), base64.StdEncoding.EncodeToString(cert), base64.StdEncoding.EncodeToString(key)}
	dir := t.TempDir()
	for name, content := range map[string][]byte{"ca.pem": cert, "cert.pem": cert, "key.pem": key, "token": []byte("from-file\n")} {
		write(t, dir, name, content)
	}
	read, refused := 0, 0
	for n := range 500 {
		var files []string
		for i := range 1 + g.IntN(3) {
			raw, err := yaml.Marshal(g.file())
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, write(t, dir, fmt.Sprintf("config-%d", i), raw))
		}
		o := Options{Context: g.one("", "a", "b")}
		explicit := len(files) == 1 && g.maybe()
		rules := &clientcmd.ClientConfigLoadingRules{Precedence: append(files, filepath.Join(dir, "not-there"))}
		if explicit {
			o.Kubeconfig = files[0]
			rules = &clientcmd.ClientConfigLoadingRules{ExplicitPath: files[0]}
		}
		t.Setenv("KUBECONFIG", strings.Join(rules.Precedence, string(filepath.ListSeparator)))
		theirs := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: o.Context})
		want, theirErr := theirs.ClientConfig()
		namespace, _, nsErr := theirs.Namespace()
		got, err := Load(o)
		if theirErr == nil && nsErr == nil && want != nil {
			theirErr = rest.LoadTLSFiles(want)
			if theirErr == nil {
				_, theirErr = rest.TLSConfigFor(want) // refuses an authority that is not asked
			}
		}
		// The library takes a user that is not there for nobody, and any namespace.
		if err != nil && (strings.Contains(err.Error(), ": no user ") || strings.Contains(err.Error(), "is no name of a namespace")) {
			continue
		}
		if (err != nil) != (theirErr != nil || nsErr != nil) {
			t.Fatalf("%d: %v: ours says %v, theirs %v", n, o, err, theirErr)
		}
		if err != nil {
			refused++
			continue
		}
		read++
		if a, b := described(t, got, namespaceOf(got)), theirsDescribed(t, want, namespace); !reflect.DeepEqual(a, b) {
			t.Fatalf("%d:\nours   %v\ntheirs %v", n, a, b)
		}
	}
	if read < 100 || refused < 100 {
		t.Errorf("only %d read and %d refused", read, refused)
	}
}

func namespaceOf(a *Access) string { return a.Namespace }

// described is all of an Access that counts.
func described(t *testing.T, a *Access, namespace string) map[string]any {
	exec := ""
	if a.Exec != nil {
		exec = fmt.Sprint(a.Exec.APIVersion, a.Exec.Command, a.Exec.Args, a.Exec.Env, a.Exec.InteractiveMode)
	}
	return map[string]any{"server": strings.TrimSuffix(a.Server, "/"), "ca": string(a.CA), "insecure": a.Insecure, "name": a.ServerName, "proxy": a.Proxy, "cert": string(a.Cert),
		"key": string(a.Key), "token": a.Token, "user": a.Username + a.Password, "as": fmt.Sprint(a.Impersonate), "exec": exec, "namespace": namespace}
}

func theirsDescribed(t *testing.T, c *rest.Config, namespace string) map[string]any {
	proxy := ""
	if c.Proxy != nil {
		r, _ := http.NewRequest(http.MethodGet, c.Host, nil)
		u, err := c.Proxy(r)
		if err != nil {
			t.Fatal(err)
		}
		proxy = u.String()
	}
	exec := ""
	if e := c.ExecProvider; e != nil {
		var env []struct{ Name, Value string }
		for _, v := range e.Env {
			env = append(env, struct{ Name, Value string }{v.Name, v.Value})
		}
		exec = fmt.Sprint(e.APIVersion, e.Command, e.Args, env, e.InteractiveMode)
	}
	host := c.Host
	if u, err := url.Parse(host); err == nil {
		u.RawQuery = ""
		host = u.String()
	}
	return map[string]any{"server": strings.TrimSuffix(host, "/"), "ca": string(c.CAData), "insecure": c.Insecure, "name": c.ServerName, "proxy": proxy, "cert": string(c.CertData),
		"key": string(c.KeyData), "token": strings.TrimSpace(c.BearerToken), "user": c.Username + c.Password,
		"as": fmt.Sprint(impersonation{c.Impersonate.UserName, c.Impersonate.UID, c.Impersonate.Groups, c.Impersonate.Extra}), "exec": exec, "namespace": namespace}
}

// TestWordsOfKubeconfigs: what is wrong is named by file and field.
func TestWordsOfKubeconfigs(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ cluster, user, says string }{
		"no server":     {"{}", "{}", "clusters[c].cluster.server: is missing"},
		"no address":    {"{server: 'a:b:c'}", "{}", `clusters[c].cluster.server: "a:b:c" is no address`},
		"no CA":         {"{server: 'https://a', certificate-authority: ca.pem}", "{}", "clusters[c].cluster.certificate-authority: " + dir + "/ca.pem: no such file"},
		"no base64":     {"{server: 'https://a', certificate-authority-data: '%%'}", "{}", "clusters[c].cluster.certificate-authority-data: is no base64"},
		"auth provider": {"{server: 'https://a'}", "{auth-provider: {name: gcp}}", "users[u].user.auth-provider: is not supported"},
		"no key":        {"{server: 'https://a'}", "{client-certificate-data: ''}", ""},
		"old plugin":    {"{server: 'https://a'}", "{exec: {apiVersion: client.authentication.k8s.io/v1alpha1, command: x}}", "users[u].user.exec.apiVersion: v1alpha1 is not read any more"},
		"token file":    {"{server: 'https://a'}", "{tokenFile: nothing}", "users[u].user.tokenFile: " + dir + "/nothing: no such file"},
		"not a mapping": {"[]", "{}", "not a kubeconfig"},
	} {
		text := fmt.Sprintf("clusters: [{name: c, cluster: %s}]\nusers: [{name: u, user: %s}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n", c.cluster, c.user)
		file := write(t, dir, "config", []byte(text))
		_, err := Load(Options{Kubeconfig: file, Context: "x"})
		if c.says == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.HasPrefix(err.Error(), file) {
			t.Errorf("%s: %v", name, err)
		}
	}
	file := write(t, dir, "config", []byte("contexts: [{name: x, context: {cluster: c, user: u}}]"))
	for o, says := range map[Options]string{
		{Kubeconfig: file}:                                        "no current-context: name one with --context: x",
		{Kubeconfig: file, Context: "y"}:                          `no context "y": there is x`,
		{Kubeconfig: file, Context: "x"}:                          `contexts[x].context.cluster: no cluster "c"`,
		{Kubeconfig: filepath.Join(dir, "missing")}:               "missing: no such file",
		{Kubeconfig: write(t, dir, "bad", []byte("contexts: {"))}: "not a kubeconfig",
	} {
		if _, err := Load(o); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestInPod: the account of a pod, where there is no kubeconfig.
func TestInPod(t *testing.T) {
	dir := t.TempDir()
	defer func(before string) { account = before }(account)
	account = dir
	t.Setenv("KUBECONFIG", filepath.Join(dir, "none"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	if _, err := Load(Options{Context: InCluster}); err == nil {
		t.Error("an account without a token is taken")
	}
	write(t, dir, "token", []byte("secret\n"))
	write(t, dir, "ca.crt", []byte("ca"))
	write(t, dir, "namespace", []byte("team"))
	for _, name := range []string{"", InCluster} {
		a, err := Load(Options{Context: name})
		if err != nil || a.Server != "https://[fd00::1]:443" || a.Token != "secret" || a.Namespace != "team" || string(a.CA) != "ca" {
			t.Errorf("%+v, %v", a, err)
		}
	}
	if _, err := Load(Options{Context: "other"}); err == nil {
		t.Error("a context that is not there is taken for the pod's own")
	}
}
