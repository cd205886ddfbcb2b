package artifact

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// ownPrefix begins the names of what this package leaves in folders.
const ownPrefix = ".roundhouse-"

// Merge is [Materialize] for a folder in which other artifacts lie too: folders of one
// name are merged, and a file that two artifacts bring is an error that names both,
// before one is put there. All that lies there must have come by Merge, one after the
// other. The folder is named by its real path.
func Merge(ctx context.Context, dir string, req Request, cfg Config, client *http.Client, log *slog.Logger, progress func(Progress)) error {
	dir, unlock, err := openFolder(ctx, dir, req)
	if errors.Is(err, syscall.ENOTDIR) || errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: another URI has a file where the folder is to be: give each URI a mountPath of its own", err)
	}
	if err != nil {
		return err
	}
	defer unlock()
	// A link that another artifact has there would lead out of the folder.
	at, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	if at != dir {
		return fmt.Errorf("%s leads to %s: name the folder itself, and give each URI a mountPath of its own", dir, at)
	}
	want := recordOf(req)
	want.Merged = "-" + want.Key
	had, err := decodePullRecord(filepath.Join(dir, pullRecordName+want.Merged))
	if err == nil && had != nil {
		err = had.check(dir)
	}
	if err != nil {
		return err
	}
	if had == nil {
		cfg.Dir = filepath.Join(dir, workName)
		if had, err = fetchInto(ctx, dir, req, cfg, client, log, want, progress); err != nil {
			return err
		}
		if had.Entries, err = filesOf(filepath.Join(dir, had.Tree), had.Entries); err != nil {
			return err
		}
		if err := had.collides(dir); err != nil {
			return err
		}
		if err := had.write(dir); err != nil {
			return err
		}
	}
	for _, name := range had.Entries {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			return err
		}
	}
	return had.finish(dir)
}

// filesOf lists the files of the entries of a tree, by their paths in it.
func filesOf(tree string, entries []string) (files []string, err error) {
	for _, entry := range entries {
		err := filepath.WalkDir(filepath.Join(tree, entry), func(path string, d fs.DirEntry, err error) error {
			if err == nil && strings.HasPrefix(d.Name(), ownPrefix) {
				err = fmt.Errorf("the model has a file %s, a name that is taken; rename it at the source", d.Name())
			}
			if err != nil || d.IsDir() {
				return err
			}
			name, err := filepath.Rel(tree, path)
			files = append(files, name)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

// collides is an error where another artifact has a file at the place of one of these,
// or of a folder of theirs.
func (p *pullRecord) collides(dir string) error {
	for _, name := range p.Entries {
		at := dir
		for rest := name; rest != ""; {
			first, below, _ := strings.Cut(rest, string(filepath.Separator))
			at, rest = filepath.Join(at, first), below
			info, err := os.Lstat(at)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				rest = ""
			case err != nil:
				return err
			case rest == "" || !info.IsDir():
				return fmt.Errorf("%s and %s both have %s: give each URI a mountPath of its own", bringerOf(at), p.Source, at)
			}
		}
	}
	return nil
}

// maxNested bounds how many folders above a file are searched for whose it is.
const maxNested = 64

// bringerOf names the artifact that a file was put in place for.
func bringerOf(file string) string {
	dir := filepath.Dir(file)
	for range maxNested {
		records, err := filepath.Glob(filepath.Join(dir, pullRecordName+"-*"))
		if err != nil {
			break
		}
		for _, record := range records {
			p, err := decodePullRecord(record)
			if err != nil || p == nil {
				continue
			}
			for _, name := range p.Entries {
				if name = filepath.Join(dir, name); name == file || strings.HasPrefix(name, file+string(filepath.Separator)) {
					return p.Source
				}
			}
		}
		if dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	return "another URI"
}
