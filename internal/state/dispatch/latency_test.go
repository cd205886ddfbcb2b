package dispatch

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/admission"
)

// taught is a pool whose two replicas have answered some requests, each after 100 ms
// and then 10 tokens, one every 5 ms.
func taught(t *testing.T) *Dispatcher {
	t.Helper()
	d, _ := start(t, nil)
	d.SetPool(pool1(0, ready("a", "b")...))
	ranked(d)
	for range 60 {
		g := mustAdmit(t, d)
		time.Sleep(100 * time.Millisecond)
		g.FirstByte()
		g.FirstToken()
		time.Sleep(45 * time.Millisecond)
		g.Done(Outcome{Tokens: 10})
	}
	return d
}

// slo is a header of a request.
func slo(name, value string) func(string) string {
	return func(asked string) string {
		if asked == name {
			return value
		}
		return ""
	}
}

func TestRequestsThatWouldBeLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := taught(t)
		var e *Error
		for _, name := range append(routing.HeaderFirst, "") {
			r := Request{Model: "spot", Header: slo(name, "40")}
			if name == "" {
				r = Request{Model: "spot", Latency: routing.LatencyTarget{First: 40 * time.Millisecond}}
			}
			_, err := d.Admit(t.Context(), r)
			if !errors.As(err, &e) || e.Reason != admission.Late || e.RetryAfter == 0 || !strings.Contains(e.Message, "latency target (") {
				t.Fatalf("sheddable with a target of 40 ms in %q: %v", name, err)
			}
		}
		if _, err := d.Admit(t.Context(), Request{Model: "spot", Header: slo(routing.HeaderEach[0], "1")}); !errors.As(err, &e) || e.Reason != admission.Late {
			t.Errorf("sheddable with a target of 1 ms a token: %v", err)
		}
		for _, fine := range []func(string) string{slo(routing.HeaderFirst[0], "300"), slo(routing.HeaderEach[0], "9"), slo(routing.HeaderFirst[0], "soon")} {
			g, err := d.Admit(t.Context(), Request{Model: "spot", Header: fine})
			if err != nil || g.Waited() != 0 {
				t.Fatalf("a target that can be met: %v", err)
			}
			g.Done(Outcome{})
		}
		// Another request goes ahead of one that is deferred, which goes when its time is over.
		late := background(t.Context(), d, Request{Model: "iris", Header: slo(routing.HeaderFirst[0], "40")})
		synctest.Wait()
		s, _ := d.Status(routing.Service(iris))
		if len(s.Queue) != 1 || s.Queue[0].Queued != 1 {
			t.Fatalf("%+v wait", s.Queue)
		}
		g := mustAdmit(t, d)
		if g.Waited() != 0 {
			t.Errorf("one without a target waited %v behind one that is deferred", g.Waited())
		}
		g.Done(Outcome{})
		x := <-late
		if x.err != nil || x.g.Waited() < 40*time.Millisecond || x.g.Waited() > 40*time.Millisecond+deferEvery {
			t.Fatalf("deferred: %v", x.err)
		}
		x.g.Done(Outcome{})
		balance(t, d, 0, 0, s.Admission.Admitted+2)
	})
}

// TestTargetsOfManyHoldUpNone: clients whose targets nothing can meet, however many
// and however long they would wait, hold up none that has no target.
func TestTargetsOfManyHoldUpNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := taught(t)
		d.SetPool(pool1(1, ready("a", "b")...))
		busy := []*Grant{mustAdmit(t, d), mustAdmit(t, d)}
		var late []<-chan admitted
		for range 2 * maxLate {
			late = append(late, background(t.Context(), d, Request{Model: "iris", Header: slo(routing.HeaderEach[0], "0.000001"),
				Latency: routing.LatencyTarget{First: time.Hour, Each: time.Nanosecond}}))
		}
		synctest.Wait()
		plain := background(t.Context(), d, Request{Model: "iris"})
		synctest.Wait()
		busy[0].Done(Outcome{})
		synctest.Wait()
		select {
		case x := <-plain:
			if x.err != nil {
				t.Fatal(x.err)
			}
			x.g.Done(Outcome{})
		default:
			t.Fatal("a request without a target waits behind those whose targets cannot be met")
		}
		busy[1].Done(Outcome{})
		began := time.Now()
		var all sync.WaitGroup
		for _, c := range late {
			all.Go(func() {
				if x := <-c; x.err != nil {
					t.Error(x.err)
				} else {
					x.g.Done(Outcome{})
				}
			})
		}
		all.Wait()
		if took := time.Since(began); took > maxDeferred+time.Second {
			t.Errorf("deferred for %v", took)
		}
	})
}

