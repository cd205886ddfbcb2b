package admission

import "slices"

// Where a Config asks for it, the fairness ids of a priority share by tokens: next is
// the id that has been served the fewest. A request counts at its estimate when it
// goes on, and at what it cost once that is known. Who comes anew, or comes back,
// begins where the others are, so that nobody saves up turns.

const (
	// maxLead is how many tokens an id may be ahead of the one that was served last,
	// however much its requests cost: then it gets its turn again.
	maxLead = 1 << 20
	// maxTokens is the most that one request counts as.
	maxTokens = 1 << 30
)

// account is what a fairness id of a priority was served.
type account struct {
	key    accountKey
	flow   *flow // nil while nothing of it waits
	served int64
}

type accountKey struct {
	priority int32
	id       string
}

// ledger has the accounts. Its floor is, by priority, what the id had been served that
// went on last.
type ledger struct {
	accounts map[accountKey]*account
	floor    map[int32]int64
}

// open finds or makes an account, which is not behind the floor.
func (l *ledger) open(k accountKey, limit int) *account {
	a := l.accounts[k]
	if a == nil {
		if l.accounts == nil {
			l.accounts, l.floor = map[accountKey]*account{}, map[int32]int64{}
		}
		if len(l.accounts) >= limit {
			l.prune(limit)
		}
		a = &account{key: k}
		l.accounts[k] = a
	}
	a.served = max(a.served, l.floor[k.priority])
	return a
}

// prune closes the accounts that say nothing more than the floor, or, if there are too
// many all the same, all of which nothing waits.
func (l *ledger) prune(limit int) {
	for _, all := range []bool{false, true} {
		for k, a := range l.accounts {
			if a.flow == nil && (all || a.served <= l.floor[k.priority]) {
				delete(l.accounts, k)
			}
		}
		if len(l.accounts) < limit {
			break
		}
	}
	if len(l.floor) > limit {
		clear(l.floor)
	}
}

// charge counts a request that goes on at its estimate.
func (l *ledger) charge(a *account, w *Waiter) {
	p := a.key.priority
	l.floor[p] = max(l.floor[p], a.served)
	w.account, w.charged = a, min(max(0, w.Tokens), maxTokens)
	l.add(a, w.charged)
}

func (l *ledger) add(a *account, tokens int64) {
	a.served = min(max(0, a.served+tokens), l.floor[a.key.priority]+maxLead)
}

// Settle counts a request that went on at what it cost, in place of its estimate. Calls
// after the first do nothing.
func (m *Machine) Settle(w *Waiter, tokens int64) {
	a := w.account
	if a == nil {
		return
	}
	m.ledger.add(a, min(max(0, tokens), maxTokens)-w.charged)
	w.account, w.charged = nil, 0
	a.moved()
}

// Twin charges w, another try of a request, as first was charged, if it was. Both are
// settled.
func (m *Machine) Twin(first, w *Waiter) {
	if a := first.account; a != nil {
		w.account, w.charged = a, first.charged
		m.ledger.add(a, w.charged)
		a.moved()
	}
}

// moved has the account's flow, if it has one that waits, take its place by what was
// served.
func (a *account) moved() {
	f := a.flow
	if f == nil {
		return
	}
	b := f.band
	i := slices.Index(b.flows, f)
	b.flows = slices.Delete(b.flows, i, i+1)
	b.queueUp(f)
}

// account is a flow's, where tokens count; nil otherwise.
func (m *Machine) account(priority int32, id string) *account {
	if !m.config.ByTokens {
		return nil
	}
	return m.ledger.open(accountKey{priority, id}, m.config.MaxFlows)
}

// began charges a request that goes on: of those that do not wait, only where others of
// its priority do.
func (m *Machine) began(w *Waiter) {
	if !m.config.ByTokens {
		return
	}
	if w.flow != nil {
		if a := w.flow.account; a != nil {
			m.ledger.charge(a, w)
		}
		return
	}
	if slices.ContainsFunc(m.bands, func(b *band) bool { return b.priority == w.Priority }) {
		m.ledger.charge(m.account(w.Priority, clipped(w.Fairness)), w)
	}
}

// queueUp puts a flow behind those that were served as little.
func (b *band) queueUp(f *flow) {
	if f.account == nil {
		b.flows = append(b.flows, f)
		return
	}
	i := slices.IndexFunc(b.flows, func(g *flow) bool { return g.account != nil && g.account.served > f.account.served })
	if i < 0 {
		i = len(b.flows)
	}
	b.flows = slices.Insert(b.flows, i, f)
}

// countTokens opens accounts for what waits already.
func (m *Machine) countTokens() {
	for _, b := range m.bands {
		flows := b.flows
		b.flows = nil
		for _, f := range flows {
			if f.account == nil {
				f.account = m.account(b.priority, f.id)
				f.account.flow = f
			}
			b.queueUp(f)
		}
	}
}
