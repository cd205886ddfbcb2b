package worker

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// fakeVariable makes the test binary a worker: its value is how it greets.
const fakeVariable = "ROUNDHOUSE_TEST_WORKER"

func TestMain(m *testing.M) {
	if how := os.Getenv(fakeVariable); how != "" {
		fakeMain(how)
		return
	}
	if job := os.Getenv(serverVariable); job != "" {
		forkingServer(job)
	}
	os.Exit(m.Run())
}

// fake is a worker written without the package's own codec. What a request's
// parameter "do" names, it does.
type fake struct {
	nc      net.Conn
	r       *bufio.Reader
	models  map[string]map[string]any
	pending map[float64]bool // slow requests
	streams map[float64]*fakeStream
}

type fakeStream struct {
	do     string
	credit int
	left   int // responses still to send

	waiting []func() // echoes for which there is no credit yet
	closed  bool     // no more requests come
}

type object = map[string]any

func fakeMain(how string) {
	var socket string
	for i, arg := range os.Args {
		if arg == "--socket" {
			socket = os.Args[i+1]
		}
	}
	switch how {
	case "exit":
		fmt.Fprintln(os.Stderr, "about to fail")
		os.Exit(3)
	case "module":
		fmt.Fprintln(os.Stderr, "ModuleNotFoundError: No module named 'numpy.core'")
		os.Exit(1)
	case "silent": // never connects
		time.Sleep(time.Hour)
	case "stranger": // another process that found the socket
		other, err := net.Dial("unix", socket)
		if err == nil {
			stranger := &fake{nc: other, r: bufio.NewReader(other)}
			stranger.send(object{"kind": "hello", "token": "guess", "protocols": []int{1}}, nil)
			if m, _ := stranger.next(); m["kind"] != "goodbye" {
				os.Exit(4)
			}
		}
	}
	nc, err := net.Dial("unix", socket)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	f := &fake{nc: nc, r: bufio.NewReader(nc), models: map[string]map[string]any{}, pending: map[float64]bool{}, streams: map[float64]*fakeStream{}}
	protocols := []int{1, 7}
	token := os.Getenv(tokenVariable)
	switch how {
	case "mute": // connects and says nothing
		time.Sleep(time.Hour)
	case "future":
		protocols = []int{7}
	case "garbage":
		_, _ = nc.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	case "long":
		f.send(object{"kind": "hello", "token": strings.Repeat("x", maxHandshakeBytes)}, nil)
	}
	f.send(object{"kind": "hello", "protocols": protocols, "token": token, "pid": os.Getpid(),
		"worker": object{"language": "go", "version": "1"}, "packages": object{}}, nil)
	f.serve()
}

// pieces answers a custom message piece by piece, as far as it says how.
func (f *fake) pieces(id float64, how string) {
	send := func(http object, body string) {
		http["body"] = object{"offset": 0, "length": len(body)}
		f.send(object{"kind": "item", "id": id, "http": http}, []byte(body))
	}
	send(object{"status": 202, "headers": [][2]string{{"content-type", "text/event-stream"}}}, "")
	s := &fakeStream{credit: streamCredit - 1}
	f.streams[id] = s
	switch how {
	case "pieces=hang": // until it is cancelled
		send(object{}, "0,")
	case "pieces=break":
		send(object{}, "0,")
		delete(f.streams, id)
		f.send(object{"kind": "error", "id": id, "error": object{"kind": "failed", "message": "in the middle"}}, nil)
	case "pieces=empty": // a piece without a body
		f.send(object{"kind": "item", "id": id, "http": object{}}, nil)
	case "pieces=liar": // more than there is credit for, unless each is taken at once
		for range 100 * streamCredit {
			send(object{}, "x")
		}
		f.send(object{"kind": "error", "id": id, "error": object{"kind": "failed", "message": "at the end"}}, nil)
	default:
		for i := range 100 {
			s.waiting = append(s.waiting, func() { send(object{}, fmt.Sprintf("%d,", i)) })
		}
		s.closed = true
		f.echoes(id, s)
	}
}

