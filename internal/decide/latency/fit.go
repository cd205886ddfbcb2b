package latency

import "math"

const (
	// poolKeep and slotKeep are what is left of the weight of earlier answers when
	// one more comes: the last 500 count, or the last 100 of an endpoint.
	poolKeep = 1 - 1.0/500
	slotKeep = 1 - 1.0/100
	// borrowed is how many answers of its own an endpoint needs until they count as
	// much as the pool's.
	borrowed = 20

	// least is the least that is ever predicted, in seconds.
	least = 1e-5
	// sweeps is how often the solution is improved with each answer. It begins where
	// it was, so it follows what is learned.
	sweeps = 2
	// wild is how many times what was predicted an answer may take to count in
	// full: one beyond was held up by something that is not the endpoint's work.
	wild = 8

	// The ratios of what answers took to what was fitted are counted in bins of a
	// width in powers of two.
	bins   = 64
	widths = 8 // bins to a factor of two
)

// fit is a weighted least-squares fit with coefficients that are not negative.
type fit struct {
	evidence
	solution
}

// solution is what a fit predicts by.
type solution struct {
	coefficients  [terms]float64
	p10, p50, p90 float64 // of the ratios
}

// evidence is what the past has shown, each answer by its weight.
type evidence struct {
	answers float64 // sum of weights that fade with time alone
	xx      [terms][terms]float64
	xy      [terms]float64
	ratios  [bins]float64
	judged  float64 // sum of ratios
}

// value is the fitted value for terms.
func (s *solution) value(x *[terms]float64) float64 {
	sum := 0.0
	for i, c := range &s.coefficients {
		sum += c * x[i]
	}
	return max(sum, least)
}

// learn adds an answer. ratio is what it took by what was fitted before; 0 when
// nothing was.
func (e *evidence) learn(x *[terms]float64, y, ratio, keep float64) {
	// Long answers vary more than short ones: their weight is less, by about their
	// variance.
	w := 1 / max(y, least)
	if ratio > 0 {
		w = 1 / max(y/ratio, least)
		y = min(y, wild*y/ratio)
	}
	e.answers = keep*e.answers + 1
	for i := range terms {
		wx := w * x[i]
		for j := range i + 1 {
			v := keep*e.xx[i][j] + wx*x[j]
			e.xx[i][j], e.xx[j][i] = v, v
		}
		e.xy[i] = keep*e.xy[i] + wx*y
	}
	e.judged *= keep
	for i := range e.ratios {
		e.ratios[i] *= keep
	}
	if ratio > 0 {
		e.judged++
		e.ratios[bin(ratio)]++
	}
}

// bin is where a ratio is counted.
func bin(ratio float64) int {
	return int(min(max(bins/2+math.Floor(widths*math.Log2(ratio)), 0), bins-1))
}

// solve improves the coefficients, and takes the ratios' quantiles. Of pool, which
// may be nil, as much counts as of borrowed answers.
func (f *fit) solve(pool *fit) {
	share, judged := 0.0, 0.0
	var from *evidence
	if from = &f.evidence; pool != nil {
		from = &pool.evidence
		share = borrowed / max(from.answers, borrowed)
		judged = borrowed / max(from.judged, borrowed)
	}
	c := &f.coefficients
	for range sweeps {
		for i := range terms {
			own, lent := &f.xx[i], &from.xx[i]
			xx := own[i] + share*lent[i]
			if xx <= 0 {
				continue
			}
			sum, borrow := 0.0, 0.0
			for j, v := range c {
				sum += v * own[j]
				borrow += v * lent[j]
			}
			c[i] = max(0, c[i]+(f.xy[i]+share*from.xy[i]-sum-share*borrow)/xx)
		}
	}
	f.quantiles(from, judged)
}

// quantiles finds the ratios below which a tenth, half and nine tenths of all are.
func (f *fit) quantiles(from *evidence, share float64) {
	f.p10, f.p50, f.p90 = 0.7, 1, 1.5 // while there are none
	all := f.judged + share*from.judged
	if all < 1 {
		return
	}
	sum, found := 0.0, 0
	to := [...]*float64{&f.p10, &f.p50, &f.p90}
	parts := [...]float64{0.1, 0.5, 0.9}
	for i := range bins {
		n := f.ratios[i] + share*from.ratios[i]
		for found < len(to) && n > 0 && parts[found]*all <= sum+n {
			*to[found] = math.Exp2((float64(i-bins/2) + (parts[found]*all-sum)/n) / widths)
			found++
		}
		sum += n
	}
}
