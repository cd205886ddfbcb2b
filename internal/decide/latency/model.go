package latency

// Place is an endpoint's: the number of its slot, and how many the Model of the pool
// has forgotten there.
type Place struct {
	Slot   int
	Tenure uint64
}

// Lesson is what a Book found when it learned from an answer. The zero Lesson is of
// an answer that nothing was learned from.
type Lesson struct {
	at        Place
	each      bool
	number    uint64 // of the pool's answers; 0 for none
	known     bool   // enough to predict
	pool, own solution
}

// Model predicts what a request would take, by the lessons that it was taught. The
// zero Model predicts nothing.
type Model struct {
	first, each predictor
	tenures     []uint64 // by slot; 0 beyond
}

// predictor is the part of one quantity.
type predictor struct {
	known  bool
	number uint64 // of the newest lesson
	pool   solution
	slots  []taught
}

// taught is what is known of one endpoint.
type taught struct {
	solution
	number uint64 // of its newest lesson; 0 for none: the pool's counts
}

// Place is where an endpoint's answers are to be learned.
func (m *Model) Place(slot int) Place {
	if slot < len(m.tenures) {
		return Place{slot, m.tenures[slot]}
	}
	return Place{Slot: slot}
}

// Take takes over what a Book found. Lessons may come in any order: an older one
// does not replace a newer one, and one of an endpoint that was forgotten is left out.
func (m *Model) Take(l *Lesson) {
	if l.number == 0 || l.at != m.Place(l.at.Slot) {
		return
	}
	p := &m.first
	if l.each {
		p = &m.each
	}
	p.known = p.known || l.known
	if l.number > p.number {
		p.number, p.pool = l.number, l.pool
	}
	for len(p.slots) <= l.at.Slot {
		p.slots = append(p.slots, taught{})
	}
	if s := &p.slots[l.at.Slot]; l.number > s.number {
		s.number, s.solution = l.number, l.own
	}
}

// Forget forgets an endpoint, whose slot another may take.
func (m *Model) Forget(slot int) {
	for len(m.tenures) <= slot {
		m.tenures = append(m.tenures, 0)
	}
	m.tenures[slot]++
	for _, p := range []*predictor{&m.first, &m.each} {
		if slot < len(p.slots) {
			p.slots[slot] = taught{}
		}
	}
}

// Predict returns what a request would take at the endpoint of a slot; false while
// too few answers are known.
func (m *Model) Predict(slot int, w *Work) (p Prediction, ok bool) {
	if !m.first.known {
		return Prediction{}, false
	}
	x := w.vector()
	p.First, p.Each = m.first.predict(slot, &x), m.each.predict(slot, &x)
	return p, true
}

func (p *predictor) predict(slot int, x *[terms]float64) Quantiles {
	if !p.known {
		return Quantiles{}
	}
	s := &p.pool
	if slot < len(p.slots) && p.slots[slot].number > 0 {
		s = &p.slots[slot].solution
	}
	center := s.value(x)
	return Quantiles{P10: center * s.p10, P50: center * s.p50, P90: center * s.p90}
}
