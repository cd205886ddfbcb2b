package datadir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/usage"
)

const usageDir = "usage"

// UsageFiles keep what services used, a file for each day. They implement
// metering.Store.
type UsageFiles struct{ dir *Dir }

// Usage are the data directory's files of what services used.
func (d *Dir) Usage() UsageFiles { return UsageFiles{d} }

// dayFile is a file's content.
type dayFile struct {
	Counted time.Time   `json:"counted"`
	Rows    []usage.Row `json:"rows"`
}

func (f UsageFiles) path(day usage.Day) string { return f.dir.Path(usageDir, string(day)+".json") }

// Days implements metering.Store.
func (f UsageFiles) Days() (out []usage.Day, err error) {
	entries, err := os.ReadDir(f.dir.Path(usageDir)) // in order
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		name, isDay := strings.CutSuffix(e.Name(), ".json")
		if day, err := usage.ParseDay(name); isDay && err == nil {
			out = append(out, day)
		}
	}
	return out, err
}

// Load implements metering.Store. A file that cannot be understood is renamed, so
// that the day can be counted anew.
func (f UsageFiles) Load(day usage.Day) ([]usage.Row, time.Time, error) {
	data, err := os.ReadFile(f.path(day))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, time.Time{}, nil
	}
	if err != nil {
		return nil, time.Time{}, err
	}
	var file dayFile
	if err := json.Unmarshal(data, &file); err != nil {
		kept := f.path(day) + ".unreadable"
		return nil, time.Time{}, errors.Join(fmt.Errorf("%s: %w; it is now %s, and the day is counted anew", f.path(day), err, filepath.Base(kept)), f.dir.disk.Rename(f.path(day), kept))
	}
	for i := range file.Rows {
		file.Rows[i].Day = day
	}
	return file.Rows, file.Counted, nil
}

// Save implements metering.Store.
func (f UsageFiles) Save(day usage.Day, rows []usage.Row, counted time.Time) error {
	file := dayFile{Counted: counted.UTC(), Rows: make([]usage.Row, len(rows))}
	for i, r := range rows {
		r.Day = "" // the file's name has it
		file.Rows[i] = r
	}
	data, err := json.Marshal(file)
	if err != nil {
		return fmt.Errorf("what services used on %s: %w", day, err)
	}
	return f.dir.put(f.path(day), append(data, '\n'))
}

// Drop implements metering.Store.
func (f UsageFiles) Drop(day usage.Day) error { return f.dir.remove(f.path(day)) }
