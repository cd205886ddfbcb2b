package scaling

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func options() ReadOptions {
	return ReadOptions{PromptRate: 1000, OutputRate: 10, Service: 2 * time.Second, Seed: 1}
}

func TestReadEveryFormat(t *testing.T) {
	second := time.Second
	for name, c := range map[string]struct {
		text string
		want []Request
	}{
		"azure": {"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5000000,2000,10\n2023-11-16 18:15:48.0000000,500,20\n",
			[]Request{{Service: 3 * second}, {At: 1500 * time.Millisecond, Service: 2500 * time.Millisecond}}},
		"azure with zones": {"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2024-05-10 00:00:00.5+00:00,1000,10\r\n2024-05-10 00:00:01.5+00:00,0,0\r\n",
			[]Request{{Service: 2 * second}, {At: second, Service: time.Millisecond}}},
		"seconds": {"\n\ufefftime,seconds\n10,4\n9.5,1\n", []Request{{Service: second}, {At: 500 * time.Millisecond, Service: 4 * second}}},
		"mooncake": {`{"timestamp": 1000, "input_length": 1000, "output_length": 10, "hash_ids": [1, 2]}` + "\n\n" + `{"timestamp": 2500, "input_length": 2000, "output_length": 20}`,
			[]Request{{Service: 2 * second}, {At: 1500 * time.Millisecond, Service: 4 * second}}},
		"access log": {`{"time":"2026-05-01T12:00:02.000Z","model":"chat","target":"default/chat","replica":"chat-1","status":200,"queue_ms":500,"duration_ms":1500}
{"time":"2026-05-01T12:00:01.000Z","model":"chat","target":"default/chat","replica":"chat-1","status":200,"queue_ms":0,"duration_ms":3000}
{"time":"2026-05-01T12:00:03.000Z","path":"/v1/models","status":200,"duration_ms":1}
{"time":"2026-05-01T12:00:04.000Z","model":"other","replica":"other-1","status":200,"queue_ms":0,"duration_ms":1}`,
			[]Request{{Service: 3 * second}, {At: second, Service: second}}},
	} {
		o := options()
		if name == "access log" {
			o.Model = "default/chat"
		}
		trace, err := Read(name, strings.NewReader(c.text), o)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !slices.Equal(trace.Requests, c.want) {
			t.Errorf("%s: %v, want %v", name, trace.Requests, c.want)
		}
		if name == "access log" && trace.Skipped != 2 {
			t.Errorf("%d lines are left out, want 2", trace.Skipped)
		}
	}
}

func TestReadCounts(t *testing.T) {
	text := "timestamp,requests\n2026-05-01 00:00:00,600\n2026-05-01 00:01:00,0\n2026-05-01 00:02:00,300\n"
	trace, err := Read("counts.csv", strings.NewReader(text), options())
	if err != nil {
		t.Fatal(err)
	}
	var minutes [3]int
	total := time.Duration(0)
	for _, r := range trace.Requests {
		minutes[r.At/time.Minute]++
		total += r.Service
	}
	if minutes != [3]int{600, 0, 300} || trace.Length != 3*time.Minute {
		t.Errorf("%v requests by minute over %v, want 600, 0, 300 over 3m", minutes, trace.Length)
	}
	if mean := total / 900; mean < 1800*time.Millisecond || mean > 2200*time.Millisecond {
		t.Errorf("a mean service time of %v, want about 2s", mean)
	}
}

func TestReadReportsWhereAndWhat(t *testing.T) {
	header := "TIMESTAMP,ContextTokens,GeneratedTokens\n"
	for _, c := range []struct{ text, want string }{
		{"", "f: the file is empty"},
		{"\n\n", "f: the file is empty"},
		{"a,b\n1,2\n", "f:1: the header has to name timestamp"},
		{header, "f: the file has no request"},
		{header + "yesterday,1,2\n", `f:2: "yesterday" is no time`},
		{header + "2023-11-16 18:15:46,1,2\n2023-11-16 18:15:47,x,2\n", `f:3: strconv.ParseInt: parsing "x"`},
		{header + "2023-11-16 18:15:46,1\n", "f:2: 2 fields, but the header has 3"},
		{header + "2023-11-16 18:15:46,-1,2\n", "f:2: -1 tokens in and 2 out"},
		{"time,seconds\n1,NaN\n", "f:2: seconds is NaN"},
		{"time,seconds\n-1,1\n", "f:2: the time -1 is not within"},
		{"time,seconds\n0,1\n1e10,1\n", "f: request 2 comes at"},
		{"time,requests\n60,5\n0,5\n", "f:3: the time is not after"},
		{"time,requests\n60,99999999\n", "f:2: requests is 99999999"},
		{"{}\n", "f:1: the line has neither timestamp"},
		{"{\n", "f:1: unexpected end of JSON input"},
		{`{"timestamp":-1}`, "f:1: timestamp is -1"},
		{`{"time":"2026-05-01T12:00:00Z","duration_ms":1}`, "f: none of the 1 lines is of a request that a replica"},
		{header + strings.Repeat("1", maxLine+1), "f:2: the line is longer than 1048576 bytes"},
	} {
		_, err := Read("f", strings.NewReader(c.text), options())
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%.40q: %v, want %s…", c.text, err, c.want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n")
	f.Add("time,requests\n0,3\n60,2\n")
	f.Add("time,seconds\n0,3\n1e3,0.5\n")
	f.Add(`{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}`)
	f.Add(`{"time":"2026-05-01T12:00:02.000Z","model":"chat","replica":"r","queue_ms":500,"duration_ms":1500}`)
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "00000") || strings.Contains(text, "99999") || strings.Contains(text, "e") && strings.Contains(text, "requests") {
			return // millions of requests are slow to draw, and nothing else
		}
		trace, err := Read("f", strings.NewReader(text), options())
		if err != nil {
			return
		}
		if err := trace.Validate(); err != nil {
			t.Fatal(err)
		}
		if len(trace.Requests) > 100 || trace.Length > time.Hour {
			return
		}
		for _, name := range []string{"roundhouse", "knative", "clairvoyant"} {
			c, err := FindContestant(name)
			if err != nil {
				t.Fatal(err)
			}
			r, err := Case{Pool: pool(10 * time.Second), Trace: trace, Limits: limits(), Goal: time.Second}.Replay(c)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Waits) != len(trace.Requests) {
				t.Fatal(fmt.Sprint(len(r.Waits), " waits"))
			}
		}
	})
}
