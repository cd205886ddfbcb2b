package inference

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// doubler is a server of the Open Inference Protocol that doubles numbers. On
// some it fails.
type doubler struct {
	t        *testing.T
	requests atomic.Int64
	rows     atomic.Int64
	mu       sync.Mutex
	tries    map[float64]int
	hold     chan struct{} // requests for the number 7 wait for it, if there is one
	headers  http.Header   // of the last request
}

// The numbers on which a doubler fails: always; twice; never for good reason.
const (
	failsAlways = 3
	failsTwice  = 5
	failsBadly  = 9
	waits       = 7
)

func (d *doubler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.requests.Add(1)
	var in struct {
		ID     string
		Inputs []struct {
			Name     string
			Shape    []int64
			Datatype string
			Data     []float64
		}
	}
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &in)
	}
	if err != nil || r.URL.Path != "/v2/models/m/infer" || in.ID == "" {
		d.t.Errorf("asked %s %s: %v", r.URL.Path, body, err)
	}
	out := []float64{}
	for _, x := range in.Inputs[0].Data {
		d.rows.Add(1)
		d.mu.Lock()
		d.tries[x]++
		tries := d.tries[x]
		d.headers = r.Header
		d.mu.Unlock()
		switch {
		case x == failsAlways:
			http.Error(w, `{"error":"three is too many"}`, http.StatusInternalServerError)
			return
		case x == failsTwice && tries < 3:
			w.Header().Set("Retry-After", "0")
			http.Error(w, `{"error":"busy"}`, http.StatusServiceUnavailable)
			return
		case x == failsBadly:
			http.Error(w, `{"error":"not nine"}`, http.StatusBadRequest)
			return
		case x == waits && d.hold != nil:
			select {
			case <-d.hold:
			case <-r.Context().Done():
				return
			}
		}
		out = append(out, 2*x)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"model_name": "m", "id": in.ID, "parameters": map[string]any{"note": "a b"},
		"outputs": []any{map[string]any{"name": "y", "shape": []int{len(out), 1}, "datatype": "FP64", "data": out}}})
}

