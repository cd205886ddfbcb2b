package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/residency"
	"roundhouse.dev/roundhouse/internal/edge/child"
)

// record is what a returning owner needs to adopt a replica's process. A file
// per replica, while it has a process.
type record struct {
	ID           string                  `json:"id"`
	Service      service.Key             `json:"service"`
	Role         service.Role            `json:"role"`
	Revision     string                  `json:"revision"`
	Process      child.Identity          `json:"process"`
	Port         int                     `json:"port"`
	GRPCPort     int                     `json:"grpcPort,omitempty"`
	MetricsPort  int                     `json:"metricsPort,omitempty"`
	KVEventsPort int                     `json:"kvEventsPort,omitempty"`
	GPUs         []int                   `json:"gpus,omitempty"`
	Need         residency.Need          `json:"need,omitzero"` // of which it holds these; zero in records of older versions
	Model        string                  `json:"modelPath,omitempty"`
	Parts        []string                `json:"partPaths,omitempty"`
	Adapters     map[string]string       `json:"adapterPaths,omitempty"`
	Files        string                  `json:"files,omitempty"` // their fingerprint
	Peers        map[service.Role]string `json:"peers,omitempty"`
	Memory       string                  `json:"memoryGroup,omitempty"`
	// Engine runs the replica's container; "" where it is a program of this
	// machine's. MorePorts are the container's besides those above.
	Engine    string    `json:"engine,omitempty"`
	MorePorts []int     `json:"morePorts,omitempty"`
	Created   time.Time `json:"created"`
	Started   time.Time `json:"started"`
	Restarts  int       `json:"restarts,omitempty"`
	// Asleep is the level at which the process sleeps, or is about to; 0: awake.
	Asleep      int       `json:"asleep,omitempty"`
	AsleepSince time.Time `json:"asleepSince,omitzero"`
	// Turning: the process is falling asleep or waking. Found so, nobody knows
	// whether it answers and holds its GPUs, so it is ended.
	Turning bool `json:"turning,omitempty"`
}

// records is the folder of them.
type records string

func (d records) path(id string) string { return filepath.Join(string(d), id+".json") }

// write replaces the record at once or not at all. It is not forced to the
// disk: what it must outlive is this process, and after the machine's own
// death there is no process to adopt.
func (d records) write(r record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	tmp := d.path(r.ID) + ".tmp"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		_ = os.Remove(tmp)
		return err
	}
	return os.Rename(tmp, d.path(r.ID))
}

func (d records) remove(id string) error {
	if err := os.Remove(d.path(id)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// read returns every record that can be read, and the ids of those that cannot,
// of which nothing but the id is known; the error has the reasons. The records
// are nil only when the folder itself cannot be read.
func (d records) read() (out []record, damaged []string, err error) {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return nil, nil, err
	}
	out = []record{}
	var errs []error
	for _, e := range entries {
		id, isRecord := strings.CutSuffix(e.Name(), ".json")
		if !isRecord {
			_ = os.Remove(filepath.Join(string(d), e.Name()))
			continue
		}
		r, err := d.readOne(id)
		if err != nil {
			errs = append(errs, err)
			damaged = append(damaged, id)
			continue
		}
		out = append(out, r)
	}
	return out, damaged, errors.Join(errs...)
}

// Models lists the paths of the models and adapters that processes were started with.
func (p *Platform) Models() (paths []string) {
	entries, err := os.ReadDir(string(p.records))
	if err != nil {
		return nil
	}
	for _, e := range entries {
		id, isRecord := strings.CutSuffix(e.Name(), ".json")
		r, err := p.records.readOne(id)
		if !isRecord || err != nil {
			continue
		}
		if r.Model != "" {
			paths = append(paths, r.Model)
		}
		paths = append(paths, r.Parts...)
		paths = slices.AppendSeq(paths, maps.Values(r.Adapters))
	}
	return paths
}

func (d records) readOne(id string) (record, error) {
	b, err := os.ReadFile(d.path(id))
	if err != nil {
		return record{}, err
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return record{}, fmt.Errorf("%s: %w", d.path(id), err)
	}
	r.Service = service.ParseKey(r.Service.String()) // older records have the variant in the name
	if r.ID != id || r.Service.Name == "" || r.Role == "" || r.Port <= 0 {
		return record{}, fmt.Errorf("%s: not a replica's record", d.path(id))
	}
	return r, nil
}
