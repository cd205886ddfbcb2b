package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// proxy is something between a client and the upstream.
type proxy struct {
	*process
	name    string
	address string // "host:port"
	header  string // of every request, its lines ended
	alone   bool   // its children are none of it: they are replicas
	skipped string // why it is not measured
}

// cpu is the CPU time of the peer's processes, in seconds.
func (p *proxy) cpu() (float64, error) {
	all, err := p.family()
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for _, pid := range all {
		s, err := readCPU(pid)
		if err != nil {
			return 0, err
		}
		sum += s
	}
	return sum, nil
}

// memory is what the peer's processes hold, in MB, pages they share counted
// once.
func (p *proxy) memory() (float64, error) {
	all, err := p.family()
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for _, pid := range all {
		f, err := readFootprint(pid)
		if err != nil {
			return 0, err
		}
		sum += f.proportional
	}
	return sum, nil
}

// family are the peer's processes.
func (p *proxy) family() ([]int, error) {
	if p.alone {
		return []int{p.pid()}, nil
	}
	return family(p.pid())
}

// family is a process and its descendants.
func family(pid int) ([]int, error) {
	all := []int{pid}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil, err
	}
	for _, t := range tasks {
		raw, err := os.ReadFile(t)
		if err != nil {
			return nil, err
		}
		for _, word := range strings.Fields(string(raw)) {
			child, err := strconv.Atoi(word)
			if err != nil {
				return nil, err
			}
			below, err := family(child)
			if err != nil {
				return nil, err
			}
			all = append(all, below...)
		}
	}
	return all, nil
}

