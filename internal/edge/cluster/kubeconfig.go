// Package cluster speaks to a Kubernetes API server for the command line: it
// reads kubeconfig files as kubectl does, and shows the manifests, replicas and
// events of a cluster as a fleet shows those of one machine.
//
// It sends plain HTTP. The client libraries of Kubernetes would cost every
// model server memory, since the program that is the command line is it too.
package cluster

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Options say which cluster is meant.
type Options struct {
	// Kubeconfig is a file; "" means those in KUBECONFIG, or ~/.kube/config, or
	// in a pod its own account.
	Kubeconfig string
	// Context is one of its contexts; "" means the current one.
	Context string
	// Namespace stands in for that of the context; "" leaves it.
	Namespace string
	// UserAgent is told to the API server.
	UserAgent string
}

// InCluster as a Context means the account of the pod that this runs in.
const InCluster = "in-cluster"

// Bounds of kubeconfig files.
const (
	// maxKubeconfig is the size of one file, and of each that it names.
	maxKubeconfig = 4 << 20
	// maxKubeconfigs is how many may be merged.
	maxKubeconfigs = 64
)

// Access is one context, settled: where the API server is, how it is known to
// be it, and who asks.
type Access struct {
	// Context is the context's name, "" in a pod.
	Context string
	// Origin says where the user stands, for messages.
	Origin    string
	Namespace string

	Server     string
	CA         []byte // PEM; nil for the system's
	Insecure   bool
	ServerName string
	Proxy      string

	Cert, Key          []byte // PEM
	Token, TokenFile   string
	Username, Password string
	Impersonate        impersonation
	Exec               *execConfig
}

type impersonation struct {
	User   string              `json:"as"`
	UID    string              `json:"as-uid"`
	Groups []string            `json:"as-groups"`
	Extra  map[string][]string `json:"as-user-extra"`
}

type clusterEntry struct {
	Server     string           `json:"server"`
	ServerName string           `json:"tls-server-name"`
	Insecure   bool             `json:"insecure-skip-tls-verify"`
	CA         string           `json:"certificate-authority"`
	CAData     string           `json:"certificate-authority-data"`
	Proxy      string           `json:"proxy-url"`
	Extensions []namedExtension `json:"extensions"`
	file       string
}

type userEntry struct {
	Cert          string      `json:"client-certificate"`
	CertData      string      `json:"client-certificate-data"`
	Key           string      `json:"client-key"`
	KeyData       string      `json:"client-key-data"`
	Token         string      `json:"token"`
	TokenFile     string      `json:"tokenFile"`
	Username      string      `json:"username"`
	Password      string      `json:"password"`
	AuthProvider  any         `json:"auth-provider"`
	Exec          *execConfig `json:"exec"`
	impersonation `json:",inline"`
	file          string
}

type contextEntry struct {
	Cluster   string `json:"cluster"`
	User      string `json:"user"`
	Namespace string `json:"namespace"`
	file      string
}

type namedExtension struct {
	Name      string `json:"name"`
	Extension any    `json:"extension"`
}

// kubeconfig is one file, as far as it is read.
type kubeconfig struct {
	Current  string `json:"current-context"`
	Clusters []struct {
		Name    string       `json:"name"`
		Cluster clusterEntry `json:"cluster"`
	} `json:"clusters"`
	Users []struct {
		Name string    `json:"name"`
		User userEntry `json:"user"`
	} `json:"users"`
	Contexts []struct {
		Name    string       `json:"name"`
		Context contextEntry `json:"context"`
	} `json:"contexts"`
}

// merged is what several files say together: of entries of one name the first
// file's counts, whole.
type merged struct {
	files    []string
	current  string
	clusters map[string]clusterEntry
	users    map[string]userEntry
	contexts map[string]contextEntry
}

// Files are the kubeconfig files that Load reads, whether they exist or not.
func (o Options) Files() []string {
	if o.Kubeconfig != "" {
		return []string{o.Kubeconfig}
	}
	if env := os.Getenv("KUBECONFIG"); env != "" {
		var out []string
		for _, f := range filepath.SplitList(env) {
			if f != "" && !slices.Contains(out, f) {
				out = append(out, f)
			}
		}
		return out
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return nil
	}
	return []string{filepath.Join(home, ".kube", "config")}
}

// Known says whether there is a kubeconfig file to read.
func (o Options) Known() bool {
	return slices.ContainsFunc(o.Files(), func(f string) bool {
		_, err := os.Stat(f)
		return err == nil
	})
}

