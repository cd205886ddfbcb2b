// Package batch decides which inference requests run together: adaptive
// batching of one model's Open Inference Protocol requests.
//
// A Machine takes events and gives effects; it holds no clock and does no
// I/O. Merge and Split turn the requests of a batch into one and its response
// back into many.
//
// # Policy
//
// A batch gathers requests of one Key. It is started by the first of these:
//   - nobody is in flight, so that a lone request does not wait at all;
//   - it is full: MaxSize requests or MaxRows rows;
//   - its oldest request has waited MaxTime;
//   - another batch ends, and it is the oldest that waits.
//
// At most Executors batches run at once. While all are taken, batches wait for
// one, however old, and open ones go on gathering: under load batches grow by
// themselves to what arrives in the time of a run. A second executor is put to
// work by a full batch or an old one only, so that light load is not spread
// over many small runs.
//
// A batch of several that fails is no one's fault yet: its members run again,
// each alone and once, and only those that fail again have failed.
package batch

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// Config is how a model's requests are batched.
type Config struct {
	// MaxSize is how many requests a batch holds at most (max_batch_size).
	MaxSize int
	// MaxTime is how long a request waits for others while an executor is
	// free (max_batch_time).
	MaxTime time.Duration
	// MaxRows is how many rows a batch holds at most (max_batch_rows), 0 for
	// any number. A request of more rows runs whole, alone.
	MaxRows int
	// Executors is how many batches run at once.
	Executors int
	// MaxWaiting and MaxWaitingBytes bound the requests that wait to run, in
	// number and in bytes of data; what is beyond is rejected.
	MaxWaiting      int
	MaxWaitingBytes int64
}

// DefaultConfig has batching off, as models have it unless their settings say
// otherwise: one executor, 4096 requests and 256 MiB of waiting.
func DefaultConfig() Config {
	return Config{Executors: 1, MaxWaiting: 4096, MaxWaitingBytes: 256 << 20}
}

// Enabled reports whether requests are to be batched at all: a batch holds
// more than one and may wait for it. Without it a Machine has no use.
func (c Config) Enabled() bool { return c.MaxSize > 1 && c.MaxTime > 0 }

// Validate checks the bounds; the names in errors are those of
// model-settings.json where it has them.
func (c Config) Validate() error {
	switch {
	case c.MaxSize < 0:
		return fmt.Errorf("max_batch_size is %d: write 0 for no batching, or a number of requests", c.MaxSize)
	case c.MaxTime < 0:
		return fmt.Errorf("max_batch_time is %v: write 0 for no batching, or a number of seconds", c.MaxTime)
	case c.MaxRows < 0:
		return fmt.Errorf("max_batch_rows is %d: write 0 for no bound, or a number of rows", c.MaxRows)
	case c.Executors < 1:
		return fmt.Errorf("batch executors are %d: at least 1 is needed", c.Executors)
	case c.MaxWaiting < 1:
		return fmt.Errorf("the bound on waiting requests is %d: at least 1 is needed", c.MaxWaiting)
	case c.MaxWaitingBytes < 1:
		return fmt.Errorf("the bound on waiting bytes is %d: at least 1 is needed", c.MaxWaitingBytes)
	}
	return nil
}

// Event is something that happened: Arrive, Cancel, Done, Failed or Tick.
type Event interface{ event() }

// Arrive is a request that came. NewArrive makes one.
type Arrive struct {
	// ID is the caller's number for the request, unique among those that have
	// not ended.
	ID      uint64
	Request *tensor.Request
	key     Key
	rows    int
	bytes   int64
	// single is a request that cannot share a batch.
	single bool
}

// NewArrive describes a request to the machine. It reads the whole request's
// shapes, so that Step does not have to.
func NewArrive(id uint64, r *tensor.Request) Arrive {
	key, rows, ok := KeyOf(r)
	return Arrive{ID: id, Request: r, key: key, rows: rows, bytes: sizeOf(r), single: !ok}
}

// Cancel is a request whose client has gone. It ends without another word.
type Cancel struct{ ID uint64 }

// Done is a batch that was answered.
type Done struct{ Batch uint64 }

// Failed is a batch that was not.
type Failed struct {
	Batch uint64
	// Final reports that running the members alone cannot help, because the
	// model is gone or out of time.
	Final bool
}

// Tick is time that has passed: what Effects.Timer asked for.
type Tick struct{}

func (Arrive) event() {}
func (Cancel) event() {}
func (Done) event()   {}
func (Failed) event() {}
func (Tick) event()   {}

