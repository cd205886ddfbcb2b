// Package brought fetches models of stores that this program does not know, on one machine:
// it runs the container of KServe's ClusterStorageContainer once, with podman or Docker, and
// keeps what that leaves in its folder.
package brought

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/process/containers"
)

// Config is what a Store works with. Dir and Engines are required.
type Config struct {
	// Dir has a folder for each model. One Store at a time may use it.
	Dir string
	// Engines finds podman or Docker.
	Engines *containers.Finder
	Log     *slog.Logger
}

// fetchTimeout bounds how long a container may fetch.
const fetchTimeout = 12 * time.Hour

// Store has the models that containers fetched. It is safe for concurrent use.
type Store struct {
	cfg Config

	mu   sync.Mutex
	busy map[string]chan struct{} // by folder; closed when its fetch has ended
}

// New makes a store.
func New(cfg Config) *Store {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Store{cfg: cfg, busy: map[string]chan struct{}{}}
}

// Request is what is fetched, by which container, with which further variables.
type Request struct {
	URI       string
	Container corev1.Container
	Variables map[string]string
}

// In a model's folder: its files, and beside them what says that they are complete.
const (
	filesName  = "files"
	recordName = "record.json"
)

// record is what is known of a model that is complete.
type record struct {
	URI   string `json:"uri"`
	Image string `json:"image"`
}

// folder is that of a request: another container, or other variables, may fetch others.
func (s *Store) folder(r Request) string {
	raw, _ := json.Marshal(r) // these plain structs always encode
	sum := sha256.Sum256(raw)
	return filepath.Join(s.cfg.Dir, hex.EncodeToString(sum[:])[:32])
}

