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

	"go.yaml.in/yaml/v3"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

const (
	objectsDir = "objects"
	recordsDir = "revisions"
)

// stored is an object's file: where it came from, and the manifest as it was
// applied.
type stored struct {
	Created  time.Time         `yaml:"created"`
	File     string            `yaml:"file,omitempty"`
	Source   string            `yaml:"source,omitempty"`
	URIs     map[string]string `yaml:"uris,omitempty"`
	Patch    map[string]any    `yaml:"patch,omitempty"` // of edits, which are in Manifest
	Manifest string            `yaml:"manifest"`
	Earlier  *earlier          `yaml:"earlier,omitempty"`
}

// earlier is what is stored of a fleet.Earlier.
type earlier struct {
	URIs     map[string]string `yaml:"uris,omitempty"`
	Patch    map[string]any    `yaml:"patch,omitempty"`
	Manifest string            `yaml:"manifest"`
}

// PutObject implements fleet.Store.
func (d *Dir) PutObject(o fleet.Object) error {
	s := stored{Created: o.Created(), File: o.Origin.File, Source: o.Source, URIs: o.URIs, Patch: o.Patch, Manifest: string(o.Original)}
	if e := o.Earlier; e != nil {
		s.Earlier = &earlier{URIs: e.URIs, Patch: e.Patch, Manifest: string(e.Original)}
	}
	data, err := yaml.Marshal(s)
	if err != nil {
		return fmt.Errorf("%s: %w", o.ID(), err)
	}
	return d.put(d.objectPath(o.ID()), data)
}

// DeleteObject implements fleet.Store.
func (d *Dir) DeleteObject(id fleet.ID) error { return d.remove(d.objectPath(id)) }

// PutRecord implements fleet.Store.
func (d *Dir) PutRecord(r fleet.Record) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("revision of %s: %w", r.Service, err)
	}
	// Kubernetes' types carry JSON tags alone: their YAML is their JSON's.
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return fmt.Errorf("revision of %s: %w", r.Service, err)
	}
	data, err := yaml.Marshal(tree)
	if err != nil {
		return fmt.Errorf("revision of %s: %w", r.Service, err)
	}
	return d.put(d.recordPath(r.Service), data)
}

// DeleteRecord implements fleet.Store.
func (d *Dir) DeleteRecord(k service.Key) error { return d.remove(d.recordPath(k)) }

// Load implements fleet.Store. What cannot be read is left where it is and
// reported.
func (d *Dir) Load() ([]fleet.Object, []fleet.Record, error) {
	var objects []fleet.Object
	var records []fleet.Record
	errs := []error{
		each(d.Path(objectsDir), func(path string, data []byte) error {
			o, err := readObject(data)
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			objects = append(objects, o)
			return nil
		}),
		each(d.Path(recordsDir), func(path string, data []byte) error {
			r, err := readRecord(data)
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			records = append(records, r)
			return nil
		}),
	}
	return objects, records, errors.Join(errs...)
}

func readObject(data []byte) (fleet.Object, error) {
	var s stored
	if err := yaml.Unmarshal(data, &s); err != nil {
		return fleet.Object{}, err
	}
	read := dialect.Read(s.File, []byte(s.Manifest))
	if len(read.Objects) != 1 {
		var why []string
		for _, p := range read.Errors(dialect.Process) {
			why = append(why, p.String())
		}
		return fleet.Object{}, fmt.Errorf("the manifest kept here is not one object any more: %s: apply it again", strings.Join(why, "; "))
	}
	o := fleet.Object{Object: read.Objects[0], Source: s.Source, URIs: s.URIs, Patch: s.Patch}
	if e := s.Earlier; e != nil {
		o.Earlier = &fleet.Earlier{Original: []byte(e.Manifest), URIs: e.URIs, Patch: e.Patch}
	}
	o.SetCreated(s.Created)
	return o, nil
}

func readRecord(data []byte) (fleet.Record, error) {
	var tree any
	var r fleet.Record
	if err := yaml.Unmarshal(data, &tree); err != nil {
		return r, err
	}
	raw, err := json.Marshal(tree)
	if err != nil {
		return r, err
	}
	err = json.Unmarshal(raw, &r)
	for _, k := range []*service.Key{&r.Service, &r.Revision.Service} {
		*k = service.ParseKey(k.String()) // older records have the variant in the name
	}
	return r, err
}

func (d *Dir) objectPath(id fleet.ID) string {
	return d.Path(objectsDir, id.Plural(), namespaceDir(id.Namespace), id.Name+".yaml")
}

func (d *Dir) recordPath(k service.Key) string {
	return d.Path(recordsDir, namespaceDir(k.Namespace), k.WorkloadName()+".yaml")
}

// namespaceDir is a folder name no namespace can have for what has none.
func namespaceDir(ns string) string {
	if ns == "" {
		return "_cluster"
	}
	return ns
}

func (d *Dir) put(path string, data []byte) error {
	if err := d.makeFolder(filepath.Dir(path)); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return writeFile(d.disk, path, data)
}

// remove removes a file for good: a power failure does not bring it back.
func (d *Dir) remove(path string) error {
	err := d.disk.Remove(path)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = d.disk.SyncDir(filepath.Dir(path))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// each calls f for every YAML file below dir and goes on after an error.
func each(dir string, f func(path string, data []byte) error) error {
	var errs []error
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		data, err := os.ReadFile(path)
		if err == nil {
			err = f(path, data)
		}
		if err != nil {
			errs = append(errs, err)
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}
