package datadir

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Token returns the admin token, made at the first call and kept in a file
// that only the owner reads.
func (d *Dir) Token() (string, error) {
	path := d.Path(tokenFile)
	token, err := ReadToken(d.path)
	if err == nil {
		return token, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	token = rand.Text()
	return token, writeFile(path, []byte(token+"\n")) // CreateTemp makes it 0600
}

// ReadToken reads the admin token of the data directory at path, for a client
// of the same user.
func ReadToken(path string) (string, error) {
	if path == "" {
		return "", fmt.Errorf("admin token: no data directory is named: %w", fs.ErrNotExist)
	}
	raw, err := os.ReadFile(filepath.Join(path, tokenFile))
	if err != nil {
		return "", fmt.Errorf("admin token: %w", err)
	}
	token := strings.TrimSpace(string(raw))
	if token == "" {
		return "", fmt.Errorf("admin token: %s is empty: remove it and start `roundhouse up` again", filepath.Join(path, tokenFile))
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
