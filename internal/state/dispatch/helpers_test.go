package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/admission"
	"roundhouse.dev/roundhouse/internal/decide/breaker"
)

// sidecars answer as llm-d's do: 502 if a server that helps is dead, or the engine itself.
type sidecars struct {
	t      *testing.T
	d      *Dispatcher
	config PoolConfig
	dead   []string // IDs
	sent   int
	retry  bool // as a gateway may, and an endpoint picker not
}

// ask sends a request with a new prompt, or with a picture, and reports whether it was
// answered, and by how many tries.
func (s *sidecars) ask(picture bool) (answered bool, tries int) {
	s.t.Helper()
	s.sent++
	r := Request{To: s.config.Ref(), Prompt: [][]byte{[]byte(strings.Repeat(fmt.Sprint("request ", s.sent, " "), 100))}}
	if picture {
		r.Messages = pictures(fmt.Sprint("http://a/", s.sent))
	}
	g := grantOf(s.t, s.d, r)
	defer g.Done(Outcome{})
	for tries = 1; ; tries++ {
		down := func(address string) bool { return slices.Contains(s.dead, strings.TrimSuffix(address, ":80")) }
		if !down(g.Replica()) && !down(g.Prefill()) && !slices.ContainsFunc(g.Encoders(), down) {
			g.FirstByte()
			return true, tries
		}
		if !g.Answered(Answer{Status: 502, Result: breaker.Failed, Retryable: s.retry}) {
			g.FirstByte()
			return false, tries
		}
	}
}

// ejected are the endpoints that get no requests now.
func (s *sidecars) ejected() (ids []string) {
	for _, e := range s.d.Endpoints(s.config.Ref()) {
		if e.Ejected != "" {
			ids = append(ids, e.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// TestHelpersFail: a sidecar's 502 is taken for a failure of the server that computes the
// prompt, or the pictures, until the server that answers fails alone too. What fails is
// ejected, nothing else is, and it is asked again when it is back.
func TestHelpersFail(t *testing.T) {
	for name, c := range map[string]struct {
		ids     []string
		dead    string
		picture bool
		retry   bool
		fails   int // of 200 requests in two seconds, at the most
	}{
		"one of two prefill servers":          {[]string{"d1", "d2", "p1", "p2"}, "p1", false, false, 6},
		"the only prefill server":             {[]string{"d1", "d2", "p1"}, "p1", false, false, 6},
		"that of a single decoder":            {[]string{"d1", "p1"}, "p1", false, false, 6},
		"that of a single decoder, retried":   {[]string{"d1", "p1"}, "p1", false, true, 0},
		"one of two, retried":                 {[]string{"d1", "d2", "p1", "p2"}, "p1", false, true, 0},
		"the only encoder":                    {[]string{"d1", "d2", "e1"}, "e1", true, false, 6},
		"one of three encoders":               {[]string{"d1", "d2", "e1", "e2", "e3"}, "e1", true, false, 6},
		"an encoder beside a prefill server":  {[]string{"d1", "d2", "p1", "p2", "e1", "e2"}, "e1", true, false, 30},
		"a prefill server beside an encoder":  {[]string{"d1", "d2", "p1", "p2", "e1", "e2"}, "p1", true, false, 30},
		"the engine behind a sidecar":         {[]string{"d1", "d2", "d3", "p1"}, "d1", false, false, 12},
		"the engine behind a sidecar, busily": {[]string{"d1", "d2", "d3", "p1", "p2", "e1", "e2"}, "d1", true, false, 30},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, p := encoding(t, nil, c.ids...)
				s := &sidecars{t: t, d: d, config: p, dead: []string{c.dead}, retry: c.retry}
				ask := func() (fails, again int) {
					for range 200 {
						answered, tries := s.ask(c.picture)
						if again += tries - 1; !answered {
							fails++
						}
						time.Sleep(10 * time.Millisecond)
					}
					return fails, again
				}
				fails, again := ask()
				t.Logf("%d of 200 fail, %d were sent again, ejected are %v", fails, again, s.ejected())
				if fails > c.fails {
					t.Errorf("%d of 200 fail, want %d at the most", fails, c.fails)
				}
				if _, again = ask(); again > 12 {
					t.Errorf("%d of 200 were sent again", again)
				}
				if got := s.ejected(); !slices.Contains(got, c.dead) && len(got) > 0 || slices.ContainsFunc(got, func(id string) bool { return id[0] == 'd' && id != c.dead }) {
					t.Errorf("%v are ejected, and %s is dead", got, c.dead)
				}
				for _, e := range d.Endpoints(p.Ref()) {
					if e.InFlight != 0 || e.Tokens != 0 {
						t.Errorf("%s has %d in flight and %d tokens", e.ID, e.InFlight, e.Tokens)
					}
				}
				s.dead = nil
				time.Sleep(30 * time.Second)
				if fails, _ = ask(); fails > 0 || len(s.ejected()) > 0 {
					t.Errorf("with all alive %d fail and %v are ejected", fails, s.ejected())
				}
				had := map[string]bool{}
				for range 200 {
					r := Request{To: p.Ref(), Messages: pictures(fmt.Sprint("http://b/", len(had), s.sent)), Prompt: [][]byte{[]byte(strings.Repeat(fmt.Sprint("again ", s.sent, " "), 100))}}
					s.sent++
					g := grantOf(t, d, r)
					for _, a := range append([]string{g.Address(), g.Prefill()}, g.Encoders()...) {
						had[strings.TrimSuffix(a, ":80")] = true
					}
					g.FirstByte()
					g.Done(Outcome{})
				}
				if !had[c.dead] {
					t.Errorf("%s is back and gets nothing", c.dead)
				}
			})
		})
	}
}

