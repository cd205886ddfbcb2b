package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// modelHub is the Hub that caches ask: a process of its own.
type modelHub struct {
	*process
	control string // address of what tells about it
	hubState
}

// hubState is what the part says of itself.
type hubState struct {
	URL  string `json:"url"`
	Sent int64  `json:"sent"` // bytes of files since it was last asked
}

func startHub(ctx context.Context, file string) (*modelHub, error) {
	p, err := startPart(ctx, "hub", file)
	if err != nil {
		return nil, err
	}
	h := &modelHub{process: p.process, control: p.address}
	return h, h.until(ctx, readyPause, func() error { return h.ask(ctx) })
}

// ask reads what the Hub has sent since the last call.
func (h *modelHub) ask(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+h.control+"/", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	return json.NewDecoder(resp.Body).Decode(&h.hubState)
}

func (h *modelHub) close() error {
	_ = h.stop() // a part ends by the signal
	return nil
}

// startPart starts this program as a part that listens.
func startPart(ctx context.Context, name, file string) (*proxy, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	p := &proxy{name: name, address: loopback(port)}
	p.process, err = launch(exec.CommandContext(ctx, self, "part", name, p.address, file))
	return p, err
}

// cache starts `roundhouse hub-cache` over a folder.
func (m *modelBench) cache(ctx context.Context, dir string, args ...string) (*proxy, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	return m.cacheAt(ctx, loopback(port), dir, args...)
}

func (m *modelBench) cacheAt(ctx context.Context, address, dir string, args ...string) (*proxy, error) {
	p := &proxy{name: "roundhouse hub-cache", address: address, alone: true}
	var err error
	p.process, err = m.spawn(ctx, append([]string{"hub-cache", "--listen", address, "--dir", dir, "--upstream", m.hub.URL}, args...)...)
	if err != nil {
		return nil, err
	}
	return p, p.until(ctx, readyPause, func() error { return healthy(ctx, address) })
}

// healthy asks a cache once.
func healthy(ctx context.Context, address string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/healthz", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("/healthz answered %s", resp.Status)
	}
	return nil
}

// serveContent is http.ServeContent and nothing else.
func (m *modelBench) serveContent(ctx context.Context, d *delivery, blob string) error {
	p, err := startPart(ctx, "file", blob)
	if err != nil {
		return err
	}
	d.process, d.address = p.process, p.address
	return d.until(ctx, readyPause, func() error { return healthy(ctx, d.address) })
}

const nginxFileConfig = `worker_processes auto;
daemon off;
pid %[1]s/nginx.pid;
error_log %[1]s/error.log crit;
events { worker_connections 1024; }
http {
  access_log off;
  client_body_temp_path %[1]s/b; proxy_temp_path %[1]s/p; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
  default_type application/octet-stream;
  sendfile on; tcp_nopush on; keepalive_requests 1000000;
  server {
    listen %[2]s;
    location = /healthz { return 200 "ok"; }
    location / { root %[3]s; try_files /%[4]s =404; }
  }
}
`

// nginxFile is nginx with the same file.
func (m *modelBench) nginxFile(ctx context.Context, d *delivery, blob string) error {
	path, err := program("nginx", "apt-get install nginx-light")
	if err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	d.address = loopback(port)
	dir := filepath.Join(m.dir, "nginx")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	text := fmt.Sprintf(nginxFileConfig, dir, d.address, filepath.Dir(blob), filepath.Base(blob))
	if os.Getuid() == 0 {
		text = "user root;\n" + text // the blob is its owner's alone
	}
	config := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return err
	}
	if d.process, err = launch(exec.CommandContext(ctx, path, "-c", config, "-p", dir, "-e", filepath.Join(dir, "error.log"))); err != nil {
		return err
	}
	return d.until(ctx, readyPause, func() error { return healthy(ctx, d.address) })
}

// olahShare is the part of the file that olah is asked for: it is slower by
// more than this.
const olahShare = 10

// olahCache is another cache of the Hub.
func (m *modelBench) olahCache(ctx context.Context, d *delivery, _ string) error {
	path := filepath.Join(m.olah, "bin", "olah-cli")
	if _, err := os.Stat(path); err != nil {
		return &absent{"no " + path + ": make bench-olah installs it"}
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	d.address, d.bytes = loopback(port), m.size/olahShare
	dir, hub := filepath.Join(m.dir, "olah"), m.hub.URL[len("http://"):]
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, "--host", "127.0.0.1", "--port", fmt.Sprint(port), "--hf-scheme", "http", "--hf-netloc", hub, "--hf-lfs-netloc", hub,
		"--mirror-scheme", "http", "--mirror-netloc", d.address, "--mirror-lfs-netloc", d.address,
		"--repos-path", filepath.Join(dir, "repos"), "--log-path", filepath.Join(dir, "logs"), "--metadata-cache-ttl", "3600")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "HOME="+dir, "HF_HOME="+dir, "HF_ENDPOINT="+m.hub.URL)
	if d.process, err = launch(cmd); err != nil {
		return err
	}
	return d.until(ctx, 50*time.Millisecond, func() error {
		c, err := dial(d.address)
		if err != nil {
			return err
		}
		return errors.Join(c.Close())
	})
}
