package kafka

import (
	"strconv"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/modelserver/metrics"
)

// meters count the records answered.
type meters struct {
	requests, duration *metrics.Family
	open               *metrics.Series
}

func newMeters(r *metrics.Registry) (*meters, error) {
	m := &meters{}
	var open *metrics.Family
	for _, item := range []struct {
		family **metrics.Family
		desc   metrics.Desc
	}{
		{&m.requests, metrics.Desc{Name: "kafka_server_requests_total", Help: "Kafka records answered, by status.", Kind: metrics.Counter, Labels: []string{"status_code"}}},
		{&m.duration, metrics.Desc{Name: "kafka_server_request_duration_seconds", Help: "Seconds from a Kafka record's arrival to its answer.", Kind: metrics.Histogram, Labels: []string{"status_code"}}},
		{&open, metrics.Desc{Name: "kafka_server_requests_in_progress", Help: "Kafka records being answered.", Kind: metrics.Gauge}},
	} {
		var err error
		if *item.family, err = r.Register(item.desc); err != nil {
			return nil, err
		}
	}
	m.open = open.With()
	return m, nil
}

func (m *meters) observe(status int, took time.Duration) {
	code := strconv.Itoa(status)
	m.requests.With(code).Add(1)
	m.duration.With(code).Observe(took.Seconds())
}