// TestAnswersOfTheirOwn: what is no 502 is the doing of the server that answered.
func TestAnswersOfTheirOwn(t *testing.T) {
	d, p := encoding(t, nil, "d1", "d2", "d3", "p1", "e1")
	s := &sidecars{t: t, d: d, config: p}
	for i := range 60 {
		g := grantOf(t, d, Request{To: p.Ref(), Messages: pictures(fmt.Sprint("http://a/", i)), Prompt: [][]byte{[]byte(strings.Repeat(fmt.Sprint("once ", i, " "), 100))}})
		if g.Replica() == "d1" {
			g.Answered(Answer{Status: 500, Result: breaker.Failed})
		}
		g.FirstByte()
		g.Done(Outcome{})
	}
	if got := s.ejected(); !slices.Equal(got, []string{"d1"}) {
		t.Errorf("%v are ejected, want d1", got)
	}
}

// TestHelpersAcquitted: what is held against helpers stands if the request does well without
// them, or is not sent again, and is taken back if it fails all the same.
func TestHelpersAcquitted(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		retry bool
		spent bool           // is the budget for retries
		alone func(g *Grant) // what becomes of it without helpers
		want  []string       // are ejected
	}{
		"it is answered without": {true, false, func(g *Grant) { g.FirstByte() }, []string{"e1"}},
		"it is not sent again":   {false, false, nil, []string{"e1"}},
		"none may take it":       {true, true, nil, []string{"e1"}},
		"it is refused": {true, false, func(g *Grant) {
			g.Judge(Answer{Status: 400, Result: breaker.OfStatus(400), Retryable: true})
			g.FirstByte()
		}, nil},
		"it is not found": {true, false, func(g *Grant) {
			g.Judge(Answer{Status: 404, Result: breaker.OfStatus(404), Retryable: true})
			g.FirstByte()
		}, nil},
		"it fails": {true, false, func(g *Grant) {
			g.Judge(Answer{Status: 500, Result: breaker.OfStatus(500), Retryable: true})
			g.FirstByte()
		}, nil},
		"the server is busy": {true, false, func(g *Grant) {
			g.Judge(Answer{Status: 503, Result: breaker.OfStatus(503), Retryable: true})
			g.FirstByte()
		}, nil},
		"the server dies": {true, false, func(g *Grant) { _ = g.Retry(gone, Lost(errors.New("EOF"))) }, nil},
		"its client goes": {true, false, func(*Grant) {}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, p := encoding(t, nil, "d1", "d2", "e1")
				s := &sidecars{t: t, d: d, config: p}
				for range 3 { // each as the first one
					g := grantOf(t, d, Request{To: p.Ref(), Messages: pictures("http://a")})
					if len(g.Encoders()) != 1 {
						t.Fatalf("%v encode", g.Encoders())
					}
					if c.spent {
						g.pool.budget = admission.Budget{}
					}
					moved := g.Answered(Answer{Status: 502, Result: breaker.Failed, Retryable: c.retry})
					encoders := func() []string {
						return slices.DeleteFunc(s.ejected(), func(id string) bool { return id[0] != 'e' })
					}
					if got := encoders(); !slices.Equal(got, []string{"e1"}) {
						t.Fatalf("%v are ejected while it is sent again", got)
					}
					switch {
					case moved != (c.alone != nil):
						t.Fatalf("moved is %v", moved)
					case moved:
						c.alone(g)
					default:
						g.FirstByte()
					}
					g.Done(Outcome{})
					g.Done(Outcome{})
					if got := encoders(); !slices.Equal(got, c.want) {
						t.Fatalf("%v are ejected, want %v", got, c.want)
					}
					if c.want != nil {
						return
					}
					time.Sleep(time.Minute) // a server that died has rested
				}
			})
		})
	}
}

// TestHelpersAcquittedTogether: pictures that nobody can load keep no encoder ejected,
// however many requests name them at once, and one that is dead rests all the same.
func TestHelpersAcquittedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, p := encoding(t, nil, "d1", "d2", "e1", "e2")
		s := &sidecars{t: t, d: d, config: p, retry: true}
		for round := range 20 {
			var all []*Grant
			for n := range 8 {
				all = append(all, grantOf(t, d, Request{To: p.Ref(), Messages: pictures(fmt.Sprint("http://a/", round, n), fmt.Sprint("http://b/", round, n))}))
			}
			for _, g := range all {
				g.pool.budget.Rate = 1e6
				if !g.Answered(Answer{Status: 502, Result: breaker.Failed, Retryable: true}) {
					t.Fatal("it is not sent again")
				}
			}
			for _, g := range all {
				g.Judge(Answer{Status: 400, Result: breaker.Answered, Retryable: true})
				g.FirstByte()
				g.Done(Outcome{})
			}
			if got := s.ejected(); len(got) > 0 {
				t.Fatalf("round %d: %v are ejected", round, got)
			}
			time.Sleep(10 * time.Millisecond)
		}
		s.dead = []string{"e1"}
		for range 20 {
			s.ask(true)
		}
		if got := s.ejected(); !slices.Equal(got, s.dead) {
			t.Errorf("%v are ejected, want %v", got, s.dead)
		}
	})
}