// Load settles which API server is meant, and who asks. It sends nothing.
func Load(o Options) (*Access, error) {
	files := o.Files()
	if len(files) > maxKubeconfigs {
		return nil, fmt.Errorf("KUBECONFIG names %d files; at most %d are read", len(files), maxKubeconfigs)
	}
	m := merged{clusters: map[string]clusterEntry{}, users: map[string]userEntry{}, contexts: map[string]contextEntry{}}
	for _, f := range files {
		err := m.add(f)
		if errors.Is(err, fs.ErrNotExist) && o.Kubeconfig == "" {
			continue
		}
		if err != nil {
			return nil, err
		}
	}
	if m.empty() || o.Context == InCluster && m.contexts[InCluster].Cluster == "" {
		if a, err := inPod(o); a != nil || err != nil {
			return a, err
		}
		return nil, fmt.Errorf("no cluster to speak to: %s: name a file with --kubeconfig", nothingIn(files))
	}
	return m.settle(o)
}

func (m *merged) empty() bool {
	return len(m.clusters)+len(m.users)+len(m.contexts) == 0 && m.current == ""
}

func nothingIn(files []string) string {
	if len(files) == 0 {
		return "there is no home directory with a .kube/config"
	}
	return "no kubeconfig in " + strings.Join(files, ", ")
}

