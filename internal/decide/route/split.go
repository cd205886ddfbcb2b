package route

import "roundhouse.dev/roundhouse/internal/core/routing"

// split chooses among weighted things by cumulative weight: ends[i] is the sum
// of the weights up to and with i, so that 0 <= ends[i] <= ends[i+1].
type split struct{ ends []int }

func (s *split) add(weight uint32) { s.ends = append(s.ends, s.total()+int(weight)) }

func (s *split) total() int {
	if len(s.ends) == 0 {
		return 0
	}
	return s.ends[len(s.ends)-1]
}

// weight is that of i.
func (s *split) weight(i int) int {
	if i == 0 {
		return s.ends[0]
	}
	return s.ends[i] - s.ends[i-1]
}

// pick is an index with a weight above 0; -1 when there is none. Lists are
// short (at most 16), so they are walked.
func (s *split) pick(random func(n int) int) int {
	total := s.total()
	if total == 0 {
		return -1
	}
	n := 0
	if total > 0 && len(s.ends) > 1 {
		n = random(total)
	}
	for i, end := range s.ends {
		if n < end {
			return i
		}
	}
	return -1
}

func modelSplit(targets []routing.WeightedModel) (s split) {
	for _, m := range targets {
		s.add(m.Weight)
	}
	return s
}