func (f *fake) serve() {
	for {
		m, payload := f.next()
		if m == nil {
			os.Exit(0)
		}
		id, _ := m["id"].(float64)
		switch m["kind"] {
		case "load":
			f.load(id, m)
		case "unload":
			delete(f.models, m["model"].(string))
			f.send(object{"kind": "result", "id": id}, nil)
		case "ping":
			f.send(object{"kind": "pong", "id": id, "rss_bytes": 4096}, nil)
		case "infer":
			request := m["request"].(object)
			f.infer(id, m, request, payload)
		case "stream":
			f.stream(id, m, payload)
		case "item", "end", "credit":
			f.streamFrame(id, m, payload)
		case "cancel":
			if f.pending[id] || f.streams[id] != nil {
				delete(f.pending, id)
				delete(f.streams, id)
				f.observe("cancelled", 1)
				f.send(object{"kind": "error", "id": id, "error": object{"kind": "cancelled", "message": "cancelled"}}, nil)
			}
		case "custom":
			if do, ok := m["query"].(string); ok && strings.HasPrefix(do, "pieces") {
				f.pieces(id, do)
				continue
			}
			m["pid"] = os.Getpid()
			body, _ := json.Marshal(m)
			f.send(object{"kind": "result", "id": id, "http": object{"status": 201, "headers": [][2]string{{"x-model", "fake"}, {"content-length", "7"}},
				"body": object{"offset": 0, "length": len(body)}}}, body)
		case "fork":
			switch os.Getenv(fakeVariable) {
			case "fork-dies":
				os.Exit(1)
			case "fork-lies":
				f.send(object{"kind": "result", "id": id, "pid": 1}, nil)
			case "fork-babbles":
				f.send(object{"kind": "result", "id": id + 1, "pid": 1}, nil)
			default:
				f.send(object{"kind": "error", "id": id, "error": object{"kind": "unsupported", "message": "threads run on"}}, nil)
			}
		case "stop":
			f.send(object{"kind": "goodbye"}, nil)
			os.Exit(0)
		case "goodbye":
			os.Exit(2)
		}
	}
}

func (f *fake) load(id float64, m object) {
	settings := m["settings"].(object)
	implementation, _ := settings["implementation"].(string)
	do, mark, _ := strings.Cut(implementation, ":")
	again := false
	if mark != "" { // a file that says that this was loaded before
		_, err := os.Stat(mark)
		again = err == nil
		_ = os.WriteFile(mark, nil, 0o600)
	}
	switch {
	case do == "fails":
		f.send(object{"kind": "error", "id": id, "error": object{"kind": "unprocessable", "message": "no such import"}}, nil)
		return
	case do == "dies", do == "dies-again" && again:
		fmt.Fprintln(os.Stderr, "segmentation fault, or so")
		os.Exit(139)
	}
	f.models[m["model"].(string)] = settings
	f.send(object{"kind": "result", "id": id, "ready": do != "unready", "streams": do == "streams",
		"handlers": []object{{"name": "ping", "rest_path": "/things/{thing}", "rest_method": "GET"}},
		"metadata": object{"name": settings["name"], "platform": "fake",
			"inputs": []object{{"name": "x", "datatype": "FP32", "shape": []int{-1}}}}}, nil)
}

func (f *fake) infer(id float64, m, request object, payload []byte) {
	parameters, _ := request["parameters"].(object)
	do, _ := parameters["do"].(string)
	switch do {
	case "die":
		os.Exit(1)
	case "hang":
		f.observe("hanging", 1)
		time.Sleep(time.Hour)
	case "slow":
		f.pending[id] = true
		f.observe("slow", id)
	case "garbage":
		_, _ = f.nc.Write([]byte("\x0c\x00\x00\x00\x08\x00\x00\x00nothing!"))
	case "huge": // announces more than is allowed
		_, _ = f.nc.Write([]byte("\xff\xff\xff\xff\x08\x00\x00\x00"))
	case "claims": // announces much, within the limit, and sends little
		_, _ = f.nc.Write([]byte("\x00\x00\x00\x3f\x08\x00\x00\x00"))
		_ = f.nc.(*net.UnixConn).CloseWrite()
	case "deep":
		f.raw([]byte(`{"kind":"result","x":`+strings.Repeat("[", 200)+strings.Repeat("]", 200)+"}"), nil)
	case "unknown-id":
		f.send(object{"kind": "result", "id": 1 << 40}, nil)
	case "unknown-kind":
		f.send(object{"kind": "surprise"}, nil)
		f.send(object{"kind": "surprise", "id": 77}, nil)
		if m, _ := f.next(); m["kind"] != "error" {
			os.Exit(5)
		}
		f.echo(id, "result", request, payload)
	case "item": // for what is no stream
		f.send(object{"kind": "item", "id": id}, nil)
	case "bad-range":
		f.send(object{"kind": "result", "id": id, "response": object{"outputs": []object{
			{"name": "y", "shape": []int{2}, "datatype": "FP32", "offset": 0, "length": 1 << 20}}}}, nil)
	case "error":
		f.send(object{"kind": "error", "id": id, "error": parameters["error"]}, nil)
	case "print":
		fmt.Println("printed by the model")
		f.echo(id, "result", request, payload)
	case "log":
		f.send(object{"kind": "log", "dropped": 3, "records": []object{{"level": "WARNING", "logger": "mlserver", "message": "careful", "model": m["model"]}}}, nil)
		f.echo(id, "result", request, payload)
	case "unready":
		f.send(object{"kind": "ready", "model": m["model"], "ready": false}, nil)
		f.echo(id, "result", request, payload)
	case "json":
		f.send(object{"kind": "result", "id": id, "response": object{"outputs": []object{
			{"name": "y", "shape": []int{2, 2}, "datatype": "INT32", "data": [][]int{{1, 2}, {3, 4}}}}}}, nil)
	default:
		f.echo(id, "result", request, payload)
	}
}

