package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// Versions of the protocol of credential plugins, both with the same messages.
const (
	execV1      = "client.authentication.k8s.io/v1"
	execV1beta1 = "client.authentication.k8s.io/v1beta1"
)

const (
	// execTimeout bounds one run of a credential plugin; one that asks somebody
	// gets execAsking.
	execTimeout = time.Minute
	execAsking  = 10 * time.Minute
	// maxCredential is how much a credential plugin may write.
	maxCredential = 1 << 20
)

// execConfig is a credential plugin: a program that prints who asks.
type execConfig struct {
	APIVersion string   `json:"apiVersion"`
	Command    string   `json:"command"`
	Args       []string `json:"args"`
	Env        []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"env"`
	InstallHint        string `json:"installHint"`
	ProvideClusterInfo bool   `json:"provideClusterInfo"`
	InteractiveMode    string `json:"interactiveMode"`

	at      string
	cluster clusterEntry
}

func (e *execConfig) validate(file, at string) error {
	e.at = at
	switch e.APIVersion {
	case execV1, execV1beta1:
	case "client.authentication.k8s.io/v1alpha1":
		return fmt.Errorf("%s.apiVersion: v1alpha1 is not read any more, by kubectl since 1.24 either: update the plugin and write %s", at, execV1)
	default:
		return fmt.Errorf("%s.apiVersion: %q: write %s", at, e.APIVersion, execV1)
	}
	if e.Command == "" {
		return fmt.Errorf("%s.command: is missing: write the program that prints the credential", at)
	}
	if strings.ContainsRune(e.Command, filepath.Separator) {
		e.Command = beside(file, e.Command)
	}
	for i, v := range e.Env {
		if v.Name == "" {
			return fmt.Errorf("%s.env[%d].name: is missing", at, i)
		}
	}
	switch {
	case e.InteractiveMode == "" && e.APIVersion == execV1beta1:
		e.InteractiveMode = "IfAvailable"
	case e.InteractiveMode == "Never", e.InteractiveMode == "IfAvailable", e.InteractiveMode == "Always":
	default:
		return fmt.Errorf("%s.interactiveMode: %q: write Never, IfAvailable or Always", at, e.InteractiveMode)
	}
	return nil
}

// execCredential is what is told to a plugin and what it prints.
type execCredential struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       struct {
		Cluster     *execCluster `json:"cluster,omitempty"`
		Interactive bool         `json:"interactive"`
	} `json:"spec"`
	Status *execStatus `json:"status,omitempty"`
}

type execCluster struct {
	Server     string `json:"server"`
	ServerName string `json:"tls-server-name,omitempty"`
	Insecure   bool   `json:"insecure-skip-tls-verify,omitempty"`
	CA         []byte `json:"certificate-authority-data,omitempty"`
	Proxy      string `json:"proxy-url,omitempty"`
	Config     any    `json:"config,omitempty"`
}

type execStatus struct {
	Expires time.Time `json:"expirationTimestamp"`
	Token   string    `json:"token"`
	Cert    string    `json:"clientCertificateData"`
	Key     string    `json:"clientKeyData"`
}

// plugin runs a credential plugin when there is no credential, or none that
// still counts.
type plugin struct {
	access *Access
	stdin  *os.File
	stderr io.Writer

	mu     sync.Mutex // also held while the plugin runs, which may ask somebody
	status *execStatus
	cert   *tls.Certificate
}

// credential is the present one. refused is a token the server did not take:
// the plugin is asked again unless it has been.
func (p *plugin) credential(ctx context.Context, refused string) (*execStatus, *tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.status; s != nil && (refused == "" || refused != s.Token) && (s.Expires.IsZero() || time.Now().Before(s.Expires)) {
		return s, p.cert, nil
	}
	s, cert, err := p.run(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", p.access.Exec.at, err)
	}
	p.status, p.cert = s, cert
	return s, cert, nil
}

func (p *plugin) run(ctx context.Context) (*execStatus, *tls.Certificate, error) {
	e := p.access.Exec
	terminal := p.stdin != nil && term.IsTerminal(int(p.stdin.Fd()))
	asking := e.InteractiveMode != "Never" && terminal
	if e.InteractiveMode == "Always" && !terminal {
		return nil, nil, fmt.Errorf("%s wants to ask somebody (interactiveMode Always), and standard input is no terminal", e.Command)
	}
	limit := execTimeout
	if asking {
		limit = execAsking
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, e.Command, e.Args...)
	cmd.WaitDelay = time.Second // for what the plugin itself started
	info, err := p.info(asking)
	if err != nil {
		return nil, nil, err
	}
	cmd.Env = os.Environ()
	for _, v := range e.Env {
		cmd.Env = append(cmd.Env, v.Name+"="+v.Value)
	}
	cmd.Env = append(cmd.Env, "KUBERNETES_EXEC_INFO="+string(info))
	out := &bounded{limit: maxCredential}
	cmd.Stdout, cmd.Stderr = out, p.stderr
	if asking {
		cmd.Stdin = p.stdin
	}
	switch err := cmd.Run(); {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, nil, fmt.Errorf("%s did not end within %s", e.Command, limit)
	case ctx.Err() != nil:
		return nil, nil, ctx.Err()
	case out.over:
		return nil, nil, fmt.Errorf("%s wrote over %d bytes", e.Command, maxCredential)
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist):
		return nil, nil, fmt.Errorf("%s is not installed%s", e.Command, hint(e.InstallHint))
	case err != nil:
		return nil, nil, fmt.Errorf("%s: %w", e.Command, err)
	}
	return read(e, out.kept.Bytes())
}

func (p *plugin) info(asking bool) ([]byte, error) {
	e, a := p.access.Exec, p.access
	in := execCredential{APIVersion: e.APIVersion, Kind: "ExecCredential"}
	in.Spec.Interactive = asking
	if e.ProvideClusterInfo {
		in.Spec.Cluster = &execCluster{Server: a.Server, ServerName: a.ServerName, Insecure: a.Insecure, CA: a.CA, Proxy: a.Proxy}
		for _, x := range e.cluster.Extensions {
			if x.Name == "client.authentication.k8s.io/exec" {
				in.Spec.Cluster.Config = x.Extension
			}
		}
	}
	return json.Marshal(in)
}

// read takes a credential from what a plugin printed.
func read(e *execConfig, raw []byte) (*execStatus, *tls.Certificate, error) {
	var c execCredential
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, nil, fmt.Errorf("%s printed no ExecCredential: %w", e.Command, err)
	}
	s := c.Status
	switch {
	case c.Kind != "ExecCredential" || c.APIVersion != e.APIVersion:
		return nil, nil, fmt.Errorf("%s printed %q of %q, not ExecCredential of %s: write in apiVersion what it prints", e.Command, c.Kind, c.APIVersion, e.APIVersion)
	case s == nil || s.Token == "" && s.Cert == "" && s.Key == "":
		return nil, nil, fmt.Errorf("%s printed neither a token nor a certificate", e.Command)
	case (s.Cert == "") != (s.Key == ""):
		return nil, nil, fmt.Errorf("%s printed a certificate without its key, or the other way round", e.Command)
	case s.Cert == "":
		return s, nil, nil
	}
	pair, err := tls.X509KeyPair([]byte(s.Cert), []byte(s.Key))
	if err != nil {
		return nil, nil, fmt.Errorf("%s printed a certificate that cannot be used: %w", e.Command, err)
	}
	return s, &pair, nil
}

func hint(text string) string {
	printable := strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return -1
		}
		return r
	}, strings.TrimSpace(text))
	if printable == "" {
		return ""
	}
	return ": " + printable
}

// bounded keeps what is written to it up to a limit, and fails beyond.
type bounded struct {
	kept  bytes.Buffer // not embedded: it would take what it can past Write
	limit int
	over  bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.kept.Len()+len(p) > b.limit {
		b.over = true
		return 0, fmt.Errorf("over %d bytes", b.limit)
	}
	return b.kept.Write(p)
}
