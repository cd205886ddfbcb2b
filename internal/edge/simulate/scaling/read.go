package scaling

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ReadOptions say what a file does not.
type ReadOptions struct {
	// PromptRate and OutputRate are the tokens per second of one request, for
	// files that state tokens: a service time is prompt / PromptRate + output / OutputRate.
	PromptRate, OutputRate float64
	// Service is the mean service time of files that only count requests.
	Service time.Duration
	Seed    uint64 // of what such files do not say
	// Model keeps only the lines of an access log that name it; "" keeps all.
	Model string
}

// Bounds of a trace file.
const (
	maxLine  = 1 << 20
	maxToken = 1 << 30 // tokens of one request
)

// Read reads a trace: Azure's CSV of LLM requests (TIMESTAMP, ContextTokens,
// GeneratedTokens), a CSV of counts (timestamp, requests) or of service times
// (timestamp, seconds), Mooncake's lines of JSON, or the gateway's access log.
// name is for errors.
func Read(name string, in io.Reader, o ReadOptions) (*Trace, error) {
	if !(o.PromptRate > 0) || !(o.OutputRate > 0) || o.Service <= 0 || o.Service > MaxService {
		return nil, fmt.Errorf("%v prompt and %v output tokens a second, and a mean service time of %v: want more than 0, and a time of at most %v", o.PromptRate, o.OutputRate, o.Service, MaxService)
	}
	r := &reader{name: name, o: o, lines: bufio.NewReaderSize(in, 64<<10)}
	first, err := r.lines.Peek(1)
	for err == nil && (first[0] == '\n' || first[0] == '\r' || first[0] == ' ') {
		if first[0] == '\n' {
			r.line++
		}
		_, _ = r.lines.Discard(1) // what was peeked at can be discarded
		first, err = r.lines.Peek(1)
	}
	switch {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%s: the file is empty", name)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	case first[0] == '{':
		err = r.objects()
	default:
		err = r.table()
	}
	if err != nil {
		return nil, err
	}
	return r.trace()
}

type reader struct {
	name    string
	o       ReadOptions
	lines   *bufio.Reader
	line    int
	all     []arrival
	counts  []counted
	skipped int
}

// arrival is a request at a time of the file's.
type arrival struct {
	at      time.Time
	service time.Duration
}

// counted is a number of requests from a time on.
type counted struct {
	at time.Time
	n  int
}

func (r *reader) wrong(format string, args ...any) error {
	return fmt.Errorf("%s:%d: %w", r.name, r.line, fmt.Errorf(format, args...))
}

// add takes a request whose service time is valid.
func (r *reader) add(at time.Time, service time.Duration) error {
	if len(r.all) == MaxRequests {
		return r.wrong("more than %d requests: split the file", MaxRequests)
	}
	r.all = append(r.all, arrival{at: at, service: min(max(service, time.Millisecond), MaxService)})
	return nil
}

// tokens is the service time of so many tokens.
func (r *reader) tokens(prompt, output int64) (time.Duration, error) {
	if prompt < 0 || prompt > maxToken || output < 0 || output > maxToken {
		return 0, r.wrong("%d tokens in and %d out: want 0 to %d of both", prompt, output, maxToken)
	}
	seconds := float64(prompt)/r.o.PromptRate + float64(output)/r.o.OutputRate
	return time.Duration(min(seconds, MaxService.Seconds()) * float64(time.Second)), nil
}

// each calls take with every line that is not blank.
func (r *reader) each(take func(line []byte) error) error {
	lines := bufio.NewScanner(r.lines)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		r.line++
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		if err := take(lines.Bytes()); err != nil {
			return err
		}
	}
	err := lines.Err()
	if err == nil {
		return nil
	}
	r.line++
	if errors.Is(err, bufio.ErrTooLong) {
		return r.wrong("the line is longer than %d bytes", maxLine)
	}
	return r.wrong("%w", err)
}

