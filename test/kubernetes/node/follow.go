//go:build kubernetes && linux

package node

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Follow shows every object of a list to see, then every change, until see says
// that it has seen enough. Of the last object listed it is told that a watch
// now goes on from there.
func Follow(ctx context.Context, c client.WithWatch, list client.ObjectList, see func(o client.Object, listed bool) bool, opts ...client.ListOption) error {
	if err := c.List(ctx, list, opts...); err != nil {
		return err
	}
	since := &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}}
	w, err := c.Watch(ctx, list, append([]client.ListOption{since}, opts...)...)
	if err != nil {
		return err
	}
	defer w.Stop()
	objects, err := meta.ExtractList(list)
	if err != nil {
		return err
	}
	for i, o := range objects {
		if see(o.(client.Object), i == len(objects)-1) {
			return nil
		}
	}
	for {
		select {
		case e, open := <-w.ResultChan():
			if !open {
				return errors.New("the watch ended")
			}
			if e.Type == watch.Error {
				return fmt.Errorf("watch: %v", e.Object)
			}
			if o, ok := e.Object.(client.Object); ok && see(o, false) {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
