package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A file of the chapter is called modelFile in the repository modelRepo.
const (
	modelRepo = "org/m"
	modelFile = "model.safetensors"
	modelPath = "/" + modelRepo + "/resolve/main/" + modelFile
	// modelCopies bounds what is on the disk at a time: the file, what a cache,
	// two nodes of a ring and a cache that fills keep of it, and olah.
	modelCopies = 6
	// modelRanges are asked for at a time.
	modelRanges = 8
	// modelClients ask at once for a file that no cache has.
	modelClients = 20
)

// modelBench is what the chapter's measurements share.
type modelBench struct {
	*bench
	dir  string
	file string // a safetensors file
	size int64
	hash string // SHA-256
	hub  *modelHub
}

// models measures files of models: kept by `roundhouse hub-cache`, coming
// through it, and streamed from the disk.
func models(ctx context.Context, b *bench) error {
	m := &modelBench{bench: b, dir: filepath.Join(b.scratch, "models")}
	if err := os.Mkdir(m.dir, 0o755); err != nil {
		return err
	}
	if err := m.checkDisk(int64(b.modelMB) * 1e6); err != nil {
		return err
	}
	m.file = filepath.Join(m.dir, modelFile)
	if err := writeModel(m.file, int64(b.modelMB)*1e6); err != nil {
		return err
	}
	var err error
	if m.size, m.hash, err = hashFile(m.file); err != nil {
		return err
	}
	if m.hub, err = startHub(ctx, m.file); err != nil {
		return err
	}
	var failed []error
	for _, part := range []func(context.Context) error{m.hits, m.misses, m.hop, m.starts, m.streams} {
		if err := part(ctx); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(append(failed, m.hub.close())...)
}

// checkDisk checks that the disk has room for what the chapter writes.
func (m *modelBench) checkDisk(size int64) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(m.dir, &st); err != nil {
		return err
	}
	need := size*modelCopies + 2e9
	if free := int64(st.Bavail) * int64(st.Bsize); free < need { //nolint:gosec,unconvert // no disk is so large; Bsize is 32 bits wide on macOS
		return fmt.Errorf("%s has %.1f GB free and %.1f are needed: set TMPDIR, or -model-mb below %d", m.dir, float64(free)/1e9, float64(need)/1e9, m.modelMB)
	}
	return nil
}

// delivery is a way to get the file, and what its rounds gave.
type delivery struct {
	*proxy
	path  string
	size  int64 // of the file
	bytes int64 // how much of it is asked for
	one   flow  // one stream
	eight flow  // modelRanges at a time
}

// flow is a value a round.
type flow struct {
	rate []float64 // MB/s
	cpu  []float64 // CPU-seconds of the server a GB
}

// hits compares servers that have the file on this disk.
func (m *modelBench) hits(ctx context.Context) (err error) {
	all, err := m.deliveries(ctx)
	defer func() {
		for _, d := range all {
			if d.process != nil {
				err = errors.Join(err, d.end())
			}
		}
	}()
	if err != nil {
		return err
	}
	for round := range m.rounds + 1 {
		for i := range all {
			d := all[(i+round)%len(all)]
			if d.process == nil {
				continue
			}
			if err := d.round(ctx, round > 0); err != nil {
				return fmt.Errorf("%s: %w", d.name, err)
			}
		}
	}
	m.hitTable(all).print(m.out)
	return m.heads(ctx, all)
}

// round asks for the file once in one stream and once in ranges.
func (d *delivery) round(ctx context.Context, counted bool) error {
	for _, f := range []struct {
		into    *flow
		streams int
	}{{&d.one, 1}, {&d.eight, modelRanges}} {
		if err := d.stream(ctx, f.into, f.streams, counted); err != nil {
			return err
		}
	}
	return nil
}

// stream asks for the file in that many ranges at a time.
func (d *delivery) stream(ctx context.Context, into *flow, ranges int, counted bool) error {
	before, err := d.cpu()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := pullAll(ctx, d.address, d.path, d.bytes, d.size, ranges); err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	after, err := d.cpu()
	if err == nil && counted {
		into.rate = append(into.rate, float64(d.bytes)/1e6/took)
		into.cpu = append(into.cpu, (after-before)/(float64(d.bytes)/1e9))
	}
	return err
}

