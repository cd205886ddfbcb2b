package kpa

import (
	"math"
	"time"
)

// window averages the values of the last seconds, over as many of them as have
// passed since the first; after a window without a value it begins anew.
type window struct {
	buckets     []float64
	total       float64
	first, last int64 // seconds
	begun       bool
}

// buckets is how many a window of a length has.
func buckets(span time.Duration) int64 { return max(1, int64((span+report-1)/report)) }

func newWindow(span time.Duration) window { return window{buckets: make([]float64, buckets(span))} }

func (w *window) size() int64 { return int64(len(w.buckets)) }

func (w *window) at(second int64) *float64 { return &w.buckets[second%w.size()] }

func (w *window) record(now time.Duration, value float64) {
	second := int64(now / report)
	switch {
	case !w.begun || second-w.last >= w.size():
		clear(w.buckets)
		w.begun, w.total, w.first = true, 0, second
	default:
		for s := w.last + 1; s <= second; s++ {
			w.total -= *w.at(s)
			*w.at(s) = 0
		}
	}
	w.last = second
	*w.at(second) += value
	w.total += value
}

func (w *window) empty(now time.Duration) bool {
	return !w.begun || int64(now/report)-w.last > w.size()
}

func (w *window) average(now time.Duration) float64 {
	second, size := int64(now/report), w.size()
	if !w.begun || second-w.last >= size {
		return 0
	}
	total := w.total
	for s := w.last + 1; s <= second; s++ {
		total -= *w.at(s)
	}
	n := min(w.last-w.first+1, size-(second-w.last))
	return math.Floor(total/float64(n)*1e6) / 1e6
}
