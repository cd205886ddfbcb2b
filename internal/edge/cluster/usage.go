package cluster

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/usage"
)

// ErrNoUsage is the error where no controller has stored what services use.
var ErrNoUsage = errors.New("no controller has stored what services used since then: it does so half a minute after a replica runs")

// Usage returns what services used each day from since until now, as the controller of
// the gateway at a Service (as for Gateway) stored it last.
func (c *Client) Usage(ctx context.Context, gateway string, since usage.Day, now time.Time) ([]usage.Row, error) {
	name, _, _ := strings.Cut(strings.TrimPrefix(gateway, "https:"), ":")
	k := service.ParseKey(name)
	if gateway == "" {
		var err error
		if k, err = c.findGateway(ctx); err != nil {
			return nil, err
		}
	}
	first, err := time.Parse(time.DateOnly, string(since))
	if err != nil {
		return nil, err
	}
	var days []usage.Day
	for at := first; !at.After(now.Add(24 * time.Hour)); at = at.Add(24 * time.Hour) { // the controller's clock may be ahead
		days = append(days, usage.DayOf(at))
	}
	found, all := make([]bool, len(days)), make([][]usage.Row, len(days))
	wait, ctx := errgroup.WithContext(ctx)
	wait.SetLimit(maxAtOnce)
	for i, day := range days {
		wait.Go(func() (err error) {
			all[i], found[i], err = c.usageOf(ctx, k.Namespace, day)
			return err
		})
	}
	if err := wait.Wait(); err != nil {
		return nil, err
	}
	if !slices.Contains(found, true) {
		return nil, fmt.Errorf("%s, namespace %s: %w", c.Name(), k.Namespace, ErrNoUsage)
	}
	return slices.Concat(all...), nil
}

func (c *Client) usageOf(ctx context.Context, namespace string, day usage.Day) ([]usage.Row, bool, error) {
	m, err := c.get(ctx, configMapsAt, namespace, usage.ConfigMapOf(day))
	if Missing(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	text, _, _ := unstructured.NestedString(m.Object, "binaryData", usage.ConfigMapKey)
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, false, fmt.Errorf("ConfigMap %s/%s: %w", namespace, m.GetName(), err)
	}
	rows, _, err := usage.Decode(day, data)
	if err != nil {
		return nil, false, fmt.Errorf("ConfigMap %s/%s: %w", namespace, m.GetName(), err)
	}
	return rows, true, nil
}