func (m *modelBench) hitTable(all []*delivery) table {
	t := table{title: fmt.Sprintf("A file of %.2f GB that is on the disk, over loopback (%d rounds in turns)", float64(m.size)/1e9, m.rounds)}
	ours := all[0]
	for _, f := range []struct {
		what string
		of   func(*delivery) flow
	}{{"one stream", func(d *delivery) flow { return d.one }}, {fmt.Sprintf("%d ranges", modelRanges), func(d *delivery) flow { return d.eight }}} {
		mine := f.of(ours)
		t.rows = append(t.rows, row{what: f.what + ": " + ours.name, samples: mine.rate, unit: "MB/s"},
			row{what: "  CPU of the server", samples: mine.cpu, unit: "s/GB", goal: 0.15})
		for _, d := range all[1:] {
			if d.process == nil {
				continue
			}
			theirs, goal := f.of(d), 1/0.9
			t.rows = append(t.rows, row{what: f.what + ": " + d.name, samples: theirs.rate, unit: "MB/s"},
				row{what: "  CPU of the server", samples: theirs.cpu, unit: "s/GB"},
				row{what: "  its MB/s ÷ ours", samples: pairwise(theirs.rate, mine.rate, ratio), unit: "×", goal: goal},
				row{what: "  our CPU ÷ its", samples: pairwise(mine.cpu, theirs.cpu, ratio), unit: "×"})
		}
	}
	t.notes = []string{"The server's CPU alone is counted. Over loopback it holds the kernel's work of receiving, which another machine would do."}
	for _, d := range all {
		if d.process == nil {
			t.notes = append(t.notes, d.name+" is left out: "+d.skipped)
		} else if d.bytes < m.size {
			t.notes = append(t.notes, fmt.Sprintf("%s is asked for the first %.0f MB alone.", d.name, float64(d.bytes)/1e6))
		}
	}
	return t
}

// headCount is how often a file is asked about, each round.
const headCount = 500

// heads asks what the file is, over one connection.
func (m *modelBench) heads(ctx context.Context, all []*delivery) error {
	t := table{title: fmt.Sprintf("HEAD of the file (%d rounds of %d)", m.rounds, headCount)}
	took := map[*delivery][]float64{}
	for round := range m.rounds + 1 {
		for _, d := range all {
			if d.process == nil || d.bytes < m.size { // olah asks its upstream
				continue
			}
			p50, err := headRound(ctx, d.address, d.path)
			if err != nil {
				return fmt.Errorf("%s: %w", d.name, err)
			}
			if round > 0 {
				took[d] = append(took[d], p50)
			}
		}
	}
	for _, d := range all {
		if samples := took[d]; samples != nil {
			r := row{what: d.name + ": p50", samples: samples, unit: "ms"}
			if d == all[0] {
				r.goal = 1
			}
			t.rows = append(t.rows, r)
		}
	}
	t.print(m.out)
	return nil
}

// deliveries starts every server that has the file, ours first. One that is
// not installed is there with the reason.
func (m *modelBench) deliveries(ctx context.Context) ([]*delivery, error) {
	dir := filepath.Join(m.dir, "cache")
	cache, err := m.cache(ctx, dir)
	if err != nil {
		return nil, err
	}
	all := []*delivery{{proxy: cache, path: modelPath, size: m.size, bytes: m.size}}
	if err := m.checked(ctx, all[0]); err != nil {
		return all, err
	}
	blob := filepath.Join(dir, "blobs", m.hash[:2], m.hash)
	if err := appears(ctx, blob); err != nil {
		return all, err
	}
	for _, maker := range []struct {
		name string
		make func(context.Context, *delivery, string) error
	}{{"http.ServeContent", m.serveContent}, {"nginx", m.nginxFile}, {"olah", m.olahCache}} {
		d := &delivery{proxy: &proxy{name: maker.name}, path: modelPath, size: m.size, bytes: m.size}
		all = append(all, d)
		err := maker.make(ctx, d, blob)
		var missing *absent
		if errors.As(err, &missing) {
			d.skipped = missing.Error()
			continue
		}
		if err == nil {
			err = m.checked(ctx, d)
		}
		if err != nil && d.name == "olah" { // somebody else's program may not get along with this hub
			d.skipped = strings.Join(strings.Fields(err.Error()), " ")
			err = d.end()
		}
		if err != nil {
			return all, fmt.Errorf("%s: %w", maker.name, err)
		}
	}
	return all, nil
}

// checked gets the file once and compares its hash.
func (m *modelBench) checked(ctx context.Context, d *delivery) error {
	h := sha256.New()
	if err := pull(ctx, d.address, d.path, 0, m.size, m.size, h); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != m.hash {
		return fmt.Errorf("sent %s, not the file %s", got, m.hash)
	}
	return nil
}

// end stops a server that may not say goodbye as ours do.
func (d *delivery) end() error {
	p := d.process
	d.process = nil
	if p == nil {
		return nil
	}
	err := p.stop()
	if d.name != "roundhouse hub-cache" {
		return nil // parts and nginx end by the signal
	}
	return err
}
