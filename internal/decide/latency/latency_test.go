package latency

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// engine takes what real ones do: time for each token that is computed, for those
// ahead, and for what it does beside it.
type engine struct{ first, each [terms]float64 }

func (e engine) takes(of [terms]float64, w *Work) float64 {
	x, sum := w.vector(), 0.0
	for i, c := range of {
		sum += c * x[i]
	}
	return sum
}

var (
	fast = engine{first: [terms]float64{0.02, 0.05, 0.001, 0.05, 0.3, 0.02, 0}, each: [terms]float64{0.008, 0, 0, 0.001, 0, 0.004, 0.002}}
	slow = engine{first: [terms]float64{0.04, 0.15, 0.002, 0.15, 0.9, 0.05, 0}, each: [terms]float64{0.02, 0, 0, 0.002, 0, 0.01, 0.004}}
)

func someWork(r *rand.Rand) *Work {
	w := &Work{Uncached: int64(r.IntN(6000)), Cached: int64(r.IntN(8000)), Running: float64(r.IntN(40)), KV: r.Float64()}
	if r.IntN(2) == 0 {
		w.Ahead = int64(r.IntN(20_000))
	}
	if r.IntN(4) == 0 {
		w.Waiting = float64(r.IntN(8))
	}
	return w
}

// noise multiplies by a number whose median is 1.
func noise(r *rand.Rand, sigma float64) float64 { return math.Exp(sigma * r.NormFloat64()) }

// pupil is a Book, and a Model that takes over what it finds at once.
type pupil struct {
	Book
	Model
}

func (p *pupil) first(slot int, w *Work, predicted Quantiles, seconds float64) {
	l := p.Book.First(p.Place(slot), w, predicted, seconds)
	p.Take(&l)
}

func (p *pupil) each(slot int, w *Work, predicted Quantiles, seconds float64) {
	l := p.Book.Each(p.Place(slot), w, predicted, seconds)
	p.Take(&l)
}

// teach has the engines answer n requests.
func teach(b *pupil, r *rand.Rand, engines []engine, n int, sigma float64) {
	for range n {
		slot, w := r.IntN(len(engines)), someWork(r)
		p, _ := b.Predict(slot, w)
		b.first(slot, w, p.First, engines[slot].takes(engines[slot].first, w)*noise(r, sigma))
		b.each(slot, w, p.Each, engines[slot].takes(engines[slot].each, w)*noise(r, sigma))
	}
}

// TestLearns: after a few hundred answers the predictions are near, each
// endpoint's by its own speed, and the quantiles hold.
func TestLearns(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	b := &pupil{}
	engines := []engine{fast, slow, fast}
	teach(b, r, engines, 1500, 0.2)
	for range 200 {
		slot, w := r.IntN(3), someWork(r)
		p, ok := b.Predict(slot, w)
		if !ok {
			t.Fatal("nothing is predicted after 1500 answers")
		}
		for what, pair := range map[string][2]float64{
			"first": {p.First.P50, engines[slot].takes(engines[slot].first, w)},
			"each":  {p.Each.P50, engines[slot].takes(engines[slot].each, w)}} {
			if off := pair[0] / pair[1]; off < 0.6 || off > 1.6 {
				t.Errorf("%s of slot %d for %+v: predicted %.4f s, the engine takes %.4f s", what, slot, *w, pair[0], pair[1])
			}
		}
	}
	first, each := b.Accuracy()
	for what, a := range map[string]Accuracy{"first": first, "each": each} {
		t.Logf("%s: %+v", what, a)
		if a.Error > 0.25 || a.Miscalibration() > 0.05 || math.Abs(a.Within50-0.5) > 0.1 {
			t.Errorf("%s: %+v is far from 0.5 and 0.9", what, a)
		}
	}
}

// TestBorrows: an endpoint that has answered nothing is as the others, and nothing
// is predicted before the pool has answered enough.
func TestBorrows(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	b := &pupil{}
	w := someWork(r)
	if _, ok := b.Predict(0, w); ok {
		t.Error("predicts without an answer")
	}
	teach(b, r, []engine{fast}, known-1, 0)
	if _, ok := b.Predict(0, w); ok {
		t.Errorf("predicts after %d answers", known-1)
	}
	teach(b, r, []engine{fast}, 200, 0)
	own, _ := b.Predict(0, w)
	if other, ok := b.Predict(7, w); !ok || other.First.P50/own.First.P50 < 0.9 || other.First.P50/own.First.P50 > 1.1 {
		t.Errorf("of an endpoint without answers %+v, the others' is %+v", other, own)
	}
	b.Forget(0)
	b.Forget(99)
	if after, ok := b.Predict(0, w); !ok || after.First.P50 == 0 {
		t.Errorf("after Forget the pool's counts: %+v", after)
	}
}

