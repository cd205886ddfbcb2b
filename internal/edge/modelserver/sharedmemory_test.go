package modelserver

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// sharing is a site with a folder of segments of its own, in which names begin with
// "/mine".
func sharing(t *testing.T, models map[string]string) (*site, string) {
	t.Helper()
	s := loaded(t, models, func(c *Config) { c.SharedMemory, c.Limits.MaxBodyBytes = "/mine", 4096 })
	s.regions.dir = t.TempDir()
	return s, s.regions.dir
}

// segment makes one with content.
func segment(t *testing.T, dir, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func floats(values ...float32) (raw []byte) {
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	}
	return raw
}

// TestSharedMemory: tensors are read from and written to the segments that were
// registered, whatever else a request has.
func TestSharedMemory(t *testing.T) {
	s, dir := sharing(t, map[string]string{"m.fake": "fake double"})
	segment(t, dir, "mine-in", append([]byte("12345678"), floats(1, 2)...))
	out := segment(t, dir, "mine-out", make([]byte, 32))
	s.want(t, "GET /v2/systemsharedmemory/status", "", 200, "[]")
	s.want(t, "GET /v2", "", 200, `"system_shared_memory"`)
	s.want(t, "POST /v2/systemsharedmemory/region/in/register", `{"key":"/mine-in","offset":4,"byte_size":12}`, 200, "")
	s.want(t, "POST /v2/systemsharedmemory/region/out/register", `{"key":"mine-out","byte_size":32}`, 200, "")
	s.want(t, "GET /v2/systemsharedmemory/status", "", 200, `[{"name":"in","key":"/mine-in","offset":4,"byte_size":12},{"name":"out","key":"mine-out","offset":0,"byte_size":32}]`)
	s.want(t, "GET /v2/systemsharedmemory/region/out/status", "", 200, `[{"name":"out","key":"mine-out","offset":0,"byte_size":32}]`)
	s.want(t, "GET /v2/systemsharedmemory/region/none/status", "", 404, `no region \"none\"`)
	s.want(t, "GET /v2/cudasharedmemory/status", "", 200, "[]")
	s.want(t, "POST /v2/cudasharedmemory/unregister", "", 200, "")

	const in = `"inputs":[{"name":"x","shape":[2],"datatype":"FP32","parameters":{"shared_memory_region":"in","shared_memory_offset":4,"shared_memory_byte_size":8}}]`
	output := func(size string) string {
		return `,"outputs":[{"name":"y","parameters":{"shared_memory_region":"out","shared_memory_offset":8,"shared_memory_byte_size":` + size + `}}]`
	}
	s.want(t, "POST /v2/models/only/infer", `{`+in+`}`, 200, `"data":[2.0,4.0]`)
	s.want(t, "POST /v2/models/only/infer", `{"id":"1",`+in+output("24")+`}`, 200,
		`"outputs":[{"name":"y","shape":[2],"datatype":"FP32","parameters":{"shared_memory_byte_size":8,"shared_memory_offset":8,"shared_memory_region":"out"}}]}`)
	if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, append(append(make([]byte, 8), floats(2, 4)...), make([]byte, 16)...)) {
		t.Errorf("%v %v", got, err)
	}
	s.want(t, "POST /v2/models/only/infer", `{"parameters":{"binary_data_output":true},`+in+output("8")+`}`, 200, `"shared_memory_region":"out"}}]}`)
	s.want(t, "POST /v2/models/only/infer_stream", `{`+in+output("8")+`}`, 200, `"shared_memory_region":"out"}}]}`)
	plain := `"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[4]}]`
	s.want(t, "POST /v2/models/only/infer", `{`+plain+output("4")+`}`, 200, `"shared_memory_byte_size":4`)
	s.want(t, "POST /v2/models/only/infer", `{`+plain+output("3")+`}`, 400, `has 4 bytes, and was given 3`)
	if got, _ := os.ReadFile(out); !bytes.Equal(got[8:16], floats(8, 4)) {
		t.Errorf("what did not fit was written: %v", got)
	}

	s.want(t, "POST /v2/systemsharedmemory/region/in/unregister", "", 200, "")
	s.want(t, "POST /v2/systemsharedmemory/region/in/unregister", "", 200, "")
	s.want(t, "POST /v2/models/only/infer", `{`+in+`}`, 400, `no region \"in\" is registered`)
	s.want(t, "POST /v2/systemsharedmemory/unregister", "", 200, "")
	s.want(t, "GET /v2/systemsharedmemory/status", "", 200, "[]")
}