// Effects are what the caller is to do after an event. Every request that
// arrived ends exactly once: in Answers, Failures or Rejects, or by a Cancel.
type Effects struct {
	// Runs are batches to start now; each ends in a Done or a Failed.
	Runs []Run
	// Answers are the members a Done batch answers, Failures those a Failed
	// one fails.
	Answers, Failures []Member
	Rejects           []Reject
	// Aborts are running batches nobody waits for any more. Their Done or
	// Failed is still wanted, since it frees their executor.
	Aborts []uint64
	// Timer is when a Tick is wanted at the latest; zero for never. It stands
	// in place of any earlier Timer.
	Timer time.Time
}

// Run is a batch to run. Its slice is the caller's to keep and not to change.
type Run struct {
	Batch    uint64
	Requests []*tensor.Request
}

// Member is a request's place in a batch: Index counts Run.Requests.
type Member struct {
	ID    uint64
	Index int
}

// Reject is a request there is no room for.
type Reject struct {
	ID     uint64
	Reason Reason
}

// Reason is why a request is rejected.
type Reason string

// The reasons.
const (
	TooManyWaiting Reason = "too many requests wait to be batched"
	TooManyBytes   Reason = "the requests that wait to be batched hold too many bytes"
	Duplicate      Reason = "a request of the same number has not ended"
)

// Key tells which requests may share a batch: those of equal keys.
type Key string

// KeyOf is a request's key and its number of rows. The key holds the model
// and its version, each input's name, datatype (text apart from bytes), shape
// without the rows, content type and how its data nests, in the request's order,
// the request's content type and the requested outputs with their parameters. Custom parameters and headers are
// not in it.
//
// A request that cannot share a batch is not ok: one without inputs, of zero
// rows, with rows of no elements, or whose inputs do not agree on how many
// rows there are.
func KeyOf(r *tensor.Request) (key Key, rows int, ok bool) {
	rows, ok = rowsOf(r)
	if !ok {
		return "", rows, false
	}
	b := make([]byte, 0, 128)
	b = appendText(b, r.ModelName)
	b = appendText(b, r.ModelVersion)
	b = appendValue(b, r.Parameters[contentType])
	b = binary.AppendUvarint(b, uint64(len(r.Inputs)))
	for i := range r.Inputs {
		t := &r.Inputs[i]
		b = appendText(b, t.Name)
		b = append(b, byte(t.Datatype))
		if t.Text {
			b = append(b, 't')
		}
		b = binary.AppendUvarint(b, uint64(len(t.Shape)))
		for _, size := range t.Shape[1:] {
			b = binary.AppendUvarint(b, uint64(size))
		}
		b = appendValue(b, t.Parameters[contentType])
		if t.Written != nil && t.Written.Dims != nil {
			for _, size := range t.Written.Dims[1:] {
				b = binary.AppendUvarint(append(b, 'n'), uint64(size))
			}
		}
	}
	for _, o := range r.Outputs {
		b = appendText(b, o.Name)
		if len(o.Parameters) == 0 {
			b = appendText(b, "")
		} else {
			b = appendValue(b, map[string]any(o.Parameters))
		}
	}
	return Key(b), rows, true
}

// rowsOf is the number of rows all inputs have; not ok if there is none.
func rowsOf(r *tensor.Request) (rows int, ok bool) {
	for i := range r.Inputs {
		t := &r.Inputs[i]
		shape := t.Shape
		if len(shape) == 0 || shape[0] < 1 || i > 0 && shape[0] != int64(rows) {
			return max(rows, 1), false
		}
		// Rows that hold something are bounded by the data. Whose elements are
		// whose, nobody knows where they do not fill the shape.
		if int64(t.Len()) < shape[0] || !t.Filled() {
			return max(rows, 1), false
		}
		rows = int(shape[0])
	}
	return max(rows, 1), len(r.Inputs) > 0
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// appendValue appends a parameter's JSON; nothing is shorter than "null" and
// different from it.
func appendValue(b []byte, v any) []byte {
	if v == nil {
		return appendText(b, "")
	}
	text, err := json.Marshal(v)
	if err != nil {
		// Parameters are JSON already; what is none shares with its like.
		text = []byte("!" + err.Error())
	}
	return appendText(b, string(text))
}

// headerSize is what a BYTES element takes beside its text, in bytes.
const headerSize = 24

// sizeOf is the memory a request's tensors take, in bytes.
func sizeOf(r *tensor.Request) int64 {
	var n int64
	for i := range r.Inputs {
		t := &r.Inputs[i]
		switch t.Datatype {
		case tensor.Bytes:
			for _, text := range t.Data.Bytes {
				n += headerSize + int64(len(text))
			}
		case tensor.FP16, tensor.BF16: // held as float32
			n += 4 * int64(t.Len())
		default:
			n += int64(t.Datatype.Size()) * int64(t.Len())
		}
	}
	return n
}
