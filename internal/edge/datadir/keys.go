package datadir

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v3"

	"roundhouse.dev/roundhouse/internal/core/apikey"
)

// keysFile holds the hashes of the API keys. keysMarker is an empty file that is
// there once there was a key, so that a lost key file locks the door and does
// not open it.
const (
	keysFile   = "api-keys.yaml"
	keysMarker = "api-keys.required"
)

// maxKeysFile bounds a file of API keys, in bytes.
const maxKeysFile = 64 << 20

// KeyFile is a file of API keys, as hashes. Several processes may share it.
type KeyFile struct {
	Path string
	// Marker is the file that records that keys are required, even when Path is
	// lost; "" records nothing.
	Marker string
}

// Keys is the data directory's file of API keys.
func (d *Dir) Keys() KeyFile { return KeyFile{Path: d.Path(keysFile), Marker: d.Path(keysMarker)} }

// keyList is the file's content.
type keyList struct {
	Keys []apikey.Key `yaml:"keys"`
}

// Load reads the keys. ok reports whether requests need one: the file or its
// marker is there.
func (f KeyFile) Load() (keys []apikey.Key, ok bool, err error) {
	if info, err := os.Stat(f.Path); err == nil && info.Size() > maxKeysFile {
		return nil, false, fmt.Errorf("%s: %d bytes are too much for API keys", f.Path, info.Size())
	}
	raw, err := os.ReadFile(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		required, err := f.marked()
		return nil, required, err
	}
	if err != nil {
		return nil, false, fmt.Errorf("API keys: %w", err)
	}
	if err := f.mark(); err != nil {
		return nil, false, err
	}
	var list keyList
	d := yaml.NewDecoder(bytes.NewReader(raw))
	d.KnownFields(true)
	if err := d.Decode(&list); err != nil {
		return nil, false, fmt.Errorf("%s: %w", f.Path, err)
	}
	if err := check(list.Keys); err != nil {
		return nil, false, fmt.Errorf("%s: %w", f.Path, err)
	}
	return list.Keys, true, nil
}

// marked reports whether the marker is there.
func (f KeyFile) marked() (bool, error) {
	if f.Marker == "" {
		return false, nil
	}
	_, err := os.Lstat(f.Marker)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("API keys: %w", err)
	}
	return err == nil, nil
}

// mark writes the marker unless it is there.
func (f KeyFile) mark() error {
	if there, err := f.marked(); there || err != nil || f.Marker == "" {
		return err
	}
	m, err := os.OpenFile(f.Marker, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("API keys: %w", err)
	}
	return errors.Join(m.Sync(), m.Close(), SystemDisk{}.SyncDir(filepath.Dir(f.Marker)))
}

func check(keys []apikey.Key) error {
	seen := map[string]bool{}
	for _, k := range keys {
		if err := k.Validate(); err != nil {
			return err
		}
		if seen[k.ID] {
			return fmt.Errorf("key %s is there twice", k.ID)
		}
		seen[k.ID] = true
	}
	return nil
}

// Update replaces the keys under the file's lock, atomically.
func (f KeyFile) Update(change func([]apikey.Key) ([]apikey.Key, error)) (err error) {
	lock, err := os.OpenFile(f.Path+".lock", os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("API keys: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("API keys: lock %s: %w", lock.Name(), err)
	}
	keys, _, err := f.Load()
	if err != nil {
		return err
	}
	if keys, err = change(keys); err != nil {
		return err
	}
	if err := check(keys); err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	raw, err := yaml.Marshal(keyList{keys})
	if err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	if err := f.mark(); err != nil { // before the keys: a crash between the two locks
		return err
	}
	return writeFile(SystemDisk{}, f.Path, raw) // CreateTemp makes it 0600
}

// Stamp changes when the file has.
func (f KeyFile) Stamp() string {
	info, err := os.Stat(f.Path)
	if err != nil {
		return ""
	}
	// Every update is a new file, so its inode tells what a coarse clock hides.
	inode := uint64(0)
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		inode = s.Ino
	}
	return fmt.Sprint(info.ModTime().UnixNano(), info.Size(), inode)
}

// Token returns the admin token, made at the first call and kept in a file
// that only the owner reads.
func (d *Dir) Token() (string, error) { return d.token(tokenFile) }

// ViewerToken is Token of those who may only read.
func (d *Dir) ViewerToken() (string, error) { return d.token(viewerFile) }

func (d *Dir) token(name string) (string, error) {
	path := d.Path(name)
	token, err := readToken(path)
	if err == nil {
		return token, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	token = rand.Text()
	return token, writeFile(SystemDisk{}, path, []byte(token+"\n")) // CreateTemp makes it 0600
}

// SessionFile keeps who is signed in on the console, for the next process.
type SessionFile struct{ dir *Dir }

// Sessions is the data directory's.
func (d *Dir) Sessions() SessionFile { return SessionFile{d} }

// maxSessionFile bounds it, in bytes.
const maxSessionFile = 1 << 20

// Load returns what was saved, nothing where nothing was.
func (f SessionFile) Load() ([]byte, error) {
	path := f.dir.Path(sessionsFile)
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case info.Size() > maxSessionFile:
		return nil, fmt.Errorf("%s: %d bytes are too much for sessions: delete the file, which signs everybody out", path, info.Size())
	}
	return os.ReadFile(path)
}

// Save replaces it.
func (f SessionFile) Save(data []byte) error { return f.dir.put(f.dir.Path(sessionsFile), data) }

// ReadToken reads the admin token of the data directory at path, for a client
// of the same user.
func ReadToken(path string) (string, error) {
	if path == "" {
		return "", fmt.Errorf("admin token: no data directory is named: %w", fs.ErrNotExist)
	}
	return readToken(filepath.Join(path, tokenFile))
}

func readToken(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("admin token: %w", err)
	}
	token := strings.TrimSpace(string(raw))
	if token == "" {
		return "", fmt.Errorf("admin token: %s is empty: remove it and start `roundhouse up` again", path)
	}
	return token, nil
}

// ErrHomeless reports that Default knows no place.
var ErrHomeless = errors.New("data directory: HOME is not set: name one with --data-dir or ROUNDHOUSE_DATA_DIR")

// Default is where the data directory is unless told otherwise:
// $ROUNDHOUSE_DATA_DIR, else roundhouse below the user's state directory, else
// "", which Open refuses: a name in the folder for temporary files is one that
// others could take first.
func Default() string {
	if d := os.Getenv("ROUNDHOUSE_DATA_DIR"); d != "" {
		return d
	}
	if d := os.Getenv("XDG_STATE_HOME"); d != "" {
		return filepath.Join(d, "roundhouse")
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "state", "roundhouse")
	}
	return ""
}