func (m *merged) add(file string) error {
	raw, err := readBounded(file)
	if err != nil {
		return fmt.Errorf("%s: %w", file, bare(err))
	}
	var k kubeconfig
	if err := decodeYAML(raw, &k); err != nil {
		return fmt.Errorf("%s: not a kubeconfig: %s", file, strings.TrimPrefix(err.Error(), "json: "))
	}
	m.files = append(m.files, file)
	if m.current == "" {
		m.current = k.Current
	}
	in := map[string]bool{}
	for _, e := range k.Clusters {
		e.Cluster.file = file
		err = errors.Join(err, put(m.clusters, e.Name, e.Cluster, in, "clusters"))
	}
	for _, e := range k.Users {
		e.User.file = file
		err = errors.Join(err, put(m.users, e.Name, e.User, in, "users"))
	}
	for _, e := range k.Contexts {
		e.Context.file = file
		err = errors.Join(err, put(m.contexts, e.Name, e.Context, in, "contexts"))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// put keeps the first entry of a name among files; two in one are an error.
func put[T any](m map[string]T, name string, e T, in map[string]bool, list string) error {
	at := list + "[" + name + "]"
	if in[at] {
		return fmt.Errorf("%s: there are two of this name", at)
	}
	in[at] = true
	if _, there := m[name]; !there {
		m[name] = e
	}
	return nil
}

// settle reads the context that is meant.
func (m *merged) settle(o Options) (*Access, error) {
	name, where := o.Context, strings.Join(m.files, ", ")
	if name == "" {
		name = m.current
	}
	if name == "" {
		return nil, fmt.Errorf("%s: no current-context: name one with --context: %s", where, m.names())
	}
	c, there := m.contexts[name]
	if !there {
		return nil, fmt.Errorf("%s: no context %q: there is %s", where, name, m.names())
	}
	at := fmt.Sprintf("%s: contexts[%s].context", c.file, name)
	cluster, there := m.clusters[c.Cluster]
	if !there {
		return nil, fmt.Errorf("%s.cluster: no cluster %q in %s", at, c.Cluster, where)
	}
	user, there := m.users[c.User]
	if !there {
		return nil, fmt.Errorf("%s.user: no user %q in %s", at, c.User, where)
	}
	if c.Namespace != "" && !label(c.Namespace) {
		return nil, fmt.Errorf("%s.namespace: %q is no name of a namespace", at, c.Namespace)
	}
	a := &Access{Context: name, Namespace: c.Namespace}
	if o.Namespace != "" {
		a.Namespace = o.Namespace
	}
	if a.Namespace == "" {
		a.Namespace = "default"
	}
	if err := cluster.into(a, fmt.Sprintf("%s: clusters[%s].cluster", cluster.file, c.Cluster)); err != nil {
		return nil, err
	}
	a.Origin = fmt.Sprintf("%s: users[%s].user", user.file, c.User)
	if strings.HasPrefix(a.Server, "http:") {
		return a, nil // whoever asks is not told to everybody on the way
	}
	if err := user.into(a); err != nil {
		return nil, err
	}
	if a.Exec != nil {
		a.Exec.cluster = cluster
	}
	return a, nil
}

// label says whether a namespace may be called so (RFC 1123).
func label(s string) bool {
	return s != "" && len(s) <= 63 && strings.Trim(s, "-") == s && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

func (m *merged) names() string {
	if len(m.contexts) == 0 {
		return "none"
	}
	var out []string
	for n := range m.contexts {
		out = append(out, n)
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func (c clusterEntry) into(a *Access, at string) error {
	if c.Server == "" {
		return fmt.Errorf("%s.server: is missing: write https://HOST:PORT", at)
	}
	u, err := url.Parse(c.Server)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return fmt.Errorf("%s.server: %q is no address: write https://HOST:PORT", at, c.Server)
	}
	u.RawQuery, u.Fragment = "", ""
	a.Server = strings.TrimSuffix(u.String(), "/")
	a.Insecure, a.ServerName, a.Proxy = c.Insecure, c.ServerName, c.Proxy
	if c.Proxy != "" {
		p, err := url.Parse(c.Proxy)
		if err != nil || !slices.Contains([]string{"http", "https", "socks5"}, p.Scheme) {
			return fmt.Errorf("%s.proxy-url: %q is no proxy: write http://, https:// or socks5://HOST:PORT", at, c.Proxy)
		}
	}
	a.CA, err = material(c.file, at, "certificate-authority", c.CA, c.CAData)
	if err == nil && a.Insecure && len(a.CA) > 0 {
		err = fmt.Errorf("%s.insecure-skip-tls-verify: goes with no certificate-authority: drop one of them", at)
	}
	return err
}

func (u userEntry) into(a *Access) error {
	at := a.Origin
	if u.AuthProvider != nil {
		return fmt.Errorf("%s.auth-provider: is not supported, as kubectl does not either since 1.26: use the plugin of your cloud as exec (kubelogin, gke-gcloud-auth-plugin)", at)
	}
	if u.Token != "" && (u.Username != "" || u.Password != "") {
		return fmt.Errorf("%s.token: goes with no username and password: drop one of them", at)
	}
	a.Token, a.Username, a.Password, a.Impersonate = u.Token, u.Username, u.Password, u.impersonation
	if i := u.impersonation; i.User == "" && (i.UID != "" || len(i.Groups) > 0 || len(i.Extra) > 0) {
		return fmt.Errorf("%s.as: is missing: as-uid, as-groups and as-user-extra go with it", at)
	}
	if u.TokenFile != "" {
		a.TokenFile = beside(u.file, u.TokenFile)
		if a.Token == "" {
			raw, err := readBounded(a.TokenFile)
			if err != nil {
				return fmt.Errorf("%s.tokenFile: %s: %w", at, a.TokenFile, bare(err))
			}
			a.Token = strings.TrimSpace(string(raw))
		}
	}
	if err := u.certificate(a); err != nil {
		return err
	}
	if u.Exec != nil {
		a.Exec = u.Exec
		return a.Exec.validate(u.file, at+".exec")
	}
	return nil
}

func (u userEntry) certificate(a *Access) (err error) {
	if u.Cert == "" && u.CertData == "" {
		return nil
	}
	if a.Cert, err = material(u.file, a.Origin, "client-certificate", u.Cert, u.CertData); err != nil {
		return err
	}
	if u.Key == "" && u.KeyData == "" {
		return fmt.Errorf("%s.client-key: is missing: a client-certificate needs it, or client-key-data", a.Origin)
	}
	a.Key, err = material(u.file, a.Origin, "client-key", u.Key, u.KeyData)
	return err
}

// material is the content of a field that is a file's name, or of its sibling
// that is the content itself.
func material(file, at, field, path, data string) ([]byte, error) {
	switch {
	case path != "" && data != "":
		return nil, fmt.Errorf("%s.%s: goes with no %s-data: drop one of them", at, field, field)
	case data != "":
		out, err := base64.StdEncoding.DecodeString(data)
		if err != nil {
			return nil, fmt.Errorf("%s.%s-data: is no base64: %w", at, field, err)
		}
		return out, nil
	case path != "":
		out, err := readBounded(beside(file, path))
		if err != nil {
			return nil, fmt.Errorf("%s.%s: %s: %w", at, field, beside(file, path), bare(err))
		}
		return out, nil
	}
	return nil, nil
}

// beside is a path as written in a file, which means it from its own folder.
func beside(file, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(file), path)
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.LimitReader(f, maxKubeconfig+1))
	if err == nil && len(raw) > maxKubeconfig {
		err = fmt.Errorf("is over %d bytes", maxKubeconfig)
	}
	return raw, err
}

// bare is a path error's cause: the path stands before it already.
func bare(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// account is where a pod finds its own account.
var account = "/var/run/secrets/kubernetes.io/serviceaccount"

// inPod is the account of the pod this runs in, nil elsewhere.
func inPod(o Options) (*Access, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" || o.Context != "" && o.Context != InCluster {
		return nil, nil
	}
	file := filepath.Join(account, "token")
	token, err := readBounded(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, bare(err))
	}
	a := &Access{Origin: file, Server: "https://" + net.JoinHostPort(host, port), Token: strings.TrimSpace(string(token)), TokenFile: file, Namespace: o.Namespace}
	if a.CA, err = readBounded(filepath.Join(account, "ca.crt")); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(account, "ca.crt"), bare(err))
	}
	if a.Namespace == "" {
		raw, err := readBounded(filepath.Join(account, "namespace"))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(account, "namespace"), bare(err))
		}
		a.Namespace = strings.TrimSpace(string(raw))
	}
	return a, nil
}