// TestSharedMemoryRefuses: nothing outside of what was registered is read or written,
// and nothing is registered outside of the segments that the server was given.
func TestSharedMemoryRefuses(t *testing.T) {
	s, dir := sharing(t, map[string]string{"m.fake": "fake double"})
	segment(t, dir, "mine", make([]byte, 16))
	segment(t, dir, "theirs", make([]byte, 16))
	segment(t, filepath.Dir(dir), "mine-outside", make([]byte, 16))
	for _, err := range []error{os.Symlink(filepath.Join(dir, "theirs"), filepath.Join(dir, "mine-link")), syscall.Mkfifo(filepath.Join(dir, "mine-pipe"), 0o600), os.Mkdir(filepath.Join(dir, "mine-folder"), 0o700)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		body   string
		status int
		says   string
	}{
		{`{"key":"/theirs","byte_size":1}`, 403, `names begin with \"/mine\"`},
		{`{"key":"/../mine-outside","byte_size":1}`, 400, "no slash"},
		{`{"key":"mine/../../mine-outside","byte_size":1}`, 400, "no slash"},
		{`{"key":"..","byte_size":1}`, 400, "is not the name"},
		{`{"key":"//mine","byte_size":1}`, 400, "no slash"},
		{`{"key":"","byte_size":1}`, 400, "is not the name"},
		{`{"key":"/mine\u0000x","byte_size":1}`, 400, "is not the name"},
		{`{"key":"/mine` + strings.Repeat("x", 300) + `","byte_size":1}`, 400, "is not the name"},
		{`{"key":"/mine-link","byte_size":1}`, 400, "cannot be opened"},
		{`{"key":"/mine-pipe","byte_size":1}`, 400, "is no shared memory"},
		{`{"key":"/mine-folder","byte_size":1}`, 400, "cannot be opened"},
		{`{"key":"/mine-none","byte_size":1}`, 400, "there is no shared memory"},
		{`{"key":"/mine","byte_size":17}`, 400, "not within"},
		{`{"key":"/mine","byte_size":0}`, 400, "not within"},
		{`{"key":"/mine","offset":9,"byte_size":8}`, 400, "not within"},
		{`{"key":"/mine","offset":18446744073709551615,"byte_size":8}`, 400, "not within"},
		{`{"key":"/mine","offset":8,"byte_size":18446744073709551615}`, 400, "not within"},
		{`{"key":"/mine","offset":-1,"byte_size":8}`, 400, "the body must be"},
		{`{"key":"/mine"}`, 400, "the body must be"},
		{`{"byte_size":8}`, 400, "the body must be"},
		{``, 400, "the body must be"},
	} {
		s.want(t, "POST /v2/systemsharedmemory/region/r/register", c.body, c.status, c.says)
	}
	s.want(t, "GET /v2/systemsharedmemory/status", "", 200, "[]")
	s.want(t, "POST /v2/systemsharedmemory/region/r/register", `{"key":"/mine","offset":8,"byte_size":8}`, 200, "")
	s.want(t, "POST /v2/systemsharedmemory/region/r/register", `{"key":"/mine","byte_size":8}`, 409, "registered already")

	part := func(region, offset, size string) string {
		return `{"shared_memory_region":` + region + `,"shared_memory_offset":` + offset + `,"shared_memory_byte_size":` + size + `}`
	}
	for _, c := range []struct {
		parameters string
		status     int
		says       string
	}{
		{part(`"r"`, "0", "12"), 400, "not within region"},
		{part(`"r"`, "1", "8"), 400, "not within region"},
		{part(`"r"`, "9223372036854775807", "8"), 400, "not within region"},
		{part(`"r"`, "-8", "8"), 400, "must be a whole number"},
		{part(`"r"`, "0", "1e99"), 400, "must be a whole number"},
		{part(`"r"`, "0", `"8"`), 400, "must be a whole number"},
		{`{"shared_memory_region":"r"}`, 400, "must be a whole number"},
		{part(`7`, "0", "8"), 400, "must be the name of a region"},
		{part(`"other"`, "0", "8"), 400, "no region"},
		{part(`"r"`, "0", "4"), 400, "takes 2"},
	} {
		s.want(t, "POST /v2/models/only/infer", `{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","parameters":`+c.parameters+`}]}`, c.status, c.says)
	}
	both := `{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","data":[1,2],"parameters":` + part(`"r"`, "0", "8") + `}]}`
	s.want(t, "POST /v2/models/only/infer", both, 400, "send one of them")
	s.want(t, "POST /v1/models/only:predict", `{"instances":[1]}`, 200, "predictions")

	// A segment that was made shorter costs the request, and none is made longer.
	ask := `{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","parameters":` + part(`"r"`, "0", "8") + `}]}`
	s.want(t, "POST /v2/models/only/infer", ask, 200, "data")
	if err := os.Truncate(filepath.Join(dir, "mine"), 12); err != nil {
		t.Fatal(err)
	}
	s.want(t, "POST /v2/models/only/infer", ask, 400, "made shorter")
	s.want(t, "POST /v2/models/only/infer", `{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","data":[1,2]}],"outputs":[{"name":"y","parameters":`+part(`"r"`, "0", "8")+`}]}`, 400, "made shorter")
	if i, err := os.Stat(filepath.Join(dir, "mine")); err != nil || i.Size() != 12 {
		t.Errorf("it has %d bytes now: %v", i.Size(), err)
	}

	// The bounds of what a request has, and of how many regions there are.
	segment(t, dir, "mine-large", make([]byte, 8192))
	s.want(t, "POST /v2/systemsharedmemory/region/large/register", `{"key":"/mine-large","byte_size":8192}`, 200, "")
	s.want(t, "POST /v2/models/only/infer", `{"inputs":[{"name":"x","shape":[1024],"datatype":"FP32","parameters":`+part(`"large"`, "0", "4096")+`},{"name":"y","shape":[1],"datatype":"UINT8","parameters":`+part(`"large"`, "0", "1")+`}]}`, 413, "more than 4096 bytes")
	for n := 2; n < maxSharedRegions; n++ {
		if err := s.RegisterSharedMemory("127.0.0.1:1", SharedRegion{fmt.Sprint(n), "/mine", 0, 1}); err != nil {
			t.Fatal(err)
		}
	}
	s.want(t, "POST /v2/systemsharedmemory/region/more/register", `{"key":"/mine","byte_size":1}`, 429, "may be no more")
}