// askBatch sends lines. What is zero in b is what the flags of infer are by default.
func askBatch(t *testing.T, d *doubler, lines string, b Batch) (answers []map[string]any, says string, err error) {
	t.Helper()
	b.Workers, b.Retries, b.Size, b.Timeout = cmp.Or(b.Workers, 10), cmp.Or(b.Retries, 3), cmp.Or(b.Size, 1), time.Minute
	d.t, d.tries = t, map[float64]int{}
	server := httptest.NewServer(d)
	defer server.Close()
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in.jsonl"), filepath.Join(dir, "out.jsonl")
	if err := os.WriteFile(in, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	b.Input, b.Output = in, out
	var stderr bytes.Buffer
	err = b.Run(t.Context(), Gateway{Base: server.URL}, service.ParseKey("m"), Streams{In: strings.NewReader(""), Out: io.Discard, Err: &stderr})
	return readAnswers(t, out), stderr.String(), err
}

func readAnswers(t *testing.T, file string) (answers []map[string]any) {
	t.Helper()
	f, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for s := bufio.NewScanner(f); s.Scan(); {
		var a map[string]any
		if err := json.Unmarshal(s.Bytes(), &a); err != nil {
			t.Fatalf("%v: %s", err, s.Text())
		}
		answers = append(answers, a)
	}
	return answers
}

func number(x float64) string {
	return fmt.Sprintf(`{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP64","data":[%v]}]}`, x)
}

// value is the number in an answer, -1 for an error.
func value(a map[string]any) float64 {
	outputs, ok := a["outputs"].([]any)
	if !ok {
		return -1
	}
	return outputs[0].(map[string]any)["data"].([]any)[0].(float64)
}

func index(a map[string]any) float64 {
	return a["parameters"].(map[string]any)["batch_index"].(float64)
}

func TestBatchOf10000Lines(t *testing.T) {
	var lines strings.Builder
	const n = 10_000
	for i := range n {
		switch {
		case i == 4321:
			lines.WriteString("{\"inputs\": [\n") // cut off
		case i%1000 == 17:
			lines.WriteString(number(failsAlways) + "\n")
		default:
			lines.WriteString(number(float64(i+100)) + "\n")
		}
	}
	for _, b := range []Batch{{Workers: 16, Retries: 1}, {Workers: 4, Retries: 1, Size: 50}} {
		d := &doubler{}
		answers, says, err := askBatch(t, d, lines.String(), b)
		if err == nil || !strings.Contains(err.Error(), "11 of 10000 requests failed, the first at line 18: 500 Internal Server Error: three is too many") {
			t.Errorf("%+v: error %v, said %s", b, err, says)
		}
		if len(answers) != n {
			t.Fatalf("%v: %d answers", b, len(answers))
		}
		for i, a := range answers {
			want := 2 * float64(i+100)
			if i == 4321 || i%1000 == 17 {
				want = -1
			}
			if value(a) != want || index(a) != float64(i) {
				t.Fatalf("%v: line %d: %v", b, i, a)
			}
			if p := a["parameters"].(map[string]any); want > 0 && (p["note"] != "a b" || p["inference_id"] == "" || a["id"] == "") {
				t.Fatalf("%v: line %d: %v", b, i, a)
			}
		}
		if status := answers[4321]["error"].(map[string]any)["status"]; status != "preprocessing error" {
			t.Errorf("a line cut off: %v", answers[4321])
		}
		if r := d.requests.Load(); b.Size > 1 && r > 800 {
			t.Errorf("%d requests for lines that go 50 at a time", r)
		}
	}
}

func TestBatchTriesAgain(t *testing.T) {
	lines := strings.Join([]string{number(failsTwice), number(failsBadly), number(failsAlways), "", `{"id":"mine",` + number(1)[1:], `{"id":null,` + number(2)[1:]}, "\n")
	d := &doubler{}
	answers, says, err := askBatch(t, d, lines, Batch{Workers: 3, Verbose: 1, Headers: []string{"X-Who: me"}})
	if err == nil || !strings.Contains(err.Error(), "2 of 5 requests failed, the first at line 2: 400 Bad Request: not nine") {
		t.Fatalf("%v\n%s", err, says)
	}
	var got []string
	for _, a := range answers {
		got = append(got, fmt.Sprint(index(a), value(a)))
	}
	if want := "0 10,1 -1,2 -1,4 2,5 4"; strings.Join(got, ",") != want {
		t.Errorf("answers %s, want %s", strings.Join(got, ","), want)
	}
	if d.tries[failsTwice] != 3 || d.tries[failsBadly] != 1 || d.tries[failsAlways] != 3 {
		t.Errorf("tries: %v", d.tries)
	}
	if !strings.Contains(says, "try 1 of 3: 503 Service Unavailable: busy") || d.headers.Get("X-Who") != "me" {
		t.Errorf("said %s, headers %v", says, d.headers)
	}
	if p := answers[3]["parameters"].(map[string]any); answers[3]["id"] != "mine" || p["inference_id"] != "mine" {
		t.Errorf("a line with an id: %v", answers[3])
	}
}

// TestBatchKeepsOrder has the first answer come last.
func TestBatchKeepsOrder(t *testing.T) {
	d := &doubler{hold: make(chan struct{})}
	var lines strings.Builder
	lines.WriteString(number(waits) + "\n")
	for i := range 20 {
		lines.WriteString(number(float64(100+i)) + "\n")
	}
	go func() {
		for d.rows.Load() < 21 {
			time.Sleep(time.Millisecond)
		}
		close(d.hold)
	}()
	answers, says, err := askBatch(t, d, lines.String(), Batch{Workers: 8})
	if err != nil || len(answers) != 21 || value(answers[0]) != 2*waits || value(answers[20]) != 2*119 || !strings.Contains(says, "Answered 21 requests") {
		t.Errorf("%v %v %s", answers, err, says)
	}
}

// TestBatchInterrupted leaves the answers to a beginning of the lines, though
// the input has not ended, and reads no further than it may.
func TestBatchInterrupted(t *testing.T) {
	d := &doubler{t: t, tries: map[float64]int{}, hold: make(chan struct{})}
	server := httptest.NewServer(d)
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	in, feed := io.Pipe()
	var wrote atomic.Int64
	go func() {
		for i := 0; ; i++ {
			x := float64(100 + i)
			if i == 50 {
				x = waits
			}
			if _, err := io.WriteString(feed, number(x)+"\n"); err != nil {
				return
			}
			wrote.Store(int64(i))
		}
	}()
	out := filepath.Join(t.TempDir(), "out.jsonl")
	b := Batch{Input: "-", Output: out, Workers: 2, Retries: 3, Size: 1, Timeout: time.Minute}
	var stderr bytes.Buffer
	done := make(chan error, 1)
	go func() {
		done <- b.Run(ctx, Gateway{Base: server.URL}, service.ParseKey("m"), Streams{In: command.Interruptible(ctx, in), Out: io.Discard, Err: &stderr})
	}()
	for { // until 50 are whole: the last may be half written
		if data, _ := os.ReadFile(out); bytes.Count(data, []byte("\n")) >= 50 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if answers := readAnswers(t, out); len(answers) != 50 || value(answers[49]) != 2*149 {
		t.Errorf("%d answers", len(answers))
	}
	if !strings.Contains(stderr.String(), "answers to the first 50 requests") {
		t.Error(stderr.String())
	}
	// 64 KiB are read at a time.
	if n := wrote.Load(); n > 50+2*linesAhead+2+1000 {
		t.Errorf("%d lines were read while the 51st had no answer", n)
	}
	_ = feed.Close()
}

// TestBatchLongLines keeps nothing of lines beyond the bound.
func TestBatchLongLines(t *testing.T) {
	long := strings.Repeat("x", 100)
	for in, want := range map[string]string{
		"short\n" + long + "\n12345678\nend": "short 6 <nil>| 101 line too long|12345678 9 <nil>|end 3 EOF",
		"short\n" + long:                     "short 6 <nil>| 100 line too long| 0 EOF",
		"12345678":                           "12345678 8 EOF",
		"123456789":                          " 9 line too long| 0 EOF",
	} {
		r := bufio.NewReaderSize(strings.NewReader(in), 16)
		var got []string
		for {
			body, size, err := readLine(r, 8)
			got = append(got, fmt.Sprintf("%s %d %v", body, size, err))
			if err != nil && !errors.Is(err, errLongLine) {
				break
			}
		}
		if strings.Join(got, "|") != want {
			t.Errorf("%s\nwant %s", strings.Join(got, "|"), want)
		}
	}
}

func TestSpliceFields(t *testing.T) {
	for _, test := range [][2]string{
		{`{}`, `{"n":1}`},
		{`{"parameters":{"a":1}}`, `{"n":1}`},
		{`{"parameters":null,"b":[1]}`, `{"n":1,"b":[1]}`},
		{`{"b":[{"parameters":2}],"parameters":{}}`, `{"n":1,"b":[{"parameters":2}]}`},
		{`{"a":"\"parameters\":","parameters":[],"c":1}`, `{"n":1,"a":"\"parameters\":","c":1}`},
	} {
		if got := string(insert(without([]byte(test[0]), "parameters"), "n", 1)); got != test[1] {
			t.Errorf("%s: %s, want %s", test[0], got, test[1])
		}
	}
}