// TestTargetsOfObjects: an objective and a Route state targets too, and the request's
// own goes before.
func TestTargetsOfObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := taught(t)
		key := service.Key{Namespace: "default", Name: "quick"}
		d.SetObjects([]routing.Object{&routing.Route{Meta: service.Meta{Key: key}, Models: []string{"quick"}, Priority: -1,
			Targets: []routing.Target{{Ref: routing.Service(iris), Weight: 1}}, Latency: routing.LatencyTarget{First: 30 * time.Millisecond}}})
		x, err := d.Explain(Request{Model: "quick"})
		if err != nil || x.Decision != admission.Shed || x.Because != admission.Late {
			t.Errorf("%v %v", x, err)
		}
		if text := x.String(); !strings.Contains(text, "first token 0.1") || !strings.Contains(text, "each 0.0") || !strings.Contains(text, "none predicted to meet") {
			t.Errorf("the prediction is not in:\n%s", text)
		}
		const stated = "\nlatency target: first token within 30ms, as its route or objective says\n"
		if !strings.Contains(x.String(), stated) {
			t.Errorf("the target is not in:\n%s", x)
		}
		x, err = d.Explain(Request{Model: "quick", Header: slo(routing.HeaderFirst[0], "900")})
		if err != nil || x.Decision != admission.Admit || !strings.Contains(x.String(), "\nlatency target: first token within 900ms, as the request says\n") {
			t.Errorf("%v %v", x, err)
		}
		for _, value := range []string{"abc", "-5", "0", "NaN", "1e12"} {
			x, err = d.Explain(Request{Model: "quick", Header: slo(routing.HeaderFirst[1], value)})
			if text := x.String(); err != nil || !strings.Contains(text, stated) || !strings.Contains(text, "the header x-slo-ttft-ms has no effect: \""+value+"\" is not a number of milliseconds") {
				t.Errorf("%s: %v %v", value, text, err)
			}
		}
		if x, err = d.Explain(Request{Model: "iris"}); err != nil || strings.Contains(x.String(), "latency target") {
			t.Errorf("without a target: %v %v", x, err)
		}
	})
}

// TestOutcomeBesidePrediction: a request that is done tells what was predicted of its
// answer and what it took, from the try that was answered.
func TestOutcomeBesidePrediction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near := func(got, want float64) bool { return got > 0.9*want && got < 1.1*want }
		fresh, _ := start(t, nil)
		fresh.SetPool(pool1(0, ready("a")...))
		g := mustAdmit(t, fresh)
		g.Done(Outcome{})
		if o := g.Latency(); o != nil {
			t.Errorf("where nothing is predicted: %+v", o)
		}

		d := taught(t)
		g, err := d.Admit(t.Context(), Request{Model: "iris", Header: slo(routing.HeaderFirst[0], "300")})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond)
		g.FirstByte()
		g.FirstToken()
		time.Sleep(90 * time.Millisecond)
		g.Done(Outcome{Tokens: 10})
		o := g.Latency()
		if o == nil || !near(o.Predicted.First.P50, 0.1) || !near(o.Predicted.Each.P50, 0.005) || !near(o.First, 0.2) || !near(o.Each, 0.01) || o.Target.First != 0.3 || o.Waited != 0 {
			t.Errorf("%+v", o)
		}

		// An answer that is no stream has no first token to be seen, and one that was moved
		// has only what its last replica did.
		g = mustAdmit(t, d)
		time.Sleep(50 * time.Millisecond)
		g.FirstByte()
		g.Done(Outcome{Usage: Usage{Completion: 10}})
		if o := g.Latency(); o == nil || o.First != 0 || o.Each != 0 || !near(o.Predicted.First.P50, 0.1) {
			t.Errorf("no stream: %+v", o)
		}
		g = mustAdmit(t, d)
		time.Sleep(time.Second)
		if err := g.Retry(t.Context(), errors.New("refused")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		g.FirstByte()
		g.FirstToken()
		g.Done(Outcome{Tokens: 1})
		if o := g.Latency(); o == nil || !near(o.First, 0.1) || o.Each != 0 || o.Waited < 1 {
			t.Errorf("after a try that failed: %+v", o)
		}
	})
}

// TestPredictionsAreJudged: what answers took is held against what was predicted.
func TestPredictionsAreJudged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := taught(t)
		s, _ := d.Status(routing.Service(iris))
		for what, a := range map[string]float64{"first": s.Latency.First.Error, "each": s.Latency.Each.Error} {
			if a > 0.05 {
				t.Errorf("%s: off by %.2f where all answers are alike", what, a)
			}
		}
		if s.Latency.First.Answers < 40 || s.Latency.Each.Answers < 40 {
			t.Errorf("%+v", s.Latency)
		}
		// A replica that is started anew is unknown.
		d.SetPool(pool1(0))
		d.SetPool(pool1(0, ready("c")...))
		if x, err := d.Explain(Request{Model: "iris"}); err != nil || !strings.Contains(x.String(), "first token") {
			t.Errorf("of a new replica nothing is predicted: %v %v", x, err)
		}
	})
}