// TestSharedMemoryIsLocal: without the flag there is none, and with it none for others
// than this machine's clients.
func TestSharedMemoryIsLocal(t *testing.T) {
	const ask = `{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","parameters":{"shared_memory_region":"r","shared_memory_byte_size":4}}]}`
	off := loaded(t, map[string]string{"m.fake": "fake double"})
	off.want(t, "GET /v2/systemsharedmemory/status", "", 404, "no such path")
	off.want(t, "POST /v2/models/only/infer", ask, 501, "--system-shared-memory")
	s, dir := sharing(t, map[string]string{"m.fake": "fake double"})
	segment(t, dir, "mine", make([]byte, 16))
	remote := "192.0.2.1:4444"
	request, err := tensor.DecodeRequest([]byte(ask))
	if err != nil {
		t.Fatal(err)
	}
	_, listed := s.SharedMemory(remote, "")
	_, taken := s.TakeShared(remote, request)
	for what, err := range map[string]error{"status": listed, "register": s.RegisterSharedMemory(remote, SharedRegion{"r", "/mine", 0, 4}), "unregister": s.UnregisterSharedMemory(remote, ""), "a request": taken} {
		if StatusOf(err) != http.StatusForbidden {
			t.Errorf("%s: %v", what, err)
		}
	}
	for address, local := range map[string]bool{"127.0.0.1:1": true, "[::1]:1": true, "[::ffff:127.0.0.1]:1": true, "10.0.0.1:1": false, "[fe80::1%lo]:1": false, "": false, "@": false} {
		if Local(address) != local {
			t.Errorf("%q: %v", address, !local)
		}
	}
	// What was not read in a transport reaches no model.
	if _, err := s.Infer(t.Context(), "only", "", request); err == nil || !strings.Contains(err.Error(), "is in shared memory") {
		t.Errorf("%v", err)
	}
	for _, prefix := range []string{"mine", "/a/b", "/" + strings.Repeat("x", 300)} {
		c := DefaultConfig()
		if c.SharedMemory = prefix; c.Validate() == nil {
			t.Errorf("%q is taken", prefix)
		}
	}
}
