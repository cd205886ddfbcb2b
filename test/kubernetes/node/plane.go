//go:build kubernetes && linux

package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"
)

// plain asks over loopback.
var plain = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

const etcdAddress = "http://127.0.0.1:2379"

// stopPatience is what a program has to end by itself.
const stopPatience = 15 * time.Second

// startPlane starts etcd, the API server and what drives it.
func (c *Cluster) startPlane(ctx context.Context) error {
	if err := c.daemon(ctx, "etcd", askHTTP(plain, etcdAddress+"/health"),
		"--data-dir", runDir+"/etcd", "--unsafe-no-fsync",
		"--listen-client-urls", etcdAddress, "--advertise-client-urls", etcdAddress,
		"--listen-peer-urls", "http://127.0.0.1:2380", "--initial-advertise-peer-urls", "http://127.0.0.1:2380",
		"--initial-cluster", "default=http://127.0.0.1:2380"); err != nil {
		return err
	}
	if err := c.StartAPIServer(ctx); err != nil {
		return err
	}
	insecure := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // their own certificates, on loopback
	driver := func(config string) []string {
		path := certificate(config + ".kubeconfig")
		return []string{"--kubeconfig", path, "--authentication-kubeconfig", path, "--authorization-kubeconfig", path,
			"--leader-elect=false", "--kube-api-qps=300", "--kube-api-burst=600", "--bind-address=127.0.0.1"}
	}
	if err := c.daemon(ctx, "kube-controller-manager", askHTTP(insecure, "https://127.0.0.1:10257/healthz"), append(driver("controller-manager"),
		"--service-account-private-key-file", certificate("service-accounts.key"), "--root-ca-file", certificate("ca.crt"),
		"--use-service-account-credentials=true")...); err != nil {
		return err
	}
	return c.daemon(ctx, "kube-scheduler", askHTTP(insecure, "https://127.0.0.1:10259/healthz"), driver("scheduler")...)
}

// StartAPIServer starts the API server and waits until it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	client, err := adminClient()
	if err != nil {
		return err
	}
	return c.daemon(ctx, "kube-apiserver", askHTTP(client, server+"/readyz"), append(c.apiServer,
		"--etcd-servers", etcdAddress, "--secure-port=6443", "--bind-address", Address, "--advertise-address", Address,
		"--tls-cert-file", certificate("apiserver.crt"), "--tls-private-key-file", certificate("apiserver.key"),
		"--client-ca-file", certificate("ca.crt"), "--authorization-mode=Node,RBAC", "--allow-privileged=true",
		"--service-account-key-file", certificate("service-accounts.pub"),
		"--service-account-signing-key-file", certificate("service-accounts.key"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range", serviceRange,
		"--kubelet-client-certificate", certificate("admin.crt"), "--kubelet-client-key", certificate("admin.key"),
		"--kubelet-certificate-authority", certificate("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
		"--requestheader-client-ca-file", certificate("ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--proxy-client-cert-file", certificate("front-proxy.crt"), "--proxy-client-key-file", certificate("front-proxy.key"),
		"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--shutdown-delay-duration=0s")...)
}

// StopAPIServer ends the API server; etcd and everything else runs on.
func (c *Cluster) StopAPIServer() error {
	d := c.daemons["kube-apiserver"]
	delete(c.daemons, "kube-apiserver")
	return d.stop(stopPatience)
}

// daemon starts a program and waits until ask succeeds.
func (c *Cluster) daemon(ctx context.Context, name string, ask func(context.Context) error, args ...string) error {
	if c.daemons[name] != nil {
		return fmt.Errorf("%s runs already", name)
	}
	d, err := start(name, programPath(name), args...)
	if err != nil {
		return err
	}
	c.daemons[name] = d
	return d.ready(ctx, ask)
}

// programPath is where a program is: built by us, or installed.
func programPath(name string) string {
	if _, err := os.Stat(binary(name)); err == nil {
		return binary(name)
	}
	return name
}

// askHTTP asks once whether an address answers 200.
func askHTTP(client *http.Client, url string) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		if err := res.Body.Close(); err != nil {
			return err
		}
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", url, res.Status)
		}
		return nil
	}
}

// adminClient speaks to the API server as the administrator.
func adminClient() (*http.Client, error) {
	pair, err := tls.LoadX509KeyPair(certificate("admin.crt"), certificate("admin.key"))
	if err != nil {
		return nil, err
	}
	authority, err := os.ReadFile(certificate("ca.crt"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authority) {
		return nil, errors.New("the authority's certificate cannot be read")
	}
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}}}, nil
}