// echo answers with the inputs as outputs.
func (f *fake) echo(id float64, kind string, request object, payload []byte) {
	response := object{"id": request["id"], "model_name": "fake", "parameters": object{"pid": os.Getpid(), "request": request}, "outputs": request["inputs"]}
	f.send(object{"kind": kind, "id": id, "response": response}, payload)
}

func (f *fake) stream(id float64, m object, payload []byte) {
	s := &fakeStream{credit: streamCredit}
	f.streams[id] = s
	if request, ok := m["request"].(object); ok {
		parameters, _ := request["parameters"].(object)
		s.do, _ = parameters["do"].(string)
		if n, ok := parameters["n"].(float64); ok {
			s.left = int(n)
		}
		switch s.do {
		case "count", "flood":
			f.count(id, s)
			return
		case "credit":
			f.send(object{"kind": "credit", "id": id, "n": 1 << 60}, nil)
		case "die":
			os.Exit(1)
		}
		s.waiting = append(s.waiting, func() { f.echo(id, "item", request, payload) })
	}
	s.closed = m["last"] == true
	f.echoes(id, s)
}

// echoes sends the echoes there is credit for.
func (f *fake) echoes(id float64, s *fakeStream) {
	for ; len(s.waiting) > 0 && s.credit > 0; s.waiting = s.waiting[1:] {
		s.waiting[0]()
		s.credit--
	}
	if s.closed && len(s.waiting) == 0 {
		f.end(id)
	}
}

// count sends what is left of a stream's responses, under credit unless it
// floods.
func (f *fake) count(id float64, s *fakeStream) {
	for s.left > 0 && (s.credit > 0 || s.do == "flood") {
		s.left--
		s.credit--
		f.send(object{"kind": "item", "id": id, "response": object{"parameters": object{"left": s.left}, "outputs": []object{}}}, nil)
	}
	if s.left == 0 {
		f.end(id)
		return
	}
	f.observe("waiting", float64(s.left))
}

func (f *fake) end(id float64) {
	delete(f.streams, id)
	f.send(object{"kind": "end", "id": id}, nil)
}

func (f *fake) streamFrame(id float64, m object, payload []byte) {
	s := f.streams[id]
	if s == nil {
		return
	}
	switch m["kind"] {
	case "credit":
		s.credit += int(m["n"].(float64))
	case "end":
		s.closed = true
	case "item":
		s.waiting = append(s.waiting, func() {
			f.send(object{"kind": "credit", "id": id, "n": 1}, nil)
			f.echo(id, "item", m["request"].(object), payload)
		})
	}
	if s.do == "count" {
		f.count(id, s)
		return
	}
	f.echoes(id, s)
}

// observe tells the test that something has come to pass.
func (f *fake) observe(name string, value float64) {
	f.send(object{"kind": "metrics", "registered": []object{{"name": name, "description": "of a test"}}, "observations": [][]any{{name, value}}}, nil)
}

func (f *fake) send(header object, payload []byte) {
	text, err := json.Marshal(header)
	if err != nil {
		panic(err)
	}
	f.raw(text, payload)
}

func (f *fake) raw(text, payload []byte) {
	for len(text)%8 != 0 {
		text = append(text, ' ')
	}
	b := binary.LittleEndian.AppendUint32(nil, uint32(4+len(text)+len(payload)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(text)))
	_, _ = f.nc.Write(append(append(b, text...), payload...))
}

// next is the next frame, nil at the end.
func (f *fake) next() (object, []byte) {
	var sizes [8]byte
	if _, err := io.ReadFull(f.r, sizes[:]); err != nil {
		if !errors.Is(err, io.EOF) {
			os.Exit(0)
		}
		return nil, nil
	}
	size, head := binary.LittleEndian.Uint32(sizes[:]), binary.LittleEndian.Uint32(sizes[4:])
	rest := make([]byte, size-4)
	if _, err := io.ReadFull(f.r, rest); err != nil {
		return nil, nil
	}
	var m object
	if err := json.Unmarshal(rest[:head], &m); err != nil {
		panic(err)
	}
	return m, rest[head:]
}
