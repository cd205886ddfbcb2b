package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/progress"
	"roundhouse.dev/roundhouse/internal/decide/credentials"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
)

// Pull fetches models ahead of their use.
type Pull struct {
	DataDir string
	// Out is the folder for the files of one model, in place of the data directory;
	// with Merge others may lie there.
	Out   string
	Merge bool
	// Store is a folder that others share, and Place the name under which one model
	// in it is used, in place of the data directory. StoreBytes bounds it, as a size
	// or a share of the disk.
	Store, Place, StoreBytes string
	// Stay is a folder in which a file says that the model is there. Then Run waits
	// until it is told to end.
	Stay string
	// Drop: the place is given back, and the model removed from Store, unless others
	// have it there. The file in Stay goes first, and Run does not wait.
	Drop       bool
	Log        command.LogOptions
	PublicOnly bool // with Out or Store: refuse URIs that lead to internal addresses
}

// arrivedName is the file in Pull.Stay.
const arrivedName = "done"

// Run fetches models. It prints where each is on out, and the progress on logs.
func (c *Pull) Run(ctx context.Context, uris []string, out, logs io.Writer) error {
	log, err := c.Log.New(logs)
	if err != nil {
		return err
	}
	if c.Log.JSON() { // each line of progress is a record
		logs = slog.NewLogLogger(log.Handler(), slog.LevelInfo).Writer()
	}
	if c.Out != "" || c.Store != "" {
		if len(uris) > 1 {
			return command.Usagef("--out and --store take one model, not %d", len(uris))
		}
		return c.one(ctx, uris[0], out, logs, log)
	}
	store, done, err := openModels(c.DataDir, uris)
	if err != nil {
		return err
	}
	defer done()
	for _, uri := range uris {
		err := pull(uri, out, logs, func(progress func(artifact.Progress)) (string, error) {
			return store.Fetch(ctx, artifact.Request{URI: uri}, progress)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// one fetches the model of a pod.
func (c *Pull) one(ctx context.Context, uri string, out, logs io.Writer, log *slog.Logger) error {
	if c.Stay != "" { // an earlier run may have said so
		if err := os.Remove(filepath.Join(c.Stay, arrivedName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	uri, by, unread, err := fromStorage(uri)
	if err != nil {
		return err
	}
	cfg := artifact.Config{PublicOnly: c.PublicOnly, HubEndpoint: hubDefault()}
	put := artifact.Materialize
	if c.Merge {
		put = artifact.Merge
	}
	fetch := func(progress func(artifact.Progress)) (string, error) {
		return c.Out, put(ctx, c.Out, artifact.Request{URI: uri, Credentials: by}, cfg, nil, nil, progress)
	}
	if c.Drop {
		return c.drop(uri, by, out, log)
	}
	var held *os.File
	if c.Store != "" {
		cfg.Dir = c.Store
		if cfg.StoreBytes, err = command.ParseShare("--store-max-bytes", c.StoreBytes, c.Store); err != nil {
			return err
		}
		s, err := artifact.OpenShared(cfg, c.Place, nil, log)
		if err != nil {
			return err
		}
		defer func() { _ = s.Close() }()
		held = s.Held()
		fetch = func(progress func(artifact.Progress)) (string, error) {
			return s.Fetch(ctx, artifact.Request{URI: uri, Credentials: by}, progress)
		}
	}
	err = pull(uri, out, logs, fetch)
	if unread != "" && artifact.Distrusted(err) {
		return fmt.Errorf("%w; %s", err, unread)
	}
	if from := os.Getenv("ROUNDHOUSE_CREDENTIALS"); from != "" && artifact.Denied(err) {
		return fmt.Errorf("%w; the credentials are those of %s", err, from)
	}
	if err != nil || c.Stay == "" {
		return err
	}
	return c.stay(ctx, held)
}

// drop removes a model from the store.
func (c *Pull) drop(uri string, by *artifact.Credentials, out io.Writer, log *slog.Logger) error {
	s, err := artifact.OpenShared(artifact.Config{Dir: c.Store}, c.Place, nil, log)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	freed, err := s.Drop(artifact.Request{URI: uri, Credentials: by})
	if err != nil {
		return err
	}
	if c.Stay != "" {
		if err := os.RemoveAll(c.Stay); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(out, "%s: %d bytes freed\n", artifact.Redact(uri), freed)
	return err
}

// stay writes that the model is there, and waits to be told to end: as
// roundhouse-pause where that is beside this program, which takes a tenth of the
// memory. held stays open in it, and so locked.
func (c *Pull) stay(ctx context.Context, held *os.File) error {
	file := filepath.Join(c.Stay, arrivedName)
	if err := errors.Join(os.MkdirAll(c.Stay, 0o755), os.WriteFile(file, nil, 0o644), os.Chmod(file, 0o644)); err != nil { //nolint:gosec // another user's program waits for it
		return err
	}
	if self, err := os.Executable(); err == nil {
		pause := filepath.Join(filepath.Dir(self), "roundhouse-pause")
		if held != nil {
			if _, err := unix.FcntlInt(held.Fd(), unix.F_SETFD, 0); err != nil {
				return fmt.Errorf("keep %s held: %w", held.Name(), err)
			}
		}
		_ = syscall.Exec(pause, []string{pause}, nil) // it is not there: this program waits
	}
	<-ctx.Done()
	return nil
}

// pull fetches one model, shows the progress and prints where the model is.
func pull(uri string, out, logs io.Writer, fetch func(func(artifact.Progress)) (string, error)) error {
	name := artifact.Redact(uri)
	bar := progress.New(logs)
	defer bar.Done()
	lines := progress.Lines{Out: logs, Name: name, Now: time.Now}
	show := lines.Fetch
	if bar.On() {
		show = func(done, total int64) { bar.Fetch(name, done, total) }
	}
	path, err := fetch(func(p artifact.Progress) { show(p.Done, p.Total) })
	bar.Done()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, path)
	return err
}

// Where KServe's storage describes a store: a key of the secret storage-config, and
// the parameters of the manifest, which win. Each is a JSON object of strings.
const (
	storageConfig   = "STORAGE_CONFIG"
	storageOverride = "STORAGE_OVERRIDE_CONFIG"
)

// fromStorage sets the variables of the store that KServe's storage names, and
// returns the URI of uri in it, and what its certificates are checked by; nil for what
// those of others are. Without a storage that is uri. unread says where the storage names
// authorities that this pod does not have, and what to do.
func fromStorage(uri string) (_ string, _ *artifact.Credentials, unread string, _ error) {
	said := map[string]string{}
	for _, name := range []string{storageConfig, storageOverride} {
		var one map[string]string
		if raw := os.Getenv(name); raw != "" && json.Unmarshal([]byte(raw), &one) != nil {
			return "", nil, "", fmt.Errorf("%s is not a JSON object of strings: correct the key of the secret or the parameters that it comes from", name)
		}
		maps.Copy(said, one)
	}
	uri, variables, err := credentials.InStore(uri, said)
	if err != nil {
		return "", nil, "", err
	}
	unread = authorities(variables)
	var by *artifact.Credentials
	if a, u := variables[credentials.Authorities], variables[credentials.Unverified] != ""; a != "" || u {
		by = &artifact.Credentials{Authorities: a, Unverified: u}
		delete(variables, credentials.Authorities)
		delete(variables, credentials.Unverified)
	}
	if variables["AWS_ACCESS_KEY_ID"] != "" {
		if err := os.Unsetenv("AWS_SESSION_TOKEN"); err != nil { // one of other keys
			return "", nil, "", err
		}
	}
	for variable, v := range variables {
		if err := os.Setenv(variable, v); err != nil {
			return "", nil, "", fmt.Errorf("storage: %s: %w", variable, err)
		}
	}
	return uri, by, unread, nil
}

// authorities takes out of a storage's variables the authorities that this pod does not
// have: a ConfigMap, which the kubelet alone can mount, and a file that is not here. Those
// that the pod has been given, by an annotation, count in their place; where there are
// none, unread says what to do.
func authorities(variables map[string]string) (unread string) {
	const file, configMap = "SSL_CERT_FILE", credentials.ConfigMapMember
	member := ""
	if at := variables[file]; at != "" {
		if _, err := os.Stat(at); err != nil {
			delete(variables, file)
			member = "ca_bundle"
		}
	}
	if variables[configMap] != "" {
		member = configMap
	}
	delete(variables, configMap)
	if member == "" || variables[credentials.Authorities] != "" || variables[file] != "" || os.Getenv(file) != "" {
		return ""
	}
	return fmt.Sprintf("the storage's %s names authorities that this pod does not have, since only the kubelet reads its secret: "+
		"name their ConfigMap in the annotation %s of the service or its service account, or write the certificates into ca_bundle, in PEM", member, credentials.AuthoritiesAnnotation)
}

// hubDefault is the Hub that a cluster's controller names to the containers that
// fetch, "" for none and where HF_ENDPOINT names another.
func hubDefault() string {
	if os.Getenv(hubVariable) != "" {
		return ""
	}
	return os.Getenv("ROUNDHOUSE_HF_ENDPOINT")
}
