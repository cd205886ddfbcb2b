package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// fewer is the number of rounds of what takes long.
func (m *modelBench) fewer() int { return max(1, m.rounds/2) }

// misses has many clients ask at once for the file that a cache does not have.
func (m *modelBench) misses(ctx context.Context) error {
	var sent, spread, rate, cpu, one []float64
	for round := range m.fewer() {
		dir := filepath.Join(m.dir, fmt.Sprintf("miss-%d", round))
		alone, err := m.miss(ctx, dir, 1)
		if err != nil {
			return err
		}
		all, err := m.miss(ctx, dir, modelClients)
		if err != nil {
			return err
		}
		one = append(one, float64(m.size)/1e6/alone.last)
		sent = append(sent, float64(all.upstream)/float64(m.size))
		spread = append(spread, all.last/all.first)
		rate = append(rate, modelClients*float64(m.size)/1e6/all.last)
		cpu = append(cpu, all.cpu/(modelClients*float64(m.size)/1e9))
	}
	table{title: fmt.Sprintf("%d clients at once, nobody has the %.2f GB yet (%d rounds)", modelClients, float64(m.size)/1e9, m.fewer()), rows: []row{
		{what: "bytes from the Hub ÷ the file's", samples: sent, unit: "×", goal: 1.0001},
		{what: "the last client's time ÷ the first's", samples: spread, unit: "×", goal: 1.1},
		{what: "sent to all of them", samples: rate, unit: "MB/s"},
		{what: "CPU of the cache for what was sent", samples: cpu, unit: "s/GB"},
		{what: "one client alone that fills the cache", samples: one, unit: "MB/s"},
	}}.print(m.out)
	return nil
}

// missed is how one miss went.
type missed struct {
	first, last float64 // seconds until a client had all
	upstream    int64   // bytes
	cpu         float64 // seconds
}

// miss starts a cache over an empty folder, and removes it again.
func (m *modelBench) miss(ctx context.Context, dir string, clients int) (got missed, err error) {
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cache, err := m.cache(ctx, dir)
	if err != nil {
		return got, err
	}
	defer func() { err = errors.Join(err, cache.stop()) }()
	if err := m.hub.ask(ctx); err != nil { // from here on it counts
		return got, err
	}
	before, err := cache.cpu()
	if err != nil {
		return got, err
	}
	took := make([]float64, clients)
	errs := make([]error, clients)
	var group sync.WaitGroup
	began := time.Now()
	for i := range clients {
		group.Go(func() {
			errs[i] = pull(ctx, cache.address, modelPath, 0, m.size, m.size, nil)
			took[i] = time.Since(began).Seconds()
		})
	}
	group.Wait()
	after, err := cache.cpu()
	if err := errors.Join(append(errs, err, m.hub.ask(ctx))...); err != nil {
		return got, err
	}
	return missed{quantile(took, 0), quantile(took, 1), m.hub.Sent, after - before}, nil
}

// hop asks two nodes of a ring for a file that one of them keeps.
func (m *modelBench) hop(ctx context.Context) (err error) {
	secret := filepath.Join(m.dir, "ring.secret")
	if err := os.WriteFile(secret, []byte(strings.Repeat("bench", 13)), 0o600); err != nil {
		return err
	}
	var origins []string
	for range 2 {
		port, err := freePort()
		if err != nil {
			return err
		}
		origins = append(origins, "http://"+loopback(port))
	}
	var nodes []*proxy
	defer func() {
		for i, n := range nodes {
			err = errors.Join(err, n.stop(), os.RemoveAll(m.node(i)))
		}
	}()
	for i, o := range origins {
		n, err := m.cacheAt(ctx, o[len("http://"):], m.node(i), "--self", o, "--peers", strings.Join(origins, ","), "--peers-secret-file", secret)
		if err != nil {
			return err
		}
		nodes = append(nodes, n)
	}
	if err := pull(ctx, nodes[0].address, modelPath, 0, m.size, m.size, nil); err != nil {
		return err
	}
	owner, err := m.keeper(ctx, len(nodes))
	if err != nil {
		return err
	}
	at, through := nodes[owner], nodes[1-owner]
	var direct, hopped, ownerCPU, throughCPU []float64
	for round := range m.rounds + 1 {
		one := &delivery{proxy: at, path: modelPath, size: m.size, bytes: m.size}
		if err := one.stream(ctx, &one.one, 1, true); err != nil {
			return err
		}
		before, err1 := at.cpu()
		two := &delivery{proxy: through, path: modelPath, size: m.size, bytes: m.size}
		err2 := two.stream(ctx, &two.one, 1, true)
		after, err3 := at.cpu()
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		if round > 0 {
			direct, hopped = append(direct, one.one.rate...), append(hopped, two.one.rate...)
			throughCPU = append(throughCPU, two.one.cpu...)
			ownerCPU = append(ownerCPU, (after-before)/(float64(m.size)/1e9))
		}
	}
	table{title: fmt.Sprintf("The file through a ring of two, one stream (%d rounds in turns)", m.rounds), rows: []row{
		{what: "from the node that keeps it", samples: direct, unit: "MB/s"},
		{what: "through the other node", samples: hopped, unit: "MB/s"},
		{what: "  directly ÷ through", samples: pairwise(direct, hopped, ratio), unit: "×"},
		{what: "  CPU of the node that keeps it", samples: ownerCPU, unit: "s/GB"},
		{what: "  CPU of the node that was asked, which hashes it", samples: throughCPU, unit: "s/GB"},
	}}.print(m.out)
	return nil
}

