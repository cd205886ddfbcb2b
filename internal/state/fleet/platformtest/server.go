package platformtest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Server is how a test's server behaves. The zero value listens on $PORT of
// $HOST, 127.0.0.1 when unset, is ready and alive at once and ends on SIGTERM.
//
//	GET /healthz  200 when ready, else 503
//	GET /livez    200 while alive, else 503
//	GET /env?n=X  the value of the variable X
//	POST /sleep   it is neither ready nor alive until POST /wake
//	GET /         its host and process id
type Server struct {
	ReadyAfter   time.Duration // from its start
	NeverReady   bool
	UnreadyAfter time.Duration // from its start; 0 is never
	UnliveAfter  time.Duration // from its start; 0 is never
	// CrashAfter makes it exit with CrashCode; before it listens when below 0.
	CrashAfter time.Duration
	CrashCode  int
	// ClashOnce names a file: as long as it is absent, the server makes it and
	// ends, saying that its port is taken.
	ClashOnce  string
	IgnoreTerm bool
	// Spawn starts a process that ignores SIGTERM and never ends by itself;
	// its id is printed as "grandchild N".
	Spawn  bool
	Escape bool   // what is spawned leaves the process group
	Print  string // a line it prints at its start
	Spew   int    // bytes of output it writes at its start
	EatMB  int    // memory it takes and touches
	GRPC   bool   // serves gRPC health on $GRPC_PORT, and no HTTP

	// The following are for the maker of the revision.

	Salt     string        `json:"-"` // makes another hash of the same behaviour
	Program  string        `json:"-"` // runs this program instead
	ModelURI string        `json:"-"`
	GPUs     int           `json:"-"`
	Memory   int64         `json:"-"` // bytes
	Grace    time.Duration `json:"-"`
	Drain    time.Duration `json:"-"`
	Startup  time.Duration `json:"-"` // startup timeout
	Sleeps   bool          `json:"-"` // at level 1, by /sleep and /wake
	Suspends bool          `json:"-"` // at service.LevelSuspended
	// Readiness is the probe; nil asks /healthz.
	Readiness *corev1.Probe `json:"-"`
	Liveness  *corev1.Probe `json:"-"`
	// Roles of the service; nil is the engine alone.
	Roles []string `json:"-"`
}

// Standby are the levels at which the server sleeps; nil for none.
func (s Server) Standby() *service.Standby {
	var out service.Standby
	if s.Sleeps {
		out.Levels = append(out.Levels, service.StandbyLevel{Level: 1, Sleep: service.Call{Path: "/sleep"}, Wake: []service.Call{{Path: "/wake"}}})
	}
	if s.Suspends {
		out.Levels = append(out.Levels, service.StandbyLevel{Level: service.LevelSuspended})
	}
	if len(out.Levels) == 0 {
		return nil
	}
	return &out
}

// variable carries a Server to the process that is to be one.
const variable = "PLATFORMTEST_SERVER"

// Env makes a process that calls Main a server like s.
func (s Server) Env() []corev1.EnvVar {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a struct of plain fields
	}
	// A program built to find races otherwise lingers for a second at its end.
	return []corev1.EnvVar{{Name: variable, Value: string(b)}, {Name: "GORACE", Value: "atexit_sleep_ms=0"}}
}

// Main turns a process that was started with Env's variables into the server
// and never returns then; any other it leaves alone. Call it first in TestMain.
func Main() {
	v, ok := os.LookupEnv(variable)
	if !ok {
		return
	}
	if v == "sleep" {
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
		for {
			time.Sleep(time.Hour)
		}
	}
	var s Server
	if err := json.Unmarshal([]byte(v), &s); err != nil {
		fail("bad settings: %v", err)
	}
	if err := s.run(); err != nil {
		fail("%v", err)
	}
	os.Exit(0)
}

func fail(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(3)
}

func (s Server) run() error {
	started := time.Now()
	stop := make(chan os.Signal, 1)
	if s.IgnoreTerm {
		signal.Ignore(syscall.SIGTERM)
	} else {
		signal.Notify(stop, syscall.SIGTERM)
	}
	s.prepare()
	if s.CrashAfter < 0 {
		s.crash()
	}
	port := os.Getenv("PORT")
	if s.GRPC {
		port = os.Getenv("GRPC_PORT")
	}
	l, err := net.Listen("tcp", net.JoinHostPort(cmp.Or(os.Getenv("HOST"), "127.0.0.1"), port))
	if err != nil {
		return err
	}
	fmt.Printf("listening on %s\n", l.Addr())
	if s.CrashAfter > 0 {
		time.AfterFunc(s.CrashAfter, s.crash)
	}
	if s.GRPC {
		g := grpc.NewServer()
		grpc_health_v1.RegisterHealthServer(g, health.NewServer())
		go func() { <-stop; g.Stop() }()
		return g.Serve(l)
	}
	srv := &http.Server{Handler: s.handler(started), ReadHeaderTimeout: 10 * time.Second}
	go func() { <-stop; _ = srv.Shutdown(context.Background()) }()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// prepare does what comes before listening.
func (s Server) prepare() {
	if s.Print != "" {
		fmt.Println(s.Print)
	}
	if s.ClashOnce != "" {
		if f, err := os.OpenFile(s.ClashOnce, os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			_ = f.Close()
			fail("listen tcp 127.0.0.1:%s: bind: address already in use", os.Getenv("PORT"))
		}
	}
	for line := strings.Repeat("x", 99) + "\n"; s.Spew > 0; s.Spew -= len(line) {
		_, _ = os.Stdout.WriteString(line)
	}
	if s.Spawn {
		self, err := os.Executable()
		if err != nil {
			fail("spawn: %v", err)
		}
		c := exec.Command(self)
		c.Env = append(os.Environ(), variable+"=sleep")
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: s.Escape}
		if err := c.Start(); err != nil {
			fail("spawn: %v", err)
		}
		fmt.Printf("grandchild %d\n", c.Process.Pid)
	}
	for range s.EatMB {
		b := make([]byte, 1<<20)
		for i := range b {
			b[i] = byte(i)
		}
		eaten = append(eaten, b)
	}
}

var eaten [][]byte

func (s Server) crash() {
	fmt.Fprintln(os.Stderr, "fatal: told to crash")
	os.Exit(s.CrashCode)
}

func (s Server) handler(started time.Time) http.Handler {
	var asleep atomic.Bool
	answer := func(w http.ResponseWriter, ok bool) {
		if !ok || asleep.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}
	past := func(d time.Duration) bool { return d > 0 && time.Since(started) >= d }
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, !s.NeverReady && time.Since(started) >= s.ReadyAfter && !past(s.UnreadyAfter))
	})
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { answer(w, !past(s.UnliveAfter)) })
	mux.HandleFunc("POST /sleep", func(http.ResponseWriter, *http.Request) { asleep.Store(true) })
	mux.HandleFunc("POST /wake", func(http.ResponseWriter, *http.Request) { asleep.Store(false) })
	mux.HandleFunc("GET /env", func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, os.Getenv(r.URL.Query().Get("n")))
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		host, _ := os.Hostname() // a pod's processes all have the id 1
		_, _ = fmt.Fprint(w, host, " ", os.Getpid())
	})
	return mux
}