// objects reads lines of JSON.
func (r *reader) objects() error {
	return r.each(func(line []byte) error {
		var o object
		if err := json.Unmarshal(line, &o); err != nil {
			return r.wrong("%w", err)
		}
		return r.object(&o)
	})
}

// object is a line of Mooncake's traces or of the gateway's access log.
type object struct {
	Timestamp *float64 `json:"timestamp"` // milliseconds
	Input     int64    `json:"input_length"`
	Output    int64    `json:"output_length"`

	Time     *time.Time `json:"time"`
	Model    string     `json:"model"`
	Target   string     `json:"target"`
	Replica  string     `json:"replica"`
	Queued   float64    `json:"queue_ms"`
	Duration float64    `json:"duration_ms"`
}

const longestMillis = float64(MaxLength / time.Millisecond)

func (r *reader) object(o *object) error {
	switch {
	case o.Timestamp != nil:
		if !(*o.Timestamp >= 0 && *o.Timestamp <= longestMillis) {
			return r.wrong("timestamp is %v: want 0 to %.0f milliseconds", *o.Timestamp, longestMillis)
		}
		service, err := r.tokens(o.Input, o.Output)
		if err != nil {
			return err
		}
		return r.add(time.Unix(0, int64(*o.Timestamp*1e6)), service)
	case o.Time != nil:
		if o.Replica == "" || r.o.Model != "" && o.Model != r.o.Model && o.Target != r.o.Model {
			r.skipped++ // no replica had it, or another service's
			return nil
		}
		if !(o.Queued >= 0 && o.Duration >= 0 && o.Duration <= longestMillis) {
			return r.wrong("queue_ms is %v and duration_ms is %v: want 0 to %.0f", o.Queued, o.Duration, longestMillis)
		}
		return r.add(*o.Time, time.Duration(max(0, o.Duration-o.Queued)*1e6))
	}
	return r.wrong("the line has neither timestamp (Mooncake's traces) nor time (the gateway's access log)")
}

// table reads a CSV file without commas in its fields; its header says what it
// is.
func (r *reader) table() error {
	var take func(row []string) error
	width := 0
	return r.each(func(line []byte) error {
		row := strings.Split(strings.TrimPrefix(string(line), "\ufeff"), ",")
		for i := range row {
			row[i] = strings.Trim(row[i], " \t\r\"")
		}
		if take == nil {
			column := map[string]int{}
			for i, name := range row {
				column[strings.ToLower(name)] = i
			}
			width = len(row)
			var err error
			take, err = r.columns(column)
			return err
		}
		if len(row) != width {
			return r.wrong("%d fields, but the header has %d", len(row), width)
		}
		return take(row)
	})
}

// columns chooses what to take of a row by the header.
func (r *reader) columns(column map[string]int) (func(row []string) error, error) {
	at, timed := column["timestamp"]
	if !timed {
		at, timed = column["time"]
	}
	in, prompts := column["contexttokens"]
	out, outputs := column["generatedtokens"]
	count, counts := column["requests"]
	took, served := column["seconds"]
	switch {
	case timed && prompts && outputs:
		return func(row []string) error {
			when, err := r.when(row[at])
			prompt, err1 := strconv.ParseInt(row[in], 10, 64)
			output, err2 := strconv.ParseInt(row[out], 10, 64)
			if err := errors.Join(err, err1, err2); err != nil {
				return r.wrong("%w", err)
			}
			service, err := r.tokens(prompt, output)
			if err != nil {
				return err
			}
			return r.add(when, service)
		}, nil
	case timed && counts:
		return func(row []string) error { return r.count(row[at], row[count]) }, nil
	case timed && served:
		return func(row []string) error {
			when, err := r.when(row[at])
			seconds, err1 := strconv.ParseFloat(row[took], 64)
			if err := errors.Join(err, err1); err != nil {
				return r.wrong("%w", err)
			}
			if !(seconds >= 0 && seconds <= MaxService.Seconds()) {
				return r.wrong("seconds is %v: want 0 to %.0f", seconds, MaxService.Seconds())
			}
			return r.add(when, time.Duration(seconds*float64(time.Second)))
		}, nil
	}
	return nil, r.wrong("the header has to name timestamp (or time), and ContextTokens and GeneratedTokens, or requests, or seconds; a file of JSON begins with {")
}

