package metrics

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// Append appends all families in Prometheus' text format, in the order in
// which they were registered, their series by label, then what is included. Families without
// series are left out.
func (r *Registry) Append(dst []byte) []byte {
	r.mu.RLock()
	families := r.mu.families[:len(r.mu.families):len(r.mu.families)]
	included := r.mu.included
	r.mu.RUnlock()
	for _, f := range families {
		series := f.sorted()
		if len(series) == 0 {
			continue
		}
		for _, name := range f.names {
			dst = f.appendText(dst, name, series)
		}
	}
	if len(included) == 0 {
		return dst
	}
	names := taken(families)
	for _, include := range included {
		dst = include(dst, func(name string) bool { return names[name] })
	}
	return dst
}

// taken are the names of all samples that families may have.
func taken(families []*Family) map[string]bool {
	names := map[string]bool{}
	for _, f := range families {
		for _, name := range f.names {
			names[name] = true
			if f.kind == Histogram {
				names[name+"_bucket"], names[name+"_sum"], names[name+"_count"] = true, true, true
			}
		}
	}
	return names
}

func (f *Family) sorted() []*Series {
	f.mu.RLock()
	defer f.mu.RUnlock()
	list := make([]*Series, 0, len(f.mu.series))
	for _, s := range f.mu.series {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *Series) int { return strings.Compare(a.labels, b.labels) })
	return list
}

func (f *Family) appendText(dst []byte, name string, series []*Series) []byte {
	help := strings.NewReplacer(`\`, `\\`, "\n", `\n`).Replace(f.help)
	dst = append(dst, "# HELP "+name+" "+help+"\n# TYPE "+name+" "+string(f.kind)+"\n"...)
	for _, s := range series {
		if f.kind == Histogram {
			dst = s.appendHistogram(dst, name)
			continue
		}
		dst = strconv.AppendInt(appendName(dst, name, s.labels), s.value.Load(), 10)
		dst = append(dst, '\n')
	}
	return dst
}

// appendHistogram appends a histogram's lines. They agree with each other
// whatever is observed meanwhile: the count is the sum of the buckets.
func (s *Series) appendHistogram(dst []byte, name string) []byte {
	sum := math.Float64frombits(s.sum.Load())
	total := uint64(0)
	separator := ","
	if s.labels == "" {
		separator = ""
	}
	for i := range s.counts {
		total += s.counts[i].Load()
		bound := "+Inf"
		if i < len(buckets) {
			bound = strconv.FormatFloat(buckets[i], 'g', -1, 64)
		}
		dst = strconv.AppendUint(appendName(dst, name+"_bucket", s.labels+separator+`le="`+bound+`"`), total, 10)
		dst = append(dst, '\n')
	}
	dst = strconv.AppendFloat(appendName(dst, name+"_sum", s.labels), sum, 'g', -1, 64)
	dst = append(dst, '\n')
	dst = strconv.AppendUint(appendName(dst, name+"_count", s.labels), total, 10)
	return append(dst, '\n')
}

// appendName appends a line up to its value.
func appendName(dst []byte, name, labels string) []byte {
	dst = append(dst, name...)
	if labels != "" {
		dst = append(append(append(dst, '{'), labels...), '}')
	}
	return append(dst, ' ')
}
