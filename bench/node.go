package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
)

// node is a running `roundhouse up`.
type node struct {
	*process
	gateway string // "host:port"
	admin   admin.Client
}

// up starts `roundhouse up` over the manifests at files and waits until its
// health check succeeds.
func (b *bench) up(ctx context.Context, dataDir string, files string) (*node, error) {
	inference, err1 := freePort()
	adminPort, err2 := freePort()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	n := &node{gateway: loopback(inference), admin: admin.Client{Base: "http://" + loopback(adminPort)}}
	var err error
	n.process, err = b.spawn(ctx, "up", "-f", files, "--listen", n.gateway, "--grpc-listen", "", "--admin-listen", loopback(adminPort), "--data-dir", dataDir)
	if err != nil {
		return nil, err
	}
	err = n.until(ctx, time.Millisecond, func() error { return get(ctx, n.admin.Base+"/healthz") })
	if err == nil {
		n.admin.Token, err = datadir.ReadToken(dataDir)
	}
	if err != nil {
		return nil, errors.Join(err, n.stop())
	}
	return n, nil
}

func loopback(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

// get succeeds if the URL answers 200.
func get(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return nil
}

// settled waits until that many services have their runtime and revision.
func (n *node) settled(ctx context.Context, services int) error {
	return n.until(ctx, 5*time.Millisecond, func() error {
		all, err := n.admin.Services(ctx, "", false)
		if err != nil {
			return err
		}
		resolved := 0
		for _, s := range all {
			if s.Status.Runtime.Name != "" && s.Status.Revision != "" {
				resolved++
			}
		}
		if resolved != services {
			return fmt.Errorf("%d of %d services are resolved", resolved, services)
		}
		return nil
	})
}

// replica is the process of a service that has one replica, and its address.
func (n *node) replica(ctx context.Context, name string) (pid int, address string, err error) {
	s, err := n.admin.Service(ctx, service.Key{Namespace: "default", Name: name})
	if err != nil {
		return 0, "", err
	}
	if len(s.Replicas) != 1 || s.Replicas[0].PID == 0 {
		return 0, "", fmt.Errorf("%s has %d replicas, and one was expected", name, len(s.Replicas))
	}
	return s.Replicas[0].PID, s.Replicas[0].HTTP, nil
}

// sleep unloads a service of one replica and waits until its process is gone.
func (n *node) sleep(ctx context.Context, name string) error {
	pid, _, err := n.replica(ctx, name)
	if err != nil {
		return err
	}
	if err := ask(n.gateway, post("/v2/repository/models/"+name+"/unload", nil)); err != nil {
		return err
	}
	return gone(ctx, pid)
}

// request reads a sample request of the quickstart: NAME-request.json.
func (b *bench) request(name string) ([]byte, error) {
	body, err := os.ReadFile(b.examples + "/" + name + "-request.json")
	if err != nil {
		return nil, err
	}
	return post("/v2/models/"+name+"/infer", body), nil
}