func (r *reader) count(at, count string) error {
	when, err := r.when(at)
	n, err1 := strconv.Atoi(count)
	if err := errors.Join(err, err1); err != nil {
		return r.wrong("%w", err)
	}
	if n < 0 || n > MaxRequests {
		return r.wrong("requests is %d: want 0 to %d", n, MaxRequests)
	}
	if len(r.counts) > 0 && !when.After(r.counts[len(r.counts)-1].at) {
		return r.wrong("the time is not after that of the row above")
	}
	if len(r.counts) == MaxRequests {
		return r.wrong("more than %d rows: split the file", MaxRequests)
	}
	r.counts = append(r.counts, counted{at: when, n: n})
	return nil
}

// when reads a time: a date with a time, or seconds.
func (r *reader) when(text string) (time.Time, error) {
	if seconds, err := strconv.ParseFloat(text, 64); err == nil {
		if !(seconds >= 0 && seconds <= 1e10) {
			return time.Time{}, fmt.Errorf("the time %v is not within 0 to 1e10 seconds", seconds)
		}
		whole := int64(seconds)
		return time.Unix(whole, int64((seconds-float64(whole))*1e9)), nil
	}
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04:05Z07:00", time.RFC3339} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is no time: write it as 2023-11-16 18:15:46.68, with a zone if you like, or as seconds", text[:min(len(text), 64)])
}

// trace puts what was read in order, from the first request on.
func (r *reader) trace() (*Trace, error) {
	if len(r.counts) > 0 {
		if err := r.spread(); err != nil {
			return nil, err
		}
	}
	if len(r.all) == 0 {
		why := "the file has no request"
		if r.skipped > 0 {
			why = fmt.Sprintf("none of the %d lines is of a request that a replica of this model answered", r.skipped)
		}
		return nil, fmt.Errorf("%s: %s", r.name, why)
	}
	slices.SortStableFunc(r.all, func(a, b arrival) int { return a.at.Compare(b.at) })
	t := &Trace{Name: r.name, Requests: make([]Request, len(r.all)), Skipped: r.skipped}
	first := r.all[0].at
	if len(r.counts) > 0 {
		first = r.counts[0].at
		t.Length = min(r.counts[len(r.counts)-1].at.Sub(first)+r.gap(len(r.counts)-1), MaxLength)
	}
	if first.Year() > 1970 { // else it is a number of seconds since the trace's begin
		t.Begin = first
	}
	for i, a := range r.all {
		t.Requests[i] = Request{At: a.at.Sub(first), Service: a.service}
		t.Length = max(t.Length, min(t.Requests[i].At, MaxLength))
	}
	if err := t.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", r.name, err)
	}
	return t, nil
}

// gap is the time that a count is of: until the next, and of the last as long
// as of the one above, a minute when there is one only.
func (r *reader) gap(i int) time.Duration {
	switch {
	case i+1 < len(r.counts):
		return r.counts[i+1].at.Sub(r.counts[i].at)
	case i > 0:
		return r.gap(i - 1)
	}
	return time.Minute
}

// spread draws the times and service times of counted requests.
func (r *reader) spread() error {
	random := rand.New(rand.NewPCG(r.o.Seed, 0x636f756e74))
	for i, c := range r.counts {
		if len(r.all)+c.n > MaxRequests {
			return fmt.Errorf("%s: more than %d requests: split the file", r.name, MaxRequests)
		}
		for range c.n {
			seconds := lognormal(random, r.o.Service.Seconds())
			at := c.at.Add(time.Duration(random.Int64N(int64(r.gap(i)))))
			r.all = append(r.all, arrival{at: at, service: min(max(time.Duration(seconds*float64(time.Second)), time.Millisecond), MaxService)})
		}
	}
	return nil
}