// proxies starts every peer in front of target. One that is not installed is
// there with the reason.
func proxies(ctx context.Context, b *bench, target string) ([]*proxy, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	makers := []struct {
		name string
		make func(p *proxy, port int) (*exec.Cmd, error)
	}{
		{"Go TCP relay", func(p *proxy, port int) (*exec.Cmd, error) {
			return exec.CommandContext(ctx, self, "part", "relay", loopback(port), target), nil
		}},
		{"nginx", func(p *proxy, port int) (*exec.Cmd, error) { return nginx(ctx, b, p, port, target, false) }},
		{"nginx + lua-cjson", func(p *proxy, port int) (*exec.Cmd, error) { return nginx(ctx, b, p, port, target, true) }},
		{"haproxy", func(p *proxy, port int) (*exec.Cmd, error) { return haproxy(ctx, b, p, port, target, false) }},
		{"haproxy + JSON query", func(p *proxy, port int) (*exec.Cmd, error) { return haproxy(ctx, b, p, port, target, true) }},
		{"httputil.ReverseProxy", func(p *proxy, port int) (*exec.Cmd, error) {
			return exec.CommandContext(ctx, self, "part", "reverseproxy", loopback(port), target), nil
		}},
		{"Caddy", func(p *proxy, port int) (*exec.Cmd, error) { return caddy(ctx, b, p, port, target) }},
		{"Portkey", func(p *proxy, port int) (*exec.Cmd, error) { return portkey(ctx, b, p, port, target) }},
	}
	var all []*proxy
	for _, m := range makers {
		port, err := freePort()
		if err != nil {
			return all, err
		}
		p := &proxy{name: m.name, address: loopback(port)}
		all = append(all, p)
		cmd, err := m.make(p, port)
		var missing *absent
		if errors.As(err, &missing) {
			p.skipped = missing.Error()
			continue
		}
		if err == nil {
			p.process, err = launch(cmd)
		}
		if err == nil {
			err = p.until(ctx, 20*time.Millisecond, func() error { return ask(p.address, p.request(chatBody(1, ""))) })
		}
		if err != nil {
			return all, fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return all, nil
}

// request is a POST with a body to the peer.
func (p *proxy) request(body []byte) []byte {
	head := fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n", p.header, len(body))
	return append([]byte(head), body...)
}

// absent is a peer that is not installed.
type absent struct{ what string }

func (a *absent) Error() string { return a.what }

// program finds a program on PATH or in Debian's folders for daemons.
func program(name, install string) (string, error) {
	for _, at := range []string{name, "/usr/sbin/" + name, "/sbin/" + name} {
		if path, err := exec.LookPath(at); err == nil {
			return path, nil
		}
	}
	return "", &absent{fmt.Sprintf("no %s: %s", name, install)}
}

const nginxConfig = `%sworker_processes auto;
daemon off;
pid %[2]s/nginx.pid;
error_log %[2]s/error.log crit;
events { worker_connections 8192; }
http {
  access_log off;
  client_body_temp_path %[2]s/b; proxy_temp_path %[2]s/p; fastcgi_temp_path %[2]s/f; uwsgi_temp_path %[2]s/u; scgi_temp_path %[2]s/s;
  client_body_buffer_size 512k; client_max_body_size 64m;
  keepalive_requests 1000000000;
  upstream bench { server %[3]s; keepalive 256; keepalive_requests 1000000000; }
  server {
    listen %[4]s;
    location / {
      %[5]s
      proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; proxy_read_timeout 600s;
    }
  }
}
`

// lua reads the model from the body and chooses the upstream by it.
const lua = `set $to ""; lua_need_request_body on;
      access_by_lua_block {
        local body = ngx.req.get_body_data()
        local q = body and require("cjson.safe").decode(body)
        if not q or type(q.model) ~= "string" then return ngx.exit(400) end
        if q.model ~= "bench" then return ngx.exit(404) end
        ngx.var.to = q.model
      }
      proxy_pass http://$to;`

func nginx(ctx context.Context, b *bench, p *proxy, port int, target string, scripted bool) (*exec.Cmd, error) {
	path, err := program("nginx", "apt-get install nginx-light")
	if err != nil {
		return nil, err
	}
	dir, modules, location := filepath.Join(b.scratch, "nginx"), "", "proxy_pass http://bench;"
	if scripted {
		dir, location = filepath.Join(b.scratch, "nginx-lua"), lua
		for _, m := range []string{"ndk_http_module.so", "ngx_http_lua_module.so"} {
			at := "/usr/lib/nginx/modules/" + m
			if _, err := os.Stat(at); err != nil {
				return nil, &absent{"no " + m + ": apt-get install libnginx-mod-http-lua lua-cjson"}
			}
			modules += "load_module " + at + ";\n"
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "nginx.conf")
	text := fmt.Sprintf(nginxConfig, modules, dir, target, p.address, location)
	if os.Getuid() == 0 {
		text = "user root;\n" + text
	}
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, path, "-c", config, "-p", dir, "-e", filepath.Join(dir, "error.log")), nil
}

const haproxyConfig = `global
  maxconn 8192
  tune.bufsize 32768
defaults
  mode http
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  http-reuse always
  option http-no-delay
frontend in
  bind %s
  %s
backend bench
  server s1 %s pool-max-conn 256
`

const haproxyQuery = `option http-buffer-request
  http-request set-var(txn.model) req.body,json_query('$.model')
  http-request deny deny_status 404 unless { var(txn.model) -m found }
  use_backend %[var(txn.model)]`

func haproxy(ctx context.Context, b *bench, p *proxy, _ int, target string, query bool) (*exec.Cmd, error) {
	path, err := program("haproxy", "apt-get install haproxy")
	if err != nil {
		return nil, err
	}
	config, choose := filepath.Join(b.scratch, "haproxy.cfg"), "default_backend bench"
	if query {
		config, choose = filepath.Join(b.scratch, "haproxy-query.cfg"), haproxyQuery
	}
	if err := os.WriteFile(config, fmt.Appendf(nil, haproxyConfig, p.address, choose, target), 0o644); err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, path, "-db", "-q", "-f", config), nil
}

func caddy(ctx context.Context, b *bench, p *proxy, port int, target string) (*exec.Cmd, error) {
	path := filepath.Join(b.gateways, "caddy")
	if _, err := os.Stat(path); err != nil {
		return nil, &absent{"no " + path + ": make bench-gateways builds it"}
	}
	config := filepath.Join(b.scratch, "Caddyfile")
	text := fmt.Sprintf("{\n admin off\n auto_https off\n}\nhttp://:%d {\n bind 127.0.0.1\n reverse_proxy %s {\n  transport http {\n   compression off\n   keepalive_idle_conns_per_host 256\n  }\n }\n}\n",
		port, target)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, "run", "--config", config, "--adapter", "caddyfile")
	cmd.Env = append(os.Environ(), "XDG_DATA_HOME="+b.scratch, "XDG_CONFIG_HOME="+b.scratch)
	return cmd, nil
}

func portkey(ctx context.Context, b *bench, p *proxy, port int, target string) (*exec.Cmd, error) {
	script := filepath.Join(b.gateways, "node_modules/@portkey-ai/gateway/build/start-server.js")
	if _, err := os.Stat(script); err != nil {
		return nil, &absent{"no " + script + ": make bench-gateways installs it"}
	}
	node, err := program("node", "install Node.js")
	if err != nil {
		return nil, err
	}
	p.header = "Authorization: Bearer x\r\nx-portkey-provider: openai\r\nx-portkey-custom-host: http://" + target + "/v1\r\n"
	cmd := exec.CommandContext(ctx, node, script, "--headless", fmt.Sprintf("--port=%d", port))
	cmd.Env = append(os.Environ(), "TRUSTED_CUSTOM_HOSTS=127.0.0.1,localhost", "NODE_ENV=production")
	return cmd, nil
}