func (m *modelBench) node(i int) string { return filepath.Join(m.dir, "node-"+strconv.Itoa(i)) }

// keeper waits until one of the nodes has the file, and says which.
func (m *modelBench) keeper(ctx context.Context, nodes int) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		for i := range nodes {
			if _, err := os.Stat(filepath.Join(m.node(i), "blobs", m.hash[:2], m.hash)); err == nil {
				return i, nil
			}
		}
		select {
		case <-ctx.Done():
			return 0, errors.New("no node of the ring keeps the file")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// starts measures a cache's start over a folder of many files, beside one over
// an empty folder.
func (m *modelBench) starts(ctx context.Context) error {
	full, empty := filepath.Join(m.dir, "full"), filepath.Join(m.dir, "empty")
	if err := writeBlobs(ctx, full, m.blobs); err != nil {
		return err
	}
	took := map[string][]float64{}
	var memory, stop []float64
	for range m.fewer() {
		for _, dir := range []string{empty, full} {
			began := time.Now()
			cache, err := m.cache(ctx, dir)
			if err != nil {
				return err
			}
			err = pull(ctx, cache.address, modelPath, 0, 1, m.size, nil) // it works, too
			took[dir] = append(took[dir], time.Since(began).Seconds())
			if f, err := readFootprint(cache.pid()); err == nil && dir == full {
				memory = append(memory, f.resident)
			}
			began = time.Now()
			if err := errors.Join(err, cache.stop()); err != nil {
				return err
			}
			if dir == full {
				stop = append(stop, time.Since(began).Seconds())
			}
		}
	}
	table{title: fmt.Sprintf("A cache that has %d files: start until the first byte of a file (%d rounds)", m.blobs, m.fewer()), rows: []row{
		{what: "over an empty folder", samples: took[empty], unit: "s"},
		{what: "over the full one", samples: took[full], unit: "s", goal: 2},
		{what: "  memory then, resident", samples: memory, unit: "MB"},
		{what: "  SIGTERM, while the files are counted, until it has ended", samples: stop, unit: "s", goal: 2},
	}}.print(m.out)
	return errors.Join(os.RemoveAll(full), os.RemoveAll(empty))
}

// writeBlobs makes empty files with names of blobs: counting reads no content.
func writeBlobs(ctx context.Context, dir string, n int) error {
	for i := range 256 {
		if err := os.MkdirAll(filepath.Join(dir, "blobs", fmt.Sprintf("%02x", i)), 0o700); err != nil {
			return err
		}
	}
	for i := range n {
		name := fmt.Sprintf("%02x%038x", i%256, i)
		f, err := os.OpenFile(filepath.Join(dir, "blobs", name[:2], name), os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			err = f.Close()
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
	}
	return nil
}

// streams compares a stream of the file's tensors with reading the file.
func (m *modelBench) streams(ctx context.Context) error {
	t := table{title: fmt.Sprintf("Tensors of a file of %.2f GB, streamed (%d rounds in turns, each a process)", float64(m.size)/1e9, m.rounds)}
	var grown []float64
	for _, state := range []string{"warm", "cold"} {
		rate := map[string][]float64{}
		for round := range m.rounds + 1 {
			for i := range 2 {
				how := []string{"raw", "tensors"}[(i+round)%2]
				got, err := m.readOnce(ctx, how, state)
				if err != nil {
					return err
				}
				if round == 0 {
					continue
				}
				rate[how] = append(rate[how], float64(got.Bytes)/1e6/got.Seconds)
				if how == "tensors" {
					grown = append(grown, float64(got.Grown)/float64(got.Ring))
				}
			}
		}
		where := map[string]string{"warm": "in the page cache", "cold": "from the disk"}[state]
		t.rows = append(t.rows, row{what: where + ": read, 4 MiB at a time", samples: rate["raw"], unit: "MB/s"},
			row{what: where + ": streamed", samples: rate["tensors"], unit: "MB/s"},
			row{what: "  read ÷ streamed", samples: pairwise(rate["raw"], rate["tensors"], ratio), unit: "×", goal: 1 / 0.9})
	}
	t.rows = append(t.rows, row{what: "memory that the process grew by ÷ the ring's", samples: grown, unit: "×", goal: 1.1})
	t.print(m.out)
	return nil
}

// readOnce has a process read the file.
func (m *modelBench) readOnce(ctx context.Context, how, state string) (got reading, err error) {
	self, err := os.Executable()
	if err != nil {
		return got, err
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, self, "part", how, state, m.file)
	cmd.Stdout = &out
	p, err := launch(cmd)
	if err != nil {
		return got, err
	}
	<-p.done
	if err := p.failure(); err != nil {
		return got, err
	}
	return got, json.Unmarshal(out.Bytes(), &got)
}
