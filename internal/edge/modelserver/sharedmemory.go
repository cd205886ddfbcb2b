package modelserver

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"unicode/utf8"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// This file has Triton's system shared memory extension: clients of this machine register
// POSIX shared memory, and requests name parts of it in place of their tensors' data.
//
// A client could have the server read and write any segment that the server may open, so
// that the extension is off unless the server is started with the names that it may have.
// Segments are files, which their owners may change at any time: they are read and
// written by offset and never mapped, since to touch a mapped page beyond the end of a
// file that was made shorter kills the process.

const (
	// maxSharedRegions bounds the regions that are registered; each is an open file.
	maxSharedRegions = 256
	// maxSharedName bounds the name of a region and that of a segment, in bytes.
	maxSharedName = 255
	// sharedFolder is where POSIX shared memory is.
	sharedFolder = "/dev/shm"
)

// SharedRegion is a part of a segment of shared memory, by a name of its own.
type SharedRegion struct {
	Name   string `json:"name"`
	Key    string `json:"key"` // the segment's name, as it was given
	Offset uint64 `json:"offset"`
	Bytes  uint64 `json:"byte_size"`
}

// sharedMemory has the regions that were registered.
type sharedMemory struct {
	dir string
	// prefix is what names of segments begin with.
	prefix string
	// most bounds what one request has in shared memory, in bytes.
	most int64

	mu      sync.Mutex
	regions map[string]*sharedRegion
}

type sharedRegion struct {
	SharedRegion
	file *os.File
}

// validSharedPrefix refuses what no name of a segment begins with.
func validSharedPrefix(p string) error {
	if p != "" && (p[0] != '/' || strings.Contains(p[1:], "/") || len(p) > maxSharedName) {
		return fmt.Errorf("--system-shared-memory %q: must begin with / and have no other: / for any name, /NAME for those that begin so", p)
	}
	return nil
}

// newSharedMemory is nil without a prefix: then there is none.
func newSharedMemory(prefix string, most int64) *sharedMemory {
	if prefix == "" {
		return nil
	}
	return &sharedMemory{dir: sharedFolder, prefix: prefix, most: most, regions: map[string]*sharedRegion{}}
}

// The errors that are not a request's own.
var (
	errSharedOff    = &httpError{http.StatusNotImplemented, "this server uses no shared memory: start it with --system-shared-memory"}
	errSharedRemote = &httpError{http.StatusForbidden, "shared memory is for clients of this machine, by its loopback address"}
	errSharedName   = tensor.Errorf(tensor.KindInvalid, "the name of a region has 1 to %d bytes", maxSharedName)
)