// TestLateLessons: what was learned of an endpoint before it was forgotten is left
// out, and an older lesson does not replace a newer one.
func TestLateLessons(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 5))
	b := &pupil{}
	teach(b, r, []engine{fast, fast}, 200, 0)
	w := &Work{Uncached: 4000}
	was := b.Place(0)
	older := b.Book.First(was, w, Quantiles{}, 30)
	for range 50 {
		b.first(0, w, Quantiles{}, 60)
	}
	newer, _ := b.Predict(0, w)
	b.Take(&older)
	if p, _ := b.Predict(0, w); p != newer {
		t.Errorf("an older lesson changes %+v to %+v", newer, p)
	}
	late := b.Book.First(was, w, Quantiles{}, 60)
	b.Forget(0)
	fresh, _ := b.Predict(0, w)
	b.Take(&late)
	if p, _ := b.Predict(0, w); p != fresh {
		t.Errorf("a lesson of an endpoint that is gone changes %+v to %+v", fresh, p)
	}
	b.first(0, w, Quantiles{}, 1)
	if l := b.Book.First(was, w, Quantiles{}, 60); l != (Lesson{}) {
		t.Error("learns of an endpoint that another has followed")
	}
}

// TestFollows: an engine that becomes three times as slow is found so within a
// hundred answers.
func TestFollows(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	b := &pupil{}
	teach(b, r, []engine{fast, fast}, 800, 0.1)
	teach(b, r, []engine{slow, fast}, 400, 0.1)
	w := &Work{Uncached: 4000, Running: 8}
	p, _ := b.Predict(0, w)
	if want := slow.takes(slow.first, w); p.First.P50 < 0.6*want || p.First.P50 > 1.6*want {
		t.Errorf("predicts %.3f s of an engine that takes %.3f s now", p.First.P50, want)
	}
}

// TestMoreWorkNeverTakesLess, whatever was learned.
func TestMoreWorkNeverTakesLess(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 50 {
		b := &pupil{}
		for range 100 { // answers that have nothing to do with the work
			slot := r.IntN(2)
			b.first(slot, someWork(r), Quantiles{}, r.ExpFloat64())
			b.each(slot, someWork(r), Quantiles{}, r.ExpFloat64()/100)
		}
		w := someWork(r)
		more := *w
		more.Uncached += 1000
		more.Ahead += 1000
		more.Waiting++
		more.Running += 5
		p, _ := b.Predict(0, w)
		q, _ := b.Predict(0, &more)
		if q.First.P50 < p.First.P50 || q.First.P90 < p.First.P90 || q.Each.P50 < p.Each.P50 || p.First.P90 < p.First.P50 {
			t.Fatalf("%+v takes %+v, %+v takes %+v", *w, p, more, q)
		}
	}
}

// TestHostileFigures: what engines and clocks say cannot spoil a book.
func TestHostileFigures(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 1))
	b := &pupil{}
	teach(b, r, []engine{fast}, 100, 0.1)
	bad := []float64{0, -1, math.NaN(), math.Inf(1), math.Inf(-1), 1e300, longest, 1e-300}
	for _, v := range bad {
		w := &Work{Uncached: math.MinInt64, Cached: math.MaxInt64, Ahead: -1, Waiting: v, Running: v, KV: v}
		b.first(0, w, Quantiles{P50: v, P90: v}, v)
		b.each(1, w, Quantiles{P50: v, P90: v}, v)
		b.Book.First(Place{Slot: -1}, w, Quantiles{}, 1)
		p, ok := b.Predict(0, w)
		for _, s := range []float64{p.First.P50, p.First.P90, p.Each.P50, p.Each.P90} {
			if !ok || math.IsNaN(s) || math.IsInf(s, 0) || s < 0 {
				t.Fatalf("after %v: %+v", v, p)
			}
		}
	}
	p, _ := b.Predict(0, &Work{Uncached: 1000})
	if p.First.P50 > 5 {
		t.Errorf("one answer of an hour makes it predict %.1f s", p.First.P50)
	}
}