// Fetch returns the folder with a model's files, which the container fetches unless they
// are here.
func (s *Store) Fetch(ctx context.Context, r Request) (string, error) {
	dir := s.folder(r)
	for {
		if _, err := os.Stat(filepath.Join(dir, recordName)); err == nil {
			return filepath.Join(dir, filesName), nil
		}
		s.mu.Lock()
		other := s.busy[dir]
		if other == nil {
			other = make(chan struct{})
			s.busy[dir] = other
			s.mu.Unlock()
			err := s.fetch(ctx, dir, r)
			s.mu.Lock()
			delete(s.busy, dir)
			s.mu.Unlock()
			close(other)
			if err != nil {
				return "", fmt.Errorf("%s: the container of image %s does not fetch it: %w", service.RedactURI(r.URI), r.Container.Image, err)
			}
			return filepath.Join(dir, filesName), nil
		}
		s.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// fetch runs the container and keeps what it leaves.
func (s *Store) fetch(ctx context.Context, dir string, r Request) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	p, err := workload.FetchProcess(r.Container, r.URI)
	if err != nil {
		return err
	}
	e, lacks := s.cfg.Engines.Find(ctx)
	if e == nil {
		if lacks == "" {
			lacks = "this roundhouse runs no containers (--containers=off)"
		}
		return errors.New(lacks)
	}
	image, err := s.image(ctx, e, p.Container)
	if err != nil {
		return err
	}
	files := filepath.Join(dir, filesName)
	if err := e.RemoveAll(dir); err != nil { // what is left of a fetch that was cut off
		return err
	}
	// Whoever the image runs as writes there; nobody else comes so far.
	if err := errors.Join(os.MkdirAll(files, 0o700), os.Chmod(files, 0o777)); err != nil { //nolint:gosec // within a folder of 0700
		return err
	}
	spec := containers.Spec{Name: "roundhouse-fetch-" + filepath.Base(dir), Labels: [][2]string{{"roundhouse.dev/fetches", "model"}}, Process: *p,
		Mounts: []containers.Bind{{Source: files, Target: workload.ModelAt}}, ImageUser: image.User}
	lines, inherited, err := containers.Variables(e.Name, variables(p.Env, r.Variables))
	if err != nil {
		return err
	}
	for _, v := range inherited {
		name, _, _ := strings.Cut(v, "=")
		spec.Inherited = append(spec.Inherited, name)
	}
	spec.EnvFile = filepath.Join(dir, "env")
	if err := os.WriteFile(spec.EnvFile, []byte(lines), 0o600); err != nil {
		return err
	}
	defer func() { _ = os.Remove(spec.EnvFile) }() // it may hold secrets
	s.cfg.Log.Info("a container fetches a model", "uri", service.RedactURI(r.URI), "image", r.Container.Image)
	if err := e.Once(ctx, spec, inherited); err != nil {
		return err
	}
	if err := check(files); err != nil {
		return err
	}
	raw, err := json.Marshal(record{service.RedactURI(r.URI), r.Container.Image})
	if err != nil {
		return err
	}
	fresh := filepath.Join(dir, recordName+".new")
	return errors.Join(os.WriteFile(fresh, raw, 0o600), os.Rename(fresh, filepath.Join(dir, recordName)))
}

// image has the container's image be here, as its pull policy says.
func (s *Store) image(ctx context.Context, e *containers.Engine, c *workload.Container) (containers.Image, error) {
	if strings.HasPrefix(c.Image, "-") {
		return containers.Image{}, fmt.Errorf("%q is not an image's name: %s would take it for a flag", c.Image, e.Name)
	}
	image, err := e.Image(ctx, c.Image)
	if err != nil {
		return image, err
	}
	pull, must := containers.Wanted(c.Pull, c.Image, image.Known)
	switch {
	case !image.Known && !pull:
		return image, fmt.Errorf("it is not on this machine, and its imagePullPolicy is Never: pull it with %s, or change the policy", e.Name)
	case pull:
		err := e.Pull(ctx, c.Image, func(int, int) {})
		if err != nil && must {
			return image, fmt.Errorf("it cannot be pulled: %w", err)
		}
		if image, err = e.Image(ctx, c.Image); err != nil {
			return image, err
		}
	}
	if c.NonRoot {
		if why := image.MayBeRoot(c.User); why != "" {
			return image, fmt.Errorf("%s, and its securityContext says runAsNonRoot: give it a runAsUser other than 0", why)
		}
	}
	return image, nil
}

// variables are those of the container, as NAME=VALUE: its own go before those that secrets
// have.
func variables(own []corev1.EnvVar, more map[string]string) (env []string) {
	all := maps.Clone(more)
	if all == nil {
		all = map[string]string{}
	}
	for _, e := range own {
		all[e.Name] = e.Value
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		env = append(env, name+"="+all[name])
	}
	return env
}

// check refuses what cannot be served: nothing at all, and links that lead out of the
// folder, to files that the container could not read.
func check(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // only looked into
	n := 0
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch {
		case e.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			from, err := filepath.Rel(dir, filepath.Dir(path))
			if err != nil || filepath.IsAbs(to) || !filepath.IsLocal(filepath.Join(from, to)) {
				return errors.Join(err, fmt.Errorf("%s is a link that leads out of the model's folder", e.Name()))
			}
			// A chain of harmless links can lead out. One that leads to nothing leads nowhere.
			if _, err := root.Stat(filepath.Join(from, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s is a link that leads out of the model's folder, or in circles: %w", e.Name(), err)
			}
		case e.Type().IsRegular():
			n++
		case !e.IsDir():
			return fmt.Errorf("%s is no file", e.Name())
		}
		return nil
	})
	if err == nil && n == 0 {
		err = fmt.Errorf("it left no file in %s", workload.ModelAt)
	}
	return err
}

// Tidy removes the models whose URI nobody uses, and whose files none of paths is or lies in.
func (s *Store) Tidy(ctx context.Context, used func(uri string) bool, paths []string) error {
	entries, err := os.ReadDir(s.cfg.Dir)
	if errors.Is(err, fs.ErrNotExist) || len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		dir := filepath.Join(s.cfg.Dir, e.Name())
		if slices.ContainsFunc(paths, func(p string) bool { return p == dir || strings.HasPrefix(p, dir+string(filepath.Separator)) }) {
			continue
		}
		s.mu.Lock()
		busy := s.busy[dir] != nil
		s.mu.Unlock()
		var r record
		raw, err := os.ReadFile(filepath.Join(dir, recordName))
		if whole := err == nil && json.Unmarshal(raw, &r) == nil; busy || whole && used(r.URI) {
			continue
		}
		_ = os.Remove(filepath.Join(dir, recordName)) // first: what is half removed is no model
		remove := os.RemoveAll
		if engine, _ := s.cfg.Engines.Find(ctx); engine != nil {
			remove = engine.RemoveAll
		}
		errs = append(errs, remove(dir))
	}
	return errors.Join(errs...)
}