// Local reports whether an address of a client is this machine's loopback.
func Local(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// shared is the server's shared memory for a client.
func (s *service) shared(client string) (*sharedMemory, error) {
	switch {
	case s.regions == nil:
		return nil, errSharedOff
	case !Local(client):
		return nil, errSharedRemote
	}
	return s.regions, nil
}

// SharedMemory lists the regions, by name; name "" asks for all. client is the address of
// whoever asks.
func (s *service) SharedMemory(client, name string) ([]SharedRegion, error) {
	m, err := s.shared(client)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	out := []SharedRegion{}
	for _, r := range m.regions {
		if name == "" || name == r.Name {
			out = append(out, r.SharedRegion)
		}
	}
	if name != "" && len(out) == 0 {
		return nil, tensor.Errorf(tensor.KindNotFound, "no region %q is registered", excerpt.Of(name, maxSharedName))
	}
	slices.SortFunc(out, func(a, b SharedRegion) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// RegisterSharedMemory has a segment, or a part of one, be a region.
func (s *service) RegisterSharedMemory(client string, r SharedRegion) error {
	m, err := s.shared(client)
	if err != nil {
		return err
	}
	if r.Name == "" || len(r.Name) > maxSharedName || !utf8.ValidString(r.Name) {
		return errSharedName
	}
	f, err := m.open(r.Key)
	if err != nil {
		return err
	}
	if err := m.add(&sharedRegion{r, f}); err != nil {
		_ = f.Close()
		return err
	}
	return nil
}

func (m *sharedMemory) add(r *sharedRegion) error {
	if size, err := r.size(); err != nil {
		return err
	} else if r.Bytes == 0 || r.Bytes > size || r.Offset > size-r.Bytes {
		return tensor.Errorf(tensor.KindInvalid, "region %q: %d bytes from %d on are not within %q, which has %d", r.Name, r.Bytes, r.Offset, r.Key, size)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.regions[r.Name] != nil:
		return &httpError{http.StatusConflict, fmt.Sprintf("region %q is registered already: unregister it first", r.Name)}
	case len(m.regions) >= maxSharedRegions:
		return &httpError{http.StatusTooManyRequests, fmt.Sprintf("%d regions are registered, and there may be no more: unregister some", maxSharedRegions)}
	}
	m.regions[r.Name] = r
	return nil
}

// open opens a segment by its name, which never leads out of the folder of segments.
func (m *sharedMemory) open(key string) (*os.File, error) {
	name := strings.TrimPrefix(key, "/")
	shown := excerpt.Of(key, maxSharedName)
	if name == "" || name == "." || name == ".." || len(name) > maxSharedName || strings.ContainsAny(name, "/\x00") {
		return nil, tensor.Errorf(tensor.KindInvalid, "%q is not the name of shared memory: it has 1 to %d bytes, and no slash but at its beginning", shown, maxSharedName)
	}
	if !strings.HasPrefix("/"+name, m.prefix) {
		return nil, &httpError{http.StatusForbidden, fmt.Sprintf("this server uses no shared memory named %q: names begin with %q (--system-shared-memory)", shown, m.prefix)}
	}
	// A link leads elsewhere, and a pipe would wait for somebody.
	f, err := os.OpenFile(filepath.Join(m.dir, name), os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, tensor.Errorf(tensor.KindInvalid, "there is no shared memory named %q: make it before it is registered", shown)
	case errors.Is(err, fs.ErrPermission):
		return nil, tensor.Errorf(tensor.KindInvalid, "the server may not read and write the shared memory named %q", shown)
	case err != nil:
		return nil, tensor.Errorf(tensor.KindInvalid, "%q cannot be opened as shared memory", shown)
	}
	if i, err := f.Stat(); err != nil || !i.Mode().IsRegular() {
		_ = f.Close()
		return nil, tensor.Errorf(tensor.KindInvalid, "%q is no shared memory", shown)
	}
	return f, nil
}

// UnregisterSharedMemory ends a region, or with name "" all. One that is not there is no
// error. Requests under way fail that still need it.
func (s *service) UnregisterSharedMemory(client, name string) error {
	m, err := s.shared(client)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for n, r := range m.regions {
		if name == "" || name == n {
			delete(m.regions, n)
			_ = r.file.Close() // reads and writes under way end first
		}
	}
	return nil
}

// size is the segment's now.
func (r *sharedRegion) size() (uint64, error) {
	i, err := r.file.Stat()
	if err != nil {
		return 0, r.gone(err)
	}
	return uint64(max(0, i.Size())), nil
}

// gone is the error for a region that changed while it was used.
func (r *sharedRegion) gone(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return tensor.Errorf(tensor.KindInvalid, "region %q was unregistered meanwhile", r.Name)
	}
	return tensor.Errorf(tensor.KindInvalid, "region %q: its shared memory cannot be used: %v", r.Name, err)
}

// part is the region that has a part, and where in the segment that begins.
func (m *sharedMemory) part(role, tensorName string, s *tensor.Shared) (*sharedRegion, int64, error) {
	m.mu.Lock()
	r := m.regions[s.Region]
	m.mu.Unlock()
	if r == nil {
		return nil, 0, tensor.Errorf(tensor.KindInvalid, "%s %q: no region %q is registered", role, tensorName, excerpt.Of(s.Region, maxSharedName))
	}
	if n := uint64(s.Bytes); n > r.Bytes || uint64(s.Offset) > r.Bytes-n {
		return nil, 0, tensor.Errorf(tensor.KindInvalid, "%s %q: %d bytes from %d on are not within region %q, which has %d", role, tensorName, s.Bytes, s.Offset, r.Name, r.Bytes)
	}
	return r, int64(r.Offset) + s.Offset, nil
}

// read copies bytes out of the segment.
func (r *sharedRegion) read(at, n int64) ([]byte, error) {
	raw := make([]byte, n)
	if _, err := r.file.ReadAt(raw, at); errors.Is(err, io.EOF) {
		return nil, tensor.Errorf(tensor.KindInvalid, "region %q: its shared memory was made shorter", r.Name)
	} else if err != nil {
		return nil, r.gone(err)
	}
	return raw, nil
}

// write copies bytes into the segment, which it does not make longer.
func (r *sharedRegion) write(at int64, raw []byte) error {
	size, err := r.size()
	if err != nil {
		return err
	}
	if uint64(at)+uint64(len(raw)) > size {
		return tensor.Errorf(tensor.KindInvalid, "region %q: its shared memory was made shorter", r.Name)
	}
	if _, err := r.file.WriteAt(raw, at); err != nil {
		return r.gone(err)
	}
	return nil
}

// SharedOutputs are the outputs of a request that its client is given in shared memory.
type SharedOutputs struct {
	at map[string]sharedOutput
}

type sharedOutput struct {
	region *sharedRegion
	at     int64 // in the segment
	shared tensor.Shared
}

// TakeShared reads the inputs of a request that are in shared memory, and returns which
// outputs are to be; nil where neither is. It is called once for a request, before Infer.
func (s *service) TakeShared(client string, r *tensor.Request) (*SharedOutputs, error) {
	if !r.InSharedMemory() {
		return nil, nil
	}
	m, err := s.shared(client)
	if err != nil {
		return nil, err
	}
	left := m.most
	for i := range r.Inputs {
		if t := &r.Inputs[i]; t.Parameters.InSharedMemory() {
			if err := m.fill(t, &left); err != nil {
				return nil, err
			}
		}
	}
	outputs := &SharedOutputs{at: map[string]sharedOutput{}}
	for i := range r.Outputs {
		o := &r.Outputs[i]
		if !o.Parameters.InSharedMemory() {
			continue
		}
		shared, err := o.Parameters.TakeShared("output", o.Name)
		if err != nil {
			return nil, err
		}
		region, at, err := m.part("output", o.Name, &shared)
		if err != nil {
			return nil, err
		}
		outputs.at[o.Name] = sharedOutput{region, at, shared}
	}
	return outputs, nil
}

// fill reads an input. left is how many bytes its request may still have.
func (m *sharedMemory) fill(t *tensor.Tensor, left *int64) error {
	shared, err := t.Parameters.TakeShared("input", t.Name)
	if err != nil {
		return err
	}
	if t.Len() > 0 {
		return tensor.Errorf(tensor.KindInvalid, "input %q has data, and is in shared memory: send one of them", t.Name)
	}
	region, at, err := m.part("input", t.Name, &shared)
	if err != nil {
		return err
	}
	if *left -= shared.Bytes; *left < 0 {
		return tensor.Errorf(tensor.KindTooLarge, "the request has more than %d bytes in shared memory (--max-body-bytes)", m.most)
	}
	raw, err := region.read(at, shared.Bytes)
	if err != nil {
		return err
	}
	return t.AdoptRaw(raw)
}

// Place writes the outputs of an answer that are to be in shared memory, and returns the
// answer without their data. The answer given stays as it is.
func (o *SharedOutputs) Place(r *tensor.Response) (*tensor.Response, error) {
	if o == nil || len(o.at) == 0 {
		return r, nil
	}
	out := *r
	out.Outputs = slices.Clone(r.Outputs)
	for i := range out.Outputs {
		t := &out.Outputs[i]
		to, ok := o.at[t.Name]
		if !ok {
			continue
		}
		size := int64(t.RawSize())
		if size > to.shared.Bytes {
			return nil, tensor.Errorf(tensor.KindInvalid, "output %q has %d bytes, and was given %d in shared memory", t.Name, size, to.shared.Bytes)
		}
		raw, ok := t.RawMemory()
		if !ok {
			raw = t.AppendRaw(make([]byte, 0, size))
		}
		if err := to.region.write(to.at, raw); err != nil {
			return nil, err
		}
		to.shared.Bytes = size
		*t = t.In(to.shared)
	}
	return &out, nil
}

// regionName is the path value of a region's name.
const regionName = "region"

// sharedRoutes are the calls of the extension.
func (a *api) sharedRoutes() map[string]methods {
	get := func(h http.HandlerFunc) methods { return methods{http.MethodGet: h} }
	post := func(h http.HandlerFunc) methods { return methods{http.MethodPost: h} }
	const system, cuda = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
	return map[string]methods{
		system + "/status":                     get(a.getShared),
		system + "/region/{region}/status":     get(a.getShared),
		system + "/region/{region}/register":   post(a.postShared),
		system + "/region/{region}/unregister": post(a.endShared),
		system + "/unregister":                 post(a.endShared),
		cuda + "/status":                       get(a.getNoShared),
		cuda + "/unregister":                   post(a.endNoShared),
		cuda + "/region/{region}/unregister":   post(a.endNoShared),
	}
}

func (a *api) getShared(w http.ResponseWriter, r *http.Request) {
	list, err := a.models.SharedMemory(r.RemoteAddr, r.PathValue(regionName))
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, list)
}

func (a *api) postShared(w http.ResponseWriter, r *http.Request) {
	body, err := a.wire.readBody(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	defer body.free()
	var given struct {
		Key    *string `json:"key"`
		Offset uint64  `json:"offset"`
		Bytes  *uint64 `json:"byte_size"`
	}
	if err := json.Unmarshal(body.data, &given); err != nil || given.Key == nil || given.Bytes == nil {
		writeError(w, tensor.Errorf(tensor.KindInvalid, `the body must be {"key": "/NAME", "byte_size": BYTES}, and may have an offset`))
		return
	}
	if err := a.models.RegisterSharedMemory(r.RemoteAddr, SharedRegion{r.PathValue(regionName), *given.Key, given.Offset, *given.Bytes}); err != nil {
		writeError(w, err)
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (a *api) endShared(w http.ResponseWriter, r *http.Request) {
	if err := a.models.UnregisterSharedMemory(r.RemoteAddr, r.PathValue(regionName)); err != nil {
		writeError(w, err)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// getNoShared lists the regions of GPUs' memory, of which there are none: clients clear
// both kinds before they begin.
func (a *api) getNoShared(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, []SharedRegion{})
}

func (a *api) endNoShared(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }
