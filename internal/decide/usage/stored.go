package usage

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// In a cluster the days are ConfigMaps in the controller's namespace.
const (
	// LabelDay is their label; its value is the day.
	LabelDay = "roundhouse.dev/usage"
	// ConfigMapKey is the key of what Encode returns.
	ConfigMapKey = "day.json.gz"
)

// ConfigMapOf is the name of a day's ConfigMap.
func ConfigMapOf(d Day) string { return "roundhouse-usage-" + string(d) }

const (
	// MaxEncoded is the most bytes of a day: a ConfigMap has at most 1 MiB.
	MaxEncoded = 900 << 10
	// maxDecoded is the most bytes that one decodes to.
	maxDecoded = 16 << 20
)

// stored is a day as it is encoded.
type stored struct {
	Counted time.Time `json:"counted"`
	Rows    []Row     `json:"rows"`
}

// Encode returns a day's rows in at most limit bytes. Where there are too many, those
// that used least are added to Others.
func Encode(rows []Row, counted time.Time, limit int) ([]byte, error) {
	for {
		file := stored{Counted: counted.UTC(), Rows: make([]Row, len(rows))}
		for i, r := range rows {
			r.Day = "" // the name has it
			r.Use = r.rounded()
			file.Rows[i] = r
		}
		data, err := json.Marshal(file)
		if err != nil {
			return nil, err
		}
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		_, err = w.Write(data)
		if err := errors.Join(err, w.Close()); err != nil {
			return nil, err
		}
		next := fewer(rows)
		if out.Len() <= limit || len(next) >= len(rows) {
			return out.Bytes(), nil
		}
		rows = next
	}
}

// rounded is u to milliseconds.
func (u Use) rounded() Use {
	of := func(s ByState) ByState {
		ms := func(x float64) float64 { return math.Round(x*1000) / 1000 }
		return ByState{ms(s.Starting), ms(s.Idle), ms(s.Busy), ms(s.Asleep)}
	}
	return Use{of(u.Replicas), of(u.GPUs)}
}

// fewer adds the half of the rows that used least to Others.
func fewer(rows []Row) []Row {
	used := func(r Row) float64 {
		return r.Replicas.Running() + r.Replicas.Asleep + r.GPUs.Running() + r.GPUs.Asleep
	}
	byUse := slices.Clone(rows)
	slices.SortStableFunc(byUse, func(a, b Row) int { return cmp.Compare(used(b), used(a)) })
	others := Row{Account: Others}
	var out []Row
	for i, r := range byUse {
		if i < len(byUse)/2 && r.Account != Others {
			out = append(out, r)
			continue
		}
		others.Day, others.Use = r.Day, others.Plus(r.Use)
	}
	out = append(out, others)
	SortRows(out)
	return out
}

// Decode reads what Encode returned, of a day.
func Decode(day Day, data []byte) ([]Row, time.Time, error) {
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, time.Time{}, err
	}
	text, err := io.ReadAll(io.LimitReader(r, maxDecoded+1))
	if err != nil {
		return nil, time.Time{}, err
	}
	if len(text) > maxDecoded {
		return nil, time.Time{}, fmt.Errorf("is longer than %d bytes", maxDecoded)
	}
	var file stored
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, time.Time{}, err
	}
	for i := range file.Rows {
		file.Rows[i].Day = day
	}
	return file.Rows, file.Counted, nil
}