// answer is one that a naive twin remembers.
type answer struct {
	x    [terms]float64
	y, w float64
}

// naive solves the same problem the long way: it keeps all answers, and tries every
// set of coefficients that may be above 0.
func naive(all []answer) (best [terms]float64, least float64) {
	least = math.Inf(1)
	for set := range 1 << terms {
		c, ok := solveFor(all, set)
		if !ok || slices.ContainsFunc(c[:], func(v float64) bool { return v < 0 }) {
			continue
		}
		if miss := loss(all, &c); miss < least {
			best, least = c, miss
		}
	}
	return best, least
}

func loss(all []answer, c *[terms]float64) (sum float64) {
	for _, a := range all {
		off := a.y
		for i := range c {
			off -= c[i] * a.x[i]
		}
		sum += a.w * off * off
	}
	return sum
}

// solveFor solves the normal equations of some terms by elimination.
func solveFor(all []answer, set int) (c [terms]float64, ok bool) {
	var at []int
	for i := range terms {
		if set>>i&1 == 1 {
			at = append(at, i)
		}
	}
	n := len(at)
	m := make([][]float64, n)
	for i := range m {
		m[i] = make([]float64, n+1)
		for _, a := range all {
			for j := range n {
				m[i][j] += a.w * a.x[at[i]] * a.x[at[j]]
			}
			m[i][n] += a.w * a.x[at[i]] * a.y
		}
	}
	for i := range n {
		pivot := i
		for k := i; k < n; k++ {
			if math.Abs(m[k][i]) > math.Abs(m[pivot][i]) {
				pivot = k
			}
		}
		if m[i], m[pivot] = m[pivot], m[i]; math.Abs(m[i][i]) < 1e-12 {
			return c, false
		}
		for k := range n {
			if k != i {
				by := m[k][i] / m[i][i]
				for j := i; j <= n; j++ {
					m[k][j] -= by * m[i][j]
				}
			}
		}
	}
	for i := range n {
		c[at[i]] = m[i][n] / m[i][i]
	}
	return c, true
}

// TestFitIsTheNaiveOne: what is solved step by step, with sums alone, is what the
// twin finds by trying everything.
func TestFitIsTheNaiveOne(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for range 20 {
		f, keep := &fit{}, 0.97
		var all []answer
		e := []engine{fast, slow}[r.IntN(2)]
		for range 120 {
			w := someWork(r)
			x := w.vector()
			y := e.takes(e.first, w) * noise(r, 0.3)
			f.learn(&x, y, 0, keep)
			f.solve(nil)
			for i := range all {
				all[i].w *= keep
			}
			all = append(all, answer{x: x, y: y, w: 1 / max(y, least)})
		}
		for range 500 { // to the end, where it would get with more answers
			f.solve(nil)
		}
		c, want := naive(all)
		if got := loss(all, &f.coefficients); got > want*1.001 {
			t.Fatalf("coefficients %v miss by %.5f, the naive ones %v by %.5f", f.coefficients, got, c, want)
		}
	}
}

// TestQuantilesAreTheNaiveOnes: bins give what sorting gives, to the width of one.
func TestQuantilesAreTheNaiveOnes(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	for range 50 {
		f := &fit{}
		var all []float64
		sigma := 0.05 + r.Float64()
		for range 400 {
			ratio := noise(r, sigma)
			all = append(all, ratio)
			f.learn(&[terms]float64{1}, 1, ratio, 1)
		}
		f.solve(nil)
		slices.Sort(all)
		for _, q := range []struct{ got, part float64 }{{f.p10, 0.1}, {f.p50, 0.5}, {f.p90, 0.9}} {
			want := min(max(all[int(q.part*400)], math.Exp2(-4)), math.Exp2(4))
			if off := math.Abs(math.Log2(q.got / want)); off > 1.5/widths {
				t.Errorf("the quantile %g of noise %.2f is %.3f, want %.3f", q.part, sigma, q.got, want)
			}
		}
	}
}

func BenchmarkBook(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	book := &pupil{}
	teach(book, r, []engine{fast, slow}, 200, 0.2)
	w := someWork(r)
	b.Run("learn", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			p, _ := book.Predict(0, w)
			book.first(0, w, p.First, 0.3)
		}
	})
	b.Run("predict", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			book.Predict(1, w)
		}
	})
}
