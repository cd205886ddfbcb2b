package python

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// packageName is the folder of the package, in Config.Package.
const packageName = "roundhouse"

// unpackPackage gives the folder that holds the roundhouse package, unpacked
// if need be. Its name is the hash of its content, so versions live side by
// side and one that is there is whole.
func unpackPackage(files fs.FS, cacheDir string) (string, error) {
	hash, err := hashPackage(files)
	if err != nil {
		return "", fmt.Errorf("python: the roundhouse package cannot be read: %w", err)
	}
	parent, err := filepath.Abs(cacheDir)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(parent, "python-"+hash)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := unpackTo(files, parent, dir); err != nil {
		return "", fmt.Errorf("python: the roundhouse package cannot be unpacked to %s: %w", dir, err)
	}
	return dir, nil
}

// skipped is fs.SkipDir for a folder of byte code, which is no part of the
// package.
func skipped(d fs.DirEntry) error {
	if d.IsDir() && d.Name() == "__pycache__" {
		return fs.SkipDir
	}
	return nil
}

// hashPackage is a hash of the names and contents of the package's files.
func hashPackage(files fs.FS) (string, error) {
	h := sha256.New()
	err := fs.WalkDir(files, packageName, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skipped(d)
		}
		text, err := fs.ReadFile(files, name)
		if err == nil {
			_, err = fmt.Fprintf(h, "%d %s %d ", len(name), name, len(text))
		}
		if err == nil {
			_, err = h.Write(text)
		}
		return err
	})
	return hex.EncodeToString(h.Sum(nil)[:8]), err
}

// unpackTo writes the package into a folder beside dir and moves it there.
func unpackTo(files fs.FS, parent, dir string) error {
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return err
	}
	partial, err := os.MkdirTemp(parent, ".python-") // 0700
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(partial) }() // gone when all went well
	err = fs.WalkDir(files, packageName, func(name string, d fs.DirEntry, err error) error {
		to := filepath.Join(partial, filepath.FromSlash(name))
		switch {
		case err != nil:
			return err
		case skipped(d) != nil:
			return fs.SkipDir
		case d.IsDir():
			return os.Mkdir(to, 0o700)
		}
		return copyFile(files, name, to)
	})
	if err != nil {
		return err
	}
	err = os.Rename(partial, dir)
	if _, there := os.Stat(dir); err != nil && there == nil {
		return nil // another server was faster
	}
	return err
}

func copyFile(files fs.FS, name, to string) error {
	from, err := files.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Sync(), f.Close())
}
